"""Replies as values, refusals, and the signature of a request."""

from __future__ import annotations

import hashlib
import hmac
import http
import json
from collections.abc import Mapping
from email.utils import formatdate
from typing import Self, TypeAlias

import attrs

from meeting_async.testing._files import Part
from meeting_async.testing._settings import Settings

HeaderPairs: TypeAlias = tuple[tuple[str, str], ...]

_STATUSES = frozenset(http.HTTPStatus)

TOO_LARGE = "Request Entity Too Large"
"""The phrase of 413 in RFC 7231; newer Pythons have that of RFC 9110."""

UPLOAD = "/room/uploadwhiteboardfile"
"""The path of an upload, as `method_path` returns it."""

STORED_FILE = "/download/uploadedfile"
"""The path of every stored document, as `method_path` returns it."""

REFUSALS: Mapping[str, int] = {
    "CONFLICT": 409,
    "INTERNAL_SERVER_ERROR": 500,
    "INVALID_API_KEY": 401,
    "INVALID_PARAMETERS": 400,
    "INVALID_TOKEN_OR_SIGNATURE": 401,
    "MISSING_REQUIRED_PARAMETER": 400,
    "NOT_FOUND": 400,
    "ROOM_NOT_ACTIVE": 400,
    "ROOM_NOT_FOUND": 400,
    "USER_NOT_ACTIVE": 400,
}
"""The server's own refusals by ``status_code``, with their HTTP status in the answer to an upload.
In the answer to a JSON call the status is 200 instead of 400."""


def method_path(path: str) -> str:
    """Return a path without ``/auth``, in lower case and without a slash at its end.

    Those of all stored documents are the same one.
    """
    called = "/" + path.lower().strip("/").removeprefix("auth/")
    return STORED_FILE if called.startswith(STORED_FILE + "/") else called


def http_date(seconds: float) -> str:
    """Write seconds since 1970 in the format of ``Date``; fractions are cut off."""
    return formatdate(seconds, usegmt=True)


class Cut(ConnectionResetError):
    """Ends a request in the middle of its answer, or without one; in process the caller gets this.

    A socket is reset, or closed after what was sent if ``reset`` is false.
    """

    def __init__(self, *, reset: bool = True) -> None:
        super().__init__("the meeting server cut the connection, as scripted")
        self.reset = reset


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
        code = value.get("status_code", "") if isinstance(value, dict) else ""
        return cls(status, body, (("content-type", "application/json"), *headers), str(code))

    @classmethod
    def plain(cls, status: int) -> Self:
        """Answer with a status and its phrase, without the server's own record."""
        return cls.text(status, TOO_LARGE if status == 413 else http.HTTPStatus(status).phrase)

    @classmethod
    def text(cls, status: int, text: str) -> Self:
        """Answer with a plain text."""
        return cls(status, text.encode(), (("content-type", "text/plain; charset=utf-8"),))

    def closing(self) -> Self:
        """Return the same answer with ``Connection: close``."""
        others = [pair for pair in self.headers if pair[0].lower() != "connection"]
        return attrs.evolve(self, headers=(*others, ("connection", "close")))

    def dated(self, seconds: float) -> Self:
        """Return the same answer with a ``Date``, in seconds since 1970, unless it has one."""
        if any(name.lower() == "date" for name, _ in self.headers):
            return self
        return attrs.evolve(self, headers=(*self.headers, ("date", http_date(seconds))))

    def head(self, *, with_length: bool = True) -> bytes:
        """Write the status line and the headers as HTTP/1.1."""
        given = {name.lower() for name, _ in self.headers}
        pairs = [
            pair for pair in self.headers if with_length or pair[0].lower() != "content-length"
        ]
        if with_length and not given & {"content-length", "transfer-encoding"}:
            pairs.append(("content-length", str(len(self.body))))
        phrase = http.HTTPStatus(self.status).phrase if self.status in _STATUSES else ""
        lines = [f"HTTP/1.1 {self.status} {phrase}", *map(": ".join, pairs), "", ""]
        return "\r\n".join(lines).encode("latin-1")


@attrs.define
class Refused(Exception):
    """Refuses a request, with the server's own record if it has a ``status_code``.

    ``status`` is the HTTP status; 0: that of `REFUSALS`.
    """

    status_code: str = ""
    msg: str = ""
    status: int = 0

    def reply(self, path: str) -> Reply:
        """Return the answer to a request to ``path``."""
        if not self.status_code:
            return Reply.plain(self.status).closing()
        status = self.status or REFUSALS[self.status_code]
        if status == 400 and method_path(path) != UPLOAD:
            status = 200
        record = {"status": False, "msg": self.msg, "status_code": self.status_code}
        return Reply.from_json(status, record)


def success(msg: str = "success", **fields: object) -> Reply:
    """Answer 200 with the server's own record and further ``fields``."""
    return Reply.from_json(200, {"status": True, "msg": msg, "status_code": "SUCCESS"} | fields)


def authenticate(
    settings: Settings, headers: Mapping[bytes, bytes], body: bytes | list[Part]
) -> None:
    """Refuse a request if its key or signature is missing or wrong, checked in this order.

    The signature is over Room-Id for a multipart request, and over the raw body for any other.
    """
    key, signature, room_id = (
        headers.get(name, b"") for name in (b"api-key", b"hash-signature", b"room-id")
    )
    if not key:
        raise Refused("MISSING_REQUIRED_PARAMETER", "API-KEY header is required", 401)
    if not hmac.compare_digest(key, settings.api_key.encode()):
        raise Refused("INVALID_API_KEY", "the API key is not known")
    if not signature:
        raise Refused("MISSING_REQUIRED_PARAMETER", "HASH-SIGNATURE header is required", 401)
    if isinstance(body, list) and not room_id:
        raise Refused("MISSING_REQUIRED_PARAMETER", "Room-Id header is required", 401)
    message = body if isinstance(body, bytes) else room_id
    expected = hmac.new(settings.api_secret.encode(), message, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(signature, expected.encode("ascii")):
        raise Refused("INVALID_TOKEN_OR_SIGNATURE", "the signature does not match")
