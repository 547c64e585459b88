"""One upload: check the room, ask whether it is free, send, wait, until it is accepted or fails.

While it waits, an upload holds no connection, no open file and no permit of a batch; a spooled
stream keeps its spool.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial

import attrs

from meeting_async import _events
from meeting_async._delivery.call import Call, retry_loop, running
from meeting_async._delivery.json_call import send_json
from meeting_async._delivery.link_check import check_target
from meeting_async._delivery.observer import logger
from meeting_async._delivery.retry import AttemptResult, RetrySafety, RetryState, Stop, Wait
from meeting_async._documents.detect import Uploadable
from meeting_async._documents.document import Document
from meeting_async._documents.multipart_body import MultipartBody
from meeting_async._documents.source import PreparedSource
from meeting_async._models import Body, UploadReceipt, Verdict
from meeting_async._protocol import requests
from meeting_async._protocol.multipart import empty_form
from meeting_async._protocol.replies import ParsedReply, reply_error
from meeting_async._protocol.verdicts import Sent, classify
from meeting_async.errors import ConnectFailed, RoomBusy, TransportError

PREFLIGHT_ABOVE = 256 * 1024
"""Bytes of a document above which its room is checked first: a wrong URL, key, secret or room then
costs some 300 bytes. A smaller document costs little more than the check."""


class UploadHooks:
    """What a batch does around the attempts of an upload. If a hook raises, the upload ends."""

    def begin(self, state: RetryState) -> None:
        """Called before the first attempt, with the state of a new upload."""

    async def before_attempt(self) -> None:
        """Acquire a permit."""

    async def before_closing_boundary(self, document: Document, content: PreparedSource) -> None:
        """Called after the document's last byte, before the closing boundary."""

    async def before_wait(self, wait: Wait | None, *, may_have_arrived: bool) -> None:
        """Called before the upload waits, for its room or its next attempt: release the permit.

        ``None``: it waits until another upload of this application has ended.
        """


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
    session, options, log = call.session, call.options, call.log
    log.window = options.lock.window
    async with running(call, timeout):
        room = requests.room_id_bytes(room_id)
        _warn_of_unusual(room_id)
        state = _new_state(call, max_wait)
        made = Document.of(document, filename=filename, content_type=content_type)
        log.document = made.filename
        log.phase = "reading the document"
        async with made.prepare(
            max_size=options.max_size_whiteboard_file, allow_images=options.allow_images
        ) as content:
            log.size = state.size = made.size(content)
            if options.check_link and made.link is not None:
                log.phase = "checking the link"
                await check_target(session, made.link, options)
            hooks = hooks or UploadHooks()
            async with _room_lock(call, state, content, hooks):
                state.set_doubt(session.doubt_since(room_id, state.lock.window))
                hooks.begin(state)
                outcome = await _attempt(call, state, room, made, content, hooks)
                answer = await retry_loop(
                    outcome, _attempt, call, state, room, made, content, hooks
                )
    return _receipt(call, answer)


def _new_state(call: Call, max_wait: float | None) -> RetryState:
    options = call.options
    lock = options.lock if max_wait is None else attrs.evolve(options.lock, max_wait=max_wait)
    call.retry_state = RetryState(
        retry_safety=RetrySafety(options.delivery),
        retry=options.retry,
        lock=lock,
        budget=call.session.budget,
        probe_reliability=call.session.probe_reliability,
        ends_at=call.ends_at,
    )
    return call.retry_state


def _receipt(call: Call, answer: ParsedReply) -> UploadReceipt:
    return UploadReceipt(
        room_id=call.room_id,
        document=call.log.document or "",
        size=call.log.size,
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


# --- the room's lock in this process -------------------------------------------------------------


@asynccontextmanager
async def _room_lock(
    call: Call, state: RetryState, content: PreparedSource, hooks: UploadHooks
) -> AsyncGenerator[None, None]:
    """Hold the room's lock of this application; an exception of its release is logged."""
    locks = call.session.room_locks()
    room = f"{call.session.base} {call.room_id}"
    async with AsyncExitStack() as held:
        try:
            await held.enter_async_context(locks.acquire(room, timeout=0))
        except TimeoutError:
            content.release()
            await _queue(call, state, hooks)
            began, limit = call.now(), state.queue_limit()
            try:
                await held.enter_async_context(locks.acquire(room, timeout=limit))
            except TimeoutError:
                raise _taken(call, began) from None
            finally:
                state.queued(call.now() - began)
        release = held.pop_all()
    error: BaseException | None = None
    try:
        yield
    except BaseException as failure:
        error = failure
        call.leave_doubt()  # before the next upload gets the lock
        raise
    finally:
        await _released(release, error)


async def _queue(call: Call, state: RetryState, hooks: UploadHooks) -> None:
    if state.queue_limit() == 0:
        raise _taken(call, call.now())
    await hooks.before_wait(None, may_have_arrived=False)
    call.log.phase = "waiting behind another upload of this application"
    call.emit(_events.Queued)


def _taken(call: Call, since: float) -> RoomBusy:
    return RoomBusy(call.now() - since, "another upload of this application", None)


async def _released(release: AsyncExitStack, error: BaseException | None) -> None:
    try:
        await release.__aexit__(type(error) if error else None, error, None)
    except Exception as raised:  # noqa: BLE001 - a user's locks may raise anything
        if raised is not error:
            logger.warning(
                "releasing a room's lock raised; the outcome of the upload is not affected",
                exc_info=True,
                extra={"action": "room_locks"},
            )


# --- one attempt ---------------------------------------------------------------------------------


async def _attempt(
    call: Call,
    state: RetryState,
    room: bytes,
    document: Document,
    content: PreparedSource,
    hooks: UploadHooks,
) -> ParsedReply | Wait:
    asked = call.now()
    await hooks.before_attempt()
    state.paused(call.now() - asked)
    outcome = await _attempt_once(call, state, room, document, content, hooks)
    if isinstance(outcome, Wait):
        content.release()
        await hooks.before_wait(outcome, may_have_arrived=call.log.unknown_since is not None)
    return outcome


async def _attempt_once(
    call: Call,
    state: RetryState,
    room: bytes,
    document: Document,
    content: PreparedSource,
    hooks: UploadHooks,
) -> ParsedReply | Wait:
    result = await _check_room(call)
    if result is None:
        if state.must_probe and (wait := await _probe(call, state, room)):
            return wait
        began = call.now()
        try:
            result = await _send(call, room, document, content, hooks)
        except BaseException:
            state.paused(call.now() - began)
            raise
    call.log.add(result, call_began=call.began, is_upload=True)
    if result.verdict is Verdict.ACCEPTED:
        call.session.settle_doubt(call.room_id)
    return call.apply_decision(state, result)


async def _check_room(call: Call) -> AttemptResult | None:
    """Check the room before the first attempt of a large document.

    A refusal ends the upload, no connection ends the attempt. After any other failure the document
    is sent.
    """
    session, room_id = call.session, call.room_id
    is_large = (call.log.size or 0) > PREFLIGHT_ABOVE
    if not (call.options.preflight and is_large) or session.is_verified(room_id):
        return None
    if any(attempt.verdict is not Verdict.NEVER_SENT for attempt in call.log.attempts):
        return None
    call.log.phase = "checking the room"
    body, path = requests.active_room_body(room_id), requests.ACTIVE_ROOM_INFO
    signed = await session.sign(body)
    result = await send_json(call, path, body, signed, idempotent=True)
    if result.verdict is Verdict.REFUSED and result.answer is not None:
        raise reply_error(result.verdict, result.answer, upload=False)
    if result.verdict is Verdict.ACCEPTED:
        session.verify(room_id, call.now())
    return result if result.verdict is Verdict.NEVER_SENT else None


async def _probe(call: Call, state: RetryState, room: bytes) -> Wait | None:
    """Ask with an empty form whether the room is locked: 409 means yes, any other answer no.

    The answer of a free room is not specified (``docs/interface.md``, Upload).
    """
    call.log.phase = "asking whether the room is free"
    content_type, body = empty_form(boundary=secrets.token_hex(16))
    try:
        answer = await _post(call, room, content_type, body)
    except TransportError:
        return None
    is_locked = classify(answer, Sent.ALL, upload=True) is Verdict.BUSY
    decision = state.after_probe(answer if is_locked else None, call.now(), random.random())
    if isinstance(decision, Stop):
        raise decision.error
    if decision is None:
        call.session.settle_doubt(call.room_id)
    else:
        call.emit_room_wait(state, decision)
    return decision


async def _send(
    call: Call, room: bytes, document: Document, content: PreparedSource, hooks: UploadHooks
) -> AttemptResult:
    """Send the document once. The log gets a result also when the call is cancelled."""
    call.log.phase = "sending"
    call.emit(_events.AttemptStarted, attempt=len(call.log.attempts) + 1)
    watch = _Watch(call, content)
    try:
        before_end = partial(hooks.before_closing_boundary, document, content)
        boundary = secrets.token_hex(16)
        body = watch.body = document.multipart_body(
            content, boundary, watch.progress, before_end, call.now
        )
        with closing(body):
            answer = await _post(call, room, body.content_type, body)
    except TransportError as error:
        return watch.result(error=error)
    except BaseException as error:
        call.log.add(watch.result(error=error), call_began=call.began, is_upload=True)
        raise
    return watch.result(answer=answer)


async def _post(call: Call, room: bytes, content_type: bytes, body: bytes | Body) -> ParsedReply:
    session = call.session
    request = requests.upload_request(
        f"{session.base}/{requests.UPLOAD_WHITEBOARD_FILE}",
        room,
        content_type,
        body,
        await session.sign(room),
        session.default_headers,
        call.options.timeouts,
    )
    return await session.send(request)


@attrs.define
class _Watch:
    """A running attempt."""

    call: Call
    content: PreparedSource
    began: float = attrs.field(init=False)
    body: MultipartBody | None = None
    body_seconds: float | None = None

    def __attrs_post_init__(self) -> None:
        self.began = self.call.now()

    def progress(self, sent: int) -> None:
        """Called with the bytes of the document sent so far; a link has none."""
        size = self.call.log.size
        if size is None:
            self.call.log.phase = "waiting for the reply"
            return
        if sent == size:
            self.call.log.phase = "waiting for the reply"
            self.body_seconds = self.call.now() - self.began
        self.call.emit_progress(sent, size)

    def result(
        self, *, answer: ParsedReply | None = None, error: BaseException | None = None
    ) -> AttemptResult:
        """Return the result of the attempt."""
        return AttemptResult(
            verdict=classify(answer, self._sent(error), upload=True),
            began=self.began,
            ended=self.call.now(),
            answer=answer,
            error=error,
            bytes_sent=self.body.document_sent if self.body and self.call.log.size else 0,
            body_seconds=self.body_seconds,
            is_consumed=self.content.is_consumed,
        )

    def _sent(self, error: BaseException | None) -> Sent:
        """Return how much was sent; the byte count matters more than the type of the error."""
        if self.body is None:
            return Sent.NOTHING
        if self.body.sent >= self.body.length:
            return Sent.ALL
        if isinstance(error, ConnectFailed) or self.body.sent == 0:
            return Sent.NOTHING
        return Sent.PART
