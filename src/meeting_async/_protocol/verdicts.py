"""The verdict on an attempt: the table in ``docs/delivery.md``, as one pure function.

Two facts decide: the reply, if there is one, and whether the closing boundary of the form was
handed to the operating system. Before that, no server can have parsed the form. After that, a
server may have stored the document, and no call can check it.
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
    """Everything: the closing boundary of an upload, or a whole JSON body."""


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
        return Verdict.UNKNOWN if upload and sent is not Sent.ALL else Verdict.ACCEPTED
    if not upload and answer.payload is not None and not answer.claims_status:
        return Verdict.ACCEPTED
    return _NO_VALID_ANSWER[sent]
