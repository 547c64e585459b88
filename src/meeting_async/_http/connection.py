"""One connection, which does not lose an answer that comes early.

A server or proxy may refuse while the body is still being sent, and then close. So before each
piece of the body, and whenever the socket is full, what has arrived is parsed. A refusal whose head
is complete ends the request; if the connection breaks, what came before is read first.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable
from time import perf_counter

import anyio.lowlevel

from meeting_async._http.failures import alert_about_certificate, translated
from meeting_async._http.http1 import ReplyParser, declared_length, request_head
from meeting_async._http.origins import Origin
from meeting_async._http.stream import Stream
from meeting_async._http.tcp import Address
from meeting_async._models import Reply, Request
from meeting_async.errors import ConnectionLost, ReplyTooLarge, TransferTimeout, TransportError

SHORT_BYTES = 16 * 1024
"""Pieces up to this many bytes are gathered, so that a small request is one write."""

TURN_SECONDS = 0.0005
"""Seconds of writing to fast lines before other tasks run. Measured with ``perf_counter``: on
Windows the event loop's clock steps by 15.6 ms."""

AHEAD_BYTES = 64 * 1024
"""After this many bytes of a reply, no more are received while the body is being sent."""

UNAUTHORIZED = {401, 407}
"""Refusals that count without their content: tinyproxy resets the connection while sending it."""

EARLY_ANSWER_SECONDS = 0.05
"""Seconds that a write waits for a full socket before it checks for an answer; further waits get
longer."""

CUT_BYTES = 256 * 1024
"""A reply of up to so many bytes that is cut is read to its end, so that its connection can be used
again: some 330 people in a room of a known server."""

CUT_SECONDS = 1.0
"""Longest time in seconds for reading that rest."""

CONTENT_SECONDS = 2.0
"""Longest time in seconds for the content of an answer to a request that was not sent to its end.
Its status is enough, and servers that have not read everything often reset the connection."""


NO_ANSWER = "the peer closed the connection without an answer"

OTHER_LENGTH = "the body is not as long as its Content-Length"


class Peer:
    """Identifies the connection on which a check was answered.

    While this object exists, the connection stays open for some seconds, and only requests with
    this peer use it. If the server stops, it closes the connection, and the restart is noticed.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Become ``None`` in a copy or a pickle of a reply."""
        return type(None), ()


class Connection:
    """One connection to an origin, for one request at a time."""

    def __init__(self, origin: Origin, stream: Stream, address: Address | None = None) -> None:
        self.origin, self.stream, self.address = origin, stream, address
        self.idle_since: float | None = None
        """On the event loop's clock; ``None`` before its first request has ended."""
        self.was_answered = False
        """Whether anything was received after its last request."""
        self.may_go_on = False
        """Whether another request may follow: exactly one whole reply was received."""
        self.has_left = False
        """Whether it was closed after an answer: the server may have restarted since."""
        self._peers = weakref.WeakSet[Peer]()

    @property
    def is_free(self) -> bool:
        """Whether no :class:`Peer` needs it to stay open."""
        return not self._peers

    def new_peer(self) -> Peer:
        """Return the ``peer`` for a reply on this connection."""
        self._peers.add(made := Peer(self))
        return made

    async def send(self, request: Request, target: bytes, sharing: int) -> Reply:
        """Send a request and return its reply.

        Args:
            request: What to send. Its time limits begin here.
            target: The request target (RFC 9112 section 3.2).
            sharing: Number of requests that share the event loop, this one included.

        Raises:
            TransportError: No complete reply arrived; ``sent`` has the bytes of the body.
            Exception: The body raised it.

        """
        self.may_go_on = False
        exchange = _Exchange(self.stream, request, sharing)
        try:
            reply = await exchange.run(target, self.origin)
        finally:
            self.was_answered = exchange.has_arrived
        self.may_go_on = exchange.may_go_on
        return reply


class _Unsendable(Exception):
    """The rest of the request is not worth sending: the peer has refused it, or closed."""


class _Exchange:
    """One request and its reply."""

    def __init__(self, stream: Stream, request: Request, sharing: int) -> None:
        self._stream, self._request = stream, request
        self._parser = ReplyParser(request.method)
        self._now = stream.now
        self._turn, self._rested = TURN_SECONDS / sharing, 0.0
        self._outbound = bytearray()
        self._head_bytes = self._unsent = self._arrived = 0
        self._failure: Exception | None = None
        self._is_early = False
        stream.begin()

    @property
    def has_arrived(self) -> bool:
        """Whether anything was received."""
        return self._arrived > 0

    @property
    def may_go_on(self) -> bool:
        """Whether another request may follow."""
        is_sent = not self._stream.is_midway
        return is_sent and self._parser.may_follow and not self._is_too_long

    @property
    def _is_too_long(self) -> bool:
        """Whether so much was received that the rest is not read."""
        most = self._request.max_reply_bytes
        most = max(most, CUT_BYTES) if self._request.cut_reply else most
        return len(self._parser.content) > most

    @property
    def _is_cut(self) -> bool:
        """Whether the reply is longer than ``max_reply_bytes``, and is to be cut."""
        return self._request.cut_reply and len(self._parser.content) > self._request.max_reply_bytes

    async def run(self, target: bytes, origin: Origin) -> Reply:
        """Send the request, or as much as is worth sending, and return the reply.

        Raises as :meth:`Connection.send`.
        """
        if await self._done(self._send_head(target, origin)) and await self._send_body():
            await self._done(self._send_end())
        try:
            if self._failure is None:
                await self._receive_reply()
        except OSError as error:
            self._failure = error
        parser, sent = self._parser, max(0, self._stream.sent - self._head_bytes)
        if parser.status is None or (
            self._failure and not (self._is_cut or self._counts_without_content(parser.status))
        ):
            is_refused = bool(not self._arrived and alert_about_certificate(self._failure))
            raise translated(  # not kept in a local variable: its frames may show headers
                self._failure or ConnectionLost(NO_ANSWER),
                origin.name,
                connecting=is_refused,
                sent=0 if is_refused else sent,
            )
        return Reply(
            parser.status,
            parser.headers,
            bytes(parser.content[: self._request.max_reply_bytes]),
            early=self._is_early or self._stream.is_midway,
            is_cut=self._is_cut or not parser.is_complete,
            sent=sent,
        )

    def _counts_without_content(self, status: int) -> bool:
        return (status >= 300 and self._stream.is_midway) or status in UNAUTHORIZED

    async def _done(self, step: Awaitable[None]) -> bool:
        """Run a step of sending; return whether the next one may follow."""
        try:
            await step
        except TransportError as error:
            self._failure = error
        except (_Unsendable, OSError) as error:  # an answer may have arrived
            if alert_about_certificate(error):  # OpenSSL raises it only once
                self._failure = error
        else:
            return True
        return False

    # --- sending ---------------------------------------------------------------------------------

    async def _send_head(self, target: bytes, origin: Origin) -> None:
        headers = (*origin.headers, *self._request.headers)
        self._unsent = declared_length(headers)
        self._outbound += request_head(self._request.method.encode("ascii"), target, headers)
        self._head_bytes = len(self._outbound)

    async def _send_body(self) -> bool:
        body = self._request.body
        if isinstance(body, bytes):
            return await self._done(self._send(body))
        async for chunk in body:
            if not await self._done(self._send(chunk)):
                return False
        return True

    async def _send(self, chunk: bytes) -> None:
        """Hand a chunk to the operating system, or gather it, unless the peer has refused."""
        self._unsent -= len(chunk)
        if self._unsent < 0:
            raise ConnectionLost(OTHER_LENGTH)
        if len(self._outbound) + len(chunk) <= SHORT_BYTES:
            self._outbound += chunk
            return
        if perf_counter() - self._rested >= self._turn:
            await anyio.lowlevel.checkpoint()
            self._rested = perf_counter()
        await self._push(memoryview(self._gathered() + chunk if self._outbound else chunk))

    async def _send_end(self) -> None:
        if self._unsent:
            raise ConnectionLost(OTHER_LENGTH)
        if self._outbound:
            await self._push(memoryview(self._gathered()))
        self._stream.end()

    def _gathered(self) -> bytearray:
        gathered, self._outbound = self._outbound, bytearray()
        return gathered

    async def _push(self, data: memoryview) -> None:
        stream = self._stream
        stream.resume()
        if stream.sent or not stream.is_drained:  # else it was just found quiet
            self._take_early_answer()
        while data:
            data = data[stream.push(data) :]
            while stream.is_full:
                await self._wait_for_space()
                data = data[stream.push(data) :]

    async def _wait_for_space(self) -> None:
        """Wait until the socket may accept more, then look for an early answer."""
        limit, stalled = self._request.stall_timeout, self._now() - self._stream.moved
        if stalled >= limit:
            if self._parser.status is not None:
                raise _Unsendable
            raise TransferTimeout(f"the peer stopped reading for {limit:g} s")
        seconds = min(max(stalled, EARLY_ANSWER_SECONDS), limit - stalled)
        await self._stream.wait(seconds, to_write=True)
        self._rested = perf_counter()
        self._take_early_answer()

    def _take_early_answer(self) -> None:
        """Parse what has arrived while the request is being sent: a status from 300 on ends it.

        A success does not stop the sending.
        """
        stream = self._stream
        while not stream.has_ended and self._arrived < AHEAD_BYTES and self._take_in():
            pass  # it may have arrived in small pieces
        if not self._arrived and not stream.has_ended:
            return
        self._check()
        self._is_early, status = self._parser.has_begun, self._parser.status
        if stream.has_ended or (status is not None and status >= 300):
            raise _Unsendable

    # --- receiving -------------------------------------------------------------------------------

    async def _receive_reply(self) -> None:
        seconds, most = self._request.reply_timeout, self._request.max_reply_bytes
        if self._stream.is_midway:
            seconds = min(seconds, CONTENT_SECONDS)
        until = self._now() + seconds
        is_cut = False
        while not self._parser.is_complete and not self._is_too_long:
            self._check()
            if self._is_cut and not is_cut:
                is_cut, until = True, min(until, self._now() + CUT_SECONDS)
            if self._now() >= until:
                raise TransferTimeout(f"no complete reply within {seconds:g} s")
            await self._receive(until)
        if self._is_too_long and not self._request.cut_reply:
            raise ReplyTooLarge(f"the reply is longer than {most:,} bytes (max_reply_bytes)")

    async def _receive(self, until: float) -> None:
        if not self._stream.is_drained and self._take_in():
            await anyio.lowlevel.checkpoint()  # a fast peer must not hold the event loop
            return
        seconds, is_full = until - self._now(), not self._stream.answer()
        if is_full:
            seconds = min(seconds, EARLY_ANSWER_SECONDS)
        await self._stream.wait(seconds, to_write=is_full)
        self._take_in()

    def _take_in(self) -> bool:
        """Parse one piece of what has arrived; return whether there was one, the end included."""
        data = self._stream.receive()
        if data is None:
            return False
        parser, interim = self._parser, self._parser.interim
        if not data:
            parser.end()
        elif not self._arrived and not b"HTTP/".startswith(start := data[:5]):
            del data  # it may repeat the request, and tracebacks show locals
            raise _no_http(start)
        else:
            self._arrived += len(data)
            parser.feed(data)
            if parser.interim > interim:  # what came early was this interim reply
                self._is_early = False
        return True

    def _check(self) -> None:
        """Raise ``ConnectionLost`` if the peer has closed without an answer, or broken HTTP."""
        if self._stream.has_ended and not self._arrived:
            raise ConnectionLost(NO_ANSWER)
        if self._parser.problem is not None:
            raise ConnectionLost(f"the HTTP exchange broke ({self._parser.problem})")


def _no_http(start: bytes) -> ConnectionLost:
    """Return the error for a peer that does not speak HTTP, by its first bytes."""
    is_tls = start[0] in {0x15, 0x16}  # an alert, a handshake (RFC 8446 section 5.1)
    what = "TLS: use https:// in" if is_tls else "no HTTP/1.1: check scheme and port of"
    error = ConnectionLost(f"the port speaks {what} the base URL")
    error.permanent = True
    return error
