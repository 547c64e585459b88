"""A queue of uploads with all that belongs to it, and what has to be true of it in the end."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import attrs
import procrastinate

from meeting_async import LockPolicy, UploadJob, UploadOutcome
from meeting_async.errors import JournalError
from meeting_async.procrastinate import Documents, QueueReport, QueueStatus, WhiteboardUploads
from meeting_async.testing import MeetingServer
from support.command_line import variables
from support.queue_worker import Order, Process

WINDOW = 2.0
"""Seconds for which the server holds a room at most, unless a test says more."""
SMALL, LARGE = 2_000, 100 * 1024
"""Bytes of a document that is sent without asking with an empty form, and of one that is not."""
ENDED = 30.0
"""Longest time in seconds for a worker that is told to stop while little is on its way."""
ENDS_WELL = {0, -signal.SIGTERM, -signal.SIGUSR1, -signal.SIGUSR2}
"""Exit codes after SIGTERM: a process that has hardly begun has no handlers yet."""
SECONDS = 60.0
"""Longest time in seconds for what a worker does within some seconds."""
UPLOAD = "/room/uploadWhiteboardFile"


@attrs.define(eq=False)
class Queue:
    """An application that defers, a meeting server, and workers in processes of their own."""

    order: Order
    server: MeetingServer
    folder: Path
    app: procrastinate.App
    uploads: WhiteboardUploads
    workers: list[Process] = attrs.field(factory=list)
    documents: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    """Room and SHA-256 of each document that was made, in order."""
    _started: int = 0

    # --- documents -------------------------------------------------------------------------------

    def document(self, room_id: str = "room0", size: int = SMALL) -> Path:
        """Make a document for a room; none is like another."""
        path = self.folder / f"{len(self.documents):04}.pdf"
        path.write_bytes((b"%%PDF-1.7\n%% %d\n" % len(self.documents)).ljust(size, b"x"))
        self.documents[path.name] = room_id, sha256(path.read_bytes()).hexdigest()
        return path

    def jobs(self, count: int, rooms: int = 10, size: int = SMALL) -> list[UploadJob]:
        """Make documents for several rooms."""
        names = [f"room{number % rooms}" for number in range(count)]
        return [UploadJob(room_id, self.document(room_id, size)) for room_id in names]

    async def defer(self, *rooms: str, size: int = SMALL, **options: Any) -> None:
        """Defer a document for each room named, one after the other."""
        for room_id in rooms:
            path = self.document(room_id, size)
            assert await self.uploads.defer(room_id, path, **options) is not None

    async def defer_many(self, count: int, rooms: int = 10) -> None:
        """Defer documents for several rooms."""
        assert await self.uploads.defer_many(self.jobs(count, rooms), batch="default") == count

    # --- workers ---------------------------------------------------------------------------------

    def start(self, count: int = 1, *, dsn: str | None = None, **run: Any) -> Process:
        """Start workers, and return the last one."""
        for _ in range(count):
            order = attrs.evolve(self.order, dsn=dsn or self.order.dsn, run=run)
            self.workers.append(self.process(order))
        return self.workers[-1]

    def process(self, program: Order | tuple[str, ...], **environment: str) -> Process:
        """Start a process that this object does not care for."""
        self._started += 1
        return Process(self.folder / f"process{self._started}.log", program, **environment)

    def command(self, *arguments: str, **environment: str) -> Process:
        """Start a command of ``meeting-async queue``, as an operator does."""
        found = {**variables(self.server), "MEETING_QUEUE_DSN": self.order.dsn, **environment}
        return self.process(("queue", *arguments), **found)

    async def run(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run a command to its end; return its exit code and what it has printed."""
        process = self.command(*arguments, **environment)
        return await process.ended(SECONDS), process.text

    @asynccontextmanager
    async def working(self, **run: Any) -> AsyncIterator[asyncio.Task[None]]:
        """Run a worker in this process, with an application of its own; at the end cancel it."""
        app, client, uploads = self.order.open()
        async with app.open_async(), client:
            task = asyncio.create_task(uploads.run_worker(**{"signals": False, **run}))
            try:
                yield task
            finally:
                task.cancel()
                await asyncio.wait([task], timeout=ENDED)
                assert task.done(), "the worker does not end"
                assert task.cancelled() or task.exception() is None, task.exception()

    async def replace(self, worker: Process) -> None:
        """Start the same worker again in the place of one that has ended."""
        self.workers.remove(worker)
        self.workers.append(self.process(worker.program))

    async def supervise(self) -> None:
        """Do what a service manager does: start again what has ended, whatever its exit code."""
        for worker in [*self.workers]:
            if worker.code is not None:
                await self.replace(worker)

    async def stop(self) -> list[int]:
        """Tell the workers to stop, and return their exit codes."""
        for worker in self.workers:
            worker.signal(signal.SIGTERM)
        codes = [await worker.ended(ENDED) for worker in self.workers]
        self.workers.clear()
        return codes

    # --- waiting ---------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        """Wait until a condition holds."""
        ends_at = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < ends_at, await self.picture()
            await anyio.sleep(0.02)

    async def status_when(
        self, condition: Callable[[QueueStatus], object], batch: str | None = None
    ) -> QueueStatus:
        """Wait until a condition holds of the status, and return it."""
        with anyio.fail_after(SECONDS):
            while not condition(found := await self.uploads.status(batch)):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        return found

    async def reported(
        self, batch: str = "default", *, queued: int = 0, seconds: float = SECONDS
    ) -> QueueReport:
        """Wait until no more than so many have no outcome; workers that end are replaced."""
        ends_at = time.monotonic() + seconds
        while True:
            await self.supervise()
            with suppress(JournalError):  # the database may be away
                report = await self.uploads.report(batch)
                if report.queued <= queued and report.total:
                    return report
            assert time.monotonic() < ends_at, await self.picture()
            await anyio.sleep(0.05)

    async def delivered(self, **run: Any) -> QueueReport:
        """Work until all documents have an outcome, and check it."""
        async with self.working(**run):
            report = await self.reported()
        await self.check(report)
        return report

    async def outcome(self, seconds: float = SECONDS) -> UploadOutcome:
        """Wait for the outcome of the only upload."""
        (outcome,) = (await self.reported(seconds=seconds)).outcomes
        return outcome

    async def picture(self) -> str:
        """Describe what there is, for a test that fails."""
        report, logs = await self.uploads.report("default"), [one.text for one in self.workers]
        counts = Counter(outcome.status for outcome in report.outcomes)
        codes = [one.code for one in self.workers]
        told = "\n".join(text[-1500:] for text in logs)
        return f"{report.queued} queued, {counts}, exit codes {codes}\n{told}"

    # --- what is true ----------------------------------------------------------------------------

    def accepted(self, *rooms: str) -> list[str]:
        """Return the names of the documents that rooms, or all of them, have accepted."""
        found = rooms or tuple(self.server.rooms)
        return [file.name for name in found for file in self.server.rooms[name].accepted]

    def sent(self, room_id: str, at_least: int = 0) -> int:
        """Count the uploads to a room whose bodies had at least so many bytes."""
        found = [one for one in self.server.requests if one.room_id == room_id]
        return sum(one.path.endswith(UPLOAD) and one.body_bytes >= at_least for one in found)

    async def check(self, report: QueueReport, *, unknown: int = 0) -> None:
        """Hold the report against the server's record: one true outcome for each document.

        So many documents may be unknown; all others are accepted, each once, with their content,
        in their rooms and in their order.
        """
        with anyio.move_on_after(2):  # for what the server is still busy with
            await self.until(lambda: all(one.seconds is not None for one in self.server.requests))
        outcomes = {outcome.document: outcome for outcome in report.outcomes}
        assert len(report.outcomes) == report.total == len(outcomes)
        assert [outcome.document for outcome in report.outcomes] == [*self.documents]
        unsure = {name for name, one in outcomes.items() if one.status == "unknown"}
        bad = {name: one for name, one in outcomes.items() if one.status != "accepted"}
        assert {name: one for name, one in bad.items() if name not in unsure} == {}
        assert len(unsure) <= unknown, unsure
        assert [name for name, times in Counter(self.accepted()).items() if times > 1] == []
        for room_id, room in self.server.rooms.items():
            mine = [name for name, (where, _) in self.documents.items() if where == room_id]
            there = [file.name for file in room.accepted]
            assert set(there) <= set(mine)
            sure = [name for name in mine if name not in unsure]
            assert [name for name in there if name not in unsure] == sure
            for file in room.accepted:
                assert file.sha256 == self.documents[file.name][1]


@asynccontextmanager
async def queue_at(
    dsn: str,
    server: MeetingServer,
    folder: Path,
    *,
    url: str | None = None,
    documents: Documents | None = None,
    settings: Mapping[str, Any] | None = None,
    **client: Any,
) -> AsyncIterator[Queue]:
    """Open an application, with settings of its uploads, and options of its client."""
    found = {**(settings or {}), **({"documents": documents} if documents else {})}
    options = {"lock": LockPolicy(window=WINDOW), **client}
    order = Order(dsn=dsn, url=url or server.url, client=options, settings=found)
    app, meeting, uploads = order.open()
    async with app.open_async(), meeting:
        queue = Queue(order, server, folder, app, uploads)
        try:
            yield queue
        finally:
            for worker in queue.workers:
                worker.kill()


Open = Callable[..., AbstractAsyncContextManager[Queue]]
"""Opens an application, as :func:`queue_at` does."""
