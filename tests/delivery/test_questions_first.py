"""The questions go first, every time: check, form, document; and what their answers lead to.

A *check* asks whether a room is active; a *form* is an empty upload that asks whether it is free.
In virtual time, in process, where nothing else is said. A room's requests are shown as letters:
``c`` check, ``f`` form, ``d`` document.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import anyio
import attrs
import pytest

from meeting_async import Document, LockPolicy, MeetingClient, RetryPolicy, UploadJob, UploadReceipt
from meeting_async.errors import (
    AuthenticationFailed,
    ConnectFailed,
    DeadlineExceeded,
    MeetingError,
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
    failing,
    job,
    jobs_for,
    lost,
    record,
    refused,
    reply,
    unreachable,
)
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
    limits = {(v.request.cut_reply, v.request.max_reply_bytes) for v in rooms.questions}
    assert limits <= {(True, 64 * 1024)}  # however many people are in the room


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


@pytest.mark.anyio
@pytest.mark.both_loops
@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
async def test_a_restart_mixes_no_rooms_up(is_batch: bool) -> None:
    """Each document is in its room, although the server restarted three times, seen by nobody."""
    server, port, names = MeetingServer(mixes_up_rooms=True), 0, [f"class{n}" for n in range(7)]
    for name in names:
        server.add_room(name)
    client: MeetingClient | None = None
    for _ in range(4):
        async with server.run(port=port) as url:
            port = int(url.rpartition(":")[2])
            client = client or client_at(url, None)
            if is_batch:
                jobs = [UploadJob(name, SMALL, filename=name) for name in names]
                async with client.upload_many(jobs, concurrency=4) as batch:
                    assert (await batch.wait()).accepted == len(names)
                continue
            for name in names:
                await client.upload_whiteboard_file(name, SMALL, filename=name)
    assert client
    await client.aclose()
    for name in names:
        assert [file.name for file in server.rooms[name].received] == [name] * 4


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
    "500 with true": lambda _: reply(500, record("SUCCESS")),
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


def test_an_outage_that_is_over_is_no_error(run: Run) -> None:
    """The server was away, and its answers to questions show that it is back: the room is busy."""

    def ask(visit: Visit) -> Act:
        if visit.kind == "probe":
            return refused()
        return unreachable() if anyio.current_time() < 3 else accepted()

    rooms = FakeRooms(ask=ask, seconds=100)
    calls = [(0, {}), (0.1, {"max_wait": 2}), (20, {"max_wait": 2})]
    ended = together(run, rooms, LARGE, *calls)
    assert [type(one.outcome) for one in ended] == [UploadReceipt, ConnectFailed, RoomBusy]


NO_ANSWERS: dict[str, Act] = {
    **{f"{status}": reply(status, PAGE) for status in (500, 502, 503)},
    "504": reply(504, PAGE, replying=3),
    "500 of its own": conversion_failed(),
    "reset": lost(),
    "silence": failing(TransferTimeout("no reply"), replying=15),
}


@crossed(no_answer=NO_ANSWERS, anyio_backend=LOOPS)
def test_a_batch_outlasts_a_proxy_without_its_server(run: Run, no_answer: Act) -> None:
    """Thirty documents for ten rooms: unknown is what was being answered, all else is accepted."""
    away = (4.5, 24.5)

    def answer(visit: Visit) -> Act:
        now = anyio.current_time()
        if away[0] <= now < away[1]:
            return no_answer
        if visit.kind != "upload":
            return accepted() if visit.kind == "question" else refused()
        is_cut = now < away[0] < now + 3
        return lost(replying=away[0] - now) if is_cut else accepted(replying=3)

    async def main() -> None:
        rooms = FakeRooms(answer, ask=answer)
        jobs = [job(f"room{n % 10}", n, LARGE if n % 3 else SMALL) for n in range(30)]
        async with client_of(rooms) as client, client.upload_many(jobs) as batch:
            report = await batch.wait()
        assert (report.unknown, report.accepted, len(rooms.uploads)) == (10, 20, 30)
        assert sum(visit.is_accepted for visit in rooms.uploads) == 20

    run(main)


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


ENDINGS: dict[str, tuple[Act, type[MeetingError], str]] = {
    **{name: (act, UnexpectedReply, "check the base URL") for name, act in STRANGERS.items()},
    **{name: (reply(401, record(name)), AuthenticationFailed, "API")
       for name in ("INVALID_API_KEY", "INVALID_TOKEN_OR_SIGNATURE")},
}  # fmt: skip


@crossed(ending=ENDINGS, document=DOCUMENTS, anyio_backend=LOOPS)
def test_no_meeting_server_or_a_wrong_key(
    run: Run, ending: tuple[Act, type[MeetingError], str], document: Callable[[], Any]
) -> None:
    """The error says at once what to fix; nothing of the document is sent."""
    act, expected, words = ending
    rooms = FakeRooms(lambda _: act, ask=lambda _: act)
    outcome, seconds = course(run, rooms, document())
    assert type(outcome) is expected
    assert words in str(outcome)
    assert (outcome.room_id, seconds) == ("room01", 0)
    assert str(outcome.document).endswith("deck.pdf")
    assert letters(rooms) == "c"


# --- a room that is denied -----------------------------------------------------------------------

DENIED, ACTIVE = [reply(200, NOT_FOUND), reply(200, NOT_ACTIVE), reply(404, NOT_FOUND)], accepted()
# What the check says; the forms, and what the upload comes to. Only 409 and INVALID_PARAMETERS
# overrule a check that denies the room; any answer of the server below 500 means *free* otherwise.
FORMS: dict[str, tuple[list[Act], list[Act], type, str]] = {
    "INVALID_PARAMETERS": ([*DENIED, ACTIVE], [refused()], UploadReceipt, "cfd"),
    "409": ([*DENIED, ACTIVE], [busy()], UploadReceipt, "cfcfd"),
    "409 of a proxy": (DENIED, [reply(409, PAGE)], UploadReceipt, "cfcfd"),
    "not found": ([*DENIED, ACTIVE], [reply(400, NOT_FOUND)], RoomNotFound, "cf"),
    "200, not found": (DENIED, [reply(200, NOT_FOUND)], RoomNotFound, "cf"),
    "not active": ([*DENIED, ACTIVE], [reply(400, NOT_ACTIVE)], RoomNotActive, "cf"),
    "401": (
        [*DENIED, ACTIVE], [reply(401, record("INVALID_API_KEY"))], AuthenticationFailed, "cf"
    ),
    "400 of another kind": (DENIED, [reply(400, INTERNAL)], RequestRefused, "cf"),
    "403 of its own": (DENIED, [reply(403, record("PERMISSION_DENIED"))], RequestRefused, "cf"),
    "a success": (DENIED, [accepted()], RequestRefused, "cf"),
    "500 of its own": ([*DENIED, ACTIVE], [conversion_failed(), refused()], UploadReceipt, "cfcfd"),
    "502": ([*DENIED, ACTIVE], [reply(502, PAGE), refused()], UploadReceipt, "cfcfd"),
    "a page": ([*DENIED, ACTIVE], [reply(200, PAGE), refused()], UploadReceipt, "cfcfd"),
    "no reply": ([*DENIED, ACTIVE], [lost(), refused()], UploadReceipt, "cfcfd"),
    "active, 400 of another kind": ([ACTIVE], [reply(400, INTERNAL)], UploadReceipt, "cfd"),
    "active, a success": ([ACTIVE], [accepted()], UploadReceipt, "cfd"),
}  # fmt: skip


@crossed(form=FORMS, anyio_backend=LOOPS)
def test_the_form_has_the_last_word(run: Run, form: tuple[list[Act], list[Act], type, str]) -> None:
    """Whatever the check has said, and the size; no answer is asked for again."""
    checks, forms, expected, steps = form
    for check, data in itertools.product(checks, SIZES.values()):
        if check is ACTIVE and data == SMALL:
            continue  # it has no form
        rooms = FakeRooms(ask=answering([check] * 2, forms))
        outcome, seconds = course(run, rooms, data)
        assert isinstance(outcome, expected)
        assert letters(rooms) == steps
        assert seconds < 3
        if isinstance(outcome, MeetingError):
            assert (outcome.room_id, outcome.document) == ("room01", "deck.pdf")
        if forms == [busy()]:  # a room that is denied and locked is waited for like any other
            rooms = FakeRooms(ask=answering([check], [busy()]))
            outcome, seconds = course(run, rooms, data, max_wait=0)
            assert isinstance(outcome, RoomBusy)
            assert (letters(rooms), seconds) == ("cf", 0)


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
    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(begun))


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


def at_random(share: float) -> Iterator[bool]:
    """Say *free* this often."""
    chance = random.Random(1)
    return iter(lambda: chance.random() < share, None)


SAYS: dict[str, Callable[[], Iterator[bool]]] = {
    "free": lambda: itertools.repeat(True),
    "409": lambda: itertools.repeat(False),
    "half at random": lambda: at_random(0.5),
    "5 % at random": lambda: at_random(0.05),
    "90 % at random": lambda: at_random(0.9),
    "in turn": lambda: itertools.cycle([False, True]),
    "free after one 409": lambda: itertools.chain([False], itertools.repeat(True)),
    "free after ten": lambda: itertools.chain([False] * 10, itertools.repeat(True)),
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


LIMITS = {"an hour": (HOUR, HOUR * 0.75), "none": (None, WINDOW * 0.75)}
"""``max_wait``, and the seconds that are waited at least."""


@crossed(says=SAYS, hint=HINTS_409, data=WEIGHTS, limit=LIMITS, anyio_backend=LOOPS)
def test_an_hour_costs_two_hundred_documents(
    run: Run,
    says: Callable[[], Iterator[bool]],
    hint: str | None,
    data: bytes,
    limit: tuple[float | None, float],
) -> None:
    """At most, whatever the server says; and never sooner than it asks for.

    Without ``max_wait`` an upload gives up 300 s and 30 s after its first 409, not later.
    """
    rooms = TooLate(says, hint)
    outcome, seconds = course(run, rooms, data, max_wait=limit[0])
    assert isinstance(outcome, RoomBusy)
    assert limit[1] <= seconds <= (limit[0] or WINDOW + GRACE + 4) + 1
    assert len(rooms.times) <= MOST
    least = min(float(hint), 60) if hint and hint.isdigit() else 0
    assert all(b - a >= max(least, 0.25) for a, b in itertools.pairwise(rooms.times))


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
    assert all(later - earlier >= 0.25 for earlier, later in itertools.pairwise(asked))
    assert len(asked) <= end / 1.5 + 3, "every 2 s"


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
