"""The script of the meeting server: each fault in one line, on a socket and in process."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from meeting_async import HttpxTransport, LockPolicy, MeetingClient, Timeouts, Turnstile
from meeting_async.errors import (
    AuthenticationFailed,
    DocumentRefused,
    MeetingError,
    ProcessingFailed,
    RequestRefused,
    RoomBusy,
    RoomNotActive,
    RoomNotFound,
    UploadInterrupted,
    UploadOutcomeUnknown,
)
from meeting_async.testing import MeetingServer

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
LARGE = PDF.ljust(32 * 1024**2)
"""More than the kernel buffers between two sockets."""
INFO = "/room/getActiveRoomInfo"


GUIDE = Path(__file__).parent.parent / "docs" / "testing.md"
ROWS = re.findall(
    r"^\| `((?:room|meeting_server)\..*?)` \| (.*) \|$", GUIDE.read_text("utf-8"), re.MULTILINE
)
"""The guide's table: what is written in a test, and what the client makes of an upload."""


@pytest.fixture(params=["socket", "in process"])
def server(request: pytest.FixtureRequest) -> Iterator[MeetingServer]:
    """Provide a server with one room."""
    server = MeetingServer(max_size_whiteboard_file=len(LARGE))
    server.add_room("room01")
    if request.param == "in process":
        yield server
        return
    with server.run():
        yield server


def connect(server: MeetingServer, **settings: Any) -> MeetingClient:
    """Make a client for a server, wherever that runs."""
    if " in process" in repr(server):
        borrowed = httpx.AsyncClient(transport=httpx.ASGITransport(app=server))
        url, transport = "http://localhost", HttpxTransport(borrowed)
    else:
        url, transport = server.url, HttpxTransport()
    return MeetingClient(
        url,
        api_key="devkey",
        api_secret="devsecret",
        transport=transport,
        room_gate=Turnstile(),
        **settings,
    )


async def upload(client: MeetingClient, data: bytes = PDF) -> list[str]:
    """Upload a document and return what its attempts came to."""
    receipt = await client.upload_whiteboard_file("room01", data, filename="deck.pdf")
    return [attempt.verdict for attempt in receipt.attempts]


@pytest.mark.parametrize(
    ("status_code", "status", "error"),
    [
        ("INTERNAL_SERVER_ERROR", 500, ProcessingFailed),
        ("INVALID_API_KEY", 401, AuthenticationFailed),
        ("INVALID_PARAMETERS", 400, RequestRefused),
        ("INVALID_TOKEN_OR_SIGNATURE", 401, AuthenticationFailed),
        ("MISSING_REQUIRED_PARAMETER", 400, RequestRefused),
        ("ROOM_NOT_ACTIVE", 400, RoomNotActive),
        ("ROOM_NOT_FOUND", 400, RoomNotFound),
        ("USER_NOT_ACTIVE", 400, RequestRefused),
    ],
)
async def test_an_upload_is_refused_by_name(
    server: MeetingServer, status_code: str, status: int, error: type[MeetingError]
) -> None:
    """The server's own record with its usual status; nothing is accepted, and once only."""
    server.refuse_next(status_code, msg="scripted")
    async with connect(server) as client:
        with pytest.raises(error) as caught:
            await upload(client)
        assert type(caught.value) is error
        assert (caught.value.status, caught.value.msg) == (status, "scripted")  # type: ignore[attr-defined]
        assert await upload(client) == ["accepted"]
    assert len(server.rooms["room01"].accepted) == 1


async def test_a_conflict_is_a_busy_room(server: MeetingServer) -> None:
    """CONFLICT is 409."""
    server.refuse_next("CONFLICT")
    async with connect(server, lock=LockPolicy(max_wait=0)) as client:
        with pytest.raises(RoomBusy):
            await upload(client)


async def test_a_call_is_refused_as_calls_are(server: MeetingServer) -> None:
    """A room that is not active is no error of HTTP there; a wrong key is."""
    server.refuse_next("ROOM_NOT_ACTIVE", path=INFO)
    server.refuse_next("INVALID_API_KEY", path=INFO)
    async with connect(server) as client:
        for error in (RoomNotActive, AuthenticationFailed):
            with pytest.raises(error):
                await client.get_active_room_info("room01")
    assert [request.status for request in server.requests] == [200, 401]


def test_an_unknown_name_is_refused() -> None:
    """A slip of the pen must not become a reply."""
    with pytest.raises(ValueError, match="ROOM_NOT_FOUND"):
        MeetingServer().refuse_next("ROOM_NOT_FUOND")


async def test_a_lost_reply_leaves_the_document_in_the_room(
    server: MeetingServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The upload is of unknown outcome, and nothing is logged about it by the server."""
    server.lose_next_reply()
    async with connect(server) as client:
        with pytest.raises(UploadOutcomeUnknown):
            await upload(client)
    assert [file.size for file in server.rooms["room01"].received] == [len(PDF)]
    assert [request.status for request in server.requests] == [None]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_lost_refusal_is_lost(server: MeetingServer) -> None:
    """Whatever the answer would have been."""
    server.rooms["room01"].active = False
    server.lose_next_reply()
    async with connect(server) as client:
        with pytest.raises(UploadOutcomeUnknown):
            await upload(client)
    assert server.rooms["room01"].accepted == ()


async def test_a_call_whose_reply_is_lost_is_repeated(server: MeetingServer) -> None:
    """Twice lost, the third time answered; uploads meanwhile are none of the fault's."""
    server.lose_next_reply(path=INFO, times=2)
    async with connect(server) as client:
        assert await upload(client) == ["accepted"]
        assert (await client.get_active_room_info("room01")).room_id == "room01"
    assert [request.status for request in server.requests] == [200, None, None, 200]


async def test_only_one_connection_is_cut(server: MeetingServer) -> None:
    """Others that are open at the time get their answers."""
    server.delay_next_reply(0.5, path=INFO)
    server.lose_next_reply(path="/room/uploadWhiteboardFile")
    async with connect(server) as client, anyio.create_task_group() as tasks:

        async def ask() -> None:
            assert (await client.get_active_room_info("room01")).room_id == "room01"

        tasks.start_soon(ask)
        await anyio.sleep(0.1)
        with pytest.raises(UploadOutcomeUnknown):
            await upload(client)
    assert [request.status for request in server.requests] == [200, None]


async def test_an_upload_is_cut_and_repeated(server: MeetingServer) -> None:
    """Cut before its end it is no danger: it is sent again."""
    server.cut_next_upload(after=65536)
    async with connect(server) as client:
        assert await upload(client, LARGE) == ["partial", "accepted"]
    first, second = server.requests
    assert (first.status, second.status) == (None, 200)
    assert 65536 <= first.body_bytes < len(LARGE) < second.body_bytes
    assert len(server.rooms["room01"].accepted) == 1


async def test_an_upload_is_cut_until_the_client_gives_up(server: MeetingServer) -> None:
    """`times` makes it a broken line."""
    server.cut_next_upload(times=9)
    async with connect(server) as client:
        with pytest.raises(UploadInterrupted):
            await upload(client, LARGE)
    assert server.rooms["room01"].accepted == ()


async def test_a_short_upload_is_cut_at_its_end(server: MeetingServer) -> None:
    """A fault that was scripted happens; here the form is out by then."""
    server.cut_next_upload(after=10 * len(PDF) + 1000)
    async with connect(server) as client:
        with pytest.raises((UploadOutcomeUnknown, UploadInterrupted)):
            await upload(client)
    assert server.rooms["room01"].accepted == ()


async def test_faults_happen_in_their_order(server: MeetingServer) -> None:
    """A reply that was scripted first is given first, though a cut strikes earlier in a request."""
    server.reply_next(413, body=b"too large")
    server.cut_next_upload()
    async with connect(server) as client:
        with pytest.raises(DocumentRefused):
            await upload(client)
        assert await upload(client, LARGE) == ["partial", "accepted"]
    assert [request.status for request in server.requests] == [413, None, 200]


@pytest.mark.parametrize("server", ["socket"], indirect=True)
async def test_a_peer_that_stops_reading_is_given_up(server: MeetingServer) -> None:
    """No progress for the time limit of sending, and the upload is sent again."""
    server.stall_next_upload(after=65536)
    async with connect(server, timeouts=Timeouts(send_stall=0.3)) as client:
        assert await upload(client, LARGE) == ["partial", "accepted"]


def test_a_stall_and_a_delay_in_virtual_time(in_virtual_time: Callable[..., Any]) -> None:
    """Both are as long as they are said to be, and the upload goes on."""
    server = MeetingServer()
    server.add_room("room01")
    server.stall_next_upload(20, after=8)
    server.delay_next_reply(100)
    server.delay_next_reply(7)

    async def main() -> tuple[float, float]:
        async with connect(server) as client:
            receipt = await client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")
            began = anyio.current_time()
            with pytest.raises(RoomNotFound):
                await client.get_active_room_info("nowhere")
            return receipt.seconds, anyio.current_time() - began

    assert in_virtual_time(main) == (120, 7)


@pytest.mark.parametrize(
    "script",
    [
        lambda server: server.cut_next_upload(after=-1),
        lambda server: server.cut_next_upload(times=0),
        lambda server: server.stall_next_upload(-1),
        lambda server: server.delay_next_reply(-1),
        lambda server: server.lose_next_reply(times=0),
    ],
)
def test_impossible_faults_are_refused(script: Callable[[MeetingServer], None]) -> None:
    """Where they are scripted, not where they would happen."""
    with pytest.raises(ValueError, match="must be"):
        script(MeetingServer())


@pytest.mark.parametrize(("line", "meaning"), [row for row in ROWS if "stall" not in row[0]])
def test_the_guide_says_what_happens(
    in_virtual_time: Callable[..., Any], line: str, meaning: str
) -> None:
    """Each line of its table means what stands beside it; a stall needs a socket, see above."""
    server = MeetingServer()
    room = server.add_room("room01")

    async def main() -> str:
        exec(line, {"room": room, "meeting_server": server})
        async with connect(server) as client:
            deadline = 50 if "delay" in line else None
            try:
                receipt = await client.upload_whiteboard_file(
                    "room01", PDF.ljust(2**18), filename="deck.pdf", deadline=deadline
                )
            except MeetingError as error:
                return f"`{type(error).__name__}`"
        return {"partial": "cut off"}.get(receipt.attempts[0].verdict, receipt.attempts[0].verdict)

    assert in_virtual_time(main) in meaning


def test_the_guide_has_a_table() -> None:
    """The test above has something to check."""
    assert len(ROWS) >= 13
