"""The bytes of one connection, on a non-blocking socket. Nothing here knows HTTP."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

import anyio

from meeting_async._clock import clock_of, native
from meeting_async._http.tls import PIECE_BYTES, Tls

BURST_BYTES = 1024 * 1024
"""Longest piece that is given to the operating system at once."""

RECORD_BYTES = 16 * 1024
"""Most bytes of content in a record of TLS (RFC 8446 section 5.1)."""

RECORD_OVERHEAD = 512
"""More bytes than OpenSSL adds to a record: header, IV, padding and MAC have at most 69 + 256."""

_RESET = struct.pack("ii", 1, 0)
"""``SO_LINGER`` on, for 0 s: closing resets the connection and drops what was not sent yet."""


class Stream:
    """A connected socket that neither waits nor loses what has arrived, and counts what it sends.

    Streams of event loops do not read while they write, and drop received bytes when a write fails:
    so a caller would get a broken connection instead of the refusal that came before it broke.
    """

    def __init__(self, sock: socket.socket, tls: Tls | None, loop: object) -> None:
        self.is_closed = False
        self.has_ended = False
        """Whether the peer has closed its side."""
        self.sent = 0
        """Bytes since :meth:`begin` that the operating system may have; with TLS perhaps some too
        many, never too few."""
        self.moved = 0.0
        """When the operating system last took any, on the clock of the event loop."""
        self.is_full = False
        """Whether the last :meth:`push` has to be repeated after :meth:`wait`."""
        self.is_midway = False
        """Whether a request was begun that is not sent to its end. The sender sets it back."""
        self._socket, self._tls = sock, tls
        self.now = clock_of(loop)
        running = native(loop)
        is_asyncio = isinstance(running, asyncio.AbstractEventLoop)
        self._waiter = _AsyncioWaiter(sock, running) if is_asyncio else _AnyioWaiter(sock)
        self._encrypted = 0
        """Bytes since :meth:`begin` of which OpenSSL made records."""
        self._records = memoryview(b"")
        """What OpenSSL made and the operating system has not taken yet."""
        self._is_torn = self._must_read = False

    def begin(self) -> None:
        """Count from here on: a request begins."""
        self._encrypted = self.sent = 0
        self.is_midway = True

    def push(self, data: memoryview) -> int:
        """Take the beginning of ``data``, give it to the operating system, and return its length.

        Raises:
            OSError: The connection broke.

        """
        burst = data[:BURST_BYTES]
        if self._tls is not None:
            return self._push_encrypted(burst, self._tls)
        self.sent += (count := self._give(burst))
        self.is_full = count < len(burst)
        return count

    def _push_encrypted(self, burst: memoryview, tls: Tls) -> int:
        count, self._must_read = 0, False
        if burst and not self._records:
            count = tls.encrypt(burst)
            self._must_read = not count
            self._encrypted += count
            self._records = tls.records()
        given = self._give(self._records)
        self._records = self._records[given:]
        self._is_torn = len(self._records) > 0
        self.is_full = self._is_torn or self._must_read
        if given:
            self.sent = max(self.sent, self._encrypted - _content_within(len(self._records)))
        return count

    def receive(self) -> bytes | None:
        """Return some of what has arrived, ``b""`` at the end, ``None`` if nothing has.

        Raises:
            OSError: The connection broke.

        """
        try:
            data = self._tls.receive() if self._tls else self._socket.recv(PIECE_BYTES)
        except BlockingIOError:
            return None
        self.has_ended = not data
        return data

    async def wait(self, seconds: float, *, to_write: bool) -> None:
        """Return when there is something to receive or room to push, or when the time is up."""
        await self._waiter.wait(seconds, to_write=to_write and not self._must_read)

    def answer(self) -> bool:
        """Send what OpenSSL answers to what it has received; return whether all of it is sent."""
        if self._tls is None or self._is_torn:
            return True
        if not self._records:
            self._records = self._tls.records()
        with suppress(OSError):  # of the connection, which receiving tells
            self._records = self._records[self._give(self._records) :]
        return not self._records

    def is_quiet(self) -> bool:
        """Return whether the connection is open, nothing has arrived, and nothing is to be sent."""
        try:
            return not (self.is_closed or self._records) and self.receive() is None
        except OSError:
            return False

    def close(self) -> None:
        """Close the socket at once; a task that waits for it gets an ``OSError``.

        What the socket holds of a request that will stay a fragment is dropped.
        """
        if self.is_closed:
            return
        self.is_closed = True
        with suppress(RuntimeError):  # of an event loop that was closed
            self._waiter.wake()
        with suppress(OSError):  # of the connection, which is of no interest any more
            if self.is_midway:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        with suppress(OSError):
            self._socket.close()

    def _give(self, data: memoryview) -> int:
        if not data:
            return 0
        try:
            count = self._socket.send(data)
        except BlockingIOError:
            return 0
        self.moved = self.now()
        return count


def _content_within(records: int) -> int:
    """Return how many bytes of content so many bytes of records have at least.

    The first and the last of them may be short.
    """
    return max(0, records - RECORD_OVERHEAD * (records // RECORD_BYTES + 2))


# --- waiting -------------------------------------------------------------------------------------


class _AnyioWaiter:
    """Waits until a socket is ready, for one task at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._scope = anyio.CancelScope()

    async def wait(self, seconds: float, *, to_write: bool) -> None:
        """Return when the socket is ready, when the time is up, or after :meth:`wake`."""
        with anyio.move_on_after(seconds) as self._scope:
            await (anyio.wait_writable if to_write else anyio.wait_readable)(self._socket)

    def wake(self) -> None:
        """End the wait; call it before the socket is closed."""
        self._scope.cancel()


class _AsyncioWaiter:
    """The same on asyncio, whose event loop is asked directly.

    anyio has a cancel scope for each wait, which takes longer than the wait on a fast line.
    """

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._number = sock.fileno()
        self._loop = loop
        self._ready: asyncio.Future[None] | None = None
        self._stop: Callable[[int], object] = loop.remove_reader

    async def wait(self, seconds: float, *, to_write: bool) -> None:
        loop = self._loop
        ready = self._ready = loop.create_future()
        timer = loop.call_later(seconds, _set, ready)
        add, self._stop = loop.add_reader, loop.remove_reader
        if to_write:
            add, self._stop = loop.add_writer, loop.remove_writer
        add(self._number, _set, ready)
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
