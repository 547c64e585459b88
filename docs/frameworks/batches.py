"""Batches in the background of a web application, and their progress as server-sent events.

A file per batch keeps the order, a journal keeps its progress, so a batch goes on after a restart.
Batches live in one process: run one worker, or give each worker a folder of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import anyio
import attrs
from anyio.abc import TaskGroup

from meeting_async import Batch, BatchReport, Document, MeetingClient, UploadJob, UploadOutcome
from meeting_async.errors import InvalidInput, MeetingError
from meeting_async.web import public_detail, public_name

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 360.0
"""Longest wait at shutdown for uploads that have begun, like that of ``Uploads``."""

HEARTBEAT_SECONDS = 15.0
"""A silent stream gets a comment this often, because proxies close what is silent for a minute."""

KEPT = 100
"""So many finished batches keep their outcomes in memory; older ones have only their report."""

EVENT_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",  # or nginx keeps events until its buffer is full
}


class Progress:
    """The events of a batch so far. Each listener reads them at its own speed."""

    def __init__(self) -> None:
        self._run = uuid.uuid4().hex[:8]  # numbers start again after a restart
        self._events: list[str] = []
        self._news = anyio.Event()
        self._is_over = False

    def tell(self, event: str, facts: Mapping[str, Any], *, last: bool = False) -> None:
        """Add an event; the ``last`` one ends the streams of all listeners."""
        number = f"{self._run}-{len(self._events) + 1}"
        self._events.append(f"id: {number}\nevent: {event}\ndata: {json.dumps(facts)}\n\n")
        self._is_over = self._is_over or last
        self._news.set()
        self._news = anyio.Event()

    def stop(self) -> None:
        """End the streams of all listeners; after a restart they connect again."""
        self._is_over = True
        self._news.set()

    async def listen(self, last_seen: str | None = None) -> AsyncGenerator[str, None]:
        """Yield the events since ``last_seen`` (Last-Event-ID), then new ones as they come."""
        run, _, number = (last_seen or "").partition("-")
        seen = int(number) if run == self._run and number.isdecimal() else 0
        while True:
            for event in self._events[seen:]:
                seen += 1
                yield event
            if seen < len(self._events):
                continue
            if self._is_over:
                return
            with anyio.move_on_after(HEARTBEAT_SECONDS) as silence:
                await self._news.wait()
            if silence.cancelled_caught:
                yield ": still here\n\n"


@attrs.define(eq=False)
class Batches:
    """All batches of an application."""

    client: MeetingClient
    folder: anyio.Path
    """Where batches and their journals are kept."""
    documents: Path
    """The only folder whose files may be named by a batch."""
    _group: TaskGroup
    _progress: dict[str, Progress] = attrs.field(factory=dict, init=False)
    _running: set[Batch] = attrs.field(factory=set, init=False)
    _over: list[str] = attrs.field(factory=list, init=False)
    _is_stopping: bool = attrs.field(default=False, init=False)

    @classmethod
    @asynccontextmanager
    async def open(cls, client: MeetingClient) -> AsyncGenerator[Self, None]:
        """Resume interrupted batches, and stop cleanly when shutdown begins."""
        folder = anyio.Path(os.environ.get("BATCHES_FOLDER", "batches"))
        await folder.mkdir(parents=True, exist_ok=True)
        documents = await anyio.Path(os.environ.get("DOCUMENTS_FOLDER", "documents")).resolve()
        stopping = _set_at_sigterm()
        async with anyio.create_task_group() as group:
            batches = cls(client, folder, Path(documents), group)
            await batches._resume()
            group.start_soon(batches._stop_after, stopping)
            yield batches
            stopping.set()
            group.cancel_scope.deadline = anyio.current_time() + SHUTDOWN_SECONDS

    async def begin(self, order: bytes) -> str:
        """Begin a batch in the background and return its id.

        ``order`` is ``{"jobs": [{"room_id": ..., "link": ...}, {"room_id": ..., "path": ...}]}``.
        """
        jobs = self._jobs(order)  # raises before anything is written
        batch_id = uuid.uuid4().hex
        file = self.folder / f"{batch_id}.json"
        unfinished = file.with_suffix(".part")  # a crash must not leave half an order
        await unfinished.write_bytes(order)
        # At once: the batch of a cancelled request must not begin at the next restart.
        Path(unfinished).rename(file)  # noqa: ASYNC240 - a moment
        self._start(batch_id, jobs)
        return batch_id

    async def listen(
        self, batch_id: str, last_seen: str | None = None
    ) -> AsyncGenerator[str, None] | None:
        """Return the events of a batch, or ``None`` if there is no such batch."""
        if batch_id not in self._progress:
            report = self.folder / f"{batch_id}.report.json"
            if not (_is_id(batch_id) and await report.exists()):
                return None
            progress = Progress()
            progress.tell("report", json.loads(await report.read_text("utf-8")), last=True)
            return progress.listen()
        return self._progress[batch_id].listen(last_seen)

    # --- how it runs -----------------------------------------------------------------------------

    def _start(self, batch_id: str, jobs: list[UploadJob]) -> None:
        self._progress[batch_id] = Progress()
        self._group.start_soon(self._run, batch_id, jobs, name=f"batch {batch_id}")

    async def _run(self, batch_id: str, jobs: list[UploadJob]) -> None:
        progress = self._progress[batch_id]
        try:
            report = await self._upload(batch_id, jobs, progress)
            if self._is_stopping:
                return  # without a report, so that a restart goes on with it
            file = self.folder / f"{batch_id}.report.json"
            await file.write_text(json.dumps(_summary(report)), "utf-8")
        except (MeetingError, OSError) as error:  # of the journal or the disk; no job raises
            logger.exception("batch %s failed", batch_id)
            progress.tell("failed", {"detail": public_detail(error)}, last=True)
        else:
            progress.tell("report", _summary(report), last=True)
        self._forget_old(batch_id)

    async def _upload(
        self, batch_id: str, jobs: list[UploadJob], progress: Progress
    ) -> BatchReport:
        journal = self.folder / f"{batch_id}.db"
        async with self.client.upload_many(jobs, journal=journal, keep_outcomes=False) as batch:
            self._running.add(batch)
            try:
                if self._is_stopping:
                    batch.stop()
                async for outcome in batch:
                    progress.tell("outcome", _facts(outcome))
            finally:
                self._running.discard(batch)
        return batch.report

    def _forget_old(self, batch_id: str) -> None:
        self._over.append(batch_id)
        if len(self._over) > KEPT:
            del self._progress[self._over.pop(0)]

    async def _resume(self) -> None:
        async for file in self.folder.glob("*.json"):
            if _is_id(file.stem) and not await file.with_suffix(".report.json").exists():
                try:
                    self._start(file.stem, self._jobs(await file.read_bytes()))
                except InvalidInput:  # DOCUMENTS_FOLDER is another one now
                    logger.exception("batch %s cannot be resumed", file.stem)

    async def _stop_after(self, stopping: asyncio.Event) -> None:
        """Begin nothing new; what is being sent or answered comes to its end."""
        await stopping.wait()
        self._is_stopping = True
        for batch in self._running:
            batch.stop()
        for progress in self._progress.values():
            progress.stop()

    # --- orders ----------------------------------------------------------------------------------

    def _jobs(self, order: bytes) -> list[UploadJob]:
        try:
            jobs = json.loads(order)["jobs"]
        except (ValueError, LookupError, TypeError) as error:
            raise _wrong("jobs", order, 'is not JSON of the form {"jobs": [...]}') from error
        if not isinstance(jobs, list) or not jobs:
            raise _wrong("jobs", jobs, "is not a list of jobs")
        return [self._job(number, job) for number, job in enumerate(jobs, 1)]

    def _job(self, number: int, job: object) -> UploadJob:
        """Make one job. Its key is its number, so that an order may name a file twice."""
        match job:
            case {"room_id": str(room_id), "link": str(link), **rest} if not rest:
                return UploadJob(room_id, Document.from_link(link), key=str(number))
            case {"room_id": str(room_id), "path": str(path), **rest} if not rest:
                return UploadJob(room_id, self._document(path), key=str(number))
        raise _wrong("jobs", job, 'is not {"room_id": ..., "link" or "path": ...}')

    def _document(self, path: str) -> Path:
        """Refuse a path that leads out of the folder, because it comes from a browser."""
        problem = "is not in the folder of documents"
        try:
            file = Path(os.path.realpath(self.documents / path))
        except ValueError as error:  # a NUL, or half a surrogate pair
            raise _wrong("path", path, problem) from error
        if not file.is_relative_to(self.documents):
            raise _wrong("path", path, problem)
        return file


def _set_at_sigterm() -> asyncio.Event:
    """Return an event for SIGTERM: no server tells an application that shutdown begins."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    servers_own: Any = signal.getsignal(signal.SIGTERM)

    def stop(*args: Any) -> None:
        servers_own(*args)
        loop.call_soon_threadsafe(stopping.set)

    if callable(servers_own):
        with suppress(ValueError):  # a test client runs this in another thread
            signal.signal(signal.SIGTERM, stop)
    return stopping


def _is_id(text: str) -> bool:
    return len(text) == 32 and set(text) <= set("0123456789abcdef")


def _wrong(field: str, value: object, problem: str) -> InvalidInput:
    return InvalidInput(field, repr(value)[:80], problem, "fix the order")


def _facts(outcome: UploadOutcome) -> dict[str, Any]:
    return {
        "index": outcome.index,
        "room_id": outcome.room_id,
        "document": public_name(outcome.document),
        "status": outcome.status,
        "delivered": None if outcome.status == "unknown" else outcome.delivered,
        "detail": _detail(outcome.error),
    }


def _detail(error: Exception | None) -> str | None:
    return None if error is None else public_detail(error)


def _summary(report: BatchReport) -> dict[str, Any]:
    names = ("total", "accepted", "already_delivered", "refused", "failed", "unknown", "skipped")
    facts = {name: getattr(report, name) for name in names}
    return {**facts, "stopped_by": _detail(report.stopped_by)}
