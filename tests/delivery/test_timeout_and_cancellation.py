"""A call that ends early leaves nothing behind; what the server has accepted is a receipt.

Time limits, cancellations, closed clients, and event loops that end or are several.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import httpx
import pytest
import trio

from meeting_async import Document, Event, LockPolicy, MeetingClient, UploadReceipt, Verdict
from meeting_async.errors import (
    DeadlineExceeded,
    MeetingError,
    RequestRefused,
    RoomLocksUnavailable,
    RoomNotActive,
    UploadOutcomeUnknown,
)
from meeting_async.testing import MeetingServer, run_in_virtual_time
from meeting_async.transports import HttpxTransport
from support.courses import EventRecorder, upload
from support.documents import ASKED, LARGE, SMALL
from support.fake_rooms import (
    ACTIVE,
    IN_DOCUMENT,
    KEY,
    SECRET,
    Act,
    FakeRooms,
    Scripted,
    absent,
    accepted,
    busy,
    client_without_checks,
    cut_off,
    free,
    hanging,
    is_out,
    locked_until,
    lost,
    refused,
    reply,
)
from support.interpreter import Interpreter
from support.interruptions import Interrupted, cancelled_by_scope, cancelled_natively
from support.leaving_locks import AGES, Leave, LeavingLocks, sleeping
from support.peer import RECORD
from support.sending import living_tasks
from support.tables import BACKENDS
from support.virtual_time import jump

Run = Callable[..., Any]

# --- time limits ---------------------------------------------------------------------------------


class Hanging:
    """Signs with a vault, and locks rooms with a Redis, that do not answer."""

    async def sign(self, message: bytes, /) -> Any:
        """Wait for ever."""
        await anyio.sleep_forever()

    @asynccontextmanager
    async def acquire(self, room: str, *, timeout: float | None) -> AsyncIterator[None]:
        """Wait for ever."""
        await anyio.sleep_forever()
        yield


async def endless(first: bytes = b"%PDF") -> AsyncIterator[bytes]:
    """Bring some bytes, and then nothing."""
    yield first
    await anyio.sleep_forever()


LINK = Document.from_link("https://files.test/deck.pdf")


@attrs.frozen
class Phase:
    """An upload that does not get further, and the error after its time."""

    script: list[Act]
    """What its requests meet."""
    document: Any
    how: dict[str, Any] = attrs.field(factory=dict, kw_only=True)
    """Settings of the client."""
    error: type[MeetingError] = attrs.field(default=DeadlineExceeded, kw_only=True)
    words: str = attrs.field(default="", kw_only=True)
    """Of the error."""


PHASES = {
    "reading": Phase([], "stream", words="reading the document"),
    "checking": Phase([], SMALL, how={"checks": hanging()}, words="checking the room"),
    "signing": Phase([], SMALL, how={"signer": Hanging()}),
    "locking": Phase(
        [], SMALL, how={"room_locks": Hanging()}, words="waiting for the room's lock elsewhere"
    ),
    "connecting": Phase([hanging(take=0)], SMALL, words="sending"),
    "sending": Phase([hanging(take=1)], SMALL, words="sending"),
    "before the boundary": Phase([hanging(take=IN_DOCUMENT)], SMALL),
    "slow line": Phase([free(), accepted(sending=1000)], LARGE, words="sending"),
    "asking": Phase([hanging()], ASKED, words="asking whether the room is free"),
    "waiting": Phase([busy(), busy(), hanging()], ASKED, words="asking"),
    "stream as it comes": Phase([accepted()], "declared"),
    "the reply": Phase(
        [hanging()], SMALL, error=UploadOutcomeUnknown, words="waiting for the reply"
    ),
    "the reply to a link": Phase(
        [hanging()], LINK, error=UploadOutcomeUnknown, words="waiting for the reply"
    ),
    "after a lost one": Phase(
        [lost(), hanging()],
        SMALL,
        how={"delivery": "at_least_once"},
        error=UploadOutcomeUnknown,
        words="asking",
    ),
}


@pytest.mark.both_loops
@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
def test_a_timeout_ends_every_phase(run: Run, phase: Phase) -> None:
    """Exactly in time; unknown if the closing boundary was out, and never otherwise."""
    script, document, kind = phase.script, phase.document, phase.error

    async def main() -> None:
        data = document
        if document == "stream":
            data = Document.from_stream(endless(), "deck.pdf")
        if document == "declared":
            data = Document.from_stream(endless(), "deck.pdf", size=100, replayable=False)
        named: Any = {} if isinstance(data, Document) else {"filename": "deck.pdf"}
        settings = {"preflight": True, **phase.how}
        checks, recorder = settings.pop("checks", accepted()), EventRecorder()
        transport = Scripted(*script, checks=checks)
        async with client_without_checks(transport, on_event=recorder, **settings) as client:
            with pytest.raises(kind) as caught:
                await client.upload_whiteboard_file("room01", data, timeout=5, **named)
        assert anyio.current_time() == pytest.approx(5)
        assert type(caught.value) is kind
        assert phase.words in str(caught.value)
        assert "5 s" in str(caught.value)
        assert getattr(caught.value, "room_id", None) == "room01"
        assert recorder.finished.error is caught.value
        assert (recorder.finished.verdict is Verdict.UNKNOWN) is (kind is UploadOutcomeUnknown)
        assert transport.running == 0
        if isinstance(caught.value, UploadOutcomeUnknown):
            assert (caught.value.bytes_sent is None) is (document is LINK)
            ago = 5 if len(script) == 2 else 0  # since the document was lost
            assert caught.value.lock_free_in == pytest.approx(300 - ago)

    run(main)


async def never_closed() -> AsyncIterator[bytes]:
    """Bring some bytes, and do not end when it is closed."""
    try:
        yield bytes(50_000)
        yield bytes(50_000)
    finally:
        await anyio.sleep(AGES)


@pytest.mark.both_loops
def test_a_stream_that_is_never_closed(run: Run) -> None:
    """Its cleanup gets a moment beyond the time of the call."""

    async def main() -> None:
        data = Document.from_stream(never_closed(), "a.pdf", size=100_000, replayable=False)
        async with client_without_checks(Scripted(hanging(take=20_000))) as client:
            with pytest.raises(DeadlineExceeded):
                await client.upload_whiteboard_file("room01", data, timeout=5)
            assert 5.05 < anyio.current_time() <= 5.11

    run(main)


class Drive:
    """A file on a network drive that does not answer any more; reads block their threads."""

    name = "deck.pdf"

    def __init__(self) -> None:
        self.back, self.reading = threading.Event(), 0

    def read(self, _size: int = -1) -> bytes:
        self.reading += 1
        self.back.wait(30)
        return b""

    def seek(self, *_args: int) -> int:
        return 0

    def tell(self) -> int:
        return 0


@pytest.mark.anyio
async def test_a_dead_network_drive_is_given_up() -> None:
    """With the call, in real time; and forty of them take no thread from a healthy document."""
    drive: Any = Drive()
    async with client_without_checks(FakeRooms()) as client:

        async def one() -> None:
            with pytest.raises(DeadlineExceeded):
                await upload(client, Document.from_stream(drive, "deck.pdf"), timeout=0.3)

        try:
            with anyio.fail_after(20):
                async with anyio.create_task_group() as group:
                    for _ in range(40):
                        group.start_soon(one)
                assert drive.reading
                assert (await client.upload_whiteboard_file("room02", __file__)).size
        finally:
            drive.back.set()


# --- what comes after the answer -----------------------------------------------------------------

LATEST = 5.01
"""Seconds after the answer in which a call ends: with a lock or a response that are slow to go, and
with a stream of the caller's."""
DECK = Document.from_bytes(SMALL, "deck.pdf")


@attrs.define(eq=False)
class Closing(httpx.AsyncBaseTransport):
    """Accepts every document; a function is awaited when a response is closed."""

    close: Leave
    has_answered: bool = False
    """Whether the answer was complete."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        async for _ in request.stream:
            await anyio.lowlevel.checkpoint()
        return httpx.Response(200, stream=ClosingStream(self))


@attrs.define(eq=False)
class ClosingStream(httpx.AsyncByteStream):
    """The content of an answer."""

    transport: Closing

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield RECORD
        self.transport.has_answered = True

    async def aclose(self) -> None:
        await self.transport.close()


class ClosableStream:
    """A stream of its own kind: closing it takes a while."""

    def __init__(self, close: Leave) -> None:
        self._pieces = [SMALL[:500], SMALL[500:]]
        self._close = close

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        if not self._pieces:
            raise StopAsyncIteration
        return self._pieces.pop(0)

    async def aclose(self) -> None:
        """Close it."""
        await self._close()


def sent_as_it_comes(stream: Any) -> Document:
    """Make a document that is not spooled."""
    return Document.from_stream(stream, "deck.pdf", size=len(SMALL), replayable=False)


def through_httpx(transport: Closing) -> Any:
    """Make a transport of a caller's client of httpx."""
    return HttpxTransport(httpx.AsyncClient(transport=transport))


SLOW, NEVER = sleeping(2), sleeping(AGES)
AFTER: dict[str, list[Leave]] = {
    "lock": [
        SLOW, NEVER, sleeping(1.5, OSError("gone")),
        sleeping(0, TimeoutError()), sleeping(0, RoomLocksUnavailable("boom")),
    ],
    "response": [
        SLOW, NEVER, sleeping(1.5, httpx.ReadError("no")),
        sleeping(0, RuntimeError("no")), sleeping(0, httpx.CloseError("no")),
    ],
    "stream": [SLOW, NEVER, sleeping(0, OSError("no"))],
}  # fmt: skip
"""What is slow, hangs or raises once the document is accepted."""


def settings_of(what: str, trouble: Leave) -> tuple[Any, dict[str, Any], Document]:
    """Return transport, settings and document with a trouble."""
    if what == "response":
        return through_httpx(Closing(trouble)), {}, DECK
    if what == "stream":
        return FakeRooms(), {}, sent_as_it_comes(ClosableStream(trouble))
    return FakeRooms(), {"room_locks": LeavingLocks(trouble)}, DECK


@pytest.mark.both_loops
@pytest.mark.parametrize("timeout", [None, 1.0])
@pytest.mark.parametrize(
    ("what", "trouble"), [(what, trouble) for what in AFTER for trouble in AFTER[what]]
)
def test_nothing_undoes_a_receipt(
    run: Run, what: str, trouble: Leave, timeout: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It costs a few seconds, and a warning if a lock may still be held."""

    async def main() -> None:
        transport, settings, document = settings_of(what, trouble)
        recorder = EventRecorder()
        async with client_without_checks(transport, on_event=recorder, **settings) as client:
            with anyio.move_on_after(AGES / 2):
                made = await upload(client, document, timeout=timeout)
            assert anyio.current_time() <= LATEST
        assert [attempt.verdict for attempt in made.attempts] == [Verdict.ACCEPTED]
        assert recorder.finished.verdict is Verdict.ACCEPTED
        assert recorder.finished.error is None

    run(main)
    if what == "lock" and trouble is not SLOW:
        lines = [line for line in caplog.records if vars(line).get("action") == "room_locks"]
        assert [line.levelno for line in lines] == [logging.WARNING]


@pytest.mark.both_loops
@pytest.mark.parametrize("timeout", [None, 1.0])
def test_a_refusal_does_not_wait_for_the_lock(run: Run, timeout: float | None) -> None:
    """The server's refusal is the error of the call, although the lock is never released."""

    async def main() -> None:
        recorder, locks = EventRecorder(), LeavingLocks(NEVER)
        rooms = FakeRooms(lambda _: refused())
        async with client_without_checks(rooms, room_locks=locks, on_event=recorder) as client:
            with anyio.move_on_after(AGES / 2), pytest.raises(RequestRefused) as caught:
                await upload(client, timeout=timeout)
            assert anyio.current_time() <= LATEST
        assert recorder.finished.error is caught.value

    run(main)


# --- struck at every wait ------------------------------------------------------------------------


async def pieces(count: int = 4, piece: bytes = bytes(250)) -> AsyncIterator[bytes]:
    """Yield a document, and wait before each piece and at the end."""
    yield b"%PDF-1.7"
    try:
        for _ in range(count):
            await anyio.lowlevel.checkpoint()
            yield piece
    finally:
        await anyio.lowlevel.checkpoint()


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "bytes": lambda: DECK,
    "large": lambda: Document.from_bytes(LARGE, "deck.pdf"),
    "spooled": lambda: Document.from_stream(pieces(), "deck.pdf"),
    "spooled on disk": lambda: Document.from_stream(pieces(5, bytes(300 * 1024)), "deck.pdf"),
    "not spooled": lambda: Document.from_stream(pieces(), "deck.pdf", size=1008, replayable=False),
    "not spooled, closable": lambda: sent_as_it_comes(ClosableStream(sleeping(0.01))),
    "bytes, through httpx": lambda: DECK,
}


async def leaving() -> None:
    """Take several waits to release a lock or a connection."""
    await anyio.lowlevel.checkpoint()
    await anyio.sleep(0.001)
    await anyio.lowlevel.checkpoint()


async def out_of_time(coroutine: Coroutine[Any, Any, object], number: int) -> bool:
    """Let ten seconds pass at the n-th wait; tell whether there was one."""
    run = Interrupted(coroutine, number, lambda: jump(10))
    with suppress(MeetingError):
        await run
    return run.waited >= number


STRIKES = {"task": cancelled_natively, "scope": cancelled_by_scope, "clock": out_of_time}
TASK, SCOPE = ("asyncio", "task"), ("trio", "scope")
BY = [TASK, SCOPE, ("asyncio", "scope")]
ACTS = {"busy": busy(), "cut off": cut_off(), "lost": lost()}
STRUCK = [
    *((kind, accepted(), *by) for kind, by in itertools.product(DOCUMENTS, BY)),
    *((kind, accepted(), loop, "clock") for kind, loop in zip(DOCUMENTS, itertools.cycle(BACKENDS))
      if kind != "spooled on disk"),  # that needs threads, in real time
    *(("bytes", act, *by) for act, by in itertools.product(ACTS.values(), [TASK, SCOPE])),
    *((kind, act, *TASK) for kind, act in itertools.product(["large", "spooled"], ACTS.values())),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "act", "backend", "by"), STRUCK)
def test_an_upload_cancelled_at_any_wait_leaves_nothing(
    kind: str, act: Act, backend: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The task is cancelled, or its ``timeout`` ends: no task, lock, request or spool is left.

    Event and log say accepted once the server has answered so, and unknown if a form was out
    without an answer; so does a note on the cancellation. A time limit that ends while the call
    only tidies up does not end it.
    """
    caplog.set_level(logging.DEBUG, "meeting_async")
    cancelled = asyncio.CancelledError if backend == "asyncio" else trio.Cancelled

    async def one(number: int) -> bool:
        caplog.clear()
        tasks, recorder, outcome = living_tasks(), EventRecorder(), list[object]()
        closing, is_fake = Closing(leaving), "httpx" not in kind
        rooms = FakeRooms(
            lambda visit: act if visit.number == 1 else accepted(),
            ask=lambda visit: free() if visit.kind == "probe" else accepted(),
        )
        settings: dict[str, Any] = {"room_locks": LeavingLocks(leaving), "preflight": is_fake}
        settings |= {"on_event": recorder, "delivery": "at_least_once"}
        async with client_without_checks(
            rooms if is_fake else through_httpx(closing), **settings
        ) as client:

            async def run() -> None:
                try:
                    timeout = 5 if by == "clock" else None
                    outcome.append(await upload(client, DOCUMENTS[kind](), timeout=timeout))
                    await anyio.lowlevel.checkpoint_if_cancelled()  # as whatever comes next would
                except BaseException as error:
                    outcome.append(error)
                    raise

            was_struck = await STRIKES[by](run(), number)
            assert rooms.running == 0
            assert living_tasks() == tasks
            is_accepted = closing.has_answered or any(visit.is_accepted for visit in rooms.uploads)
            is_lost = any(is_out(visit) and not visit.status for visit in rooms.uploads)
            if by == "clock":
                assert isinstance(outcome[-1], UploadReceipt) is is_accepted
            else:
                assert isinstance(outcome[-1], cancelled) is was_struck
            if recorder.events:
                finished = recorder.finished
                assert (finished.verdict is Verdict.ACCEPTED) is is_accepted
                if is_fake:
                    is_unknown = finished.verdict is Verdict.UNKNOWN
                    assert is_unknown is (is_lost and not is_accepted)
                (line,) = [one for one in caplog.records if vars(one).get("action") == "Finished"]
                assert vars(line)["verdict"] == finished.verdict
                assert finished.error is None or not is_accepted
                notes = " ".join(getattr(outcome[0], "__notes__", []))
                if isinstance(outcome[0], cancelled):
                    is_open = finished.verdict is Verdict.UNKNOWN
                    assert ("'deck.pdf' may have arrived in room 'room01'" in notes) is is_open
                    assert ("'deck.pdf' was accepted by room 'room01'" in notes) is is_accepted
                else:
                    assert "deck.pdf" not in notes
            await upload(client)  # locks must be released
        return was_struck

    number = 1
    loop = anyio.run if kind == "spooled on disk" else run_in_virtual_time
    while loop(one, number, backend=backend):
        number += 1
    assert number > 6


@pytest.mark.parametrize("raises", ["transport", "observer"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_base_exceptions_pass_through(raises: str, error: type[BaseException]) -> None:
    """KeyboardInterrupt and SystemExit are neither retried nor swallowed, wherever raised."""

    def on_event(event: Event) -> None:
        if raises == "observer":
            raise error

    async def main() -> None:
        transport = Scripted(Act(result=error("stop"), take=1) if raises == "transport" else ACTIVE)
        async with client_without_checks(transport, on_event=on_event) as client:
            await upload(client)

    with pytest.raises(error):
        run_in_virtual_time(main, backend="trio")


def test_a_client_that_is_closed_amid_a_wait(run: Run) -> None:
    """``aclose()`` with uploads that wait for their room: one clear error, nothing sent."""

    async def main() -> None:
        transport = Scripted(then=locked_until(100), checks=accepted())
        client = client_without_checks(transport, preflight=True)
        async with anyio.create_task_group() as group:

            async def one() -> None:
                with pytest.raises(RuntimeError, match="closed"):
                    await upload(client, ASKED)

            group.start_soon(one)
            await anyio.sleep(10)
            await client.aclose()
            await client.aclose()
        assert anyio.current_time() < 13
        assert transport.closed == 1
        with pytest.raises(RuntimeError, match="closed"):
            await client.get_active_room_info("room01")

    run(main)


# --- several event loops -------------------------------------------------------------------------


def test_six_threads_with_a_loop_each_and_one_client() -> None:
    """Each call succeeds, or raises one RuntimeError that says what to do; none stalls."""
    server = MeetingServer(api_key=KEY, api_secret=SECRET)
    rooms = [server.add_room(f"room{number}").room_id for number in range(6)]
    outcomes: list[object] = []

    def work(room: str) -> None:
        for _ in range(10):
            try:
                outcomes.append(asyncio.run(one(room)))
            except RuntimeError as error:
                outcomes.append(str(error))

    async def one(room: str) -> object:
        await client.get_active_room_info(room)
        return await upload(client, room=room)

    with server.run() as url:
        client = MeetingClient(url, api_key=KEY, api_secret=SECRET)
        threads = [threading.Thread(target=work, args=[room], daemon=True) for room in rooms]
        ends = time.monotonic() + 40  # nobody waits for a time limit: those are 10 s and more
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(ends - time.monotonic(), 0))
        assert len(outcomes) == 60
        assert asyncio.run(one(rooms[0]))  # once the others have ended
        asyncio.run(client.aclose())
    errors = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert all("one client for each event loop" in error for error in errors)


PROGRAM = """
import asyncio, gc, itertools, json, os, threading
import anyio, trio
from meeting_async import MeetingClient, UploadJob, transports
from support.peer import PATIENCE, Peer, reply

Transport = transports.HttpTransport
PDF = b"%PDF-1.7"
silent, pending = threading.Event(), threading.Event()

def script(connection):
    while connection.read_head():
        connection.read_body()
        if silent.is_set():
            pending.set()
            connection.closed_within(PATIENCE)
            return
        connection.send(reply())

async def call(client):
    await client.get_active_room_info("room01")

async def upload(client):
    await client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")

async def queued(client):
    await asyncio.gather(upload(client), upload(client))

async def stream(client):
    async def pieces():
        yield PDF
        pending.set()
        await asyncio.sleep(60)
    await client.upload_whiteboard_file("room01", pieces(), filename="deck.pdf")

async def batch(client):
    async with client.upload_many([UploadJob("room01", PDF, filename="deck.pdf")] * 2) as running:
        await running.wait()

async def until_pending():
    while not pending.is_set():
        await asyncio.sleep(0.001)

def abandon(call):
    "Close a loop amid a call."
    silent.set(), pending.clear()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    task = loop.create_task(call)
    loop.run_until_complete(until_pending())
    assert not task.done(), task
    loop.stop()
    loop.close()
    silent.clear()
    return task

async def use(client):
    with anyio.fail_after(20):
        await client.get_active_room_info("room01")
        receipt = await client.upload_whiteboard_file("room01", PDF, filename="next.pdf")
    return receipt.document

def one(url, function, is_kept, is_limited):
    "Close a loop amid a call, then use the client in another one."
    settings = {"max_connections": 1} if is_limited else {}
    client = MeetingClient(url, api_key="key", api_secret="secret", preflight=False, **settings)
    kept = abandon(function(client))
    if not is_kept:
        del kept
    gc.collect()
    try:
        return RUN(use, client)
    except Exception as error:
        return repr(error)

def main():
    cases = itertools.product((call, upload, queued, stream, batch), (True, False), (True, False))
    with Peer(script) as peer:
        found = {
            f"{function.__name__}, kept: {is_kept}, limited: {is_limited}":
            one(peer.url, function, is_kept, is_limited)
            for function, is_kept, is_limited in cases
            if ALL or is_kept is is_limited
        }
        print(json.dumps(found), flush=True)
        os._exit(0)  # nobody waits for what was abandoned

main()
"""

RUNNERS = {"asyncio": "asyncio.run(function(*args))", "trio": "trio.run(function, *args)"}


@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_client_outlives_a_closed_loop(
    python: Interpreter, runner: str, all_of_them: bool, tmp_path: Path
) -> None:
    """Whatever call was pending: the client works in a new loop, also with its one connection."""
    tests = Path(__file__).parents[1]
    run = f"import sys\nsys.path.insert(0, {str(tests)!r})\nALL = {all_of_them}\n"
    run += f"def RUN(function, *args):\n    return {RUNNERS[runner]}\n"
    status, stdout, stderr = python.run(run + PROGRAM, tmp_path)
    assert status == 0, stderr
    found = json.loads(stdout)
    assert found == dict.fromkeys(found, "next.pdf")


# --- activity ------------------------------------------------------------------------------------


def test_an_inactive_room_is_waited_for(run: Run) -> None:
    """Every 2 s at first, later every 30 s, and more often near the end of the timeout."""

    async def main() -> None:
        recorder = EventRecorder()
        transport = Scripted(*[absent()] * 5, accepted())
        async with client_without_checks(transport, on_event=recorder) as client:
            assert (await client.wait_until_active("room01", 60)).room_id == "room01"
            assert anyio.current_time() == pytest.approx(10)
            waits = [event for event in recorder.events if "WaitingUntilActive" in repr(event)]
            assert len(waits) == 5
            assert len({event.call for event in recorder.events}) == 1
            assert recorder.finished.call == waits[0].call > 0
        some_fail = Scripted(*[reply(502, b"<html>"), absent()] * 6, accepted())
        async with client_without_checks(some_fail) as client:
            hasty = client.with_options(lock=LockPolicy(max_wait=0))
            assert (await hasty.wait_until_active("room01", 60)).room_id == "room01"
        began = anyio.current_time()
        late = Scripted(then=lambda _: absent())
        async with client_without_checks(late) as client:
            with pytest.raises(DeadlineExceeded, match="active") as caught:
                await client.wait_until_active("room01", 2000)
            assert 1999.5 <= anyio.current_time() - began <= 2000
            assert isinstance(caught.value.__cause__, RoomNotActive)
            assert len(late.visits) < 140
            gaps = [b.began - a.began for a, b in zip(late.visits, late.visits[1:], strict=False)]
            assert 1.999 <= min(gaps[:-10]) <= max(gaps) <= 30.001
        for timeout in (1, 5, 60, 600):
            ends_at = anyio.current_time() + timeout
            at_last = Scripted(
                then=lambda _: absent() if anyio.current_time() < ends_at - 0.5 else accepted()  # noqa: B023 - at once
            )
            async with client_without_checks(at_last) as client:
                await client.wait_until_active("room01", timeout)
            assert anyio.current_time() <= ends_at

    run(main)
