"""The bytes of one connection, on a non-blocking socket. Nothing here knows HTTP."""

from __future__ import annotations

import socket
import weakref
from contextlib import suppress

from meeting_async._clock import clock_of
from meeting_async._http.tls import PIECE_BYTES, Tls
from meeting_async._http.waiting import waiter_for
from meeting_async._system import RESET, after_fork

BURST_BYTES = 1024 * 1024
"""Longest piece that is given to the operating system at once."""

RECORD_BYTES = 16 * 1024
"""Most bytes of content in a record of TLS (RFC 8446 section 5.1)."""

RECORD_OVERHEAD = 512
"""More bytes than OpenSSL adds to a record: header, IV, padding and MAC have at most 69 + 256."""


class Stream:
    """A connected socket that neither waits nor loses what has arrived, and counts what it sends.

    Streams of event loops do not read while they write, and drop received bytes when a write fails:
    so a caller would get a broken connection instead of the refusal that came before it broke.
    """

    def __init__(self, sock: socket.socket, tls: Tls | None, loop: object) -> None:
        self.is_closed = False
        self.has_ended = False
        """Whether the peer has closed its side."""
        self.is_drained = False
        """Whether nothing can be there to receive unless it arrives from now on."""
        self.sent = 0
        """Bytes since :meth:`begin` that the operating system may have; with TLS perhaps some too
        many, never too few."""
        self.moved = 0.0
        """When the operating system last took any, or was to take some again, by :attr:`now`."""
        self.is_full = False
        """Whether the last :meth:`push` has to be repeated after :meth:`wait`."""
        self.is_midway = False
        """Whether a request was begun that is not sent to its end."""
        self._socket, self._tls = sock, tls
        self.now = clock_of(loop)
        self._waiter = waiter_for(sock, loop)
        self._encrypted = 0
        """Bytes since :meth:`begin` of which OpenSSL made records."""
        self._records = memoryview(b"")
        """What OpenSSL made and the operating system has not taken yet."""
        self._is_torn = self._must_read = False
        _open.add(self)

    def begin(self) -> None:
        """Count from here on: a request begins."""
        self._encrypted = self.sent = 0
        self.is_midway = True

    def resume(self) -> None:
        """Say that there is more to send: until now the caller had nothing."""
        self.moved = self.now()

    def end(self) -> None:
        """Say that all of the request is sent."""
        self.is_midway = False

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
            self.is_drained = True
            return None
        self.is_drained, self.has_ended = False, not data
        return data

    async def wait(self, seconds: float, *, to_write: bool) -> None:
        """Return when there is something to receive or room to push, or when the time is up."""
        self.is_drained = False
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
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        with suppress(OSError):
            self._socket.close()
        self._tls = None  # 27 KiB, which a kept reply would keep

    def _give(self, data: memoryview) -> int:
        if not data:
            return 0
        try:
            count = self._socket.send(data)
        except BlockingIOError:
            return 0
        self.moved = self.now()
        return count


_open: weakref.WeakSet[Stream] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Close the copies of a forked process: else a peer would not see when the parent closes one.

    Nothing else may be done with them, as their state is that of the parent's connections.
    """
    for stream in _open:
        stream.is_closed = True
        stream._socket.close()  # noqa: SLF001 - of this module


after_fork(_leave_to_parent)


def _content_within(records: int) -> int:
    """Return how many bytes of content so many bytes of records have at least.

    The first and the last of them may be short.
    """
    return max(0, records - RECORD_OVERHEAD * (records // RECORD_BYTES + 2))
