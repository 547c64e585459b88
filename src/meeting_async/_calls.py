"""From settings and arguments to a call on its way: what the client and its batches both do."""

from __future__ import annotations

import contextlib
import random
import re
import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import attrs

from meeting_async import _wire, errors
from meeting_async._attempts import Attempt
from meeting_async._budget import RetryBudget
from meeting_async._delivery import Companion, Delivery
from meeting_async._documents import Document, HeldDocument
from meeting_async._limits import shown
from meeting_async._observer import Observer, logger
from meeting_async._operations import JsonOperation, Operation, UploadOperation
from meeting_async._outage import Outage
from meeting_async._policies import LockPolicy, Options
from meeting_async._records import ActiveRoom, Reply, Request, UploadReceipt
from meeting_async._rooms import Door, RoomGate, common_turnstile, room_name
from meeting_async._signing import Signer
from meeting_async._sources import Measure
from meeting_async._transport import Transport
from meeting_async._verdicts import Repeatability
from meeting_async._wire import Answer


@attrs.define(eq=False)
class Shared:
    """What a client and those made of it by ``with_options`` have in common."""

    base: str
    signer: Signer
    transport: Transport
    gate: RoomGate | None = None
    budget: RetryBudget = attrs.field(factory=RetryBudget)
    outage: Outage = attrs.field(factory=Outage)
    used: bool = False
    closed: bool = False

    def check_open(self) -> None:
        """Refuse to work once closed, be it in the middle of a call that waits for its room."""
        if self.closed:
            raise RuntimeError("this MeetingClient is closed; make a new one")
        self.used = True

    async def send(self, request: Request, /) -> Reply:
        """Send through the transport, as long as the client is open."""
        self.check_open()
        return await self.transport.send(request)

    def door(self, room_id: str) -> Door:
        """Return the way into a room."""
        return Door(self.gate or common_turnstile(), room_name(self.base, room_id))

    async def aclose(self) -> None:
        """Close the transport, once."""
        if not self.closed:
            self.closed = True
            await self.transport.aclose()

    def __del__(self) -> None:
        if self.used and not self.closed:
            warnings.warn(
                f"unclosed MeetingClient for {self.base}; use `async with` or call aclose()",
                ResourceWarning,
                stacklevel=2,
            )


@attrs.frozen(eq=False)
class Calls:
    """Makes calls with certain options."""

    shared: Shared
    options: Options

    async def ask(
        self,
        path: str,
        payload: Mapping[str, Any],
        repeatability: Repeatability,
        deadline: float | None = None,
    ) -> Answer:
        """Make a JSON call and return the answer that accepts it."""
        operation = self._json(path, payload, repeatability)
        return await self.delivery(operation, checked_seconds(deadline)).run()

    async def active_room(self, room_id: str, deadline: float | None = None) -> ActiveRoom:
        """Ask for a room that is active (interface section 4.1)."""
        _wire.room_id_bytes(room_id)
        payload = {"room_id": room_id}
        answer = await self.ask(_wire.ACTIVE_ROOM_INFO, payload, Repeatability.IDEMPOTENT, deadline)
        return ActiveRoom.from_reply(room_id, answer.payload or {})

    def upload(
        self,
        room_id: str,
        document: Document,
        *,
        max_wait: float | None,
        deadline: float | None,
        companion: Companion | None = None,
    ) -> Upload:
        """Prepare an upload; what is wrong with the arguments is found out here."""
        room = _wire.room_id_bytes(room_id)
        _note_unusual(room_id)
        lock = self.options.lock
        return Upload(
            calls=self,
            room_id=room_id,
            room=room,
            document=document,
            lock=lock if max_wait is None else attrs.evolve(lock, max_wait=max_wait),
            deadline=checked_seconds(deadline),
            companion=companion,
        )

    def _json(
        self, path: str, payload: Mapping[str, Any], repeatability: Repeatability
    ) -> JsonOperation:
        body = _wire.json_bytes(payload)
        room_id = payload.get("room_id")
        return JsonOperation(
            path=path,
            url=f"{self.shared.base}/{path}",
            body=body,
            room_id=room_id if isinstance(room_id, str) else None,
            repeatability=repeatability,
            signer=self.shared.signer,
            timeouts=self.options.timeouts,
        )

    def delivery(
        self,
        operation: Operation,
        deadline: float | None,
        *,
        door: Door | None = None,
        lock: LockPolicy | None = None,
        began: float | None = None,
        companion: Companion | None = None,
    ) -> Delivery:
        """Put a call on its way."""
        self.shared.check_open()
        return Delivery(
            operation=operation,
            transport=self.shared,
            door=door,
            retry=self.options.retry,
            lock=lock or self.options.lock,
            observer=Observer(self.options.on_event),
            random=random.random,
            deadline=deadline,
            budget=self.shared.budget,
            outage=self.shared.outage,
            began=anyio.current_time() if began is None else began,
            companion=companion,
        )


@attrs.define(kw_only=True, eq=False)
class Upload:
    """One document for one room. Await :meth:`run` once; then see what is known."""

    calls: Calls
    room_id: str
    room: bytes = attrs.field(repr=False)
    document: Document
    lock: LockPolicy
    deadline: float | None
    companion: Companion | None
    when_measured: Callable[[int], Awaitable[None]] | None = None
    """Called with the size before anything is sent; what it raises ends the upload."""

    size: int | None = attrs.field(default=None, init=False)
    """Bytes of the document once it was measured; ``None`` for a link."""
    measure: Measure | None = attrs.field(default=None, init=False)
    """What it was then."""
    began: float = attrs.field(default=0.0, init=False)
    """When it was run, on the event loop's clock."""
    receipt: UploadReceipt | None = attrs.field(default=None, init=False)
    """There as soon as the server has accepted it, whatever goes wrong with tidying up."""
    _delivery: Delivery | None = attrs.field(default=None, init=False)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """What was tried so far."""
        return tuple(self._delivery.ledger.attempts) if self._delivery else ()

    @property
    def loss(self) -> errors.UploadOutcomeUnknown | None:
        """What to say of an upload that was cut off, if the document may have arrived."""
        return self._delivery.ledger.cut_off() if self._delivery else None

    async def run(self) -> UploadReceipt:
        """Deliver the document, or raise why that was not possible."""
        self.began = anyio.current_time()
        async with contextlib.AsyncExitStack() as stack:
            held = await self._held(stack)
            self.measure = held.measure
            if self.document.link is None:
                self.size = held.measure.size
            if self.when_measured is not None:
                await self.when_measured(held.measure.size)
            self._delivery = delivery = self._on_its_way(held)
            self.receipt = receipt = self._receipt(await delivery.run(), delivery)
        return receipt

    def _receipt(self, answer: Answer, delivery: Delivery) -> UploadReceipt:
        return UploadReceipt(
            room_id=self.room_id,
            document=self.document.filename,
            size=self.size,
            msg=answer.msg,
            status_code=answer.status_code or "",
            seconds=delivery.elapsed,
            attempts=self.attempts,
            raw=answer.payload or {},
        )

    async def _held(self, stack: contextlib.AsyncExitStack) -> HeldDocument:
        """Get the document ready, which takes as long as a stream takes to arrive."""
        options = self.calls.options
        held = self.document.held(
            max_size=options.max_size_whiteboard_file, allow_images=options.allow_images
        )
        with anyio.move_on_after(self.deadline):
            return await stack.enter_async_context(held)
        raise errors.DeadlineExceeded(
            _wire.UPLOAD_WHITEBOARD_FILE, self.deadline or 0.0, "reading the document"
        )

    def _on_its_way(self, held: HeldDocument) -> Delivery:
        shared, options = self.calls.shared, self.calls.options
        operation = UploadOperation(
            path=_wire.UPLOAD_WHITEBOARD_FILE,
            url=f"{shared.base}/{_wire.UPLOAD_WHITEBOARD_FILE}",
            room_id=self.room_id,
            room=self.room,
            held=held,
            repeatability=Repeatability(options.delivery),
            signer=shared.signer,
            timeouts=options.timeouts,
            before_end=self.companion.before_end if self.companion else None,
        )
        return self.calls.delivery(
            operation,
            self.deadline,
            door=shared.door(self.room_id),
            lock=self.lock,
            began=self.began,
            companion=self.companion,
        )


def checked_seconds(value: float | None, field: str = "deadline") -> float | None:
    """Refuse what is no positive number of seconds; ``None`` is no limit."""
    if value is None:
        return None
    if type(value) not in {int, float} or not value > 0:
        raise errors.InvalidInput(
            field, shown(value), "is not a positive number of seconds", "give seconds, or None"
        )
    return value


def _note_unusual(room_id: str) -> None:
    """Known servers use room ids as message subjects; others are legal on the wire."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", room_id):
        logger.warning(
            "room id %r has characters other than letters, digits, - and _, "
            "which known servers do not support",
            room_id,
            extra={"action": "UnusualRoom"},
        )
