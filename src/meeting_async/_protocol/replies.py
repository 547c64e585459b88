"""Reading replies (``docs/interface.md``): status, the server's own record, hints, errors."""

from __future__ import annotations

import json
import json.scanner
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from meeting_async._models import HeaderPairs, Reply, Verdict
from meeting_async._protocol.hiding import OVERLAP_BYTES, PIECE_BYTES, hiding_in, without_torn
from meeting_async._protocol.signing import WRONG_KEY
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

MAX_CODE_CHARACTERS = 100
"""Longest status_code that is kept."""

MAX_SESSION_CHARACTERS = 256
"""Longest id of a session that is used; a known server's have some 20."""

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
    session: str = ""
    """Id of the session that an answer about a room names (``room_info.sid``)."""
    peer: Any = attrs.field(default=None, eq=False, repr=False)
    """Which of the server's addresses has answered, if the transport says it."""

    @property
    def date(self) -> int | None:
        """When it was made: Unix time by the server's clock (RFC 9110 section 6.6.1)."""
        found = unix_time(dict(self.headers).get("date", ""))
        return None if found is None else int(found)

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
        return one_line(msg) if isinstance(msg, str) and msg else self._nature

    @property
    def _nature(self) -> str:
        if not self.size:
            return "content that was not read" if self.is_cut else "no content"
        kind = dict(reversed(self.headers)).get("content-type", "unknown type")
        more = "more than " if self.is_cut else ""
        return f"{more}{self.size:,} bytes of {kind[:80]}"


def parse_reply(reply: Reply, sent: HeaderPairs = (), *, now: float = 0.0) -> ParsedReply:
    """Parse a reply to a request with the headers ``sent``, whose secrets it must not repeat.

    Every text of the server becomes one printable line here. ``now`` is the Unix time for a date in
    Retry-After, if the reply has none of its own.
    """
    payload = None if reply.is_cut else json_object(reply.content)
    content = reply.content[:OVERLAP_BYTES] if payload is None else reply.content
    if reply.is_cut:
        content = without_torn(content, (*sent, *reply.added))
    fields = [part for pair in reply.headers for part in pair]
    is_success = payload is not None and payload.get("status") is True
    text = b"\n".join([content, *fields])
    if hiding := hiding_in(text, (*sent, *reply.added), is_success=is_success):
        content, *fields = map(hiding.text, [content[:OVERLAP_BYTES], *fields])
        payload = hiding.payload(payload)
    texts = [one_line(field.decode("latin-1")) for field in fields]
    headers = tuple(zip(map(str.lower, texts[::2]), texts[1::2], strict=True))
    named = dict(reversed(headers))
    return ParsedReply(
        status=reply.status,
        payload=payload,
        retry_after=retry_after(named.get("retry-after"), now=now, date=named.get("date")),
        size=len(reply.content),
        headers=headers,
        body=content[:KEPT_BODY_BYTES],
        early=reply.early,
        is_cut=reply.is_cut,
        sent=reply.sent,
        session=_session_in(payload, reply.content if reply.is_cut else b""),
        peer=reply.peer,
    )


_SESSION = re.compile(rb'"sid"\s*:\s*"([^"\\]{1,256})"')
_BEFORE_SESSION = re.compile(rb'\s*\{.*?"room_info"\s*:\s*\{', re.DOTALL)


def _session_in(payload: Mapping[str, Any] | None, cut: bytes) -> str:
    """Return the session in an answer about a room; one that is cut has it near its beginning."""
    if cut:
        begun = _BEFORE_SESSION.match(cut)
        people = cut.find(b'"participants_info"', begun.end() if begun else 0)
        found = begun and _SESSION.search(cut, begun.end(), len(cut) if people < 0 else people)
        sid: object = found[1].decode("utf-8", "replace") if found else None
    else:
        sid = payload
        for name in ("room", "room_info", "sid"):
            sid = sid.get(name) if isinstance(sid, dict) else None
    return one_line(sid) if isinstance(sid, str) and len(sid) <= MAX_SESSION_CHARACTERS else ""


def json_object(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object in ``content``; ``None`` for anything else.

    Duplicate names and NaN are errors (RFC 8259 sections 4 and 6). A byte order mark is skipped
    (section 8.1).
    """
    decoder = _DECODER if len(content) <= PIECE_BYTES else _IN_STEPS
    try:
        value = decoder.decode(content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = {name: value for name, value in pairs}  # noqa: C416 - dict() stops other threads
    if len(result) != len(pairs):
        raise ValueError("duplicate names")
    return result


def _no_constant(name: str) -> None:
    raise ValueError(name)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)

_IN_STEPS = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
"""It is slower, but lets other threads run; the scanner in C stops them until it is done."""
setattr(_IN_STEPS, "scan_once", json.scanner.py_make_scanner(_IN_STEPS))  # type: ignore[attr-defined]  # noqa: B010


# --- hints ---------------------------------------------------------------------------------------


def retry_after(value: str | None, *, now: float, date: str | None = None) -> float | None:
    """Parse a ``Retry-After`` (RFC 9110 section 10.2.3): seconds, never negative.

    Anything except a plain number or an HTTP date is ignored. Fractions are accepted, because
    some servers send them. A date counts from the reply's own ``date``: the clocks here and there
    may differ by hours. The caller limits the result.
    """
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text, re.ASCII):
        return float(text)
    until = unix_time(text)
    if until is None:
        return None
    began = unix_time(date or "")
    return max(0.0, until - (now if began is None else began))


def unix_time(text: str) -> float | None:
    """Parse an HTTP date, which is always in GMT, also if it does not say so."""
    if not re.match(r"[A-Za-z]{3,9},? ", text):
        return None
    try:
        if (found := _USUAL_DATE.fullmatch(text)) and found[2] in _MONTHS:
            day, year, hour, minute, second = (int(found[at]) for at in (1, 3, 4, 5, 6))
            month = _MONTHS.index(found[2]) + 1
            return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
        from email.utils import parsedate_to_datetime  # noqa: PLC0415 - takes time, and few need it

        moment = parsedate_to_datetime(text)
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None


_USUAL_DATE = re.compile(r"[A-Z][a-z]{2}, (\d\d) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT")
"""What every current server sends (RFC 9110 section 5.6.7)."""

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]

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

_WANTS_CERTIFICATE = re.compile(rb"No required SSL certificate|The SSL certificate error")
"""Of the pages with which nginx answers a client without a certificate, or with a wrong one."""

GIVE_CERTIFICATE = "give one, with HttpTransport(cert=...), MEETING_CERT_FILE or --cert"

_NO_REDIRECTS = "Redirects are never followed: they would replay the signature. Fix the base URL"

_TOO_LARGE = "The limit is max_size_whiteboard_file of the server."
_TOO_LARGE_FOR_PROXY = (
    "The limit is that of a proxy (client_max_body_size of nginx, for example), or the server's "
    "for a whole request."
)

_CLASH = (
    "Another conversion on the server at the same moment may be the cause: the same document may "
    "succeed when it is sent again."
)

_HINTS = {
    "INVALID_API_KEY": WRONG_KEY,
    "INVALID_TOKEN_OR_SIGNATURE": "The API secret differs from the server's (are there quotes or "
    "blanks around it?), or a proxy changed the request.",
    "ROOM_NOT_FOUND": "Check the id (case counts); if it is right, create the room first.",
    "ROOM_NOT_ACTIVE": "Open a session first, or wait for one with wait_until_active().",
    "USER_NOT_ACTIVE": "For an upload a user with the presenter role must be in the room.",
    "MISSING_REQUIRED_PARAMETER": "A header or field did not arrive; does a proxy strip it?",
}


def reply_error(
    verdict: Verdict, answer: ParsedReply, *, upload: bool, is_office: bool = False
) -> ReplyError:
    """Return the error for an answer that ends a call; ``is_office``: of an office document."""
    facts: dict[str, Any] = {
        "status": answer.status,
        "status_code": answer.status_code,
        "msg": answer.msg,
        "headers": answer.headers,
        "body": answer.body,
        "hint": _CLASH if is_office and verdict is Verdict.FAILED else hint_of(answer),
    }
    if verdict is Verdict.THROTTLED:
        return Throttled(**facts, retry_after=answer.retry_after)
    if verdict is Verdict.FAILED:
        return ProcessingFailed(**facts) if upload else ServerFailed(**facts)
    is_known = answer.is_record or (answer.is_cut and not answer.size)
    is_ours = is_known if answer.status == 401 else upload or not _is_foreign(answer)
    if verdict is Verdict.REFUSED and is_ours:
        return _refusal(answer, upload=upload)(**facts)
    return UnexpectedReply(**facts)


def _is_foreign(answer: ParsedReply) -> bool:
    """Return whether an answer is not a meeting server's, unless its status says what is wrong."""
    return answer.accepted is None and answer.status not in {409, 413}


def _refusal(answer: ParsedReply, *, upload: bool) -> type[RequestRefused]:
    """Choose by HTTP status if it is specific, otherwise by the server's own code."""
    if answer.status == 401:
        return AuthenticationFailed
    if answer.status == 413 and upload:
        return DocumentRefused
    return _BY_CODE.get(answer.status_code or "", RequestRefused)


def hint_of(answer: ParsedReply) -> str | None:
    """Return how to fix what an answer refuses, if that is known."""
    if 300 <= answer.status < 400:
        target = dict(reversed(answer.headers)).get("location")
        where = f" (this one leads to {link_label(target)[:MAX_CODE_CHARACTERS]})" if target else ""
        return f"{_NO_REDIRECTS}{where}."
    if answer.status == 407:
        return "A proxy wants a user and a password: give them in the URL of the proxy."
    if answer.status == 400 and _WANTS_TLS.search(answer.body):
        return "The port speaks TLS: use https:// in the base URL."
    if answer.status == 400 and _WANTS_CERTIFICATE.search(answer.body):
        return f"A proxy wants a client certificate that it accepts: {GIVE_CERTIFICATE}."
    if answer.status == 413:
        return _TOO_LARGE if answer.is_record else _TOO_LARGE_FOR_PROXY
    if answer.status in {404, 405} and answer.status_code not in _BY_CODE:
        return "Is this the meeting server, and the path right, in the base URL or given to call()?"
    return _HINTS.get(answer.status_code or "")
