"""The byte stream of one connection, on a non-blocking socket: no answer is ever lost.

A server or proxy may refuse while the body is still being sent, and then close. Streams of event
loops do not read while they write, and drop received bytes when a write fails, so the caller gets a
broken connection instead of the refusal; httpcore reads an answer only after the whole body was
sent. Here every write first receives what has arrived. If that is a final answer, or if the
connection breaks, the write fails with ``WriteError``. httpcore then reads, by design, and gets the
received bytes first.

Short writes are buffered until a longer one or a read follows, so that a small request is sent as
one packet.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import anyio
import anyio.lowlevel
import httpcore

from meeting_async._clock import clock_of
from meeting_async._http.head import ReplyHead
from meeting_async._http.tls import PIECE_BYTES, Tls
from meeting_async._http.waiting import waiter_for
from meeting_async._models import Request
from meeting_async.errors import ConnectionLost, ReplyTooLarge, TransferTimeout

PIECE_LINES = 250
"""Lines given to h11 at once; as chunks of one byte they take it some 3 ms."""

SHORT_BYTES = 16 * 1024
"""Writes up to this many bytes are buffered."""

BURST_BYTES = 1024 * 1024
"""Longest piece that is sent without letting other tasks run."""

TURN_SECONDS = 0.0005
"""Seconds for which fast lines are written to without letting other tasks run."""

AHEAD_BYTES = 64 * 1024
"""Most bytes received while a body is being sent."""

MAX_INTERIM_REPLIES = 100
"""Most interim replies; known servers send one or two."""

MAX_HEAD_BYTES = 64 * 1024
"""Longest head of a reply; h11 parses it at once, which may take 60 ms."""

LOOK_SECONDS = 0.05
"""Seconds that a write waits for a full socket before it checks for an answer; each further wait is
twice as long."""

_RESET = struct.pack("ii", 1, 0)
"""``SO_LINGER`` on, for 0 s: closing resets the connection and drops what was not sent yet."""


class SocketStream(httpcore.AsyncNetworkStream):
    """One connection, for one request at a time: see :meth:`begin`."""

    def __init__(
        self, sock: socket.socket, tls: Tls | None, loop: anyio.lowlevel.EventLoopToken
    ) -> None:
        self.closed = False
        self.answered_early = False
        """Whether the head of the reply came before the last byte of the request was sent."""
        self._socket = sock
        self._now = clock_of(loop)
        self._tls = tls
        self._ended = False
        self._written = self._sent = 0
        self._is_torn = False
        """Whether only a part of a record, or of a piece, was sent."""
        self._rested = 0.0
        """When other tasks could run the last time."""
        self._waiter = waiter_for(sock, loop.native_token)

    def begin(self, request: Request, at_once: int = 1) -> None:
        """Prepare for the next request, whose limits count from here on.

        ``at_once``: requests that share the event loop's time.
        """
        self._request = request
        self._turn = TURN_SECONDS / at_once
        self._inbound, self._outbound, self._answers = bytearray(), bytearray(), bytearray()
        self._reply_until: float | None = None
        self.answered_early = False
        self._head_bytes = self._written = self._sent = self._arrived = 0
        self._reply = ReplyHead()

    @property
    def body_sent(self) -> int:
        """Bytes of the request's body that the operating system took; with TLS a few less."""
        return max(0, self._sent - self._head_bytes)

    def carried_only(self, headers: list[tuple[bytes, bytes]], size: int) -> bool:
        """Return whether the connection is open, and only one plain reply came.

        What follows a reply would be taken for the next one. The end of a reply without
        ``Content-Length`` cannot be told from what follows.
        """
        lengths = [value for name, value in headers if name.lower() == b"content-length"]
        if (
            self.closed
            or self._ended
            or self._is_torn
            or self._answers
            or self._reply.interim
            or lengths != [b"%d" % size]
        ):
            return False
        return self._arrived == (self._reply.size or 0) + size

    def is_quiet(self) -> bool:
        """Return whether the connection is open and there are no unread bytes."""
        try:
            return not (self.closed or self._receive() or self._ended)
        except OSError:
            return False

    # --- what httpcore calls ---------------------------------------------------------------------

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return some of what has arrived, ``b""`` at the end.

        Raises:
            TransferTimeout: The reply takes too long, or the peer does not read the request.
            ConnectionLost: The reply is too long.
            OSError: The connection broke or was closed.

        """
        with suppress(httpcore.WriteError):  # the answer may be there all the same
            await self._flush()
        if self._reply_until is None:
            self._reply_until = self._now() + self._request.reply_timeout
        has_waited = False
        while (left := self._reply_until - self._now()) > 0:
            if self._has_data():
                if not has_waited:
                    await anyio.lowlevel.checkpoint()  # a fast peer must not hold the event loop
                return self._next_piece()
            is_full = not self._answer_for_tls()
            await self._waiter.wait(min(left, LOOK_SECONDS) if is_full else left, to_write=is_full)
            has_waited = True
        raise TransferTimeout(f"no complete reply within {self._request.reply_timeout:g} s")

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Hand ``buffer`` to the operating system, unless the peer has refused or closed.

        Raises:
            WriteError: It has, or the connection broke; see what :meth:`read` returns.
            TransferTimeout: The socket took nothing for longer than ``stall_timeout``.

        """
        is_head = not self._written
        self._head_bytes = self._head_bytes or len(buffer)
        self._written += len(buffer)
        if is_head or len(self._outbound) + len(buffer) <= SHORT_BYTES:
            self._outbound += buffer
            return
        if self._now() - self._rested >= self._turn:
            await anyio.lowlevel.checkpoint()
            self._rested = self._now()
        await self._send(memoryview(self._gathered() + buffer if self._outbound else buffer))

    async def aclose(self) -> None:
        """Close the socket; see :meth:`close`."""
        self.close()

    def close(self) -> None:
        """Close the socket at once; a task that waits for it gets an ``OSError``.

        What the socket holds of a request that will stay a fragment is dropped.
        """
        if self.closed:
            return
        self.closed = True
        with suppress(RuntimeError):  # of an event loop that was closed
            self._waiter.wake()
        with suppress(OSError):  # of the connection, which is of no interest any more
            if self._written > self._sent:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        with suppress(OSError):
            self._socket.close()

    # --- receiving -------------------------------------------------------------------------------

    def _receive(self) -> bool:
        """Receive one piece without waiting; return whether anything came, the end included."""
        try:
            data = self._tls.receive() if self._tls else self._socket.recv(PIECE_BYTES)
        except BlockingIOError:
            return False
        self._ended = not data
        self._arrived += len(data)
        self._reply.feed(data)
        self._inbound += data
        return True

    def _has_data(self) -> bool:
        return bool(self._inbound) or self._ended or self._receive()

    def _next_piece(self) -> bytes:
        if self._reply.interim > MAX_INTERIM_REPLIES:
            raise ConnectionLost(f"more than {MAX_INTERIM_REPLIES} interim replies")
        if self._reply.size is None and self._arrived > MAX_HEAD_BYTES:
            raise ConnectionLost(f"the head of the reply is longer than {MAX_HEAD_BYTES:,} bytes")
        limit = self._request.max_reply_bytes
        if self._arrived > limit:
            raise ReplyTooLarge(f"the reply is longer than {limit:,} bytes (max_reply_bytes)")
        piece = bytes(self._inbound[:PIECE_BYTES])
        *lines, rest = piece.split(b"\n", PIECE_LINES)
        if len(lines) == PIECE_LINES:
            piece = piece[: len(piece) - len(rest)]
        del self._inbound[: len(piece)]
        return piece

    # --- sending ---------------------------------------------------------------------------------

    def _gathered(self) -> bytearray:
        gathered, self._outbound = self._outbound, bytearray()
        return gathered

    async def _flush(self) -> None:
        if self._outbound:
            await self._send(memoryview(self._gathered()))

    async def _send(self, data: memoryview) -> None:
        try:
            await self._send_all(data)
        except TransferTimeout:  # an OSError, too
            raise
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    async def _send_all(self, data: memoryview) -> None:
        self._stop_if_pointless()
        moved = self._now()
        while data:
            records = burst = data[:BURST_BYTES]
            taken = len(burst)
            if self._tls is not None:
                taken = self._tls.encrypt(burst)
                records = self._tls.records()
            await self._push(records, self._sent + taken)
            data = data[taken:]
            if taken:
                moved = self._now()
            else:
                await self._wait_to_send(moved, to_write=False)

    async def _push(self, data: memoryview, total: int) -> None:
        """Give bytes to the operating system; ``total``: bytes of the request sent after that."""
        moved = self._now()
        self._is_torn = True
        while data:
            try:
                count = self._socket.send(data)
            except BlockingIOError:
                count = 0
            data = data[count:]
            self._sent = max(self._sent, total - len(data))  # no record is shorter than its content
            if data:
                moved = self._now() if count else moved
                await self._wait_to_send(moved, to_write=True)
        self._is_torn = False

    def _answer_for_tls(self) -> bool:
        """Send what OpenSSL answers to what it has read; return whether the socket took all."""
        if self._tls is None or self._is_torn:
            return True
        self._answers += self._tls.records()
        with suppress(OSError):  # full, or broken, which reading tells
            del self._answers[: self._socket.send(self._answers) if self._answers else 0]
        return not self._answers

    async def _wait_to_send(self, moved: float, *, to_write: bool) -> None:
        """Wait until the socket may accept more, and check for an answer meanwhile.

        ``moved`` is when the socket last accepted bytes.
        """
        limit, stalled = self._request.stall_timeout, self._now() - moved
        if stalled >= limit:
            if self._reply.status:
                raise httpcore.WriteError("the peer answered and stopped reading")
            raise TransferTimeout(f"the peer stopped reading for {limit:g} s")
        seconds = min(max(stalled, LOOK_SECONDS), limit - stalled)
        await self._waiter.wait(seconds, to_write=to_write)
        self._rested = self._now()
        self._stop_if_pointless()

    def _stop_if_pointless(self) -> None:
        """Raise if the peer has closed or refused. After an early success go on sending.

        Called while there is something to send.
        """
        while not self._ended and len(self._inbound) < AHEAD_BYTES and self._receive():
            pass  # it may have come in small pieces
        self.answered_early |= self._reply.status > 0
        if self._ended or self._reply.status >= 300:
            raise httpcore.WriteError("the peer answered, or left, before the end of the request")
