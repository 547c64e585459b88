"""Waiting until a socket is ready, for a limited time, or until another task closes it.

anyio does the same with a cancel scope for each wait, which takes longer than the wait on a fast
line. So on asyncio the event loop is asked directly.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import anyio


class Waiter(Protocol):
    """Waits for one socket, for one task at a time."""

    async def wait(self, seconds: float, *, to_write: bool) -> None:
        """Return when the socket is ready, when the time is up, or after :meth:`wake`."""
        ...

    def wake(self) -> None:
        """End the wait; call it before the socket is closed."""
        ...


def waiter_for(sock: socket.socket, loop: object) -> Waiter:
    """Return a waiter; ``loop`` is the event loop of asyncio, or trio's token."""
    if isinstance(loop, asyncio.AbstractEventLoop):
        return _AsyncioWaiter(sock, loop)
    return _AnyioWaiter(sock)


class _AsyncioWaiter(Waiter):
    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._number = sock.fileno()
        self._loop = loop
        self._ready: asyncio.Future[None] | None = None
        self._stop: Callable[[int], object] = loop.remove_reader

    async def wait(self, seconds: float, *, to_write: bool) -> None:
        loop = self._loop
        ready = self._ready = loop.create_future()
        timer = loop.call_later(seconds, _set, ready)
        if to_write:
            loop.add_writer(self._number, _set, ready)
            self._stop = loop.remove_writer
        else:
            loop.add_reader(self._number, _set, ready)
            self._stop = loop.remove_reader
        try:
            await ready
        finally:
            timer.cancel()
            if self._ready is not None:  # else the number may belong to another socket by now
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


class _AnyioWaiter(Waiter):
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._is_waiting = False

    async def wait(self, seconds: float, *, to_write: bool) -> None:
        self._is_waiting = True
        try:
            with anyio.move_on_after(seconds), suppress(anyio.ClosedResourceError):
                await (anyio.wait_writable if to_write else anyio.wait_readable)(self._socket)
        finally:
            self._is_waiting = False

    def wake(self) -> None:
        if self._is_waiting:
            anyio.notify_closing(self._socket)
