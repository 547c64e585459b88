"""Errors, events, receipts and outcomes reach other processes with all that they know.

Process pools and job queues pickle them. Some queues keep only class and arguments of an error, and
make it again with ``type(error)(*error.args)``.
"""

from __future__ import annotations

import inspect
import json
import logging
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from meeting_async import ActiveRoom, Document, MeetingClient, RetryPolicy, UploadReceipt
from meeting_async import errors as e
from meeting_async.transports import Reply, Request
from support.fake_rooms import (
    Act,
    FakeRooms,
    Visit,
    accepted,
    cut_off,
    failing,
    hanging,
    job,
    lost,
    reply,
)
from support.loops import in_turn
from support.telling import Told

PDF = b"%PDF-1.7".ljust(1000, b"\n")
HOSTILE = "ende für alle \n\r\u2028\x1b[31m\ud800\x00\u202e " + "x" * 5000
"""What a server may write into any of its texts."""

Make = Callable[[MeetingClient], Any]


def put(document: Any = PDF, room: Any = "room01", **how: Any) -> Make:
    """Make an upload."""
    if not isinstance(document, Document):
        how = {"filename": "deck.pdf", **how}
    return lambda client: client.upload_whiteboard_file(room, document, **how)


def call(path: str = "room/create") -> Make:
    """Make a call."""
    return lambda client: client.call(path, {"room_id": "room01"})


def own(status: int, code: str = HOSTILE) -> Act:
    """Reply with the server's own record, and with a header."""
    record = {"status": False, "msg": HOSTILE, "status_code": code}
    headers = ((b"Content-Type", b"application/json"), (b"X-Request-Id", "r-ü\x1b".encode()))
    return attrs.evolve(accepted(), result=Reply(status, headers, json.dumps(record).encode()))


async def _short() -> AsyncIterator[bytes]:
    yield PDF


def changed(client: MeetingClient) -> Any:
    """Upload a stream that is shorter than it was said to be."""
    document = Document.from_stream(_short(), "deck.pdf", size=2000, replayable=False)
    return client.upload_whiteboard_file("room01", document)


class NoLocks:
    """Room locks that do not answer."""

    @asynccontextmanager
    async def acquire(self, room: str, *, timeout: float | None) -> AsyncIterator[None]:
        if room:
            raise e.RoomLocksUnavailable("nobody answers")
        yield


class Refusing(FakeRooms):
    """Rooms whose links are refused by the server they lead to."""

    async def send(self, request: Request, /) -> Reply:
        """Answer."""
        if request.method == "HEAD":
            return Reply(200, ((b"Content-Type", b"text/html; " + HTML),))
        return await super().send(request)


LINK = Document.from_link("https://93.184.215.14/deck.pdf?token=hush")
HOST = "meet.test:443"
HTML = HOSTILE.encode("utf-8", "replace")

CASES: dict[type[e.MeetingError], tuple[Make, list[Act], dict[str, Any]]] = {
    e.InvalidInput: (put(room=" room01"), [], {}),
    e.ConfigurationError: (put(max_wait=-1), [], {}),
    e.DocumentEmpty: (put(b""), [], {}),
    e.DocumentTooLarge: (put(), [], {"max_size_whiteboard_file": 999}),
    e.DocumentTypeRefused: (put(b"\x89PNG\r\n\x1a\n"), [], {}),
    e.DocumentUnreadable: (lambda c: c.upload_whiteboard_file("room01", "gone.pdf"), [], {}),
    e.DocumentChanged: (changed, [accepted()], {}),
    e.LinkRefused: (put(LINK), [], {"check_link": True}),
    e.RequestRefused: (put(), [own(400)], {}),
    e.AuthenticationFailed: (put(), [own(401, "INVALID_API_KEY")], {}),
    e.RoomNotFound: (put(), [own(400, "ROOM_NOT_FOUND")], {}),
    e.RoomNotActive: (put(), [own(400, "ROOM_NOT_ACTIVE")], {}),
    e.DocumentRefused: (put(), [own(413)], {}),
    e.Throttled: (put(), [own(429)], {}),
    e.ServerFailed: (call(), [own(500)], {}),
    e.ProcessingFailed: (put(), [own(500)], {}),
    e.UnexpectedReply: (call(), [reply(200, HTML)], {}),
    e.RoomBusy: (put(max_wait=0), [own(409)], {}),
    e.DeadlineExceeded: (put(timeout=0.05), [hanging(take=1)], {}),
    e.RoomLocksUnavailable: (put(), [], {"room_locks": NoLocks()}),
    e.ConnectFailed: (put(), [failing(e.ConnectFailed(HOSTILE, HOST), take=0)], {}),
    e.ResourceExhausted: (put(), [failing(e.ResourceExhausted("no more", HOST), take=0)], {}),
    e.ConnectionLost: (call(), [lost()], {}),
    e.ReplyTooLarge: (call(), [failing(e.ReplyTooLarge(HOSTILE, HOST))], {}),
    e.TransferTimeout: (call(), [failing(e.TransferTimeout(HOSTILE, HOST))], {}),
    e.UploadInterrupted: (put(), [cut_off()], {}),
    e.UploadOutcomeUnknown: (put(), [reply(502, HTML)], {}),
}
"""How each error of a call comes about."""

OF_BATCHES: set[type[e.MeetingError]] = {
    e.JournalError,
    e.JournalInUse,
    e.BatchStopped,
    e.BatchFailed,
}
OF_QUEUES: set[type[e.MeetingError]] = {e.UploadPutBack, e.UploadFailed}
"""These need a database."""

BRANCHES = {e.MeetingError, e.DocumentError, e.ReplyError, e.TransportError}
"""Classes of which nothing is raised itself."""


async def provoke(kind: type[e.MeetingError]) -> Told:
    """Let an error of a class be raised, and return what was told with it."""
    make, script, settings = CASES[kind]
    told, acts = Told(), iter(script)

    def ask(visit: Visit) -> Act:
        return accepted() if "getActiveRoomInfo" in visit.request.url else next(acts)

    async with MeetingClient(
        "https://meet.test",
        api_key="key-0f-the-app",
        api_secret="secret",
        transport=Refusing(lambda _: next(acts), ask=ask),
        retry=RetryPolicy(max_attempts=1, max_interruptions=0, max_outage=0),
        on_event=told,
        **settings,
    ) as client:
        await told.of(make(client))
    assert type(told.results[0]) is kind
    return told


@pytest.fixture(autouse=True)
def _log_goes_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest cannot report what is no text."""
    monkeypatch.setattr(logging.getLogger("meeting_async"), "propagate", False)


def test_every_class_is_here() -> None:
    """A new error says how it comes about."""
    kinds = {
        kind
        for kind in vars(e).values()
        if inspect.isclass(kind) and issubclass(kind, e.MeetingError)
    }
    assert kinds == {*CASES, *OF_BATCHES, *OF_QUEUES, *BRANCHES}


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


def check_made_again(error: Any) -> None:
    """Hold what can be made of class and arguments against the error."""
    other = type(error)(*error.args)
    assert type(other) is type(error)
    for field in attrs.fields(type(error)):
        assert getattr(other, field.name) == getattr(error, field.name), field.name
    check_pickles(other)


each_error = in_turn("kind", [(kind.__name__, kind) for kind in CASES])


@pytest.mark.anyio
@each_error
async def test_errors_and_their_events_are_pickled(kind: type[e.MeetingError]) -> None:
    """With every fact, whatever the server has written."""
    told = await provoke(kind)
    for thing in [*told.results, *told.events]:
        check_pickles(thing)


@pytest.mark.anyio
@each_error
async def test_errors_are_made_again_from_their_arguments(kind: type[e.MeetingError]) -> None:
    """``type(error)(*error.args)`` has every fact that the class declares."""
    check_made_again((await provoke(kind)).results[0])


@pytest.mark.anyio
@in_turn("call", ["upload", "room"])
async def test_results_are_pickled(call: str) -> None:
    """A receipt and a room, after replies with texts of all kinds."""
    record = {"status": True, "msg": HOSTILE, "status_code": HOSTILE, "room": {
        "room_info": {"room_title": HOSTILE, "metadata": json.dumps({"a": HOSTILE})}
    }}  # fmt: skip
    told, rooms = Told(), FakeRooms(lambda _: reply(200, record), ask=lambda _: reply(200, record))
    async with MeetingClient(
        "https://meet.test", api_key="key", api_secret="s", transport=rooms, on_event=told
    ) as client:
        make = put() if call == "upload" else lambda c: c.get_active_room_info("room01")
        result = await told.of(make(client))
    assert isinstance(result, UploadReceipt if call == "upload" else ActiveRoom)
    for thing in [*told.results, *told.events]:
        check_pickles(thing)


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_outcomes_and_errors_of_batches_are_pickled(tmp_path: Path) -> None:
    """Also those of a batch that was stopped, and of journals that cannot be used."""
    good = reply(200, {"status": True, "msg": HOSTILE, "status_code": HOSTILE})
    acts = [good, own(400), own(500), own(409), reply(502, HTML)]
    told, replies = Told(), iter(acts)
    rooms = FakeRooms(lambda _: next(replies))
    async with MeetingClient(
        "https://meet.test", api_key="key", api_secret="s", transport=rooms, on_event=told
    ) as client:
        jobs = [job(f"room{number}") for number in range(len(acts))]
        journal = tmp_path / "term.db"
        async with client.upload_many(
            jobs, max_wait=0, concurrency=1, journal=journal, on_event=told
        ) as batch:
            async for outcome in batch:
                told.results.append(outcome)
            with pytest.raises(e.JournalInUse) as in_use:
                async with client.upload_many(jobs, journal=journal) as second:
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
    raised = [in_use.value, failed.value, unusable.value]
    raised += [outcome.error for outcome in told.results if outcome.error is not None]
    assert {type(error) for error in raised} >= OF_BATCHES
    for thing in [*told.results, *told.events, *raised]:
        check_pickles(thing)
    for error in raised:
        check_made_again(error)
