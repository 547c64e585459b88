"""Links that the server downloads, and files that it offers to try them out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from meeting_async.testing import MeetingServer, Room, _uploads
from support.raw_http import (
    END,
    LIMIT,
    PDF,
    Answer,
    connect,
    document,
    link,
    request,
    talk,
    talk_in_process,
    upload,
)

PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)


@pytest.fixture
def server() -> Iterator[MeetingServer]:
    """Run a server with one room."""
    server = MeetingServer(max_size_whiteboard_file=LIMIT)
    server.add_room("room01")
    with server.run():
        yield server


@pytest.fixture
def room(server: MeetingServer) -> Room:
    """Provide the room."""
    return server.rooms["room01"]


def send(server: MeetingServer, url: str) -> Answer:
    """Upload a link."""
    return talk(server.url, upload(link(url)))


def test_a_link_is_downloaded(server: MeetingServer, room: Room) -> None:
    """HEAD, then GET, then it is a file like any other."""
    assert send(server, server.host_file("Folien ä.pdf", PDF)).status == 200
    (file,) = room.received
    assert (file.name, file.via, file.size) == ("Folien ä.pdf", "document_link", len(PDF))
    assert (file.content_type, file.kind) == ("application/pdf", "pdf")
    assert [request.method for request in server.requests] == ["POST", "HEAD", "GET"]


def test_with_both_fields_the_link_is_taken(server: MeetingServer, room: Room) -> None:
    """The document is ignored, as in the order of examination."""
    both = document()[: -len(END)] + link(server.host_file("linked.pdf", PDF))
    assert talk(server.url, upload(both)).status == 200
    assert [file.name for file in room.received] == ["linked.pdf"]


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (PDF, {"head": False}),
        (PDF, {"content_type": "text/html; charset=utf-8"}),
        (PDF, {"content_type": "image/png"}),
        (PDF, {"content_type": ""}),
        (PDF.ljust(LIMIT + 1), {}),
    ],
    ids=["get-only", "html", "image", "untyped", "too-large"],
)
def test_a_link_to_something_else(
    server: MeetingServer, room: Room, data: bytes, options: dict[str, Any]
) -> None:
    """A link that HEAD refuses, of another type or too large is 400; the room is free."""
    answer = send(server, server.host_file("deck.pdf", data, **options))
    assert answer.code == (400, "INTERNAL_SERVER_ERROR")
    assert (room.accepted, room.locked) == ((), False)


def test_a_link_of_exactly_the_limit(server: MeetingServer, room: Room) -> None:
    """The size limit of links is that of documents."""
    assert send(server, server.host_file("deck.pdf", PDF.ljust(LIMIT))).status == 200
    assert [file.size for file in room.received] == [LIMIT]


def test_what_is_behind_a_link_is_judged_by_content(server: MeetingServer, room: Room) -> None:
    """Though the link said PDF, it is an image, whose conversion fails."""
    answer = send(server, server.host_file("deck.pdf", PNG))
    assert answer.code == (500, "INTERNAL_SERVER_ERROR")
    assert (room.received, room.locked) == ((), False)


def test_a_redirect_is_not_followed(server: MeetingServer) -> None:
    """The link must be the final one."""
    target = server.host_file("deck.pdf", PDF)
    server.reply_next(302, headers={"Location": target}, path="/moved", times=2)
    assert send(server, f"{server.url}/auth/moved").code == (400, "INTERNAL_SERVER_ERROR")
    assert server.requests[-1].path == "/auth/moved"


@pytest.mark.parametrize(("limit", "served"), [("HEAD_SECONDS", 0), ("DOWNLOAD_SECONDS", 1)])
def test_a_slow_link_is_given_up(
    server: MeetingServer, monkeypatch: pytest.MonkeyPatch, limit: str, served: int
) -> None:
    """HEAD and download have a time limit each."""
    monkeypatch.setattr(_uploads, limit, 0.2)
    pdf = {"Content-Type": "application/pdf"}
    if served:
        server.reply_next(200, headers=pdf, path="/slow")
    server.reply_next(200, headers=pdf, path="/slow", delay=30)
    assert send(server, f"{server.url}/auth/slow").code == (400, "INTERNAL_SERVER_ERROR")


@pytest.mark.both_loops
@pytest.mark.anyio
async def test_a_download_that_is_cancelled_in_process_frees_the_room(
    server: MeetingServer,
) -> None:
    """The only place where a client that leaves takes the operation with it."""
    inner = MeetingServer()
    room = inner.add_room("room01")
    server.reply_next(200, path="/hang", delay=30)
    async with anyio.create_task_group() as tasks:
        raw = upload(link(f"{server.url}/auth/hang"))
        tasks.start_soon(talk_in_process, inner, raw)
        with anyio.fail_after(20):
            while not server.requests:  # noqa: ASYNC110 - they come in another thread
                await anyio.sleep(0.01)
        assert room.locked
        tasks.cancel_scope.cancel()
    assert (room.accepted, room.locked) == ((), False)


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("a.pdf", "application/pdf"),
        ("a.JPG", "image/jpeg"),
        ("a.ppt", "application/vnd.ms-powerpoint"),
        ("a.odt", "application/vnd.oasis.opendocument.text"),
        ("a", "application/octet-stream"),
    ],
)
def test_a_hosted_file(server: MeetingServer, name: str, content_type: str) -> None:
    """GET and HEAD with the type that its name says; a second one of its name is another file."""
    first, second = (server.host_file(name, data) for data in (b"one", b"two"))
    path = first.removeprefix(server.url)
    answer = talk(server.url, request(path, b"", {}, "GET"))
    assert (answer.body, answer.headers["content-type"]) == (b"one", content_type)
    assert second != first
    with connect(server.url) as peer:
        peer.sendall(request(path, b"", {"Connection": "close"}, "HEAD"))
        head = b"".join(iter(lambda: peer.recv(999), b""))
    assert b"content-length: 3\r\n" in head
    assert head.endswith(b"\r\n\r\n")
    assert talk(server.url, request(path, b"", {}, "POST")).code == (404, "Not Found")
