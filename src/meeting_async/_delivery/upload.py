"""One upload: check the room, ask whether it is free, send, wait, until it is accepted or fails.

While it waits, an upload holds no connection, no open file and no permit of a batch; a spooled
stream keeps its spool.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing

import anyio
import attrs

from meeting_async import _events
from meeting_async._delivery.call import Call, retry_loop, running
from meeting_async._delivery.json_call import json_request
from meeting_async._delivery.link_check import check_target
from meeting_async._delivery.retry import AttemptResult, RetrySafety, RetryState, Stop, Wait
from meeting_async._delivery.room_locks import Place
from meeting_async._delivery.room_wait import RoomWait
from meeting_async._documents.detect import Uploadable
from meeting_async._documents.document import Document, as_document
from meeting_async._documents.prepared import MultipartBody, Prepared, prepare
from meeting_async._log import logger
from meeting_async._models import Body, Request, UploadReceipt, Verdict
from meeting_async._protocol import requests
from meeting_async._protocol.multipart import empty_form
from meeting_async._protocol.replies import ParsedReply, reply_error
from meeting_async._protocol.verdicts import (
    Answer,
    Sent,
    answer_to_check,
    answer_to_probe,
    classify,
)
from meeting_async.errors import (
    ConnectFailed,
    MeetingError,
    ReplyTooLarge,
    RoomBusy,
    TransportError,
)

RELEASE_SECONDS = 2.0
"""Longest time in seconds that the end of an upload waits until the caller's room lock is
released. The document has its outcome by then."""


class UploadHooks:
    """What a batch does around the attempts of an upload. If a hook raises, the upload ends."""

    def begin(self, state: RetryState) -> None:
        """Called before the first attempt, with the state of a new upload."""

    async def before_queue(self) -> None:
        """Called before the upload waits behind another one of this application."""

    async def before_attempt(self) -> None:
        """Called before an attempt: acquire a permit."""

    def server_verified(self) -> None:
        """Called when the server has proved that it is a meeting server and accepts the key."""

    async def before_closing_boundary(self, prepared: Prepared) -> None:
        """Called after the document's last byte, before the closing boundary."""

    async def before_wait(self, wait: Wait, *, may_have_arrived: bool) -> None:
        """Called before the upload waits, for its room or its next attempt: release the permit."""


async def upload_document(
    call: Call,
    room_id: str,
    document: Document | Uploadable,
    *,
    filename: str | None = None,
    content_type: str | None = None,
    max_wait: float | None = None,
    timeout: float | None = None,
    hooks: UploadHooks | None = None,
) -> UploadReceipt:
    """Upload a document to a room."""
    options = call.options
    async with running(call, timeout):
        room = requests.room_id_bytes(room_id)
        _warn_of_unusual(room_id)
        made = as_document(document, filename=filename, content_type=content_type)
        call.document = made.filename
        state = call.retry_state = _new_state(call, max_wait)
        # Before the document is prepared, which takes different times: first come, first served.
        with call.session.line_up(room_id) as place:
            call.phase = "reading the document"
            async with prepare(
                made, max_size=options.max_size_whiteboard_file, allow_images=options.allow_images
            ) as prepared:
                call.size = state.room.size = prepared.size
                if options.check_link and made.link is not None:
                    call.phase = "checking the link"
                    await check_target(call.session, made.link, options)
                upload = _Upload(call, room, prepared, state, hooks or UploadHooks())
                await upload.run(place)
    return receipt_of(call)


def _new_state(call: Call, max_wait: float | None) -> RetryState:
    options, session = call.options, call.session
    lock = options.lock if max_wait is None else attrs.evolve(options.lock, max_wait=max_wait)
    return RetryState(
        retry_safety=RetrySafety(options.delivery),
        retry=options.retry,
        budget=session.budget,
        outage=session.outage,
        room=RoomWait(policy=lock, reliability=session.probe_reliability),
        began=call.began,
        ends_at=call.ends_at,
    )


def receipt_of(call: Call) -> UploadReceipt:
    """Return the receipt of an upload that was accepted."""
    answer = call.log.answer
    assert answer is not None  # noqa: S101 - else there was an exception
    return UploadReceipt(
        room_id=call.room_id,
        document=call.document or "",
        size=call.size,
        msg=answer.msg,
        status_code=answer.status_code or "",
        seconds=call.now() - call.began,
        attempts=tuple(call.log.attempts),
        headers=answer.headers,
        raw=answer.payload or {},
    )


_warned: set[str] = set()


def _warn_of_unusual(room_id: str) -> None:
    """Warn once about a room id that known servers refuse; the interface allows it."""
    if requests.PLAIN_ROOM_ID.fullmatch(room_id) or room_id in _warned or len(_warned) > 1000:
        return
    _warned.add(room_id)
    logger.warning(
        "room id %r has characters other than letters, digits, - and _: known servers refuse it",
        room_id,
        extra={"action": "UnusualRoom", "room_id": room_id},
    )


@attrs.define(eq=False)
class _Upload:
    """A running upload."""

    call: Call
    room: bytes
    """The room's id, as it is signed and sent."""
    prepared: Prepared
    state: RetryState
    hooks: UploadHooks
    _absent: ParsedReply | None = None
    """The answer of a check that denied the room, until a probe has decided."""

    async def run(self, place: Place) -> None:
        """Wait for the room's turn, then attempt until the document is accepted."""
        session, room, room_id = self.call.session, self.state.room, self.call.room_id
        async with self._room_lock(place):
            room.set_doubt(session.doubt_since(room_id, room.policy.window))
            if session.is_locked(room_id):
                room.ask_first()
            self.hooks.begin(self.state)
            await retry_loop(self._attempt)

    # --- the room's lock in this application -----------------------------------------------------

    @asynccontextmanager
    async def _room_lock(self, place: Place) -> AsyncGenerator[None, None]:
        """Hold the room: first in line among the uploads from here, then the caller's own lock."""
        if not place.is_first:
            await self._queue(place.reach)
        held = await self._own_lock()
        error: BaseException | None = None
        try:
            yield
        except BaseException as failure:
            error = failure
            self.call.leave_doubt()  # before the next upload begins
            raise
        finally:
            try:
                if held is not None:
                    await _released(held, error)
            finally:
                place.leave()

    async def _own_lock(self) -> AsyncExitStack | None:
        """Acquire the room's lock among the caller's own locks, if there are any."""
        session = self.call.session
        name, locks = session.lock_name(self.call.room_id), session.callers_locks
        if locks is None:
            return None
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(locks.acquire(name, timeout=0))
            except TimeoutError:
                await self._queue(
                    lambda limit: held.enter_async_context(locks.acquire(name, timeout=limit))
                )
            return held.pop_all()

    async def _queue(self, enter: Callable[[float | None], Awaitable[object]]) -> None:
        """Wait until the room is free from other uploads of this application."""
        call, room = self.call, self.state.room
        if room.queue_limit() == 0:
            raise self._taken(call.now())
        await self.hooks.before_queue()
        call.phase = "waiting behind another upload of this application"
        call.emit(_events.Queued)
        began, limit = call.now(), room.queue_limit()
        try:
            await enter(limit)
        except TimeoutError:
            raise self._taken(began) from None
        finally:
            room.queued += call.now() - began

    def _taken(self, since: float) -> MeetingError:
        """Return the error for a room that is taken: what the other upload waits for, if known."""
        waited = self.call.now() - since
        busy = RoomBusy(waited, "another upload of this application", None)
        return self.call.session.outage.another_error() or busy

    # --- one attempt -----------------------------------------------------------------------------

    async def _attempt(self) -> ParsedReply | Wait:
        asked = self.call.now()
        await self.hooks.before_attempt()
        self.state.room.paused(self.call.now() - asked)
        outcome = await self._attempt_once()
        if isinstance(outcome, Wait):
            may_have_arrived = self.call.log.unknown_since is not None
            await self.hooks.before_wait(outcome, may_have_arrived=may_have_arrived)
        return outcome

    async def _attempt_once(self) -> ParsedReply | Wait:
        found = await self._check_room() or await self._probe_room()
        if isinstance(found, Wait):
            return found
        result = found or await self._send()
        self.call.record(result, is_upload=True)
        return self.call.apply_decision(self.state, result)

    async def _check_room(self) -> AttemptResult | None:
        """Check the room, unless that was done in the last 30 s; ``None``: go on.

        A refusal ends the upload. No answer of the server itself ends the attempt.
        """
        call, session = self.call, self.call.session
        if call.options.preflight and not session.is_verified(call.room_id):
            call.phase, began = "checking the room", call.now()
            body = requests.active_room_body(call.room_id)
            answer, error = await self._ask(
                await json_request(call, requests.ACTIVE_ROOM_INFO, body, idempotent=True),
                answer_to_check,
            )
            said = answer_to_check(answer)
            if isinstance(error, ReplyTooLarge):
                raise error
            if answer is None or said in {Answer.LATER, Answer.NOTHING}:
                return self._no_answer(began, said, answer, error)
            if said is Answer.REFUSED:
                raise reply_error(Verdict.REFUSED, answer, upload=False)
            if said is Answer.ABSENT:
                self._absent = answer
            else:
                session.verify(call.room_id, call.now())
        self.hooks.server_verified()
        return None

    async def _probe_room(self) -> AttemptResult | Wait | None:
        """Ask with an empty form whether the room is locked, if that is to be asked first."""
        call, state = self.call, self.state
        if not state.room.must_probe and self._absent is None:
            return None
        call.phase, began = "asking whether the room is free", call.now()
        content_type, body = empty_form(boundary=secrets.token_hex(16))
        answer, error = await self._ask(await self._request(content_type, body), answer_to_probe)
        said = answer_to_probe(answer)
        if answer is None or said in {Answer.LATER, Answer.NOTHING}:
            return self._no_answer(began, said, answer, error)
        absent, self._absent = self._absent, None
        if said is Answer.REFUSED:
            raise reply_error(Verdict.REFUSED, answer, upload=False)
        if absent is not None:  # the check was wrong
            call.session.verify(call.room_id, call.now())
        if said is Answer.LOCKED:
            decision = state.after_locked(answer, call.now(), random.random())
            if isinstance(decision, Stop):
                raise decision.error
            call.emit_room_wait(state, decision)
            return decision
        state.after_free()
        call.session.settle_doubt(call.room_id)
        return None

    async def _ask(
        self, request: Request, answer_of: Callable[[ParsedReply | None], Answer]
    ) -> tuple[ParsedReply | None, TransportError | None]:
        def is_refusal(answer: ParsedReply) -> bool:
            return answer_of(answer) in {Answer.REFUSED, Answer.ABSENT}

        try:
            return await self.call.session.ask(request, is_refusal), None
        except TransportError as error:
            return None, error

    def _no_answer(
        self, began: float, said: Answer, answer: ParsedReply | None, error: Exception | None
    ) -> AttemptResult:
        """Return the result of an attempt that ended with a question: nothing was sent."""
        verdict = Verdict.THROTTLED if said is Answer.LATER else Verdict.NEVER_SENT
        return AttemptResult(
            verdict=verdict, began=began, ended=self.call.now(), answer=answer, error=error
        )

    async def _send(self) -> AttemptResult:
        """Send the document once. The log gets a result also when the call is cancelled."""
        call = self.call
        call.phase = "sending"
        call.emit(_events.AttemptStarted, attempt=len(call.log.attempts) + 1)
        sending = _Sending(call, self.prepared)
        try:
            body = sending.body = self.prepared.form(
                sending.progress,
                lambda: self.hooks.before_closing_boundary(self.prepared),
                call.now,
            )
            with closing(body):
                request = await self._request(body.content_type, body)
                answer = await call.session.send(request)
        except TransportError as error:
            return sending.result(error=error)
        except BaseException as error:
            call.record(sending.result(error=error), is_upload=True)
            self.state.room.sent_for(call.now() - sending.began)
            raise
        return sending.result(answer=answer)

    async def _request(self, content_type: bytes, body: bytes | Body) -> Request:
        session = self.call.session
        return requests.upload_request(
            f"{session.base}/{requests.UPLOAD_WHITEBOARD_FILE}",
            self.room,
            content_type,
            body,
            await session.sign(self.room),
            session.default_headers,
            self.call.options.timeouts,
        )


async def _released(release: AsyncExitStack, error: BaseException | None) -> None:
    """Release the caller's lock; what goes wrong is logged, as the upload has its outcome."""
    problem = "did not end in time"
    try:
        with anyio.move_on_after(RELEASE_SECONDS, shield=True):
            await release.__aexit__(type(error) if error else None, error, None)
            return
    except Exception as raised:  # noqa: BLE001 - a user's locks may raise anything
        if raised is error:
            return
        problem = f"raised {raised!r}"
    logger.warning(
        "releasing a room's lock %s; the outcome of the upload is not affected",
        problem,
        extra={"action": "room_locks"},
    )


@attrs.define
class _Sending:
    """The document on its way."""

    call: Call
    prepared: Prepared
    began: float = attrs.field(init=False)
    body: MultipartBody | None = None
    body_seconds: float | None = None

    def __attrs_post_init__(self) -> None:
        self.began = self.call.now()

    def progress(self, sent: int) -> None:
        """Called with the bytes of the document sent so far; a link has none."""
        size = self.call.size
        if size is None:
            self.call.phase = "waiting for the reply"
            return
        if sent == size:
            self.call.phase = "waiting for the reply"
            self.body_seconds = self.call.now() - self.began
        self.call.emit_progress(sent, size)

    def result(
        self, *, answer: ParsedReply | None = None, error: BaseException | None = None
    ) -> AttemptResult:
        """Return the result of the attempt."""
        # A transport of the caller's may not tell that an answer was early.
        sent = self._bytes(answer, error)
        if answer is not None and self.body is not None and sent < self.body.length:
            answer = attrs.evolve(answer, early=True)
        return AttemptResult(
            verdict=classify(answer, self._sent(error, sent), upload=True),
            began=self.began,
            ended=self.call.now(),
            answer=answer,
            error=error,
            bytes_sent=self.body.document_bytes(sent) if self.body and self.call.size else 0,
            body_seconds=self.body_seconds,
            is_consumed=self.prepared.is_consumed,
        )

    def _bytes(self, answer: ParsedReply | None, error: BaseException | None) -> int:
        """Return how many bytes of the form may have been sent."""
        told = getattr(answer if answer is not None else error, "sent", None)
        if told is None:
            told = getattr(self.body, "sent", None)  # of a transport that assigns it
        return told if told is not None else self.body.taken if self.body else 0

    def _sent(self, error: BaseException | None, sent: int) -> Sent:
        """Return how much was sent; the byte count matters more than the type of the error."""
        if self.body is None:
            return Sent.NOTHING
        if self.body.is_complete(sent):
            return Sent.ALL
        if isinstance(error, ConnectFailed) or sent == 0:
            return Sent.NOTHING
        return Sent.PART
