"""A transport that plays a script: what the network and the server do, request by request.

Each request gets the next :class:`Act` of the script: how much of its body is taken, how long
everything takes on the event loop's clock, and whether a reply, an exception or silence follows.
What was asked is kept as an :class:`Exchange`::

    transport = FakeTransport(busy(), failing(ConnectionLost("reset"), take=Take.HEAD), accepted())
    ...
    assert [exchange.complete for exchange in transport.exchanges] == [True, False, True]

:class:`EventRecorder` is the observer to go with it.
"""

from __future__ import annotations

import enum
import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import anyio
import attrs

from meeting_async import Event, Reply, Request

E = TypeVar("E", bound=Event)


class Take(enum.Enum):
    """How much of a body is taken before the result."""

    NOTHING = "nothing"
    """Not a byte, as when no connection can be made."""
    HEAD = "head"
    """The form's first chunk: everything before the document."""
    DOCUMENT = "document"
    """All but the closing boundary, which is not even asked for."""
    EVERYTHING = "everything"
    """The body and its end."""


@attrs.define(eq=False)
class Exchange:
    """A request as the transport saw it, and what became of it."""

    request: Request
    began: float
    """Time of the event loop."""
    ended: float | None = None
    """Time of the event loop; ``None`` while the exchange goes on."""
    sent: bytearray = attrs.field(factory=bytearray)
    """The bytes of the body that were taken."""
    complete: bool = False
    """Whether the body was taken to its end."""

    @property
    def headers(self) -> dict[str, str]:
        """The request's headers by their lower-case names."""
        pairs = self.request.headers
        return {name.decode().lower(): value.decode() for name, value in pairs}

    @property
    def boundary(self) -> str:
        """What separates the parts of the form; empty for a JSON call."""
        return self.headers["content-type"].partition("boundary=")[2]

    @property
    def closing(self) -> bytes:
        """The form's end (RFC 2046 section 5.1.1)."""
        return f"\r\n--{self.boundary}--\r\n".encode("ascii")

    @property
    def document(self) -> bytes:
        """The content of the form's one part, as far as it was taken."""
        _, _, rest = bytes(self.sent).partition(b"\r\n\r\n")
        return rest.removesuffix(self.closing)


@attrs.frozen(kw_only=True)
class Act:
    """What happens to one request."""

    result: Reply | BaseException | None = None
    """Returned, raised, or ``None``: nothing follows until somebody cancels."""
    take: Take | int = Take.EVERYTHING
    """How much of the body is taken first; a number is bytes, rounded up to whole chunks."""
    connecting: float = 0.0
    """Seconds before the first byte is taken."""
    sending: float = 0.0
    """Seconds for a whole body, spread evenly over its bytes."""
    replying: float = 0.0
    """Seconds from the last byte taken to the result."""

    async def play(self, exchange: Exchange) -> Reply:
        """Do all that to a request."""
        await anyio.sleep(self.connecting)
        await self._consume(exchange)
        await anyio.sleep(self.replying)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result or await _silence()

    async def _consume(self, exchange: Exchange) -> None:
        body, limit = exchange.request.body, self._limit(exchange)
        if limit == 0:
            return
        if isinstance(body, bytes):
            exchange.sent += body[:limit]
            exchange.complete = limit is None
            return
        async for chunk in body:
            exchange.sent += chunk
            await anyio.sleep(self.sending * len(chunk) / body.length)
            if limit is not None and len(exchange.sent) >= limit:
                return
        exchange.complete = True

    def _limit(self, exchange: Exchange) -> int | None:
        body = exchange.request.body
        if self.take is Take.DOCUMENT and not isinstance(body, bytes):
            return body.length - len(exchange.closing)
        if self.take in {Take.EVERYTHING, Take.DOCUMENT}:
            return None
        if isinstance(self.take, int):
            return self.take
        return 1 if self.take is Take.HEAD else 0


async def _silence() -> Reply:
    await anyio.sleep_forever()
    raise AssertionError("unreachable")


class FakeTransport:
    """A :class:`~meeting_async.Transport` that plays a script and counts what is asked of it.

    After the script comes ``then``, called with each further request; without it one request too
    many is an ``AssertionError``.
    """

    def __init__(self, *script: Act, then: Callable[[Request], Act] | None = None) -> None:
        self.exchanges: list[Exchange] = []
        """Every request in the order of arrival."""
        self.collisions: list[str] = []
        """Rooms that were sent an upload while another one to them was going on."""
        self.closed = 0
        """How often :meth:`aclose` was called."""
        self._script = deque(script)
        self._then = then
        self._uploading: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<FakeTransport, {len(self.exchanges)} requests, {len(self._script)} acts left>"

    @property
    def running(self) -> int:
        """How many requests are going on."""
        return sum(exchange.ended is None for exchange in self.exchanges)

    async def send(self, request: Request, /) -> Reply:
        """Play the next act."""
        exchange = Exchange(request, anyio.current_time())
        self.exchanges.append(exchange)
        room = exchange.headers.get("room-id", "")
        if room and self._uploading[room]:
            self.collisions.append(room)
        self._uploading[room] += 1
        try:
            return await self._next(request).play(exchange)
        finally:
            self._uploading[room] -= 1
            exchange.ended = anyio.current_time()

    async def aclose(self) -> None:
        """Count."""
        self.closed += 1

    def _next(self, request: Request) -> Act:
        if self._script:
            return self._script.popleft()
        if self._then is None:
            raise AssertionError(f"request {len(self.exchanges)} is not in the script")
        return self._then(request)


def reply(status: int, content: object = b"", *, retry_after: str | None = None, **how: Any) -> Act:
    """Reply with bytes, or with an object as JSON; ``how`` is the rest of the :class:`Act`."""
    is_text = isinstance(content, bytes)
    headers = [(b"Content-Type", b"text/html" if is_text else b"application/json")]
    if retry_after is not None:
        headers.append((b"Retry-After", retry_after.encode("latin-1")))
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Act(result=Reply(status, tuple(headers), data), **how)


def record(status_code: str, msg: str = "as the script says", **fields: Any) -> Mapping[str, Any]:
    """Make the server's own record (interface section 2); success only for ``SUCCESS``."""
    return {"status": status_code == "SUCCESS", "msg": msg, "status_code": status_code, **fields}


def accepted(**how: Any) -> Act:
    """Reply as a server that takes the document, or answers the call."""
    return reply(200, record("SUCCESS"), **how)


def busy(**how: Any) -> Act:
    """Reply that another upload holds the room."""
    return reply(409, record("CONFLICT"), **how)


def failing(error: BaseException, **how: Any) -> Act:
    """Raise ``error``."""
    return Act(result=error, **how)


def hanging(**how: Any) -> Act:
    """Fall silent until somebody cancels."""
    return Act(result=None, **how)


@attrs.define(eq=False)
class EventRecorder:
    """An observer that keeps every event and, for each, the event loop's time."""

    events: list[Event] = attrs.field(factory=list)
    times: list[float] = attrs.field(factory=list)
    _news: anyio.Event | None = attrs.field(default=None, init=False)

    def __call__(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)
        self.times.append(anyio.current_time())
        if self._news is not None:
            self._news.set()

    @property
    def kinds(self) -> list[str]:
        """Names of the events' classes in order."""
        return [type(event).__name__ for event in self.events]

    def of(self, kind: type[E]) -> list[E]:
        """All events of one class."""
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, kind: type[E]) -> E:
        """Wait until an event of ``kind`` was told, and return the first one."""
        while not self.of(kind):
            self._news = anyio.Event()
            await self._news.wait()
        return self.of(kind)[0]
