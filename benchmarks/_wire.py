"""What every client sends: addresses, signatures, forms (``docs/interface.md``)."""

from __future__ import annotations

import hmac
import json
import ssl
from pathlib import Path

API_KEY = "benchmark-key"
API_SECRET = "benchmark-secret"
ROOM_ID = "room01"
DOCUMENT_TYPE = "application/pdf"
CALL_PATH = "/auth/room/getActiveRoomInfo"
UPLOAD_PATH = "/auth/room/uploadWhiteboardFile"

FORM_HEAD = b'--b\r\nContent-Disposition: form-data; name="document"; filename="a.pdf"\r\n\r\n'
FORM_TAIL = b"\r\n--b--\r\n"
FORM_TYPE = "multipart/form-data; boundary=b"
"""Of forms that are made by hand."""

DATE = "Sat, 28 Nov 2026 12:00:00 GMT"
"""Of all answers, and of all stored documents."""

# Without a room_id, as it answers for each room.
ACTIVE = {
    "status": True,
    "msg": "success",
    "room": {
        "room_info": {
            "room_title": "Room 1",
            "sid": "SID_0123456789abcdef",
            "joined_participants": 1,
            "is_running": True,
            "creation_time": "1700000000",
            "metadata": '{"room_title":"Room 1"}',
        },
        "participants_info": [
            {"sid": "PA_0123456789", "identity": "1", "name": "Ann", "state": "ACTIVE"}
        ],
    },
}
ACCEPTED = {"status": True, "msg": "accepted", "status_code": "SUCCESS"}
REFUSED = {"status": False, "msg": "not signed"}


def signature(message: bytes) -> str:
    """Sign a message."""
    return hmac.digest(API_SECRET.encode(), message, "sha256").hex()


def upload_headers(room_id: str = ROOM_ID) -> dict[str, str]:
    """Return the headers of an upload, for the other clients."""
    return {
        "API-KEY": API_KEY,
        "HASH-SIGNATURE": signature(room_id.encode()),
        "Room-Id": room_id,
        "Accept": "application/json",
        "Accept-Encoding": "identity",
    }


def signed_call() -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a small call, made anew."""
    body = json.dumps({"room_id": ROOM_ID}).encode()
    headers = {
        "API-KEY": API_KEY,
        "HASH-SIGNATURE": signature(body),
        "Content-Type": "application/json",
    }
    return body, headers


def reply(status: str, payload: object, *, close: bool = False) -> bytes:
    """Return a whole reply."""
    content = json.dumps(payload).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nDate: {DATE}\r\n"
    head += "Connection: close\r\n" if close else ""
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def stored(size: int) -> bytes:
    """Return the answer to HEAD for a stored document."""
    head = f"HTTP/1.1 200 OK\r\nDate: {DATE}\r\nLast-Modified: {DATE}\r\n"
    return f"{head}Content-Length: {size}\r\n\r\n".encode()


def client_context(ca_file: str | None) -> ssl.SSLContext | None:
    """Return what Python clients check a certificate with; ``None``: no TLS."""
    return ssl.create_default_context(cafile=ca_file) if ca_file else None


def make_document(path: Path, size: int) -> Path:
    """Write a file that begins like a PDF."""
    block = (b"%PDF-1.7\n" + bytes(range(256)) * 4096)[: 2**20]
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])
    return path
