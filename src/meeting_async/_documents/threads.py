"""Threads of our own for what may block: reading a document, opening a journal.

A thread cannot be interrupted. When the task that waits for one is cancelled, in whatever way, the
task goes on at once and the thread is abandoned: nobody uses its result, and it does not count
among the running ones any more. So a dead network drive holds up neither a limit on time nor other
documents. The threads are daemons: one that never returns does not hold up the interpreter's exit.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import anyio
import anyio.lowlevel

T = TypeVar("T")

MAX_RUNNING = 32
"""Functions that run in threads at the same time, per event loop; more only queue at the disk."""

IDLE_SECONDS = 10.0
"""How long a thread waits for its next function."""


async def in_thread(
    function: Callable[[], T], *, discard: Callable[[T], object] | None = None
) -> T:
    """Run a function in a thread and return its result.

    On cancellation the function is abandoned: the caller goes on at once. ``discard`` gets the
    result that nobody takes then, in a thread; without it the result is dropped.
    """
    places = _places()
    await places.acquire()
    job = _begin(function, discard, places)
    del function, discard  # a kept traceback must not keep what they hold
    return await job.result()


def try_in_thread(function: Callable[[], T]) -> ThreadJob[T] | None:
    """Start a function whose result is wanted later; ``None`` if too many are running."""
    places = _places()
    try:
        places.acquire_nowait()
    except anyio.WouldBlock:
        return None
    return _begin(function, None, places)


class ThreadJob(Generic[T]):
    """A function that runs in a thread: its result is taken once, or discarded."""

    def __init__(
        self,
        function: Callable[[], T],
        discard: Callable[[T], object] | None,
        places: anyio.Semaphore,
    ) -> None:
        self._function = function
        self._discard = discard
        self._places: anyio.Semaphore | None = places
        self._call_soon = call_soon()
        self._arrived = anyio.Event()
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._has_run = False
        self._outcome: tuple[T] | BaseException | None = None

    async def result(self) -> T:
        """Wait for the result, and raise what the function raised."""
        if not self._arrived.is_set():
            try:
                await self._arrived.wait()
            except BaseException:
                self.abandon()
                raise
        outcome, self._outcome = self._outcome, None
        try:
            if isinstance(outcome, tuple):
                return outcome[0]
            raise outcome or RuntimeError("the result was taken already")
        finally:
            del outcome  # an error's traceback leads to this frame

    def abandon(self) -> None:
        """Give up the result, whether it is there or not."""
        with self._lock:
            has_run = self._has_run and not self._is_abandoned
            self._is_abandoned = True
        self._leave()
        if has_run:
            run_in_thread(self._drop)

    def run(self) -> None:
        """Run the function, in a thread."""
        try:
            self._outcome = (self._function(),)
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            self._outcome = error
        del self._function
        with self._lock:
            self._has_run = True
            is_wanted = not self._is_abandoned
        if not (is_wanted and self._tell()):
            self._drop()

    def _tell(self) -> bool:
        try:
            self._call_soon(self._arrive)
        except RuntimeError:  # the event loop is closed
            return False
        return True

    def _arrive(self) -> None:
        self._leave()
        self._arrived.set()

    def _leave(self) -> None:
        places, self._places = self._places, None
        if places is not None:
            places.release()

    def _drop(self) -> None:
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, tuple) and self._discard is not None:
            self._discard(outcome[0])


def _begin(
    function: Callable[[], T], discard: Callable[[T], object] | None, places: anyio.Semaphore
) -> ThreadJob[T]:
    job = ThreadJob(function, discard, places)
    try:
        run_in_thread(job.run)
    except BaseException:  # no thread can be started
        places.release()
        raise
    return job


_running: anyio.lowlevel.RunVar[anyio.Semaphore] = anyio.lowlevel.RunVar("meeting_async_threads")


def _places() -> anyio.Semaphore:
    places = _running.get(None)
    if places is None:
        places = anyio.Semaphore(MAX_RUNNING, fast_acquire=True)
        _running.set(places)
    return places


def call_soon() -> Callable[[Callable[[], object]], object]:
    """Return what wakes the running event loop from a thread; it raises once that is closed."""
    loop: Any = anyio.lowlevel.current_token().native_token
    name = "call_soon_threadsafe" if hasattr(loop, "call_soon_threadsafe") else "run_sync_soon"
    return cast("Callable[[Callable[[], object]], object]", getattr(loop, name))


class _Threads:
    """Threads that wait for a function for a while before they end."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all threads: a forked process has none of them."""
        self._functions: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def run(self, function: Callable[[], object]) -> None:
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._work, name="meeting-async", daemon=True).start()
        self._functions.put(function)

    def _work(self) -> None:
        while True:
            try:
                function = self._functions.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                if self._idle.acquire(blocking=False):
                    return
                continue  # a function for this thread is on its way
            function()
            del function
            self._idle.release()


_threads = _Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.reset)


def run_in_thread(function: Callable[[], object]) -> None:
    """Run a function in a thread and do not wait for it."""
    _threads.run(function)
