"""JSON calls: any signed endpoint, and the check whether a room is active."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import anyio

from meeting_async import _events
from meeting_async._delivery.attempts import Attempts, attempts_of, retry_loop
from meeting_async._delivery.call import Call, running
from meeting_async._delivery.decide import RetrySafety, Wait
from meeting_async._delivery.history import Step, step
from meeting_async._delivery.room_wait import MIN_WAIT
from meeting_async._delivery.session import check_room
from meeting_async._models import ActiveRoom, Request, Verdict
from meeting_async._protocol import requests
from meeting_async._protocol.replies import ParsedReply
from meeting_async._protocol.verdicts import Sent, read
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
"""Longest such time in seconds; in between it is a tenth of the time waited."""

MAX_ROOM_BYTES = 16 * 1024**2
"""Largest reply about a room in bytes, by default: some 20,000 participants."""


async def call_json(
    call: Call,
    path: str,
    payload: object,
    safety: RetrySafety,
    *,
    max_reply_bytes: int,
) -> ParsedReply:
    """Make a signed JSON call and return the answer that accepts it."""
    call.operation = call.operation.removeprefix("/")
    async with running(call):
        requests.method_path(path)
        _check_max_reply_bytes(max_reply_bytes)
        body = requests.json_bytes(payload)
        return await _repeated(call, body, safety, max_reply_bytes)


def _check_max_reply_bytes(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        problem, fix = "is not an integer of at least 1", "give a number of bytes"
        raise InvalidInput("max_reply_bytes", short_repr(value), problem, fix)


def room_in(payload: object) -> object:
    """Return the ``room_id`` of a payload, if it has one."""
    return payload.get("room_id") if isinstance(payload, Mapping) else None


async def active_room(
    call: Call, room_id: str, *, max_reply_bytes: int = MAX_ROOM_BYTES
) -> ActiveRoom:
    """Return the information about an active room."""
    async with running(call):
        _check_max_reply_bytes(max_reply_bytes)
        return await _active_room(call, room_id, max_reply_bytes)


async def wait_until_active(
    call: Call, room_id: str, *, absent: RoomNotFound | RoomNotActive | None = None
) -> ActiveRoom:
    """Check a room until it is active, for as long as the call's timeout allows.

    ``absent``: the error of a check that the caller has just made; then wait first.

    Raises:
        DeadlineExceeded: The room was not active in time.
        InvalidInput: The call has no timeout.

    """
    async with running(call):
        if call.timeout is None:
            fix = "give seconds, here or to the client"
            raise InvalidInput("timeout", "None", "is needed", fix)
        while True:
            if absent is not None:
                await _pause(call, call.timeout, absent)
            try:
                return await _active_room(call, room_id, MAX_ROOM_BYTES)
            except (RoomNotFound, RoomNotActive) as error:
                absent = error


async def _pause(call: Call, timeout: float, error: RoomNotFound | RoomNotActive) -> None:
    """Wait before the next check, at most half of the time left: checks are denser at its end."""
    waited = call.now() - call.began
    seconds = min(max(waited / 10, POLL_SECONDS), LONGEST_POLL_SECONDS)
    seconds = max(min(seconds, (timeout - waited) / 2), MIN_WAIT)
    call.phase = f"waiting for room {call.room_id!r} to become active"
    if waited + seconds >= timeout:
        raise DeadlineExceeded(timeout, call.phase) from error
    call.emit(_events.WaitingUntilActive, retry_in=seconds, waited=waited, max_wait=timeout)
    await anyio.sleep(seconds)


async def _active_room(call: Call, room_id: str, max_reply_bytes: int) -> ActiveRoom:
    body = requests.active_room_body(requests.room_of(room_id))
    answer = await _repeated(call, body, RetrySafety.IDEMPOTENT, max_reply_bytes)
    return ActiveRoom.from_reply(room_id, answer.payload or {}, answer.date)


async def _repeated(
    call: Call, body: bytes, safety: RetrySafety, max_reply_bytes: int
) -> ParsedReply:
    attempts = attempts_of(call, safety)
    return await retry_loop(partial(_attempt, attempts, body, max_reply_bytes))


async def _attempt(attempts: Attempts, body: bytes, max_reply_bytes: int) -> ParsedReply | Wait:
    """Send a call once. If it is cancelled, the history gets a step, too."""
    place = await attempts.take_place()
    try:
        found = await _attempt_in_place(attempts, body, max_reply_bytes)
    finally:
        place.release()
    return attempts.conclude(found)


async def _attempt_in_place(attempts: Attempts, body: bytes, max_reply_bytes: int) -> Step:
    call = attempts.call
    call.phase = "waiting for the reply"
    call.emit(_events.AttemptStarted, attempt=call.history.attempted + 1)
    idempotent = attempts.limits.safety is RetrySafety.IDEMPOTENT
    began, verdict = call.now(), Verdict.NEVER_SENT
    try:
        request = await call.session.json_request(
            call.operation,
            body,
            attempts.timeouts,
            idempotent=idempotent,
            max_reply_bytes=max_reply_bytes,
        )
        verdict = Verdict.UNKNOWN
        return await _send(call, request, began)
    except BaseException as error:
        call.record(step("call", began, call.now(), verdict, error=error))
        raise


async def _send(call: Call, request: Request, began: float) -> Step:
    answer, error = None, None
    try:
        answer = await call.session.send(request)
        if call.operation == requests.ACTIVE_ROOM_INFO and call.room_id:
            check_room(answer, call.room_id, call.session.host)
    except TransportError as failure:
        answer, error = None, failure
    sent = Sent.NOTHING if isinstance(error, ConnectFailed) else Sent.ALL
    return step("call", began, call.now(), read(answer, sent, "call"), answer, error)
