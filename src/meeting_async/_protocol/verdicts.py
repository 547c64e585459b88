"""The verdict on an attempt, and the answers to questions about a room, as pure functions.

``docs/delivery.md`` has the table of verdicts. Two facts decide: the reply, if there is one, and
whether any byte of the form's closing boundary was handed to the operating system. Before that, no
server can have parsed the form. After that, a server may have stored the document, and no call can
check it.

Two questions are asked about a room. The *check* (``getActiveRoomInfo``) asks whether it is active.
The *probe*, an empty form, asks whether it is locked. Only an answer of the server itself counts: a
proxy in front of it does not know.
"""

from __future__ import annotations

import enum

from meeting_async._models import Verdict
from meeting_async._protocol.replies import ParsedReply


class Sent(enum.Enum):
    """How much of a request was handed to the operating system when the attempt ended."""

    NOTHING = "nothing"
    """No connection, or no byte of the body."""
    PART = "part"
    """Some of the body, but not its end."""
    ALL = "all"
    """Everything: a byte of an upload's closing boundary, or a whole JSON body."""


def classify(answer: ParsedReply | None, sent: Sent, *, upload: bool) -> Verdict:
    """Return the verdict on an attempt; ``answer`` is ``None`` if no complete reply arrived."""
    if answer is None:
        return _NO_VALID_ANSWER[sent]
    status = answer.status
    if status == 409 and upload:
        return Verdict.BUSY
    if status == 429 or (status == 503 and _is_rate_limit(answer, sent)):
        return Verdict.THROTTLED
    if status == 200:
        return _judge_200(answer, sent, upload=upload)
    if 300 <= status < 500 and status != 408:
        return Verdict.REFUSED
    if status >= 500 and answer.is_record:
        return Verdict.FAILED
    if 200 < status < 300 and answer.accepted:
        return Verdict.UNKNOWN
    return _NO_VALID_ANSWER[sent]


_NO_VALID_ANSWER = {
    Sent.NOTHING: Verdict.NEVER_SENT,
    Sent.PART: Verdict.PARTIAL,
    Sent.ALL: Verdict.UNKNOWN,
}


class Answer(enum.Enum):
    """What the answer to a question says."""

    GO_ON = "go on"
    """The room is active, or free: send."""
    LOCKED = "locked"
    """The room is locked."""
    REFUSED = "refused"
    """The upload would be refused, or this is no meeting server: stop."""
    LATER = "later"
    """The server asks for fewer requests."""
    ABSENT = "absent"
    """The check may be wrong about the room: the probe decides."""
    NOTHING = "nothing"
    """No answer of the server itself: ask again."""


_ABSENT = {"ROOM_NOT_FOUND", "ROOM_NOT_ACTIVE"}
_CREDENTIALS = {"INVALID_API_KEY", "INVALID_TOKEN_OR_SIGNATURE"}


def answer_to_check(answer: ParsedReply | None) -> Answer:
    """Return what a reply to ``getActiveRoomInfo`` says; ``None``: no reply.

    A known server denies running rooms that were once asked for in another case. So everything that
    it says about the room, and not about the credentials, is decided by the probe.
    """
    if answer is None or answer.status in {408, 409} or _is_busy_server(answer):
        return _no_answer(answer)
    if answer.status == 401 or answer.status_code in _CREDENTIALS:
        return Answer.REFUSED
    if answer.accepted is False:
        return Answer.ABSENT
    is_room = "room" in (answer.payload or {}) and not answer.claims_status
    if answer.status == 200 and (answer.accepted or is_room):
        return Answer.GO_ON
    return Answer.REFUSED


def answer_to_probe(answer: ParsedReply | None) -> Answer:
    """Return what a reply to an empty form says; ``None``: no reply.

    How a server refuses a form without a document is not specified (``docs/interface.md``, Upload).
    """
    if answer is not None and answer.status == 409:
        return Answer.LOCKED
    if answer is None or answer.status in {429, 503}:
        return _no_answer(answer)
    if answer.is_record:
        is_stop = answer.status == 401 or answer.status_code in _ABSENT | _CREDENTIALS
        return Answer.REFUSED if is_stop else Answer.GO_ON
    return Answer.REFUSED if answer.status == 401 else Answer.NOTHING


def _is_busy_server(answer: ParsedReply) -> bool:
    return answer.status == 429 or answer.status >= 500


def _no_answer(answer: ParsedReply | None) -> Answer:
    is_later = answer is not None and (
        answer.status == 429 or (answer.status == 503 and answer.retry_after is not None)
    )
    return Answer.LATER if is_later else Answer.NOTHING


def _is_rate_limit(answer: ParsedReply, sent: Sent) -> bool:
    """Return whether a 503 means: retry later.

    A cache or CDN sends 503 with Retry-After when the server behind it is slow, after it passed on
    the whole request. So after the end of the request only the server's own record counts.
    """
    return answer.retry_after is not None and (sent is not Sent.ALL or answer.is_record)


def _judge_200(answer: ParsedReply, sent: Sent, *, upload: bool) -> Verdict:
    """Decide by the record's ``status``; without it, a 200 is not a valid answer to an upload.

    The fields of replies to JSON calls are not specified, so an object without ``status`` is a
    success there. A success before the end of the form cannot be right: unknown.
    """
    if answer.accepted is False:
        return Verdict.REFUSED
    if answer.accepted:
        is_early = upload and (answer.early or sent is not Sent.ALL)
        return Verdict.UNKNOWN if is_early else Verdict.ACCEPTED
    if not upload and answer.payload is not None and not answer.claims_status:
        return Verdict.ACCEPTED
    return _NO_VALID_ANSWER[sent]
