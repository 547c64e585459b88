"""State that all calls of a client share: address, signer, transport, retry budget, rooms."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Generator

import anyio
import anyio.lowlevel
import attrs
from attrs.validators import optional

from meeting_async._clock import is_gone
from meeting_async._delivery.observer import check_callback
from meeting_async._delivery.retry import Outage, RetryBudget
from meeting_async._delivery.room_locks import LocalRoomLocks, Place, RoomLocks, local_room_locks
from meeting_async._delivery.room_wait import ProbeReliability
from meeting_async._events import OnEvent
from meeting_async._http.transport import Transport
from meeting_async._models import HeaderPairs, Reply, Request, SignedHeaders
from meeting_async._policies import (
    Delivery,
    LockPolicy,
    RetryPolicy,
    Timeouts,
    delivery_mode,
    instance,
)
from meeting_async._protocol.replies import ParsedReply, parse_reply
from meeting_async._protocol.requests import host_and_port
from meeting_async._protocol.signing import Signer
from meeting_async.errors import TransportError

VERIFIED_SECONDS = 30.0
"""Seconds for which a room counts as active after a check: few sessions end that soon."""

MAX_REMEMBERED_ROOMS = 10_000


@attrs.frozen(kw_only=True)
class Options:
    """The options that ``MeetingClient.with_options`` can change."""

    max_size_whiteboard_file: int | None = None
    allow_images: bool = attrs.field(default=False, validator=instance(bool))
    check_link: bool = attrs.field(default=False, validator=instance(bool))
    preflight: bool = attrs.field(default=True, validator=instance(bool))
    delivery: Delivery = attrs.field(default="at_most_once", validator=delivery_mode)
    lock: LockPolicy = attrs.field(factory=LockPolicy, validator=instance(LockPolicy))
    retry: RetryPolicy = attrs.field(factory=RetryPolicy, validator=instance(RetryPolicy))
    timeouts: Timeouts = attrs.field(factory=Timeouts, validator=instance(Timeouts))
    on_event: OnEvent | None = attrs.field(default=None, validator=optional(check_callback))


@attrs.define(eq=False)
class _LoopUse:
    """The event loop that a client is used in."""

    token: anyio.lowlevel.EventLoopToken
    calls: int = 0
    """Number of running calls."""
    line: LocalRoomLocks = attrs.field(factory=LocalRoomLocks)
    """The order of uploads to a room that have locks of the caller's."""


@attrs.define(eq=False, kw_only=True)
class Session:
    """State that a client shares with those made from it by ``with_options``."""

    base: str
    """``{base_url}/auth``."""
    signer: Signer
    transport: Transport
    locks: RoomLocks | None = None
    """``None``: the locks of the running event loop."""
    default_headers: HeaderPairs = ()
    observers: list[OnEvent] = attrs.field(factory=list, init=False)
    """Called with every event except BytesSent, whatever ``on_event`` a call has."""
    budget: RetryBudget = attrs.field(factory=RetryBudget, init=False)
    outage: Outage = attrs.field(factory=Outage, init=False)
    probe_reliability: ProbeReliability = attrs.field(factory=ProbeReliability, init=False)
    host: str = attrs.field(init=False)
    closed: bool = attrs.field(default=False, init=False)
    _was_used: bool = attrs.field(default=False, init=False)
    _was_reached: bool = attrs.field(default=False, init=False)
    """Whether anything has answered at the base URL."""
    _verified: dict[str, float] = attrs.field(factory=dict, init=False)
    """Until when a room counts as active."""
    _doubts: dict[str, float] = attrs.field(factory=dict, init=False)
    """When the last upload of unknown outcome to a room ended."""
    _locked: dict[str, float] = attrs.field(factory=dict, init=False)
    """Until when a room may be locked that an upload has given up."""
    _loop: _LoopUse | None = attrs.field(default=None, init=False)
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        self.host = host_and_port(self.base)

    # --- lifetime --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def in_use(self, loop: anyio.lowlevel.EventLoopToken) -> Generator[None, None, None]:
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

    def _enter(self, loop: anyio.lowlevel.EventLoopToken) -> _LoopUse:
        self.check_open()
        use = self._loop
        if use is None or use.token != loop:
            if use is not None and use.calls and not is_gone(use.token):
                raise RuntimeError(
                    "this MeetingClient is in use in another event loop (another thread?): make "
                    "one client for each event loop, or hand all calls to one loop, for example "
                    "with anyio.from_thread.start_blocking_portal()"
                )
            use = self._loop = _LoopUse(loop)
            self._verified.clear()  # their times are of another clock
            self._doubts.clear()
            self._locked.clear()
            self.outage.ended()
        use.calls += 1
        self._was_used = True
        return use

    def check_open(self) -> None:
        """Raise if the client is closed, also during a call that waits for its room."""
        if self.closed:
            raise RuntimeError("this MeetingClient is closed; make a new one")

    async def aclose(self) -> None:
        """Close the transport, once."""
        if not self.closed:
            self.closed = True
            await self.transport.aclose()

    def __del__(self) -> None:
        if getattr(self, "_was_used", False) and not self.closed:
            warnings.warn(
                f"unclosed MeetingClient for {self.base}; use `async with` or call aclose()",
                ResourceWarning,
                stacklevel=2,
            )

    # --- requests --------------------------------------------------------------------------------

    async def sign(self, message: bytes) -> SignedHeaders:
        """Get the signed headers of one attempt."""
        signed = self.signer.sign(message)
        if not isinstance(signed, SignedHeaders) and inspect.isawaitable(signed):
            signed = await signed
        if not isinstance(signed, SignedHeaders):
            raise TypeError(f"a signer must return SignedHeaders, not {type(signed).__name__}")
        return signed

    async def send(self, request: Request) -> ParsedReply:
        """Send a request and parse its reply."""
        self.check_open()
        try:
            reply: Reply = await self.transport.send(request)
        except TransportError as error:
            # What has worked may be restarting: then names and certificates are wrong, too.
            error.permanent = error.permanent and not self._was_reached
            raise
        self._was_reached = self._was_reached or request.url.startswith(self.base)
        return parse_reply(reply, request.headers, now=time.time())

    async def ask(self, request: Request, is_refusal: Callable[[ParsedReply], bool]) -> ParsedReply:
        """Send a request that may be repeated.

        A refusal on a reused connection may be an answer that nobody asked for: a server that
        answers twice. So it is asked for once more, on a new connection.
        """
        answer = await self.send(request)
        if answer.reused and is_refusal(answer):
            answer = await self.send(attrs.evolve(request, idempotent=False))
        return answer

    # --- rooms -----------------------------------------------------------------------------------

    def line_up(self, room_id: str) -> Place:
        """Take the next place in the line of uploads to a room; nothing is awaited."""
        own = local_room_locks() if self.locks is None else self.locks
        if type(own) is not LocalRoomLocks:
            assert self._loop is not None  # noqa: S101 - a call is running
            own = self._loop.line
        return own.line_up(self.lock_name(room_id))

    @property
    def callers_locks(self) -> RoomLocks | None:
        """The caller's locks, if they are more than the line of this process."""
        return None if type(self.locks) is LocalRoomLocks else self.locks

    def lock_name(self, room_id: str) -> str:
        """Return the room's name for room locks."""
        return f"{self.base} {room_id}"

    def is_verified(self, room_id: str) -> bool:
        """Return whether a check within the last 30 s said that the room is active."""
        return self._verified.get(room_id, -1.0) > anyio.current_time()

    def verify(self, room_id: str, now: float) -> None:
        """Record that a room is active."""
        _remember(self._verified, room_id, now + VERIFIED_SECONDS)

    def forget(self, room_id: str) -> None:
        """Check a room again before the next upload to it."""
        self._verified.pop(room_id, None)

    def forget_all(self) -> None:
        """Check every room again: the server may have been restarted.

        After that the first contact through the header ``Room-Id`` alone can confuse the rooms of a
        known server.
        """
        self._verified.clear()

    def seen_locked(self, room_id: str, until: float) -> None:
        """Record that an upload gave up because the room was locked."""
        _remember(self._locked, room_id, until)

    def is_locked(self, room_id: str) -> bool:
        """Return whether the room may still be locked since then."""
        return self._locked.get(room_id, -1.0) > anyio.current_time()

    def put_in_doubt(self, room_id: str, since: float) -> None:
        """Record an unknown outcome, so that the next upload asks whether the room is free."""
        _remember(self._doubts, room_id, since)

    def settle_doubt(self, room_id: str) -> None:
        """Record that the room has answered since."""
        self._doubts.pop(room_id, None)
        self._locked.pop(room_id, None)

    def doubt_since(self, room_id: str, window: float) -> float | None:
        """Return when the room got in doubt; ``None`` if its lock must have ended since."""
        since = self._doubts.get(room_id)
        return None if since is None or anyio.current_time() >= since + window else since


def _remember(known: dict[str, float], room_id: str, value: float) -> None:
    known.pop(room_id, None)
    known[room_id] = value
    if len(known) > MAX_REMEMBERED_ROOMS:
        del known[next(iter(known))]


call_numbers = itertools.count(1)
"""Numbers of calls within this process."""
