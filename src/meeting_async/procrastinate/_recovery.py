"""Uploads whose worker is gone: run again what was not complete, report what may have arrived.

procrastinate knows dead workers by their heartbeats. The row of an upload says how far it had come.
"""

from __future__ import annotations

import anyio
import attrs
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager

from meeting_async._log import logger
from meeting_async.procrastinate._table import Table

UPLOAD, RECOVER = "meeting_async:upload", "meeting_async:recover"
"""Names of the tasks: the same everywhere, so that a worker knows the jobs of other servers, too,
and puts them back."""

SUSPECT_SECONDS = 10.0
"""For so long a job and its row may disagree: one is written after the other."""

RECOVERY_SECONDS = 30.0
"""Longest time of one recovery: what it waits for may be locked."""


@attrs.define(kw_only=True, eq=False)
class Recovery:
    """What the workers of a queue do every few seconds, one of them at a time."""

    queue: str
    stalled_after: float
    """Seconds without a heartbeat after which a worker counts as dead."""
    resends: bool
    """Whether what may have arrived is sent again."""
    _is_running: bool = attrs.field(default=False, init=False)

    async def run(self, manager: JobManager, table: Table) -> None:
        """Run again what a dead worker has not completed, and report what may have arrived."""
        if self._is_running:  # the database is slow
            return
        self._is_running = True
        try:
            with anyio.move_on_after(RECOVERY_SECONDS):
                await self._take_over_stalled(manager, table)
                await self._settle_disagreements(manager, table)
        finally:
            self._is_running = False

    async def _take_over_stalled(self, manager: JobManager, table: Table) -> None:
        stalled = await self._stalled(manager)
        rows = await table.runs([_upload_id(job) for job in stalled])
        # Who is still stalled now was so when its row was read.
        still = {job.id for job in await self._stalled(manager)}
        reason = "its worker was lost after the document may have been complete"
        for job in stalled:
            row = rows.get(_upload_id(job))
            if job.id in still and row is not None and row["is_running"]:
                state = await table.take_over(row["id"], row["run"], reason)
                if state is not None:
                    await self._settle(manager, job, state)

    async def _stalled(self, manager: JobManager) -> list[Job]:
        found = await manager.get_stalled_jobs(
            queue=self.queue, task_name=UPLOAD, seconds_since_heartbeat=self.stalled_after
        )
        return list(found)

    async def _settle_disagreements(self, manager: JobManager, table: Table) -> None:
        """Set the status of jobs whose run has ended although the queue was not told."""
        running = await manager.list_jobs_async(queue=self.queue, task=UPLOAD, status="doing")
        rows = await table.runs([_upload_id(job) for job in running])
        ended = {id_: row for id_, row in rows.items() if not row["is_running"]}
        await table.suspect(list(ended))
        for job in running:
            row = ended.get(_upload_id(job))
            if row is not None and (row["suspected_ago"] or 0.0) > SUSPECT_SECONDS:
                await self._settle(manager, job, row["state"])

    async def _settle(self, manager: JobManager, job: Job, state: str) -> None:
        """Put a job back, or end it, as its row says."""
        must_run = state == "ready" or (self.resends and state in {"sent", "unknown"})
        status = Status.SUCCEEDED if state == "accepted" else Status.FAILED
        logger.warning("upload %d of a lost worker: %s", _upload_id(job), state)
        try:
            if must_run:
                await manager.retry_job(job)
            else:
                await manager.finish_job(job, status, delete_job=False)
        except ConnectorException:
            logger.info("the job of upload %d has gone on by itself", _upload_id(job))


def _upload_id(job: Job) -> int:
    return int(str(job.task_kwargs["upload_id"]))
