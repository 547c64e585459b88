"""One connection, on h11: no answer is ever lost.

A server or proxy may refuse while the body is still being sent, and then close. So before each
piece of the body, and whenever the socket is full, what has arrived is given to h11. A refusal
whose head is complete ends the request; if the connection breaks, what came before is read first.
"""

from __future__ import annotations

from collections.abc import Awaitable
from time import perf_counter

import anyio.lowlevel
import h11

from meeting_async._http.failures import translated
from meeting_async._http.origins import Origin
from meeting_async._http.stream import Stream
from meeting_async._models import Reply, Request
from meeting_async.errors import ConnectionLost, ReplyTooLarge, TransferTimeout, TransportError

EVENTS = 250
"""Events of h11 per turn of the event loop; as chunks of one byte they take some 3 ms."""

SHORT_BYTES = 16 * 1024
"""Pieces up to this many bytes are gathered, so that a small request is one packet."""

TURN_SECONDS = 0.0005
"""Seconds for which fast lines are written to without letting other tasks run. The event loop's
clock is too coarse for it on Windows, where it steps by 15.6 ms."""

AHEAD_BYTES = 64 * 1024
"""Most bytes received while a body is being sent."""

MAX_INTERIM_REPLIES = 100
"""Most interim replies; known servers send one or two."""

MAX_HEAD_BYTES = 64 * 1024
"""Longest head of a reply; h11 parses it at once, which may take 60 ms."""

UNAUTHORIZED = {401, 407}
"""Refusals that count without their content: tinyproxy resets the connection while sending it."""

EARLY_ANSWER_SECONDS = 0.05
"""Seconds that a write waits for a full socket before it checks for an answer; each further wait is
twice as long."""

CONTENT_SECONDS = 2.0
"""Longest time in seconds for the content of an answer to a request that was not sent to its end.
Its status says enough, and servers that have not read everything often reset the connection."""


NO_ANSWER = "the peer closed the connection without an answer"

LONG_HEAD = f"the head of the reply is longer than {MAX_HEAD_BYTES:,} bytes"


class Connection:
    """One connection to an origin, for one request at a time."""

    def __init__(self, origin: Origin, stream: Stream, peer: object = None) -> None:
        self.origin, self.stream, self.peer = origin, stream, peer
        self.idle_since: float | None = None
        """On the clock of the event loop; ``None`` before its first request has ended."""
        self.was_answered = False
        """Whether anything came after its last request."""
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=2 * MAX_HEAD_BYTES)
        self._is_whole = False

    async def send(self, request: Request, target: bytes, sharing: int) -> Reply:
        """Send a request and return its reply.

        Args:
            request: What to send. Its limits count from here on.
            target: What follows the method.
            sharing: Requests that share the event loop's time, this one included.

        Raises:
            TransportError: There is no complete reply, and ``sent`` says how much was sent.
            Exception: The body raised it.

        """
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        self._is_whole = False
        exchange = _Exchange(self._http, self.stream, request, sharing)
        try:
            reply = await exchange.run(target, self.origin, self.peer)
        finally:
            self.was_answered = exchange.has_arrived
        self._is_whole = not reply.is_cut
        return reply

    def may_go_on(self) -> bool:
        """Return whether another request may follow: what came was one whole reply, no more."""
        is_done = self._http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}
        return self._is_whole and is_done and not self._http.trailing_data[0]


class _Unsendable(Exception):
    """The rest of the request is not worth sending: the peer has refused, or left."""


class _Exchange:
    """One request and its reply."""

    def __init__(
        self, http: h11.Connection, stream: Stream, request: Request, sharing: int
    ) -> None:
        self._http, self._stream, self._request = http, stream, request
        self._now = stream.now
        self._turn, self._rested = TURN_SECONDS / sharing, 0.0
        self._outbound = bytearray()
        self._head_bytes = self._arrived = self._interim = 0
        self._failure: Exception | None = None
        self._response: h11.Response | None = None
        self._content = bytearray()
        self._is_early = self._is_complete = False
        self._has_events = False
        """Whether h11 may have more events, although nothing else has arrived."""
        stream.begin()

    @property
    def has_arrived(self) -> bool:
        """Whether anything has come from the peer."""
        return self._arrived > 0

    @property
    def _is_too_long(self) -> bool:
        return len(self._content) > self._request.max_reply_bytes

    async def run(self, target: bytes, origin: Origin, peer: object) -> Reply:
        """Send the request, as far as it is worth sending, and return the reply, if it counts.

        What the body raises is raised.
        """
        if await self._done(self._send_head(target, origin)) and await self._send_body():
            await self._done(self._send_end())
        try:
            if self._failure is None:
                await self._receive_reply()
        except (OSError, h11.ProtocolError) as error:
            self._failure = error
        response, sent = self._response, max(0, self._stream.sent - self._head_bytes)
        if response is None or (self._failure and not self._counts_without_content(response)):
            raise translated(  # in no local variable, as its frames may show headers
                self._failure or ConnectionLost(NO_ANSWER), origin.name, connecting=False, sent=sent
            )
        return Reply(
            response.status_code,
            tuple(response.headers.raw_items()),
            bytes(self._content[: self._request.max_reply_bytes]),
            early=self._is_early or self._stream.is_midway,
            is_cut=self._is_too_long or not self._is_complete,
            sent=sent,
            peer=peer,
        )

    def _counts_without_content(self, response: h11.Response) -> bool:
        is_refusal = response.status_code >= 300 and self._stream.is_midway
        return is_refusal or response.status_code in UNAUTHORIZED

    async def _done(self, step: Awaitable[None]) -> bool:
        """Take a step of sending; return whether the next one may follow."""
        try:
            await step
        except (TransportError, h11.ProtocolError) as error:
            self._failure = error
        except (_Unsendable, OSError):
            pass  # the answer may be there all the same
        else:
            return True
        return False

    # --- sending ---------------------------------------------------------------------------------

    async def _send_head(self, target: bytes, origin: Origin) -> None:
        # The head is kept in no local variable, which reports of errors may show.
        self._outbound += self._http.send(
            h11.Request(
                method=self._request.method.encode("ascii"),
                target=target,
                headers=[*origin.headers, *self._request.headers],
            )
        )
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
        for part in self._http.send_with_data_passthrough(h11.Data(data=chunk)) or ():
            if len(self._outbound) + len(part) <= SHORT_BYTES:
                self._outbound += part
                continue
            if perf_counter() - self._rested >= self._turn:
                await anyio.lowlevel.checkpoint()
                self._rested = perf_counter()
            await self._push(memoryview(self._gathered() + part if self._outbound else part))

    async def _send_end(self) -> None:
        self._http.send(h11.EndOfMessage())
        if self._outbound:
            await self._push(memoryview(self._gathered()))
        self._stream.is_midway = False

    def _gathered(self) -> bytearray:
        gathered, self._outbound = self._outbound, bytearray()
        return gathered

    async def _push(self, data: memoryview) -> None:
        stream = self._stream
        stream.moved = self._now()
        self._take_early_answer()
        while data:
            data = data[stream.push(data) :]
            while stream.is_full:
                await self._wait_for_space()
                data = data[stream.push(data) :]

    async def _wait_for_space(self) -> None:
        """Wait until the socket may accept more, and look for an answer meanwhile."""
        limit, stalled = self._request.stall_timeout, self._now() - self._stream.moved
        if stalled >= limit:
            if self._response is not None:
                raise _Unsendable
            raise TransferTimeout(f"the peer stopped reading for {limit:g} s")
        seconds = min(max(stalled, EARLY_ANSWER_SECONDS), limit - stalled)
        await self._stream.wait(seconds, to_write=True)
        self._rested = perf_counter()
        self._take_early_answer()

    def _take_early_answer(self) -> None:
        """Take in what has arrived while there is something to send: a 409, 413 or 503 ends it.

        Go on after a success.
        """
        stream = self._stream
        while not stream.has_ended and self._arrived < AHEAD_BYTES and self._take_in():
            pass  # it may have come in small pieces
        if not self._arrived and not stream.has_ended:
            return
        self._parse()
        self._is_early = self._response is not None or bool(self._http.trailing_data[0])
        if stream.has_ended or (self._response is not None and self._response.status_code >= 300):
            raise _Unsendable

    # --- receiving -------------------------------------------------------------------------------

    async def _receive_reply(self) -> None:
        seconds, most = self._request.reply_timeout, self._request.max_reply_bytes
        if self._stream.is_midway:
            seconds = min(seconds, CONTENT_SECONDS)
        until = self._now() + seconds
        while not self._parse():
            if self._is_too_long:
                break
            if self._now() >= until:
                raise TransferTimeout(f"no complete reply within {seconds:g} s")
            await self._receive(until)
        if self._is_too_long and not self._request.cut_reply:
            raise ReplyTooLarge(f"the reply is longer than {most:,} bytes (max_reply_bytes)")

    async def _receive(self, until: float) -> None:
        if self._has_events or self._take_in():
            await anyio.lowlevel.checkpoint()  # a fast peer must not hold the event loop
            return
        seconds, is_full = until - self._now(), not self._stream.answer()
        if is_full:
            seconds = min(seconds, EARLY_ANSWER_SECONDS)
        await self._stream.wait(seconds, to_write=is_full)
        self._take_in()

    def _take_in(self) -> bool:
        """Give h11 one piece of what has arrived; return whether anything has, the end included."""
        data = self._stream.receive()
        if data is None:
            return False
        if not self._arrived and not b"HTTP/".startswith(start := data[:5]):
            del data  # which may repeat the request
            raise _no_http(start)
        self._http.receive_data(data)
        self._arrived += len(data)
        return True

    def _parse(self) -> bool:
        """Take some events of h11; return whether the reply is complete."""
        if self._stream.has_ended and not self._arrived:
            raise ConnectionLost(NO_ANSWER)
        self._has_events = False
        for _ in range(EVENTS):
            if self._is_complete:
                return True
            if not self._take_event():
                if self._response is None and self._arrived > MAX_HEAD_BYTES:
                    raise ConnectionLost(LONG_HEAD)
                return False
            if self._interim > MAX_INTERIM_REPLIES:
                raise ConnectionLost(f"more than {MAX_INTERIM_REPLIES} interim replies")
        self._has_events = True
        return False

    def _take_event(self) -> bool:
        """Take an event of h11, if there is one. No frame keeps it: it may repeat the request."""
        match event := self._http.next_event():
            case h11.NEED_DATA:
                return False
            case h11.Data(data=data):
                self._content += data
            case h11.Response():
                self._response = event
            case h11.EndOfMessage():
                self._is_complete = True
            case h11.InformationalResponse():
                self._is_early = False  # what came early was the beginning of this
                self._interim += 1
            case _:
                raise ConnectionLost("the peer does not go on with the exchange")
        return True


def _no_http(start: bytes) -> ConnectionLost:
    """Return the error for the first bytes of a peer that speaks something else."""
    is_tls = start[0] in {0x15, 0x16}  # an alert, a handshake (RFC 8446 section 5.1)
    what = "TLS: use https:// in" if is_tls else "no HTTP/1.1: check scheme and port of"
    error = ConnectionLost(f"the port speaks {what} the base URL")
    error.permanent = True
    return error
