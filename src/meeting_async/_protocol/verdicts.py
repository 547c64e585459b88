"""What a reply means: one pure function, from the reply, from how much was sent, and to what.

``docs/delivery.md`` has the table of verdicts. Two facts decide about a document: the reply, if
there is one, and whether any byte of the form's closing boundary was handed to the operating
system. Before that, no server can have parsed the form. After that, a server may have stored the
document, and no call can check it.

Two questions are asked about a room. The *check* (``getActiveRoomInfo``) asks whether it is active.
The *probe*, an empty form, asks whether it is locked. Only an answer of the server itself counts: a
proxy in front of it does not know.
"""

from __future__ import annotations

import enum
from typing import Literal

from meeting_async._models import Verdict
from meeting_async._protocol.replies import ParsedReply

Asked = Literal["check", "probe", "document", "call"]
"""What was sent: one of the two questions about a room, a document, or any other JSON call."""


class Sent(enum.Enum):
    """How much of a request was handed to the operating system when the attempt ended."""

    NOTHING = "nothing"
    """No connection, or no byte of the body."""
    PART = "part"
    """Some of the body, but not its end."""
    ALL = "all"
    """Everything: a byte of an upload's closing boundary, or a whole JSON body."""


def read(answer: ParsedReply | None, sent: Sent, asked: Asked) -> Verdict:
    """Return what a reply means; ``answer`` is ``None`` if no complete reply arrived.

    To a question *accepted* means: go on.
    """
    if asked in {"check", "probe"} and answer is None and sent is Sent.NOTHING:
        return Verdict.NEVER_SENT
    if asked == "check":
        return _read_check(answer)
    if asked == "probe":
        return _read_probe(answer)
    return _NO_VALID_ANSWER[sent] if answer is None else _read_request(answer, sent, asked)


_NO_VALID_ANSWER = {
    Sent.NOTHING: Verdict.NEVER_SENT,
    Sent.PART: Verdict.PARTIAL,
    Sent.ALL: Verdict.UNKNOWN,
}


# --- documents and calls -------------------------------------------------------------------------


def _read_request(answer: ParsedReply, sent: Sent, asked: Asked) -> Verdict:
    status = answer.status
    if status == 409 and asked == "document":
        return Verdict.BUSY
    if status == 429 or (status == 503 and _is_rate_limit(answer, sent)):
        return Verdict.THROTTLED
    if status == 200:
        return _read_200(answer, sent, asked)
    if 300 <= status < 500 and status != 408:
        return Verdict.REFUSED
    if status >= 500 and answer.is_record and not answer.accepted:
        return Verdict.FAILED
    if 200 < status < 300 and answer.accepted:
        return Verdict.UNKNOWN
    return _NO_VALID_ANSWER[sent]


def _is_rate_limit(answer: ParsedReply, sent: Sent) -> bool:
    """Return whether a 503 means: retry later.

    A cache or CDN sends 503 with Retry-After when the server behind it is slow, after it passed on
    the whole request. So after the end of the request only the server's own refusal counts.
    """
    is_refusal = answer.is_record and not answer.accepted
    return answer.retry_after is not None and (sent is not Sent.ALL or is_refusal)


def _read_200(answer: ParsedReply, sent: Sent, asked: Asked) -> Verdict:
    """Decide by the record's ``status``; without it, a 200 is not a valid answer to an upload.

    The fields of replies to JSON calls are not specified, so an object without ``status`` is a
    success there. A success before the end of the form cannot be right: unknown.
    """
    if answer.accepted is False:
        return Verdict.REFUSED
    if answer.accepted:
        is_early = asked == "document" and (answer.early or sent is not Sent.ALL)
        return Verdict.UNKNOWN if is_early else Verdict.ACCEPTED
    if asked == "call" and answer.payload is not None and not answer.claims_status:
        return Verdict.ACCEPTED
    return _NO_VALID_ANSWER[sent]


# --- questions -----------------------------------------------------------------------------------

_ABSENT = {"ROOM_NOT_FOUND", "ROOM_NOT_ACTIVE"}
_CREDENTIALS = {"INVALID_API_KEY", "INVALID_TOKEN_OR_SIGNATURE"}


def _read_check(answer: ParsedReply | None) -> Verdict:
    """Read a reply to ``getActiveRoomInfo``. A room with many people has a reply that is cut."""
    if answer is None or answer.status in {408, 409, 429} or answer.status >= 500:
        return _no_answer(answer)
    is_room = answer.begins_object and not answer.claims_status
    is_room = is_room and (answer.is_cut or "room" in (answer.payload or {}))
    is_active = answer.status == 200 and (answer.accepted or is_room)
    return Verdict.ACCEPTED if is_active else Verdict.REFUSED


def _read_probe(answer: ParsedReply | None) -> Verdict:
    """Read a reply to an empty form.

    How a server refuses a form without a document is not specified (``docs/interface.md``, Upload).
    """
    if answer is not None and answer.status == 409:
        return Verdict.BUSY
    if answer is None or answer.status >= 500 or not answer.is_record:
        return _no_answer(answer)
    if answer.status in {408, 429}:
        return _no_answer(answer)
    is_refusal = answer.status == 401 or answer.status_code in _ABSENT | _CREDENTIALS
    return Verdict.REFUSED if is_refusal else Verdict.ACCEPTED


def _no_answer(answer: ParsedReply | None) -> Verdict:
    is_later = answer is not None and (
        answer.status == 429 or (answer.status == 503 and answer.retry_after is not None)
    )
    return Verdict.THROTTLED if is_later else Verdict.NO_ANSWER


def denies_room(answer: ParsedReply | None) -> bool:
    """Return whether a check was refused because of the room, and not of the credentials.

    A known server denies running rooms that were once asked for in another case. So the probe has
    the last word.
    """
    if answer is None or answer.status == 401 or answer.status_code in _CREDENTIALS:
        return False
    return answer.accepted is False


def names_another_room(answer: ParsedReply | None, room_id: str) -> bool:
    """Return whether an answer to ``getActiveRoomInfo`` is about another room than was asked for.

    Something between here and the server may have answered an earlier question twice. How a server
    spells a room's id is not specified: case and blanks do not count.
    """
    found: object = answer.payload if answer is not None else None
    for name in ("room", "room_info", "room_id"):
        found = found.get(name) if isinstance(found, dict) else None
    return isinstance(found, str) and found.strip().casefold() != room_id.strip().casefold()


def overrules_denial(answer: ParsedReply | None) -> bool:
    """Return whether a reply to an empty form shows that a room is there, which a check denied."""
    is_there = answer is not None and answer.status_code == "INVALID_PARAMETERS"
    return is_there or (answer is not None and answer.status == 409)
