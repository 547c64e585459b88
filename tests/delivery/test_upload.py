"""How an upload asks, sends and waits; in virtual time, through a scripted transport.

A *check* asks whether a room is active; a *form* is an empty upload that asks whether it is free.
A room's requests are shown as letters: ``c`` check, ``f`` form, ``d`` document.
"""

from __future__ import annotations

import itertools
import re
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import attrs
import httpx
import pytest

from meeting_async import (
    Document,
    Event,
    LockPolicy,
    MeetingClient,
    Queued,
    RetryPolicy,
    RetryScheduled,
    UploadJob,
    UploadReceipt,
    Verdict,
    WaitingForRoom,
)
from meeting_async.errors import (
    AuthenticationFailed,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    DocumentRefused,
    MeetingError,
    RequestRefused,
    ResourceExhausted,
    RoomBusy,
    RoomNotActive,
    RoomNotFound,
    Throttled,
    TransferTimeout,
    UploadInterrupted,
    UploadOutcomeUnknown,
)
from meeting_async.testing import MeetingServer
from meeting_async.transports import HttpTransport, HttpxTransport, Reply, Request, Transport
from support.command_line import call, export
from support.courses import EventRecorder, course, upload
from support.documents import ASKED, LARGE, SMALL
from support.fake_rooms import (
    ACTIVE,
    IN_DOCUMENT,
    Act,
    Scripted,
    Visit,
    accepted,
    busy,
    client_without_checks,
    cut_off,
    failing,
    free,
    headers_of,
    letters,
    lost,
    record,
    refused,
    reply,
    unreachable,
)
from support.sending import until
from support.tables import LOOPS, crossed

Run = Callable[..., Any]

PAGE = b"<!doctype html><title>hello</title>"
NOT_FOUND, NOT_ACTIVE = record("ROOM_NOT_FOUND"), record("ROOM_NOT_ACTIVE")
INTERNAL = record("INTERNAL_SERVER_ERROR")
SIZES = {"small": SMALL, "large": LARGE}


# --- check, form, document -----------------------------------------------------------------------


async def a_stream() -> AsyncIterator[bytes]:
    """Produce a document."""
    yield LARGE


DOCUMENTS: dict[str, Callable[[], Any]] = {
    "8 bytes": lambda: b"%PDF-1.7",
    "64 KiB": lambda: ASKED[:-1],
    "a byte more": lambda: ASKED,
    "1 MiB": lambda: b"%PDF-1.7".ljust(1024**2),
    "link": lambda: Document.from_link("https://files.test/deck.pdf"),
    "stream": a_stream,
}
WITHOUT_A_FORM = {"8 bytes", "64 KiB", "link"}
SETTINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "as it is": ({"preflight": True}, "cd", "cfd"),
    "without preflight": ({}, "d", "d"),
    "without a form": ({"preflight": True, "probe": False}, "cd", "cd"),
}


@crossed(name={name: name for name in DOCUMENTS}, settings=SETTINGS, anyio_backend=LOOPS)
def test_every_document_has_its_questions(
    run: Run, name: str, settings: tuple[dict[str, Any], str, str]
) -> None:
    """A check, above 64 KiB a form, and the document at once: each time, also those of a batch."""
    options, small, large = settings
    rooms = Scripted(then=lambda visit: free() if visit.kind == "probe" else accepted())
    named = {} if name == "link" else {"filename": "deck.pdf"}

    async def main() -> None:
        async with client_without_checks(rooms, **options) as client:
            for _ in range(3):
                await upload(client, DOCUMENTS[name]())
            jobs = [UploadJob("room01", DOCUMENTS[name](), **named) for _ in range(3)]
            async with client.upload_many(jobs) as batch:
                assert (await batch.wait()).accepted == 3
        assert anyio.current_time() == 0

    run(main)
    assert letters(rooms) == 6 * (small if name in WITHOUT_A_FORM else large)
    assert all(len(visit.sent) < 400 for visit in rooms.visits if visit.kind != "upload")
    limits = {(v.request.cut_reply, v.request.max_reply_bytes) for v in rooms.questions}
    assert limits <= {(True, 64 * 1024)}  # however many people are in the room


@pytest.mark.anyio
@crossed(data=SIZES, anyio_backend=LOOPS)
async def test_nothing_comes_between_a_question_and_its_document(data: bytes) -> None:
    """Also if all connections are in use: the server may restart while a document waits for one."""
    server, rooms = MeetingServer(processing_seconds=0.02), [f"room{number}" for number in range(8)]
    for room in rooms:
        server.add_room(room)
    with server.run() as url:
        keys: Any = {"api_key": server.api_key, "api_secret": server.api_secret}
        async with MeetingClient(url, **keys, max_connections=1) as client:
            send = partial(client.upload_whiteboard_file, filename="deck.pdf")
            async with anyio.create_task_group() as group:
                for room in rooms:
                    group.start_soon(send, room, data)
    in_turn = [room for room, _ in itertools.groupby(one.room_id for one in server.requests)]
    assert sorted(filter(None, in_turn)) == rooms


AT_LEAST = {"delivery": "at_least_once"}


@attrs.frozen
class CourseRow:
    """A course: what its requests meet in turn, and what comes of it."""

    script: list[Act]
    outcome: Any
    """Its class."""
    seconds: tuple[float, float]
    """Until the outcome, at least and at most."""
    how: dict[str, Any] = attrs.field(factory=dict)
    """Settings of client and call."""


COURSES = {
    "accepted": CourseRow([accepted(replying=3)], UploadReceipt, seconds=(3, 3)),
    "too large": CourseRow([reply(413, b"<html>", take=1)], DocumentRefused, seconds=(0, 0)),
    "never sent, then sent": CourseRow(
        [unreachable(), accepted()], UploadReceipt, seconds=(0.25, 0.5)
    ),
    "not one byte, says the transport": CourseRow(
        [failing(ConnectFailed("no"), take=1)] * 4 + [accepted()],
        UploadReceipt,
        seconds=(3.75, 7.5),
    ),
    "but all of it was out": CourseRow(
        [failing(ConnectFailed("no"))], UploadOutcomeUnknown, seconds=(0, 0)
    ),
    "cut off twice": CourseRow(
        [cut_off(), cut_off(IN_DOCUMENT), accepted()], UploadReceipt, seconds=(0.75, 1.5)
    ),
    "no thread left amid it, which is no lack of a connection": CourseRow(
        [failing(ResourceExhausted("no thread"), take=3)] * 3,
        UploadInterrupted,
        seconds=(0.75, 1.5),
    ),
    "throttled early": CourseRow(
        [reply(503, PAGE, "5", take=1), accepted()], UploadReceipt, seconds=(5, 6.25)
    ),
    "the check is throttled": CourseRow(
        [reply(429, b"", "30"), accepted(), accepted()],
        UploadReceipt,
        seconds=(30, 37.5),
        how={"checks": None},
    ),
    "throttled for ever": CourseRow(
        [reply(503, PAGE, "3600")] * 5, Throttled, seconds=(240, 300), how={"checks": None}
    ),
    "lost": CourseRow([lost(replying=7)], UploadOutcomeUnknown, seconds=(7, 7)),
    "409 and a throttled check in turn": CourseRow(
        [reply(429, b"", "1"), accepted(), busy()] * 6 + [accepted(), free(), accepted()],
        UploadReceipt,
        seconds=(7.5, 30),
        how={"checks": None},
    ),
    "409 and 503 in turn": CourseRow(
        [busy(), *([free(), reply(503, record("X"), "1"), busy()] * 2), free(), accepted()],
        UploadReceipt,
        seconds=(2.5, 12),
    ),
    "at the edge of the timeout": CourseRow(
        [busy()], RoomBusy, seconds=(0, 0), how={"timeout": 0.3}
    ),
    "at least once": CourseRow(
        [lost(), busy(), free(), accepted()], UploadReceipt, seconds=(0.55, 1), how=AT_LEAST
    ),
    "at least once without the form": CourseRow(
        [lost(), accepted()], UploadReceipt, seconds=(300, 300), how=AT_LEAST | {"probe": False}
    ),
    "at least once without questions": CourseRow(
        [lost(), accepted()], UploadReceipt, seconds=(300, 300), how=AT_LEAST | {"preflight": False}
    ),
    "lost, busy": CourseRow(
        [lost(), busy()],
        UploadOutcomeUnknown,
        seconds=(0.25, 0.5),
        how=AT_LEAST | {"timeout": 0.53},
    ),
    "lost, refused": CourseRow(
        [lost(), free(), refused()], UploadOutcomeUnknown, seconds=(0.25, 0.5), how=AT_LEAST
    ),
    "large, a lost race": CourseRow(
        [free(), busy(sending=2), free(), accepted()],
        UploadReceipt,
        seconds=(3.1, 12.9),
        how={"data": ASKED},
    ),
    "large, without questions": CourseRow(
        [busy(), accepted()],
        UploadReceipt,
        seconds=(18, 22.5),
        how={"data": ASKED, "preflight": False},
    ),
}


@pytest.mark.both_loops
@pytest.mark.parametrize("row", COURSES.values(), ids=COURSES)
def test_each_script_ends_as_its_row_says(run: Run, row: CourseRow) -> None:
    """What each course comes to, after how long; no request more than the script has.

    Every attempt takes the same steps: the check, the form if it is asked for, the document.
    """
    how, went = row.how, run(lambda: course(*row.script, **row.how))
    outcome, transport, seconds = went.outcome, went.transport, went.seconds
    assert type(outcome) is row.outcome, outcome
    assert "None" not in str(outcome if isinstance(outcome, Exception) else "")
    least, most = row.seconds
    assert least <= seconds <= most
    assert len(transport.kinds) == len(row.script)
    assert not transport.collisions
    assert re.fullmatch("(cf?d?)+" if how.get("preflight", True) else "d+", letters(transport))
    throttled = [visit for visit in transport.questions if visit.status in {429, 503}]
    attempts = len(transport.uploads) + len(throttled)
    assert [attempt.number for attempt in outcome.attempts] == list(range(1, attempts + 1))
    if isinstance(outcome, UploadReceipt):
        data = how.get("data", SMALL)
        assert bytes(transport.uploads[-1].sent).count(data) == 1
        assert (outcome.room_id, outcome.document) == ("room01", "deck.pdf")
        assert (outcome.size, outcome.attempts[-1].bytes_sent) == (len(data), len(data))
        assert (outcome.status_code, outcome.raw["status"]) == ("SUCCESS", True)
        assert outcome.seconds == seconds
    else:
        facts = (outcome.operation, outcome.room_id, outcome.document)
        assert facts == ("room/uploadWhiteboardFile", "room01", "deck.pdf")


# --- the closing boundary -------------------------------------------------------------------------


ERRORS = {"lost": ConnectionLost, "late": TransferTimeout}


def closing_of(transport: Scripted) -> int:
    """Return the length of a form's end, as its content type announces it."""
    boundary = headers_of(transport.visits[0])["content-type"].partition("boundary=")[2].strip('"')
    end = f"\r\n--{boundary}--\r\n".encode()
    assert transport.visits[0].sent.endswith(end)
    return len(end)


@crossed(data=SIZES, error=ERRORS, anyio_backend=LOOPS)
def test_any_byte_of_the_closing_boundary_counts(run: Run, error: Any, data: bytes) -> None:
    """When all but 0, 1, 2 … bytes of its line were sent, the outcome is unknown: sent once.

    When none of them was, or nothing at all, no server can have the form: it is sent again.
    """
    how: Any = {"data": data, "probe": False}

    def verdicts(missing: int) -> list[Verdict]:
        script = [failing(error("gone"), missing=missing), accepted()]
        went = run(lambda: course(*script, **how))
        outcome, transport = went.outcome, went.transport
        found = [attempt.verdict for attempt in outcome.attempts]
        assert len(transport.uploads) == len(found)
        assert isinstance(outcome, UploadReceipt if len(found) == 2 else UploadOutcomeUnknown)
        return found

    transport = run(lambda: course(accepted(), **how, preflight=False)).transport
    closing, again = closing_of(transport), [Verdict.PARTIAL, Verdict.ACCEPTED]
    assert [verdicts(missing) for missing in range(closing)] == [[Verdict.UNKNOWN]] * closing
    assert [verdicts(missing) for missing in (closing, closing + 1)] == [again] * 2
    assert verdicts(len(transport.visits[0].sent)) == [Verdict.NEVER_SENT, Verdict.ACCEPTED]


# --- no answer -----------------------------------------------------------------------------------

TROUBLES: dict[str, Callable[[Visit], Act]] = {
    "refused": lambda _: unreachable(),
    "connect hangs": lambda visit: failing(
        ConnectFailed("no connection"), take=0, replying=visit.request.connect_timeout
    ),
    "no reply": lambda visit: failing(
        TransferTimeout("no reply"), replying=visit.request.reply_timeout
    ),
    "502": lambda _: reply(502, PAGE),
}


@crossed(
    trouble=TROUBLES, which={"from the check on": "question", "form": "probe"}, anyio_backend=LOOPS
)
@pytest.mark.parametrize("max_outage", [0, 10, 60])
def test_an_outage_ends_in_time(
    run: Run, trouble: Callable[[Visit], Act], which: str, max_outage: float
) -> None:
    """``max_outage`` seconds after it began, whatever the network does."""

    def answer(visit: Visit) -> Act:
        return trouble(visit) if which in {"question", visit.kind} else accepted()

    for data in SIZES.values() if which == "question" else [LARGE]:
        retry = RetryPolicy(max_outage=max_outage)
        made = partial(course, then=answer, checks=None, data=data, retry=retry)
        went = run(made)
        assert isinstance(went.outcome, MeetingError)
        assert not isinstance(went.outcome, UploadOutcomeUnknown)
        assert went.transport.uploads == []
        # One attempt is made in any case, and waits for its reply.
        assert max_outage - 1 <= went.seconds <= max(max_outage, 15) + 1.5


class Crowded(Scripted):
    """A server that takes 70 s for another call."""

    async def send(self, request: Request, /) -> Reply:
        """Answer, or take long."""
        if request.url.endswith("slow"):
            await anyio.sleep(70)
            return Reply(200, content=b'{"status": true, "msg": "done"}')
        return await super().send(request)


@pytest.mark.parametrize("preflight", [True, False])
@pytest.mark.parametrize(
    ("script", "how"),
    [
        ([unreachable()], {}),
        ([unreachable(), unreachable()], {}),
        ([busy(), busy()], {"max_wait": 30}),
        ([busy()] * 7, {}),
    ],
)
def test_a_wait_for_a_connection_does_not_count(
    run: Run, script: list[Act], how: dict[str, Any], preflight: bool
) -> None:
    """Neither as an outage, nor for ``max_wait``, nor for the age of a lock."""

    async def main() -> UploadReceipt:
        rooms = Crowded(*script, accepted(), checks=ACTIVE)
        async with (
            client_without_checks(
                rooms, preflight=preflight, probe=False, max_connections=1
            ) as client,
            anyio.create_task_group() as group,
        ):

            async def others() -> None:
                while True:
                    await client.call("slow", {})

            group.start_soon(others)
            await anyio.sleep(1)
            found = await upload(client, **how)
            group.cancel_scope.cancel()
        return found

    receipt = run(main)
    assert receipt.seconds >= 60 * len(receipt.attempts)
    assert all(attempt.seconds < 1 for attempt in receipt.attempts)


class Wrapped:
    """A transport of the caller's around another one."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner

    async def send(self, request: Request, /) -> Reply:
        return await self.inner.send(request)

    async def aclose(self) -> None:
        await self.inner.aclose()


TRANSPORTS: dict[str, Callable[[], Transport]] = {
    "bare": HttpTransport,
    "wrapped": lambda: Wrapped(HttpTransport()),
    "httpx": lambda: HttpxTransport(httpx.AsyncClient(trust_env=False)),
}


async def in_a_batch(client: MeetingClient) -> None:
    """Upload as a batch of one job, whose error is raised."""
    job = UploadJob("room02", SMALL, filename="deck.pdf")
    async with client.upload_many([job], timeout=0.2) as batch:
        async for outcome in batch:
            assert outcome.error is not None
            raise outcome.error


STARVED: dict[str, Callable[[MeetingClient], Any]] = {
    "upload": lambda client: upload(client, room="room02", timeout=0.2),
    "call": lambda client: client.call("room/any", {}, timeout=0.2),
    "batch": in_a_batch,
}


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("starved", STARVED)
async def test_a_timeout_for_want_of_a_connection_is_no_outage(
    transport: str, starved: str
) -> None:
    """The only connection is busy with a conversion; then a busy room is told, not an outage."""
    server = MeetingServer(processing_seconds=60)
    for name in ("room01", "room02"):
        server.add_room(name)
    keys: dict[str, Any] = {"api_key": server.api_key, "api_secret": server.api_secret}
    with server.run() as url:
        async with (
            MeetingClient(
                url, max_connections=1, transport=TRANSPORTS[transport](), **keys
            ) as client,
            anyio.create_task_group() as group,
        ):
            group.start_soon(upload, client)
            await until(lambda: server.rooms["room01"].locked)
            with pytest.raises(DeadlineExceeded):
                await STARVED[starved](client)
            with pytest.raises(RoomBusy):
                await upload(client, max_wait=0)
            group.cancel_scope.cancel()


# --- whose answer it is --------------------------------------------------------------------------


def test_a_wrong_address_costs_a_command_one_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The code is 1, not 3: nothing was sent, and the line says what to check."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.pdf", "b.pdf"):
        Path(name).write_bytes(SMALL)
    server = MeetingServer()
    with server.run() as url:
        export(monkeypatch, server)
        monkeypatch.setenv("MEETING_BASE_URL", f"{url}/wrong")
        done = call(capsys, "upload", "room01", "a.pdf", "b.pdf")
    assert (done.code, len(server.requests)) == (1, 1)
    assert "check the base URL" in done.err
    assert "is unknown" not in done.err


# --- a room that is denied -----------------------------------------------------------------------

DENIED = [reply(200, NOT_FOUND), reply(200, NOT_ACTIVE), reply(404, NOT_FOUND)]


@attrs.frozen(kw_only=True)
class FormRow:
    """A form after a check, and what the upload comes to."""

    form: Act
    """The answer to the first form."""
    outcome: type
    requests: str
    """All requests, as letters."""
    checks: Sequence[Act] = (*DENIED, ACTIVE)
    """Answers to the check; for each the rest of the row holds."""


# Only 409 and INVALID_PARAMETERS overrule a check that denies the room; any answer of the server
# below 500 means *free* otherwise.
FORMS = {
    "INVALID_PARAMETERS": FormRow(form=free(), outcome=UploadReceipt, requests="cfd"),
    "409": FormRow(form=busy(), outcome=UploadReceipt, requests="cfcfd"),
    "not found": FormRow(form=reply(400, NOT_FOUND), outcome=RoomNotFound, requests="cf"),
    "not active": FormRow(form=reply(400, NOT_ACTIVE), outcome=RoomNotActive, requests="cf"),
    "401": FormRow(
        form=reply(401, record("INVALID_API_KEY")), outcome=AuthenticationFailed, requests="cf"
    ),
    "400 of another kind": FormRow(
        checks=DENIED, form=reply(400, INTERNAL), outcome=RequestRefused, requests="cf"
    ),
    "a success": FormRow(checks=DENIED, form=accepted(), outcome=RequestRefused, requests="cf"),
    "502": FormRow(form=reply(502, PAGE), outcome=UploadReceipt, requests="cfcfd"),
    "no reply": FormRow(form=lost(), outcome=UploadReceipt, requests="cfcfd"),
    "active, 400 of another kind": FormRow(
        checks=[ACTIVE], form=reply(400, INTERNAL), outcome=UploadReceipt, requests="cfd"
    ),
}


@crossed(row=FORMS, anyio_backend=LOOPS)
def test_the_form_has_the_last_word(run: Run, row: FormRow) -> None:
    """Whatever the check has said, and the size; no answer is asked for again."""
    first, steps = row.form, row.requests
    script = [first, *[free()] * (steps.count("f") - 1), *[accepted()] * steps.count("d")]
    for check, data in itertools.product(row.checks, SIZES.values()):
        if check is ACTIVE and data == SMALL:
            continue  # it has no form
        went = run(partial(course, *script, data=data, checks=check))
        assert isinstance(went.outcome, row.outcome)
        assert letters(went.transport) == steps
        assert went.seconds < 3
        if isinstance(went.outcome, MeetingError):
            assert (went.outcome.room_id, went.outcome.document) == ("room01", "deck.pdf")
        if first == busy():  # a room that is denied and locked is waited for like any other
            went = run(partial(course, first, data=data, checks=check, max_wait=0))
            assert isinstance(went.outcome, RoomBusy)
            assert (letters(went.transport), went.seconds) == ("cf", 0)


# --- rooms that are taken ------------------------------------------------------------------------


FROM_HERE = "another upload of this application has"
THREE = LockPolicy(max_wait=3)


@attrs.frozen(kw_only=True)
class BehindRow:
    """How an upload may wait, and what it comes to."""

    how: dict[str, Any] = attrs.field(factory=dict)
    """What the call says."""
    lock: LockPolicy | None = None
    """What the client says."""
    outcome: type
    words: str = ""
    """Of the error."""
    seconds: float
    """How long it waits."""


BEHIND = {
    "not at all": BehindRow(how={"max_wait": 0}, outcome=RoomBusy, words=FROM_HERE, seconds=0),
    "hardly": BehindRow(how={"max_wait": 0.1}, outcome=RoomBusy, words=FROM_HERE, seconds=0.1),
    "as the client does": BehindRow(lock=THREE, outcome=RoomBusy, words=FROM_HERE, seconds=3),
    "longer than the client": BehindRow(
        how={"max_wait": 20}, lock=THREE, outcome=RoomBusy, words=FROM_HERE, seconds=20
    ),
    "until its timeout": BehindRow(
        how={"timeout": 5}, outcome=DeadlineExceeded, words="behind another upload of th", seconds=5
    ),
    "beyond any lock's life": BehindRow(outcome=UploadReceipt, seconds=399),
}


@pytest.mark.parametrize("row", BEHIND.values(), ids=BEHIND)
def test_behind_an_upload_from_here(run: Run, row: BehindRow) -> None:
    """The error says whose the room is, exactly in time; without a limit the wait has none."""
    kind, seconds = row.outcome, row.seconds

    async def main() -> None:
        transport, recorder = Scripted(accepted(replying=400), accepted()), EventRecorder()
        async with client_without_checks(transport) as client, anyio.create_task_group() as group:
            group.start_soon(upload, client)
            await anyio.sleep(1)
            outcome: Any
            try:
                outcome = await upload(
                    client.with_options(lock=row.lock), on_event=recorder, **row.how
                )
            except MeetingError as error:
                outcome = error
                group.cancel_scope.cancel()
            assert anyio.current_time() == 1 + seconds
        assert type(outcome) is kind
        assert row.words in str(outcome)
        assert recorder.kinds[:2] == ["Started", "Queued" if seconds else "Finished"]
        assert recorder.finished.waited == pytest.approx(seconds)
        assert (recorder.finished.verdict == "busy") is (kind is RoomBusy)
        if isinstance(outcome, RoomBusy):
            assert outcome.waited == pytest.approx(seconds)
            assert outcome.free_in is None
        assert len(transport.visits) == (2 if kind is UploadReceipt else 1)

    run(main)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("act", "event", "rooms"),
    [(Act(), Queued, 1), (unreachable(), RetryScheduled, 40), (busy(take=0), WaitingForRoom, 40)],
    ids=["behind another upload", "without a connection", "for a locked room"],
)
async def test_waiting_holds_no_bytes(
    act: Act, event: type[Event], rooms: int, tmp_path: Path
) -> None:
    """Forty uploads of a file of 200 KiB wait in less than 2 MiB of memory."""
    path, recorder = tmp_path / "deck.pdf", EventRecorder()
    path.write_bytes(SMALL.ljust(200 * 1024))
    transport = Scripted(*[act] * rooms, then=lambda _: busy(take=0))
    async with client_without_checks(transport) as client, anyio.create_task_group() as group:
        names = [f"room{number % rooms}" for number in range(40)]
        tracemalloc.start()
        for name in names:
            send = partial(client.upload_whiteboard_file, on_event=recorder)
            group.start_soon(send, name, path)
        await until(lambda: len({one.call for one in recorder.of(event)}) == 40 - (rooms == 1))
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        group.cancel_scope.cancel()
    assert held < 2 * 1024**2
