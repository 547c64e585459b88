"""Requests and replies as values, and the signature of a request (``docs/interface.md``)."""

from __future__ import annotations

import hashlib
import hmac
import http
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, Self, TypeAlias

import attrs

from meeting_async.testing._files import Form

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

HeaderPairs: TypeAlias = tuple[tuple[str, str], ...]

TOO_LARGE = "Request Entity Too Large"
"""The phrase of 413 in RFC 7231; newer Pythons have that of RFC 9110."""

BASE_PATH = "/auth"
UPLOAD_PATH = "/room/uploadWhiteboardFile"

REFUSALS: Mapping[str, int] = MappingProxyType(
    {
        "CONFLICT": 409,
        "INTERNAL_SERVER_ERROR": 500,
        "INVALID_API_KEY": 401,
        "INVALID_PARAMETERS": 400,
        "INVALID_TOKEN_OR_SIGNATURE": 401,
        "MISSING_REQUIRED_PARAMETER": 400,
        "ROOM_NOT_ACTIVE": 400,
        "ROOM_NOT_FOUND": 400,
        "USER_NOT_ACTIVE": 400,
    }
)
"""The server's own refusals by ``status_code``, with their HTTP status in the answer to an upload.
JSON calls answer those with 400 as 200."""


def method_path(path: str) -> str:
    """Return a path without ``/auth``, in lower case and without a slash at its end."""
    return "/" + path.lower().strip("/").removeprefix(BASE_PATH.strip("/") + "/")


class Cut(ConnectionResetError):
    """Ends a request without an answer: a socket is reset; in process the caller gets this."""

    def __init__(self) -> None:
        super().__init__("the meeting server cut the connection, as its script says")


@attrs.frozen
class Reply:
    """An answer. ``status_code`` is the name in the server's own record, if it has one."""

    status: int
    body: bytes = b""
    headers: HeaderPairs = ()
    status_code: str = ""

    @classmethod
    def from_json(cls, status: int, value: object, headers: HeaderPairs = ()) -> Self:
        """Answer with a JSON text."""
        body = json.dumps(value, ensure_ascii=False).encode()
        record = value if isinstance(value, dict) else {}
        pairs = (("content-type", "application/json"), *headers)
        return cls(status, body, pairs, str(record.get("status_code", "")))

    @classmethod
    def plain(cls, status: int, *, close: bool = False) -> Self:
        """Answer with a status and its phrase, without the server's own record."""
        pairs = (("content-type", "text/plain; charset=utf-8"),)
        closing = (("connection", "close"),) if close else ()
        phrase = TOO_LARGE if status == 413 else http.HTTPStatus(status).phrase
        return cls(status, phrase.encode(), pairs + closing)

    def pairs(self, *, with_length: bool = True) -> list[tuple[bytes, bytes]]:
        """Return all headers in lower case, a Content-Length among them, as ASGI wants them."""
        given = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in self.headers]
        if not with_length:
            return [pair for pair in given if pair[0] != b"content-length"]
        if any(name in {b"content-length", b"transfer-encoding"} for name, _ in given):
            return given
        return [*given, (b"content-length", b"%d" % len(self.body))]

    def head(self, *, with_length: bool = True) -> bytes:
        """Write the status line and the headers as HTTP/1.1."""
        pairs = self.pairs(with_length=with_length)
        lines = [b"HTTP/1.1 %d Scripted" % self.status, *(b": ".join(pair) for pair in pairs)]
        return b"\r\n".join([*lines, b"", b""])


class Refused(Exception):
    """A request gets this reply instead of what it asks for."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply)
        self.reply = reply


def success(msg: str, **fields: object) -> Reply:
    """Answer 200 with the server's own record and further ``fields``."""
    return Reply.from_json(200, {"status": True, "msg": msg, "status_code": "SUCCESS"} | fields)


def refusal(status: int, status_code: str, msg: str) -> Refused:
    """Refuse with the server's own record."""
    record = {"status": False, "msg": msg, "status_code": status_code}
    return Refused(Reply.from_json(status, record))


def refusal_for(status_code: str, msg: str, path: str) -> Reply:
    """Refuse a request to ``path`` by a name of `REFUSALS`."""
    status = REFUSALS[status_code]
    is_call = status == 400 and method_path(path) != method_path(UPLOAD_PATH)
    return refusal(200 if is_call else status, status_code, msg).reply


@attrs.frozen
class Request:
    """A request with its whole body: a form if it is multipart, bytes otherwise."""

    method: str
    path: str
    headers: Mapping[bytes, bytes]
    """The first value of each header, by its name in lower case, without blanks around it."""
    body: bytes | Form

    @property
    def room_id(self) -> bytes:
        """The value of the Room-Id header."""
        return self.headers.get(b"room-id", b"")


def authenticate(request: Request, api_key: str, api_secret: str) -> None:
    """Refuse a request whose key or signature is missing or wrong, in this order.

    The signature is over Room-Id for a multipart request, and over the raw body for any other.
    """
    key, signature = (request.headers.get(name, b"") for name in (b"api-key", b"hash-signature"))
    if not key:
        raise refusal(401, "MISSING_REQUIRED_PARAMETER", "API-KEY header is required")
    if not hmac.compare_digest(key, api_key.encode()):
        raise refusal(401, "INVALID_API_KEY", "the API key is not known")
    if not signature:
        raise refusal(401, "MISSING_REQUIRED_PARAMETER", "HASH-SIGNATURE header is required")
    message = request.room_id if isinstance(request.body, Form) else request.body
    if isinstance(request.body, Form) and not message:
        raise refusal(401, "MISSING_REQUIRED_PARAMETER", "Room-Id header is required")
    expected = hmac.new(api_secret.encode(), message, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(signature, expected.encode("ascii")):
        raise refusal(401, "INVALID_TOKEN_OR_SIGNATURE", "the signature does not match")
