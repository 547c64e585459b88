"""Each row of the table of real servers' behaviour, through real HTTP, as the caller sees it."""

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest

from meeting_async import (
    ActiveRoom,
    Document,
    HttpxTransport,
    LockPolicy,
    MeetingClient,
    Reply,
    Request,
    RetryPolicy,
    Turnstile,
)
from meeting_async.errors import (
    AuthenticationFailed,
    DocumentRefused,
    MeetingError,
    ProcessingFailed,
    ReplyError,
    RequestRefused,
    RoomBusy,
    RoomNotActive,
    RoomNotFound,
    ServerFailed,
    Throttled,
    UnexpectedReply,
    UploadOutcomeUnknown,
)
from meeting_async.testing import MeetingServer

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)
LIMIT, BODY_LIMIT = 2000, 4000
HTML = b"<html><body><h1>nginx</h1></body></html>"
AS_HTML = {"content-type": "text/html"}


@pytest.fixture(scope="module")
def running_server() -> Iterator[MeetingServer]:
    """Run one server with small limits for all tests: starting one takes longer than a test."""
    server = MeetingServer(max_size_whiteboard_file=LIMIT, max_body_size=BODY_LIMIT)
    with server.run():
        yield server


@pytest.fixture
def server(running_server: MeetingServer) -> MeetingServer:
    """Give the server new rooms and an empty memory; room01 is active with a presenter."""
    state = running_server._state
    state.rooms.clear()
    state.log._entries.clear()
    state.faults._queue.clear()
    running_server.add_room("room01")
    running_server.add_room("ended", active=False)
    running_server.add_room("alone", presenter=False)
    return running_server


def connected(server: MeetingServer, **settings: Any) -> MeetingClient:
    """Make a client of the server that repeats nothing."""
    usual = {
        "api_key": server.api_key,
        "api_secret": server.api_secret,
        "retry": RetryPolicy(max_attempts=1),
        "lock": LockPolicy(jitter=0, min_delay=0.05),
        "room_gate": Turnstile(),  # what one client loses shall not keep the next one waiting
    }
    return MeetingClient(server.url, **{**usual, **settings})


async def upload(
    client: MeetingClient, room_id: str = "room01", data: bytes = PDF, **how: Any
) -> Any:
    """Upload a small document."""
    return await client.upload_whiteboard_file(room_id, data, **{"filename": "deck.pdf", **how})


@asynccontextmanager
async def running(server: MeetingServer, port: int = 0) -> AsyncGenerator[str, None]:
    """Run a server from within a test; starting and stopping wait for its thread."""
    serving = server.run(port=port)
    yield await anyio.to_thread.run_sync(serving.__enter__)
    await anyio.to_thread.run_sync(serving.__exit__, None, None, None)


async def refusal_of(awaitable: Any) -> Any:
    """Return the error that it ends with."""
    with pytest.raises(MeetingError) as caught:
        await awaitable
    return caught.value


def facts(error: ReplyError) -> tuple[type[ReplyError], int, str | None]:
    """Say what the caller can tell errors apart by."""
    assert error.msg
    assert len(error.attempts) == 1
    return type(error), error.status, error.status_code


@attrs.define
class Meddling:
    """A transport with a proxy in it that changes requests on the way."""

    change: Callable[[Request], Request]
    inner: HttpxTransport = attrs.field(factory=HttpxTransport)

    async def send(self, request: Request, /) -> Reply:
        """Change and send."""
        return await self.inner.send(self.change(request))

    async def aclose(self) -> None:
        """Close."""
        await self.inner.aclose()


def without(name: bytes) -> Meddling:
    """Strip a header."""
    return Meddling(
        lambda request: attrs.evolve(
            request, headers=tuple(pair for pair in request.headers if pair[0] != name)
        )
    )


def with_form(*parts: bytes) -> Meddling:
    """Replace the form by another one."""

    def change(request: Request) -> Request:
        body = b"".join(b"--XX\r\n" + part + b"\r\n" for part in parts) + b"--XX--\r\n"
        replaced = {
            b"Content-Type": b"multipart/form-data; boundary=XX",
            b"Content-Length": b"%d" % len(body),
        }
        headers = tuple((name, replaced.get(name, value)) for name, value in request.headers)
        return attrs.evolve(request, headers=headers, body=body)

    return Meddling(change)


# --- what is examined, in which order ------------------------------------------------------------


async def test_refusals_come_after_the_whole_body(server: MeetingServer) -> None:
    """Wrong key, ended room and locked room cost a full upload each: hence look, and wait long."""
    server.rooms["room01"].lock(60)
    async with connected(server) as client, connected(server, api_key="other") as stranger:
        await refusal_of(upload(stranger))
        await refusal_of(upload(client, "ended"))
        await refusal_of(upload(client, max_wait=0))
    assert [request.status for request in server.requests] == [401, 400, 409]
    assert all(request.body_bytes > len(PDF) for request in server.requests)


@pytest.mark.parametrize(
    ("settings", "status_code", "note"),
    [
        ({"api_key": "other"}, "INVALID_API_KEY", "API key"),
        ({"api_secret": "other"}, "INVALID_TOKEN_OR_SIGNATURE", "secret"),
        ({"transport": b"API-KEY"}, "MISSING_REQUIRED_PARAMETER", "proxy"),
        ({"transport": b"HASH-SIGNATURE"}, "MISSING_REQUIRED_PARAMETER", "proxy"),
    ],
    ids=["key", "signature", "no key", "no signature"],
)
async def test_401_says_which_of_the_three(
    server: MeetingServer, settings: dict[str, Any], status_code: str, note: str
) -> None:
    """Wrong key, wrong signature, missing header: one type, told apart by ``status_code``."""
    if "transport" in settings:
        settings = {"transport": without(settings["transport"])}
    async with connected(server, **settings) as client:
        for awaitable in each_method(client):
            error = await refusal_of(awaitable)
            assert facts(error) == (AuthenticationFailed, 401, status_code)
            assert error.room_id == "room01"
            assert any(note in text for text in error.__notes__)


def each_method(client: MeetingClient) -> Iterator[Awaitable[Any]]:
    """Upload, ask and call, one after the other."""
    yield upload(client)
    yield client.get_active_room_info("room01")
    yield client.call("room/create", {"room_id": "room01"})


ROWS: list[tuple[Mapping[str, Any], type[ReplyError], int, str]] = [
    ({"transport": b"Room-Id"}, AuthenticationFailed, 401, "INVALID_TOKEN_OR_SIGNATURE"),
    ({"room_id": "nowhere"}, RoomNotFound, 400, "ROOM_NOT_FOUND"),
    ({"room_id": "ended"}, RoomNotActive, 400, "ROOM_NOT_ACTIVE"),
    ({"room_id": "alone"}, RequestRefused, 400, "USER_NOT_ACTIVE"),
    ({"form": []}, RequestRefused, 400, "MISSING_REQUIRED_PARAMETER"),
    ({"data": b"a" * (LIMIT + 1)}, DocumentRefused, 413, "INVALID_PARAMETERS"),
    ({"data": PNG}, RequestRefused, 400, "INVALID_PARAMETERS"),
    ({"data": b"\0\1\2"}, RequestRefused, 400, "INVALID_PARAMETERS"),
]


@pytest.mark.parametrize(("given", "kind", "status", "status_code"), ROWS)
async def test_refused_uploads(
    server: MeetingServer,
    given: Mapping[str, Any],
    kind: type[ReplyError],
    status: int,
    status_code: str,
) -> None:
    """Each reason in the order of examination, as a typed error; the room receives nothing."""
    settings: dict[str, Any] = {"allow_images": True}
    if "transport" in given:
        settings["transport"] = without(given["transport"])
    if "form" in given:
        settings["transport"] = with_form(*given["form"])
    how = {name: given[name] for name in ("room_id", "data") if name in given}
    async with connected(server, **settings) as client:
        error = await refusal_of(upload(client, **how))
        assert facts(error) == (kind, status, status_code)
        assert (error.operation, error.room_id) == (
            "room/uploadWhiteboardFile",
            how.get("room_id", "room01"),
        )
        assert not server.rooms["room01"].accepted
        assert not server.rooms["room01"].locked
    assert len(server.requests) == 1


async def test_a_form_with_neither_field_meets_the_lock_first(server: MeetingServer) -> None:
    """Locked: 409. Free: refused, and the lock is released at once."""
    async with connected(server, transport=with_form()) as client:
        server.rooms["room01"].lock(60)
        assert isinstance(await refusal_of(upload(client, max_wait=0)), RoomBusy)
        server.rooms["room01"].unlock()
        assert (await refusal_of(upload(client))).status == 400
        assert (await refusal_of(upload(client))).status == 400


async def test_a_failed_conversion(server: MeetingServer) -> None:
    """500 in the server's own record: it has the document and could not convert it."""
    server.rooms["room01"].fail_conversion = True
    async with connected(server, delivery="at_least_once", retry=RetryPolicy()) as client:
        error = await refusal_of(upload(client))
    assert facts(error) == (ProcessingFailed, 500, "INTERNAL_SERVER_ERROR")
    assert isinstance(error, ServerFailed)
    assert len(server.requests) == 1


# --- the lock ------------------------------------------------------------------------------------


async def test_a_locked_room(server: MeetingServer) -> None:
    """409 with CONFLICT: waited for, or told."""
    room = server.rooms["room01"]
    async with connected(server) as client:
        room.lock(60)
        error = await refusal_of(upload(client, max_wait=0.2))
        assert isinstance(error, RoomBusy)
        assert error.room_id == "room01"
        assert {attempt.status for attempt in error.attempts} == {409}
        assert {attempt.verdict for attempt in error.attempts} == {"busy"}
        room.lock(0.3)
        receipt = await upload(client)
    assert [attempt.status for attempt in receipt.attempts][-2:] == [409, 200]
    assert 0.2 < receipt.seconds < 5


async def test_processing_that_outlives_its_lock() -> None:
    """The lock ends with its window; the operation times out (interface section 3)."""
    server = MeetingServer(lock_seconds=0.2, processing_seconds=30)
    room = server.add_room("room01")
    async with running(server), connected(server) as client:
        error = await refusal_of(upload(client))
        assert facts(error) == (ProcessingFailed, 500, "INTERNAL_SERVER_ERROR")
        assert not room.locked
        assert not room.received


@pytest.mark.alone
async def test_an_upload_right_after_a_200_can_meet_one_409() -> None:
    """200 may come before the lock is released: the first delay is short."""
    server = MeetingServer(processing_seconds=0.2, reply_after=0)
    room = server.add_room("room01")
    async with running(server):
        async with connected(server, lock=LockPolicy()) as client:
            first = await upload(client, filename="first.pdf")
            second = await upload(client, filename="second.pdf")
        assert first.seconds < 0.2
        assert [attempt.verdict for attempt in second.attempts] == ["busy", "accepted"]
        assert second.seconds < 2
        assert [file.name for file in room.accepted] == ["first.pdf", "second.pdf"]


# --- sizes ---------------------------------------------------------------------------------------


async def test_the_size_limit_allows_equality(server: MeetingServer) -> None:
    """A document of just the limit is taken; one byte more is 413 in the server's record."""
    async with connected(server) as client:
        receipt = await upload(client, data=b"a" * LIMIT, filename="deck.txt")
        assert receipt.size == LIMIT
        error = await refusal_of(upload(client, data=b"a" * (LIMIT + 1), filename="deck.txt"))
    assert facts(error)[:2] == (DocumentRefused, 413)


async def test_the_limit_of_the_whole_body(server: MeetingServer) -> None:
    """413 in plain text, early, and the connection closed: ``DocumentRefused`` each time."""
    for _ in range(10):
        async with connected(server) as client:
            error = await refusal_of(upload(client, data=b"a" * (BODY_LIMIT + 1)))
        assert facts(error) == (DocumentRefused, 413, None)
        assert "text/plain" in error.msg
    assert [room.accepted for room in server.rooms.values()] == [()] * len(server.rooms)


# --- the server's own record ---------------------------------------------------------------------

CODES = {
    "UNKNOWN_STATUS": RequestRefused,
    "SUCCESS": RequestRefused,
    "PERMISSION_DENIED": RequestRefused,
    "NOT_FOUND": RequestRefused,
    "CONFLICT": RequestRefused,
    "INVALID_TOKEN_OR_SIGNATURE": AuthenticationFailed,
    "INVALID_API_KEY": AuthenticationFailed,
    "INTERNAL_SERVER_ERROR": RequestRefused,
    "INVALID_PARAMETERS": RequestRefused,
    "MISSING_REQUIRED_PARAMETER": RequestRefused,
    "ROOM_NOT_FOUND": RoomNotFound,
    "USER_NOT_FOUND": RequestRefused,
    "USER_BLOCKED": RequestRefused,
    "USER_NOT_ACTIVE": RequestRefused,
    "ROOM_NOT_ACTIVE": RoomNotActive,
    "A_NAME_OF_TOMORROW": RequestRefused,
    "": RequestRefused,
}


@pytest.mark.parametrize("status", [200, 400])
async def test_every_status_code(server: MeetingServer, status: int) -> None:
    """Known names become our errors, unknown ones stay text; ``status: false`` is never success."""
    async with connected(server) as client:
        for code, kind in CODES.items():
            refused = {"status": False, "msg": "no", "status_code": code}
            server.reply_next(status, json=refused, times=3)
            for awaitable in each_method(client):
                error = await refusal_of(awaitable)
                assert facts(error) == (kind, status, code)
                assert error.msg == "no"
    assert {request.status for request in server.requests} == {status}
    assert len(server.requests) == 3 * len(CODES)


async def test_a_successful_upload(server: MeetingServer) -> None:
    """The server's words reach the receipt, the document its room."""
    async with connected(server) as client:
        receipt = await upload(client)
    assert (receipt.status_code, receipt.msg) == ("SUCCESS", "file uploaded successfully")
    assert receipt.raw == {
        "status": True,
        "msg": "file uploaded successfully",
        "status_code": "SUCCESS",
    }
    (file,) = server.rooms["room01"].received
    assert (file.name, file.size) == ("deck.pdf", len(PDF))
    assert file.sha256 == hashlib.sha256(PDF).hexdigest()


async def test_the_same_name_twice_is_two_entries(server: MeetingServer) -> None:
    """Nothing deduplicates."""
    async with connected(server) as client:
        await upload(client)
        await upload(client)
    assert [file.name for file in server.rooms["room01"].received] == ["deck.pdf"] * 2


# --- rooms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room_id", "kind", "code"),
    [("nowhere", RoomNotFound, "ROOM_NOT_FOUND"), ("ended", RoomNotActive, "ROOM_NOT_ACTIVE")],
)
async def test_asking_for_a_room_that_is_not_there(
    server: MeetingServer, room_id: str, kind: type[ReplyError], code: str
) -> None:
    """HTTP 200 with ``status: false`` is an error all the same."""
    async with connected(server) as client:
        error = await refusal_of(client.get_active_room_info(room_id))
    assert facts(error) == (kind, 200, code)
    assert error.room_id == room_id


async def test_asking_for_an_active_room(server: MeetingServer) -> None:
    """64-bit integers in strings, flags as 0 and 1, metadata as JSON text: all made plain."""
    server.rooms["room01"].participants = ("Ann", "Bob")
    async with connected(server) as client:
        room = await client.get_active_room_info("room01")
    assert isinstance(room, ActiveRoom)
    assert (room.room_id, room.title, room.sid) == (
        "room01",
        "room01",
        server.rooms["room01"].sid,
    )
    assert (room.is_running, room.is_recording) == (True, False)
    assert isinstance(room.raw["room"]["room_info"]["creation_time"], str)
    assert isinstance(room.creation_time, int)
    assert room.joined_participants == 3
    assert room.metadata == {"room_title": "room01"}
    assert [person.name for person in room.participants] == ["Presenter", "Ann", "Bob"]
    assert room.participants[0].metadata == {"is_presenter": True}


async def test_unusual_room_ids_are_sent(server: MeetingServer) -> None:
    """Legal on the wire: the same bytes are signed and sent."""
    for room_id in ("raum ä", "会議/1", 'a"b;c', "%2F"):
        room = server.add_room(room_id)
        async with connected(server) as client:
            await upload(client, room_id)
            assert (await client.get_active_room_info(room_id)).room_id == room_id
        assert len(room.received) == 1


# --- names ---------------------------------------------------------------------------------------


NAMES = ['a "quoted" name.pdf', "a;b.pdf", "Übung - 漢字 😀.pdf", "e" * 400 + ".pdf", "%41.pdf"]


async def test_file_names(server: MeetingServer) -> None:
    """Only the basename is sent; the server makes a safe one of at most 255 bytes of it."""
    async with connected(server) as client:
        for name in NAMES:
            await upload(client, filename=f"/home/me/{name}")
    files = server.rooms["room01"].received
    assert [file.name.replace("%22", '"') for file in files] == NAMES
    assert max(len(file.stored_name.encode()) for file in files) == 255


# --- links ---------------------------------------------------------------------------------------


async def test_a_link_is_downloaded_by_the_server(server: MeetingServer) -> None:
    """Asked with HEAD, fetched, and listed under its name."""
    url = server.host_file("deck.pdf", PDF, content_type="application/pdf")
    async with connected(server) as client:
        receipt = await upload_link(client, url)
    assert receipt.size is None
    (file,) = server.rooms["room01"].received
    assert (file.name, file.via) == ("deck.pdf", "document_link")
    assert file.sha256 == hashlib.sha256(PDF).hexdigest()


async def upload_link(client: MeetingClient, url: str) -> Any:
    """Upload a link."""
    return await client.upload_whiteboard_file("room01", Document.from_link(url))


async def test_a_bad_link(server: MeetingServer) -> None:
    """400 with INTERNAL_SERVER_ERROR: refused, not failed, for the link will not get better."""
    host = partial(server.host_file, content_type="application/pdf")
    bad = {
        "signed for GET only": host("deck.pdf", PDF, head=False),
        "no document": host("page.html", HTML, content_type="text/html"),
        "gone": f"{server.url}/files/0/deck.pdf",
        "too large": host("deck.pdf", PDF * LIMIT),
    }
    async with connected(server, retry=RetryPolicy()) as client:
        for problem, url in bad.items():
            error = await refusal_of(upload_link(client, url))
            expected = (RequestRefused, 400, "INTERNAL_SERVER_ERROR")
            assert facts(error) == expected, problem
            assert "link" in error.msg


# --- other calls ---------------------------------------------------------------------------------


async def test_other_signed_calls(server: MeetingServer) -> None:
    """``client.call`` reaches them all."""
    async with connected(server) as client:
        created = await client.call("room/create", {"room_id": "new", "metadata": {"ü": "ä"}})
        assert created["room_info"]["room_id"] == "new"
        active = await client.call("/room/isRoomActive", {"room_id": "new"})
        assert active["is_active"] is True
        await client.call("room/endRoom", {"room_id": "new"})
        error = await refusal_of(client.call("room/endRoom", {"room_id": "new"}))
        assert facts(error) == (RoomNotActive, 200, "ROOM_NOT_ACTIVE")
        error = await refusal_of(client.call("recording/fetch", {"room_id": "new"}))
        assert facts(error) == (RequestRefused, 404, None)


# --- a proxy in front ----------------------------------------------------------------------------


async def test_a_proxys_own_413(server: MeetingServer) -> None:
    """In HTML, from its own limit."""
    server.reply_next(413, body=HTML, headers=AS_HTML)
    async with connected(server) as client:
        assert facts(await refusal_of(upload(client))) == (DocumentRefused, 413, None)


async def test_a_proxys_timeout_while_the_server_goes_on(server: MeetingServer) -> None:
    """504 says nothing about the document."""
    await gateway_trouble(server, 504)


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_a_proxy_around_a_restart(server: MeetingServer, status: int) -> None:
    """Nor do 502 and 503 in HTML: the server may have taken it before it went down."""
    await gateway_trouble(server, status)


async def gateway_trouble(server: MeetingServer, status: int) -> None:
    """Let a proxy answer: an upload is unknown, a question is asked again."""
    server.reply_next(status, body=HTML, headers=AS_HTML, times=2)
    quick = RetryPolicy(initial_delay=0.001)
    async with connected(server, retry=quick) as client:
        error = await refusal_of(upload(client))
        assert isinstance(error, UploadOutcomeUnknown)
        assert str(status) in error.reason
        assert (error.bytes_sent, error.attempts[0].status) == (len(PDF), status)
        assert (await client.get_active_room_info("room01")).room_id == "room01"
    assert [request.status for request in server.requests] == [status, status, 200]


async def test_a_server_that_asks_for_patience(server: MeetingServer) -> None:
    """503 with Retry-After is obeyed, and told when it does not end."""
    server.reply_next(503, body=HTML, headers={"retry-after": "0"}, times=3)
    async with connected(server, retry=RetryPolicy(max_attempts=3)) as client:
        error = await refusal_of(upload(client))
        assert isinstance(error, Throttled)
        assert (error.status, error.retry_after) == (503, 0)
        assert len((await upload(client)).attempts) == 1


async def test_redirects_are_not_followed(server: MeetingServer) -> None:
    """They would replay the signature elsewhere."""
    elsewhere = {"location": server.url + "/auth/elsewhere"}
    async with connected(server) as client:
        for status in (301, 302, 303, 307, 308):
            server.reply_next(status, headers=elsewhere, times=3)
            for awaitable in each_method(client):
                assert facts(await refusal_of(awaitable)) == (RequestRefused, status, None)
    assert len(server.requests) == 15
    assert "/auth/elsewhere" not in {request.path for request in server.requests}


async def test_a_200_that_is_not_the_servers(server: MeetingServer) -> None:
    """A login page, or a server of another kind: never taken for success."""
    for body in (HTML, b"", b"null", b"[]", b"{}", b'{"status": "true"}'):
        server.reply_next(200, body=body, headers=AS_HTML)
        async with connected(server) as client:
            assert isinstance(await refusal_of(upload(client)), UploadOutcomeUnknown)


async def test_a_reply_of_another_kind_of_server(server: MeetingServer) -> None:
    """A question answered with a page ends as ``UnexpectedReply`` with a description."""
    server.reply_next(200, body=HTML, headers=AS_HTML)
    async with connected(server) as client:
        error = await refusal_of(client.get_active_room_info("room01"))
    assert facts(error) == (UnexpectedReply, 200, None)
    assert "text/html" in error.msg
    assert HTML.decode() not in str(error)


async def test_connections_that_idle_are_dropped() -> None:
    """A server that restarts between two calls costs neither a question nor an upload."""
    first, second = MeetingServer(), MeetingServer()
    for server in (first, second):
        server.add_room("room01")
    async with running(first) as url:
        client = connected(first)
        await client.get_active_room_info("room01")
        await upload(client)
    async with running(second, int(url.rpartition(":")[2])):
        await client.get_active_room_info("room01")
        await upload(client)
        await client.aclose()
    assert [request.status for request in second.requests] == [200, 200]
