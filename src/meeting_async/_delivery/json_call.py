"""JSON calls: any signed endpoint, and the check whether a room is active."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from meeting_async import _events
from meeting_async._delivery.call import Call, retry_loop, running
from meeting_async._delivery.retry import AttemptResult, RetrySafety, RetryState, Wait
from meeting_async._models import MAX_REPLY_BYTES, ActiveRoom, Request, Verdict
from meeting_async._protocol import requests
from meeting_async._protocol.replies import ParsedReply
from meeting_async._protocol.verdicts import Sent, classify
from meeting_async._text import short_repr
from meeting_async.errors import (
    ConnectFailed,
    DeadlineExceeded,
    InvalidInput,
    RoomNotActive,
    RoomNotFound,
    TransportError,
)

POLL_SECONDS = 2.0
"""Shortest time in seconds between two checks whether a room is active."""

LONGEST_POLL_SECONDS = 30.0
"""Longest such time; between both it is a tenth of the time waited."""


async def call_json(
    call: Call,
    path: str,
    payload: object,
    retry_safety: RetrySafety,
    *,
    timeout: float | None,
    max_reply_bytes: int,
) -> ParsedReply:
    """Make a signed JSON call and return the answer that accepts it."""
    call.operation = call.operation.removeprefix("/")
    async with running(call, timeout):
        requests.method_path(path)
        _check_max_reply_bytes(max_reply_bytes)
        body = requests.json_bytes(payload)
        return await _repeated(call, body, retry_safety, max_reply_bytes)


def _check_max_reply_bytes(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        problem, fix = "is not an integer of at least 1", "give a number of bytes"
        raise InvalidInput("max_reply_bytes", short_repr(value), problem, fix)


def room_in(payload: object) -> object:
    """Return the room that a payload names."""
    return payload.get("room_id") if isinstance(payload, Mapping) else None


async def active_room(call: Call, room_id: str, *, timeout: float | None) -> ActiveRoom:
    """Return the information about an active room."""
    async with running(call, timeout):
        return await _active_room(call, room_id)


async def wait_until_active(
    call: Call,
    room_id: str,
    *,
    timeout: float,
    absent: RoomNotFound | RoomNotActive | None = None,
) -> ActiveRoom:
    """Check a room until it is active, at most ``timeout`` seconds.

    ``absent`` is the error of a check that the caller has just made; then wait first. The timeout
    counts from the beginning of the call.
    """
    async with running(call, timeout):
        while True:
            if absent is not None:
                await _pause(call, timeout, absent)
            try:
                return await _active_room(call, room_id)
            except (RoomNotFound, RoomNotActive) as error:
                absent = error


async def _pause(call: Call, timeout: float, error: RoomNotFound | RoomNotActive) -> None:
    """Wait before the next check; give up at once if there is no time for it."""
    waited = call.now() - call.began
    seconds = min(max(waited / 10, POLL_SECONDS), LONGEST_POLL_SECONDS)
    call.phase = f"waiting for room {call.room_id!r} to become active"
    if waited + seconds >= timeout:
        raise DeadlineExceeded(timeout, call.phase) from error
    call.emit(_events.WaitingUntilActive, retry_in=seconds, waited=waited, max_wait=timeout)
    await anyio.sleep(seconds)


async def _active_room(call: Call, room_id: str) -> ActiveRoom:
    body = requests.active_room_body(room_id)
    answer = await _repeated(call, body, RetrySafety.IDEMPOTENT, MAX_REPLY_BYTES)
    call.session.verify(room_id, call.now())
    return ActiveRoom.from_reply(room_id, answer.payload or {})


async def _repeated(
    call: Call, body: bytes, retry_safety: RetrySafety, max_reply_bytes: int
) -> ParsedReply:
    state = RetryState(
        retry_safety=retry_safety,
        retry=call.options.retry,
        budget=call.session.budget,
        outage=call.session.outage,
        began=call.began,
        ends_at=call.ends_at,
    )
    return await retry_loop(_attempt, call, body, state, max_reply_bytes)


async def _attempt(
    call: Call, body: bytes, state: RetryState, max_reply_bytes: int
) -> ParsedReply | Wait:
    """Send a call once. The log gets a result also when the call is cancelled."""
    call.phase = "waiting for the reply"
    call.emit(_events.AttemptStarted, attempt=len(call.log.attempts) + 1)
    idempotent = state.retry_safety is RetrySafety.IDEMPOTENT
    began, verdict = call.now(), Verdict.NEVER_SENT
    try:
        request = await json_request(
            call, call.operation, body, idempotent=idempotent, max_reply_bytes=max_reply_bytes
        )
        verdict = Verdict.UNKNOWN
        result = await _send(call, request, began)
    except BaseException as error:
        ended = call.now()
        result = AttemptResult(verdict=verdict, began=began, ended=ended, error=error)
        call.record(result, is_upload=False)
        raise
    call.record(result, is_upload=False)
    return call.apply_decision(state, result)


async def json_request(
    call: Call, path: str, body: bytes, *, idempotent: bool, max_reply_bytes: int = MAX_REPLY_BYTES
) -> Request:
    """Make the request of a JSON call, signed."""
    session = call.session
    return requests.json_request(
        f"{session.base}/{path}",
        body,
        await session.sign(body),
        session.default_headers,
        call.options.timeouts,
        idempotent=idempotent,
        max_reply_bytes=max_reply_bytes,
    )


async def _send(call: Call, request: Request, began: float) -> AttemptResult:
    answer, error = None, None
    try:
        answer = await call.session.ask(request, _is_refusal)
    except TransportError as failure:
        error = failure
    sent = Sent.NOTHING if isinstance(error, ConnectFailed) else Sent.ALL
    verdict = classify(answer, sent, upload=False)
    ended = call.now()
    return AttemptResult(verdict=verdict, began=began, ended=ended, answer=answer, error=error)


def _is_refusal(answer: ParsedReply) -> bool:
    return classify(answer, Sent.ALL, upload=False) is Verdict.REFUSED
