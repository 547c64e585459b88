"""The applications of ``docs/frameworks``: what they share, uvicorn, browsers that disconnect."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from meeting_async import MeetingClient, errors
from meeting_async.testing import MeetingServer, Room
from support.sites import FRAMEWORKS, Site, eventually, form, serving, shared

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")

MIB = 1024**2
SMALL = b"%PDF-1.7\n" + bytes(range(256))
LARGE = b"%PDF-1.7\n" + os.urandom(3_000_000)
"""More than any framework keeps in memory."""
KEPT = 20
"""Connections that the client keeps for JSON calls and questions."""
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def meeting() -> Iterator[MeetingServer]:
    """Run one meeting server for all applications."""
    server = MeetingServer(max_size_whiteboard_file=128 * MIB, max_body_size=130 * MIB)
    with server.run():
        yield server


NIGHTLY = [pytest.param(name, marks=pytest.mark.nightly) for name in FRAMEWORKS]


@pytest.fixture(scope="module", params=FRAMEWORKS)
def site(
    request: pytest.FixtureRequest, meeting: MeetingServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """Run each application once."""
    folder = tmp_path_factory.mktemp(request.param)
    with serving(request.param, meeting, folder, MEETING_MAX_SIZE_WHITEBOARD_FILE="128MiB") as site:
        for name in ("a.pdf", "b.pdf"):
            (folder / "documents" / name).write_bytes(SMALL)
        yield site
    assert "Application shutdown complete" in site.log
    assert "unclosed MeetingClient" not in site.log
    assert "Task exception was never retrieved" not in site.log


@pytest.fixture
def room(meeting: MeetingServer) -> Room:
    """Open a room for one test."""
    return meeting.add_room(f"room{next(NUMBERS)}")


def sha256(document: bytes) -> str:
    """Say what a room should have received."""
    return hashlib.sha256(document).hexdigest()


def requests(meeting: MeetingServer, room: Room) -> int:
    """Count the uploads that began for a room, questions included."""
    path = "/auth/room/uploadWhiteboardFile"
    return sum((seen.path, seen.room_id) == (path, room.room_id) for seen in meeting.requests)


def upload(site: Site, room_id: str, document: bytes, name: str = "deck.pdf") -> Any:
    """Upload a form; return status, headers and the object."""
    with site.browser() as browser:
        browser.post(f"/rooms/{room_id}/documents", form(document, name))
        return browser.answer()


def said(site: Site, room_id: str, document: bytes, name: str = "deck.pdf") -> Any:
    """Upload a form; return status, error and whether it was delivered."""
    status, _, body = upload(site, room_id, document, name)
    return status, body["error"], body["delivered"]


def is_quiet(site: Site, meeting: MeetingServer) -> bool:
    """Tell whether no upload, no browser and no temporary file is left."""
    is_idle = all(request.seconds is not None for request in meeting.requests)
    return is_idle and site.connections(meeting) <= (0, KEPT) and not site.temporary_files()


# --- one framework in the normal run -------------------------------------------------------------


@needs_proc
def test_fastapi_in_short(tmp_path: Path, meeting: MeetingServer, room: Room) -> None:
    """A form, a stream and a batch reach the room through FastAPI; an error gets its status."""
    with serving("fastapi", meeting, tmp_path) as site:
        (tmp_path / "documents" / "a.pdf").write_bytes(SMALL)
        assert upload(site, room.room_id, SMALL)[0] == 200
        with site.browser() as browser:
            browser.request("PUT", f"/rooms/{room.room_id}/documents/body.pdf", len(SMALL))
            browser.send(SMALL)
            assert browser.answer()[0] == 200
        with site.browser() as browser:
            path = browser.order({"room_id": room.room_id, "path": "a.pdf"})
            assert [told.event for told in browser.events(path)] == ["outcome", "report"]
        assert said(site, "nowhere", SMALL) == (404, "RoomNotFound", False)
    assert [file.name for file in room.received] == ["deck.pdf", "body.pdf", "a.pdf"]
    assert {file.sha256 for file in room.received} == {sha256(SMALL)}
    assert "Application shutdown complete" in site.log


# --- each framework ------------------------------------------------------------------------------


@pytest.mark.nightly
@needs_proc
class TestEachFramework:
    """What holds for all five applications."""

    @pytest.mark.parametrize("document", [SMALL, LARGE], ids=["small", "large"])
    def test_a_form_reaches_its_room(self, site: Site, room: Room, document: bytes) -> None:
        """Byte for byte, under its own name."""
        status, _, body = upload(site, room.room_id, document, "déck.pdf")
        expected = {"delivered": True, "document": "déck.pdf", "size": len(document)}
        assert (status, body) == (200, expected)
        (file,) = room.received
        assert (file.name, file.sha256) == ("déck.pdf", sha256(document))

    def test_a_body_is_streamed(self, site: Site, room: Room, meeting: MeetingServer) -> None:
        """Half of it goes out before the other half has come; no file is made."""
        with site.browser() as browser:
            browser.request("PUT", f"/rooms/{room.room_id}/documents/deck.pdf", len(LARGE))
            browser.send(LARGE[: len(LARGE) // 2])
            assert eventually(lambda: requests(meeting, room) == 2)  # a form, the document
            assert site.temporary_files() == []
            browser.send(LARGE[len(LARGE) // 2 :])
            assert browser.answer()[0] == 200
        assert [file.sha256 for file in room.received] == [sha256(LARGE)]

    def test_half_a_body_is_never_delivered(
        self, site: Site, room: Room, meeting: MeetingServer
    ) -> None:
        """The upload is cut before its closing boundary, and the room is free at once."""
        with site.browser() as browser:
            browser.request("PUT", f"/rooms/{room.room_id}/documents/deck.pdf", len(LARGE))
            browser.send(LARGE[: len(LARGE) // 2])
            assert eventually(lambda: requests(meeting, room) == 2)  # a form, the document
            browser.cut()
        assert eventually(lambda: site.connections(meeting) <= (0, KEPT))
        assert room.accepted == ()
        assert upload(site, room.room_id, SMALL)[0] == 200

    @pytest.mark.parametrize("when_gone", ["finish", "cancel"])
    def test_an_upload_that_waits_for_its_room(
        self, site: Site, room: Room, meeting: MeetingServer, when_gone: str
    ) -> None:
        """Its browser disconnects: it is delivered later, or dropped, as the application says."""
        room.lock()
        with site.browser() as browser:
            browser.post(f"/rooms/{room.room_id}/documents?when_gone={when_gone}", form(LARGE))
            assert eventually(lambda: requests(meeting, room) >= 1)
            time.sleep(0.2)  # the refusal has arrived
            browser.cut()
        if when_gone == "cancel":
            assert eventually(lambda: is_quiet(site, meeting), 10)  # below max_wait
        else:
            time.sleep(0.5)  # a framework that cancels would have done so
        room.unlock()
        if when_gone == "finish":
            assert eventually(lambda: room.accepted != ())
        assert upload(site, room.room_id, SMALL, "next.pdf")[0] == 200
        names = {"finish": ["deck.pdf", "next.pdf"], "cancel": ["next.pdf"]}
        assert [file.name for file in room.accepted] == names[when_gone]

    def test_a_batch_tells_what_becomes_of_it(
        self, site: Site, room: Room, meeting: MeetingServer
    ) -> None:
        """Listeners follow, come late and come back; no host and no absolute path is told."""
        other = meeting.add_room(f"{room.room_id}-other")
        room.lock()
        link = meeting.host_file("linked.pdf", SMALL)
        with site.browser() as first, site.browser() as second:
            path = first.order(
                {"room_id": other.room_id, "path": "a.pdf"},
                {"room_id": room.room_id, "path": "b.pdf"},
                {"room_id": other.room_id, "link": link},
                {"room_id": "nowhere", "path": "a.pdf"},
                {"room_id": f"{other.room_id}", "path": "missing.pdf"},
            )
            follows = first.events(path)
            seen = [next(follows) for _ in range(4)]
            assert next(second.events(path)) == seen[0]
            room.unlock()
            seen += follows
        assert [told.event for told in seen] == [*["outcome"] * 5, "report"]
        outcomes = {told.data["index"]: told.data for told in seen[:-1]}
        assert [outcomes[index]["delivered"] for index in range(5)] == [True] * 3 + [False] * 2
        text = json.dumps([told.data for told in seen])
        assert "linked.pdf" in text
        assert "127.0.0.1" not in text
        assert str(site.folder) not in text
        with site.browser() as late:
            assert list(late.events(path)) == seen
        with site.browser() as again:
            assert list(again.events(path, f"Last-Event-ID: {seen[1].id}")) == seen[2:]

    def test_a_wrong_order_is_refused(self, site: Site) -> None:
        """Nothing is kept of it; a path that leads out of the folder is one of them."""
        kept = sorted((site.folder / "batches").iterdir())
        for order in WRONG_ORDERS:
            with site.browser() as browser:
                browser.request("POST", "/batches", len(order), "Content-Type: application/json")
                browser.send(order)
                status, _, body = browser.answer()
            assert (status, body["error"]) == (422, "InvalidInput"), order
            assert str(site.folder) not in body["detail"]
        assert sorted((site.folder / "batches").iterdir()) == kept
        for batch_id in ("f" * 32, "nonsense"):
            with site.browser() as browser:
                browser.request("GET", f"/batches/{batch_id}/events")
                assert browser.answer()[0] == 404

    @pytest.fixture(autouse=True)
    def _nothing_is_left(self, site: Site, meeting: MeetingServer) -> Iterator[None]:
        """After each test no upload, no browser and no temporary file is left."""
        yield
        assert eventually(lambda: is_quiet(site, meeting)), site.descriptors()


@needs_proc
@pytest.mark.parametrize("framework", NIGHTLY)
def test_nothing_of_the_server_reaches_a_browser(
    framework: str, meeting: MeetingServer, room: Room, tmp_path: Path
) -> None:
    """No path, host or secret is in any reply, whatever the server says and whatever fails."""
    private = "10.0.0.5 cannot read /srv/deck.pdf"
    with serving(framework, meeting, tmp_path, MEETING_MAX_SIZE_WHITEBOARD_FILE="1MiB") as site:
        replies = [upload(site, room.room_id, document) for document in (b"", LARGE)]
        for status, code in [(403, "NOT_ALLOWED"), (401, "INVALID_API_KEY"), (502, ""), (500, "X")]:
            record = {"status": False, "msg": private, "status_code": code}
            meeting.reply_next(status, body=json.dumps(record if code else private).encode())
            replies.append(upload(site, room.room_id, SMALL))
        record = {"status": False, "msg": private, "status_code": "ROOM_NOT_FOUND"}
        meeting.reply_next(400, body=json.dumps(record).encode())
        with site.browser() as browser:
            browser.request("PUT", f"/rooms/{room.room_id}/documents/deck.pdf", len(SMALL))
            browser.send(SMALL)
            replies.append(browser.answer())
        (tmp_path / "batches").rename(tmp_path / "moved")  # OSError names its path
        with site.browser() as browser:
            order = b'{"jobs": [{"room_id": "room01", "path": "a.pdf"}]}'
            browser.request("POST", "/batches", len(order), "Content-Type: application/json")
            browser.send(order)
            replies.append(browser.answer())
        (tmp_path / "moved").rename(tmp_path / "batches")
    assert [status for status, _, _ in replies] == [422, 413, 422, 500, 202, 422, 404, 500]
    text = json.dumps(replies)
    for secret in ("10.0.0.5", "127.0.0.1", "/srv", str(tmp_path), meeting.api_secret, "Traceback"):
        assert secret not in text


WRONG_ORDERS = [
    b"",
    b"[]",
    b'{"jobs": []}',
    b'{"jobs": [{"room_id": "room01"}]}',
    b'{"jobs": [{"room_id": "room01", "path": "../secret.pdf"}]}',
    b'{"jobs": [{"room_id": "room01", "path": "/etc/passwd"}]}',
    b'{"jobs": [{"room_id": "room01", "path": "a\\u0000.pdf"}]}',
    b'{"jobs": [{"room_id": "room01", "path": "a.pdf", "link": "https://x.test/a.pdf"}]}',
    b'{"jobs": [{"room_id": "room01", "link": "file:///etc/passwd"}]}',
]


@needs_proc
@pytest.mark.parametrize("framework", NIGHTLY)
def test_a_stopped_batch_goes_on_after_a_restart(
    framework: str, meeting: MeetingServer, room: Room, tmp_path: Path
) -> None:
    """What is being sent comes to its end, what has not begun waits; nothing is sent twice."""
    room.processing_seconds = 2
    with serving(framework, meeting, tmp_path) as site, site.browser() as browser:
        for name in ("a.pdf", "b.pdf"):
            (tmp_path / "documents" / name).write_bytes(SMALL)
        jobs = [{"room_id": room.room_id, "path": name} for name in ("a.pdf", "b.pdf")]
        path = browser.order(*jobs)
        browser.request("GET", path)  # a listener that never leaves
        assert eventually(lambda: len(room.accepted) == 1)
        site.stop()
    assert "Application shutdown complete" in site.log
    assert [file.name for file in room.accepted] == ["a.pdf"]
    room.processing_seconds = 0
    with serving(framework, meeting, tmp_path) as site, site.browser() as browser:
        report = list(browser.events(path))[-1]
    assert report.event == "report"
    assert (report.data["accepted"], report.data["already_delivered"]) == (1, 1)
    assert [file.name for file in room.received] == ["a.pdf", "b.pdf"]


batches, disconnects = shared("batches"), shared("disconnects")

# --- what they share: disconnects ----------------------------------------------------------------


def browser_until(gone: anyio.Event) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Make an ASGI ``receive`` of a browser that disconnects."""

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


@pytest.mark.anyio
async def test_unless_gone() -> None:
    """Work is cancelled with its browser; else its result or its error comes out as it is."""
    gone = anyio.Event()

    async def endless() -> None:
        gone.set()
        await anyio.sleep_forever()

    async def done() -> str:
        return "done"

    async def failing() -> None:
        raise errors.DocumentEmpty("deck.pdf")

    with anyio.fail_after(5):
        assert await disconnects.unless_gone(browser_until(gone), endless) is None
        assert await disconnects.unless_gone(browser_until(anyio.Event()), done) == "done"
        with pytest.raises(errors.DocumentEmpty):
            await disconnects.unless_gone(browser_until(anyio.Event()), failing)


@pytest.mark.anyio
async def test_work_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on without its caller; its error ends no other work; the end waits, not for ever."""
    ends = []

    async def work() -> str:
        await anyio.sleep(0.2)
        ends.append("done")
        return "result"

    async def failing() -> None:
        raise ValueError("failed")

    with anyio.fail_after(5):
        async with disconnects.Background.open() as background:
            with anyio.move_on_after(0.05) as caller:
                await background.finish(work)
            assert (caller.cancelled_caught, ends) == (True, [])
            with pytest.raises(ValueError, match="failed"):
                await background.finish(failing)
        assert ends == ["done"]
        monkeypatch.setattr(disconnects, "STOP_SECONDS", 0.05)
        async with disconnects.Background.open() as background:
            with anyio.move_on_after(0.01):
                await background.finish(anyio.sleep_forever)


# --- what they share: progress -------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_finished_batch_is_reported_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart its report is there; an order that cannot be read stops no application."""
    monkeypatch.setenv("BATCHES_FOLDER", str(tmp_path / "batches"))
    monkeypatch.setenv("DOCUMENTS_FOLDER", str(tmp_path))
    monkeypatch.setattr(batches, "KEPT", 1)
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7")
    order = b'{"jobs": [{"room_id": "room01", "path": "deck.pdf"}]}'
    meeting = MeetingServer()
    room = meeting.add_room("room01")
    with meeting.run():
        keys: dict[str, Any] = {"api_key": meeting.api_key, "api_secret": meeting.api_secret}
        async with (
            MeetingClient(meeting.url, **keys) as client,
            batches.Batches.open(client) as site,
        ):
            first = await site.begin(order)
            told = [text async for text in await site.listen(first)]
            second = await site.begin(order)
            told_next = [text async for text in await site.listen(second)]
            forgotten = [text async for text in await site.listen(first)]
        (tmp_path / "batches" / f"{'0' * 32}.json").write_bytes(b"{}")
        async with (
            MeetingClient(meeting.url, **keys) as client,
            batches.Batches.open(client) as site,
        ):
            again = [text async for text in await site.listen(first)]
    assert [len(texts) for texts in (told, told_next, forgotten, again)] == [2, 2, 1, 1]
    assert data(told[-1]) == data(forgotten[0]) == data(again[0])
    assert len(room.received) == 2


@pytest.mark.anyio
async def test_a_batch_that_fails_shows_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal cannot be opened: the browser gets a sentence, the log gets the path."""
    monkeypatch.setenv("BATCHES_FOLDER", str(tmp_path / "batches"))
    monkeypatch.setenv("DOCUMENTS_FOLDER", str(tmp_path))
    monkeypatch.setattr(batches.uuid, "uuid4", lambda: uuid.UUID(int=0))
    (tmp_path / "batches" / f"{'0' * 32}.db").mkdir(parents=True)  # where its journal goes
    order = b'{"jobs": [{"room_id": "room01", "path": "deck.pdf"}]}'
    async with (
        MeetingClient("http://127.0.0.1:9", api_key="devkey", api_secret="devsecret") as client,
        batches.Batches.open(client) as site,
    ):
        told = [text async for text in await site.listen(await site.begin(order))]
    assert [data(text) for text in told] == [{"detail": "the batch cannot record its progress"}]


@pytest.mark.anyio
async def test_outcomes_show_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not there, a folder and a link whose room is unknown: only their names."""
    monkeypatch.setenv("BATCHES_FOLDER", str(tmp_path / "batches"))
    monkeypatch.setenv("DOCUMENTS_FOLDER", str(tmp_path))
    (tmp_path / "folder.pdf").mkdir()
    meeting = MeetingServer()
    meeting.add_room("room01")
    jobs = [
        {"room_id": "room01", "path": "missing.pdf"},
        {"room_id": "room01", "path": "folder.pdf"},
        {"room_id": "nowhere", "link": "https://files.internal/a/linked.pdf?key=devsecret"},
    ]
    with meeting.run():
        async with (
            MeetingClient(meeting.url, api_key="devkey", api_secret="devsecret") as client,
            batches.Batches.open(client) as site,
        ):
            batch = await site.begin(json.dumps({"jobs": jobs}).encode())
            told = [data(text) async for text in await site.listen(batch)]
    outcomes = sorted(told[:-1], key=lambda outcome: outcome["index"])
    names = [outcome["document"] for outcome in outcomes]
    assert names == ["missing.pdf", "folder.pdf", "linked.pdf"]
    text = json.dumps(told)
    for secret in ("files.internal", "127.0.0.1", str(tmp_path), "devsecret"):
        assert secret not in text


def data(event: str) -> Any:
    """Return what an event says."""
    return json.loads(event.partition("data: ")[2])
