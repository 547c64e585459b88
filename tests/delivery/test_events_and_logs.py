"""Events, log, result or error: what a call reports while it runs, and however it ends.

Each way to end is a row. What is told of it is complete, in one printable line for each text of a
server, without a credential, and it can be pickled.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import json
import logging
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from meeting_async import (
    AttemptStarted,
    BytesSent,
    Document,
    Event,
    Finished,
    MeetingClient,
    RetryPolicy,
    RetryScheduled,
    Started,
    Verdict,
    WaitingForRoom,
)
from meeting_async import errors as e
from meeting_async.signers import SignedHeaders
from meeting_async.testing import run_in_virtual_time
from meeting_async.transports import Reply
from support.batches import job
from support.courses import EventRecorder, course, upload
from support.documents import ASKED, DOCX, LARGE, SMALL
from support.fake_rooms import (
    SECRET,
    Act,
    FakeRooms,
    Scripted,
    absent,
    accepted,
    busy,
    client_without_checks,
    conversion_failed,
    cut_off,
    failing,
    free,
    hanging,
    lost,
    record,
    reply,
    signature,
    unreachable,
)
from support.tables import in_turn
from support.telling import LogFile, Told, containing, logging_to, unfit
from support.virtual_time import jump

Run = Callable[..., Any]
Make = Callable[[MeetingClient], Any]

# --- typical courses -----------------------------------------------------------------------------

ONE, TWO, LAST = ["AttemptStarted", "BytesSent"], ["AttemptStarted", *["BytesSent"] * 2], "Finished"
SOME_LINK = Document.from_link("https://f.test/a?b")


async def told(*script: Act, **how: Any) -> EventRecorder:
    """Upload along a script, whatever comes of it, and return the events."""
    return (await course(*script, **how)).recorder


@attrs.frozen
class CourseRow:
    """What the requests of a call meet, and what its observer is told."""

    script: list[Act]
    kinds: list[str]
    """The events after ``Started``."""
    verdict: str = attrs.field(default="accepted", kw_only=True)
    """Of the last event, as are the attempts."""
    attempts: int = attrs.field(default=1, kw_only=True)
    how: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
    """Settings of client and call."""


COURSES = [
    CourseRow([accepted()], [*ONE, "Finished"]),
    CourseRow([busy(), free(), accepted()], [*ONE, "WaitingForRoom", *ONE, LAST], attempts=2),
    CourseRow([unreachable(), accepted()], [ONE[0], "RetryScheduled", *ONE, LAST], attempts=2),
    CourseRow(
        [cut_off()] * 3,
        [ONE[0], "RetryScheduled"] * 2 + [ONE[0], "Finished"],
        verdict="partial",
        attempts=3,
    ),
    CourseRow([free(), accepted()], [*TWO, LAST], how={"data": ASKED}),
    CourseRow([busy(), free(), accepted()], ["WaitingForRoom", *TWO, LAST], how={"data": ASKED}),
    CourseRow(
        [unreachable(), free(), accepted()],
        ["RetryScheduled", *TWO, LAST],
        attempts=2,
        how={"data": ASKED},
    ),
    CourseRow(
        [busy()], ["Finished"], verdict="busy", attempts=0, how={"data": ASKED, "max_wait": 0}
    ),
    CourseRow([accepted()], [ONE[0], "Finished"], how={"data": SOME_LINK}),
]


@pytest.mark.parametrize("row", COURSES)
def test_the_events_of_typical_courses(run: Run, row: CourseRow) -> None:
    """The call and each attempt begin and report, waits are announced, the end comes once, last."""
    recorder, attempts = run(lambda: told(*row.script, **row.how)), row.attempts
    assert recorder.kinds == ["Started", *row.kinds]
    assert (recorder.finished.verdict, recorder.finished.attempts) == (row.verdict, attempts)
    assert (recorder.finished.error is None) is (row.verdict == "accepted")
    started = [event.attempt for event in recorder.of(AttemptStarted)]
    assert started == [*range(1, attempts + 1)][attempts - len(started) :]
    assert len({event.call for event in recorder.events}) == 1
    for event in recorder.events:
        facts = (event.operation, event.room_id, event.host)
        assert facts == ("room/uploadWhiteboardFile", "room01", "meet.test:443")
        known = (None,) if isinstance(event, Started) else ("deck.pdf", "https://f.test/a?…")
        assert event.document in known


def test_waits_and_retries_say_why_and_how_long(run: Run) -> None:
    """The delay, the time waited so far, the limit; the verdict and what was seen."""
    come_back = reply(503, record("X", msg="come back"), "5")
    script = [busy(), free(), come_back, free(), unreachable(), free(), accepted()]
    recorder = run(lambda: told(*script, max_wait=100))
    (wait,) = recorder.of(WaitingForRoom)
    assert (wait.attempt, wait.waited, wait.max_wait) == (1, 0, 100)
    throttled, unsent = recorder.of(RetryScheduled)
    assert (throttled.attempt, throttled.verdict) == (2, Verdict.THROTTLED)
    assert "503" in throttled.reason
    assert 5 <= throttled.retry_in <= 6.25
    assert (unsent.attempt, unsent.verdict) == (3, Verdict.NEVER_SENT)
    assert "refused" in unsent.reason
    total = wait.retry_in + throttled.retry_in + unsent.retry_in
    assert recorder.times[-1] == pytest.approx(total)
    assert recorder.finished.seconds == pytest.approx(total)


# --- sums ----------------------------------------------------------------------------------------


@attrs.frozen
class SumsRow:
    """What the requests of a call meet, and the sums of its last event."""

    script: list[Act]
    sent: int
    """Bytes."""
    how: dict[str, Any] = attrs.field(factory=dict)
    """Settings of client and call."""
    resent: int = 0
    """Those of them that were sent before."""
    sending: float = 0
    """Seconds of sending in vain, which count as waiting."""


SUMS = [
    SumsRow([accepted(sending=3, replying=2)], sent=1000),
    SumsRow([cut_off(), accepted()], sent=1000),  # before the document
    SumsRow([reply(429, b"", "5"), accepted()], sent=2000, resent=1000),
    SumsRow([busy(sending=2), free(), accepted(sending=3)], sent=2000, resent=1000),
    SumsRow(
        [busy(), free(), busy(sending=2), free(), accepted()], sent=3000, resent=2000, sending=2
    ),
    SumsRow([busy(), free(), lost(sending=3)], sent=2000, resent=1000),
    SumsRow([busy(), free(), hanging(sending=3)], how={"timeout": 60}, sent=2000, resent=1000),
    SumsRow([busy()], how={"max_wait": 0.1}, sent=1000),
    SumsRow([accepted()], how={"data": SOME_LINK}, sent=0),
    SumsRow([], how={"data": b""}, sent=0),
    SumsRow([busy(), busy(), free(), accepted(sending=3)], how={"data": ASKED}, sent=len(ASKED)),
]


@pytest.mark.parametrize("row", SUMS)
def test_the_sums_of_a_call(run: Run, row: SumsRow) -> None:
    """Bytes, those sent again, and the wait for the room: the waits, and sending in vain."""
    recorder = run(lambda: told(*row.script, **row.how))
    waits = sum(event.retry_in for event in recorder.of(WaitingForRoom))
    finished = recorder.finished
    assert (finished.bytes_sent, finished.bytes_resent) == (row.sent, row.resent)
    assert finished.waited == pytest.approx(waits + row.sending)


def test_the_calls_of_a_job_count_once(run: Run) -> None:
    """A job whose room ended sends its document in two calls; their sums are those of the job."""

    async def main() -> None:
        acts = iter([busy(), absent(), busy(), accepted()])
        recorder = EventRecorder()
        rooms = FakeRooms(lambda _: next(acts), ask=lambda _: accepted())
        async with client_without_checks(rooms, on_event=recorder) as client:
            async with client.upload_many([job("room01", 0, SMALL)], wait_active=60) as batch:
                (outcome,) = (await batch.wait()).outcomes
        finished = recorder.of(Finished)
        assert outcome.bytes_sent == 4000 == sum(event.bytes_sent for event in finished)
        uploads = [event for event in finished if "upload" in event.operation]
        assert len(outcome.attempts) == 4 == sum(event.attempts for event in uploads)
        assert outcome.bytes_resent == 3000 == sum(event.bytes_resent for event in finished)

    run(main)


# --- observers -----------------------------------------------------------------------------------


def test_an_observer_of_a_single_call(run: Run) -> None:
    """``on_event=`` of a call replaces the client's for this call."""

    async def main() -> None:
        client_wide, own = EventRecorder(), EventRecorder()
        transport = Scripted(then=lambda _: accepted())
        async with client_without_checks(transport, on_event=client_wide) as client:
            await upload(client, on_event=own)
            await client.call("room/create", on_event=own)
            await client.get_active_room_info("room01", on_event=own)
            await client.wait_until_active("room01", 5, on_event=own)
            assert not client_wide.events
            assert len(own.of(Finished)) == 4
            await client.call("room/create")
            assert client_wide.kinds == ["Started", "AttemptStarted", "Finished"]
            await client.call("/room/create")
            assert {event.operation for event in client_wide.events} == {"room/create"}

    run(main)


async def coroutine_function(event: Event) -> None:
    """Be what many would try first."""


class CoroutineObject:
    """The same as an object."""

    async def __call__(self, event: Event) -> None:
        """Wait."""


@pytest.mark.anyio
async def test_an_observer_is_a_plain_function() -> None:
    """A coroutine function is refused where it is given; a client's is in ``test_mistakes.py``."""
    document = Document.from_bytes(SMALL, "a.pdf")
    async with client_without_checks(Scripted()) as client:
        for on_event in (CoroutineObject(), functools.partial(coroutine_function), 7):
            calls: list[Callable[[Any], Any]] = [
                lambda own: client.with_options(**own),
                lambda own: client.upload_whiteboard_file("room01", document, **own),
                lambda own: client.call("room/create", **own),
                lambda own: client.get_active_room_info("room01", **own),
                lambda own: client.wait_until_active("room01", 5, **own),
                lambda own: client.upload_many([], **own),
            ]
            for call in calls:
                with pytest.raises(e.ConfigurationError, match="on_event"):
                    await call({"on_event": on_event})


@pytest.mark.parametrize("error", [RuntimeError("boom"), asyncio.CancelledError()])
def test_an_observer_that_raises_changes_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The call goes on, and the log has the traceback."""

    def on_event(event: Event) -> None:
        raise error

    async def main() -> Any:
        async with client_without_checks(Scripted(busy(), accepted()), on_event=on_event) as client:
            return await upload(client)

    assert run_in_virtual_time(main).size == len(SMALL)
    warnings = [entry for entry in caplog.records if "observer raised" in entry.getMessage()]
    assert len(warnings) == 7
    assert all(entry.exc_info for entry in warnings)


# --- progress ------------------------------------------------------------------------------------

TEN_MIB = b"%PDF".ljust(10 * 1024**2, b"\n")


def test_progress_is_told_ten_times_a_second(run: Run) -> None:
    """Growing, never above the size, and the whole at the end of the document."""
    recorder = run(lambda: told(accepted(sending=10, replying=5), data=TEN_MIB, preflight=False))
    sent = [event.sent for event in recorder.of(BytesSent)]
    assert 20 <= len(sent) <= 102
    assert sent == sorted(set(sent))
    assert sent[-1] == len(TEN_MIB)
    assert {event.total for event in recorder.of(BytesSent)} == {len(TEN_MIB)}
    told_at = zip(recorder.times, recorder.events, strict=True)
    moments = [moment for moment, event in told_at if isinstance(event, BytesSent)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments[:-1])]
    assert min(gaps) >= 0.099


def test_a_slow_observer_gets_less_progress() -> None:
    """One that takes 0.9 s per event takes a tenth of the time, not all of it."""

    async def main() -> float:
        slept: list[float] = []

        def on_event(event: Event) -> None:
            if isinstance(event, BytesSent):  # as if it had blocked the loop
                slept.append(0.9)
                jump(0.9)

        transport = Scripted(accepted(sending=60))
        async with client_without_checks(transport, on_event=on_event, preflight=False) as client:
            await upload(client, TEN_MIB)
        assert anyio.current_time() <= 60 * 1.25
        return sum(slept)

    assert run_in_virtual_time(main, backend="asyncio") <= 0.2 * 60


# --- endings -------------------------------------------------------------------------------------

READABLE = "no presenter für alle"
"""What a person must still be able to read."""
SIGNS = (
    "1\n2\r3\r\n4\u20285\u20296\x857\x0b8\x0c9\x1b[31m\x1b]0;title\x07\x9b2J\x00\ud800\u202e\u2066"
)
"""Line breaks of seven kinds, escapes for terminals, NUL, half a character, marks that turn text
around."""
HOSTILE = f"{READABLE}\n2026-11-22 12:00:00 INFO meeting_async: accepted\n{SIGNS * 120}"
TEXTS = {
    "hostile": HOSTILE,
    "long": f"{READABLE} {'x' * 100_000}",
    "only signs": SIGNS,
    "huge and hostile": f"{READABLE} {SIGNS * 4_000}",
}
"""What a server may write into any of its texts; no reply may exceed 1 MiB."""

LINK = "https://10.0.0.1/deck.pdf?token=hush-hush-hush"
"""Its host is private; its query is a credential."""
CREDENTIALS = [SECRET, signature(b"room01"), signature(b'{"room_id":"room01"}'), signature(b"{}")]


class RaisingSigner:
    """Cannot sign."""

    def sign(self, message: bytes, /) -> Any:
        """Fail."""
        raise LookupError("the vault is closed")


class BrokenSigner:
    """Returns a signature that cannot stand in a header."""

    def sign(self, message: bytes, /) -> SignedHeaders:
        """Sign as a tool prints it, with a line break."""
        return SignedHeaders("key", signature(message) + "\n")


class NoLocks:
    """Room locks that do not answer."""

    @asynccontextmanager
    async def acquire(self, room: str, *, timeout: float | None) -> AsyncIterator[None]:
        if room:
            raise e.RoomLocksUnavailable("nobody answers")
        yield


async def _short() -> AsyncIterator[bytes]:
    yield SMALL


def put(document: Any = SMALL, room: Any = "room01", **how: Any) -> Make:
    """Upload."""
    if not isinstance(document, Document):
        how = {"filename": "deck.pdf", **how}
    return lambda client: client.upload_whiteboard_file(room, document, **how)


def short(client: MeetingClient) -> Any:
    """Upload a stream that is shorter than it was said to be."""
    document = Document.from_stream(_short(), "deck.pdf", size=2000, replayable=False)
    return client.upload_whiteboard_file("room01", document)


def call(path: Any = "room/create", payload: Any = None, **how: Any) -> Make:
    """Make a call."""
    return lambda client: client.call(path, payload or {"room_id": "room01"}, **how)


def room_info() -> Make:
    """Ask for a room."""
    return lambda client: client.get_active_room_info("room01")


def raw(status: int, content: bytes, *headers: tuple[bytes, bytes], kind: bytes = b"") -> Act:
    """Reply with anything."""
    pairs = ((b"Content-Type", kind or b"application/json"), *headers)
    return attrs.evolve(accepted(), result=Reply(status, pairs, content))


Ending = tuple[Make, list[Act], dict[str, Any], type[Exception] | None, str]
"""The call, what its requests meet, settings; the error, if there is one, and the verdict."""


def endings(text: str = "") -> dict[str, Ending]:
    """Return the ways in which a call ends, with a text of the server wherever there can be one."""
    value = text.encode("utf-8", "replace")[:60_000]

    def own(status: int, code: str = text, *headers: tuple[bytes, bytes]) -> Act:
        record: Any = {"status": status == 200, "msg": text, "status_code": code}
        if status == 200:
            info = {"room_title": text, "metadata": json.dumps({"a": text})}
            record["room"] = {"room_info": info}
        pairs = ((b"X-Request-Id", b"r-\xfc\x1b"), *headers)
        return raw(status, json.dumps(record).encode(), *pairs)

    def page(status: int) -> Act:
        names = (b"Location", b"Server", b"X-Request-Id", b"Content-Encoding")
        return raw(status, value, *((name, value) for name in names), kind=b"text/" + value)

    host, looks, later = "meet.test:443", {"preflight": True}, (b"Retry-After", b"1")
    retrying = {"retry": RetryPolicy()}
    wrong_key = reply(401, record("INVALID_API_KEY", msg=text[:5000]))
    return {
        # before anything is sent
        "bad room": (put(room=" room01"), [], {}, e.InvalidInput, "never sent"),
        "forged room": (put(room=f"room\n{text}"), [], {}, e.InvalidInput, "never sent"),
        "forged path": (call(f"room\n{text}"), [], {}, e.InvalidInput, "never sent"),
        "forged payload": (
            call(payload={"room_id": "room\n2026"}), [own(200)], {}, None, "accepted"
        ),
        "no file": (put(Path("gone.pdf")), [], {}, e.DocumentUnreadable, "never sent"),
        "empty": (put(b""), [], {}, e.DocumentEmpty, "never sent"),
        "too large": (
            put(), [], {"max_size_whiteboard_file": 999}, e.DocumentTooLarge, "never sent"
        ),
        "image": (put(b"\x89PNG\r\n\x1a\n"), [], {}, e.DocumentTypeRefused, "never sent"),
        "bad max_wait": (put(max_wait=-1), [], {}, e.ConfigurationError, "never sent"),
        "signer": (put(), [], {"signer": RaisingSigner()}, LookupError, "never sent"),
        "broken signer": (put(), [], {"signer": BrokenSigner()}, e.InvalidInput, "never sent"),
        "locks": (put(), [], {"room_locks": NoLocks()}, e.RoomLocksUnavailable, "never sent"),
        "link": (
            put(Document.from_link(LINK)), [], {"check_link": True}, e.LinkRefused, "never sent"
        ),
        # questions
        "check, wrong key": (put(), [wrong_key], looks, e.AuthenticationFailed, "refused"),
        "check, 401 of a proxy": (put(), [page(401)], looks, e.UnexpectedReply, "refused"),
        "check, a page": (put(), [page(200)], looks, e.UnexpectedReply, "refused"),
        "check, a redirect": (put(), [page(302)], looks, e.UnexpectedReply, "refused"),
        "check, no answer": (put(), [page(502)], looks, e.MeetingError, "no answer"),
        "form, no room": (
            put(LARGE), [own(200), own(400, "ROOM_NOT_FOUND")], looks, e.RoomNotFound, "refused"
        ),
        "form, locked": (put(LARGE, max_wait=0), [own(200), own(409)], looks, e.RoomBusy, "busy"),
        "form, no answer": (
            put(LARGE), [own(200), own(500)], looks, e.MeetingError, "no answer"
        ),
        # documents
        "ok": (put(), [own(200)], {}, None, "accepted"),
        "ok after some waits": (
            put(), [own(429, text, later), own(503, text, later), own(409), own(200)], retrying,
            None, "accepted",
        ),
        "ok after two outages": (
            put(), [unreachable(), unreachable(), own(200)], retrying, None, "accepted"
        ),
        "no connection": (
            put(), [failing(e.ConnectFailed(text, host), take=0)], {}, e.ConnectFailed, "never sent"
        ),
        "no descriptor": (
            put(), [failing(e.ResourceExhausted(text, host), take=0)], {}, e.ResourceExhausted,
            "never sent",
        ),
        "cut off": (put(), [cut_off()] * 3, retrying, e.UploadInterrupted, "partial"),
        "cut short": (
            put(), [failing(e.ConnectionLost(text, host), take=1)], {}, e.UploadInterrupted,
            "partial",
        ),
        "shorter than said": (short, [accepted()], {}, e.DocumentChanged, "partial"),
        "timeout in the body": (
            put(timeout=5), [hanging(take=1)], {}, e.DeadlineExceeded, "partial"
        ),
        "early bug": (put(), [failing(KeyError(), take=1)], {}, KeyError, "partial"),
        "busy": (put(max_wait=0), [own(409)], {}, e.RoomBusy, "busy"),
        "refused": (put(), [own(400)], {}, e.RequestRefused, "refused"),
        "room not there": (put(), [own(400, "ROOM_NOT_FOUND")], {}, e.RoomNotFound, "refused"),
        "room ended": (put(), [own(400, "ROOM_NOT_ACTIVE")], {}, e.RoomNotActive, "refused"),
        "too large there": (put(), [own(413)], {}, e.DocumentRefused, "refused"),
        "redirect": (put(), [page(302)], {}, e.RequestRefused, "refused"),
        "throttled": (put(), [own(429)], {}, e.Throttled, "throttled"),
        "conversion": (put(), [own(500)], {}, e.ProcessingFailed, "failed"),
        "a proxy's page": (put(), [page(502)], {}, e.UploadOutcomeUnknown, "unknown"),
        "lost": (put(), [lost()], {}, e.UploadOutcomeUnknown, "unknown"),
        "timeout": (put(timeout=5), [hanging()], {}, e.UploadOutcomeUnknown, "unknown"),
        "bug": (put(), [failing(ZeroDivisionError())], {}, e.UploadOutcomeUnknown, "unknown"),
        # other calls
        "call": (call(), [own(200)], {}, None, "accepted"),
        "call refused": (call(), [own(400)], {}, e.RequestRefused, "refused"),
        "call failed": (call(), [own(500)], {}, e.ServerFailed, "failed"),
        "call, a page": (call(), [page(200)], {}, e.UnexpectedReply, "unknown"),
        "call, no page": (call(), [page(404)], {}, e.UnexpectedReply, "refused"),
        "call timed out": (call(timeout=0.1), [hanging()], {}, e.DeadlineExceeded, "unknown"),
        "call lost": (call(), [lost()], {}, e.ConnectionLost, "unknown"),
        "late answer": (
            call(), [failing(e.TransferTimeout(text, host))], {}, e.TransferTimeout, "unknown"
        ),
        "large answer": (
            call(), [failing(e.ReplyTooLarge(text, host))], {}, e.ReplyTooLarge, "unknown"
        ),
        "bad path": (call("../b"), [], {}, e.InvalidInput, "never sent"),
        "info": (room_info(), [own(200)], {}, None, "accepted"),
    }  # fmt: skip


ZIPPED = b"PK\x03\x04".ljust(30, b"\0")
CONVERTED: dict[str, tuple[Document, bool]] = {
    **{
        name: (Document.from_bytes(b"whatever", name), True)
        for name in ("a.docx", "b.PPTX", "c.xlsx", "d.doc", "e.ppt", "f.xls", "g.odt", "h.rtf",
                     "i.txt")
    },
    "old": (Document.from_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1", "deck"), True),
    "new": (Document.from_bytes(DOCX, "deck.pdf"), True),
    "OpenDocument": (Document.from_bytes(ZIPPED + b"mimetype", "deck"), True),
    "RTF": (Document.from_bytes(b"{\\rtf1", "deck"), True),
    "a link": (Document.from_link("https://f.test/a.docx?b"), True),
    "a PDF by content": (Document.from_bytes(SMALL, "deck.docx"), False),
    "a PDF by name": (Document.from_bytes(b"whatever", "deck.pdf"), False),
    "an archive": (Document.from_bytes(ZIPPED + b"photo.jpg", "files.zip"), False),
    "anything": (Document.from_bytes(b"whatever", "docx"), False),
    "a link to a PDF": (SOME_LINK, False),
}  # fmt: skip
"""Documents, and whether a server converts them with an office program."""


@pytest.mark.anyio
@pytest.mark.parametrize("what", CONVERTED)
async def test_what_may_succeed_when_it_is_sent_again(what: str) -> None:
    """An office document, by name or content: its conversion may fail for another one's sake."""
    document, is_office = CONVERTED[what]
    sent = await course(conversion_failed(), data=document)
    assert isinstance(sent.outcome, e.ProcessingFailed)
    text = "Another conversion on the server at the same moment may be the cause: the same document"
    assert (text in str(sent.outcome), sent.outcome.hint is None) == (is_office, not is_office)
    assert len(sent.outcome.attempts) == 1  # outside a batch


RAISED_BY_TRANSPORT = {"no connection", "no descriptor", "late answer", "large answer"}
"""The facts of these errors are the words of a transport of the caller's; their text is not."""

FROM_ELSEWHERE: set[type] = {
    e.JournalError, e.JournalInUse, e.BatchStopped, e.BatchFailed,  # of batches, see below
    e.UploadPutBack, e.UploadFailed,  # of queues, which need a database
    e.DocumentMisplaced,  # of evidence, which has tests of its own
    e.MeetingError, e.DocumentError, e.ReplyError, e.TransportError,  # nothing is raised of them
}  # fmt: skip


def test_every_error_has_a_way_to_happen() -> None:
    """The tables below have a call for each class of error; a new class needs a row."""
    kinds = {
        kind
        for kind in vars(e).values()
        if inspect.isclass(kind) and issubclass(kind, e.MeetingError)
    }
    assert kinds <= {*(ending[3] for ending in endings().values()), *FROM_ELSEWHERE}


# --- what is checked -----------------------------------------------------------------------------


def check_events(events: list[Event], result: Any, verdict: str) -> None:
    """One call begins and finishes, exactly once, with the very error that is raised."""
    assert [event for event in events if isinstance(event, Started)] == events[:1]
    assert [event for event in events if isinstance(event, Finished)] == events[-1:]
    finished: Any = events[-1]
    assert finished.verdict == verdict
    assert finished.error is (result if isinstance(result, e.MeetingError) else None)
    started = sum(isinstance(event, AttemptStarted) for event in events)
    assert finished.attempts == len(getattr(result, "attempts", ())) or started
    assert {event.call for event in events} == {finished.call}
    assert finished.call > 0
    if isinstance(result, e.MeetingError):
        assert result.operation


def level_of(event: Event) -> int:
    """Return the level of all but the last event: the first retry for want of a connection warns.

    Any other wait is of interest; attempts are for those who look for a fault.
    """
    if isinstance(event, AttemptStarted):
        return logging.DEBUG
    if isinstance(event, RetryScheduled) and event.verdict == "never sent" and event.attempt == 1:
        return logging.WARNING
    return logging.INFO


def check_log(told: Told, log: LogFile, verdict: str) -> None:
    """One line for each event, with its fields in ``extra``; the last is for operators."""
    events = [event for event in told.events if not isinstance(event, Started | BytesSent)]
    lines = [record for record in told.records if vars(record).get("action") != "UnusualRoom"]
    assert [vars(line)["action"] for line in lines] == [type(event).__name__ for event in events]
    for event, line in zip(events, lines, strict=True):
        names = {field.name for field in attrs.fields(type(event))} - {"attempt", "host", "error"}
        names |= {"server_host", *(("error_type", "error_message") if line is lines[-1] else ())}
        fields = {name: vars(line)[name] for name in names}
        assert all(isinstance(it, str | int | float | None) for it in fields.values()), fields
        assert not {"host", "error"} & vars(line).keys()
    ended = {"accepted": logging.DEBUG, "unknown": logging.ERROR}.get(verdict, logging.WARNING)
    assert [line.levelno for line in lines] == [*map(level_of, events[:-1]), ended]
    assert all("meet.test:443" in line.getMessage() for line in lines)
    error, fields = getattr(events[-1], "error", None), vars(lines[-1])
    told_of = (None, None) if error is None else (type(error).__name__, str(error))
    assert (fields["error_type"], fields["error_message"]) == told_of
    message = lines[-1].getMessage()
    if verdict != "accepted" and getattr(events[-1], "error", None) is None:
        assert message.endswith("an exception ended it that is not of this library")
        assert "None" not in message
    written = log.content.split("\n")
    assert log.failed == []
    assert len(written) == len(told.records) + 1
    assert [line[:200] for line in written if not line.isprintable()] == []


def check_pickles(thing: Any) -> None:
    """Hold a pickle against what it was made of."""
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        other = pickle.loads(pickle.dumps(thing, protocol))
        assert type(other) is type(thing)
        assert repr(other) == repr(thing)
        if isinstance(thing, BaseException):
            assert (str(other), other.args) == (str(thing), thing.args)
            assert vars(other) == vars(thing)
        elif getattr(thing, "error", None) is None:
            assert other == thing


def check_secrets(told: Told) -> None:
    """No credential is in a text, a pickle, or the locals of our own frames."""
    found = list(told.texts())
    assert containing(found, CREDENTIALS) == []
    outside = [(where, text) for where, text in found if not where.startswith("traceback")]
    assert containing(outside, ["hush-hush"]) == []


EACH = [(f"{text}-{name}", (name, text)) for text in TEXTS for name in endings()]


@in_turn("ending", EACH[: len(endings())], nightly=EACH[len(endings()) :])
def test_every_outcome_is_reported_everywhere(run: Run, ending: tuple[str, str]) -> None:
    """In the error or receipt, to ``on_event``, in the log, to a browser, and in a pickle."""
    name, text = ending[0], TEXTS[ending[1]]
    make, script, settings, kind, verdict = endings(text)[name]
    told, log = Told(), LogFile()

    async def main() -> None:
        once = RetryPolicy(max_attempts=1, max_interruptions=0, max_outage=0)
        usual: dict[str, Any] = {"retry": once, "on_event": told}
        async with client_without_checks(Scripted(*script), **usual | settings) as client:
            try:
                await told.of(make(client))
            except Exception as error:  # noqa: BLE001 - a signer's, or a TypeError
                told.results.append(error)

    with logging_to(log), told.listening():
        # The transport of the link loads certificates in a thread, which takes real time.
        (anyio.run if name == "link" else run)(main)
    (result,) = told.results
    assert isinstance(result, kind) if kind else not isinstance(result, Exception), result
    if kind not in {None, e.MeetingError}:
        assert type(result) is kind
    check_events(told.events, result, verdict)
    check_log(told, log, verdict)
    assert unfit(told, *(["reason", "args"] if name in RAISED_BY_TRANSPORT else [])) == []
    check_secrets(told)
    for thing in [*told.results, *told.events]:
        check_pickles(thing)
    is_own = getattr(result, "status_code", None) or isinstance(result, e.RoomBusy)
    if is_own and READABLE in text:
        assert READABLE in str(result)


@pytest.mark.anyio
async def test_outcomes_and_errors_of_batches(tmp_path: Path) -> None:
    """Also those of a batch that was stopped, and of journals that cannot be used."""
    codes = {200: "SUCCESS", 409: "CONFLICT"}
    replies = iter([
        reply(status, {"status": status == 200, "msg": HOSTILE, "status_code": codes.get(status)})
        for status in (200, 400, 500, 409, 502)
    ])  # fmt: skip
    told = Told()
    rooms = FakeRooms(lambda _: next(replies))
    with told.listening():
        async with client_without_checks(rooms, on_event=told) as client:
            jobs = [job(f"room{number}") for number in range(5)]
            how: dict[str, Any] = {"journal": tmp_path / "term.db", "concurrency": 1}
            async with client.upload_many(jobs, max_wait=0, **how) as batch:
                async for outcome in batch:
                    told.results.append(outcome)
                with pytest.raises(e.JournalInUse) as in_use:
                    async with client.upload_many(jobs, **how) as second:
                        await second.wait()
            with pytest.raises(e.BatchFailed) as failed:
                batch.report.raise_for_failures()
            async with client.upload_many(jobs) as stopped:
                stopped.stop()
                told.results += (await stopped.wait()).outcomes
            (tmp_path / "no.db").write_bytes(b"no database " * 100)
            with pytest.raises(e.JournalError) as unusable:
                async with client.upload_many(jobs, journal=tmp_path / "no.db") as third:
                    await third.wait()
    assert e.BatchStopped in {type(outcome.error) for outcome in told.results}
    told.results += [in_use.value, failed.value, unusable.value]
    assert unfit(told) == []
    for thing in [*told.results, *told.events]:
        check_pickles(thing)


# --- the log -------------------------------------------------------------------------------------


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Any:
    """Collect what the library logs, at every level."""
    with caplog.at_level(logging.DEBUG, "meeting_async"):
        yield caplog


def test_the_log_needs_no_observer(log: Any) -> None:
    """What is logged of each event is above."""

    async def main() -> None:
        async with client_without_checks(Scripted(lost())) as client:
            with pytest.raises(e.UploadOutcomeUnknown):
                await upload(client)

    asyncio.run(main())
    lines = [entry for entry in log.records if entry.name == "meeting_async"]
    levels = [f"{entry.levelname} {entry.action}" for entry in lines]
    assert levels == ["DEBUG AttemptStarted", "ERROR Finished"]


def test_unusual_rooms_are_warned_about_once(log: Any) -> None:
    """Known servers refuse ids with other characters; the interface allows them."""

    async def main() -> None:
        async with client_without_checks(Scripted(then=lambda _: accepted())) as client:
            for room in ("an odd room", "an odd room", "room-01_x"):
                await upload(client, room=room)

    asyncio.run(main())
    warnings = [entry for entry in log.records if entry.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "an odd room" in warnings[0].getMessage()
