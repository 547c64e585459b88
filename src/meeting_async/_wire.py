"""The wire: what a request looks like, and what a reply says (interface sections 2 to 5).

Sans-I/O: values in, values out.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import attrs

from meeting_async._limits import link_label, shown
from meeting_async._records import HeaderPairs, Reply, SignedHeaders
from meeting_async.errors import ConfigurationError, InvalidInput

ACTIVE_ROOM_INFO = "room/getActiveRoomInfo"
UPLOAD_WHITEBOARD_FILE = "room/uploadWhiteboardFile"

MAX_ROOM_ID_BYTES = 1024
"""Longest room id: far beyond any in use, well below the 8 KiB that servers allow for headers."""


# --- requests ------------------------------------------------------------------------------------


def auth_base(base_url: object, *, allow_plaintext: bool = False) -> str:
    """Return ``{base_url}/auth`` without a trailing slash, for any way to write the base URL.

    A path prefix stays; an ``/auth`` that is already there is not repeated. Plain ``http`` is for
    loopback only, as an upload's signature is a lasting credential for its room.
    """
    if not isinstance(base_url, str):
        raise TypeError(f"base_url must be a str, not {type(base_url).__name__}")
    problem = _base_url_problem(base_url, allow_plaintext=allow_plaintext)
    if problem:
        label = shown(link_label(base_url))
        raise ConfigurationError("base_url", label, problem[0], problem[1])
    parts = urlsplit(base_url)
    prefix = parts.path.rstrip("/").removesuffix("/auth").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{prefix}/auth"


def _base_url_problem(base_url: str, *, allow_plaintext: bool) -> tuple[str, str] | None:
    example = "give one such as https://meet.example.com"
    if not base_url.isprintable() or re.search(r"[\s\\]", base_url):
        return "contains blanks, backslashes or control characters", example
    try:
        parts = urlsplit(base_url)
        host = parts.hostname
        _ = parts.port  # raises ValueError for a port that is no number
    except ValueError:
        return "is not a URL", example
    if parts.scheme not in {"http", "https"} or not host:
        return "is not an http(s) URL with a host", example
    if "@" in parts.netloc:
        return "contains a user name or password", "give api_key and api_secret instead"
    if "?" in base_url or "#" in base_url:
        return "contains a query or a fragment", "leave them out"
    if parts.scheme == "http" and not allow_plaintext and not is_loopback(host):
        return (
            "would send credentials in clear text",
            "use https, or allow_plaintext=True inside a network you trust",
        )
    return None


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` names this machine without asking a name server (RFC 6761 6.3)."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost")


def method_path(path: object) -> str:
    """Check a method path such as ``room/create``, relative to ``{base_url}/auth``."""
    if not isinstance(path, str):
        raise TypeError(f"path must be a str, not {type(path).__name__}")
    bare = path.removeprefix("/")
    if not re.fullmatch(r"[\w.~-]+(/[\w.~-]+)*", bare, re.ASCII) or {".", ".."} & {
        *bare.split("/")
    }:
        raise InvalidInput(
            "path", shown(path), "is not a method path", "give it as in 'room/create'"
        )
    if bare.split("/")[0] == "auth":
        raise InvalidInput(
            "path", shown(path), "repeats /auth, which is added for you", "leave it out"
        )
    return bare


def room_id_bytes(room_id: object) -> bytes:
    """Encode a room id once: the same bytes are signed and sent (interface section 5 rule 3).

    Blanks around a header's value are trimmed on the way (RFC 9110 section 5.5), so that the
    server would sign other bytes; they are refused, like whatever cannot stand in a header.
    """
    if not isinstance(room_id, str):
        raise TypeError(f"room_id must be a str, not {type(room_id).__name__}")
    problem = _room_id_problem(room_id)
    if problem:
        raise InvalidInput("room_id", shown(room_id), problem, "pass the id of an active room")
    return room_id.encode("utf-8")


def _room_id_problem(room_id: str) -> str | None:
    if not room_id:
        return "is empty"
    if room_id != room_id.strip():
        return "starts or ends with a blank, which would be trimmed and break the signature"
    if re.search(r"[\x00-\x1f\x7f\x80-\x9f]", room_id):
        return "contains control characters"
    if re.search(r"[\ud800-\udfff]", room_id):
        return "contains characters that are no Unicode text"
    if len(room_id.encode("utf-8")) > MAX_ROOM_ID_BYTES:
        return f"is longer than {MAX_ROOM_ID_BYTES:,} bytes"
    return None


def json_bytes(payload: object) -> bytes:
    """Serialise a JSON body once: these very bytes are signed and sent."""
    if not isinstance(payload, Mapping):
        raise TypeError(f"payload must be a mapping, not {type(payload).__name__}")
    try:
        text = json.dumps(dict(payload), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        body = text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_json(payload, f"cannot be written as JSON: {shown(str(error))}") from None
    if json_object(body) is None:  # {1: …, "1": …}, or nested too deep to be read again
        raise _no_json(payload, "makes JSON that cannot be read back")
    return body


def _no_json(payload: Mapping[Any, Any], problem: str) -> InvalidInput:
    given = f"a {type(payload).__name__} of {len(payload)} items"
    return InvalidInput("payload", given, problem, "use JSON's types, and text for names")


def json_headers(signed: SignedHeaders, body: bytes) -> HeaderPairs:
    """Headers of a JSON call (interface section 4.1)."""
    return (
        *_auth_headers(signed),
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"%d" % len(body)),
        *_COMMON_HEADERS,
    )


def upload_headers(
    signed: SignedHeaders, room: bytes, *, content_type: bytes, length: int
) -> HeaderPairs:
    """Headers of an upload (interface section 4.2); ``room`` is what was signed."""
    return (
        *_auth_headers(signed),
        (b"Room-Id", room),
        (b"Content-Type", content_type),
        (b"Content-Length", b"%d" % length),
        *_COMMON_HEADERS,
    )


_COMMON_HEADERS: HeaderPairs = ((b"Accept", b"application/json"), (b"Accept-Encoding", b"identity"))


def _auth_headers(signed: SignedHeaders) -> HeaderPairs:
    for field in ("api_key", "signature"):
        if not _sendable(getattr(signed, field)):
            fix = "mend the signer that returned it"
            raise InvalidInput(field, "(hidden)", "cannot stand in a header", fix)
    return (
        (b"API-KEY", signed.api_key.encode("ascii")),
        (b"HASH-SIGNATURE", signed.signature.encode("ascii")),
    )


def _sendable(value: object) -> bool:
    """Tell whether a header can hold it; no text of it gets into a frame of what is raised."""
    return isinstance(value, str) and re.fullmatch(r"[\x21-\x7e]+", value) is not None


# --- replies -------------------------------------------------------------------------------------


@attrs.frozen
class Answer:
    """A reply, deciphered."""

    status: int
    """HTTP status."""
    payload: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """The JSON object of the reply, if it is one."""
    retry_after: float | None = None
    """Seconds that a valid ``Retry-After`` asks to wait."""
    description: str = ""
    """What the reply is when it brought no message of the server: type and size, no content."""

    @property
    def accepted(self) -> bool | None:
        """The record's ``status``; ``None`` when there is none that is boolean."""
        status = (self.payload or {}).get("status")
        return status if isinstance(status, bool) else None

    @property
    def claims_status(self) -> bool:
        """Whether the reply has a ``status`` at all, boolean or not."""
        return "status" in (self.payload or {})

    @property
    def is_record(self) -> bool:
        """Whether this is the server's own record (interface section 2), complete and typed."""
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
        return code if isinstance(code, str) else None

    @property
    def msg(self) -> str:
        """The server's own message, else a description of the reply."""
        msg = (self.payload or {}).get("msg")
        return msg if isinstance(msg, str) and msg else self.description


def decipher(reply: Reply, *, now: float = 0.0) -> Answer:
    """Read a reply. ``now`` is the Unix time against which a date in Retry-After counts."""
    kind = (_header(reply, b"content-type") or b"no content type").decode("latin-1")
    return Answer(
        status=reply.status,
        payload=json_object(reply.content),
        retry_after=retry_after(_header(reply, b"retry-after"), now=now),
        description=f"{len(reply.content):,} bytes of {repr(kind[:80])[1:-1]}",
    )


def _header(reply: Reply, name: bytes) -> bytes | None:
    return next((value for key, value in reply.headers if key.lower() == name), None)


def json_object(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object in ``content``; ``None`` for anything else.

    Strict where leniency would guess: duplicate names and NaN make it no JSON (RFC 8259
    sections 4 and 6). A byte order mark is passed over (section 8.1).
    """
    try:
        value = json.loads(
            content.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
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


def retry_after(value: bytes | None, *, now: float) -> float | None:
    """Read a ``Retry-After`` (RFC 9110 section 10.2.3): seconds, never negative.

    Anything that is neither a plain number nor an HTTP date is ignored. Fractions are accepted,
    as servers send them. The caller caps the result.
    """
    text = (value or b"").decode("latin-1").strip()
    if re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text, re.ASCII):
        return float(text)
    if not re.match(r"[A-Za-z]{3,9},? ", text):
        return None
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    # An HTTP date is always GMT; one that forgets to say so is not this machine's local time.
    return max(0.0, moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - now)
