"""Our own threads for calls that may block: reading a document, opening a journal.

A thread cannot be interrupted. When the task that waits for it is cancelled, the task goes on at
once and the thread is abandoned: its result is dropped, and it no longer counts as running. So a
dead network drive delays neither a timeout nor calls without a document. The threads are daemons:
one that never returns does not block the interpreter's exit, as a thread of anyio would on asyncio.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import TypeVar, cast

import anyio
import anyio.lowlevel

from meeting_async._system import after_fork
from meeting_async.errors import ResourceExhausted

T = TypeVar("T")

POLL_SECONDS = 0.1
"""Interval at which signals are checked by a thread that waits."""

MAX_RUNNING = 32
"""Threads that use a disk at the same time, per event loop; more would only queue there."""


async def at_disk(function: Callable[[], T]) -> T:
    """Run a function that reads a document or writes a spool; see :func:`in_thread`."""
    try:
        async with _places():
            return await in_thread(function)
    finally:
        del function


async def in_thread(function: Callable[[], T]) -> T:
    """Run a function in a thread and return its result.

    On cancellation the caller goes on at once, and the result is dropped in the thread. So
    resources must close themselves with their last reference.

    Raises:
        ResourceExhausted: No further thread can be started.

    """
    results, errors, done = list[T](), list[BaseException](), anyio.Event()
    try:
        wake = partial(call_soon(), done.set)
        _threads.run(partial(_run, function, results, errors), then=wake)
        try:
            await done.wait()
        except BaseException:
            leave_to_thread(results.clear)  # what closes itself may block
            raise
        if errors:
            raise errors.pop()
        return results.pop()
    finally:
        del function, results, errors  # a kept traceback must not keep what they hold


def _run(
    function: Callable[[], T],
    results: list[T],
    errors: list[BaseException],
) -> None:
    try:
        results.append(function())
    except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
        errors.append(error)


_running: anyio.lowlevel.RunVar[anyio.Semaphore] = anyio.lowlevel.RunVar("meeting_async_threads")


def _places() -> anyio.Semaphore:
    places = _running.get(None)
    if places is None:
        places = anyio.Semaphore(MAX_RUNNING, fast_acquire=True)
        _running.set(places)
    return places


def call_soon() -> Callable[[Callable[[], object]], object]:
    """Return a function that wakes the running loop from a thread; it raises on a closed loop."""
    token = anyio.lowlevel.current_token()
    loop = getattr(token, "native_token", token)  # before anyio 4.11 they were the same
    name = "call_soon_threadsafe" if hasattr(loop, "call_soon_threadsafe") else "run_sync_soon"
    return cast("Callable[[Callable[[], object]], object]", getattr(loop, name))


_Work = tuple[Callable[[], object], Callable[[], object] | None]


class _Threads:
    """As many threads as ever had to run at the same time; they are used again."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all threads: a forked process does not have them."""
        self._functions: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def run(self, function: Callable[[], object], then: Callable[[], object] | None = None) -> None:
        """Run a function; ``then`` is called when its thread can be used again."""
        if not self._idle.acquire(blocking=False):
            thread = threading.Thread(target=self._work, name="meeting-async", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise ResourceExhausted(f"no thread can be started: {error}") from error
        self._functions.put((function, then))

    def _work(self) -> None:
        while True:
            function, then = self._functions.get()
            function()
            del function
            self._idle.release()
            if then is not None:
                with suppress(RuntimeError):  # the event loop is closed
                    then()
            del then


_threads = _Threads()
after_fork(_threads.reset)


def run_in_thread(function: Callable[[], object]) -> None:
    """Run a function in a thread and do not wait for it.

    Raises:
        ResourceExhausted: No further thread can be started.

    """
    _threads.run(function)


def result_of(running: Future[T]) -> T:
    """Wait for the result of a thread, without an event loop."""
    while wait([running], POLL_SECONDS).not_done:  # Windows notices Ctrl-C between the waits
        pass
    return running.result()


def leave_to_thread(function: Callable[[], object]) -> None:
    """Run a cleanup in a thread and do not wait for it; here if no thread can be started.

    While the interpreter ends, none can: starting one would wait for ever.
    """
    if sys.is_finalizing():
        function()
        return
    try:
        run_in_thread(function)
    except ResourceExhausted:
        function()
