"""What the server has accepted is a receipt, whatever comes after its answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import httpx
import pytest
import trio

from meeting_async import Document, Event, Finished, MeetingClient, UploadReceipt, Verdict
from meeting_async.errors import RequestRefused, RoomLocksUnavailable
from meeting_async.testing import run_in_virtual_time
from meeting_async.transports import HttpxTransport, Reply, Request
from support.fake_rooms import FakeRooms, refused
from support.fakes import PDF, EventRecorder, client_of
from support.interruptions import Interrupted
from support.leaving_locks import LeavingLocks
from support.peer import RECORD

Run = Callable[..., Any]
Leave = Callable[[], Awaitable[object]]

LATEST = 3.0
"""Seconds after the server's answer in which a call ends, with a margin for the clock."""
AGES = 10_000.0
"""Seconds after which something has hung, and goes on, so that a test that fails ends."""


def sleeping(seconds: float, error: Exception | None = None) -> Leave:
    """Make a function that takes so long and then raises, if there is an error."""

    async def leave() -> None:
        await anyio.sleep(seconds)
        if error is not None:
            raise error

    return leave


async def put(client: MeetingClient, document: Any = None, **how: Any) -> UploadReceipt:
    """Upload a document to room01."""
    given = document or Document.from_bytes(PDF, "deck.pdf")
    return await client.upload_whiteboard_file("room01", given, **how)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what the library has warned about."""
    return [
        entry
        for entry in caplog.records
        if entry.name == "meeting_async" and entry.levelno == logging.WARNING
    ]


def lines_in(caplog: pytest.LogCaptureFixture, action: str) -> list[Any]:
    """Return the lines about an event."""
    return [entry for entry in caplog.records if vars(entry).get("action") == action]


CANCELLED: dict[str, type[BaseException]] = {
    "asyncio": asyncio.CancelledError,
    "trio": trio.Cancelled,
}


# --- the caller's own locks ----------------------------------------------------------------------

LEAVING: dict[str, tuple[Leave, bool]] = {
    "slow": (sleeping(2), False),
    "very slow": (sleeping(100), True),
    "never": (sleeping(AGES), True),
    "raises": (sleeping(0, RuntimeError("the lock is gone")), True),
    "raises what a time limit raises": (sleeping(0, TimeoutError()), True),
    "raises what locks raise": (sleeping(0, RoomLocksUnavailable("no answer")), True),
    "raises later": (sleeping(1.5, OSError("the lock is gone")), True),
}
"""What happens when the lock is released, and whether there is something to warn about."""


@pytest.mark.both_loops
@pytest.mark.parametrize("timeout", [None, 1.0])
@pytest.mark.parametrize(("leave", "is_failure"), LEAVING.values(), ids=LEAVING)
def test_releasing_the_lock_cannot_undo_a_receipt(
    run: Run,
    leave: Leave,
    is_failure: bool,
    timeout: float | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A lock that is released late, never or with an error costs 3 s at most and a warning."""

    async def main() -> None:
        rooms, recorder = FakeRooms(), EventRecorder()
        locks: Any = LeavingLocks(leave)
        async with client_of(rooms, room_locks=locks, on_event=recorder, preflight=False) as client:
            with anyio.move_on_after(AGES / 2):
                receipt = await put(client, timeout=timeout)
            assert anyio.current_time() <= LATEST + 0.01
        assert receipt.document == "deck.pdf"
        assert [attempt.verdict for attempt in receipt.attempts] == [Verdict.ACCEPTED]
        assert recorder.finished.verdict is Verdict.ACCEPTED
        assert recorder.finished.error is None

    run(main)
    if is_failure:
        assert warnings_in(caplog)


@pytest.mark.both_loops
@pytest.mark.parametrize("timeout", [None, 1.0])
def test_a_refusal_does_not_wait_for_the_lock(run: Run, timeout: float | None) -> None:
    """The server's refusal is the error of the call, although the lock is never released."""

    async def main() -> None:
        recorder = EventRecorder()
        locks: Any = LeavingLocks(sleeping(AGES))
        rooms = FakeRooms(lambda _: refused())
        async with client_of(rooms, room_locks=locks, on_event=recorder, preflight=False) as client:
            with anyio.move_on_after(AGES / 2), pytest.raises(RequestRefused) as caught:
                await put(client, timeout=timeout)
            assert anyio.current_time() <= LATEST + 0.01
        assert recorder.finished.error is caught.value

    run(main)


@pytest.mark.both_loops
@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), TimeoutError(), RoomLocksUnavailable("boom")]
)
def test_an_observer_that_raises_cannot_undo_a_receipt(run: Run, error: Exception) -> None:
    """Whatever an observer raises at every event, the call returns its receipt."""

    def on_event(event: Event) -> None:
        raise error

    async def main() -> None:
        async with client_of(FakeRooms(), on_event=on_event, preflight=False) as client:
            receipt = await put(client, timeout=5)
        assert receipt.attempts[-1].verdict is Verdict.ACCEPTED

    run(main)


# --- a caller's client of httpx ------------------------------------------------------------------


@attrs.define(eq=False)
class Closing(httpx.AsyncBaseTransport):
    """Accepts every document; a function is awaited when a response is closed."""

    close: Leave
    answered: Callable[[], None] = lambda: None
    """Called when the answer is complete."""

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
        self.transport.answered()

    async def aclose(self) -> None:
        await self.transport.close()


CLOSING: dict[str, Leave] = {
    "slow": sleeping(2),
    "very slow": sleeping(100),
    "never": sleeping(AGES),
    "raises": sleeping(0, RuntimeError("no")),
    "raises an error of httpx": sleeping(0, httpx.CloseError("no")),
    "raises later": sleeping(1.5, httpx.ReadError("no")),
}


@pytest.mark.both_loops
@pytest.mark.parametrize("timeout", [None, 1.0])
@pytest.mark.parametrize("close", CLOSING.values(), ids=CLOSING)
def test_closing_a_response_cannot_undo_a_receipt(
    run: Run, close: Leave, timeout: float | None
) -> None:
    """Through a client of the caller's, a response that cannot be closed costs 3 s at most."""

    async def main() -> None:
        transport: Any = HttpxTransport(httpx.AsyncClient(transport=Closing(close)))
        async with client_of(transport, preflight=False) as client:
            with anyio.move_on_after(AGES / 2):
                receipt = await put(client, timeout=timeout)
            assert anyio.current_time() <= LATEST + 0.01
        assert receipt.attempts[-1].verdict is Verdict.ACCEPTED

    run(main)


# --- a time limit, a cancellation ----------------------------------------------------------------


class ClosableStream:
    """A stream of its own kind: closing it takes a while."""

    def __init__(self, close: Leave) -> None:
        self._pieces = [PDF[:500], PDF[500:]]
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


async def pieces(close: Leave = anyio.lowlevel.checkpoint) -> AsyncIterator[bytes]:
    """Yield a document and wait at the end."""
    try:
        yield PDF[:500]
        yield PDF[500:]
    finally:
        await close()


async def many(pieces: int = 40) -> AsyncIterator[bytes]:
    """Yield more than is kept in memory."""
    yield b"%PDF-1.7"
    for _ in range(pieces):
        await anyio.lowlevel.checkpoint()
        yield bytes(64 * 1024)


DOCUMENTS: dict[str, Callable[[], Any]] = {
    "bytes": lambda: Document.from_bytes(PDF, "deck.pdf"),
    "spooled": lambda: Document.from_stream(pieces(), "deck.pdf"),
    "spooled on disk": lambda: Document.from_stream(many(), "deck.pdf"),
    "not spooled": lambda: Document.from_stream(
        pieces(), "deck.pdf", size=len(PDF), replayable=False
    ),
    "not spooled, closable": lambda: Document.from_stream(
        ClosableStream(sleeping(0.01)), "deck.pdf", size=len(PDF), replayable=False
    ),
}


async def leaving() -> None:
    """Take several waits to release a lock."""
    await anyio.lowlevel.checkpoint()
    await anyio.sleep(0.001)
    await anyio.lowlevel.checkpoint()


class Answering(FakeRooms):
    """Rooms that tell when they have accepted a document."""

    def __init__(self, answered: Callable[[], None]) -> None:
        super().__init__()
        self._answered = answered

    async def send(self, request: Request, /) -> Reply:
        """Answer."""
        found = await super().send(request)
        self._answered()
        return found


@attrs.define(eq=False)
class Struck:
    """An upload that something strikes at its n-th wait after the server's answer."""

    number: int
    strike: Callable[[], object]
    recorder: EventRecorder = attrs.field(factory=EventRecorder)
    receipt: UploadReceipt | None = None
    error: BaseException | None = None
    _run: Interrupted[None] = attrs.field(init=False)

    def answered(self) -> None:
        """Count from now on."""
        if not self._run.number:
            self._run.number = self._run.waited + self.number

    async def upload(self, client: MeetingClient, document: Any, **how: Any) -> None:
        """Upload and keep what comes of it."""
        self._run = Interrupted(self._upload(client, document, **how), 0, self.strike)
        await self._run

    async def _upload(self, client: MeetingClient, document: Any, **how: Any) -> None:
        try:
            receipt = await put(client, document, on_event=self.recorder, **how)
            await anyio.lowlevel.checkpoint_if_cancelled()  # as whatever comes next would
            self.receipt = receipt
        except BaseException as error:
            self.error = error
            raise

    @property
    def was_struck(self) -> bool:
        """Tell whether there were so many waits."""
        return self._run.waited >= self._run.number


async def cancelled(by: str, number: int, upload: Callable[[Struck], Awaitable[None]]) -> Struck:
    """Cancel an upload by ``task.cancel()``, or by a scope."""
    scope = anyio.CancelScope()
    tasks: list[asyncio.Task[None]] = []
    struck = Struck(number, lambda: tasks[0].cancel() if tasks else scope.cancel())

    async def main() -> None:
        await upload(struck)

    if by == "task":
        tasks.append(asyncio.create_task(main()))
        with contextlib.suppress(asyncio.CancelledError):
            await tasks[0]
    else:
        with scope:
            await main()
    assert struck.recorder.finished.verdict is Verdict.ACCEPTED
    assert struck.recorder.finished.error is None
    return struck


each_cancellation = pytest.mark.parametrize(
    ("backend", "by"), [("asyncio", "task"), ("asyncio", "scope"), ("trio", "scope")]
)


@each_cancellation
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_cancelled_after_the_answer(
    kind: str, backend: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The task is cancelled; event and log say accepted, and the room is in no doubt."""
    caplog.set_level(logging.DEBUG, "meeting_async")

    async def one(number: int) -> bool:
        caplog.clear()

        async def upload(struck: Struck) -> None:
            rooms, locks = Answering(struck.answered), LeavingLocks(leaving)
            settings: dict[str, Any] = {"room_locks": locks, "preflight": False}
            async with client_of(rooms, **settings) as client:
                try:
                    await struck.upload(client, DOCUMENTS[kind]())
                finally:
                    with anyio.CancelScope(shield=True):
                        await put(client)
                    kinds.append([visit.kind for visit in rooms.visits])

        kinds: list[list[str]] = []
        struck = await cancelled(by, number, upload)
        assert kinds == [["upload", "upload"]]  # the second did not ask
        assert [line.verdict for line in lines_in(caplog, "Finished")] == ["accepted"] * 2
        if struck.was_struck:
            assert isinstance(struck.error, CANCELLED[backend])
        else:
            assert struck.receipt is not None
        return struck.was_struck

    number = 1
    loop = anyio.run if kind == "spooled on disk" else run_in_virtual_time  # it needs threads
    while loop(one, number, backend=backend):
        number += 1
    assert number > 3  # at least the waits of the locks


@each_cancellation
def test_cancelled_while_a_response_is_closed(backend: str, by: str) -> None:
    """The same through a client of httpx: when the whole answer is there, it is accepted."""

    async def one(number: int) -> bool:
        async def upload(struck: Struck) -> None:
            closing = httpx.AsyncClient(transport=Closing(leaving, struck.answered))
            transport: Any = HttpxTransport(closing)
            async with client_of(transport, preflight=False) as client:
                await struck.upload(client, DOCUMENTS["bytes"]())

        return (await cancelled(by, number, upload)).was_struck

    number = 1
    while run_in_virtual_time(one, number, backend=backend):
        number += 1
    assert number > 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", sorted(DOCUMENTS.keys() - {"spooled on disk"}))
def test_a_time_limit_after_the_answer(kind: str, backend: str) -> None:
    """A ``timeout`` that ends while the call only tidies up does not end it: it is a receipt."""

    async def one(number: int) -> bool:
        struck = Struck(number, lambda: advance(10))
        locks: Any = LeavingLocks(leaving)
        rooms = Answering(struck.answered)
        async with client_of(rooms, room_locks=locks, preflight=False) as client:
            await struck.upload(client, DOCUMENTS[kind](), timeout=5)
        assert struck.receipt is not None
        assert struck.recorder.finished.verdict is Verdict.ACCEPTED
        return struck.was_struck

    number = 1
    while run_in_virtual_time(one, number, backend=backend):
        number += 1
    assert number > 3


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_time_limit_while_a_response_is_closed(backend: str) -> None:
    """The same through a client of httpx."""

    async def one(number: int) -> bool:
        struck = Struck(number, lambda: advance(10))
        transport: Any = HttpxTransport(
            httpx.AsyncClient(transport=Closing(leaving, struck.answered))
        )
        async with client_of(transport, preflight=False) as client:
            await struck.upload(client, DOCUMENTS["bytes"](), timeout=5)
        assert struck.receipt is not None
        assert struck.recorder.finished.verdict is Verdict.ACCEPTED
        return struck.was_struck

    number = 1
    while run_in_virtual_time(one, number, backend=backend):
        number += 1
    assert number > 1


def advance(seconds: float) -> None:
    """Let time pass in which the loop does nothing."""
    try:
        loop: Any = asyncio.get_running_loop()
    except RuntimeError:
        clock: Any = trio.lowlevel.current_clock()
        clock.jump(seconds)
        return
    now = loop.time
    loop.time = lambda: now() + seconds


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_time_limit_while_a_spool_is_deleted(backend: str) -> None:
    """The same for a document that is in a temporary file, which a thread deletes."""

    async def one(number: int) -> bool:
        struck = Struck(number, lambda: time.sleep(1.1))  # the loop stands still
        locks: Any = LeavingLocks(leaving)
        rooms = Answering(struck.answered)
        async with client_of(rooms, room_locks=locks, preflight=False) as client:
            await struck.upload(client, DOCUMENTS["spooled on disk"](), timeout=1)
        assert struck.receipt is not None
        return struck.was_struck

    number = 1
    while anyio.run(one, number, backend=backend):
        number += 1
    assert number > 3


@pytest.mark.both_loops
@pytest.mark.parametrize("timeout", [None, 1.0])
@pytest.mark.parametrize("close", [sleeping(2), sleeping(AGES), sleeping(0, OSError("no"))])
def test_a_stream_that_cannot_be_closed_cannot_undo_a_receipt(
    run: Run, close: Leave, timeout: float | None
) -> None:
    """Closing has 5 s, as everywhere, and is no part of the time limit."""

    async def main() -> None:
        stream, rooms = ClosableStream(close), FakeRooms()
        async with client_of(rooms, preflight=False) as client:
            document = Document.from_stream(stream, "deck.pdf", size=len(PDF), replayable=False)
            with anyio.move_on_after(AGES / 2):
                receipt = await put(client, document, timeout=timeout)
            assert anyio.current_time() <= 5.01
        assert receipt.attempts[-1].verdict is Verdict.ACCEPTED
        assert [visit.is_accepted for visit in rooms.uploads] == [True]

    run(main)


@pytest.mark.both_loops
def test_a_cancellation_by_the_last_event(run: Run) -> None:
    """An observer that cancels its own task when the call has finished finds it accepted."""

    async def main() -> None:
        finished: list[Finished] = []

        def on_event(event: Event) -> None:
            if isinstance(event, Finished):
                finished.append(event)
                scope.cancel()

        async with client_of(FakeRooms(), preflight=False, on_event=on_event) as client:
            with anyio.CancelScope() as scope:
                await put(client)
                await anyio.lowlevel.checkpoint()
                pytest.fail("not cancelled")
        assert [event.verdict for event in finished] == [Verdict.ACCEPTED]

    run(main)
