"""One request and its reply, on h11: no answer is ever lost.

A server or proxy may refuse while the body is still being sent, and then close. So before each
piece of the body, and whenever the socket is full, what has arrived is given to h11. A refusal
whose head is complete ends the request; if the connection breaks, what came before is read first.
"""

from __future__ import annotations

import anyio.lowlevel
import h11

from meeting_async._clock import clock_of
from meeting_async._http.request_body import RequestBodyStream
from meeting_async._http.stream import Stream
from meeting_async._models import HeaderPairs, Reply, Request
from meeting_async.errors import ConnectionLost, ReplyTooLarge, TransferTimeout, TransportError

EVENTS = 250
"""Events of h11 per turn of the event loop; as chunks of one byte they take some 3 ms."""

SHORT_BYTES = 16 * 1024
"""Pieces up to this many bytes are gathered, so that a small request is one packet."""

TURN_SECONDS = 0.0005
"""Seconds for which fast lines are written to without letting other tasks run."""

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


class Unsendable(Exception):
    """The rest of the request is not worth sending: the peer has refused, or left."""


class Exchange:
    """One request and its reply on a connection.

    Args:
        http: The connection's HTTP state, idle.
        stream: Its bytes.
        request: What to send. Its limits count from here on.
        sharing: Requests that share the event loop's time, this one included.

    """

    def __init__(
        self, http: h11.Connection, stream: Stream, request: Request, sharing: int
    ) -> None:
        self._http, self._stream, self._request = http, stream, request
        self._now = clock_of(anyio.lowlevel.current_token())
        self._turn, self._rested = TURN_SECONDS / sharing, 0.0
        self._outbound = bytearray()
        self._head_bytes = self._arrived = self._interim = 0
        self._response: h11.Response | None = None
        self._is_early = self._is_complete = False
        self._content = bytearray()

    async def run(self, target: bytes, headers: HeaderPairs, *, reused: bool) -> Reply:
        """Send the request and return its reply; ``request.body.sent`` is set in any case.

        Raises:
            TransferTimeout: The socket took nothing for longer than ``stall_timeout``, or the reply
                takes too long.
            ConnectionLost: The peer sends no reply of HTTP/1.1, or too much.
            OSError, h11.ProtocolError: The connection broke, or one side breaks the protocol.
            BodyFailed: The body raised.

        """
        body = self._request.body
        try:
            await self._send_request(target, headers)
        except TransportError:  # an OSError, too
            raise
        except (Unsendable, OSError):
            pass  # the answer may be there all the same
        finally:
            if not isinstance(body, bytes):
                body.sent = max(0, self._stream.sent - self._head_bytes)
        try:
            response = await self._receive_reply()
        except TransportError:
            raise
        except OSError:
            if self._response is None or self._response.status_code not in UNAUTHORIZED:
                raise
            response = self._response
        found = tuple(response.headers.raw_items())
        content, early = bytes(self._content), self._is_early
        return Reply(response.status_code, found, content, early=early)

    # --- sending ---------------------------------------------------------------------------------

    async def _send_request(self, target: bytes, headers: HeaderPairs) -> None:
        http, body = self._http, self._request.body
        method = self._request.method.encode("ascii")
        # The head is kept in no local variable, which reports of errors may show.
        self._outbound += http.send(h11.Request(method=method, target=target, headers=[*headers]))
        self._head_bytes = len(self._outbound)
        self._stream.begin()
        if isinstance(body, bytes):
            await self._send(body)
        else:
            async for chunk in RequestBodyStream(body):  # an OSError of a file is not the socket's
                await self._send(chunk)
        http.send(h11.EndOfMessage())
        if self._outbound:
            await self._push(memoryview(self._gathered()))
        self._stream.is_midway = False

    async def _send(self, chunk: bytes) -> None:
        """Hand a chunk to the operating system, or gather it, unless the peer has refused."""
        for part in self._http.send_with_data_passthrough(h11.Data(data=chunk)) or ():
            if len(self._outbound) + len(part) <= SHORT_BYTES:
                self._outbound += part
                continue
            if self._now() - self._rested >= self._turn:
                await anyio.lowlevel.checkpoint()
                self._rested = self._now()
            await self._push(memoryview(self._gathered() + part if self._outbound else part))

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
                raise Unsendable
            raise TransferTimeout(f"the peer stopped reading for {limit:g} s")
        seconds = min(max(stalled, EARLY_ANSWER_SECONDS), limit - stalled)
        await self._stream.wait(seconds, to_write=True)
        self._rested = self._now()
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
        self._is_early |= self._response is not None or _begins_reply(self._http.trailing_data[0])
        if stream.has_ended or (self._response is not None and self._response.status_code >= 300):
            raise Unsendable

    # --- receiving -------------------------------------------------------------------------------

    async def _receive_reply(self) -> h11.Response:
        seconds, most = self._request.reply_timeout, self._request.max_reply_bytes
        until = self._now() + seconds
        while True:
            if self._arrived > most:
                raise ReplyTooLarge(f"the reply is longer than {most:,} bytes (max_reply_bytes)")
            if (response := self._parse()) is not None:
                return response
            if self._now() >= until:
                raise TransferTimeout(f"no complete reply within {seconds:g} s")
            await self._receive(until)

    async def _receive(self, until: float) -> None:
        if self._has_events or self._take_in():
            await anyio.lowlevel.checkpoint()  # a fast peer must not hold the event loop
            return
        is_full = not self._stream.answer()
        left = until - self._now()
        await self._stream.wait(
            min(left, EARLY_ANSWER_SECONDS) if is_full else left, to_write=is_full
        )
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

    _has_events = False
    """Whether h11 may have more events, although nothing else has arrived."""

    def _parse(self) -> h11.Response | None:
        """Take some events of h11; return the head of the reply once all of it has arrived."""
        if self._stream.has_ended and not self._arrived:
            raise ConnectionLost("the peer closed the connection without an answer")
        self._has_events = False
        for _ in range(EVENTS):
            if self._is_complete:
                return self._response
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._check_head()
                return None
            self._handle(event)
        self._has_events = True
        return None

    def _handle(self, event: object) -> None:
        match event:
            case h11.Data(data=data):
                self._content += data
            case h11.Response():
                self._response = event
            case h11.EndOfMessage():
                self._is_complete = True
            case h11.InformationalResponse():
                self._interim += 1
                if self._interim > MAX_INTERIM_REPLIES:
                    raise ConnectionLost(f"more than {MAX_INTERIM_REPLIES} interim replies")
            case _:
                raise ConnectionLost("the peer does not go on with the exchange")

    def _check_head(self) -> None:
        if self._response is None and self._arrived > MAX_HEAD_BYTES:
            text = f"the head of the reply is longer than {MAX_HEAD_BYTES:,} bytes"
            raise ConnectionLost(text)


def _no_http(start: bytes) -> ConnectionLost:
    """Return the error for the first bytes of a peer that speaks something else."""
    is_tls = start[0] in {0x15, 0x16}  # an alert, a handshake (RFC 8446 section 5.1)
    what = "TLS: use https:// in" if is_tls else "no HTTP/1.1: check scheme and port of"
    error = ConnectionLost(f"the port speaks {what} the base URL")
    error.permanent = True
    return error


def _begins_reply(data: bytes) -> bool:
    """Return whether the beginning of a head may be that of a final reply."""
    return bool(data) and data[9:10] != b"1"
