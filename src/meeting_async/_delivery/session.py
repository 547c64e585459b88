"""State that all calls of a client share: address, signer, transport, retry budget, rooms."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import threading
import time
import warnings
from collections.abc import Generator
from functools import partial

import anyio
import anyio.lowlevel
import attrs
from attrs.validators import optional

from meeting_async._delivery.observer import check_callback
from meeting_async._delivery.retry import ProbeReliability, RetryBudget
from meeting_async._delivery.room_locks import RoomLocks, local_room_locks
from meeting_async._documents.threads import in_thread
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
from meeting_async._protocol.replies import LARGE_REPLY_BYTES, ParsedReply, parse_reply
from meeting_async._protocol.requests import host_and_port
from meeting_async._protocol.signing import Signer

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
    probe_reliability: ProbeReliability = attrs.field(factory=ProbeReliability, init=False)
    host: str = attrs.field(init=False)
    closed: bool = attrs.field(default=False, init=False)
    _was_used: bool = attrs.field(default=False, init=False)
    _verified: dict[str, float] = attrs.field(factory=dict, init=False)
    """Until when a room counts as active."""
    _doubts: dict[str, float] = attrs.field(factory=dict, init=False)
    """When the last upload of unknown outcome to a room ended."""
    _loop: object = attrs.field(default=None, init=False)
    _calls: int = attrs.field(default=0, init=False)
    """Number of running calls."""
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
            self._enter(loop)
        try:
            yield
        finally:
            with self._guard:
                self._calls -= 1

    def _enter(self, loop: object) -> None:
        self.check_open()
        if self._calls and loop != self._loop:
            raise RuntimeError(
                "this MeetingClient is in use in another event loop (another thread?): make one "
                "client for each event loop, or hand all calls to one loop, for example with "
                "anyio.from_thread.start_blocking_portal()"
            )
        if loop != self._loop:
            self._loop = loop
            self._verified.clear()  # their times are of another clock
            self._doubts.clear()
        self._calls += 1
        self._was_used = True

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
        """Send a request and parse its reply; a large reply is parsed in a thread."""
        self.check_open()
        reply: Reply = await self.transport.send(request)
        read = partial(parse_reply, reply, now=time.time())
        return await in_thread(read) if len(reply.content) > LARGE_REPLY_BYTES else read()

    # --- rooms -----------------------------------------------------------------------------------

    def room_locks(self) -> RoomLocks:
        """Return the room locks for uploads of this client."""
        return self.locks or local_room_locks()

    def is_verified(self, room_id: str) -> bool:
        """Return whether a check within the last 30 s said that the room is active."""
        return self._verified.get(room_id, -1.0) > anyio.current_time()

    def verify(self, room_id: str, now: float) -> None:
        """Record that a room is active."""
        _remember(self._verified, room_id, now + VERIFIED_SECONDS)

    def forget(self, room_id: str) -> None:
        """Check a room again before the next large document."""
        self._verified.pop(room_id, None)

    def put_in_doubt(self, room_id: str, since: float) -> None:
        """Record an unknown outcome, so that the next upload asks whether the room is free."""
        _remember(self._doubts, room_id, since)

    def settle_doubt(self, room_id: str) -> None:
        """Record that the room has answered since."""
        self._doubts.pop(room_id, None)

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
