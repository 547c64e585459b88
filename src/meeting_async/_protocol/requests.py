"""Building requests (``docs/interface.md``): values in, a :class:`Request` out."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs

from meeting_async._models import (
    MAX_REPLY_BYTES,
    Body,
    HeaderPairs,
    Request,
    Secret,
    SignedHeaders,
)
from meeting_async._policies import Timeouts
from meeting_async._protocol.replies import json_object
from meeting_async._text import link_label, short_repr
from meeting_async.errors import ConfigurationError, InvalidInput

ACTIVE_ROOM_INFO = "room/getActiveRoomInfo"
UPLOAD_WHITEBOARD_FILE = "room/uploadWhiteboardFile"

MAX_ROOM_ID_BYTES = 1024
"""Longest room id: far longer than any in use; servers allow 8 KiB for headers."""

PLAIN_ROOM_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_ROOM_ID_BYTES}}}")
"""What known servers accept, and nearly all room ids are."""

# --- addresses and arguments ---------------------------------------------------------------------


def auth_base(base_url: object, *, allow_plaintext: bool = False) -> str:
    """Return ``{base_url}/auth`` without a trailing slash, however the base URL is written.

    A path prefix is kept; ``/auth`` is not added twice. Plain ``http`` is for loopback only: the
    signature of an upload is a lasting credential for its room.
    """
    if not isinstance(base_url, str):
        raise TypeError(f"base_url must be a str, not {type(base_url).__name__}")
    problem = _base_url_problem(base_url, allow_plaintext=allow_plaintext)
    if problem:
        label = short_repr(link_label(base_url))
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
        _ = parts.port  # raises ValueError for a port that is not a number
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
    """Return whether ``host`` is this machine, without a DNS query (RFC 6761 section 6.3)."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return f".{host}".lower().removesuffix(".").endswith(".localhost")


def host_and_port(base_url: str) -> str:
    """Return ``host:port`` of a checked URL, for errors and events."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def method_path(path: object) -> str:
    """Check a method path such as ``room/create``, relative to ``{base_url}/auth``."""
    if not isinstance(path, str):
        raise TypeError(f"path must be a str, not {type(path).__name__}")
    bare = path.removeprefix("/")
    if not re.fullmatch(r"[\w.~-]+(/[\w.~-]+)*", bare, re.ASCII) or {".", ".."} & {
        *bare.split("/")
    }:
        raise InvalidInput(
            "path", short_repr(path), "is not a method path", "give it as in 'room/create'"
        )
    if bare.split("/")[0] == "auth":
        raise InvalidInput(
            "path", short_repr(path), "repeats /auth, which is added for you", "leave it out"
        )
    return bare


@attrs.frozen
class Room:
    """A room, as it is named: the same bytes are signed and sent."""

    id: str
    raw: bytes


def room_of(room_id: object) -> Room:
    """Check and encode a room id.

    See ``docs/interface.md``, Authentication. Blanks at the ends are refused: HTTP strips them from
    a header's value (RFC 9110 section 5.5), so the signature would not match. So is everything else
    that a header cannot contain.
    """
    if not isinstance(room_id, str):
        raise TypeError(f"room_id must be a str, not {type(room_id).__name__}")
    problem = _room_id_problem(room_id)
    if problem:
        raise InvalidInput("room_id", short_repr(room_id), problem, "pass the id of an active room")
    return Room(room_id, room_id.encode("utf-8"))


def _room_id_problem(room_id: str) -> str | None:
    if not room_id:
        return "is empty"
    if PLAIN_ROOM_ID.fullmatch(room_id):
        return None
    if room_id != room_id.strip():
        return "starts or ends with a blank, which would be trimmed and break the signature"
    if re.search(r"[\x00-\x1f\x7f\x80-\x9f]", room_id):
        return "contains control characters"
    if re.search(r"[\ud800-\udfff]", room_id):
        return "contains characters that are not valid Unicode"
    if len(room_id.encode("utf-8")) > MAX_ROOM_ID_BYTES:
        return f"is longer than {MAX_ROOM_ID_BYTES:,} bytes"
    return None


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_bytes(payload: object) -> bytes:
    """Serialise a JSON body once: the same bytes are signed and sent."""
    if not isinstance(payload, Mapping):
        raise TypeError(f"payload must be a mapping, not {type(payload).__name__}")
    try:
        body = _ENCODER.encode(dict(payload)).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_json(payload, f"cannot be written as JSON: {short_repr(str(error))}") from None
    if json_object(body) is None:  # {1: …, "1": …}, or nested too deep to be read again
        raise _no_json(payload, "makes JSON that cannot be read back")
    return body


def active_room_body(room: Room) -> bytes:
    """Return the body of ``getActiveRoomInfo``."""
    return _ENCODER.encode({"room_id": room.id}).encode("utf-8")


def _no_json(payload: Mapping[Any, Any], problem: str) -> InvalidInput:
    given = f"a {type(payload).__name__} of {len(payload)} items"
    return InvalidInput("payload", given, problem, "use JSON's types, and str for names")


def default_header_pairs(headers: Mapping[str, str] | None) -> HeaderPairs:
    """Check and encode headers that are sent with every request.

    Raises:
        ConfigurationError: A header cannot be sent, or this library sets it itself.

    """
    if headers is not None and not isinstance(headers, Mapping):
        raise TypeError(f"default_headers must be a mapping, not {type(headers).__name__}")
    return tuple(_checked_header(name, value) for name, value in (headers or {}).items())


def _checked_header(name: object, value: object) -> tuple[bytes, bytes]:
    if not isinstance(name, str) or not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", name, re.ASCII):
        raise _bad_header(name, "is not a valid header name", "use letters, digits and -")
    if name.lower() in _OWN_HEADERS:
        raise _bad_header(name, "is set by this library", "leave it out")
    if not isinstance(value, str) or not re.fullmatch(
        r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?", value
    ):
        fix = "encode it, without line breaks and without blanks at the ends"
        raise _bad_header(name, "has a value that is not printable ASCII text", fix)
    return name.encode("ascii"), Secret(value.encode("ascii"))  # it may be a proxy's password


def _bad_header(name: object, problem: str, fix: str) -> ConfigurationError:
    return ConfigurationError("default_headers", short_repr(name), problem, fix)


_OWN_HEADERS = frozenset(
    {"accept", "accept-encoding", "api-key", "connection", "content-length", "content-type"}
    | {"expect", "hash-signature", "host", "room-id", "transfer-encoding", "upgrade"}
)

# --- requests ------------------------------------------------------------------------------------


def json_request(
    url: str,
    body: bytes,
    signed: SignedHeaders,
    extra: HeaderPairs,
    timeouts: Timeouts,
    *,
    idempotent: bool,
    max_reply_bytes: int = MAX_REPLY_BYTES,
    cut_reply: bool = False,
    room: Room | None = None,
) -> Request:
    """Build a JSON call; ``body`` is what was signed.

    ``room`` goes into a header, as that of an upload: so a balancer can choose the instance by it.
    """
    headers = (
        *_auth_headers(signed),
        *(() if room is None else ((b"Room-Id", room.raw),)),
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"%d" % len(body)),
        *_COMMON_HEADERS,
        *extra,
    )
    return Request(
        url=url,
        headers=headers,
        body=body,
        connect_timeout=timeouts.connect,
        stall_timeout=timeouts.send_stall,
        reply_timeout=timeouts.reply,
        max_reply_bytes=max_reply_bytes,
        cut_reply=cut_reply,
        idempotent=idempotent,
        is_check=room is not None,
    )


def upload_request(
    url: str,
    room: Room,
    content_type: bytes,
    body: bytes | Body,
    signed: SignedHeaders,
    extra: HeaderPairs,
    timeouts: Timeouts,
    *,
    peer: Any = None,
    idempotent: bool = False,
) -> Request:
    """Build an upload, or the question with an empty form; ``room`` is what was signed."""
    length = len(body) if isinstance(body, bytes) else body.length
    headers = (
        *_auth_headers(signed),
        (b"Room-Id", room.raw),
        (b"Content-Type", content_type),
        (b"Content-Length", b"%d" % length),
        *_COMMON_HEADERS,
        *extra,
    )
    is_question = isinstance(body, bytes)
    return Request(
        url=url,
        headers=headers,
        body=body,
        connect_timeout=timeouts.connect,
        stall_timeout=timeouts.send_stall,
        reply_timeout=timeouts.reply if is_question else timeouts.upload_reply,
        idempotent=idempotent,
        peer=peer,
    )


_COMMON_HEADERS: HeaderPairs = ((b"Accept", b"application/json"), (b"Accept-Encoding", b"identity"))


def _auth_headers(signed: SignedHeaders) -> HeaderPairs:
    for field in ("api_key", "signature"):
        if not _sendable(getattr(signed, field)):
            fix = "fix the signer that returned it"
            raise InvalidInput(field, "(hidden)", "cannot be sent in a header", fix)
    return (
        (b"API-KEY", Secret(signed.api_key.encode("ascii"))),
        (b"HASH-SIGNATURE", Secret(signed.signature.encode("ascii"))),
    )


def _sendable(value: object) -> bool:
    """Return whether a header can contain the value; its frame has no plain copy of it."""
    return isinstance(value, str) and _SENDABLE.fullmatch(value) is not None


_SENDABLE = re.compile(r"[\x21-\x7e]+")
