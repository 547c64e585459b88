"""Waiting for a non-blocking socket, on every event loop."""

from __future__ import annotations

import asyncio
import math
import selectors
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

import anyio
import anyio.lowlevel

from meeting_async import _system
from meeting_async._clock import native
from meeting_async._threads import in_thread

LOOK_SECONDS = 0.5
"""Seconds after which a thread checks whether its task still waits."""


async def wait_ready(sock: socket.socket, *, to_write: bool, seconds: float = math.inf) -> None:
    """Return when a socket can be read or written, or after ``seconds`` (not on trio)."""
    loop = native(anyio.lowlevel.current_token())
    if not _can_watch(loop, sock):
        await _wait_in_thread(sock, seconds, to_write=to_write)
    elif isinstance(loop, asyncio.AbstractEventLoop):
        await _AsyncioWaiter(sock, loop).wait(seconds, to_write=to_write)
    else:
        await (anyio.wait_writable if to_write else anyio.wait_readable)(sock)


_WATCHING: dict[type, bool] = {}
"""Whether event loops of a class can watch a socket."""


def _can_watch(loop: object, sock: socket.socket) -> bool:
    known = _WATCHING.get(type(loop))
    if known is None:
        known = _WATCHING[type(loop)] = _system.can_watch(loop, sock)
    return known


async def _wait_in_thread(sock: socket.socket, seconds: float, *, to_write: bool) -> None:
    """Wait on an event loop that cannot watch a socket, such as Windows' usual one.

    anyio uses one thread for all sockets. That thread dies if a socket is closed at the wrong
    moment, as after a timeout; then no task is woken any more. So each wait has its own thread.
    """
    is_over = threading.Event()
    event = selectors.EVENT_WRITE if to_write else selectors.EVENT_READ
    try:
        await in_thread(partial(_select, sock.fileno(), event, seconds, is_over))
    finally:
        is_over.set()


def _select(number: int, event: int, seconds: float, is_over: threading.Event) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(number, event)
        while not is_over.is_set() and seconds > 0:
            if selector.select(min(seconds, LOOK_SECONDS)):
                return
            seconds -= LOOK_SECONDS


class Waiter(Protocol):
    """Waits until a socket is ready, for one task at a time."""

    async def wait(self, seconds: float, *, to_write: bool) -> None:
        """Return when the socket is ready, when the time is up, or after :meth:`wake`."""

    def wake(self) -> None:
        """End the wait; call it before the socket is closed."""


def waiter_for(sock: socket.socket, loop: object) -> Waiter:
    """Return a waiter for a socket; ``loop``: anyio's token of the running event loop."""
    running = native(loop)
    if isinstance(running, asyncio.AbstractEventLoop) and _can_watch(running, sock):
        return _AsyncioWaiter(sock, running)
    return _AnyioWaiter(sock)


class _AnyioWaiter:
    """Waits on any event loop."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._scope = anyio.CancelScope()

    async def wait(self, seconds: float, *, to_write: bool) -> None:
        with anyio.move_on_after(seconds) as self._scope:
            await wait_ready(self._socket, to_write=to_write, seconds=seconds)

    def wake(self) -> None:
        self._scope.cancel()


class _AsyncioWaiter:
    """Waits on asyncio, without anyio.

    anyio's cancel scope for each wait takes longer than the wait itself on a fast line.
    """

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._number = sock.fileno()
        self._loop = loop
        self._ready: asyncio.Future[None] | None = None
        self._stop: Callable[[int], object] = loop.remove_reader

    async def wait(self, seconds: float, *, to_write: bool) -> None:
        loop = self._loop
        ready = self._ready = loop.create_future()
        timer = loop.call_later(seconds, _set, ready) if seconds < math.inf else None
        add, self._stop = loop.add_reader, loop.remove_reader
        if to_write:
            add, self._stop = loop.add_writer, loop.remove_writer
        add(self._number, _set, ready)
        try:
            await ready
        finally:
            if timer is not None:
                timer.cancel()
            if self._ready is not None:  # else another socket may have the number by now
                self._ready = None
                self._stop(self._number)

    def wake(self) -> None:
        if self._ready is not None:
            _set(self._ready)
            self._ready = None
            self._stop(self._number)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
