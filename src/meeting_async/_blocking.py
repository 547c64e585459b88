"""The event loop of a process that has none: one thread runs it, and all others wait for it.

It is anyio's blocking portal, which starts when it is needed, after a fork again, and ends with the
program. What ends a wait cancels the call, and is told what became of it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future
from functools import partial
from sys import modules
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

import anyio
import anyio.lowlevel
from anyio.from_thread import BlockingPortal

from meeting_async._clock import leave_behind
from meeting_async._log import logger
from meeting_async._models import UploadReceipt
from meeting_async._system import after_fork, notice_fork
from meeting_async._text import short_repr
from meeting_async._threads import call_soon

T = TypeVar("T")

WAKE_SECONDS = 0.5
"""Seconds after which a waiting thread looks up: what is raised in it from outside, such as Ctrl-C
on Windows or the time limit of a task queue, would otherwise wait for the end of the call."""

ENDING_SECONDS = 10.0
"""Longest time in seconds that an interrupted call is waited for, to learn what became of it."""

EXIT_SECONDS = 60.0
"""Longest time in seconds that the end of the program waits for calls that are running."""


class Closing(Protocol):
    """What is closed when the program ends."""

    async def aclose(self) -> None:
        """Close it."""
        ...


# --- a call --------------------------------------------------------------------------------------


class Waiting:
    """Threads that wait for the event loop, and run meanwhile what must not run there."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._errands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._items: Any = None

    def notify(self) -> None:
        """Let the threads look whether they still have to wait.

        In the place of one of them a signal handler may be running, which waits for another call.
        """
        if self._changed.acquire(timeout=WAKE_SECONDS / 10):
            self._changed.notify_all()
            self._changed.release()

    def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> None:
        """Return when a condition holds, or when the time is up. Without a time: run errands."""
        end = None if seconds is None else time.monotonic() + seconds
        while not condition() and (end is None or time.monotonic() < end):
            with self._changed:
                errand = self._errands.popleft() if end is None and self._errands else None
                if errand is None and not condition():
                    self._changed.wait(WAKE_SECONDS)
            if errand is not None:
                function, answer = errand
                try:
                    answer.set_result(function())
                except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
                    answer.set_exception(error)

    async def _run(self, function: Callable[[], T]) -> T:
        """Run a function in one of the threads, called in the event loop."""
        answer, answered, wake = Future[T](), anyio.Event(), call_soon()
        answer.add_done_callback(lambda _: wake(answered.set))
        self._errands.append((function, answer))
        self.notify()
        await answered.wait()
        return answer.result()

    async def read(self, items: Iterable[T]) -> AsyncGenerator[T, None]:
        """Iterate in one of the threads."""
        end: Any = object()
        self._items = await self._run(partial(iter, items))
        while (item := await self._run(partial(next, self._items, end))) is not end:
            yield item

    def close(self) -> None:
        """Close what was read, if it is a generator."""
        if isinstance(self._items, Generator):
            self._items.close()


class Call(Generic[T]):
    """A coroutine function that runs in the event loop while its thread waits."""

    def __init__(self, function: Callable[[], Awaitable[T]], thread: Waiting | None = None) -> None:
        self._function, self._thread = function, thread or Waiting()
        self._scope: anyio.CancelScope | None = None
        self._is_cancelled = self._has_begun = self._has_ended = False
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._notes = [f"it has not ended within {ENDING_SECONDS:g} s: its outcome is unknown"]

    def result(self, enough: Callable[[], bool] = bool) -> T | Any:
        """Wait for the end, or until it is enough, and return the result or raise the error."""
        portal = event_loop.portal()
        try:
            if not self._has_begun:
                self._has_begun = True
                portal.start_task_soon(self._run)
            self._thread.wait(lambda: self._has_ended or enough())
        except BaseException as interruption:
            self.interrupt(interruption)
            raise
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._results.pop() if self._results else None
        finally:
            del error  # which knows this frame

    def interrupt(self, reason: BaseException) -> None:
        """Cancel the call; log what is known of its document, and say so on the exception."""
        self.cancel()
        self._thread.wait(lambda: self._has_ended, ENDING_SECONDS)
        for note in self._notes:
            reason.add_note(note)
            text = "%s has ended a call: %s"
            logger.warning(text, type(reason).__name__, note, extra={"action": "sync"})

    def cancel(self) -> None:
        """Begin to cancel the call."""
        self._is_cancelled = True
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            event_loop.portal().start_task_soon(self._cancel)

    async def _run(self) -> None:
        event_loop.calls.add(self)
        try:
            with anyio.CancelScope() as self._scope:
                self._cancel()
                try:
                    self._results.append(await self._function())
                except anyio.get_cancelled_exc_class() as error:
                    self._error = error
                    if self._is_cancelled:
                        raise
                except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                    self._error = error
        finally:
            event_loop.calls.discard(self)
            self._notes = self._known()  # now, as the thread takes result and error
            self._has_ended = True
            self._thread.notify()

    def _cancel(self) -> None:
        if self._is_cancelled and self._scope is not None:
            self._scope.cancel()

    def _known(self) -> list[str]:
        for result in self._results:
            if isinstance(result, UploadReceipt):
                name, room = short_repr(result.document), short_repr(result.room_id)
                return [f"{name} was accepted by room {room} before this"]
        if isinstance(self._error, Exception):
            return [str(self._error)]
        return list(getattr(self._error, "__notes__", []))


def in_loop(function: Callable[[], T]) -> T:
    """Call a function in the event loop."""

    async def call() -> T:
        return function()

    return Call(call).result()


# --- the event loop ------------------------------------------------------------------------------


class EventLoop:
    """The event loop of this process, in a thread of its own."""

    def __init__(self) -> None:
        self.clients: WeakSet[Closing] = WeakSet()
        self._token: object = None
        self.forget()

    def forget(self) -> None:
        """Forget the thread: a forked process does not have it."""
        if self._token is not None:
            leave_behind(self._token)
        self._guard = threading.RLock()
        self._portal: Future[BlockingPortal] | None = None
        self._has_ended = threading.Event()
        self.calls: set[Call[Any]] = set()

    def portal(self) -> BlockingPortal:
        """Return the way into the event loop, which is started if there is none."""
        _refuse_async()
        notice_fork()
        with self._guard:
            if self._portal is None:
                _refuse_green_threads()
                portal = Future[BlockingPortal]()
                name = "meeting-async-loop"
                threading.Thread(target=self._work, args=[portal], name=name, daemon=True).start()
                self._portal = portal
            return self._portal.result()

    def _work(self, portal: Future[BlockingPortal]) -> None:
        try:
            anyio.run(self._serve, portal)
        except BaseException as error:  # noqa: BLE001 - such as that no descriptor is left
            self._portal = None
            if not portal.done():
                portal.set_exception(error)
        finally:
            self._has_ended.set()

    async def _serve(self, ready: Future[BlockingPortal]) -> None:
        self._token = anyio.lowlevel.current_token()
        try:
            async with BlockingPortal() as portal:
                ready.set_result(portal)
                await portal.sleep_until_stopped()
        finally:
            self._portal = None  # the next call starts another

    def end(self) -> None:
        """Wait for running calls, then cancel them; close the clients, and end the thread."""
        if self._portal is None:
            return
        portal = self._portal.result()
        with contextlib.suppress(KeyboardInterrupt):
            portal.call(self._calls_end)
        calls = {*self.calls}
        for call in calls:
            call.cancel()
        for call in calls:
            call.interrupt(SystemExit())
        for client in [*self.clients]:
            portal.call(client.aclose)
        portal.start_task_soon(portal.stop)
        self._has_ended.wait(1)
        self._portal = None

    async def _calls_end(self) -> None:
        if self.calls:
            text = "the program ends, and waits for %d calls, for %g s at most"
            logger.warning(text, len(self.calls), EXIT_SECONDS, extra={"action": "sync"})
        with anyio.move_on_after(EXIT_SECONDS):
            while self.calls:  # noqa: ASYNC110 - once, when the program ends
                await anyio.sleep(0.02)


event_loop = EventLoop()
after_fork(event_loop.forget)
atexit.register(event_loop.end)


def _refuse_async() -> None:
    """Refuse to stop an event loop; a cell of IPython or Jupyter may, as nothing else runs then."""
    is_async = False
    for find in (asyncio.get_running_loop, anyio.lowlevel.current_token):  # a callback, a task
        with contextlib.suppress(RuntimeError):
            is_async = bool(find())
    if not is_async:
        return
    shell = modules.get("IPython")
    if shell is None or shell.get_ipython() is None:
        raise RuntimeError(
            "meeting_async.sync blocks its thread, and this one runs an event loop: use "
            "meeting_async.MeetingClient here, with `await`"
        )


def _refuse_green_threads() -> None:
    gevent, eventlet = modules.get("gevent.monkey"), modules.get("eventlet.patcher")
    is_gevent = gevent is not None and any(map(gevent.is_module_patched, ("threading", "socket")))
    if is_gevent or (eventlet is not None and any(map(eventlet.is_monkey_patched, _PATCHED))):
        raise RuntimeError(
            f"{'gevent' if is_gevent else 'eventlet'} has replaced threads and sockets, and "
            "meeting_async.sync needs real ones: upload in a process without it, such as a Celery "
            "worker with --pool prefork"
        )


_PATCHED = ("thread", "socket")
