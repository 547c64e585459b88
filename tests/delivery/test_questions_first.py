"""The questions go first, every time: check, form, document; and what their answers lead to.

A *check* asks whether a room is active; a *form* is an empty upload that asks whether it is free.
In virtual time, in process, where nothing else is said. A room's requests are shown as letters:
``c`` check, ``f`` form, ``d`` document.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import attrs
import httpx
import pytest

from meeting_async import (
    Document,
    LockPolicy,
    MeetingClient,
    RetryPolicy,
    UploadJob,
    UploadReceipt,
)
from meeting_async.errors import (
    AuthenticationFailed,
    ConnectFailed,
    DeadlineExceeded,
    MeetingError,
    ProcessingFailed,
    ReplyTooLarge,
    RequestRefused,
    RoomBusy,
    RoomNotActive,
    RoomNotFound,
    Throttled,
    TransferTimeout,
    UnexpectedReply,
    UploadOutcomeUnknown,
)
from meeting_async.testing import MeetingServer
from meeting_async.transports import HttpTransport, HttpxTransport, Reply
from support import peer
from support.adversary import room_of
from support.command_line import PDF, call, export, manifest
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
    unreachable,
)
from support.sending import Ticker
from support.tables import LOOPS, crossed

Run = Callable[..., Any]

PAGE = b"<!doctype html><title>hello</title>"
NOT_FOUND, NOT_ACTIVE = record("ROOM_NOT_FOUND"), record("ROOM_NOT_ACTIVE")
INTERNAL = record("INTERNAL_SERVER_ERROR")
LETTERS = {"question": "c", "probe": "f", "upload": "d"}

OUTAGE, LATE = 60, 1.5
"""Seconds: ``RetryPolicy.max_outage``, and what a call may take longer."""


def pdf(size: int) -> bytes:
    """Make a document of so many bytes."""
    return b"%PDF-1.7".ljust(size, b"\n")


async def a_stream() -> AsyncIterator[bytes]:
    """Produce a document."""
    yield pdf(100_000)


DOCUMENTS: dict[str, Callable[[], Any]] = {
    "8 bytes": lambda: pdf(8),
    "64 KiB": lambda: pdf(64 * 1024),
    "65 KiB": lambda: pdf(65 * 1024),
    "1 MiB": lambda: pdf(1024**2),
    "link": lambda: Document.from_link("https://files.test/deck.pdf"),
    "stream": a_stream,
}
WITHOUT_A_FORM = {"8 bytes", "64 KiB", "link"}
SMALL, LARGE = pdf(8), pdf(300_000)
SIZES = {"small": SMALL, "large": LARGE}
STEPS = {SMALL: "cd", LARGE: "cfd"}


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
    """Play a script for documents; afterwards they are accepted."""
    acts = deque(script)
    return lambda _visit: acts.popleft() if acts else accepted()


def letters(rooms: FakeRooms, room: str = "room01") -> str:
    """Show what a room has been asked and sent."""
    return "".join(LETTERS[visit.kind] for visit in rooms.visits if visit.room == room)


async def upload(client: MeetingClient, document: Any, room: str = "room01", **how: Any) -> Any:
    """Upload, and return the receipt or the error."""
    if not isinstance(document, Document):
        how.setdefault("filename", "deck.pdf")
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


def client_at(url: str, transport: Any) -> MeetingClient:
    """Make a client of the shipped server."""
    return MeetingClient(url, api_key="devkey", api_secret="devsecret", transport=transport)


@asynccontextmanager
async def in_process(app: Any) -> AsyncGenerator[MeetingClient]:
    """Open a client of a server without a socket."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app)) as borrowed:
        async with client_at("http://localhost", HttpxTransport(borrowed)) as client:
            yield client


# --- check, form, document -----------------------------------------------------------------------

SETTINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "as it is": ({}, "cd", "cfd"),
    "without preflight": ({"preflight": False}, "d", "d"),
    "without a form": ({"lock": LockPolicy(probe=False)}, "cd", "cd"),
}


@crossed(name={name: name for name in DOCUMENTS}, settings=SETTINGS, anyio_backend=LOOPS)
def test_every_document_has_its_questions(
    run: Run, name: str, settings: tuple[dict[str, Any], str, str]
) -> None:
    """A check, above 64 KiB a form, and the document at once, each time; both are small."""
    options, small, large = settings
    rooms = FakeRooms(ask=answering())

    async def main() -> None:
        async with client_of(rooms, **options) as client:
            for _ in range(3):
                assert isinstance(await upload(client, DOCUMENTS[name]()), UploadReceipt)
        assert anyio.current_time() == 0

    run(main)
    assert letters(rooms) == 3 * (small if name in WITHOUT_A_FORM else large)
    assert all(len(visit.sent) < 400 for visit in rooms.visits if visit.kind != "upload")


SHOCKS: dict[str, list[Act]] = {
    "no answer": [lost()],
    "502 of a proxy": [reply(502, PAGE)],
    "a failed conversion": [conversion_failed()],
    "502 amid the document": [reply(502, PAGE, take=1)],
    "reset amid the document": [cut_off()],
    "no connection": [unreachable()] * 2,
    "429": [reply(429, b"", "3")],
    "another was faster": [busy()],
    "interrupted for good": [cut_off()] * 3,
}


@crossed(shock=SHOCKS, data=SIZES, anyio_backend=LOOPS)
def test_every_attempt_begins_with_them(run: Run, shock: list[Act], data: bytes) -> None:
    """Whatever has ended the attempt before, of this upload or of another one."""
    rooms = FakeRooms(playing(*shock), ask=answering())

    async def main() -> None:
        async with client_of(rooms) as client:
            for _ in range(2):
                await upload(client, data)

    run(main)
    assert rooms.uploads[-1].is_accepted
    assert re.fullmatch("(cfd)+" if data == LARGE else "(cf?d)+", letters(rooms))


def test_uploads_that_begin_together_ask_each(run: Run) -> None:
    """An answer counts for one attempt of one upload."""
    rooms = FakeRooms(lambda _: accepted(replying=2), ask=answering())

    async def main() -> None:
        async with client_of(rooms) as client, anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(upload, client, LARGE)

    run(main)
    assert letters(rooms) == "cfd" * 5


@crossed(data=SIZES, anyio_backend=LOOPS)
def test_a_batch_asks_each_time(run: Run, data: bytes) -> None:
    """Fifty documents for ten rooms, each with its own questions."""
    rooms = FakeRooms(lambda _: accepted(replying=1), ask=answering())

    async def main() -> None:
        jobs = [job(f"room{n % 10}", n, data) for n in range(50)]
        async with client_of(rooms) as client, client.upload_many(jobs) as batch:
            assert (await batch.wait()).accepted == 50

    run(main)
    assert {letters(rooms, f"room{n}") for n in range(10)} == {STEPS[data] * 5}


@crossed(loss=dict(list(SHOCKS.items())[:2]), data=SIZES, anyio_backend=LOOPS)
def test_a_document_is_sent_again_after_a_form(run: Run, loss: list[Act], data: bytes) -> None:
    """With ``at_least_once``, whatever its size: only after a form that said *free*."""
    forms = [busy(), reply(502, PAGE), conversion_failed(), busy(), refused()]
    rooms = FakeRooms(playing(*loss), ask=answering(forms=[*[refused()] * (data == LARGE), *forms]))
    outcome, seconds = course(run, rooms, data, delivery="at_least_once")
    assert isinstance(outcome, UploadReceipt)
    assert letters(rooms) == STEPS[data] + "cf" * 4 + "cfd"
    assert seconds < 30


# --- restarts that nobody sees -------------------------------------------------------------------

SEVEN = [f"class{number}" for number in range(7)]


class Instances:
    """A server that restarts: an ASGI application, whose clients see nothing of it."""

    def __init__(self) -> None:
        self.all: list[MeetingServer] = []
        self.restart()

    def restart(self) -> None:
        """Put a new instance in its place, which knows of nothing."""
        self.all.append(MeetingServer(mixes_up_rooms=True))
        for room in SEVEN:
            self.all[-1].add_room(room)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.all[-1](scope, receive, send)

    def names(self, room: str) -> list[str]:
        """Return what a room has of all instances."""
        return [file.name for one in self.all for file in one.rooms[room].received]

    def count(self) -> int:
        """Count the documents."""
        return sum(len(self.names(room)) for room in SEVEN)

    def check(self) -> None:
        """Each document is in its room, and no instance got a form before a check of its room."""
        for room in SEVEN:
            assert {name.rpartition("-")[0] for name in self.names(room)} <= {room}
        for server in self.all:
            asked: set[str | None] = set()
            for request in server.requests:
                if "getActiveRoomInfo" in request.path:
                    asked.add(request.room_id)
                assert request.room_id in asked


@crossed(data=SIZES, how={"single": False, "batch": True}, anyio_backend=LOOPS)
def test_no_room_is_mixed_up(run: Run, data: bytes, how: bool) -> None:
    """A server restarts unseen before each second upload; no request meets it unprepared."""
    server = Instances()
    order = random.Random(1).choices(SEVEN, k=42)

    async def jobs() -> AsyncIterator[UploadJob]:
        for number, room in enumerate(order):
            with anyio.fail_after(60):
                while server.count() < number - number % 2:  # noqa: ASYNC110 - others do it
                    await anyio.sleep(0.3)
            if number % 2 == 0:
                server.restart()
            yield UploadJob(room, data, filename=f"{room}-{number}")

    async def main() -> None:
        async with in_process(server) as client:
            if how:
                async with client.upload_many(jobs(), concurrency=4) as batch:
                    assert (await batch.wait()).accepted == len(order)
                return
            async for one in jobs():
                await client.upload_whiteboard_file(one.room_id, data, filename=one.filename)

    run(main)
    server.check()
    assert server.count() == len(order)


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_no_room_is_mixed_up_on_a_socket() -> None:
    """The same through the default transport: three restarts while nobody is there."""
    server, port = MeetingServer(mixes_up_rooms=True), 0
    for room in SEVEN:
        server.add_room(room)
    client: MeetingClient | None = None
    for _ in range(4):
        async with server.run(port=port) as url:
            port = int(url.rpartition(":")[2])
            client = client or client_at(url, None)
            for room in SEVEN:
                await client.upload_whiteboard_file(room, SMALL, filename=room)
    assert client
    await client.aclose()
    for room in SEVEN:
        assert [file.name for file in server.rooms[room].received] == [room] * 4


# --- no answer -----------------------------------------------------------------------------------

HINTS = {str(hint): hint for hint in (None, "0", "5", "30", "3600", "nonsense")}
FIVE_HUNDREDS: dict[str, tuple[int, object]] = {
    **{f"{status} of a proxy": (status, PAGE) for status in (500, 502, 503, 504)},
    "500 of its own": (500, INTERNAL),
    "500 with true": (500, record("SUCCESS")),
    "502 of its own": (502, INTERNAL),
}
WHICH = {"check": "question", "form": "probe"}


@crossed(said=FIVE_HUNDREDS, hint=HINTS, which=WHICH, anyio_backend=LOOPS)
def test_5xx_is_no_answer(run: Run, said: tuple[int, object], hint: str | None, which: str) -> None:
    """Nothing is sent because of it; the question is asked again."""
    acts = [reply(*said, hint)] * 2
    rooms = FakeRooms(ask=answering(acts) if which == "question" else answering(forms=acts))
    outcome, seconds = course(run, rooms, LARGE, retry=RetryPolicy(max_outage=600))
    assert isinstance(outcome, UploadReceipt)
    assert letters(rooms) == ("ccc" if which == "question" else "cfcfc") + "fd"
    assert 0.5 <= seconds <= 150


@crossed(said=FIVE_HUNDREDS, hint=HINTS, which=WHICH, anyio_backend=LOOPS)
def test_5xx_for_ever(run: Run, said: tuple[int, object], hint: str | None, which: str) -> None:
    """Then it is an error, and nothing of the document was sent."""
    is_throttled = said[0] == 503 and hint in {"30", "3600"}
    rooms = FakeRooms(ask=lambda visit: reply(*said, hint) if visit.kind == which else accepted())
    outcome, seconds = course(run, rooms, LARGE)
    assert isinstance(outcome, MeetingError)
    assert not isinstance(outcome, UploadOutcomeUnknown)
    assert "d" not in letters(rooms)
    assert len(rooms.of(which)) > 1
    assert seconds <= (600 if is_throttled else OUTAGE + LATE)
    if hint is None:
        assert seconds >= OUTAGE - 1


TROUBLES: dict[str, Callable[[Visit], Act]] = {
    "refused": lambda _: unreachable(),
    "connect hangs": lambda visit: failing(
        ConnectFailed("no connection"), take=0, replying=visit.request.connect_timeout
    ),
    "no reply": lambda visit: failing(
        TransferTimeout("no reply"), replying=visit.request.reply_timeout
    ),
    "reset": lambda _: lost(),
    "502": lambda _: reply(502, PAGE),
    "500 of its own": lambda _: conversion_failed(),
}


@crossed(trouble=TROUBLES, which={"from the check on": "cfd", "the form": "f"}, anyio_backend=LOOPS)
@pytest.mark.parametrize("max_outage", [0, 10, 60])
def test_an_outage_ends_in_time(
    run: Run, trouble: Callable[[Visit], Act], which: str, max_outage: float
) -> None:
    """``max_outage`` seconds after it began, whatever the network does."""

    def answer(visit: Visit) -> Act:
        return trouble(visit) if LETTERS[visit.kind] in which else accepted()

    for data in [SMALL] * ("c" in which) + [LARGE]:
        rooms = FakeRooms(answer, ask=answer)
        outcome, seconds = course(run, rooms, data, retry=RetryPolicy(max_outage=max_outage))
        assert isinstance(outcome, MeetingError)
        assert not isinstance(outcome, UploadOutcomeUnknown)
        assert rooms.uploads == []
        # One attempt is made in any case, and waits for its reply.
        assert max_outage - 1 <= seconds <= max(max_outage, 15) + LATE


def dead_from(start: float, end: float = 9999) -> FakeRooms:
    """Make a server that cannot be reached from a moment on; a conversion takes 5 s."""

    def answer(visit: Visit) -> Act:
        if start <= anyio.current_time() < end:
            return unreachable()
        return (
            refused()
            if visit.kind == "probe"
            else accepted(replying=5 if visit.kind == "upload" else 0)
        )

    return FakeRooms(answer, ask=answer)


@attrs.frozen
class Ended:
    """How a call ended."""

    outcome: Any
    seconds: float


def together(run: Run, rooms: FakeRooms, data: bytes, *calls: tuple[float, Any]) -> list[Ended]:
    """Call at these moments with these arguments; return how each call ended."""
    ended: dict[int, Ended] = {}

    async def one(client: MeetingClient, number: int, began: float, how: dict[str, Any]) -> None:
        await anyio.sleep(began)
        outcome = await upload(client, data, filename=str(number), **how)
        ended[number] = Ended(outcome, anyio.current_time() - began)

    async def main() -> None:
        async with client_of(rooms) as client, anyio.create_task_group() as group:
            for number, (began, how) in enumerate(calls):
                group.start_soon(one, client, number, began, how)

    run(main)
    return [ended[number] for number in range(len(calls))]


HOW: dict[str, tuple[dict[str, Any], ...]] = {
    "no limit": ({}, {}, {}),
    "later ones wait 5 s": ({}, {"max_wait": 5}, {"max_wait": 5}),
    "all wait 5 s": ({"max_wait": 5},) * 3,
    "ten of them": ({},) * 10,
}
CALLS = {"at once": [0] * 10, "one after another": range(10), "late": [0, 30, 50, *[55] * 7]}


@crossed(how=HOW, calls=CALLS, data=SIZES, anyio_backend=LOOPS)
def test_all_are_told_of_an_outage(
    run: Run, how: tuple[dict[str, Any], ...], calls: Iterable[float], data: bytes
) -> None:
    """Each in time, with ``ConnectFailed``; a room that nobody has is not busy."""
    ended = together(run, dead_from(0), data, *zip(calls, how, strict=False))
    for number, one in enumerate(ended):
        assert type(one.outcome) is ConnectFailed
        assert one.seconds <= OUTAGE + LATE
        assert (one.outcome.room_id, one.outcome.document) == ("room01", str(number))
        assert re.search(r"after .*\d s.*; nothing was sent$", str(one.outcome))


@crossed(data=SIZES, anyio_backend=LOOPS)
def test_a_server_that_dies_during_an_upload(run: Run, data: bytes) -> None:
    """The first document is delivered; uploads behind it are told of the outage."""
    calls = [(0.0, {}), (0.5, {}), (0.5, {"max_wait": 20}), (0.5, {"timeout": 10})]
    first, *others, hurried = together(run, dead_from(1), data, *calls)
    assert isinstance(first.outcome, UploadReceipt)
    assert [type(one.outcome) for one in others] == [ConnectFailed] * 2
    assert all(one.seconds <= 5 + OUTAGE + LATE for one in others)
    assert isinstance(hurried.outcome, DeadlineExceeded | ConnectFailed)
    assert hurried.seconds <= 10.25


@crossed(data=SIZES, anyio_backend=LOOPS)
def test_a_server_that_comes_back(run: Run, data: bytes) -> None:
    """All documents are delivered, in the order of their calls, one after another."""
    rooms = dead_from(0, 30)
    ended = together(run, rooms, data, *[(n * 0.1, {}) for n in range(4)])
    assert [type(one.outcome) for one in ended] == [UploadReceipt] * 4
    assert rooms.names("room01") == list("0123")
    assert not rooms.collisions


def test_a_room_that_is_busy_is_busy(run: Run) -> None:
    """Behind an upload that is being converted, ``max_wait`` ends in ``RoomBusy``."""
    rooms = FakeRooms(lambda _: accepted(replying=60))
    _, second = together(run, rooms, SMALL, (0, {}), (1, {"max_wait": 5}))
    assert isinstance(second.outcome, RoomBusy)
    assert second.seconds == pytest.approx(5)


@crossed(start={"from the start": 0, "after 7 s": 7}, data=SIZES, anyio_backend=LOOPS)
def test_a_batch_ends_with_the_outage(run: Run, start: float, data: bytes) -> None:
    """A server that is down ends it; nobody's room was busy."""
    rooms = dead_from(start)
    jobs = [attrs.evolve(one, document=data) for one in jobs_for(2, 5)]

    async def main() -> None:
        async with client_of(rooms) as client, client.upload_many(jobs, max_wait=5) as batch:
            report = await batch.wait()
        assert isinstance(report.stopped_by, ConnectFailed)
        assert (report.accepted > 0) == (start > 0)
        assert report.accepted == sum(visit.is_accepted for visit in rooms.uploads)
        assert not any(isinstance(outcome.error, RoomBusy) for outcome in report.outcomes)
        assert anyio.current_time() <= (start and start + 5) + OUTAGE + LATE

    run(main)


# --- a lock that cannot be taken -----------------------------------------------------------------


@crossed(answer={"free": refused(), "locked": busy()}, anyio_backend=LOOPS)
def test_after_a_failure_the_server_is_asked_by_form(run: Run, answer: Act) -> None:
    """Whatever the size and the room, until a form is answered."""
    forms = [conversion_failed(), reply(502, PAGE), answer]
    rooms = FakeRooms(playing(conversion_failed()), ask=answering(forms=forms))

    async def main() -> None:
        async with client_of(rooms) as client:
            for room, expected in (("room01", ProcessingFailed), ("room02", UploadReceipt)):
                assert type(await upload(client, SMALL, room)) is expected
            assert type(await upload(client, SMALL, "room03")) is UploadReceipt

    run(main)
    again = "(cf)?" * (answer.result != refused().result)
    assert letters(rooms, "room01") == "cd"
    assert re.fullmatch(f"cfcf{again}cf?d", letters(rooms, "room02"))
    assert letters(rooms, "room03") == "cd"


@crossed(data=SIZES, anyio_backend=LOOPS)
def test_a_lock_that_is_away_amid_a_batch(run: Run, data: bytes) -> None:
    """For 3 s forms and documents get 500, the check is well: what was on its way fails."""

    def answer(visit: Visit) -> Act:
        if visit.kind == "question":
            return accepted()
        if 5.2 <= visit.began < 8.2:
            return conversion_failed()
        return refused() if visit.kind == "probe" else accepted(replying=0.7)

    rooms = FakeRooms(answer, ask=answer)
    jobs = [attrs.evolve(one, document=data) for one in jobs_for(12, 4)]

    async def main() -> None:
        async with client_of(rooms) as client, client.upload_many(jobs, concurrency=4) as batch:
            report = await batch.wait()
        errors = [outcome.error for outcome in report.outcomes if outcome.error]
        assert {type(error) for error in errors} <= {ProcessingFailed}
        assert report.accepted + len(errors) == 48
        assert report.accepted >= 44

    run(main)
    names = [name for room in range(12) for name in rooms.names(f"room{room:02}")]
    assert len(names) == len({*names}) >= 44


# --- whose answer it is --------------------------------------------------------------------------

UNSIGNED = {
    "a page": reply(401, PAGE),
    "nothing": reply(401, b""),
    "other JSON": reply(401, {"detail": "who are you?"}),
}
STRANGERS = {
    "200 with a page": reply(200, PAGE),
    "200 with nothing": reply(200, b""),
    "200 with other JSON": reply(200, {"hello": "world"}),
    "200 with a list": reply(200, []),
    "404 with a page": reply(404, PAGE),
    "404 with text": reply(404, b"404 page not found"),
    "404 with other JSON": reply(404, {"detail": "Not Found"}),
    **{f"{status}": reply(status, PAGE) for status in (301, 302, 303, 307, 308)},
    **{f"401 with {name}": act for name, act in UNSIGNED.items()},
}


@crossed(stranger=STRANGERS, document=DOCUMENTS, anyio_backend=LOOPS)
def test_no_meeting_server(run: Run, stranger: Act, document: Callable[[], Any]) -> None:
    """``UnexpectedReply`` at once says what to check; nothing else is sent."""
    rooms = FakeRooms(lambda _: stranger, ask=lambda _: stranger)
    outcome, seconds = course(run, rooms, document())
    assert type(outcome) is UnexpectedReply
    assert "check the base URL" in str(outcome)
    assert (outcome.room_id, seconds) == ("room01", 0)
    assert str(outcome.document).endswith("deck.pdf")
    assert letters(rooms) == "c"


@crossed(stranger=STRANGERS, anyio_backend=LOOPS)
def test_no_meeting_server_ends_a_batch(run: Run, stranger: Act) -> None:
    """Before any document is sent; the report says why."""
    rooms = FakeRooms(lambda _: stranger, ask=lambda _: stranger)

    async def main() -> None:
        async with client_of(rooms) as client, client.upload_many(jobs_for(3, 3)) as batch:
            report = await batch.wait()
        assert type(report.stopped_by) is UnexpectedReply
        assert (report.total, report.accepted, report.unknown) == (9, 0, 0)
        assert anyio.current_time() < 1

    run(main)
    assert {visit.kind for visit in rooms.visits} == {"question"}


DOCUMENT_ANSWERS: dict[str, tuple[Act, type[MeetingError]]] = {
    "500 with true": (reply(500, record("SUCCESS")), UploadOutcomeUnknown),
    "503 with true": (reply(503, record("SUCCESS"), "1"), UploadOutcomeUnknown),
    "500 of its own": (conversion_failed(), ProcessingFailed),
    "401 of its own": (reply(401, record("INVALID_API_KEY")), AuthenticationFailed),
    **{f"401 with {name}": (act, UnexpectedReply) for name, act in UNSIGNED.items()},
}


@crossed(answer=DOCUMENT_ANSWERS, data=SIZES, anyio_backend=LOOPS)
def test_what_an_answer_to_a_document_means(
    run: Run, answer: tuple[Act, type[MeetingError]], data: bytes
) -> None:
    """What a proxy says about keys is not the server's word; 500 with true says nothing."""
    rooms = FakeRooms(playing(answer[0]), ask=answering())
    outcome, _ = course(run, rooms, data)
    assert type(outcome) is answer[1]
    assert letters(rooms) == STEPS[data]


CODES = {name: name for name in ("INVALID_API_KEY", "INVALID_TOKEN_OR_SIGNATURE")}


@crossed(document=DOCUMENTS, code=CODES, anyio_backend=LOOPS)
def test_a_wrong_key_or_secret_stops(run: Run, document: Callable[[], Any], code: str) -> None:
    """The server's own 401 to the check: nothing of the document is sent."""
    rooms = FakeRooms(ask=lambda _: reply(401, record(code)))
    outcome, seconds = course(run, rooms, document())
    assert isinstance(outcome, AuthenticationFailed)
    assert (letters(rooms), seconds) == ("c", 0)


# --- a room that is denied -----------------------------------------------------------------------

NO_ROOM = {
    "not found": reply(200, NOT_FOUND),
    "not active": reply(200, NOT_ACTIVE),
    "404, not found": reply(404, NOT_FOUND),
}
FORMS: dict[str, tuple[list[Act], type, str]] = {
    "INVALID_PARAMETERS": ([refused()], UploadReceipt, "cfd"),
    "409": ([busy()], UploadReceipt, "cfcfd"),
    "409 of a proxy": ([reply(409, PAGE)], UploadReceipt, "cfcfd"),
    "not found": ([reply(400, NOT_FOUND)], RoomNotFound, "cf"),
    "200, not found": ([reply(200, NOT_FOUND)], RoomNotFound, "cf"),
    "not active": ([reply(400, NOT_ACTIVE)], RoomNotActive, "cf"),
    "401": ([reply(401, record("INVALID_API_KEY"))], AuthenticationFailed, "cf"),
    "400 of another kind": ([reply(400, INTERNAL)], RequestRefused, "cf"),
    "403 of its own": ([reply(403, record("PERMISSION_DENIED"))], RequestRefused, "cf"),
    "a success": ([accepted()], RequestRefused, "cf"),
    "500 of its own": ([conversion_failed(), refused()], UploadReceipt, "cfcfd"),
    "502": ([reply(502, PAGE), refused()], UploadReceipt, "cfcfd"),
    "a page": ([reply(200, PAGE), refused()], UploadReceipt, "cfcfd"),
    "no reply": ([lost(), refused()], UploadReceipt, "cfcfd"),
}


@crossed(form=FORMS, check=NO_ROOM, data=SIZES, anyio_backend=LOOPS)
def test_the_form_decides_about_a_denied_room(
    run: Run, form: tuple[list[Act], type, str], check: Act, data: bytes
) -> None:
    """Only 409 and INVALID_PARAMETERS overrule the check; no answer is asked for again."""
    acts, expected, steps = form
    rooms = FakeRooms(ask=answering([check] * 2, acts))
    outcome, seconds = course(run, rooms, data)
    assert isinstance(outcome, expected)
    assert letters(rooms) == steps
    assert seconds < 3
    if isinstance(outcome, MeetingError):
        assert (outcome.room_id, outcome.document) == ("room01", "deck.pdf")


ACTIVE_FORMS = {
    **{name: FORMS[name] for name in ("INVALID_PARAMETERS", "409", "not found", "not active",
                                      "401", "500 of its own", "502", "a page", "no reply")},
    "400 of another kind": ([reply(400, INTERNAL)], UploadReceipt, "cfd"),
    "a success": ([accepted()], UploadReceipt, "cfd"),
}  # fmt: skip


@crossed(form=ACTIVE_FORMS, anyio_backend=LOOPS)
def test_the_form_of_an_active_room(run: Run, form: tuple[list[Act], type, str]) -> None:
    """Locked, refused, or with any other answer of the server below 500: free."""
    acts, expected, steps = form
    rooms = FakeRooms(ask=answering(forms=acts))
    outcome, seconds = course(run, rooms, LARGE)
    assert isinstance(outcome, expected)
    assert letters(rooms) == steps
    assert seconds < 3


@crossed(check=NO_ROOM, data=SIZES)
def test_a_denied_room_that_is_locked(run: Run, check: Act, data: bytes) -> None:
    """It costs two small requests if nobody waits, and is waited for like any other."""
    rooms = FakeRooms(ask=answering([check], [busy()]))
    outcome, seconds = course(run, rooms, data, max_wait=0)
    assert isinstance(outcome, RoomBusy)
    assert (letters(rooms), seconds) == ("cf", 0)


@crossed(how={"single": False, "batch": True}, anyio_backend=LOOPS)
def test_an_id_that_the_server_refuses_costs_no_document(run: Run, how: bool) -> None:
    """Twenty documents of 1 MB: the check denies the room, the form is 400."""
    server = MeetingServer()

    async def main() -> None:
        async with in_process(server) as client:
            if not how:
                assert isinstance(await upload(client, pdf(10**6), "a.b"), RequestRefused)
                return
            jobs = [job("a.b", number, pdf(10**6)) for number in range(20)]
            async with client.upload_many(jobs) as batch:
                assert (await batch.wait()).accepted == 0

    run(main)
    assert sum(request.body_bytes for request in server.requests) < 20_000


def test_a_batch_goes_on_in_other_rooms(run: Run) -> None:
    """The form decides for each room; a room that is not there costs no document."""

    def ask(visit: Visit) -> Act:
        if visit.kind == "question":
            return accepted() if visit.room == "room00" else reply(200, NOT_FOUND)
        return refused() if visit.room == "room01" else reply(400, NOT_FOUND)

    rooms = FakeRooms(ask=ask)

    async def main() -> None:
        async with client_of(rooms) as client, client.upload_many(jobs_for(3, 2)) as batch:
            report = await batch.wait()
        statuses = [outcome.status for outcome in report.outcomes]
        assert statuses == ["accepted", "accepted", "refused", "accepted", "accepted", "skipped"]
        errors = [outcome.error for outcome in report.outcomes if outcome.error]
        assert [type(error) for error in errors] == [RoomNotFound] * 2

    run(main)
    assert {visit.room for visit in rooms.uploads} == {"room00", "room01"}


# --- throttled -----------------------------------------------------------------------------------

THROTTLES: dict[str, Callable[[str], Act]] = {
    "429": lambda after: reply(429, b"", after),
    "429 in its record": lambda after: reply(429, record("TOO_MANY_REQUESTS"), after),
    "503 of a page": lambda after: reply(503, PAGE, after),
    "503 in its record": lambda after: reply(503, INTERNAL, after),
}


@crossed(document=DOCUMENTS, throttle=THROTTLES, anyio_backend=LOOPS)
def test_the_hint_of_the_check_is_obeyed(
    run: Run, document: Callable[[], Any], throttle: Callable[[str], Act]
) -> None:
    """After ``Retry-After: 30`` nothing is sent for 30 s; then all the steps."""
    rooms = FakeRooms(ask=answering([throttle("30")]))
    outcome, _ = course(run, rooms, document())
    assert isinstance(outcome, UploadReceipt)
    assert all(30 <= visit.began <= 50 for visit in rooms.visits[1:])
    assert re.fullmatch("ccf?d", letters(rooms))


@crossed(throttle=THROTTLES)
def test_a_hint_that_does_not_fit_ends_the_call(run: Run, throttle: Callable[[str], Act]) -> None:
    """At once, with nothing sent."""
    rooms = FakeRooms(ask=lambda _: throttle("30"))
    outcome, seconds = course(run, rooms, timeout=20)
    assert isinstance(outcome, Throttled)
    assert (letters(rooms), seconds) == ("c", 0)


@crossed(throttle=THROTTLES, data=SIZES)
def test_a_server_that_throttles_for_ever(
    run: Run, throttle: Callable[[str], Act], data: bytes
) -> None:
    """A hint of an hour counts as one of a minute; after some of them nothing was sent."""
    rooms = FakeRooms(ask=lambda _: throttle("3600"))
    outcome, seconds = course(run, rooms, data)
    assert isinstance(outcome, Throttled)
    assert rooms.uploads == []
    assert 60 <= seconds <= 600
    begun = [visit.began for visit in rooms.visits]
    assert all(later - earlier >= 60 for earlier, later in pairwise(begun))


@crossed(throttle=THROTTLES, anyio_backend=LOOPS)
def test_a_batch_obeys_the_hint(run: Run, throttle: Callable[[str], Act]) -> None:
    """The room of its first job as well as a later one gets no document for 30 s."""
    scripts = {"room00": deque([throttle("30")]), "room02": deque([throttle("30")])}

    def ask(visit: Visit) -> Act:
        return scripts[visit.room].popleft() if scripts.get(visit.room) else accepted()

    rooms = FakeRooms(ask=ask)

    async def main() -> None:
        async with client_of(rooms) as client, client.upload_many(jobs_for(3, 2)) as batch:
            assert (await batch.wait()).accepted == 6

    run(main)
    for room in scripts:
        first = next(visit for visit in rooms.visits if visit.room == room)
        assert all(visit.began >= first.began + 30 for visit in rooms.of("upload", room))


# --- a document that is always too late ----------------------------------------------------------

HOUR, WINDOW, GRACE = 3600.0, 300, 30
"""Seconds: also how long a lock lasts at most, and an upload waits longer."""
MOST = 200
"""Times that a document is sent at most in an hour."""


def at_random(share: float, seed: int) -> Callable[[], Iterator[bool]]:
    """Say *free* this often."""

    def answers() -> Iterator[bool]:
        chance = random.Random(seed)
        while True:
            yield chance.random() < share

    return answers


def turns(*cycle: bool, first: tuple[bool, ...] = ()) -> Callable[[], Iterator[bool]]:
    """Say *free* (true) or 409 in turn."""

    def answers() -> Iterator[bool]:
        yield from first
        while True:
            yield from cycle

    return answers


SAYS: dict[str, Callable[[], Iterator[bool]]] = {
    "free": turns(True),
    "409": turns(False),
    "half at random": at_random(0.5, 1),
    "5 % at random": at_random(0.05, 2),
    "90 % at random": at_random(0.9, 3),
    "in turn": turns(False, True),
    "free after one 409": turns(True, first=(False,)),
    "free after ten": turns(True, first=(False,) * 10),
}
DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
HINTS_409 = {str(hint): hint for hint in (None, "0", "1", "2", "3600", DATE, "soon")}
WEIGHTS = {"10 KB": pdf(10_000), "65 KB": pdf(65_000), "1 MiB": pdf(1024**2)}


class TooLate(FakeRooms):
    """A server on which documents for room01 always get 409, whatever forms are told."""

    def __init__(self, says: Callable[[], Iterator[bool]], hint: str | None = None) -> None:
        super().__init__(self._take, ask=self._say)
        self.times: list[float] = []
        """When documents were sent."""
        self._says, self._busy = says(), reply(409, record("CONFLICT"), hint, sending=0.1)

    def _say(self, visit: Visit) -> Act:
        if visit.kind == "question":
            return accepted()
        return refused() if next(self._says) else attrs.evolve(self._busy, sending=0)

    def _take(self, visit: Visit) -> Act:
        for earlier in self.visits[:-1]:
            earlier.sent.clear()  # else gigabytes come together
        self.visits = self.visits[-1:]
        self.times.append(visit.began)
        assert len(self.times) <= 2 * MOST, f"{len(self.times)} times in {visit.began:.0f} s"
        return self._busy


@crossed(says=SAYS, hint=HINTS_409, data=WEIGHTS, anyio_backend=LOOPS)
def test_an_hour_costs_two_hundred_documents(
    run: Run, says: Callable[[], Iterator[bool]], hint: str | None, data: bytes
) -> None:
    """At most, whatever the server says; and never sooner than it asks for."""
    rooms = TooLate(says, hint)
    outcome, seconds = course(run, rooms, data, max_wait=HOUR)
    assert isinstance(outcome, RoomBusy)
    assert HOUR * 0.75 <= seconds <= HOUR + 1
    assert len(rooms.times) <= MOST
    least = min(float(hint), 60) if hint and hint.isdigit() else 0
    assert all(later - earlier >= max(least, 0.25) for earlier, later in pairwise(rooms.times))


@pytest.mark.parametrize("data", WEIGHTS.values(), ids=WEIGHTS)
def test_a_batch_sends_no_more(run: Run, data: bytes) -> None:
    """Each of its documents is sent two hundred times at most in its hour."""
    rooms = TooLate(turns(True, first=(False,)))

    async def main() -> None:
        jobs = [job("room01", number, data) for number in range(2)]
        async with client_of(rooms) as client, client.upload_many(jobs, max_wait=HOUR) as batch:
            report = await batch.wait()
        assert [type(outcome.error) for outcome in report.outcomes] == [RoomBusy] * 2

    run(main)
    assert len(rooms.times) <= 2 * MOST


@crossed(says=SAYS, data=WEIGHTS, anyio_backend=LOOPS)
def test_one_lock_counts_until_an_upload_got_in(
    run: Run, says: Callable[[], Iterator[bool]], data: bytes
) -> None:
    """Without ``max_wait`` each upload gives up 300 s and 30 s after its first 409, not later."""
    rooms = TooLate(says)

    async def main() -> None:
        async with client_of(rooms) as client:
            for _ in range(2):
                began = anyio.current_time()
                with anyio.fail_after(HOUR):
                    assert isinstance(await upload(client, data), RoomBusy)
                assert WINDOW <= anyio.current_time() - began <= WINDOW + GRACE + 5

    run(main)


def locked_until(end: float) -> Callable[[Visit], Act]:
    """Answer as a room that another client has locked."""

    def answer(visit: Visit) -> Act:
        if visit.kind == "question":
            return accepted()
        if anyio.current_time() + (0.1 if visit.kind == "upload" else 0) < end:
            return busy(sending=0.1)
        return accepted(sending=0.1) if visit.kind == "upload" else refused()

    return answer


@pytest.mark.both_loops
@pytest.mark.parametrize("end", [5, 120, 299])
def test_an_honest_lock_costs_no_document(run: Run, end: float) -> None:
    """A single waiter gets in within 3 s after the lock, and sends its document once."""
    rooms = FakeRooms(locked_until(end), ask=locked_until(end))
    outcome, seconds = course(run, rooms, LARGE)
    assert isinstance(outcome, UploadReceipt)
    assert end <= seconds <= end + 3
    assert re.fullmatch("(cf)+d", letters(rooms))
    asked = [visit.began for visit in rooms.of("probe")]
    assert asked[1] < 1
    assert all(later - earlier >= 0.25 for earlier, later in pairwise(asked))
    assert len(asked) <= end / 1.5 + 3, "every 2 s"


def test_one_race_that_was_lost_honestly(run: Run) -> None:
    """Somebody else was faster once; the upload gets in soon after that lock has ended, too."""
    ends = [60.0]

    def answer(visit: Visit) -> Act:
        if visit.kind == "probe" and anyio.current_time() >= ends[0] and len(ends) == 1:
            ends.append(anyio.current_time() + 60)  # of who takes the room while we send
            return refused()
        return locked_until(ends[-1])(visit)

    rooms = FakeRooms(answer, ask=answer)
    outcome, seconds = course(run, rooms, LARGE)
    assert isinstance(outcome, UploadReceipt)
    assert ends[-1] <= seconds <= ends[-1] + 10
    assert [visit.is_accepted for visit in rooms.uploads] == [False, True]


@crossed(anyio_backend=LOOPS)
def test_a_server_whose_free_is_never_true(run: Run) -> None:
    """After two documents in a row that got 409, and no form that did, forms are left out."""
    rooms = FakeRooms(lambda visit: busy() if visit.began < 200 else accepted(), ask=answering())
    outcome, _ = course(run, rooms, LARGE)
    assert isinstance(outcome, UploadReceipt)
    assert re.fullmatch("cfdcfd(cd)+", letters(rooms))


# --- rooms of any size ---------------------------------------------------------------------------

CROWDS = {f"{people:,} people": people for people in (10, 1000, 3000, 10_000)}


@crossed(people=CROWDS, data=SIZES, anyio_backend=LOOPS)
def test_a_check_needs_64_kib(run: Run, people: int, data: bytes) -> None:
    """However many are in the room, the transport is told to read no more of the reply."""
    content = room_of(people)

    def ask(visit: Visit) -> Act:
        if visit.kind == "probe":
            return refused()
        request = visit.request
        assert request.cut_reply
        assert request.max_reply_bytes <= 65536
        part = content[: request.max_reply_bytes]
        return Act(result=Reply(200, (), part, is_cut=len(part) < len(content)))

    rooms = FakeRooms(ask=ask)
    outcome, _ = course(run, rooms, data)
    assert isinstance(outcome, UploadReceipt)
    assert letters(rooms) == STEPS[data]


NO_FILE = b'{"status":false,"msg":"no file","status_code":"INVALID_PARAMETERS"}'


def crowded(content: bytes, written: list[int]) -> peer.Script:
    """Answer as a free room in which many people are; count the bytes that the socket took."""

    def script(connection: peer.Connection) -> None:
        while connection.read_head():
            connection.read_body()
            if b"getActiveRoomInfo" not in connection.request.head:
                is_empty = b"filename" not in connection.request.body
                connection.send(peer.reply(400, NO_FILE) if is_empty else peer.reply())
                continue
            data, written[-1:] = peer.reply(200, content), [0]
            for start in range(0, len(data), 16384):
                connection.send(data[start : start + 16384])
                written[-1] = start

    return script


TRANSPORTS = {"own": "own", "httpx": "httpx"}


@asynccontextmanager
async def client_over(transport: str, url: str) -> AsyncGenerator[MeetingClient]:
    """Open a client of a socket, and close what it was lent."""
    async with httpx.AsyncClient(trust_env=False) as borrowed:
        own = HttpTransport() if transport == "own" else HttpxTransport(borrowed)
        async with client_at(url, own) as client:
            yield client


@pytest.mark.anyio
@crossed(people=CROWDS, transport=TRANSPORTS, anyio_backend=LOOPS)
async def test_no_more_is_read_from_a_socket(people: int, transport: str) -> None:
    """Of 7.8 MB the server gets rid of what the two kernels hold, and 64 KiB."""
    written = [0]
    with peer.Peer(crowded(room_of(people), written), receive_buffer=65536) as server:
        async with client_over(transport, server.url) as client:
            assert isinstance(await upload(client, LARGE), UploadReceipt)
            await anyio.sleep(0.05)
            assert written[-1] <= 5 * 1024**2


@pytest.mark.anyio
@crossed(transport=TRANSPORTS, anyio_backend=LOOPS)
async def test_a_room_can_be_read_whole(transport: str) -> None:
    """``get_active_room_info`` reads up to 16 MiB, or what ``max_reply_bytes`` says."""
    with peer.Peer(crowded(room_of(3000), [])) as server:
        async with client_over(transport, server.url) as client:
            room = await client.get_active_room_info("room01")
            assert len(room.participants) == 3000
            with pytest.raises(ReplyTooLarge):
                await client.get_active_room_info("room01", max_reply_bytes=1024**2)


@pytest.mark.anyio
async def test_a_large_room_does_not_hold_the_loop() -> None:
    """An upload to a room with 10,000 people holds it 5 ms longer at most than to an empty one."""
    gaps = {}
    for people in (0, 10_000):
        with peer.Peer(crowded(room_of(people), [])) as server:
            async with client_at(server.url, HttpTransport()) as client:
                await client.upload_whiteboard_file("room01", SMALL, filename="deck.pdf")
                found = []
                for _ in range(7):
                    async with Ticker().running() as ticker:
                        await client.upload_whiteboard_file("room01", SMALL, filename="deck.pdf")
                    found.append(ticker.gap)
                gaps[people] = min(found)
    assert gaps[10_000] <= gaps[0] + 0.005


# --- on the command line -------------------------------------------------------------------------

Capture = pytest.CaptureFixture[str]
CHECK, UPLOAD = "getActiveRoomInfo", "uploadWhiteboardFile"


@pytest.fixture
def server(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MeetingServer]:
    """Run a server to which the environment leads; the folder has two documents."""
    folder = tmp_path_factory.mktemp("documents")
    monkeypatch.chdir(folder)
    for name in ("a.pdf", "b.pdf"):
        (folder / name).write_bytes(PDF)
    server = MeetingServer()
    server.add_room("room01")
    with server.run():
        export(monkeypatch, server)
        yield server


def methods(server: MeetingServer) -> list[str]:
    """Name the requests that a server has seen."""
    return [request.path.rpartition("/")[2] for request in server.requests]


def test_each_document_of_a_command_is_checked(server: MeetingServer, capsys: Capture) -> None:
    """Those of ``upload``, and those of ``batch``; the form decides about a denied room."""
    server.refuse_next("ROOM_NOT_FOUND", path=f"/room/{CHECK}")
    assert call(capsys, "upload", "room01", "a.pdf", "b.pdf").code == 0
    assert methods(server) == [CHECK, UPLOAD, UPLOAD, CHECK, UPLOAD]
    manifest(server, rooms=3, documents=2)
    assert call(capsys, "batch", "m.csv").code == 0
    assert sorted(methods(server)[5:]) == [CHECK] * 6 + [UPLOAD] * 6


@pytest.mark.parametrize("command", ["upload", "batch"])
@pytest.mark.parametrize("stranger", ["404", "200", "302", "401"])
def test_a_wrong_address_costs_one_check(
    server: MeetingServer,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    stranger: str,
) -> None:
    """The code is 1, not 3: nothing was sent, and the line says what to check."""
    manifest(server, rooms=2, documents=2)
    if stranger == "404":
        monkeypatch.setenv("MEETING_BASE_URL", f"{server.url}/wrong")
    else:
        headers = {"Location": "/login", "Content-Type": "text/html"}
        for path in (f"/room/{CHECK}", None):  # and everything else
            server.reply_next(
                int(stranger), body=b"<html>hello", headers=headers, path=path, times=99
            )
    arguments = ["room01", "a.pdf", "b.pdf"] if command == "upload" else ["m.csv"]
    done = call(capsys, command, *arguments)
    assert done.code == 1
    assert "check the base URL" in done.err
    assert "is unknown" not in done.err
    assert methods(server) == [CHECK]
