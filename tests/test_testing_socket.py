"""The meeting server on a real socket: the status table, links, curl, starting and stopping.

Plain httpx, curl and raw sockets with signatures made here; the library's client takes no part.
"""

import contextlib
import gc
import hashlib
import hmac
import logging
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest

from meeting_async.testing import MeetingServer, Room, _links
from meeting_async.testing._serving import _Gate

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)
DECK = ("deck.pdf", PDF, "application/pdf")
UPLOAD = "/auth/room/uploadWhiteboardFile"
LIMIT = 2000
BODY_LIMIT = 4000
# Computed once with: printf '%s' MESSAGE | openssl dgst -sha256 -hmac devsecret
EMPTY_SIGNATURE = "e9b98afca0aba14c686dfafda6260fd158b0f6c90a54d8a879c49672439dbeba"
ROOM01_SIGNATURE = "534a9003352821d9a2341ea637e5954fefe0c38183ba670232734bd522f304a2"


def sign(message: bytes) -> str:
    """Sign as interface section 5 says."""
    return hmac.new(b"devsecret", message, hashlib.sha256).hexdigest()


def keys(message: bytes) -> dict[str, str]:
    """Make the two headers of authentication."""
    return {"API-KEY": "devkey", "HASH-SIGNATURE": sign(message)}


def upload(url: str, room_id: str, **form: Any) -> httpx.Response:
    """Upload a form (by default a small PDF) to a room."""
    headers = {**keys(room_id.encode()), "Room-Id": room_id}
    return httpx.post(url + UPLOAD, headers=headers, **(form or {"files": {"document": DECK}}))


def call(url: str, path: str, body: bytes) -> httpx.Response:
    """Make a signed JSON call."""
    headers = {**keys(body), "Content-Type": "application/json"}
    return httpx.post(f"{url}/auth/room/{path}", headers=headers, content=body)


def record(reply: httpx.Response) -> tuple[int, str]:
    """Return HTTP status and status_code of a refusal in the server's own record."""
    fields = reply.json()
    assert set(fields) == {"status", "msg", "status_code"}
    assert fields["status"] is False
    assert isinstance(fields["msg"], str)
    return reply.status_code, fields["status_code"]


def connect(url: str) -> socket.socket:
    """Open a raw connection."""
    address = httpx.URL(url)
    return socket.create_connection((address.host, address.port), timeout=5)


def until(condition: Callable[[], object]) -> None:
    """Wait until the server's thread has come so far."""
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextlib.contextmanager
def stopping_within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer or leaves a thread or an open socket behind."""
    before = set(threading.enumerate())
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds
    assert [t for t in set(threading.enumerate()) - before if t.name == "meeting-server"] == []
    gc.collect()  # an unclosed socket warns now, and warnings are errors


@pytest.fixture(scope="module")
def shared() -> Iterator[MeetingServer]:
    """Serve small limits on a socket; each test makes a room of its own."""
    server = MeetingServer(max_size_whiteboard_file=LIMIT, max_body_size=BODY_LIMIT)
    with server.run():
        yield server


@pytest.fixture
def room(shared: MeetingServer, request: pytest.FixtureRequest) -> Room:
    """Add a room named after the test."""
    return shared.add_room(f"room-{request.node.name}")


# The status table


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"API-KEY": None}, (401, "MISSING_REQUIRED_PARAMETER")),
        ({"API-KEY": "devkex"}, (401, "INVALID_API_KEY")),
        ({"HASH-SIGNATURE": None}, (401, "MISSING_REQUIRED_PARAMETER")),
        ({"HASH-SIGNATURE": "0" * 64}, (401, "INVALID_TOKEN_OR_SIGNATURE")),
        ({"HASH-SIGNATURE": ROOM01_SIGNATURE.upper()}, (401, "INVALID_TOKEN_OR_SIGNATURE")),
        ({"Room-Id": "room02"}, (401, "INVALID_TOKEN_OR_SIGNATURE")),
        ({"Room-Id": None}, (401, "INVALID_TOKEN_OR_SIGNATURE")),
        (
            {"Room-Id": None, "HASH-SIGNATURE": EMPTY_SIGNATURE},
            (400, "MISSING_REQUIRED_PARAMETER"),
        ),
        ({}, (400, "ROOM_NOT_FOUND")),
        ({"API-KEY": "x", "HASH-SIGNATURE": "x", "Room-Id": None}, (401, "INVALID_API_KEY")),
    ],
)
def test_headers_are_examined_in_order(
    shared: MeetingServer, changes: dict[str, str | None], expected: tuple[int, str]
) -> None:
    """Key, signature, Room-Id: the first that is missing or wrong is named."""
    given = {"API-KEY": "devkey", "HASH-SIGNATURE": ROOM01_SIGNATURE, "Room-Id": "room01"}
    headers = {name: value for name, value in (given | changes).items() if value is not None}
    reply = httpx.post(shared.url + UPLOAD, headers=headers, files={"document": DECK})
    assert record(reply) == expected


def test_an_upload_is_answered_with_the_success_record(shared: MeetingServer, room: Room) -> None:
    """200 with status true, and the room has the file."""
    reply = upload(shared.url, room.room_id)
    assert reply.status_code == 200
    assert reply.json() == {
        "status": True,
        "msg": "file uploaded successfully",
        "status_code": "SUCCESS",
    }
    assert [file.sha256 for file in room.received] == [hashlib.sha256(PDF).hexdigest()]


def test_the_same_file_twice_is_two_entries(shared: MeetingServer, room: Room) -> None:
    """Nothing deduplicates."""
    for _ in range(2):
        assert upload(shared.url, room.room_id).status_code == 200
    assert len(room.received) == 2


def test_a_room_must_be_active_with_a_presenter(shared: MeetingServer, room: Room) -> None:
    """400 for a room that is not active, before the question of a presenter."""
    room.active = room.presenter = False
    assert record(upload(shared.url, room.room_id)) == (400, "ROOM_NOT_ACTIVE")
    room.active = True
    assert record(upload(shared.url, room.room_id)) == (400, "USER_NOT_ACTIVE")
    room.presenter = True
    assert upload(shared.url, room.room_id).status_code == 200


def test_a_locked_room_is_409(shared: MeetingServer, room: Room) -> None:
    """409 with CONFLICT, examined before the form."""
    room.lock(60)
    assert record(upload(shared.url, room.room_id)) == (409, "CONFLICT")
    room.unlock()
    assert upload(shared.url, room.room_id).status_code == 200


def test_neither_document_nor_link_is_400(shared: MeetingServer, room: Room) -> None:
    """A form with another field only is refused and the lock released."""
    reply = upload(shared.url, room.room_id, files={"other": (None, b"x")})
    assert record(reply) == (400, "MISSING_REQUIRED_PARAMETER")
    assert not room.locked


@pytest.mark.parametrize(("size", "status"), [(LIMIT, 200), (LIMIT + 1, 413)])
def test_the_size_limit_is_the_documents(
    shared: MeetingServer, room: Room, size: int, status: int
) -> None:
    """Equality is allowed; one byte more is a 413 with the server's own record."""
    document = ("deck.pdf", PDF.ljust(size), "application/pdf")
    reply = upload(shared.url, room.room_id, files={"document": document})
    assert reply.status_code == status
    assert reply.json()["status"] is (status == 200)
    assert [file.size for file in room.received] == [size] * (status == 200)
    assert not room.locked


@pytest.mark.parametrize("data", [PNG, b"\xff\xd8\xff\xe0", b"\x7fELF\x00", b""])
def test_images_and_unknown_files_are_400(shared: MeetingServer, room: Room, data: bytes) -> None:
    """The type is told by content, whatever name and content type say."""
    document = ("deck.pdf", data, "application/pdf")
    reply = upload(shared.url, room.room_id, files={"document": document})
    assert record(reply) == (400, "INVALID_PARAMETERS")
    assert (room.accepted, room.locked) == ((), False)


def test_a_failed_conversion_is_500(shared: MeetingServer, room: Room) -> None:
    """500 with INTERNAL_SERVER_ERROR in the server's own record."""
    room.fail_conversion = True
    assert record(upload(shared.url, room.room_id)) == (500, "INTERNAL_SERVER_ERROR")


def test_active_room_info(shared: MeetingServer, room: Room) -> None:
    """200 with status false for rooms not there or not active, else with the room."""
    body = b'{"room_id":"%s"}' % room.room_id.encode()
    reply = call(shared.url, "getActiveRoomInfo", body)
    assert reply.status_code == 200
    assert (reply.json()["status"], reply.json()["status_code"]) == (True, "SUCCESS")
    assert reply.json()["room"]["room_info"]["room_id"] == room.room_id
    assert reply.json()["room"]["participants_info"][0]["state"] == "ACTIVE"
    room.active = False
    assert record(call(shared.url, "getActiveRoomInfo", body)) == (200, "ROOM_NOT_ACTIVE")
    missing = b'{"room_id":"nowhere"}'
    assert record(call(shared.url, "getActiveRoomInfo", missing)) == (200, "ROOM_NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "INVALID_PARAMETERS"),
        (b"{", "INVALID_PARAMETERS"),
        (b"[]", "INVALID_PARAMETERS"),
        (b"[" * BODY_LIMIT, "INVALID_PARAMETERS"),
        (b'{"room_id":"\xff"}', "INVALID_PARAMETERS"),
        (b'{"room_id":7}', "INVALID_PARAMETERS"),
        (b"{}", "MISSING_REQUIRED_PARAMETER"),
    ],
)
def test_bad_json_is_400(shared: MeetingServer, body: bytes, code: str) -> None:
    """A signed body that is not a JSON object with a room is refused."""
    assert record(call(shared.url, "getActiveRoomInfo", body)) == (400, code)


def test_json_calls_are_signed_over_their_bytes(shared: MeetingServer) -> None:
    """The same JSON with one more blank has another signature."""
    path = f"{shared.url}/auth/room/isRoomActive"
    headers = keys(b'{"room_id":"room01"}')
    for body in (b'{"room_id": "room01"}', b'{"room_id":"room01"}\n'):
        reply = httpx.post(path, headers=headers, content=body)
        assert record(reply) == (401, "INVALID_TOKEN_OR_SIGNATURE")
    assert record(httpx.post(path, content=b"{}")) == (401, "MISSING_REQUIRED_PARAMETER")


def test_a_room_can_be_created_and_ended(shared: MeetingServer) -> None:
    """create, isRoomActive and endRoom change what the other calls see."""
    body = b'{"room_id":"fresh","metadata":{"room_title":"Fresh"}}'
    assert call(shared.url, "isRoomActive", body).json()["is_active"] is False
    created = call(shared.url, "create", body).json()
    assert (created["status"], created["room_info"]["room_title"]) == (True, "Fresh")
    assert call(shared.url, "isRoomActive", body).json()["is_active"] is True
    assert not shared.rooms["fresh"].presenter
    assert call(shared.url, "endRoom", body).json()["status"] is True
    assert record(call(shared.url, "endRoom", body)) == (200, "ROOM_NOT_ACTIVE")
    assert call(shared.url, "create", b'{"room_id":"fresh"}').json()["status"] is True
    assert shared.rooms["fresh"].active


def test_other_paths_and_methods(shared: MeetingServer) -> None:
    """Unknown paths are 404, other methods 405, in plain text; slashes are not repaired."""
    for path in ("/auth/recording/fetch", "/auth/room/create/", "/room/create", "/files/9/x.pdf"):
        method = "GET" if path.startswith("/files") else "POST"
        reply = httpx.request(method, shared.url + path)
        assert (reply.status_code, reply.text) == (404, "Not Found")
    reply = httpx.get(shared.url + UPLOAD)
    assert (reply.status_code, reply.text) == (405, "Method Not Allowed")
    assert reply.headers["allow"] == "POST"


# The limit of the whole body


@pytest.mark.parametrize(
    "head",
    [
        f"Content-Length: {BODY_LIMIT + 1}\r\nExpect: 100-continue\r\n\r\n",
        f"Transfer-Encoding: chunked\r\n\r\n{BODY_LIMIT + 1:x}\r\n{'x' * (BODY_LIMIT + 1)}",
    ],
    ids=["declared", "chunked"],
)
def test_an_overlong_body_is_cut_off_early(shared: MeetingServer, head: str) -> None:
    """413 in plain text before the end of the body, and the connection is closed."""
    with connect(shared.url) as raw:
        raw.sendall(f"POST {UPLOAD} HTTP/1.1\r\nHost: x\r\n{head}".encode())
        reply = b"".join(iter(lambda: raw.recv(65536), b""))
    top, _, text = reply.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in top
    assert text == b"Request Entity Too Large"


def test_a_body_of_exactly_the_limit_is_read(shared: MeetingServer) -> None:
    """Equality is allowed here too: the path is looked at."""
    reply = httpx.post(f"{shared.url}/auth/nowhere", content=bytes(BODY_LIMIT))
    assert reply.status_code == 404
    assert shared.requests[-1].body_bytes == BODY_LIMIT


def test_a_client_that_leaves_in_its_body_leaves_nothing(
    shared: MeetingServer, room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    """A reset after half the body: no answer, no lock, no file, and no noise in the log."""
    head = f"POST {UPLOAD} HTTP/1.1\r\nHost: x\r\nRoom-Id: {room.room_id}\r\n"
    with connect(shared.url) as raw:
        raw.sendall(f"{head}Content-Length: 99\r\n\r\nhalf".encode())
        until(lambda: shared.requests[-1].body_bytes == 4)
    assert upload(shared.url, room.room_id).status_code == 200
    broken = next(r for r in shared.requests if r.room_id == room.room_id)
    assert (broken.status, broken.body_bytes) == (None, 4)
    assert len(room.accepted) == 1
    noise = [r for r in caplog.records if r.levelno >= logging.WARNING and "uvicorn" in r.name]
    assert noise == []


# Links


def test_a_link_is_downloaded(shared: MeetingServer, room: Room) -> None:
    """HEAD, then GET, then it is a file like any other."""
    link = shared.host_file("Folien ä.pdf", PDF)
    before = len(shared.requests)
    reply = upload(shared.url, room.room_id, files={"document_link": (None, link)})
    assert reply.json()["status"] is True
    (file,) = room.received
    assert (file.name, file.via, file.size) == ("Folien ä.pdf", "document_link", len(PDF))
    assert file.content_type == "application/pdf"
    assert [r.method for r in shared.requests[before:]] == ["POST", "HEAD", "GET"]


def test_with_both_fields_the_link_is_taken(shared: MeetingServer, room: Room) -> None:
    """The document is ignored, as in the order of examination."""
    link = shared.host_file("linked.pdf", PDF)
    form = {"document": DECK, "document_link": (None, link)}
    assert upload(shared.url, room.room_id, files=form).status_code == 200
    assert [file.name for file in room.received] == ["linked.pdf"]


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (PDF, {"head": False}),
        (PDF, {"content_type": "text/html; charset=utf-8"}),
        (PDF, {"content_type": ""}),
        (PDF.ljust(LIMIT + 1), {}),
    ],
    ids=["get-only", "html", "untyped", "too-large"],
)
def test_a_link_to_something_else_is_refused(
    shared: MeetingServer, room: Room, data: bytes, options: dict[str, Any]
) -> None:
    """A link that HEAD refuses, of the wrong type or too large is 400; the room is free."""
    link = shared.host_file("deck.pdf", data, **options)
    reply = upload(shared.url, room.room_id, files={"document_link": (None, link)})
    assert record(reply) == (400, "INTERNAL_SERVER_ERROR")
    assert (room.accepted, room.locked) == ((), False)


def test_a_link_of_exactly_the_limit_is_taken(shared: MeetingServer, room: Room) -> None:
    """The size limit of links is that of documents."""
    link = shared.host_file("deck.odp", PDF.ljust(LIMIT))
    reply = upload(shared.url, room.room_id, files={"document_link": (None, link)})
    assert (reply.status_code, room.received[0].size) == (200, LIMIT)


@pytest.mark.parametrize(
    "link",
    ["ftp://127.0.0.1/deck.pdf", "deck.pdf", "http://[::", "http://127.0.0.1:1/deck.pdf"],
)
def test_a_bad_link_is_refused(shared: MeetingServer, room: Room, link: str) -> None:
    """What cannot be downloaded at all is 400."""
    reply = upload(shared.url, room.room_id, files={"document_link": (None, link)})
    assert record(reply) == (400, "INTERNAL_SERVER_ERROR")


def test_a_redirected_link_is_refused(shared: MeetingServer, room: Room) -> None:
    """The link must be the final one: no redirect is followed."""
    target = shared.host_file("deck.pdf", PDF)
    shared.reply_next(302, headers={"Location": target}, path="/moved", times=2)
    form = {"document_link": (None, f"{shared.url}/auth/moved")}
    assert record(upload(shared.url, room.room_id, files=form))[0] == 400
    assert shared.requests[-1].path == "/auth/moved"


def test_an_image_behind_a_link_is_refused(shared: MeetingServer, room: Room) -> None:
    """The content decides, though the link said PDF."""
    link = shared.host_file("deck.pdf", PNG)
    reply = upload(shared.url, room.room_id, files={"document_link": (None, link)})
    assert record(reply) == (400, "INVALID_PARAMETERS")
    assert not room.locked


def test_a_slow_link_is_given_up(
    shared: MeetingServer, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HEAD has its own time limit."""
    monkeypatch.setattr(_links, "HEAD_SECONDS", 0.05)
    pdf = {"Content-Type": "application/pdf"}
    shared.reply_next(200, body=PDF, headers=pdf, path="/slow", delay=0.5, times=2)
    form = {"document_link": (None, f"{shared.url}/auth/slow")}
    assert record(upload(shared.url, room.room_id, files=form)) == (400, "INTERNAL_SERVER_ERROR")


@pytest.mark.anyio
async def test_a_download_that_is_cancelled_in_process_frees_the_room(
    shared: MeetingServer,
) -> None:
    """The only place where a client that leaves takes the operation with it."""
    server = MeetingServer()
    room = server.add_room("room01")
    shared.reply_next(200, path="/hang", delay=0.5)
    headers = {**keys(b"room01"), "Room-Id": "room01"}
    form = {"document_link": (None, f"{shared.url}/auth/hang")}
    transport = httpx.ASGITransport(app=server)
    async with httpx.AsyncClient(transport=transport, base_url="http://meeting.test") as client:
        with anyio.move_on_after(0.2) as patience:
            await client.post(UPLOAD, headers=headers, files=form)
    assert patience.cancelled_caught
    assert shared.requests[-1].path == "/auth/hang"
    assert (room.accepted, room.locked) == ((), False)


# Independent clients


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("openssl")), reason="needs both")
def test_curl_with_an_openssl_signature(shared: MeetingServer, room: Room, tmp_path: Path) -> None:
    """Curl's own form and openssl's signature are accepted; another secret is refused with 401."""
    document = tmp_path / "Folien ä.pdf"
    document.write_bytes(PDF)

    def curl(secret: str) -> str:
        script = (
            'signature=$(printf %s "$1" | openssl dgst -sha256 -hmac "$2" -r | cut -d" " -f1); '
            'curl -sS -o /dev/null -w "%{http_code}" -H "API-KEY: devkey" '
            '-H "HASH-SIGNATURE: $signature" -H "Room-Id: $1" -F "document=@$3" "$4"'
        )
        arguments = [room.room_id, secret, str(document), shared.url + UPLOAD]
        command = ["sh", "-c", script, "sh", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert curl("devsecret") == "200"
    assert curl("another") == "401"
    assert [(f.name, f.sha256) for f in room.received] == [
        (document.name, hashlib.sha256(PDF).hexdigest())
    ]


@pytest.mark.anyio
async def test_received_can_be_read_from_every_loop(shared: MeetingServer, room: Room) -> None:
    """The server in its thread keeps the monotonic clock, whatever loop asks."""
    room.processing_seconds = 0.2
    headers = {**keys(room.room_id.encode()), "Room-Id": room.room_id}
    async with httpx.AsyncClient(base_url=shared.url) as client, anyio.create_task_group() as tasks:

        async def send() -> None:
            reply = await client.post(UPLOAD, headers=headers, files={"document": DECK})
            assert reply.status_code == 200

        tasks.start_soon(send)
        await anyio.to_thread.run_sync(until, lambda: room.accepted)
        assert (room.received, room.locked) == ((), True)
    assert (len(room.received), room.locked) == (1, False)


# Starting and stopping


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST / HT", b"POST /auth/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"],
    ids=["idle", "half-head", "half-body"],
)
def test_stopping_with_an_open_connection(sent: bytes) -> None:
    """A connection that says nothing more does not keep the server from stopping."""
    server = MeetingServer()
    with contextlib.ExitStack() as opened:
        with stopping_within(2), server.run() as url:
            raw = opened.enter_context(connect(url))
            raw.sendall(sent)
            if b"half" in sent:
                until(lambda: server.requests and server.requests[0].body_bytes == 4)
            else:
                assert httpx.get(url).status_code == 404  # the older connection was accepted too
        with contextlib.suppress(ConnectionResetError):
            assert raw.recv(100).startswith(b"HTTP/1.1 503 " if b"half" in sent else b"")


def test_stopping_with_an_answer_that_nobody_reads() -> None:
    """A peer that does not read megabytes of answer is cut."""
    server = MeetingServer()
    with contextlib.ExitStack() as opened, stopping_within(2), server.run() as url:
        path = server.host_file("big.bin", bytes(32 * 1024**2)).removeprefix(url)
        raw = opened.enter_context(connect(url))
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert raw.recv(1)


def test_stopping_with_a_waiting_upload() -> None:
    """An upload whose conversion goes on is answered 503 without the server's own record."""
    server = MeetingServer(processing_seconds=100)
    room = server.add_room("room01")
    with ThreadPoolExecutor() as pool:
        with stopping_within(2), server.run() as url:
            waiting = pool.submit(upload, url, "room01")
            until(lambda: room.accepted)
        assert (waiting.result().status_code, waiting.result().text) == (503, "Service Unavailable")
    assert (len(room.accepted), room.received) == (1, ())


@pytest.mark.anyio
async def test_a_request_that_comes_while_stopping_is_turned_away() -> None:
    """The gate is shut for good: nobody begins to wait behind it."""
    server = MeetingServer()
    room = server.add_room("room01")
    room.processing_seconds = 100
    gate = _Gate(server)
    gate.shut()
    headers = {**keys(b"room01"), "Room-Id": "room01"}
    transport = httpx.ASGITransport(app=gate)
    async with httpx.AsyncClient(transport=transport, base_url="http://meeting.test") as client:
        with anyio.fail_after(5):
            reply = await client.post(UPLOAD, headers=headers, files={"document": DECK})
    assert reply.status_code == 503


def test_a_server_can_run_again_but_not_twice_at_once() -> None:
    """The second run keeps the rooms; a port in use and a server in use are refused."""
    server = MeetingServer()
    room = server.add_room("room01")
    with server.run() as url:
        assert repr(server) == f"<MeetingServer {url}, 1 rooms>"
        assert upload(url, "room01").status_code == 200
        with pytest.raises(RuntimeError, match="already running"), server.run():
            pass
        other = MeetingServer()
        with pytest.raises(OSError, match="in use"), other.run(port=httpx.URL(url).port or 0):
            pass
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    with server.run() as url:
        assert upload(url, "room01").status_code == 200
    assert len(room.received) == 2
    with other.run():
        pass


@pytest.mark.parametrize(
    ("host", "shown"), [("::1", "[::1]"), ("::", "[::1]"), ("0.0.0.0", "127.0.0.1")]
)
def test_urls_name_an_address_to_connect_to(host: str, shown: str) -> None:
    """IPv6 is bracketed; a wildcard address is replaced by the loopback's."""
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    server = MeetingServer()
    with server.run(host) as url:
        assert httpx.URL(url).netloc.decode().startswith(f"{shown}:")
        assert httpx.get(url).status_code == 404


def test_serve_forever_ends_with_ctrl_c() -> None:
    """Ctrl-C stops the blocking server cleanly; on_ready was told the URL."""
    server = MeetingServer(processing_seconds=100)
    room = server.add_room("room01")
    urls: list[str] = []
    replies: list[int] = []

    def interrupt() -> None:
        replies.append(httpx.get(urls[0]).status_code)  # from here on it handles signals
        pool.submit(lambda: replies.append(upload(urls[0], "room01").status_code))
        until(lambda: room.accepted)
        os.kill(os.getpid(), signal.SIGINT)

    def on_ready(url: str) -> None:
        urls.append(url)
        pool.submit(interrupt)

    with ThreadPoolExecutor() as pool, stopping_within(2):
        server.serve_forever("127.0.0.1", 0, on_ready)
    assert replies == [404, 503]
    with pytest.raises(RuntimeError, match="no URL"):
        _ = server.url
