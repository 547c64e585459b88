"""What an attempt means, and what follows from it: the verdict table, as pure functions.

Two questions in turn. :func:`judge`: what do we know, from the reply (if any) and from how much of
the request was handed over? :func:`next_step`: given what may be repeated, what now?

The one bit everything hangs on is whether the closing boundary was handed over: before, no server
can have parsed the form; after, one may have, and nobody can ask.
"""

from __future__ import annotations

import enum

from meeting_async import errors
from meeting_async._wire import Answer


class Sent(enum.Enum):
    """How much of a request was handed over when the attempt ended."""

    NOTHING = "nothing"
    """No connection, or not a byte of the body."""
    PART = "part"
    """Some of the body, but not its end."""
    ALL = "all"
    """Everything: an upload's closing boundary, or a JSON body."""


class Verdict(enum.Enum):
    """What an attempt came to."""

    NEVER_SENT = "never sent"
    PARTIAL = "partial"
    BUSY = "busy"
    REFUSED = "refused"
    THROTTLED = "throttled"
    FAILED = "failed"
    UNKNOWN = "unknown"
    ACCEPTED = "accepted"


class Repeatability(enum.Enum):
    """What may be repeated, by kind of call."""

    AT_MOST_ONCE = "at_most_once"
    """An upload that must not appear twice."""
    AT_LEAST_ONCE = "at_least_once"
    """An upload that had better appear twice than never."""
    IDEMPOTENT = "idempotent"
    """A call that changes nothing, or the same each time."""
    ONCE = "once"
    """Any other call."""


class Step(enum.Enum):
    """What to do next."""

    DONE = "done"
    STOP = "stop"
    RETRY = "retry"
    """Again after a backoff, or after the server's hint."""
    WAIT_FOR_ROOM = "wait for the room"
    """Again as the lock policy says."""
    WAIT_OUT_LOCK = "wait out the lock"
    """Again when our own lock, if we hold one, must have ended."""


def judge(answer: Answer | None, sent: Sent, *, upload: bool) -> Verdict:
    """Say what an attempt came to; ``answer`` is ``None`` when no complete reply arrived."""
    if answer is None:
        return _WITHOUT_ANSWER[sent]
    status = answer.status
    if status == 409 and upload:
        return Verdict.BUSY
    if status == 429 or (status == 503 and answer.retry_after is not None):
        return Verdict.THROTTLED
    if status == 200:
        return _judge_200(answer, sent, upload=upload)
    if 300 <= status < 500 and status != 408:
        return Verdict.REFUSED
    if status >= 500 and answer.is_record:
        return Verdict.FAILED
    if 200 < status < 300 and answer.accepted:
        return Verdict.UNKNOWN
    return _WITHOUT_ANSWER[sent]


_WITHOUT_ANSWER = {
    Sent.NOTHING: Verdict.NEVER_SENT,
    Sent.PART: Verdict.PARTIAL,
    Sent.ALL: Verdict.UNKNOWN,
}


def _judge_200(answer: Answer, sent: Sent, *, upload: bool) -> Verdict:
    """With status 200 the record's own ``status`` decides; without one, 200 says nothing.

    The replies of JSON calls are specified loosely ("not shown"), so an object that has no
    ``status`` at all will do there. A success that precedes the end of the form contradicts
    itself, and nothing can be built on it.
    """
    if answer.accepted is False:
        return Verdict.REFUSED
    if answer.accepted:
        return Verdict.UNKNOWN if upload and sent is not Sent.ALL else Verdict.ACCEPTED
    if not upload and answer.payload is not None and not answer.claims_status:
        return Verdict.ACCEPTED
    return _WITHOUT_ANSWER[sent]


_STEPS: dict[Verdict, tuple[Step, Step, Step, Step]] = {
    # verdict: at most once, at least once, idempotent, once
    Verdict.NEVER_SENT: (Step.RETRY, Step.RETRY, Step.RETRY, Step.RETRY),
    Verdict.PARTIAL: (Step.RETRY, Step.RETRY, Step.RETRY, Step.STOP),
    Verdict.BUSY: (Step.WAIT_FOR_ROOM, Step.WAIT_FOR_ROOM, Step.STOP, Step.STOP),
    Verdict.REFUSED: (Step.STOP, Step.STOP, Step.STOP, Step.STOP),
    Verdict.THROTTLED: (Step.RETRY, Step.RETRY, Step.RETRY, Step.RETRY),
    Verdict.FAILED: (Step.STOP, Step.STOP, Step.STOP, Step.STOP),
    Verdict.UNKNOWN: (Step.STOP, Step.WAIT_OUT_LOCK, Step.RETRY, Step.STOP),
    Verdict.ACCEPTED: (Step.DONE, Step.DONE, Step.DONE, Step.DONE),
}
_COLUMNS = tuple(Repeatability)


def next_step(verdict: Verdict, repeatability: Repeatability) -> Step:
    """Look the verdict up in the table."""
    return _STEPS[verdict][_COLUMNS.index(repeatability)]


_BY_CODE: dict[str, type[errors.RequestRefused]] = {
    "INVALID_API_KEY": errors.AuthenticationFailed,
    "INVALID_TOKEN_OR_SIGNATURE": errors.AuthenticationFailed,
    "ROOM_NOT_FOUND": errors.RoomNotFound,
    "ROOM_NOT_ACTIVE": errors.RoomNotActive,
}

_HINTS = {
    "INVALID_API_KEY": "The server does not know the API key.",
    "INVALID_TOKEN_OR_SIGNATURE": "The API secret differs from the server's, "
    "or something between changed the request.",
    "MISSING_REQUIRED_PARAMETER": "A header or field did not arrive; does a proxy strip it?",
}


def reply_error(
    verdict: Verdict, answer: Answer, *, operation: str, room_id: str | None, upload: bool
) -> errors.ReplyError:
    """Turn an answer that ends the call into the error for it."""
    facts = (operation, room_id, answer.status, answer.status_code, answer.msg)
    if verdict is Verdict.THROTTLED:
        return errors.Throttled(*facts, answer.retry_after)
    if verdict is Verdict.FAILED:
        return errors.ProcessingFailed(*facts) if upload else errors.ServerFailed(*facts)
    if verdict is Verdict.REFUSED:
        return _refusal(answer, upload=upload)(*facts)
    return errors.UnexpectedReply(*facts)


def _refusal(answer: Answer, *, upload: bool) -> type[errors.RequestRefused]:
    """By HTTP status where that is plain, else by the server's own code."""
    if answer.status == 401:
        return errors.AuthenticationFailed
    if answer.status == 413 and upload:
        return errors.DocumentRefused
    return _BY_CODE.get(answer.status_code or "", errors.RequestRefused)


def hint(error: errors.ReplyError) -> str | None:
    """Say what a known code usually means to the one who has to mend it."""
    if 300 <= error.status < 400:
        return "Redirects are never followed: they would replay the signature. Mend the base URL."
    return _HINTS.get(error.status_code or "")
