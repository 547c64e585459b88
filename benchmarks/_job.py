"""What every client is told to do: the same two uploads, with the same headers."""

from __future__ import annotations

import hmac

import attrs

API_KEY = "benchmark-key"
API_SECRET = "benchmark-secret"
ROOM_ID = "room01"
DOCUMENT_TYPE = "application/pdf"


@attrs.frozen
class Job:
    """Two uploads to one server. The first, a small one, gets the client started."""

    base_url: str
    warm_up: str
    """Path of the document that is sent first and not measured."""
    document: str
    """Path of the document whose upload is measured."""
    backend: str = "asyncio"
    """Event loop of the Python clients: ``asyncio`` or ``trio``."""

    @property
    def url(self) -> str:
        """Where the documents go (interface section 4.2)."""
        return f"{self.base_url}/auth/room/uploadWhiteboardFile"


def signed_headers() -> dict[str, str]:
    """Return the headers of an upload (interface section 5 rule 3), for the other clients."""
    signature = hmac.digest(API_SECRET.encode(), ROOM_ID.encode(), "sha256").hex()
    return {
        "API-KEY": API_KEY,
        "HASH-SIGNATURE": signature,
        "Room-Id": ROOM_ID,
        "Accept": "application/json",
        "Accept-Encoding": "identity",
    }
