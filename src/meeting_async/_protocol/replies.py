"""Reading replies (``docs/interface.md``): status, the server's own record, hints, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC
from functools import partial
from typing import Any

import attrs

from meeting_async._models import HeaderPairs, Reply, Secret, Verdict
from meeting_async._text import link_label, one_line
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
    early: bool = False
    """Whether its head came before the last byte of the request was sent."""
    is_cut: bool = False
    """Whether the content goes on; then it is not parsed."""
    sent: int | None = None
    """Bytes of the request's body that may have been sent, if the transport says it."""

    @property
    def begins_object(self) -> bool:
        """Whether the content begins as a JSON object."""
        return self.body.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"

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
        return one_line(code, MAX_CODE_CHARACTERS) if isinstance(code, str) else None

    @property
    def msg(self) -> str:
        """The server's own message, else a description of the reply."""
        msg = (self.payload or {}).get("msg")
        return one_line(msg, MAX_MSG_CHARACTERS) if isinstance(msg, str) and msg else self._nature

    @property
    def _nature(self) -> str:
        if not self.size:
            return "no content"
        kind = dict(reversed(self.headers)).get("content-type", "unknown type")
        more = "more than " if self.is_cut else ""
        return f"{more}{self.size:,} bytes of {kind[:80]}"


def parse_reply(reply: Reply, sent: HeaderPairs = (), *, now: float = 0.0) -> ParsedReply:
    """Parse a reply to a request with the headers ``sent``, whose secrets it must not repeat.

    Every text of the server becomes one printable line here. ``now`` is the Unix time for a date in
    Retry-After.
    """
    payload = None if reply.is_cut else json_object(reply.content)
    hide = _hiding(reply, payload, sent)
    if hide is not None:
        reply = _without_secrets(reply, hide)
        payload = _hidden_in(payload, hide)
    headers = tuple(
        (one_line(name.decode("latin-1")).lower(), one_line(value.decode("latin-1")))
        for name, value in reply.headers
    )
    hint = dict(reversed(headers)).get("retry-after")
    return ParsedReply(
        status=reply.status,
        payload=payload,
        retry_after=retry_after(hint, now=now),
        size=len(reply.content),
        headers=headers,
        body=reply.content[:KEPT_BODY_BYTES],
        early=reply.early,
        is_cut=reply.is_cut,
        sent=reply.sent,
    )


def json_object(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object in ``content``; ``None`` for anything else.

    Duplicate names and NaN are errors (RFC 8259 sections 4 and 6). A byte order mark is skipped
    (section 8.1).
    """
    try:
        value = _DECODER.decode(content.decode("utf-8-sig"))
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


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


# --- replies that repeat the request -------------------------------------------------------------

HIDDEN = b"(hidden)"

_CREDENTIAL = re.compile(
    rb"api-key|hash-signature|.*(authorization|cookie|token|secret|password).*", re.IGNORECASE
)
"""Names of headers whose values must not be repeated; a request id, for example, may be."""

LONG_SECRET = 12
"""A shorter secret may be a word: it is replaced where it stands alone, and not in names of fields.
In a success of the server a short key is no secret, but a word of its data."""

_NEEDS_ESCAPES = re.compile(rb"[^ !#-\[\]-~]")
"""Bytes that JSON writes as an escape."""

_Hide = Callable[[bytes], bytes]


def _hiding(reply: Reply, payload: dict[str, Any] | None, sent: HeaderPairs) -> _Hide | None:
    """Return what replaces the credentials of the request; ``None`` if the reply has none."""
    text = b"\n".join([reply.content, *(part for pair in reply.headers for part in pair)])
    has_escapes = b"\\" in reply.content  # they may write a secret in another way
    if has_escapes and payload is not None:
        text += json.dumps(payload, ensure_ascii=False).encode("utf-8", "surrogatepass")
    text = text.lower()
    is_success = payload is not None and payload.get("status") is True
    words = []
    for name, value in sent:
        if not isinstance(value, Secret) or not _CREDENTIAL.fullmatch(name):
            continue
        if value.lower() not in text and not (has_escapes and _NEEDS_ESCAPES.search(value)):
            continue
        is_long = len(value) >= LONG_SECRET
        if is_long or not is_success:
            word = re.escape(bytes(value))
            words.append(word if is_long else rb"(?<!\w)%b(?!\w)" % word)
    if not words:
        return None
    return partial(re.compile(b"|".join(words), re.IGNORECASE).sub, HIDDEN)


def _without_secrets(reply: Reply, hide: _Hide) -> Reply:
    headers = tuple((hide(name), hide(value)) for name, value in reply.headers)
    return attrs.evolve(reply, headers=headers, content=hide(reply.content))


def _hidden_in(value: Any, hide: _Hide) -> Any:
    """Replace secrets in all texts of a JSON value, however they were escaped."""
    if isinstance(value, str):
        return hide(value.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
    if isinstance(value, list):
        return [_hidden_in(item, hide) for item in value]
    if isinstance(value, dict):
        return {
            _hidden_in(name, hide) if len(name) >= LONG_SECRET else name: _hidden_in(item, hide)
            for name, item in value.items()
        }
    return value


# --- hints ---------------------------------------------------------------------------------------


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
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - takes time, and few need it

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

_WANTS_TLS = re.compile(
    rb"to HTTPS port|to an HTTPS server|to an SSL-enabled server", re.IGNORECASE
)
"""Of the pages with which nginx, Go and Apache answer plain HTTP on such a port."""

_NO_REDIRECTS = "Redirects are never followed: they would replay the signature. Fix the base URL"

_HINTS = {
    "INVALID_API_KEY": "Give an API key of this server.",
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
    is_ours = answer.is_record if answer.status == 401 else upload or not _is_foreign(answer)
    if verdict is Verdict.REFUSED and is_ours:
        return _refusal(answer, upload=upload)(**facts)
    return UnexpectedReply(**facts)


def _is_foreign(answer: ParsedReply) -> bool:
    """Return whether an answer is no meeting server's, unless its status says what is wrong."""
    return answer.accepted is None and answer.status not in {409, 413}


def _refusal(answer: ParsedReply, *, upload: bool) -> type[RequestRefused]:
    """Choose by HTTP status if it is specific, otherwise by the server's own code."""
    if answer.status == 401:
        return AuthenticationFailed
    if answer.status == 413 and upload:
        return DocumentRefused
    return _BY_CODE.get(answer.status_code or "", RequestRefused)


def _hint(answer: ParsedReply) -> str | None:
    if 300 <= answer.status < 400:
        target = dict(reversed(answer.headers)).get("location")
        where = f" (this one leads to {link_label(target)[:MAX_CODE_CHARACTERS]})" if target else ""
        return f"{_NO_REDIRECTS}{where}."
    if answer.status == 407:
        return "A proxy wants a user and a password: give them in the URL of the proxy."
    if answer.status == 400 and _WANTS_TLS.search(answer.body):
        return "The port speaks TLS: use https:// in the base URL."
    if answer.status in {404, 405} and _is_foreign(answer):
        return "Is the path in the base URL right, or that given to call()?"
    return _HINTS.get(answer.status_code or "")
