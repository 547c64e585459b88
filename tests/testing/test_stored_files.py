"""Stored files: what ``/download/uploadedFile/{sid}/{name}`` says of documents, and of sessions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import anyio
import attrs
import pytest

from meeting_async.testing import MeetingServer, Room, run_in_virtual_time
from support.documents import PDF
from support.raw_http import (
    INFO,
    LIMIT,
    Answer,
    World,
    call,
    document,
    request,
    talk,
    talk_in_process,
    upload,
)

FILES = "/download/uploadedFile"


def ask(room: Room, name: str = "deck.pdf", method: str = "HEAD", files: str = FILES) -> bytes:
    """Ask for a document of the room's session; ``name`` is percent-encoded."""
    return request(f"{files}/{room.sid}/{name}", b"", {}, method)


def seconds(answer: Answer, header: str) -> float:
    """Read a date, in seconds since 1970."""
    return parsedate_to_datetime(answer.headers[header]).timestamp()


# --- on the wire ---------------------------------------------------------------------------------


def test_a_stored_file(world: World) -> None:
    """404 before; then size, time and content, for anybody who knows session and name."""
    missing = world.talk(ask(world.room))
    assert (missing.status, missing.body) == (404, b"")
    assert missing.headers["content-type"].startswith("text/plain")
    assert world.talk(upload()).status == 200
    for method, body in (("HEAD", b""), ("GET", PDF)):
        answer = world.talk(ask(world.room, method=method))
        assert (answer.status, answer.body) == (200, body)
        assert answer.headers["content-length"] == str(len(PDF))
        assert answer.headers["content-disposition"] == "attachment"
        assert 0 <= seconds(answer, "date") - seconds(answer, "last-modified") <= 2
    assert world.talk(ask(world.room, method="POST")).code == (404, "Not Found")
    world.server.keep_content = False
    assert world.talk(upload()).status == 200
    assert [world.talk(ask(world.room, method=m)).status for m in ("HEAD", "GET")] == [200, 501]


NAMES: dict[str, tuple[list[str], list[str]]] = {
    "deck.pdf": (["deck.pdf", "%64eck.pdf", "deck.pdf?1"], ["Deck.pdf", "deck", "x/deck.pdf", ""]),
    "a+b c.pdf": (["a%2Bb%20c.pdf", "a%2bb+c.pdf"], ["a+b%20c.pdf", "a%252Bb%20c.pdf"]),
    "100%25 ä.pdf": (["100%2525%20%C3%A4.pdf"], ["100%25%20%C3%A4.pdf", "100%2525%20%E4.pdf"]),
    "C:\\notes\\ a?.pdf ": (["a_.pdf"], ["a%3F.pdf", "C:%5Cnotes%5Ca_.pdf"]),
    "x" * 300 + ".pdf": (["x" * 255], ["x" * 300 + ".pdf"]),
}
"""Name in the form: what finds it, and what does not."""


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:20])
def test_the_name_is_the_stored_one(world: World, name: str) -> None:
    """It is decoded once, like a query; the path before it without regard to case."""
    assert world.talk(upload(document(name=name))).status == 200
    for files, by in ((FILES, 200), (FILES.upper(), 200), ("/auth" + FILES, 401), ("/files", 404)):
        found, missing = NAMES[name]
        assert {world.talk(ask(world.room, one, files=files)).status for one in found} == {by}
        if by == 200:
            assert {world.talk(ask(world.room, one)).status for one in missing} == {404}


def test_a_refused_document_is_not_stored(world: World) -> None:
    """Neither by key, room, lock, size or kind; one whose conversion fails is stored."""
    refused = [
        (401, upload(API_KEY="no")),
        (400, upload(room="room02")),
        (413, upload(document(PDF.ljust(LIMIT + 1)))),
        (400, upload(document(b"{}"))),
    ]
    for status, raw in refused:
        assert world.talk(raw).status == status
        assert world.talk(ask(world.room)).status == 404
    world.do(lambda: world.room.lock(60))
    assert world.talk(upload()).status == 409
    world.room.unlock()
    assert world.talk(ask(world.room)).status == 404
    assert world.talk(upload(document(b"%PDF-1.7\n1 0 obj"))).status == 500
    assert world.talk(ask(world.room)).headers["content-length"] == "16"
    assert world.talk(upload()).status == 200  # the same name
    assert world.talk(ask(world.room)).headers["content-length"] == str(len(PDF))


def test_faults_of_these_questions(world: World) -> None:
    """Only a fault for their path hits them, so that others hit the document that follows."""
    world.server.reply_next(502)
    world.server.reply_next(503, path=FILES, times=2)
    world.server.reply_next(200, path=FILES, headers={"Date": "", "Content-Length": "3"})
    assert world.talk(call(INFO, {"room_id": "room01"})).status == 200
    answers = [world.talk(ask(world.room, name)) for name in ("a", "b", "c", "d")]
    assert [answer.status for answer in answers] == [503, 503, 200, 404]
    assert (answers[2].headers["date"], answers[2].headers["content-length"]) == ("", "3")
    assert [world.talk(upload()).status for _ in range(2)] == [502, 200]


def test_every_reply_has_a_date(world: World) -> None:
    """Also a refusal, a plain one and a scripted one, unless that brings its own."""
    world.server.reply_next(502)
    world.server.reply_next(502, headers={"Date": "yesterday"})
    raws = (upload(), upload(), upload(X="x" * 5000), call(INFO, b""), ask(world.room))
    answers = [world.talk(raw) for raw in raws]
    assert answers.pop(1).headers["date"].lower() == "yesterday"
    assert max(seconds(a, "date") for a in answers) - min(seconds(a, "date") for a in answers) < 9
    with contextlib.suppress(RuntimeError):  # in process there is none that cannot be parsed
        assert seconds(talk(world.server.url, b"GET / HTTP/1.1\r\n\r\n"), "date") > 0


# --- in time -------------------------------------------------------------------------------------


@attrs.frozen
class Stored:
    """An upload at 0 s, whose client leaves at 5 s, and what HEAD answers later."""

    seen: Mapping[float, int]
    settings: Mapping[str, Any] = attrs.field(factory=dict)
    late: float = 0.0
    """``arrives_after`` of a lost reply."""
    saved: float = 0.0
    """``Last-Modified``, in seconds after the upload began."""


STORED = {
    "at once, during the conversion": Stored(
        {0.1: 200, 30: 200, 600: 200}, {"processing_seconds": 60}
    ),
    "and after a conversion that fails": Stored(
        {0.1: 200, 400: 200}, {"processing_seconds": 60, "lock_seconds": 30}
    ),
    "late": Stored({0.1: 404, 6.9: 404, 7.1: 200}, {"stored_files_after": 7}),
    "another clock": Stored({0.1: 200}, {"stored_files_clock": -90.0}, saved=-90),
    "no storage": Stored({0.1: 404, 600: 404}, {"stored_files": "absent"}),
    "an own storage": Stored({0.1: 200}, {"stored_files": "separate"}),
    "a storage elsewhere": Stored({0.1: 307, 600: 307}, {"stored_files": "redirected"}),
    "a proxy keeps the form": Stored({29.9: 404, 30.1: 200}, {"holds_forms": 30}, saved=30),
    "one that has lost its reply": Stored({0.1: 404, 39.9: 404, 40.1: 200}, late=40, saved=40),
}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("what", STORED)
def test_when_a_file_is_stored(what: str, backend: str) -> None:
    """Also if the client has left; ``Date`` and ``Last-Modified`` are of the clock that jumps."""
    case = STORED[what]
    server = MeetingServer(**case.settings)
    room = server.add_room("room01")
    if case.late:
        server.lose_next_reply(arrives_after=case.late)

    async def send() -> None:
        with anyio.move_on_after(5), contextlib.suppress(ConnectionResetError):
            await talk_in_process(server, upload())

    async def look(began: float) -> None:
        start = anyio.current_time()
        for moment, status in case.seen.items():
            await anyio.sleep(start + moment - anyio.current_time())
            answer = await talk_in_process(server, ask(room))
            assert answer.status == status
            assert seconds(answer, "date") - began == pytest.approx(moment, abs=1)
            if status == 200:
                saved = seconds(answer, "last-modified") - began
                assert saved == pytest.approx(case.saved, abs=1)

    async def main() -> None:
        began = seconds(await talk_in_process(server, ask(room)), "date")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            tasks.start_soon(look, began)

    run_in_virtual_time(main, backend=backend)


# --- sessions and instances ----------------------------------------------------------------------


def test_sessions_are_kept_apart(world: World) -> None:
    """A session has its own id, list and folder, which ends with it; a pause is no end."""
    room, sids, old = world.room, set[str](), ask(world.room)
    for count in range(1, 4):
        assert world.talk(upload()).status == 200
        assert (len(room.received), len(room.accepted)) == (1, count)
        assert room.accepted[-1].session == room.sid
        room.active = False
        room.active = True
        mine, sids = ask(room), sids | {room.sid}
        assert [world.talk(raw).status for raw in (mine, old)] == [200, 200 if count == 1 else 404]
        if count == 1:
            world.talk(call("/auth/room/endRoom", {"room_id": "room01"}))
        else:
            world.do(room.end)
        assert world.talk(mine).status == 404
        assert world.server.add_room("room01", title="Again") is room
        info = world.talk(call(INFO, {"room_id": "room01"})).record["room"]["room_info"]
        assert (info["sid"], info["room_title"]) == (room.sid, "Again")
        assert [world.talk(raw).status for raw in (mine, ask(room))] == [404, 404]
        assert room.received == ()
    assert len(sids | {room.sid}) == 4
    with pytest.raises(ValueError, match="already a room"):
        world.server.add_room("room01")


def test_a_misplaced_document_is_stored_where_it_is() -> None:
    """Under the ``sid`` of the room that lists it, and not under that of its own room."""
    server = MeetingServer(mixes_up_rooms=True)
    first, second = (server.add_room(room_id) for room_id in "ab")
    with server.run() as url:
        for room, name in ((first, "1.pdf"), (second, "2.pdf")):
            assert talk(url, upload(document(name=name), room=room.room_id)).status == 200
        found = [talk(url, ask(room, "2.pdf")).status for room in (first, second)]
    assert found == [200, 404]
    assert [file.session for file in first.received] == [first.sid] * 2


@pytest.mark.parametrize(("stored_files", "seen"), [("shared", 200), ("separate", 404)])
def test_storages_of_instances(stored_files: Any, seen: int) -> None:
    """One for all, or one for each, which ends with its instance; the room keeps its documents."""
    server = MeetingServer(stored_files=stored_files)
    room = server.add_room("room01")
    with server.run() as url:
        assert [talk(url, raw).status for raw in (upload(), ask(room))] == [200, 200]
    with server.run() as url:
        assert talk(url, ask(room)).status == seen
    assert len(room.received) == 1
