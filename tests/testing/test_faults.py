"""Scripted faults: what a peer sees on the wire."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from meeting_async.testing import MeetingServer, run_in_virtual_time
from support.raw_http import (
    INFO,
    World,
    call,
    connect,
    read_answer,
    talk,
    talk_in_process,
    upload,
)

HTML = b"<html><h1>Bad Gateway</h1></html>"
ASK = call("/auth/room/isRoomActive", {"room_id": "room01"})
Script = Callable[[MeetingServer], None]


def rest(peer: socket.socket, raw: bytes) -> bytes | None:
    """Send a request and read all that comes; None if it ends in a reset."""
    with contextlib.suppress(ConnectionResetError):
        peer.sendall(raw)
        return b"".join(iter(lambda: peer.recv(65536), b""))
    return None


# --- replies ------------------------------------------------------------------------------------

REPLIES: list[tuple[int, dict[str, Any]]] = [
    (503, {"headers": {"Retry-After": "5"}, "body": HTML}),
    (504, {"body": HTML}),
    (408, {}),
    (200, {"body": HTML, "headers": [("Content-Type", "text/html")]}),
    (200, {"json": {"status": False, "msg": "ä", "status_code": "NEW"}}),
]


@pytest.mark.parametrize("when", ["before_body", "instead", "afterwards"])
def test_any_reply_at_any_moment(world: World, when: Any) -> None:
    """Only "afterwards" has the room got the document; the next request is treated as usual."""
    for status, how in REPLIES:
        world.server.reply_next(status, when=when, **how)
        answer = world.talk(upload())
        assert answer.status == status
        if "json" in how:
            assert answer.record == how["json"]
            assert answer.headers["content-type"] == "application/json"
        else:
            assert answer.body == how.get("body", b"")
            given = {name.lower(): value for name, value in dict(how.get("headers", {})).items()}
            assert given.items() <= answer.headers.items()
        seen = world.server.requests[-1]
        assert (seen.status, seen.body_bytes) == (status, 0 if when == "before_body" else 141)
    assert len(world.room.received) == len(REPLIES) * (when == "afterwards")
    assert world.talk(upload()).status == 200


def test_faults_are_taken_in_their_order_and_by_path(world: World) -> None:
    """Each request takes the first fault that is meant for it; `times` is for how many.

    A fault without a path is not for the room check that a client makes before an upload.
    """
    server = world.server
    server.reply_next(503, path="/room/uploadWhiteboardFile", times=2)
    server.refuse_next("INVALID_API_KEY", path="/auth/room/isRoomActive/")
    server.reply_next(418)
    check = call(INFO, {"room_id": "room01"})
    assert world.talk(check).status == 200
    assert [world.talk(raw).status for raw in (ASK, ASK, upload(), upload(), upload(), ASK)] == [
        *(401, 418),
        *(503, 503, 200),
        200,
    ]


REFUSALS = {"CONFLICT": 409, "INTERNAL_SERVER_ERROR": 500, "MISSING_REQUIRED_PARAMETER": 400}
REFUSALS |= {"INVALID_API_KEY": 401, "INVALID_TOKEN_OR_SIGNATURE": 401, "INVALID_PARAMETERS": 400}
REFUSALS |= {
    "ROOM_NOT_ACTIVE": 400,
    "ROOM_NOT_FOUND": 400,
    "USER_NOT_ACTIVE": 400,
    "NOT_FOUND": 400,
}


def test_refusals_by_name(world: World) -> None:
    """The server's own record with its usual status; for JSON calls 200 instead of 400."""
    for name, status in REFUSALS.items():
        world.server.refuse_next(name, msg="scripted", times=2)
        assert world.talk(upload()).code == (status, name)
        answer = world.talk(ASK)
        assert answer.status == (200 if status == 400 else status)
        assert answer.record == {"status": False, "msg": "scripted", "status_code": name}
    assert world.room.accepted == ()


# --- what only a socket can show ----------------------------------------------------------------


def accepted(server: MeetingServer) -> int:
    """Count the documents of room01."""
    return len(server.rooms["room01"].accepted)


@pytest.mark.parametrize(
    ("script", "count", "length"),
    [
        (lambda server: server.lose_next_reply(times=2), 1, None),
        (lambda server: server.lose_next_reply(when="instead", times=2), 0, None),
        (lambda server: server.lose_next_reply(when="before_body", times=2), 0, None),
        (lambda server: server.cut_next_upload(after=10, times=2), 0, None),
        (lambda server: server.cut_next_upload(times=2), 0, None),
        (lambda server: server.cut_next_reply(times=2), 1, 0),
        (lambda server: server.cut_next_reply(after=10, times=2), 1, 10),
    ],
)
def test_what_is_cut(server: MeetingServer, script: Script, count: int, length: int | None) -> None:
    """On a socket the peer sees a reset, or an end after the head and some bytes of the body.

    In process the caller gets a reset. Without an answer none is recorded.
    """
    script(server)
    with server.run() as url, connect(url) as peer:
        seen = rest(peer, upload())
        assert (seen is None) == (length is None)
    if seen is not None:
        head, _, body = seen.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"content-length: 79" in head
        assert len(body) == length
    assert (accepted(server), server.requests[0].status) == (count, None if seen is None else 200)
    with pytest.raises(ConnectionResetError, match="script"):
        anyio.run(talk_in_process, server, upload())
    assert (len(server.requests), accepted(server)) == (2, 2 * count)


def test_two_replies(server: MeetingServer) -> None:
    """The second comes unasked on the connection, which stays open; in process there is one."""
    server.double_next_reply(path="/room/uploadWhiteboardFile", times=2)
    with server.run() as url, connect(url) as peer:
        peer.sendall(upload())
        assert [read_answer(peer).status for _ in range(2)] == [200, 200]
        peer.sendall(ASK)
        assert read_answer(peer).status == 200
    assert anyio.run(talk_in_process, server, upload()).status == 200
    assert accepted(server) == 2


@pytest.mark.parametrize(("every", "when"), [(0, "afterwards"), (0.001, "before_body")])
def test_endless_interim_replies(server: MeetingServer, every: float, when: Any) -> None:
    """`100 Continue` again and again until the peer goes; the server stops at once all the same."""
    server.flood_next_reply(interim=True, every=every, when=when)
    with server.run() as url:
        with connect(url) as peer:
            peer.sendall(upload())
            seen = b"".join(peer.recv(25) for _ in range(40))
        assert set(seen.split(b"\r\n")) <= {b"HTTP/1.1 100 Continue", b"", seen[-25:].split()[-1]}
        assert talk(url, upload()).status == 200
    assert accepted(server) == (2 if when == "afterwards" else 1)


@pytest.mark.parametrize(("every", "size"), [(0, 10**6), (0.001, 300)])
def test_an_endless_reply(server: MeetingServer, every: float, size: int) -> None:
    """A valid head without a length, then bytes without end, fast or one by one."""
    server.flood_next_reply(every=every)
    with server.run() as url, connect(url) as peer:
        peer.sendall(ASK)
        seen = b""
        while len(seen) < size:
            seen += peer.recv(65536)
    head, _, body = seen.partition(b"\r\n\r\n")
    assert b"content-length" not in head
    assert body.lstrip().startswith(b'{"status": true')
    assert not body.endswith(b"}")


def test_an_endless_reply_ends_in_process(server: MeetingServer) -> None:
    """In a reset after 32 MiB, as callers keep it; interim replies are none, but silence."""
    server.flood_next_reply()
    server.flood_next_reply(interim=True)

    sizes: list[int] = []

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        async def count(message: Any) -> None:
            sizes.append(len(message.get("body", b"")))
            await send(message)

        await server(scope, receive, count)

    async def main() -> None:
        with pytest.raises(ConnectionResetError):
            await talk_in_process(counted, ASK)
        assert 31 * 1024**2 < sum(sizes) <= 32 * 1024**2
        with anyio.move_on_after(3600) as patience:
            await talk_in_process(server, ASK)
        assert patience.cancelled_caught

    run_in_virtual_time(main)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_stalls_and_delays_in_virtual_time(server: MeetingServer, backend: str) -> None:
    """Both are as long as they are said to be, and the request goes on.

    By default a stall has no end, and nothing more is read; it can be cancelled.
    """
    server.stall_next_upload(20, after=8)
    server.delay_next_reply(100)
    server.delay_next_reply(7)
    server.reply_next(200, delay=4)

    async def seconds(raw: bytes) -> float:
        began = anyio.current_time()
        await talk_in_process(server, raw, piece=16)
        return round(anyio.current_time() - began, 6)

    async def main() -> list[float]:
        took = [await seconds(raw) for raw in (upload(), ASK, ASK, ASK)]
        server.stall_next_upload(after=8)
        with anyio.move_on_after(3600) as patience:
            await seconds(upload())
        assert (patience.cancelled_caught, server.requests[-1].body_bytes) == (True, 16)
        return took

    assert run_in_virtual_time(main, backend=backend) == [120, 7, 4, 0]
    assert accepted(server) == 1


IMPOSSIBLE: list[Script] = [
    lambda server: server.cut_next_upload(after=-1),
    lambda server: server.cut_next_upload(times=0),
    lambda server: server.flood_next_reply(every=-1),
    lambda server: server.stall_next_upload(-1),
    lambda server: server.delay_next_reply(-1),
    lambda server: server.reply_next(200, when="after"),  # type: ignore[arg-type]  # under test
    lambda server: server.refuse_next("ROOM_NOT_FUOND"),
    lambda server: server.lose_next_reply(arrives_after=-1),
    lambda server: server.lose_next_reply(when="instead", arrives_after=1),
    lambda server: server.rooms["room01"].lock(-1),
    lambda server: server.rooms["room01"].lock(1, after=-1),
]


def test_impossible_faults_are_refused(server: MeetingServer) -> None:
    """Where they are scripted, not where they would happen."""
    for script in IMPOSSIBLE:
        with pytest.raises(ValueError, match="must be"):
            script(server)
    with pytest.raises(TypeError, match="either a body or json"):
        server.reply_next(200, body=b"x", json={})
