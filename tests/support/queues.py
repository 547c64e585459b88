"""Applications and workers of a queue of uploads, in the process of the test."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import procrastinate
from procrastinate.jobs import Job

from meeting_async import LockPolicy, MeetingClient, UploadOutcome
from meeting_async import procrastinate as queue_module
from meeting_async._delivery.room_locks import LocalRoomLocks
from meeting_async.errors import UploadFailed
from meeting_async.procrastinate import QueueReport, WhiteboardUploads
from meeting_async.testing import MeetingServer
from meeting_async.testing._rooms import Room

KEYS: dict[str, Any] = {"api_key": "devkey", "api_secret": "devsecret"}
WINDOW = 2.0
"""Seconds for which the server holds a room at most."""
STALLED_AFTER = 3.0
"""Seconds without a heartbeat after which a worker counts as dead."""
SMALL, LARGE = 2_000, 100 * 1024
"""Bytes of a document that is sent again without asking, and of one that is not."""
STOPPED = 15.0
"""Longest time for a worker that is told to stop."""


@attrs.define(eq=False)
class Application:
    """What a process that defers or works has."""

    app: procrastinate.App
    uploads: WhiteboardUploads

    async def jobs(self) -> list[Job]:
        """Return the jobs of uploads, in order."""
        jobs = await self.app.job_manager.list_jobs_async()
        return [job for job in jobs if "upload_id" in job.task_kwargs]

    async def job_states(self) -> Counter[str]:
        """Count them by their status."""
        return Counter(job.status or "" for job in await self.jobs())

    async def finished(self, batch: str = "default", seconds: float = 40.0) -> QueueReport:
        """Wait until each upload has an outcome and each job has ended."""
        ends_at = time.monotonic() + seconds
        while True:
            report, states = await self.uploads.report(batch), await self.job_states()
            if not report.queued and not states["todo"] and not states["doing"]:
                return report
            assert time.monotonic() < ends_at, f"{report}, {report.queued} queued, jobs {states}"
            await anyio.sleep(0.05)

    async def reported(self, batch: str, *, queued: int) -> QueueReport:
        """Wait until no more than so many have no outcome."""
        with anyio.fail_after(40):
            while True:
                report = await self.uploads.report(batch)
                if report.queued <= queued:
                    return report
                await anyio.sleep(0.05)

    async def only_outcome(self, batch: str = "default", seconds: float = 40.0) -> UploadOutcome:
        """Wait for the outcome of the only upload."""
        (outcome,) = (await self.finished(batch, seconds)).outcomes
        return outcome


@asynccontextmanager
async def application(
    dsn: str,
    url: str,
    *,
    documents: queue_module.Documents | None = None,
    queue: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Application]:
    """Open an application; it shares nothing with the others of a test but the database.

    ``settings`` are those of its uploads, ``options`` those of its client.
    """
    options = {"lock": LockPolicy(window=WINDOW), "room_locks": LocalRoomLocks(), **KEYS, **options}
    limit = {"options": "-c idle_in_transaction_session_timeout=2s"}  # see docs/queue.md
    connector = procrastinate.PsycopgConnector(conninfo=dsn, kwargs=limit)
    app = procrastinate.App(connector=connector)
    async with app.open_async(), MeetingClient(url, **options) as client:
        yield Application(
            app,
            WhiteboardUploads(
                app,
                client=client,
                documents=documents,
                queue=queue,
                **{"stalled_after": STALLED_AFTER, **(settings or {})},
            ),
        )


def queue_may_complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore that procrastinate could not store the status of a job."""
    if not isinstance(context.get("exception"), procrastinate.exceptions.ConnectorException):
        loop.default_exception_handler(context)


@asynccontextmanager
async def working(made: Application, **how: Any) -> AsyncIterator[None]:
    """Run a worker, and again if it ends because of the database; stop it gracefully."""
    stopping = False

    async def supervised() -> None:
        options: dict[str, Any] = {
            "queues": [made.uploads.queue],
            "concurrency": 4,
            "fetch_job_polling_interval": 0.05,
            "update_heartbeat_interval": 0.5,
            "install_signal_handlers": False,
        }
        while not stopping:  # a worker without its database ends its cancellation by an error
            with contextlib.suppress(procrastinate.exceptions.ProcrastinateException):
                await made.app.run_worker_async(**{**options, **how})
            await asyncio.sleep(0.1)

    asyncio.get_running_loop().set_exception_handler(queue_may_complain)
    task = asyncio.create_task(supervised())
    try:
        yield
    finally:
        stopping = True
        task.cancel()
        await asyncio.wait([task], timeout=STOPPED)
        assert task.done(), "the worker does not stop"


@asynccontextmanager
async def queue_and_worker(
    dsn: str, server: MeetingServer, *, concurrency: int = 4, **options: Any
) -> AsyncIterator[Application]:
    """Open an application that also works."""
    async with application(dsn, server.url, **options) as made:
        async with working(made, concurrency=concurrency):
            yield made


def pdf(folder: Path, number: int = 0, size: int = SMALL) -> Path:
    """Make a document; none is like another."""
    path = folder / f"{number:03}.pdf"
    path.write_bytes((b"%%PDF-1.7\n%% %d\n" % number).ljust(size, b"x"))
    return path


def names_in(room: Room) -> list[str]:
    """Return the names of the documents that a room has accepted, in order."""
    return [file.name for file in room.accepted]


def uploads_to(server: MeetingServer, room_id: str, at_least: int = 0) -> int:
    """Count the requests to a room with bodies of at least so many bytes."""
    requests = [request for request in server.requests if request.room_id == room_id]
    return sum(request.body_bytes >= at_least for request in requests if "upload" in request.path)


async def until(condition: Callable[[], bool], seconds: float = 40.0) -> None:
    """Wait until a condition holds."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - a thread changes it
            await anyio.sleep(0.01)


def kind_of(outcome: UploadOutcome) -> str:
    """Return the class of the worker's error."""
    assert isinstance(outcome.error, UploadFailed)
    return outcome.error.kind
