"""The applications of ``docs/frameworks``: real uvicorn, real sockets, browsers that go away."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from _nginx import Nginx, needs_nginx
from _sites import (
    APPLICATIONS,
    FORM,
    FRAMEWORKS,
    Browser,
    DeafServer,
    Site,
    eventually,
    form,
    serving,
)
from meeting_async.testing import MeetingServer, Room

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc"),
    pytest.mark.timeout(120),
]

MIB = 1024**2
SMALL = b"%PDF-1.7\n" + bytes(range(256))
LARGE = b"%PDF-1.7\n" + os.urandom(3_000_000)
"""More than any framework keeps in memory."""

HUGE = 100 * MIB
KEPT = 1
"""Connections that the client keeps for its small calls: here, probes, one at a time."""

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def meeting() -> Iterator[MeetingServer]:
    """Run one meeting server for all applications."""
    server = MeetingServer(max_size_whiteboard_file=128 * MIB, max_body_size=130 * MIB)
    with server.run():
        yield server


@pytest.fixture(scope="module", params=FRAMEWORKS)
def site(
    request: pytest.FixtureRequest, meeting: MeetingServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """Run each application once; what one test leaves behind, the next one sees."""
    folder = tmp_path_factory.mktemp(request.param)
    with serving(request.param, meeting, folder, MEETING_MAX_SIZE_WHITEBOARD_FILE="128MiB") as site:
        yield site
    assert "Application shutdown complete" in site.log
    assert "unclosed MeetingClient" not in site.log
    assert "Traceback" not in site.log


@pytest.fixture
def room(meeting: MeetingServer) -> Room:
    """Open a room of its own for each test."""
    return meeting.add_room(f"room{next(NUMBERS)}")


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest, meeting: MeetingServer) -> Iterator[None]:
    """Whatever a test did to a site, no upload, no browser and no temporary file remain."""
    yield
    if "site" in request.fixturenames:
        site: Site = request.getfixturevalue("site")
        assert eventually(lambda: site.connections(meeting) <= (0, KEPT)), site.descriptors()
        assert eventually(site.has_no_temporary_files)


def sha256(document: bytes) -> str:
    """Say what a room should have received."""
    return hashlib.sha256(document).hexdigest()


def requests(meeting: MeetingServer, room: Room) -> int:
    """Count the requests for a room, probes and broken ones included."""
    return sum(request.room_id == room.room_id for request in meeting.requests)


def proves_to_be_free(site: Site, room: Room) -> None:
    """Upload once more: nobody holds a turn or a lock any longer."""
    with site.browser() as browser:
        began = time.monotonic()
        browser.post(f"/rooms/{room.room_id}/documents", form(SMALL, "next.pdf"))
        assert browser.answer()[0] == 200
        assert time.monotonic() - began < 10
    assert room.accepted[-1].name == "next.pdf"


# --- what goes through ---------------------------------------------------------------------------


@pytest.mark.parametrize("document", [SMALL, LARGE], ids=["small", "large"])
def test_the_file_of_a_form_goes_on_to_its_room(site: Site, room: Room, document: bytes) -> None:
    """Byte for byte, under its own name."""
    with site.browser() as browser:
        browser.post(f"/rooms/{room.room_id}/documents", form(document, "déck.pdf"))
        status, _, body = browser.answer()
    assert (status, body) == (
        200,
        {"delivered": True, "document": "déck.pdf", "size": len(document)},
    )
    (file,) = room.received
    assert (file.name, file.sha256) == ("déck.pdf", sha256(document))


def test_a_body_is_streamed_through(site: Site, room: Room, meeting: MeetingServer) -> None:
    """Half of it is on its way to the server before the other half has come; no file is made."""
    with site.browser() as browser:
        browser.request("PUT", f"/rooms/{room.room_id}/documents/deck.pdf", len(LARGE))
        browser.send(LARGE[: len(LARGE) // 2])
        assert eventually(lambda: site.connections(meeting)[1] > KEPT)
        assert site.temporary_files() == []
        browser.send(LARGE[len(LARGE) // 2 :])
        status, _, body = browser.answer()
    assert (status, body["size"]) == (200, len(LARGE))
    assert [file.sha256 for file in room.received] == [sha256(LARGE)]


@pytest.mark.parametrize("way", ["form", "body"])
def test_memory_does_not_grow_with_a_document(site: Site, room: Room, way: str) -> None:
    """100 MiB, of which each process had to hold a few at a time."""
    chunk = b"%PDF-1.7".ljust(MIB, b"%")
    start, end = form(b"\0").split(b"\0") if way == "form" else (b"", b"")
    path = f"/rooms/{room.room_id}/documents"
    length = len(start) + HUGE + len(end)
    proves_to_be_free(site, room)  # everything is imported
    site.forget_peak()
    before = site.peak_memory()
    with site.browser() as browser:
        if way == "form":
            browser.request("POST", path, length, FORM)
        else:
            browser.request("PUT", f"{path}/deck.pdf", length)
        browser.send(start)
        for _ in range(HUGE // MIB):
            browser.send(chunk)
        browser.send(end)
        assert browser.answer()[0] == 200
    assert room.received[-1].size == HUGE
    assert site.peak_memory() - before < 32 * MIB


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_browser_waits_for_a_slow_meeting_server(framework: str, tmp_path: Path) -> None:
    """What the server does not take stays with the browser, not in the memory between them."""
    chunk = b"%PDF-1.7".ljust(MIB, b"%")
    with (
        DeafServer.run(is_probed=True) as deaf,
        serving(framework, deaf, tmp_path) as site,
        site.browser() as browser,
    ):
        browser.request("PUT", "/rooms/room01/documents/deck.pdf", HUGE)
        browser.send(chunk)
        assert eventually(lambda: site.connections(deaf)[1] > KEPT)
        site.forget_peak()
        before = site.peak_memory()
        sent = browser.send_what_is_taken(chunk, HUGE // MIB - 1)
        assert sent < HUGE // 2  # the kernel's buffers
        assert site.peak_memory() - before < 16 * MIB
        assert site.temporary_files() == []
        site.stop(kill=True)  # it would wait for a server that never answers


# --- what does not go through --------------------------------------------------------------------


def test_errors_have_statuses(site: Site, room: Room, meeting: MeetingServer) -> None:
    """The browser is told whose move it is."""
    closed = meeting.add_room(f"{room.room_id}-closed", active=False)
    with site.browser() as browser:
        browser.post("/rooms/nowhere/documents", form(SMALL))
        assert said(browser) == (404, "RoomNotFound", False)
    with site.browser() as browser:
        browser.post(f"/rooms/{closed.room_id}/documents", form(LARGE))
        assert said(browser) == (409, "RoomNotActive", False)
    with site.browser() as browser:
        browser.post(f"/rooms/{room.room_id}/documents", form(b"\x89PNG\r\n\x1a\n", "a.png"))
        assert said(browser) == (415, "DocumentTypeRefused", False)
    meeting.reply_next(429, headers={"Retry-After": "0"}, times=5)
    with site.browser() as browser:
        browser.post(f"/rooms/{room.room_id}/documents", form(SMALL))
        status, headers, body = browser.answer()
        assert (status, headers["retry-after"], body["error"]) == (503, "0", "Throttled")
    assert room.accepted == ()
    meeting.reply_next(502, body=b"<html>Bad Gateway</html>")
    with site.browser() as browser:
        browser.post(f"/rooms/{room.room_id}/documents", form(SMALL))
        assert said(browser) == (202, "UploadOutcomeUnknown", None)


def test_a_body_is_refused_before_it_is_sent(site: Site, room: Room) -> None:
    """Too large, without a length, or for no room: the browser need not send it to hear that."""
    path = f"/rooms/{room.room_id}/documents/deck.pdf"
    with site.browser() as browser:
        browser.request("PUT", path, 200 * MIB)
        assert said(browser) == (413, "DocumentTooLarge", False)
    with site.browser() as browser:
        browser.request("PUT", path, None, "Transfer-Encoding: chunked")
        browser.send(b"1\r\nx\r\n")
        assert browser.answer()[0] == 411


def said(browser: Browser) -> tuple[int, str, bool | None]:
    """Read an answer about an upload."""
    status, _, body = browser.answer()
    return status, body["error"], body["delivered"]


# --- browsers that go away -----------------------------------------------------------------------


def test_a_form_that_is_cut_half_way_sends_nothing(
    site: Site, room: Room, meeting: MeetingServer
) -> None:
    """The meeting server does not hear of it."""
    data = form(LARGE)
    with site.browser() as browser:
        browser.request("POST", f"/rooms/{room.room_id}/documents", len(data), FORM)
        browser.send(data[: len(data) // 2])
        assert eventually(lambda: site.connections(meeting)[0] == 1)
        time.sleep(0.2)  # in the middle of parsing
        browser.cut()
    assert eventually(lambda: site.connections(meeting)[0] == 0)
    assert requests(meeting, room) == 0
    proves_to_be_free(site, room)


def test_a_body_that_is_cut_half_way_never_becomes_a_form(
    site: Site, room: Room, meeting: MeetingServer
) -> None:
    """Our upload is cut before its closing boundary: the room is free at once."""
    with site.browser() as browser:
        browser.request("PUT", f"/rooms/{room.room_id}/documents/deck.pdf", len(LARGE))
        browser.send(LARGE[: len(LARGE) // 2])
        assert eventually(lambda: site.connections(meeting)[1] > KEPT)
        browser.cut()
    assert eventually(lambda: site.connections(meeting)[1] <= KEPT)
    assert (requests(meeting, room), room.accepted) == (2, ())  # a probe, and half a form
    proves_to_be_free(site, room)


def test_an_upload_is_finished_without_its_browser(
    site: Site, room: Room, meeting: MeetingServer
) -> None:
    """It waits for somebody else's upload; the browser goes; the room gets the document."""
    room.lock()
    with site.browser() as browser:
        browser.post(f"/rooms/{room.room_id}/documents", form(LARGE))
        assert eventually(lambda: requests(meeting, room) >= 2)  # it knows that it has to wait
        browser.cut()
    time.sleep(0.5)  # for the framework to do to the request what it does
    room.unlock()
    assert eventually(lambda: room.accepted != ())
    assert [file.sha256 for file in room.accepted] == [sha256(LARGE)]


def test_an_upload_that_waits_is_cancelled_with_its_browser(
    site: Site, room: Room, meeting: MeetingServer
) -> None:
    """If you want it so: the document is dropped, and nobody stands in the queue."""
    room.lock()
    with site.browser() as browser:
        browser.post(f"/rooms/{room.room_id}/documents?when_gone=cancel", form(LARGE))
        assert eventually(lambda: requests(meeting, room) >= 2)
        time.sleep(0.2)  # the refusal has arrived, and the next attempt is seconds away
        browser.cut()
    assert eventually(lambda: site.temporary_files() == [], 10)  # sooner than the wait would end
    room.unlock()
    proves_to_be_free(site, room)
    assert len(room.accepted) == 1


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_upload_that_is_being_sent_is_finished_or_cut(framework: str, tmp_path: Path) -> None:
    """To a meeting server that reads nothing, one document is still being sent, one is dropped."""
    document = LARGE * 10  # more than the kernel takes off our hands
    with (
        DeafServer.run(is_probed=False) as deaf,
        serving(framework, deaf, tmp_path) as site,
        site.browser() as stays,
        site.browser() as goes,
    ):
        stays.post("/rooms/room01/documents", form(document))
        assert eventually(lambda: site.connections(deaf)[1] == 1)
        goes.post("/rooms/room02/documents?when_gone=cancel", form(document))
        assert eventually(lambda: site.connections(deaf)[1] == 2)
        stays.cut()
        goes.cut()
        assert eventually(lambda: site.connections(deaf)[1] == 1)
        time.sleep(1)
        assert site.connections(deaf)[1] == 1
        site.stop(kill=True)  # it would wait for a server that never answers


@pytest.mark.parametrize("when_gone", ["finish", "cancel"])
def test_a_document_that_was_sent_cannot_be_called_back(
    site: Site, room: Room, meeting: MeetingServer, when_gone: str
) -> None:
    """The browser goes while the server converts: with either policy the room gets the file."""
    room.processing_seconds = 2
    kept = site.connections(meeting)[1]
    with site.browser() as browser:
        browser.post(f"/rooms/{room.room_id}/documents?when_gone={when_gone}", form(LARGE))
        assert eventually(lambda: room.accepted != ())
        browser.cut()
        waited = seconds_until_dropped(site, meeting, kept)
    assert waited < 1 if when_gone == "cancel" else waited > 1
    assert eventually(lambda: len(room.received) == 1)


def test_a_streamed_body_that_was_sent_cannot_be_called_back(
    site: Site, room: Room, meeting: MeetingServer
) -> None:
    """Here the framework decides who waits for the answer; the room gets the file anyway."""
    room.processing_seconds = 2
    with site.browser() as browser:
        browser.request("PUT", f"/rooms/{room.room_id}/documents/deck.pdf", len(SMALL))
        browser.send(SMALL)
        assert eventually(lambda: room.accepted != ())
        browser.cut()
        waited = seconds_until_dropped(site, meeting, KEPT)
    assert waited < 1 if site.name == "quart" else waited > 1
    assert eventually(lambda: len(room.received) == 1)


def seconds_until_dropped(site: Site, meeting: MeetingServer, kept: int) -> float:
    """Wait until the site has no connection for uploads any more."""
    began = time.monotonic()
    assert eventually(lambda: site.connections(meeting)[1] <= kept)
    return time.monotonic() - began


def test_a_cancelled_upload_shuts_its_room_for_a_while(
    site: Site, room: Room, meeting: MeetingServer
) -> None:
    """Nobody knows what became of it, so the next one from here waits; finishing does not."""
    room.processing_seconds = 1
    with site.browser() as browser:
        browser.post(f"/rooms/{room.room_id}/documents?when_gone=cancel", form(SMALL))
        assert eventually(lambda: room.accepted != ())
        browser.cut()
    assert eventually(lambda: len(room.received) == 1)
    with site.browser() as browser:
        browser.post(f"/rooms/{room.room_id}/documents?when_gone=cancel", form(SMALL))
        time.sleep(1)
        assert requests(meeting, room) == 1
        browser.cut()


# --- batches -------------------------------------------------------------------------------------


@pytest.fixture
def decks(site: Site) -> None:
    """Put two documents into the folder that batches may name."""
    for name in ("a.pdf", "b.pdf"):
        (site.folder / "documents" / name).write_bytes(SMALL)


@pytest.mark.usefixtures("decks")
def test_a_batch_tells_what_becomes_of_it(site: Site, room: Room, meeting: MeetingServer) -> None:
    """To several listeners: one follows, one is cut, one comes late, one comes back."""
    other = meeting.add_room(f"{room.room_id}-other")
    room.lock()
    link = meeting.host_file("linked.pdf", SMALL)
    with site.browser() as first, site.browser() as second:
        path = first.order(
            {"room_id": other.room_id, "path": "a.pdf"},
            {"room_id": room.room_id, "path": "b.pdf"},
            {"room_id": other.room_id, "link": link},
            {"room_id": "nowhere", "path": "a.pdf"},
        )
        follows = first.events(path)
        seen = [next(follows) for _ in range(3)]
        assert next(second.events(path)) == seen[0]
        second.cut()
        room.unlock()
        seen += follows
    assert [told.event for told in seen] == [*["outcome"] * 4, "report"]
    outcomes = {told.data["index"]: told.data for told in seen[:-1]}
    assert [outcomes[index]["delivered"] for index in range(4)] == [True, True, True, False]
    assert outcomes[3]["status"] == "refused"
    assert seen[3].data["index"] == 1
    assert (seen[-1].data["accepted"], seen[-1].data["refused"]) == (3, 1)
    assert [file.name for file in other.received] == ["a.pdf", "linked.pdf"]
    assert [file.name for file in room.received] == ["b.pdf"]
    with site.browser() as late:
        assert list(late.events(path)) == seen
    with site.browser() as again:
        assert list(again.events(path, f"Last-Event-ID: {seen[1].id}")) == seen[2:]
    with site.browser() as confused:  # by the number of an earlier run of the application
        assert list(confused.events(path, "Last-Event-ID: 0badcafe-2")) == seen


@pytest.mark.usefixtures("decks")
@pytest.mark.parametrize(
    "order",
    [
        b"",
        b"[]",
        b'{"jobs": []}',
        b'{"jobs": [{"room_id": "room01"}]}',
        b'{"jobs": [{"room_id": "room01", "path": "../secret.pdf"}]}',
        b'{"jobs": [{"room_id": "room01", "path": "/etc/passwd"}]}',
        b'{"jobs": [{"room_id": "room01", "path": "a.pdf", "link": "https://x.test/a.pdf"}]}',
        b'{"jobs": [{"room_id": "room01", "link": "file:///etc/passwd"}]}',
    ],
)
def test_an_order_that_cannot_be_done_is_refused(site: Site, order: bytes) -> None:
    """Nothing is kept of it."""
    kept = sorted((site.folder / "batches").iterdir())
    with site.browser() as browser:
        browser.request("POST", "/batches", len(order), "Content-Type: application/json")
        browser.send(order)
        status, _, body = browser.answer()
    assert (status, body["error"], body["delivered"]) == (422, "InvalidInput", False)
    assert sorted((site.folder / "batches").iterdir()) == kept


@pytest.mark.parametrize("batch_id", ["f" * 32, "nonsense"])
def test_there_is_no_such_batch(site: Site, batch_id: str) -> None:
    """404, which also stops a browser's EventSource."""
    with site.browser() as browser:
        browser.request("GET", f"/batches/{batch_id}/events")
        assert browser.answer()[0] == 404


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_stopped_batch_goes_on_after_a_restart(
    framework: str, meeting: MeetingServer, room: Room, tmp_path: Path
) -> None:
    """What is on its way comes to its end, what was not begun waits; nothing is sent twice."""
    room.processing_seconds = 2
    with serving(framework, meeting, tmp_path) as site, site.browser() as browser:
        for name in ("a.pdf", "b.pdf"):
            (tmp_path / "documents" / name).write_bytes(SMALL)
        jobs = [{"room_id": room.room_id, "path": name} for name in ("a.pdf", "b.pdf")]
        path = browser.order(*jobs)
        browser.request("GET", path)  # a listener that would stay for ever
        assert eventually(lambda: len(room.accepted) == 1)
        assert site.stop() < 15
    assert "Application shutdown complete" in site.log
    assert "unclosed MeetingClient" not in site.log
    assert [file.name for file in room.accepted] == ["a.pdf"]
    room.processing_seconds = 0
    with serving(framework, meeting, tmp_path) as site, site.browser() as browser:
        report = list(browser.events(path))[-1]
    assert (report.event, report.data["accepted"], report.data["resumed"]) == ("report", 1, 1)
    assert [file.name for file in room.received] == ["a.pdf", "b.pdf"]


# --- behind a proxy ------------------------------------------------------------------------------


@needs_nginx
@pytest.mark.usefixtures("decks")
def test_the_proxy_of_the_page_lets_all_of_this_through(
    site: Site, room: Room, meeting: MeetingServer, tmp_path: Path
) -> None:
    """Bodies and events pass nginx as they come, and it tells when a browser has gone."""
    page = (APPLICATIONS.parent / "frameworks.md").read_text("utf-8")
    (settings,) = re.findall(r"^```nginx\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    with Nginx(tmp_path, settings.replace(":8000;", f":{site.port};")) as nginx:
        with site.browser(nginx.port) as browser:
            browser.request("PUT", f"/rooms/{room.room_id}/documents/deck.pdf", len(LARGE))
            browser.send(LARGE[: len(LARGE) // 2])
            assert eventually(lambda: site.connections(meeting)[1] > KEPT)
            browser.cut()
            assert eventually(lambda: site.connections(meeting) <= (0, KEPT))
        assert room.accepted == ()
        with site.browser(nginx.port) as browser:
            browser.post(f"/rooms/{room.room_id}/documents", form(LARGE))
            assert browser.answer()[0] == 200
        with site.browser(nginx.port) as browser:
            jobs = [{"room_id": room.room_id, "path": name} for name in ("a.pdf", "b.pdf")]
            room.processing_seconds = 2
            began = time.monotonic()
            arrivals = [time.monotonic() - began for _ in browser.events(browser.order(*jobs))]
    assert arrivals[1] - arrivals[0] > 1  # as they happened, not all at the end
    assert [file.sha256 for file in room.received] == [sha256(LARGE), *[sha256(SMALL)] * 2]
