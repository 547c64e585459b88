"""Look before you send: what the first contact with a room costs, and what its answers lead to.

Everything runs in virtual time, in process. A *check* asks whether a room is active; an *empty
form* is an upload without a document.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import pairwise
from typing import Any

import anyio
import httpx
import pytest

from meeting_async import Document, MeetingClient, RetryPolicy, UploadReceipt
from meeting_async.errors import (
    AuthenticationFailed,
    MeetingError,
    RoomBusy,
    RoomNotActive,
    RoomNotFound,
    Throttled,
    TransferTimeout,
    UnexpectedReply,
)
from meeting_async.transports import HttpxTransport
from support.fake_rooms import (
    Act,
    Answer,
    FakeRooms,
    Visit,
    accepted,
    busy,
    client_of,
    conversion_failed,
    cut_off,
    failing,
    job,
    jobs_for,
    lost,
    record,
    refused,
    reply,
)
from support.tables import LOOPS, crossed

Run = Callable[..., Any]

PAGE = b"<!doctype html><title>hello</title>"
NOT_FOUND, NOT_ACTIVE = record("ROOM_NOT_FOUND"), record("ROOM_NOT_ACTIVE")


def pdf(size: int) -> Callable[[], bytes]:
    """Make a document of so many bytes."""
    return lambda: b"%PDF-1.7".ljust(size, b"\n")


def a_link() -> Document:
    """Make a link: the form has an address instead of a document."""
    return Document.from_link("https://files.test/deck.pdf")


async def a_stream() -> AsyncIterator[bytes]:
    """Produce a document."""
    yield pdf(100_000)()


DOCUMENTS: dict[str, Callable[[], Any]] = {
    "8 bytes": pdf(8),
    "64 KiB": pdf(64 * 1024),
    "256 KiB": pdf(256 * 1024),
    "1 MiB": pdf(1024**2),
    "link": a_link,
    "stream": a_stream,
}
SMALL, LARGE = pdf(8)(), pdf(300_000)()
SIZES = {"small": SMALL, "large": LARGE}
documents = pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)


def answering(
    checks: Iterable[Act] = (), forms: Iterable[Act] = (), *, then: Answer | None = None
) -> Answer:
    """Play a script for each kind of question; afterwards the room is active and free."""
    scripts = {"question": deque(checks), "probe": deque(forms)}

    def ask(visit: Visit) -> Act:
        if scripts[visit.kind]:
            return scripts[visit.kind].popleft()
        if then is not None:
            return then(visit)
        return accepted() if visit.kind == "question" else refused()

    return ask


def playing(*script: Act) -> Answer:
    """Play a script for uploads; afterwards they are accepted."""
    acts = deque(script)
    return lambda _visit: acts.popleft() if acts else accepted()


def kinds(rooms: FakeRooms) -> list[str]:
    """Name the requests so far."""
    return [visit.kind for visit in rooms.visits]


async def upload(client: MeetingClient, document: Any, room: str = "room01", **how: Any) -> Any:
    """Upload, and return the receipt or the error."""
    if not isinstance(document, Document):
        how["filename"] = "deck.pdf"
    try:
        return await client.upload_whiteboard_file(room, document, **how)
    except MeetingError as error:
        return error


def course(run: Run, rooms: FakeRooms, document: Any = SMALL, **settings: Any) -> Any:
    """Upload one document; return the receipt or the error, and the seconds that it took."""
    how = {name: settings.pop(name) for name in ("max_wait", "timeout") if name in settings}

    async def main() -> tuple[Any, float]:
        async with client_of(rooms, **settings) as client:
            return await upload(client, document, **how), anyio.current_time()

    return run(main)


# --- when it is asked ----------------------------------------------------------------------------


@crossed(document=DOCUMENTS, anyio_backend=LOOPS)
def test_every_document_is_preceded_by_one_check(run: Run, document: Callable[[], Any]) -> None:
    """Whatever its size, before a room's first upload one call asks for this room; later none."""

    async def main() -> None:
        rooms = FakeRooms()
        async with client_of(rooms) as client:
            assert isinstance(await upload(client, document()), UploadReceipt)
            assert kinds(rooms) == ["question", "upload"]
            assert {visit.room for visit in rooms.visits} == {"room01"}
            assert len(rooms.visits[0].sent) < 300
            assert isinstance(await upload(client, document()), UploadReceipt)
        assert kinds(rooms) == ["question", "upload", "upload"]

    run(main)


@documents
def test_preflight_turns_it_off(run: Run, document: Callable[[], Any]) -> None:
    """Also after an unknown outcome nobody asks whether the room is active."""

    async def main() -> None:
        rooms = FakeRooms(playing(accepted(), lost()), ask=answering())
        async with client_of(rooms, preflight=False) as client:
            for _ in range(3):
                await upload(client, document())
        assert rooms.questions == []
        assert len(rooms.uploads) == 3

    run(main)


def test_the_answer_is_remembered_for_half_a_minute(run: Run) -> None:
    """By each client, for each room."""

    async def main() -> None:
        rooms = FakeRooms()
        async with client_of(rooms) as client, client_of(rooms) as other:
            await upload(client, SMALL)
            assert kinds(rooms) == ["question", "upload"]
            await upload(client, SMALL, "room02")
            await upload(other, SMALL)
            assert kinds(rooms)[2:] == ["question", "upload"] * 2
            await anyio.sleep(29.5)
            await upload(client, SMALL)
            assert kinds(rooms)[6:] == ["upload"]
            await anyio.sleep(1)
            await upload(client, SMALL)
            assert kinds(rooms)[7:] == ["question", "upload"]

    run(main)


def test_uploads_that_begin_together_ask_once(run: Run) -> None:
    """Five uploads to one room need one answer."""

    async def main() -> None:
        rooms = FakeRooms(lambda _: accepted(replying=2), ask=answering([accepted(replying=3)]))
        async with client_of(rooms) as client, anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(upload, client, SMALL)
        assert kinds(rooms) == ["question", *["upload"] * 5]

    run(main)


SHOCKS: dict[str, list[Act]] = {
    "no answer": [lost()],
    "silence": [failing(TransferTimeout("no reply"), replying=5)],
    "502 of a proxy": [reply(502, PAGE)],
    "504 of a proxy": [reply(504, PAGE, replying=5)],
    "500 of the server": [conversion_failed()],
    "502 amid the document": [reply(502, PAGE, take=1)],
    "reset amid the document": [cut_off()],
    "interrupted for good": [cut_off()] * 3,
}


@crossed(shock=SHOCKS, data=SIZES, anyio_backend=LOOPS)
def test_it_is_asked_again_after_a_possible_restart(
    run: Run, shock: list[Act], data: bytes
) -> None:
    """After an unknown outcome, a 5xx or a lost connection of an upload, before anything else."""

    async def main() -> None:
        rooms = FakeRooms(playing(*shock), ask=answering())
        async with client_of(rooms) as client:
            for _ in range(2):
                await upload(client, data)
        assert anyio.current_time() < 25  # else the answer would have been forgotten anyway
        assert [visit.is_accepted for visit in rooms.uploads][-1]
        for first, second in pairwise(rooms.uploads):
            if not first.is_accepted:
                between = rooms.visits[rooms.visits.index(first) + 1 : rooms.visits.index(second)]
                assert [visit.kind for visit in between][:1] == ["question"]
                assert between[0].room == "room01"

    run(main)


def test_it_is_asked_again_before_a_document_is_sent_twice(run: Run) -> None:
    """With ``at_least_once``, too: first the check, then the empty form, then the document."""
    rooms = FakeRooms(playing(lost()), ask=answering(forms=[busy(), refused()]))
    outcome, seconds = course(run, rooms, delivery="at_least_once")
    assert isinstance(outcome, UploadReceipt)
    assert kinds(rooms) == ["question", "upload", "question", "probe", "probe", "upload"]
    assert seconds < 30


# --- in a batch ----------------------------------------------------------------------------------


@crossed(data=SIZES, anyio_backend=LOOPS)
def test_a_batch_asks_once_for_each_room(run: Run, data: bytes) -> None:
    """Fifty documents for ten rooms cost ten calls, each before the room's first document."""

    async def main() -> None:
        rooms = FakeRooms(lambda _: accepted(replying=1))
        jobs = [job(f"room{n % 10}", n, data) for n in range(50)]
        async with client_of(rooms) as client, client.upload_many(jobs) as batch:
            report = await batch.wait()
        assert report.accepted == 50
        assert len(rooms.questions) == 10
        for number in range(10):
            assert next(v.kind for v in rooms.visits if v.room == f"room{number}") == "question"

    run(main)


def test_a_long_batch_asks_every_half_minute(run: Run) -> None:
    """No document is sent to a room that was last asked for longer ago; no room more often."""

    async def main() -> None:
        rooms = FakeRooms(lambda _: accepted(replying=7))
        async with client_of(rooms) as client, client.upload_many(jobs_for(3, 20)) as batch:
            report = await batch.wait()
        assert report.accepted == 60
        for room in ("room00", "room01", "room02"):
            asked = [visit.began for visit in rooms.of("question", room)]
            for visit in rooms.of("upload", room):
                assert any(0 <= visit.began - began <= 30 for began in asked)
            assert len(asked) <= 1 + 140 / 30

    run(main)


# --- what is answered ----------------------------------------------------------------------------


CODES = {name: name for name in ("INVALID_API_KEY", "INVALID_TOKEN_OR_SIGNATURE")}


@crossed(document=DOCUMENTS, code=CODES, anyio_backend=LOOPS)
def test_a_wrong_key_or_secret_stops(run: Run, document: Callable[[], Any], code: str) -> None:
    """Nothing of the document is sent."""
    rooms = FakeRooms(ask=lambda _: reply(401, record(code)))
    outcome, seconds = course(run, rooms, document())
    assert isinstance(outcome, AuthenticationFailed)
    assert rooms.uploads == []
    assert seconds < 1


NO_ROOM = {
    "not found": reply(200, NOT_FOUND),
    "not active": reply(200, NOT_ACTIVE),
    "404, not found": reply(404, NOT_FOUND),
}


@crossed(document=DOCUMENTS, check=NO_ROOM, anyio_backend=LOOPS)
def test_the_empty_form_overrules_the_check(
    run: Run, document: Callable[[], Any], check: Act
) -> None:
    """If it is answered as in a free room, the document is sent at once."""
    rooms = FakeRooms(ask=answering([check]))
    outcome, seconds = course(run, rooms, document())
    assert isinstance(outcome, UploadReceipt)
    assert kinds(rooms) == ["question", "probe", "upload"]
    assert len(rooms.visits[1].sent) < 400
    assert seconds < 1


REFUSALS = {
    "200 not found": (reply(200, NOT_FOUND), RoomNotFound),
    "400 not found": (reply(400, NOT_FOUND), RoomNotFound),
    "200 not active": (reply(200, NOT_ACTIVE), RoomNotActive),
    "400 not active": (reply(400, NOT_ACTIVE), RoomNotActive),
    "401": (reply(401, record("INVALID_TOKEN_OR_SIGNATURE")), AuthenticationFailed),
}


@crossed(refusal=REFUSALS, check=NO_ROOM, data=SIZES, anyio_backend=LOOPS)
def test_the_empty_form_is_the_refusal(
    run: Run, refusal: tuple[Act, type[MeetingError]], check: Act, data: bytes
) -> None:
    """What it is refused for is the error of the upload; nothing of the document is sent."""
    form, error = refusal
    rooms = FakeRooms(ask=answering([check], [form]))
    outcome, seconds = course(run, rooms, data)
    assert type(outcome) is error
    assert (outcome.room_id, outcome.document) == ("room01", "deck.pdf")
    assert kinds(rooms) == ["question", "probe"]
    assert seconds < 1


@crossed(check=NO_ROOM, data=SIZES)
def test_the_empty_form_finds_the_room_locked(run: Run, check: Act, data: bytes) -> None:
    """Then the upload waits as for any lock; a large document is sent once."""

    def locked(visit: Visit) -> Act:
        is_locked = visit.began < 20
        return busy() if is_locked else accepted() if visit.kind == "upload" else refused()

    rooms = FakeRooms(locked, ask=answering([check], then=locked))
    outcome, seconds = course(run, rooms, data)
    assert isinstance(outcome, UploadReceipt)
    assert kinds(rooms)[:2] == ["question", "probe"]
    assert 20 <= seconds <= 23
    assert data == SMALL or len(rooms.uploads) == 1


@crossed(check=NO_ROOM, data=SIZES)
def test_the_empty_form_finds_the_room_locked_and_nobody_waits(
    run: Run, check: Act, data: bytes
) -> None:
    """With ``max_wait=0`` the room is busy, at the price of two small requests."""
    rooms = FakeRooms(ask=answering([check], [busy()]))
    outcome, seconds = course(run, rooms, data, max_wait=0)
    assert isinstance(outcome, RoomBusy)
    assert (kinds(rooms), seconds) == (["question", "probe"], 0)


def test_a_batch_goes_on_in_other_rooms(run: Run) -> None:
    """The form decides for each room; who is not there costs no document."""

    def ask(visit: Visit) -> Act:
        if visit.kind == "question":
            return accepted() if visit.room == "room00" else reply(200, NOT_FOUND)
        return refused() if visit.room == "room01" else reply(400, NOT_FOUND)

    async def main() -> None:
        rooms = FakeRooms(ask=ask)
        async with client_of(rooms) as client, client.upload_many(jobs_for(3, 2)) as batch:
            report = await batch.wait()
        assert {visit.room for visit in rooms.uploads} == {"room00", "room01"}
        statuses = [outcome.status for outcome in report.outcomes]
        assert statuses == ["accepted", "accepted", "refused", "accepted", "accepted", "skipped"]
        errors = [outcome.error for outcome in report.outcomes if outcome.error]
        assert [type(error) for error in errors] == [RoomNotFound] * 2

    run(main)


# --- throttled -----------------------------------------------------------------------------------

HINTS = {
    "429": lambda after: reply(429, b"", after),
    "429 in its record": lambda after: reply(429, record("TOO_MANY_REQUESTS"), after),
    "503 of a page": lambda after: reply(503, PAGE, after),
    "503 in its record": lambda after: reply(503, record("INTERNAL_SERVER_ERROR"), after),
}
hints = pytest.mark.parametrize("hint", HINTS.values(), ids=HINTS)


@crossed(document=DOCUMENTS, hint=HINTS, anyio_backend=LOOPS)
def test_the_hint_of_the_check_is_obeyed(
    run: Run, document: Callable[[], Any], hint: Callable[[str], Act]
) -> None:
    """After ``Retry-After: 30`` nothing is sent for 30 s; then the check, then the document."""
    rooms = FakeRooms(ask=answering([hint("30")]))
    outcome, _ = course(run, rooms, document())
    assert isinstance(outcome, UploadReceipt)
    first, *later = rooms.visits
    assert first.kind == "question"
    assert all(30 <= visit.began <= 50 for visit in later)
    assert [visit.kind for visit in later] == ["question", "upload"]


@crossed(hint=HINTS, data=SIZES)
def test_the_hint_of_the_empty_form_is_obeyed(
    run: Run, hint: Callable[[str], Act], data: bytes
) -> None:
    """It asks for patience as the check does."""
    rooms = FakeRooms(ask=answering([reply(200, NOT_ACTIVE)] * 2, [hint("30")]))
    outcome, _ = course(run, rooms, data)
    assert isinstance(outcome, UploadReceipt)
    assert kinds(rooms)[:2] == ["question", "probe"]
    assert all(30 <= visit.began <= 50 for visit in rooms.visits[2:])
    assert len(rooms.uploads) == 1


def test_a_waiting_upload_obeys_the_hint_of_the_empty_form(run: Run) -> None:
    """Amid a lock, too: 429 does not mean that the room is free."""
    rooms = FakeRooms(playing(busy()), ask=answering(forms=[busy(), reply(429, b"", "30"), busy()]))
    outcome, _ = course(run, rooms, LARGE)
    assert isinstance(outcome, UploadReceipt)
    throttled = rooms.of("probe")[1].began
    later = [visit for visit in rooms.visits if visit.began > throttled]
    assert all(visit.began >= throttled + 30 for visit in later)
    assert len(rooms.uploads) == 2


@hints
def test_a_hint_that_does_not_fit_ends_the_call(run: Run, hint: Callable[[str], Act]) -> None:
    """At once, with nothing sent."""
    rooms = FakeRooms(ask=answering(then=lambda _: hint("30")))
    outcome, seconds = course(run, rooms, timeout=20)
    assert isinstance(outcome, Throttled)
    assert (kinds(rooms), seconds) == (["question"], 0)


@crossed(hint=HINTS, data=SIZES)
def test_a_server_that_throttles_for_ever(
    run: Run, hint: Callable[[str], Act], data: bytes
) -> None:
    """A hint of an hour counts as one of a minute; after some of them nothing was sent."""
    rooms = FakeRooms(ask=answering(then=lambda _: hint("3600")))
    outcome, seconds = course(run, rooms, data)
    assert isinstance(outcome, Throttled)
    assert rooms.uploads == []
    assert 60 <= seconds <= 600
    begun = [visit.began for visit in rooms.visits]
    assert all(later - earlier >= 60 for earlier, later in pairwise(begun))


@crossed(hint=HINTS, anyio_backend=LOOPS)
def test_a_batch_obeys_the_hint(run: Run, hint: Callable[[str], Act]) -> None:
    """The room of its first job as well as a later one gets no document for 30 s."""

    async def main() -> None:
        scripts = {"room00": deque([hint("30")]), "room02": deque([hint("30")])}

        def ask(visit: Visit) -> Act:
            return scripts[visit.room].popleft() if scripts.get(visit.room) else accepted()

        rooms = FakeRooms(ask=ask)
        async with client_of(rooms) as client, client.upload_many(jobs_for(3, 2)) as batch:
            report = await batch.wait()
        assert report.accepted == 6
        for room in ("room00", "room02"):
            first, *_ = [visit for visit in rooms.visits if visit.room == room]
            assert first.kind == "question"
            assert all(visit.began >= first.began + 30 for visit in rooms.of("upload", room))

    run(main)


# --- not a meeting server ------------------------------------------------------------------------

STRANGERS = {
    "200 with a page": reply(200, PAGE),
    "200 with nothing": reply(200, b""),
    "200 with other JSON": reply(200, {"hello": "world"}),
    "404 with a page": reply(404, PAGE),
    "404 with text": reply(404, b"404 page not found"),
    "404 with other JSON": reply(404, {"detail": "Not Found"}),
    **{f"{status}": reply(status, PAGE) for status in (301, 302, 303, 307, 308)},
}


@crossed(stranger=STRANGERS, document=DOCUMENTS, anyio_backend=LOOPS)
def test_a_wrong_base_url_costs_one_check(
    run: Run, stranger: Act, document: Callable[[], Any]
) -> None:
    """``UnexpectedReply`` at once says what to check; nothing of the document is sent."""
    rooms = FakeRooms(lambda _: stranger, ask=lambda _: stranger)
    outcome, seconds = course(run, rooms, document())
    assert type(outcome) is UnexpectedReply
    assert "check the base URL" in str(outcome)
    assert outcome.room_id == "room01"
    assert str(outcome.document).endswith("deck.pdf")
    assert (kinds(rooms), seconds) == (["question"], 0)


@crossed(stranger=STRANGERS, anyio_backend=LOOPS)
def test_a_wrong_base_url_ends_a_batch(run: Run, stranger: Act) -> None:
    """Before any document is sent; the report says why."""

    async def main() -> None:
        rooms = FakeRooms(lambda _: stranger, ask=lambda _: stranger)
        async with client_of(rooms) as client, client.upload_many(jobs_for(3, 3)) as batch:
            report = await batch.wait()
        assert rooms.uploads == []
        assert type(report.stopped_by) is UnexpectedReply
        assert "check the base URL" in str(report.stopped_by)
        assert (report.total, report.accepted, report.unknown) == (9, 0, 0)
        assert anyio.current_time() < 1

    run(main)


@crossed(status={"200": 200, "302": 302, "404": 404}, anyio_backend=LOOPS)
def test_a_wrong_base_url_through_a_client_of_httpx(run: Run, status: int) -> None:
    """A borrowed client asks first, too."""
    paths: list[str] = []

    def stranger(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        return httpx.Response(status, html=PAGE.decode(), headers={"Location": "/login"})

    async def main() -> Any:
        async with (
            httpx.AsyncClient(transport=httpx.MockTransport(stranger)) as borrowed,
            MeetingClient(
                "https://meet.test",
                api_key="key",
                api_secret="secret",
                transport=HttpxTransport(borrowed),
                retry=RetryPolicy(max_attempts=1),
            ) as client,
        ):
            return await upload(client, SMALL)

    error = run(main)
    assert type(error) is UnexpectedReply
    assert "check the base URL" in str(error)
    assert paths == ["/auth/room/getActiveRoomInfo"]
