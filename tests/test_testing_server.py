"""The meeting server in process: forms, clock, lock window and conversions.

Bodies and signatures are made by hand here; the library's client takes no part.
"""

import hashlib
import hmac
import json
import math
import runpy
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import anyio
import httpx
import pytest
import trio
import trio.testing

from meeting_async import testing
from meeting_async.testing import MeetingServer
from meeting_async.testing._files import safe_name
from meeting_async.testing._kinds import media_type

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
UPLOAD = "/auth/room/uploadWhiteboardFile"
INFO = "/auth/room/getActiveRoomInfo"

# Computed once with: printf '%s' MESSAGE | openssl dgst -sha256 -hmac devsecret
OPENSSL_VECTORS = {
    "room01": "534a9003352821d9a2341ea637e5954fefe0c38183ba670232734bd522f304a2",
    "raum-ä": "fb67804c8b180f029f447292efdb5f825d487e58d497aee695658ccc10ea7d94",
    '{"room_id":"room01"}': "9a9769cf292ab2212e826d5982693b84e97e6a028cfb2ab4991bea3b9bf47e05",
    '{"room_id":"raum-ä","title":"會議"}': (
        "4631440bd95340bf680d2c047a227660b21092d48ba530f9c6fbf92f8623d373"
    ),
    "{}": "5cb0487a4f9e29e8b80ae40b031099ceee44ac47c40d33cece487b662ad09725",
}


def sign(message: bytes) -> str:
    """Sign as interface section 5 says."""
    return hmac.new(b"devsecret", message, hashlib.sha256).hexdigest()


def keys(message: bytes) -> dict[str, str]:
    """Make the two headers of authentication."""
    return {"API-KEY": "devkey", "HASH-SIGNATURE": sign(message)}


def connect(server: MeetingServer) -> httpx.AsyncClient:
    """Connect to the server in process."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=server), base_url="http://meeting.test"
    )


async def upload(server: MeetingServer, room_id: str = "room01", data: bytes = PDF) -> int:
    """Upload a document and return the HTTP status."""
    async with connect(server) as client:
        reply = await client.post(
            UPLOAD,
            headers={**keys(room_id.encode()), "Room-Id": room_id},
            files={"document": ("deck.pdf", data, "application/pdf")},
        )
    return reply.status_code


async def post_form(
    server: MeetingServer, body: bytes | AsyncIterator[bytes], content_type: str | None = None
) -> httpx.Response:
    """Post a hand-made form with the boundary XX to room01."""
    headers = {
        **keys(b"room01"),
        "Room-Id": "room01",
        "Content-Type": content_type or "multipart/form-data; boundary=XX",
    }
    async with connect(server) as client:
        return await client.post(UPLOAD, headers=headers, content=body)


def part(disposition: str, data: bytes, *headers: str) -> bytes:
    """Write one part of a form."""
    lines = [f"Content-Disposition: form-data; {disposition}", *headers]
    head = "".join(f"{line}\r\n" for line in ("--XX", *lines, ""))
    return head.encode() + data + b"\r\n"


def virtual(main: Callable[[], Awaitable[None]]) -> None:
    """Run on trio in virtual time that starts at 0."""
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.fixture
def server() -> MeetingServer:
    """Make a server with one room that keeps what it receives."""
    server = MeetingServer(keep_content=True)
    server.add_room("room01")
    return server


# Both event loops


async def test_an_upload_is_recorded_with_its_checksum(server: MeetingServer) -> None:
    """A room tells name, size, checksum, types and content of what it received."""
    before = anyio.current_time()
    assert await upload(server) == 200
    (file,) = server.rooms["room01"].received
    assert (file.name, file.stored_name, file.size) == ("deck.pdf", "deck.pdf", len(PDF))
    assert file.sha256 == hashlib.sha256(PDF).hexdigest()
    assert (file.content_type, file.media_type) == ("application/pdf", "application/pdf")
    assert file.via == "document"
    assert file.content == PDF
    assert before <= file.at <= anyio.current_time()


async def test_content_is_not_kept_unless_asked() -> None:
    """By default nothing of the document stays in memory."""
    server = MeetingServer()
    room = server.add_room("room01")
    await upload(server)
    assert room.received[0].content is None


async def test_a_large_document_costs_no_memory() -> None:
    """24 MiB arrive in chunks of 256 KiB; what is allocated meanwhile stays under 4 MiB."""
    server = MeetingServer()
    room = server.add_room("room01")
    chunk = bytes(range(256)) * 1024

    async def body() -> AsyncIterator[bytes]:
        yield part('name="document"; filename="deck.pdf"', PDF).removesuffix(b"\r\n")
        for _ in range(96):
            yield chunk
        yield b"\r\n--XX--\r\n"

    tracemalloc.start()
    try:
        assert (await post_form(server, body())).status_code == 200
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 1024**2
    assert room.received[0].size == len(PDF) + 96 * len(chunk)
    assert room.received[0].sha256 == hashlib.sha256(PDF + chunk * 96).hexdigest()


async def test_requests_are_recorded_without_secrets(server: MeetingServer) -> None:
    """The log has method, path, room, status and body size, and no key or signature."""
    await upload(server)
    body = b'{"room_id":"room02"}'
    async with connect(server) as client:
        await client.post(INFO, headers=keys(body), content=body)
        await client.get(INFO)
    first, second, third = server.requests
    assert (first.method, first.path, first.status) == ("POST", UPLOAD, 200)
    assert first.room_id == "room01"
    assert first.body_bytes > len(PDF)
    assert (second.room_id, second.body_bytes, second.status) == ("room02", len(body), 200)
    assert (third.method, third.room_id, third.status) == ("GET", None, 405)
    shown = repr([server, server.settings, server.requests, dict(server.rooms)])
    assert not any(s in shown for s in ("devkey", "devsecret", sign(b"room01"), sign(body)))


async def test_a_body_that_never_ends_is_never_accepted(server: MeetingServer) -> None:
    """A client that is cancelled in the middle of its body leaves nothing but a log line."""

    async def body() -> AsyncIterator[bytes]:
        yield b"--XX\r\n"
        await anyio.sleep(60)

    with anyio.move_on_after(0.05):
        await post_form(server, body())
    (request,) = server.requests
    assert (request.status, request.body_bytes) == (None, 6)
    assert server.rooms["room01"].accepted == ()
    assert not server.rooms["room01"].locked


@pytest.mark.parametrize(("message", "signature"), OPENSSL_VECTORS.items())
async def test_openssl_signatures_are_accepted(message: str, signature: str) -> None:
    """Signatures computed by openssl are right for Room-Id headers and for JSON bodies."""
    server = MeetingServer()
    server.add_room("room01")
    server.add_room("raum-ä")
    is_call = message.startswith("{")
    headers = [(b"API-KEY", b"devkey"), (b"HASH-SIGNATURE", signature.encode())]
    headers += [] if is_call else [(b"Room-Id", message.encode())]
    async with connect(server) as client:
        path, body = (INFO, message.encode()) if is_call else (UPLOAD, b"")
        right = await client.post(path, headers=headers, content=body)
        headers[1] = (b"HASH-SIGNATURE", signature.upper().encode())
        wrong = await client.post(path, headers=headers, content=body)
    assert right.status_code == (200 if "room_id" in message else 400)
    assert wrong.status_code == 401
    assert wrong.json()["status_code"] == "INVALID_TOKEN_OR_SIGNATURE"


async def test_other_protocols_are_met_politely(server: MeetingServer) -> None:
    """Under a server that offers lifespan or websockets: nothing to do, and closed."""
    sent: list[str] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["type"])

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "lifespan.startup"}

    await server({"type": "lifespan"}, receive, send)
    await server({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


# Forms


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('name="document"; filename="deck.pdf"', "deck.pdf"),
        ('name="document"; filename="Präsentation · 會議 😀.pdf"', "Präsentation · 會議 😀.pdf"),
        (r'name="document"; filename="a \"b\"; c.pdf"', 'a "b"; c.pdf'),
        ('name="document"; filename="../../etc/passwd"', "../../etc/passwd"),
        ("filename=plain.pdf; name=document", "plain.pdf"),
    ],
)
async def test_file_names_are_read_as_raw_utf8(
    server: MeetingServer, disposition: str, name: str
) -> None:
    """The name in the form is kept as the sender wrote it (RFC 7578 section 4.2)."""
    reply = await post_form(server, part(disposition, PDF) + b"--XX--\r\n")
    assert reply.status_code == 200
    assert server.rooms["room01"].received[0].name == name


async def test_a_form_may_arrive_in_any_pieces(server: MeetingServer) -> None:
    """A body that comes byte by byte, with half boundaries in the data, is put together again."""
    data = PDF + b"\r\n--X\r\n--XY\r\n-" * 3
    disposition = 'name="document"; filename="ä.pdf"'
    body = part('name="other"', b"ignored")
    body += part(disposition, data, "Content-Type: application/x-slides") + b"--XX--\r\nepilogue"

    async def bytewise() -> AsyncIterator[bytes]:
        for index in range(len(body)):
            yield body[index : index + 1]

    assert (await post_form(server, bytewise())).status_code == 200
    (file,) = server.rooms["room01"].received
    assert (file.name, file.content, file.content_type) == ("ä.pdf", data, "application/x-slides")


DOCUMENT = part('name="document"; filename="deck.pdf"', PDF)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (part('name="other"; filename="a.pdf"', PDF) + b"--XX--\r\n", "MISSING_REQUIRED_PARAMETER"),
        (part('name="document"', PDF) + b"--XX--\r\n", "MISSING_REQUIRED_PARAMETER"),
        (
            part('name="document_link"; filename="x"', b"http://127.0.0.1/") + b"--XX--\r\n",
            "MISSING_REQUIRED_PARAMETER",
        ),
        (DOCUMENT, "INVALID_PARAMETERS"),
        (DOCUMENT + b"--XX", "INVALID_PARAMETERS"),
        (DOCUMENT + DOCUMENT + b"--XX--\r\n", "INVALID_PARAMETERS"),
        (b"no form at all", "INVALID_PARAMETERS"),
        (b"", "INVALID_PARAMETERS"),
        (
            part('name="document_link"', b"x" * (64 * 1024 + 1)) + b"--XX--\r\n",
            "INVALID_PARAMETERS",
        ),
    ],
    ids=["neither", "no-name", "link-file", "no-end", "half-end", "two", "junk", "empty", "long"],
)
async def test_a_bad_form_is_refused_and_the_lock_released(
    server: MeetingServer, body: bytes, code: str
) -> None:
    """A form without exactly one usable file is 400 and does not hold the room."""
    reply = await post_form(server, body)
    assert (reply.status_code, reply.json()["status_code"]) == (400, code)
    assert not server.rooms["room01"].locked
    assert server.rooms["room01"].accepted == ()


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "multipart/form-data", f"multipart/form-data; boundary={'X' * 300}"],
)
async def test_a_body_that_is_no_form_is_refused(server: MeetingServer, content_type: str) -> None:
    """Another content type, no boundary or an overlong one is 400."""
    reply = await post_form(server, DOCUMENT + b"--XX--\r\n", content_type)
    assert (reply.status_code, reply.json()["status_code"]) == (400, "INVALID_PARAMETERS")


async def test_a_locked_room_answers_before_the_form_is_judged(server: MeetingServer) -> None:
    """A form with neither field meets the lock first: 409, then 400 once the room is free."""
    room = server.rooms["room01"]
    room.lock()
    assert (await post_form(server, b"--XX--\r\n")).status_code == 409
    room.unlock()
    assert (await post_form(server, b"--XX--\r\n")).status_code == 400


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("deck.pdf", "deck.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\talks\\a.ppt", "a.ppt"),
        ("a\nb\x00.pdf", "a_b_.pdf"),
        ("..", "document"),
        ("", "document"),
        ("ä" * 200 + ".pdf", "ä" * 125 + ".pdf"),
        ("x" * 300, "x" * 255),
        ("a." + "x" * 300, "a." + "x" * 253),
    ],
)
def test_safe_names_are_short_basenames(name: str, safe: str) -> None:
    """A stored name is a printable basename of at most 255 bytes that keeps its ending."""
    assert safe_name(name) == safe
    assert len(safe_name(name).encode()) <= 255


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"%PDF-1.4", "application/pdf"),
        (b"PK\x03\x04rest", "application/zip"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
        (b"{\\rtf1 text}", "application/rtf"),
        ("Grüße\n".encode(), "text/plain"),
        ("é".encode() * 2047 + "é".encode()[:1], "text/plain"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8", "image/webp"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"<?xml version='1.0'?><svg/>", "image/svg+xml"),
        (b"\x7fELF", ""),
        (b"\xfe\xfd", ""),
        (b"", ""),
    ],
)
def test_kinds_are_told_by_content(head: bytes, kind: str) -> None:
    """The first bytes decide what a file is; cut characters at their end do not matter."""
    assert media_type(head) == kind


# Virtual time


def test_a_second_upload_is_refused_until_the_first_is_converted() -> None:
    """409 while a conversion runs, 200 at the very moment it ends."""
    server = MeetingServer(processing_seconds=10)
    room = server.add_room("room01")
    seen: list[tuple[float, int]] = []

    async def at(moment: float) -> None:
        await trio.sleep_until(moment)
        status = await upload(server)
        seen.append((trio.current_time(), status))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for moment in (0.0, 5.0, 9.999, 10.0, 15.0):
                nursery.start_soon(at, moment)

    virtual(main)
    assert seen == [(5.0, 409), (9.999, 409), (10.0, 200), (15.0, 409), (20.0, 200)]
    assert [file.at for file in room.received] == [0.0, 10.0]


@pytest.mark.parametrize(
    ("processing", "status", "ended", "received"), [(300.0, 200, 300.0, 1), (300.5, 500, 300.0, 0)]
)
def test_a_conversion_times_out_with_the_lock(
    processing: float, status: int, ended: float, received: int
) -> None:
    """What takes longer than the lock's 300 s fails then, and the room is free again."""
    server = MeetingServer()
    room = server.add_room("room01")
    room.processing_seconds = processing

    async def main() -> None:
        assert await upload(server) == status
        assert trio.current_time() == ended
        assert not room.locked
        await trio.sleep(1000)
        assert (len(room.received), len(room.accepted)) == (received, 1)

    virtual(main)


def test_processing_goes_on_after_the_client_left() -> None:
    """A cancelled upload whose body had arrived is converted all the same."""
    server = MeetingServer(processing_seconds=60)
    room = server.add_room("room01")

    async def main() -> None:
        with trio.move_on_after(5) as patience:
            await upload(server)
        assert patience.cancelled_caught
        assert (len(room.accepted), room.received, room.locked) == (1, (), True)
        assert server.requests[0].status is None
        await trio.sleep_until(59.9)
        assert (room.received, room.locked) == ((), True)
        assert await upload(server) == 409
        await trio.sleep_until(60)
        assert (len(room.received), room.locked) == (1, False)

    virtual(main)


def test_the_answer_may_come_before_the_conversion_ends() -> None:
    """With reply_after the handler answers 200 early while the room stays locked."""
    server = MeetingServer(processing_seconds=10, reply_after=2)
    room = server.add_room("room01")

    async def main() -> None:
        assert await upload(server) == 200
        assert (trio.current_time(), room.received, room.locked) == (2.0, (), True)
        assert await upload(server) == 409
        await trio.sleep_until(10)
        assert (len(room.received), room.locked) == (1, False)
        room.fail_conversion = True
        assert await upload(server) == 200
        await trio.sleep(100)
        assert len(room.received) == 1

    virtual(main)


def test_a_failed_conversion_is_a_500_with_the_servers_own_record() -> None:
    """fail_conversion: 500 at the end of processing, nothing on the list, the room is free."""
    server = MeetingServer(processing_seconds=3)
    room = server.add_room("room01")
    room.fail_conversion = True

    async def main() -> None:
        reply = await post_form(server, DOCUMENT + b"--XX--\r\n")
        assert trio.current_time() == 3.0
        assert reply.status_code == 500
        assert reply.json()["status"] is False
        assert reply.json()["status_code"] == "INTERNAL_SERVER_ERROR"
        assert (room.received, room.locked) == ((), False)
        room.fail_conversion = False
        assert await upload(server) == 200

    virtual(main)
    assert len(room.received) == 1  # outside the loop: as of the last time the server saw


def test_a_room_can_be_locked_by_somebody_else() -> None:
    """lock() holds for the server's window or as long as told, unlock() frees at once."""
    server = MeetingServer()
    room = server.add_room("room01")

    async def main() -> None:
        room.lock()
        await trio.sleep_until(299.999)
        assert await upload(server) == 409
        await trio.sleep_until(300)
        assert await upload(server) == 200
        room.lock(10)
        assert await upload(server) == 409
        await trio.sleep(10)
        assert await upload(server) == 200
        room.lock(math.inf)
        await trio.sleep(80_000)
        assert await upload(server) == 409
        room.unlock()
        assert await upload(server) == 200

    virtual(main)


def test_a_lock_needs_a_clock() -> None:
    """Outside the event loop an in-process server has no time to lock a room for."""
    room = MeetingServer().add_room("room01")
    assert not room.locked
    with pytest.raises(RuntimeError, match="inside the loop"):
        room.lock()


def test_scripted_replies_come_late_and_a_given_number_of_times() -> None:
    """reply_next answers in place of the server: status, body, headers, delay, path, times."""
    server = MeetingServer()
    room = server.add_room("room01")
    server.reply_next(503, headers=[("Retry-After", "7")], body=b"busy", times=2)
    server.reply_next(200, json={"ä": None}, headers={"X-A": "b"}, path=INFO, delay=4)

    async def main() -> None:
        async with connect(server) as client:
            for _ in range(2):
                reply = await client.post("/auth/recording/fetch", content=b"{}")
                assert (reply.status_code, reply.content) == (503, b"busy")
                assert reply.headers["retry-after"] == "7"
            assert await upload(server) == 200
            assert trio.current_time() == 0.0
            reply = await client.post(INFO, content=b"{}")
            assert trio.current_time() == 4.0
            assert (reply.json(), reply.headers["x-a"]) == ({"ä": None}, "b")
            assert reply.headers["content-type"] == "application/json"
            assert (await client.post(INFO, content=b"{}")).status_code == 401

    virtual(main)
    assert len(room.received) == 1


# Arguments


def test_a_scripted_reply_has_one_body() -> None:
    """Body and json together are a mistake of the caller, as is a reply for no request."""
    server = MeetingServer()
    with pytest.raises(TypeError, match="either a body or json"):
        server.reply_next(200, body=b"x", json={})
    with pytest.raises(ValueError, match="times"):
        server.reply_next(200, times=0)


def test_settings_and_rooms_are_checked() -> None:
    """Impossible limits and a second room of the same id are refused."""
    with pytest.raises(ValueError, match="lock_seconds"):
        MeetingServer(lock_seconds=0)
    server = MeetingServer(api_key="a", api_secret="b")
    assert (server.api_key, server.api_secret) == ("a", "b")
    server.add_room("room01")
    with pytest.raises(ValueError, match="room01"):
        server.add_room("room01")
    with pytest.raises(RuntimeError, match="no URL"):
        server.host_file("deck.pdf", PDF)


def test_the_room_record_has_the_documented_shape() -> None:
    """64-bit integers are strings, metadata is JSON text, flags are numbers."""
    room = MeetingServer().add_room("room01", title="Physik", participants=["Ada"])
    info = room.info()
    assert info["joined_participants"] == "2"
    assert str(info["creation_time"]).isdecimal()
    assert info["is_running"] == 1
    assert json.loads(str(info["metadata"])) == {"room_title": "Physik"}
    people = room.participants_info()
    assert [person["name"] for person in people] == ["Presenter", "Ada"]
    assert [json.loads(str(p["metadata"]))["is_presenter"] for p in people] == [True, False]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the packages of the extra the import says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    assert testing.__file__
    with pytest.raises(ImportError, match=r'pip install "meeting-async\[testing\]"'):
        runpy.run_path(testing.__file__)


def test_the_contents_are_listed() -> None:
    """`__all__` is sorted and complete."""
    # pytest puts names of its own, none of which can be written, into packages that have a plugin.
    visible = {name for name in vars(testing) if name.isidentifier() and name[0] != "_"}
    assert testing.__all__ == sorted(visible)
