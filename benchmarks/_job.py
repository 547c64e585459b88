"""What every client is told to do, and what it signs its requests with."""

from __future__ import annotations

import hmac
import json
import ssl

import attrs

API_KEY = "benchmark-key"
API_SECRET = "benchmark-secret"
ROOM_ID = "room01"
DOCUMENT_TYPE = "application/pdf"


@attrs.frozen
class UploadJob:
    """Two uploads to one server. The first, a small one, gets the client started."""

    base_url: str
    warm_up: str
    """Path of the document that is sent first and not measured."""
    document: str
    """Path of the document whose upload is measured."""
    ca_file: str | None = None
    """Certificates (PEM) that the server's is checked against; ``None``: no TLS."""

    @property
    def url(self) -> str:
        """Where the documents go (interface section 4.2)."""
        return upload_url(self.base_url)

    def context(self) -> ssl.SSLContext | None:
        """Return what the Python clients check the server's certificate with."""
        return ssl.create_default_context(cafile=self.ca_file) if self.ca_file else None


@attrs.frozen
class CallsJob:
    """Small calls, so many at a time, for so long."""

    base_url: str
    concurrency: int
    seconds: float
    """Afterwards no new call is begun."""

    @property
    def url(self) -> str:
        """Where the calls go (interface section 4.1)."""
        return f"{self.base_url}/auth/room/getActiveRoomInfo"


@attrs.frozen
class ManyJob:
    """Uploads of one document to so many rooms, all begun at once."""

    base_url: str
    document: str
    uploads: int

    @property
    def url(self) -> str:
        """Where the documents go (interface section 4.2)."""
        return upload_url(self.base_url)

    @property
    def rooms(self) -> list[str]:
        """The rooms, each of which gets the document once."""
        return [f"room{number:04}" for number in range(self.uploads)]


def upload_url(base_url: str) -> str:
    """Return where documents go (interface section 4.2)."""
    return f"{base_url}/auth/room/uploadWhiteboardFile"


def signature(message: bytes) -> str:
    """Sign as interface section 5 says."""
    return hmac.digest(API_SECRET.encode(), message, "sha256").hex()


def signed_headers(room_id: str = ROOM_ID) -> dict[str, str]:
    """Return the headers of an upload (interface section 5 rule 3), for the other clients."""
    return {
        "API-KEY": API_KEY,
        "HASH-SIGNATURE": signature(room_id.encode()),
        "Room-Id": room_id,
        "Accept": "application/json",
        "Accept-Encoding": "identity",
    }


def signed_call() -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a small call (interface section 5 rule 2), made anew."""
    body = json.dumps({"room_id": ROOM_ID}).encode()
    headers = {
        "API-KEY": API_KEY,
        "HASH-SIGNATURE": signature(body),
        "Content-Type": "application/json",
    }
    return body, headers
