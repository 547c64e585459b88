"""Reading replies (``docs/interface.md``): status, the server's own record, hints, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from json import decoder, scanner
from typing import Any

import attrs

from meeting_async._models import Reply, Verdict
from meeting_async.errors import (
    AuthenticationFailed,
    DocumentRefused,
    ProcessingFailed,
    ReplyError,
    RequestRefused,
    RoomNotActive,
    RoomNotFound,
    ServerFailed,
    Throttled,
    UnexpectedReply,
)

MAX_MSG_CHARACTERS = 500
"""Longest message of a server that is kept; every attempt keeps one."""

MAX_CODE_CHARACTERS = 100
"""Longest status_code that is kept."""

KEPT_BODY_BYTES = 1024
"""Bytes of a reply that an error keeps."""


@attrs.frozen
class ParsedReply:
    """A parsed reply."""

    status: int
    """HTTP status."""
    payload: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """The JSON object of the reply; ``None`` if it is not one."""
    retry_after: float | None = None
    """Seconds that a valid ``Retry-After`` asks to wait."""
    size: int = 0
    """Bytes of the content."""
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    """Names in lower case."""
    body: bytes = attrs.field(default=b"", repr=False)
    """The first kilobyte of the content."""

    @property
    def accepted(self) -> bool | None:
        """The record's ``status``; ``None`` if there is no boolean."""
        status = (self.payload or {}).get("status")
        return status if isinstance(status, bool) else None

    @property
    def claims_status(self) -> bool:
        """Whether the reply has a ``status`` at all, boolean or not."""
        return "status" in (self.payload or {})

    @property
    def is_record(self) -> bool:
        """Whether this is the server's own record, complete (``docs/interface.md``, Replies)."""
        payload = self.payload or {}
        return (
            self.accepted is not None
            and isinstance(payload.get("msg"), str)
            and isinstance(payload.get("status_code"), str)
        )

    @property
    def status_code(self) -> str | None:
        """The server's own code, a name such as ``ROOM_NOT_ACTIVE``."""
        code = (self.payload or {}).get("status_code")
        return code[:MAX_CODE_CHARACTERS] if isinstance(code, str) else None

    @property
    def msg(self) -> str:
        """The server's own message, else a description of the reply."""
        msg = (self.payload or {}).get("msg")
        return msg[:MAX_MSG_CHARACTERS] if isinstance(msg, str) and msg else self._description

    @property
    def _description(self) -> str:
        if not self.size:
            return "no content"
        kind = dict(reversed(self.headers)).get("content-type", "unknown type")
        return f"{self.size:,} bytes of {repr(kind[:80])[1:-1]}"


def parse_reply(reply: Reply, *, now: float = 0.0) -> ParsedReply:
    """Parse a reply. ``now`` is the Unix time for a date in Retry-After.

    Many megabytes take seconds: see :data:`LARGE_REPLY_BYTES`.
    """
    headers = tuple(
        (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in reply.headers
    )
    hint = dict(reversed(headers)).get("retry-after")
    return ParsedReply(
        status=reply.status,
        payload=json_object(reply.content),
        retry_after=retry_after(hint, now=now),
        size=len(reply.content),
        headers=headers,
        body=reply.content[:KEPT_BODY_BYTES],
    )


LARGE_REPLY_BYTES = 256 * 1024
"""Above this size JSON is parsed in a thread by the standard library's decoder in Python, because
the decoder in C holds the interpreter's lock (GIL) until it has finished."""


def json_object(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object in ``content``; ``None`` for anything else.

    Duplicate names and NaN are errors (RFC 8259 sections 4 and 6). A byte order mark is skipped
    (section 8.1).
    """
    try:
        text = content.decode("utf-8-sig")
        value = (_slow_decoder() if len(content) > LARGE_REPLY_BYTES else _DECODER).decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("duplicate names")
    return result


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _slow_decoder() -> json.JSONDecoder:
    made = _decoder()
    made.parse_string = decoder.py_scanstring  # type: ignore[attr-defined]
    made.scan_once = scanner.py_make_scanner(made)  # type: ignore[attr-defined]
    return made


_DECODER = _decoder()


def retry_after(value: str | None, *, now: float) -> float | None:
    """Parse a ``Retry-After`` (RFC 9110 section 10.2.3): seconds, never negative.

    Anything except a plain number or an HTTP date is ignored. Fractions are accepted, because
    some servers send them. The caller limits the result.
    """
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text, re.ASCII):
        return float(text)
    if not re.match(r"[A-Za-z]{3,9},? ", text):
        return None
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    # An HTTP date is always in GMT, also if it does not say so.
    return max(0.0, moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - now)


# --- errors --------------------------------------------------------------------------------------

_BY_CODE: dict[str, type[RequestRefused]] = {
    "INVALID_API_KEY": AuthenticationFailed,
    "INVALID_TOKEN_OR_SIGNATURE": AuthenticationFailed,
    "ROOM_NOT_FOUND": RoomNotFound,
    "ROOM_NOT_ACTIVE": RoomNotActive,
}

_HINTS = {
    "INVALID_API_KEY": "The server does not know the API key.",
    "INVALID_TOKEN_OR_SIGNATURE": "The API secret differs from the server's, "
    "or a proxy changed the request.",
    "MISSING_REQUIRED_PARAMETER": "A header or field did not arrive; does a proxy strip it?",
}


def reply_error(verdict: Verdict, answer: ParsedReply, *, upload: bool) -> ReplyError:
    """Return the error for an answer that ends a call."""
    facts: dict[str, Any] = {
        "status": answer.status,
        "status_code": answer.status_code,
        "msg": answer.msg,
        "headers": answer.headers,
        "body": answer.body,
        "hint": _hint(answer),
    }
    if verdict is Verdict.THROTTLED:
        return Throttled(**facts, retry_after=answer.retry_after)
    if verdict is Verdict.FAILED:
        return ProcessingFailed(**facts) if upload else ServerFailed(**facts)
    if verdict is Verdict.REFUSED:
        return _refusal(answer, upload=upload)(**facts)
    return UnexpectedReply(**facts)


def _refusal(answer: ParsedReply, *, upload: bool) -> type[RequestRefused]:
    """Choose by HTTP status if it is specific, otherwise by the server's own code."""
    if answer.status == 401:
        return AuthenticationFailed
    if answer.status == 413 and upload:
        return DocumentRefused
    return _BY_CODE.get(answer.status_code or "", RequestRefused)


def _hint(answer: ParsedReply) -> str | None:
    if 300 <= answer.status < 400:
        return "Redirects are never followed: they would replay the signature. Fix the base URL."
    return _HINTS.get(answer.status_code or "")
