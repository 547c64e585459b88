"""Requests written by hand: raw bytes, signatures and forms, and worlds to send them to."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs

from meeting_async.testing import MeetingServer, Room
from support.documents import PDF

UPLOAD = "/auth/room/uploadWhiteboardFile"
INFO = "/auth/room/getActiveRoomInfo"
FORM = "multipart/form-data; boundary=XX"

Headers = Mapping[str, str | bytes | None]


@attrs.frozen
class Answer:
    """A reply, taken apart by hand; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def record(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def code(self) -> tuple[int, str]:
        """HTTP status, and the status_code of the server's own record or the plain text."""
        if not self.body.startswith(b"{"):
            return self.status, self.body.decode()
        record = self.record
        assert isinstance(record["status"], bool)
        assert isinstance(record["msg"], str)
        return self.status, record["status_code"]


def sign(message: bytes, secret: bytes = b"devsecret") -> str:
    """Sign as ``docs/interface.md`` says (Authentication)."""
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def request(path: str, body: bytes, headers: Headers, method: str = "POST") -> bytes:
    """Write a request; a header that is ``None`` is left out."""
    given: dict[str, str | bytes | None] = {"Host": "x", "Content-Length": str(len(body))}
    lines = [f"{method} {path} HTTP/1.1".encode()]
    for name, value in (given | dict(headers)).items():
        if value is not None:
            raw = value if isinstance(value, bytes) else value.encode()
            lines.append(name.encode() + b": " + raw)
    return b"\r\n".join([*lines, b"", body])


def call(path: str, body: object, **changes: str | bytes | None) -> bytes:
    """Write a signed JSON call: ``body`` is bytes, or an object to be written as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "API-KEY": "devkey", "HASH-SIGNATURE": sign(raw)}
    return request(path, raw, {**headers, **_dashed(changes)})


def _dashed(changes: Headers) -> Headers:
    return {name.replace("_", "-"): value for name, value in changes.items()}


def part(disposition: str, data: bytes, *headers: str) -> bytes:
    """Write one part of a form with the boundary XX."""
    lines = ["--XX", f"Content-Disposition: form-data; {disposition}", *headers, "", ""]
    return "\r\n".join(lines).encode() + data + b"\r\n"


END = b"--XX--\r\n"


def document(data: bytes = PDF, name: str = "deck.pdf") -> bytes:
    """Write a form that carries a file."""
    content_type = "Content-Type: application/pdf"
    return part(f'name="document"; filename="{name}"', data, content_type) + END


def link(url: str) -> bytes:
    """Write a form that carries a link."""
    return part('name="document_link"', url.encode()) + END


def upload(
    body: bytes | None = None, room: str = "room01", path: str = UPLOAD, **changes: str | None
) -> bytes:
    """Write a signed upload, by default of a small PDF to room01."""
    headers = {
        "API-KEY": "devkey",
        "HASH-SIGNATURE": sign(room.encode()),
        "Room-Id": room,
        "Content-Type": FORM,
    }
    form = document() if body is None else body
    return request(path, form, {**headers, **_dashed(changes)})


def connect(url: str) -> socket.socket:
    """Open a connection."""
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=20)


def talk(url: str, raw: bytes) -> Answer:
    """Send a request on a connection of its own and read the reply."""
    with connect(url) as peer:
        peer.sendall(raw)
        return read_answer(peer, has_body=not raw.startswith(b"HEAD "))


def read_answer(peer: socket.socket, *, has_body: bool = True) -> Answer:
    """Read one reply with a Content-Length, and nothing behind it; one to HEAD has no body."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = peer.recv(1)
        assert byte, f"the reply ends in its head: {head!r}"
        head += byte
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    body = b""
    while has_body and len(body) < int(headers.get("content-length", 0)):
        chunk = peer.recv(int(headers["content-length"]) - len(body))
        assert chunk, f"the reply ends in its body: {body!r}"
        body += chunk
    return Answer(int(first.split()[1]), headers, body)


async def talk_in_process(app: Any, raw: bytes, *, piece: int = 65536) -> Answer:
    """Hand a request to an ASGI application, its body in pieces, and collect the reply."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    method, target, _ = first.decode().split(" ")
    path, _, query = target.partition("?")
    pairs = [line.split(b": ", 1) for line in lines]
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower(), value) for name, value in pairs],
    }
    pieces = [body[start : start + piece] for start in range(0, len(body), piece)] + [b""]
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers, b"".join(m["body"] for m in sent[1:]))


LIMIT = 20_000
"""``max_size_whiteboard_file``."""
BODY_LIMIT = 40_000
"""``max_body_size``."""


@attrs.frozen
class World:
    """A server with an active room, and a way to talk to it."""

    server: MeetingServer
    talk: Callable[[bytes], Answer]
    do: Callable[[Callable[[], Any]], Any]
    """Call a function where the server's clock can be read."""

    @property
    def room(self) -> Room:
        """The room "room01"."""
        return self.server.rooms["room01"]
