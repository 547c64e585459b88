"""One thread that opens a file, commits all waiting writes together, and closes the file.

The thread owns the file. If a task that waits for it is cancelled, its writes are still made, and
the file is closed in the end.

Why not aiosqlite, or a shared pool of threads? There each call runs for itself, so the writes of
many uploads would not share a commit. And calls to a disk that does not answer would occupy threads
that others need. Here only this thread waits for it, and tasks give up (`BatchJournal`).
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import anyio
import attrs

from meeting_async._batch.journal import STEP_SECONDS
from meeting_async._clock import CLEANUP_SECONDS
from meeting_async._threads import call_soon, run_in_thread
from meeting_async.errors import JournalError

GATHERING_SECONDS = 0.005
"""Seconds that the thread waits for more writes before it commits. For each commit it competes with
the event loop for the GIL, which costs more than the commit itself."""


@attrs.define(eq=False)
class Write:
    """A write. Await it for the result."""

    request: Any = None
    result: Any = None
    error: Exception | None = None
    is_done: bool = False
    done: anyio.Event | None = None
    """Made when somebody waits: the entries of many jobs exist for long, and an event is large."""

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.is_done:
            self.done = self.done or anyio.Event()
            yield from self.done.wait().__await__()
        if self.error is not None:
            raise self.error
        return self.result


Commit = Callable[[Sequence[Write]], None]
"""Makes the writes, and sets the result or error of each. It never raises."""


def journal_error(name: str, error: BaseException) -> JournalError:
    """Make an error for one task, so that tracebacks of several tasks do not mix."""
    if isinstance(error, JournalError):
        made = type(error)(error.journal, error.reason)
    else:
        made = JournalError(name, f"cannot be written: {error}")
    made.__cause__ = error.__cause__ if isinstance(error, JournalError) else error
    return made


class Writer:
    """A file and its thread. Make and use it in one event loop."""

    def __init__(self, name: str, opened: Callable[[], AbstractContextManager[Commit]]) -> None:
        self._name = name
        self._opened = opened
        """Opens the file, and closes it."""
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        """Writes that wait for a commit; ``None``: close the file."""
        self._opening, self._closing = Write(), Write()
        self._has_ended = False
        self._call_soon = call_soon()

    async def open(self) -> None:
        """Start the thread and wait until the file is open; :meth:`close` it even if that fails."""
        run_in_thread(self._work)
        await self._opening

    def submit(self, request: object) -> Write:
        """Add a write; writes are made in the order of the calls."""
        write = Write(request)
        self._queue.put(write)
        if self._has_ended:
            self._fail_rest()
        return write

    async def close(self) -> None:
        """Wait until everything is written and the file is closed."""
        self._queue.put(None)
        cancelled: BaseException | None = None
        left = CLEANUP_SECONDS
        while left > 0 and not self._closing.is_done:
            with anyio.move_on_after(STEP_SECONDS, shield=True) as scope:
                try:
                    await self._closing
                except anyio.get_cancelled_exc_class() as error:
                    if scope.cancel_called:
                        raise
                    cancelled = error  # asyncio's own cancellation breaks through a shield
            left -= STEP_SECONDS if scope.cancelled_caught else 0
        if cancelled is not None:
            raise cancelled

    # --- in the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        # The file is in local variables only: a forked process must not close it as garbage.
        try:
            with self._opened() as commit:
                self._wake(self._opening)
                while writes := self._taken():
                    commit(writes)
                    for write in writes:
                        write.request = None
                    self._wake(*writes)
        except BaseException as error:  # noqa: BLE001 - raised by `open`
            self._opening.error = journal_error(self._name, error)
        self._has_ended = True
        self._fail_rest()
        self._wake(self._opening, self._closing)

    def _taken(self) -> list[Write]:
        """Wait for writes and return all of them; none: close the file."""
        found: list[Write] = []
        write = self._queue.get()
        if write is not None:
            time.sleep(GATHERING_SECONDS)
        while write is not None:
            found.append(write)
            if self._queue.empty():
                return found
            write = self._queue.get()
        if found:
            self._queue.put(None)
        return found

    def _fail_rest(self) -> None:
        """Fail writes that come too late."""
        with suppress(queue.Empty):
            while True:
                if (write := self._queue.get_nowait()) is not None:
                    write.error = JournalError(self._name, "is closed")
                    self._wake(write)

    def _wake(self, *writes: Write) -> None:
        """Wake the tasks that wait, unless the event loop is closed."""

        def wake() -> None:
            for write in writes:
                write.is_done = True
                if write.done is not None:
                    write.done.set()

        with suppress(RuntimeError):
            self._call_soon(wake)
