"""The applications of ``docs/frameworks``: what they share, deploys, browsers that disconnect."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import os
import re
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from meeting_async import MeetingClient
from meeting_async.testing import MeetingServer, Room
from support.command_line import until
from support.raw_http import document as form
from support.sites import APPLICATIONS, Browser, Site, serving


def _has_proc() -> bool:
    try:
        return bool(os.listdir("/proc/self/fd"))
    except OSError:
        return False


needs_proc = pytest.mark.skipif(not _has_proc(), reason="needs /proc, to look into a site")

README = Path(__file__).parents[2] / "README.md"
MIB = 1024**2
SMALL = b"%PDF-1.7\n" + bytes(range(256))
LARGE = b"%PDF-1.7\n" + os.urandom(3_000_000)
"""More than any framework keeps in memory."""
HALF_OF_IT = len(LARGE) // 2
KEPT = 20
"""Connections that the client keeps for JSON calls and questions."""
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def meeting() -> Iterator[MeetingServer]:
    """Run one meeting server for all applications."""
    server = MeetingServer(max_size_whiteboard_file=128 * MIB, max_body_size=130 * MIB)
    with server.run():
        yield server


nightly = pytest.mark.nightly
FRAMEWORKS = ("fastapi", "starlette", "litestar", "quart", "django")
NIGHTLY = [pytest.param(name, marks=nightly) for name in FRAMEWORKS]


@pytest.fixture(scope="module", params=["fastapi", *NIGHTLY[1:]])
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


@contextlib.contextmanager
def half_sent(site: Site, room: Room, meeting: MeetingServer) -> Iterator[Browser]:
    """Send half of a body, until the site has begun to upload it."""
    with site.browser() as browser:
        browser.put(room.room_id, LARGE[:HALF_OF_IT], len(LARGE))
        until(lambda: requests(meeting, room) == 2)  # a form, the document
        yield browser


def is_quiet(site: Site, meeting: MeetingServer) -> bool:
    """Tell whether no upload, no browser and no temporary file is left."""
    is_idle = all(request.seconds is not None for request in meeting.requests)
    return is_idle and site.connections(meeting) <= (0, KEPT) and not site.temporary_files()


# --- each framework ------------------------------------------------------------------------------


@needs_proc
class TestEachFramework:
    """What holds for all five applications."""

    def test_a_form_reaches_its_room(self, site: Site, room: Room) -> None:
        """Byte for byte, under its own name; for a room that is not there the answer is 404."""
        for document in (SMALL, LARGE):
            status, _, body = upload(site, room.room_id, document, "déck.pdf")
            expected = {"delivered": True, "document": "déck.pdf", "size": len(document)}
            assert (status, body) == (200, expected)
            file = room.received[-1]
            assert (file.name, file.sha256) == ("déck.pdf", sha256(document))
            status, _, body = upload(site, "nowhere", document)
            assert (status, body["error"], body["delivered"]) == (404, "RoomNotFound", False)

    def test_a_body_is_streamed(self, site: Site, room: Room, meeting: MeetingServer) -> None:
        """Half of it goes out before the other half has come; no file is made."""
        with half_sent(site, room, meeting) as browser:
            assert site.temporary_files() == []
            browser.send(LARGE[HALF_OF_IT:])
            assert browser.answer()[0] == 200
        assert [file.sha256 for file in room.received] == [sha256(LARGE)]

    @nightly
    def test_half_a_body_is_never_delivered(
        self, site: Site, room: Room, meeting: MeetingServer
    ) -> None:
        """The upload is cut before its closing boundary, and the room is free at once."""
        with half_sent(site, room, meeting) as browser:
            browser.cut()
        until(lambda: site.connections(meeting) <= (0, KEPT))
        assert room.accepted == ()
        assert upload(site, room.room_id, SMALL)[0] == 200

    @nightly
    def test_an_upload_that_waits_for_its_room(
        self, site: Site, room: Room, meeting: MeetingServer
    ) -> None:
        """Its browser disconnects, and it is delivered when the room is free."""
        room.lock()
        with site.browser() as browser:
            browser.post(f"/rooms/{room.room_id}/documents", form(LARGE))
            until(lambda: requests(meeting, room) >= 1)
            time.sleep(0.2)  # the refusal has arrived
            browser.cut()
        time.sleep(0.5)  # a framework that cancels would have done so
        room.unlock()
        until(lambda: room.accepted != ())
        assert upload(site, room.room_id, SMALL, "next.pdf")[0] == 200
        assert [file.name for file in room.accepted] == ["deck.pdf", "next.pdf"]

    def test_a_batch_tells_what_becomes_of_it(
        self, site: Site, room: Room, meeting: MeetingServer
    ) -> None:
        """Listeners follow, come late and come back; of documents only the names are told."""
        other = meeting.add_room(f"{room.room_id}-other")
        room.lock()
        link = meeting.host_file("linked.pdf", SMALL)
        with site.browser() as first, site.browser() as second:
            path = first.order(
                {"room_id": other.room_id, "path": "a.pdf"},
                {"room_id": room.room_id, "path": "b.pdf"},
                {"room_id": other.room_id, "link": link},
                {"room_id": "nowhere", "link": "https://files.internal/a/b.pdf?key=devsecret"},
                {"room_id": other.room_id, "path": "missing.pdf"},
            )
            follows = first.events(path)
            seen = [next(follows) for _ in range(4)]
            assert next(second.events(path)) == seen[0]
            room.unlock()
            seen += follows
        assert [told.event for told in seen] == [*["outcome"] * 5, "report"]
        outcomes = {told.data["index"]: told.data for told in seen[:-1]}
        assert [outcomes[index]["delivered"] for index in range(5)] == [True] * 3 + [False] * 2
        names = [outcomes[index]["document"] for index in range(5)]
        assert names == ["a.pdf", "b.pdf", "linked.pdf", "b.pdf", "missing.pdf"]
        text = json.dumps([told.data for told in seen])
        for secret in ("files.internal", "127.0.0.1", str(site.folder), "devsecret"):
            assert secret not in text
        with site.browser() as late:
            assert list(late.events(path)) == seen
        with site.browser() as again:
            assert list(again.events(path, f"Last-Event-ID: {seen[1].id}")) == seen[2:]

    def test_a_wrong_order_is_refused(self, site: Site) -> None:
        """Nothing is kept of it; a path that leads out of the folder is one of them."""
        kept = sorted((site.folder / "batches").iterdir())
        for order in WRONG_ORDERS:
            with site.browser() as browser:
                status, _, body = browser.post_order(order)
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
        until(lambda: is_quiet(site, meeting))


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
            browser.put(room.room_id, SMALL)
            replies.append(browser.answer())
        (tmp_path / "batches").rename(tmp_path / "moved")  # OSError names its path
        with site.browser() as browser:
            order = b'{"jobs": [{"room_id": "room01", "path": "a.pdf"}]}'
            replies.append(browser.post_order(order))
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
    with serving(framework, meeting, tmp_path, grace=50) as site, site.browser() as browser:
        for name in ("a.pdf", "b.pdf"):
            (tmp_path / "documents" / name).write_bytes(SMALL)
        jobs = [{"room_id": room.room_id, "path": name} for name in ("a.pdf", "b.pdf")]
        path = browser.order(*jobs)
        browser.request("GET", path)  # a listener that never leaves
        until(lambda: len(room.accepted) == 1)
        start = time.monotonic()
        site.stop()
        assert time.monotonic() - start < 30  # its stream has ended, long before the 50 s
    assert "Application shutdown complete" in site.log
    assert [file.name for file in room.accepted] == ["a.pdf"]
    room.processing_seconds = 0
    with serving(framework, meeting, tmp_path) as site, site.browser() as browser:
        report = list(browser.events(path))[-1]
    assert report.event == "report"
    assert (report.data["accepted"], report.data["already_delivered"]) == (1, 1)
    assert [file.name for file in room.received] == ["a.pdf", "b.pdf"]


# --- a deploy ------------------------------------------------------------------------------------

SERVERS = ["uvicorn", "hypercorn"]
DELAYS = [0.2, 1, 3]
"""Seconds between the upload's begin and SIGTERM. A conversion takes 8 s, the server waits 5 s."""


@pytest.mark.parametrize("framework", NIGHTLY)
def test_a_deploy_duplicates_nothing(framework: str, tmp_path: Path) -> None:
    """SIGTERM amid uploads; then each browser does what the page says, at the next instance."""
    meeting = MeetingServer(processing_seconds=8)
    with (
        meeting.run(),
        serving(framework, meeting, tmp_path / "next") as successor,
        ThreadPoolExecutor() as pool,
    ):
        deploys = {
            f"{server}, SIGTERM after {delay} s": pool.submit(
                deploy, meeting, successor, tmp_path / f"{server}-{delay}", server, delay
            )
            for server in SERVERS
            for delay in DELAYS
        }
        seen = {case: deployed.result() for case, deployed in deploys.items()}
    waited = {case: (browsers.pop("waits"), browsers) for case, browsers in seen.items()}
    rest = {"leaves": (None, None, 1), "sends half": (503, False, 1)}
    possible = ((200, True, 1), (202, None, 1))
    wrong = {case: it for case, it in waited.items() if it[0] not in possible or it[1] != rest}
    assert wrong == {}


def deploy(
    meeting: MeetingServer, successor: Site, folder: Path, server: str, delay: float
) -> dict[str, Any]:
    """Stop an instance amid three uploads; return status, ``delivered``, documents in the room."""
    rooms = {name: meeting.add_room(f"room{next(NUMBERS)}") for name in BROWSERS}
    uploads = [rooms["waits"], rooms["leaves"]]
    with (
        serving(
            successor.name, meeting, folder / f"{server}-{delay}", grace=5, server=server
        ) as old,
        old.browser() as waits,
        old.browser() as leaves,
        old.browser() as sends_half,
    ):
        sends_half.put(rooms["sends half"].room_id, bytes(1000), 2000)
        for browser, room in zip((waits, leaves), uploads, strict=True):
            browser.post(f"/rooms/{room.room_id}/documents", form(SMALL))
        until(lambda: all(requests(meeting, room) for room in uploads))
        time.sleep(delay)
        leaves.cut()
        old.terminate()
        told = {"waits": outcome(waits), "leaves": (None, None), "sends half": outcome(sends_half)}
        if told["sends half"][1] is False:
            assert upload(successor, rooms["sends half"].room_id, SMALL)[0] == 200
        assert old.ended() == 0, old.log
        assert server == "hypercorn" or "Traceback" not in old.log, old.log  # it has its own
    for name, room in rooms.items():
        if told[name][1] is None and not room.accepted:  # it has looked into the room
            upload(successor, room.room_id, SMALL)
    until(lambda: all(seen.seconds is not None for seen in meeting.requests), 20)
    return {name: (*told[name], len(rooms[name].accepted)) for name in BROWSERS}


BROWSERS = ["waits", "leaves", "sends half"]

IN_TIME = {
    "uvicorn": ((202, None, 1), (503, False, 1)),
    "hypercorn": ((202, None, 1), (503, False, 1)),
    "gunicorn": ((202, None, 1), (503, False, 1)),
    "gunicorn, asgi": ((200, True, 1), (400, False, 1)),
    "granian": ((200, True, 1), (400, False, 1)),
}


@nightly
@pytest.mark.parametrize("server", IN_TIME)
def test_each_server_as_the_page_sets_it(server: str, tmp_path: Path) -> None:
    """SIGTERM amid a conversion of 8 s, and amid a form; no document arrives twice."""
    meeting = MeetingServer(processing_seconds=8)
    with meeting.run(), serving("fastapi", meeting, tmp_path / "next") as successor:
        seen = deploy(meeting, successor, tmp_path, server, 1)
    assert (seen["waits"], seen["sends half"]) == IN_TIME[server]
    assert seen["leaves"] == (None, None, 1)


@nightly
@pytest.mark.parametrize("server", ["uvicorn", "hypercorn", "hypercorn on trio"])
def test_a_deploy_of_the_application_in_the_readme(server: str, tmp_path: Path) -> None:
    """It is stopped amid an upload: no plain 500, and who does as README says makes no duplicate.

    ``--timeout-graceful-shutdown 5``, a conversion of 8 s, SIGTERM after 1 s: 5 of 5.
    """
    blocks = re.findall(
        r"^```python\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    (application,) = [block for block in blocks if "FastAPI" in block]
    (tmp_path / "readme_app.py").write_text(application, "utf-8")
    meeting = MeetingServer(processing_seconds=8)
    with (
        meeting.run(),
        serving("readme", meeting, tmp_path / "next", applications=tmp_path) as successor,
        ThreadPoolExecutor() as pool,
    ):
        deploys = [
            pool.submit(deploy_readme, meeting, successor, tmp_path / f"deploy-{number}", server)
            for number in range(5)
        ]
        assert Counter(deployed.result() for deployed in deploys) == {(202, None, 1): 5}


def deploy_readme(
    meeting: MeetingServer, successor: Site, folder: Path, server: str
) -> tuple[int, Any, int]:
    """Stop an instance amid an upload; return as :func:`deploy` does for one browser."""
    room = meeting.add_room(f"room{next(NUMBERS)}")
    with (
        serving(
            "readme", meeting, folder, grace=5, server=server, applications=folder.parent
        ) as old,
        old.browser() as browser,
    ):
        browser.post(f"/rooms/{room.room_id}/documents", form(SMALL))
        until(lambda: requests(meeting, room))
        time.sleep(1)
        old.terminate()
        told = outcome(browser)
        assert old.ended() == 0, old.log
        assert server == "hypercorn" or "Traceback" not in old.log, old.log  # it has its own
    if told[1] is None:
        until(lambda: room.accepted != ())  # it has looked into the room
    elif told[1] is not True:
        upload(successor, room.room_id, SMALL)
    return (*told, len(room.accepted))


def outcome(browser: Browser) -> tuple[int, Any]:
    """Return the status, and ``delivered`` or, if it is not an object, the text of the answer."""
    status, _, body = browser.answer()
    return status, body["delivered"] if isinstance(body, dict) else body


with pytest.MonkeyPatch.context() as _path:
    _path.syspath_prepend(str(APPLICATIONS))  # as for the applications beside it
    batches = importlib.import_module("batches")

# --- what they share: progress -------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder for documents, and in it one for batches."""
    monkeypatch.setenv("BATCHES_FOLDER", str(tmp_path / "batches"))
    monkeypatch.setenv("DOCUMENTS_FOLDER", str(tmp_path))
    (tmp_path / "deck.pdf").write_bytes(SMALL)
    return tmp_path


@contextlib.asynccontextmanager
async def batches_for(meeting: MeetingServer) -> AsyncIterator[Any]:
    """Open what an application has of batches."""
    keys: dict[str, Any] = {"api_key": meeting.api_key, "api_secret": meeting.api_secret}
    async with (
        MeetingClient(meeting.url, **keys) as client,
        batches.Batches.open(client) as site,
    ):
        yield site


def order_of(room_id: str) -> bytes:
    """Order a document for a room, as browsers do."""
    return json.dumps({"jobs": [{"room_id": room_id, "path": "deck.pdf"}]}).encode()


async def told_by(site: Any, batch: str) -> list[Any]:
    """Return what the events of a batch say."""
    return [json.loads(text.partition("data: ")[2]) async for text in await site.listen(batch)]


@pytest.mark.anyio
async def test_a_finished_batch_is_reported_and_not_repeated(
    folder: Path, meeting: MeetingServer, room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart its report is there; an order that cannot be read stops no application."""
    monkeypatch.setattr(batches, "KEPT", 1)
    order = order_of(room.room_id)
    async with batches_for(meeting) as site:
        first = await site.begin(order)
        told = await told_by(site, first)
        told_next = await told_by(site, await site.begin(order))
        forgotten = await told_by(site, first)
    (folder / "batches" / f"{'0' * 32}.json").write_bytes(b"{}")
    async with batches_for(meeting) as site:
        again = await told_by(site, first)
    assert [len(texts) for texts in (told, told_next, forgotten, again)] == [2, 2, 1, 1]
    assert told[-1] == forgotten[0] == again[0]
    assert len(room.received) == 2


@pytest.mark.anyio
async def test_a_batch_that_fails_shows_no_path(
    folder: Path, meeting: MeetingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal cannot be opened: the browser gets a sentence, the log gets the path."""
    monkeypatch.setattr(batches.uuid, "uuid4", lambda: uuid.UUID(int=0))
    (folder / "batches" / f"{'0' * 32}.db").mkdir(parents=True)  # where its journal goes
    async with batches_for(meeting) as site:
        batch = await site.begin(order_of("room01"))
        assert await told_by(site, batch) == [{"detail": "the batch cannot record its progress"}]
