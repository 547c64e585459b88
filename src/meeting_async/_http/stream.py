"""The bytes of one connection, on a non-blocking socket, whatever the protocol."""

from __future__ import annotations

import errno
import os
import socket
import weakref
from contextlib import suppress

from meeting_async._clock import clock_of
from meeting_async._http.tls import PIECE_BYTES, Tls
from meeting_async._http.waiting import waiter_for
from meeting_async._system import RESET, after_fork

BURST_BYTES = 1024 * 1024
"""Most bytes that are given to the operating system at once."""

RECORD_BYTES = 16 * 1024
"""Most bytes of content in a TLS record (RFC 8446 section 5.1)."""

RECORD_OVERHEAD = 512
"""More bytes than OpenSSL adds to a record: header, IV, padding and MAC have at most 69 + 256."""


class Stream:
    """A connected socket that never blocks or loses what has arrived, and counts what it sends.

    Streams of event loops do not read while they write, and drop received bytes when a write fails:
    a caller would see a broken connection instead of the refusal that came before.
    """

    def __init__(self, sock: socket.socket, tls: Tls | None, loop: object) -> None:
        self.is_closed = False
        self.has_ended = False
        """Whether the peer has closed its side."""
        self.is_drained = False
        """Whether the last :meth:`receive` found nothing, and :meth:`wait` was not called since."""
        self.sent = 0
        """Bytes since :meth:`begin` that the operating system may have; with TLS perhaps too many,
        never too few."""
        self.moved = 0.0
        """When the system last took bytes, or :meth:`resume` was called, by :attr:`now`."""
        self.is_full = False
        """Whether to call :meth:`wait`, then :meth:`push` again."""
        self.is_midway = False
        """Whether a request was begun, but not sent to its end."""
        self._socket, self._tls = sock, tls
        self.now = clock_of(loop)
        self._waiter = waiter_for(sock, loop)
        self._encrypted = 0
        """Bytes since :meth:`begin` that OpenSSL has encrypted."""
        self._records = memoryview(b"")
        """Records that the operating system has not taken yet."""
        self._is_torn = self._must_read = False
        _open.add(self)

    def begin(self) -> None:
        """Called when a request begins: count from here on."""
        self._encrypted = self.sent = 0
        self.is_midway = True

    def resume(self) -> None:
        """Called when the caller has more to send: until now the peer was not stalling."""
        self.moved = self.now()

    def end(self) -> None:
        """Called when all of the request is sent."""
        self.is_midway = False

    def push(self, data: memoryview) -> int:
        """Send some of ``data`` without waiting; return how many of its bytes were taken.

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
        """Wait until :meth:`push` (``to_write``) or :meth:`receive` is of use, or ``seconds``.

        Raises:
            OSError: It was closed; another socket may have its number by now.

        """
        if self.is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self.is_drained = False
        await self._waiter.wait(seconds, to_write=to_write and not self._must_read)

    def answer(self) -> bool:
        """Send OpenSSL's own records, such as a key update; return whether none is left.

        Also true if a record of the request is half-way: then nothing else can be sent.
        """
        if self._tls is None or self._is_torn:
            return True
        if not self._records:
            self._records = self._tls.records()
        with suppress(OSError):  # receiving raises it, too
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

        Unsent bytes of an incomplete request are dropped (``SO_LINGER``).
        """
        if self.is_closed:
            return
        self.is_closed = True
        with suppress(RuntimeError):  # the event loop was closed
            self._waiter.wake()
        with suppress(OSError):  # the connection is broken already
            if self.is_midway:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        with suppress(OSError):
            self._socket.close()
        self._tls = None  # 27 KiB, which a kept `Reply.peer` would keep

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
    """Close the copies in a forked process: else the peer would not see that the parent closes one.

    Nothing may be sent on them: they are still the parent's connections.
    """
    for stream in _open:
        stream.is_closed = True
        stream._socket.close()  # noqa: SLF001 - of this module


after_fork(_leave_to_parent)


def _content_within(records: int) -> int:
    """Return the least content, in bytes, of so many bytes of records.

    The first and the last record may be short.
    """
    return max(0, records - RECORD_OVERHEAD * (records // RECORD_BYTES + 2))
