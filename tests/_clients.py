"""A client of a scripted transport, and what the tests of the client send with it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

from _fakes import FakeTransport
from meeting_async import MeetingClient

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)
SECRET = "s3cr3t-Kq9"
InVirtualTime = Callable[..., Any]


def connected(transport: FakeTransport, **settings: Any) -> MeetingClient:
    """Make a client of the scripted transport."""
    settings = {"api_key": "key", "api_secret": SECRET, **settings}
    return MeetingClient("https://meet.test", transport=transport, **settings)


def signature(message: bytes) -> str:
    """Sign as interface section 5 says."""
    return hmac.new(SECRET.encode(), message, hashlib.sha256).hexdigest()


def upload(client: MeetingClient, room_id: Any = "room01", document: Any = PDF, **how: Any) -> Any:
    """Upload with arguments that need not make sense."""
    name = {"filename": "deck.pdf"} if isinstance(document, bytes) else {}
    return client.upload_whiteboard_file(room_id, document, **{**name, **how})
