"""Putting uploads into the queue, and a worker that takes them out."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator, Sequence

import attrs

from meeting_async import Event, Finished, MeetingClient, UploadJob, Verdict
from meeting_async.cli.console import Output
from meeting_async.cli.queue.database import uploads_in
from meeting_async.errors import MeetingError
from meeting_async.manifests._entries import Entry


def jobs_of(entries: Sequence[Entry]) -> Iterator[UploadJob]:
    """Return jobs with absolute paths; without a key of their own they are told apart by these."""
    # The same path from wherever the folder is named.
    folders = {folder: os.path.realpath(folder) for folder in {one.folder for one in entries}}
    return (attrs.evolve(entry, folder=folders[entry.folder]).job() for entry in entries)


async def defer(
    dsn: str | None, client: MeetingClient, jobs: Iterable[UploadJob], batch: str
) -> int:
    """Put uploads into the queue and return how many were new."""
    async with uploads_in(dsn, client) as (_, uploads):
        return await uploads.defer_many(jobs, batch=batch)


async def run(
    dsn: str | None, client: MeetingClient, log: WorkerLog, *, concurrency: int, grace: float
) -> None:
    """Run a worker until a signal stops it.

    Raises:
        MeetingError: The database cannot be used any more, or the key is wrong.

    """
    async with uploads_in(dsn, client) as (_, uploads):
        log.listen(f"ready for uploads of queue {uploads.queue!r}; Ctrl-C or SIGTERM stops")
        await uploads.run_worker(concurrency=concurrency, grace=grace)


class WorkerLog(logging.Handler):
    """Prints what a worker does, from the client's events and procrastinate's log."""

    def __init__(self, output: Output, *, quiet: bool) -> None:
        super().__init__()
        self._output = output
        self._quiet = quiet

    def listen(self, ready: str) -> None:
        """Receive procrastinate's log, and no other handler does: until the process ends.

        ``ready`` is what to print as soon as signals are handled.
        """
        self._ready = ready
        logger = logging.getLogger("procrastinate")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        logger.propagate = False

    def tell(self, event: Event) -> None:
        """Print an upload that was accepted; the library's log tells the others."""
        if not isinstance(event, Finished) or event.document is None:  # a question about a room
            return
        if event.verdict is Verdict.ACCEPTED and not self._quiet:
            took = f"{event.seconds:.1f} s"
            self._output.tell(f"{event.document}: accepted by {event.room_id} ({took})")

    def emit(self, record: logging.LogRecord) -> None:
        """Print that the worker is ready, and procrastinate's errors."""
        if getattr(record, "action", "") == "start_worker":
            # Signals are handled before the loop's next step.
            asyncio.get_running_loop().call_soon(self._output.note, self._ready)
        elif record.levelno >= logging.ERROR:
            error = record.exc_info[1] if record.exc_info else None
            ours = isinstance(error, MeetingError)
            self._output.note(f"error: {error if ours else record.getMessage()}")
