"""What the client makes of each scripted fault, in process and in virtual time."""

from __future__ import annotations

import httpx
import pytest

from meeting_async import MeetingClient, errors
from meeting_async.rooms import LocalRoomLocks
from meeting_async.testing import MeetingServer, run_in_virtual_time
from meeting_async.transports import HttpxTransport
from support.raw_http import PDF

UNKNOWN = "UploadOutcomeUnknown"
RETRY = {"Retry-After": "5"}
LINES: list[tuple[str, str, int]] = [
    ("room.lock(120)", "busy", 1),
    ("room.lock(120, after=0)", "busy", 1),
    ("room.active = False", "RoomNotActive", 0),
    ("room.presenter = False", "RequestRefused", 0),
    ("room.fail_conversion = True", "ProcessingFailed", 1),
    ('meeting_server.refuse_next("ROOM_NOT_FOUND")', "RoomNotFound", 0),
    ('meeting_server.refuse_next("INVALID_API_KEY")', "AuthenticationFailed", 0),
    ('meeting_server.reply_next(429, headers={"Retry-After": "5"})', "throttled", 1),
    ('meeting_server.reply_next(503, headers=RETRY, when="before_body")', "throttled", 1),
    ('meeting_server.reply_next(503, headers=RETRY, when="afterwards")', UNKNOWN, 1),
    ('meeting_server.reply_next(502, body=b"Bad Gateway")', UNKNOWN, 0),
    ('meeting_server.reply_next(504, when="afterwards")', UNKNOWN, 1),
    ('meeting_server.reply_next(408, when="afterwards")', UNKNOWN, 1),
    ('meeting_server.reply_next(200, body=b"<html>", when="afterwards")', UNKNOWN, 1),
    ("meeting_server.lose_next_reply()", UNKNOWN, 1),
    ("meeting_server.cut_next_reply(after=10)", UNKNOWN, 1),
    ("meeting_server.double_next_reply()", "accepted", 1),
    ("meeting_server.flood_next_reply()", UNKNOWN, 1),
    ("meeting_server.flood_next_reply(interim=True)", UNKNOWN, 1),
    ("meeting_server.delay_next_reply(60)", UNKNOWN, 1),
    ("meeting_server.cut_next_upload(after=65536)", "partial", 1),
    ("meeting_server.cut_next_upload(times=5)", "UploadInterrupted", 0),
]
"""A line of a test, what becomes of an upload of 128 KiB (``timeout=50``), documents accepted."""


def client_of(server: MeetingServer) -> MeetingClient:
    """Make a client for a server in process."""
    borrowed = httpx.AsyncClient(transport=httpx.ASGITransport(app=server))
    return MeetingClient(
        "http://localhost",
        api_key="devkey",
        api_secret="devsecret",
        transport=HttpxTransport(borrowed),
        room_locks=LocalRoomLocks(),
    )


@pytest.mark.parametrize(("line", "meaning", "count"), LINES)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_what_the_client_makes_of_it(backend: str, line: str, meaning: str, count: int) -> None:
    """Each line is known for what it stands for; told as an error, or as the first verdict."""
    server = MeetingServer()
    room = server.add_room("room01")

    async def main() -> str:
        exec(line, {"room": room, "meeting_server": server, "RETRY": RETRY})
        async with client_of(server) as client:
            timeout = None if "lock" in line else 50
            try:
                receipt = await client.upload_whiteboard_file(
                    "room01", PDF.ljust(2**17), filename="deck.pdf", timeout=timeout
                )
            except errors.MeetingError as error:
                return type(error).__name__
            return str(receipt.attempts[0].verdict)

    assert run_in_virtual_time(main, backend=backend) == meaning
    assert len(room.accepted) == count
