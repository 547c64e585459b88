"""What all calls of a client share: address, signer, transport, and what is known of the server."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

import anyio
import attrs
from attrs.validators import optional

from meeting_async._clock import is_gone
from meeting_async._delivery.evidence import Evidence, StoredFiles
from meeting_async._delivery.observer import check_callback
from meeting_async._delivery.room_locks import LocalRoomLocks, Place, RoomLocks, local_room_locks
from meeting_async._delivery.server import Server
from meeting_async._events import OnEvent
from meeting_async._http.transport import Transport
from meeting_async._models import Body, HeaderPairs, Reply, Request, SignedHeaders
from meeting_async._policies import (
    Delivery,
    LockPolicy,
    RetryPolicy,
    Timeouts,
    delivery_mode,
    instance,
    number,
    parse_size,
)
from meeting_async._protocol import requests
from meeting_async._protocol.replies import ParsedReply, parse_reply
from meeting_async._protocol.signing import Signer
from meeting_async._protocol.verdicts import names_another_room
from meeting_async._text import short_repr
from meeting_async._threads import in_thread
from meeting_async.errors import (
    ConfigurationError,
    ConnectionLost,
    ResourceExhausted,
    TransportError,
)

PARSED_AT_ONCE = 64 * 1024
"""Largest reply in bytes that is parsed on the event loop; others in a thread. A check's is never
larger, so that the document follows at once."""


def _size(value: int | str | None) -> int | None:
    return None if value is None else parse_size(value, field="max_size_whiteboard_file")


def _lock(value: LockPolicy | None) -> LockPolicy:
    return LockPolicy() if value is None else value


def _retry(value: RetryPolicy | None) -> RetryPolicy:
    return RetryPolicy() if value is None else value


def _timeouts(value: Timeouts | None) -> Timeouts:
    return Timeouts() if value is None else value


def _evidence(value: Evidence | None) -> Evidence:
    return StoredFiles() if value is None else value


def _check_evidence(_instance: object, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, Evidence):
        problem, fix = "has no method find()", "give an object such as StoredFiles()"
        raise ConfigurationError(field.name, short_repr(value), problem, fix)


@attrs.frozen(kw_only=True)
class Options:
    """The options that ``MeetingClient.with_options`` can change."""

    max_size_whiteboard_file: int | None = attrs.field(default=None, converter=_size)
    """Largest document in bytes; ``None``: no limit."""
    allow_images: bool = attrs.field(default=False, validator=instance(bool))
    check_link: bool = attrs.field(default=False, validator=instance(bool))
    preflight: bool = attrs.field(default=True, validator=instance(bool))
    delivery: Delivery = attrs.field(default="at_most_once", validator=delivery_mode)
    evidence: Evidence = attrs.field(default=None, converter=_evidence, validator=_check_evidence)
    timeout: float | None = attrs.field(
        default=None, validator=optional(number(float, 0, above=True))
    )
    lock: LockPolicy = attrs.field(default=None, converter=_lock, validator=instance(LockPolicy))
    retry: RetryPolicy = attrs.field(
        default=None, converter=_retry, validator=instance(RetryPolicy)
    )
    timeouts: Timeouts = attrs.field(
        default=None, converter=_timeouts, validator=instance(Timeouts)
    )
    on_event: OnEvent | None = attrs.field(default=None, validator=optional(check_callback))


@attrs.define(eq=False)
class LoopState:
    """What the calls of a client share on one event loop."""

    token: object
    calls: int = 0
    """Number of running calls."""
    lines: LocalRoomLocks = attrs.field(factory=LocalRoomLocks)
    """Uploads in line for the caller's own room locks."""
    server: Server = attrs.field(factory=Server)
    places: anyio.Semaphore = attrs.field(kw_only=True)
    """Limits the attempts at the same time to ``max_connections``."""


@attrs.define(eq=False, kw_only=True)
class Session:
    """State that a client shares with the clients that ``with_options`` makes from it."""

    base: str
    """``{base_url}/auth``."""
    signer: Signer
    transport: Transport
    locks: RoomLocks | None = None
    """The caller's own; ``None``: those of the running event loop."""
    default_headers: HeaderPairs = ()
    max_connections: int = 100
    links: Transport | None = None
    """For ``check_link``: hosts of links get nothing from ``transport``; made when it is needed."""
    traced: Callable[[Request], Awaitable[Reply]] | None = None
    """``transport.send`` with a span around each request, if the client is instrumented."""
    observers: list[OnEvent] = attrs.field(factory=list)
    """Called with every event except ``BytesSent``, in addition to ``on_event``."""
    host: str = attrs.field(init=False)
    """``host:port`` of the server, for events and errors."""
    closed: bool = False
    _loop: LoopState | None = None
    """``None``: the client was not used yet."""
    _guard: threading.Lock = attrs.field(factory=threading.Lock)

    def __attrs_post_init__(self) -> None:
        self.host = requests.host_and_port(self.base)

    # --- lifetime --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def in_use(self, loop: object) -> Generator[None, None, None]:
        """Count a running call on an event loop.

        Raises:
            RuntimeError: The client is closed, or is in use in another event loop now.

        """
        with self._guard:
            use = self._enter(loop)
        try:
            yield
        finally:
            with self._guard:
                use.calls -= 1

    def _enter(self, loop: object) -> LoopState:
        self.check_open()
        use = self._loop
        if use is None or use.token != loop:
            if use is not None and use.calls and not is_gone(use.token):
                raise RuntimeError(
                    "this MeetingClient is in use in another event loop (another thread?): make "
                    "one client for each event loop, or hand all calls to one loop, for example "
                    "with anyio.from_thread.start_blocking_portal()"
                )
            places = anyio.Semaphore(self.max_connections, fast_acquire=True)
            use = self._loop = LoopState(loop, places=places)
        use.calls += 1
        return use

    @property
    def loop_state(self) -> LoopState:
        """What the running calls share on their event loop."""
        assert self._loop is not None  # noqa: S101 - a call is running
        return self._loop

    @property
    def server(self) -> Server:
        """What the running calls know of the server."""
        return self.loop_state.server

    def check_open(self) -> None:
        """Raise ``RuntimeError`` if the client is closed, perhaps while a call was waiting."""
        if self.closed:
            raise RuntimeError("this MeetingClient is closed; make a new one")

    async def aclose(self) -> None:
        """Close the transports, once."""
        if not self.closed:
            self.closed = True
            if self.links is not None:
                await self.links.aclose()
            await self.transport.aclose()

    def __del__(self) -> None:
        if getattr(self, "_loop", None) is not None and not self.closed:
            warnings.warn(
                f"unclosed MeetingClient for {self.base}; close it, or use a `with` block",
                ResourceWarning,
                stacklevel=2,
            )

    # --- requests --------------------------------------------------------------------------------

    async def sign(self, message: bytes) -> SignedHeaders:
        """Return the signed headers for a message; `TypeError` if the signer returns others."""
        signed = self.signer.sign(message)
        if not isinstance(signed, SignedHeaders) and inspect.isawaitable(signed):
            signed = await signed
        if not isinstance(signed, SignedHeaders):
            raise TypeError(f"a signer must return SignedHeaders, not {type(signed).__name__}")
        return signed

    async def json_request(
        self,
        path: str,
        body: bytes,
        timeouts: Timeouts,
        *,
        idempotent: bool,
        max_reply_bytes: int,
        cut_reply: bool = False,
        room: requests.Room | None = None,
    ) -> Request:
        """Make the request of a JSON call, signed."""
        return requests.json_request(
            f"{self.base}/{path}",
            body,
            await self.sign(body),
            self.default_headers,
            timeouts,
            idempotent=idempotent,
            max_reply_bytes=max_reply_bytes,
            cut_reply=cut_reply,
            room=room,
        )

    def upload_request(
        self,
        room: requests.Room,
        form: tuple[bytes, bytes | Body],
        signed: SignedHeaders,
        timeouts: Timeouts,
        peer: object = None,
        *,
        idempotent: bool = False,
    ) -> Request:
        """Make the request of an upload; ``form``: content type and body."""
        return requests.upload_request(
            f"{self.base}/{requests.UPLOAD_WHITEBOARD_FILE}",
            room,
            *form,
            signed,
            self.default_headers,
            timeouts,
            peer=peer,
            idempotent=idempotent,
        )

    async def send(self, request: Request) -> ParsedReply:
        """Send a request and parse its reply; `TransportError` if no complete one arrived."""
        server, most = self.server, request.max_reply_bytes
        try:
            reply = await self.transmit(request)
        except TransportError as error:
            # A server that has replied before may be restarting: no error of it is permanent.
            error.permanent = error.permanent and not server.has_replied
            raise
        server.has_replied = True
        if request.cut_reply and len(reply.content) > most:  # by the caller's own transport
            reply = attrs.evolve(reply, content=reply.content[:most], is_cut=True)
        return await _parsed(partial(parse_reply, reply, request.headers, now=time.time()), reply)

    async def transmit(self, request: Request) -> Reply:
        """Send a request and return its reply as it is."""
        self.check_open()
        return await (self.traced or self.transport.send)(request)

    # --- rooms -----------------------------------------------------------------------------------

    def line_up(self, room_id: str) -> Place:
        """Take the last place in the line of uploads to a room, without waiting."""
        own = local_room_locks() if self.locks is None else self.locks
        if type(own) is not LocalRoomLocks:
            own = self.loop_state.lines
        return own.line_up(self.lock_name(room_id))

    @property
    def callers_locks(self) -> RoomLocks | None:
        """The caller's own locks; ``None`` if :meth:`line_up` does all that they would do."""
        return None if type(self.locks) is LocalRoomLocks else self.locks

    def lock_name(self, room_id: str) -> str:
        """Return the name of a room for :class:`RoomLocks`."""
        return f"{self.base} {room_id}"


async def _parsed(parse: Callable[[], ParsedReply], reply: Reply) -> ParsedReply:
    """Parse a reply; a large one in a thread, if one is left."""
    if len(reply.content) > PARSED_AT_ONCE:
        with contextlib.suppress(ResourceExhausted):
            return await in_thread(parse)
    return parse()


def check_room(answer: ParsedReply, room_id: str, host: str) -> None:
    """Raise ``ConnectionLost`` if an answer to ``getActiveRoomInfo`` is about another room."""
    if names_another_room(answer, room_id):
        raise ConnectionLost("the answer is about another room", host)


call_numbers = itertools.count(1)
"""Numbers of calls within this process."""
