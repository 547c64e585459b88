"""The SQL of the queue: its table, and one statement for each step of an upload.

A row waits without a job until it is its room's turn (``job_id`` is null). So procrastinate has one
job for each room that has something to send, however many documents wait, and an idle worker does
not read past a long queue of one room.

A run of an upload is one start of its job: (job, attempts, worker) of procrastinate. ``run`` has
the attempts of the job when the run began; ``is_running`` is true from then to the run's end. Only
the run that owns a row may change it.
"""

from __future__ import annotations

VERSION = 2
"""Of the table's columns."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS meeting_async_uploads (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    server text NOT NULL,
    batch text NOT NULL,
    identity text NOT NULL,
    key text,
    room_id text NOT NULL,
    kind text NOT NULL,
    source text NOT NULL,
    filename text,
    content_type text,
    state text NOT NULL DEFAULT 'ready',
    job_id bigint,
    run integer NOT NULL DEFAULT -1,
    is_running boolean NOT NULL DEFAULT false,
    due_at timestamptz,
    troubled_at timestamptz,
    deferred_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    sent_at timestamptz,
    changed_at timestamptz NOT NULL DEFAULT now(),
    size bigint,
    fingerprint text,
    error text,
    reason text,
    attempts jsonb NOT NULL DEFAULT '[]',
    retry jsonb,
    UNIQUE (server, batch, identity)
);
DO $$ BEGIN
    IF obj_description('meeting_async_uploads'::regclass) = 'meeting-async, version 1' THEN
        ALTER TABLE meeting_async_uploads
            ADD COLUMN job_id bigint, ADD COLUMN due_at timestamptz,
            ADD COLUMN troubled_at timestamptz, DROP COLUMN suspected_at,
            ALTER COLUMN run SET DEFAULT -1;
        UPDATE meeting_async_uploads AS upload SET job_id = job.id,
            run = CASE WHEN is_running THEN job.attempts ELSE -1 END
        FROM procrastinate_jobs AS job
        WHERE upload.id = CASE job.task_name
            WHEN 'meeting_async:upload' THEN (job.args ->> 'upload_id')::bigint END;
    END IF;
END $$;
CREATE INDEX IF NOT EXISTS meeting_async_uploads_waiting
    ON meeting_async_uploads (server, room_id, (id + 0)) WHERE state = 'ready' AND job_id IS NULL;
CREATE INDEX IF NOT EXISTS meeting_async_uploads_open ON meeting_async_uploads (job_id)
    WHERE state IN ('ready', 'sent') AND job_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS meeting_async_uploads_jobs ON procrastinate_jobs (lock, id)
    WHERE status IN ('todo', 'doing');
CREATE INDEX IF NOT EXISTS meeting_async_uploads_recoveries ON procrastinate_jobs (id)
    WHERE task_name = 'meeting_async:recover';
COMMENT ON TABLE meeting_async_uploads IS 'meeting-async, version 2';
"""
"""The table, and two indexes on the jobs of procrastinate. ``state`` is that of a journal;
``troubled_at`` is since when the server was not reached; ``retry`` keeps the history of an upload
that waits; ``identity`` tells the uploads of a batch apart."""

ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtext('meeting_async_uploads'))"

FIND_VERSION = """
    SELECT to_regclass('meeting_async_uploads') IS NOT NULL AS is_there,
        obj_description(to_regclass('meeting_async_uploads')) AS comment"""

# --- deferring -----------------------------------------------------------------------------------

DEFER = """
    INSERT INTO meeting_async_uploads (
        server, batch, identity, key, room_id, kind, source, filename, content_type, due_at
    )
    SELECT %(server)s, %(batch)s, identity, key, room_id, kind, source, filename, content_type,
        due_at
    FROM jsonb_to_recordset(%(jobs)s::jsonb) AS job (
        position integer, identity text, key text, room_id text, kind text, source text,
        filename text, content_type text, due_at timestamptz
    ) ORDER BY position
    ON CONFLICT (server, batch, identity) DO NOTHING
    RETURNING id, room_id"""

# Deferring and ending an upload call this after their own transaction, so that of two at the same
# time one sees the other. `id + 0` is in the index of waiting rows only: by `id` alone the planner
# may read past a long queue of another room; and a subquery is asked for each room, where a join
# may read the jobs of all rooms. A job that has ended in the table does not count, because the
# queue is told of its end a moment later.

ADVANCE = """
    WITH due AS MATERIALIZED (
        SELECT next.id, next.room_id
        FROM unnest(%(rooms)s::text[]) AS room (id)
        CROSS JOIN LATERAL (
            SELECT id, room_id FROM meeting_async_uploads
            WHERE server = %(server)s AND room_id = room.id AND state = 'ready' AND job_id IS NULL
                AND (due_at IS NULL OR due_at <= now())
            ORDER BY id + 0 LIMIT 1 FOR UPDATE
        ) AS next
        WHERE (
            SELECT true FROM procrastinate_jobs AS job JOIN meeting_async_uploads AS other
                ON other.id = (job.args ->> 'upload_id')::bigint AND other.job_id = job.id
            WHERE job.lock = %(server)s::text || ' ' || room.id AND job.status IN ('todo', 'doing')
                AND (job.status = 'todo' OR other.is_running OR other.run <> job.attempts)
            LIMIT 1
        ) IS NULL
    ), made AS (
        SELECT array_agg(id ORDER BY id) AS uploads, procrastinate_defer_jobs_v1(array_agg(ROW(
            %(queue)s::text, %(task)s::text, 0, %(server)s::text || ' ' || room_id, NULL,
            jsonb_build_object('upload_id', id), NULL
        )::procrastinate_job_to_defer_v1 ORDER BY id)) AS jobs
        FROM due HAVING count(*) > 0
    )
    UPDATE meeting_async_uploads AS upload SET job_id = pair.job
    FROM made, unnest(made.uploads, made.jobs) AS pair (upload, job)
    WHERE upload.id = pair.upload
    RETURNING upload.id"""

WAITING_ROOMS = """
    SELECT DISTINCT room_id FROM meeting_async_uploads
    WHERE server = %(server)s AND state = 'ready' AND job_id IS NULL
        AND (due_at IS NULL OR due_at <= now())
    ORDER BY room_id"""

# --- a run ---------------------------------------------------------------------------------------

CLAIM = """
    UPDATE meeting_async_uploads
    SET run = %(run)s, is_running = true, changed_at = now(),
        started_at = coalesce(started_at, now())
    WHERE id = %(id)s AND server = %(server)s AND state <> 'accepted' AND job_id = %(job_id)s
        AND run <= %(run)s AND EXISTS (
            SELECT FROM procrastinate_jobs
            WHERE id = %(job_id)s AND status = 'doing' AND attempts = %(run)s
        )
    RETURNING id, room_id, kind, source, state, key, filename, content_type, job_id, run, size,
        fingerprint, attempts, retry, deferred_at, started_at, changed_at,
        extract(epoch FROM now() - started_at)::float8 AS started_ago,
        extract(epoch FROM now() - sent_at)::float8 AS sent_ago,
        extract(epoch FROM now() - troubled_at)::float8 AS troubled_ago"""

FIND = "SELECT state, server, job_id, is_running FROM meeting_async_uploads WHERE id = %(id)s"

MARK = """
    UPDATE meeting_async_uploads
    SET state = 'sent', sent_at = now(), changed_at = now(), size = %(size)s,
        fingerprint = %(fingerprint)s
    FROM (SELECT set_config('synchronous_commit', 'on', true)) AS durably
    WHERE id = %(id)s AND job_id = %(job_id)s AND run = %(run)s AND is_running AND EXISTS (
            SELECT FROM procrastinate_jobs
            WHERE id = %(job_id)s AND status = 'doing' AND attempts = %(run)s FOR SHARE
        )
    RETURNING id"""

FINISH = """
    UPDATE meeting_async_uploads
    SET state = %(state)s, error = %(error)s, reason = %(reason)s, size = coalesce(%(size)s, size),
        attempts = %(attempts)s::jsonb, troubled_at = NULL, retry = NULL, is_running = false,
        changed_at = now()
    WHERE id = %(id)s AND job_id = %(job_id)s AND run = %(run)s
    RETURNING id"""

RELEASE = """
    UPDATE meeting_async_uploads
    SET is_running = false, state = %(state)s, attempts = %(attempts)s::jsonb,
        reason = %(reason)s, retry = %(retry)s::jsonb, changed_at = now(),
        troubled_at = CASE %(is_away)s::boolean WHEN true THEN coalesce(troubled_at, now())
            WHEN false THEN NULL ELSE troubled_at END
    WHERE id = %(id)s AND job_id = %(job_id)s AND run = %(run)s
    RETURNING id"""

LATER = "SELECT now() + %(seconds)s * interval '1 second' AS at"

# --- recovery ------------------------------------------------------------------------------------

# A worker that vanishes in the middle of a statement leaves its row locked until the database
# notices. Recovery goes on with the others.

RECOVER = """
    WITH lost AS MATERIALIZED (
        SELECT job.id AS job, upload.id AS upload, upload.state, upload.is_running
        FROM procrastinate_jobs AS job
        JOIN meeting_async_uploads AS upload ON upload.job_id = job.id AND upload.id =
            CASE job.task_name WHEN %(task)s THEN (job.args ->> 'upload_id')::bigint END
        LEFT JOIN procrastinate_workers AS worker ON worker.id = job.worker_id
        WHERE job.status = 'doing' AND upload.server = %(server)s AND (
            worker.id IS NULL
            OR worker.last_heartbeat < now() - %(stalled_after)s * interval '1 second'
            OR (NOT upload.is_running AND now() - %(settled_after)s * interval '1 second'
                > greatest(upload.changed_at, (
                    SELECT max(at) FROM procrastinate_events AS event
                    WHERE event.job_id = job.id AND type = 'started'
                )))
        )
        FOR UPDATE OF job, upload SKIP LOCKED
    ), told AS (
        UPDATE meeting_async_uploads SET
            state = CASE WHEN is_lost THEN 'unknown' ELSE lost.state END,
            error = CASE WHEN is_lost THEN 'UploadOutcomeUnknown' ELSE error END,
            reason = CASE WHEN is_lost THEN %(reason)s ELSE reason END,
            changed_at = now(), is_running = false
        FROM (SELECT *, state = 'sent' AND NOT %(resends)s AS is_lost FROM lost) AS lost
        WHERE id = lost.upload
    )
    SELECT upload, state, CASE
        WHEN state = 'ready' OR (is_running AND state IN ('failed', 'refused'))
            OR (%(resends)s AND state IN ('sent', 'unknown'))
        THEN procrastinate_retry_job_v2(job, NULL, NULL, NULL, NULL)::text
        ELSE procrastinate_finish_job_v1(
            job, (CASE state WHEN 'accepted' THEN 'succeeded' ELSE 'failed' END
            )::procrastinate_job_status, false)::text
        END AS done
    FROM lost"""

END_CANCELLED = """
    WITH gone AS MATERIALIZED (
        SELECT upload.id, coalesce(job.status::text, 'deleted') AS how
        FROM meeting_async_uploads AS upload
        LEFT JOIN procrastinate_jobs AS job ON job.id = upload.job_id
        WHERE upload.server = %(server)s AND upload.state IN ('ready', 'sent')
            AND upload.job_id IS NOT NULL
            AND (job.id IS NULL OR job.status NOT IN ('todo', 'doing'))
            AND upload.changed_at < now() - interval '1 second' *
                CASE WHEN upload.is_running THEN %(lost_after)s ELSE %(settled_after)s END
        FOR UPDATE OF upload SKIP LOCKED
    )
    UPDATE meeting_async_uploads AS upload SET
        error = CASE state WHEN 'sent' THEN 'UploadOutcomeUnknown' ELSE 'UploadCancelled' END,
        reason = 'its job was ' || how,
        state = CASE state WHEN 'sent' THEN 'unknown' ELSE 'failed' END,
        changed_at = now(), is_running = false
    FROM gone WHERE upload.id = gone.id
    RETURNING upload.id"""

CLEAN = """
    DELETE FROM procrastinate_jobs AS job
    WHERE task_name = 'meeting_async:recover' AND id < %(id)s AND (
        status NOT IN ('todo', 'doing')
        OR (status = 'doing' AND NOT EXISTS (
            SELECT FROM procrastinate_workers AS worker WHERE worker.id = job.worker_id
                AND last_heartbeat > now() - interval '180 seconds'
        ))
    )"""

# --- results -------------------------------------------------------------------------------------

PAGE = """
    SELECT id, room_id, kind, source, state, key, filename, content_type, size, error, reason,
        attempts, deferred_at, started_at, changed_at,
        extract(epoch FROM now() - sent_at)::float8 AS sent_ago
    FROM meeting_async_uploads
    WHERE server = %(server)s AND batch = %(batch)s AND id > %(after)s
    ORDER BY id LIMIT %(limit)s"""

DROP = """
    DELETE FROM meeting_async_uploads AS upload
    WHERE server = %(server)s AND batch = %(batch)s AND NOT is_running
        AND NOT (state = 'ready' AND job_id IS NULL) AND NOT EXISTS (
            SELECT FROM procrastinate_jobs AS job
            WHERE job.id = upload.job_id AND job.status IN ('todo', 'doing')
        )
    RETURNING id"""

# --- by hand -------------------------------------------------------------------------------------

STATUS = """
    SELECT room_id,
        count(*) FILTER (WHERE NOT is_running AND (due_at IS NULL OR due_at <= now())) AS waiting,
        count(*) FILTER (WHERE NOT is_running AND due_at > now()) AS scheduled,
        count(*) FILTER (WHERE is_running) AS running,
        extract(epoch FROM now() - min(greatest(deferred_at, due_at)))::float8 AS oldest,
        (array_agg(reason ORDER BY id) FILTER (WHERE reason IS NOT NULL AND NOT is_running))[1]
            AS cause
    FROM meeting_async_uploads
    WHERE server = %(server)s AND state IN ('ready', 'sent')
        AND (%(batch)s::text IS NULL OR batch = %(batch)s)
    GROUP BY room_id ORDER BY oldest DESC, room_id"""

WORKERS = """
    SELECT count(*) AS workers FROM procrastinate_workers
    WHERE last_heartbeat > now() - %(stalled_after)s * interval '1 second'"""

RETRY = """
    UPDATE meeting_async_uploads AS upload
    SET state = 'ready', job_id = NULL, run = -1, error = NULL, reason = NULL, retry = NULL,
        changed_at = now()
    WHERE server = %(server)s AND batch = %(batch)s AND NOT is_running
        AND (%(room_id)s::text IS NULL OR room_id = %(room_id)s)
        AND (state IN ('failed', 'refused') OR (%(resend)s AND state = 'unknown'))
        AND NOT EXISTS (
            SELECT FROM procrastinate_jobs AS job
            WHERE job.id = upload.job_id AND job.status IN ('todo', 'doing')
        )
    RETURNING room_id"""

CANCEL = """
    WITH found AS MATERIALIZED (
        SELECT upload.id, upload.room_id, upload.job_id, coalesce(job.status = 'doing', false)
            AS is_doing
        FROM meeting_async_uploads AS upload
        LEFT JOIN procrastinate_jobs AS job ON job.id = upload.job_id
        WHERE upload.server = %(server)s AND batch = %(batch)s AND state IN ('ready', 'sent')
            AND (%(room_id)s::text IS NULL OR room_id = %(room_id)s)
        FOR UPDATE OF upload
    ), asked AS MATERIALIZED (
        SELECT id, room_id, is_doing, CASE WHEN job_id IS NOT NULL
            THEN procrastinate_cancel_job_v1(job_id, true, false) END AS job
        FROM found
    ), ended AS (
        UPDATE meeting_async_uploads AS upload SET
            state = CASE state WHEN 'sent' THEN 'unknown' ELSE 'failed' END,
            error = CASE state WHEN 'sent' THEN 'UploadOutcomeUnknown' ELSE 'UploadCancelled' END,
            reason = 'it was cancelled', changed_at = now()
        FROM asked WHERE upload.id = asked.id AND NOT asked.is_doing
    )
    SELECT room_id FROM asked"""
