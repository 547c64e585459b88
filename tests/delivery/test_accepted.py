"""What the server has accepted is a receipt, whatever comes after its answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import httpx
import pytest
import trio

from meeting_async import (
    Document,
    Event,
    Finished,
    MeetingClient,
    UploadJob,
    UploadReceipt,
    Verdict,
)
from meeting_async.errors import RequestRefused, RoomLocksUnavailable
from meeting_async.testing import run_in_virtual_time
from meeting_async.transports import HttpxTransport, Reply, Request
from support.fake_rooms import FakeRooms, refused
from support.fakes import PDF, EventRecorder, client_of, upload
from support.interruptions import Interrupted
from support.leaving_locks import LeavingLocks
from support.peer import RECORD

Run = Callable[..., Any]
Leave = Callable[[], Awaitable[object]]

LATEST, CLOSED = 3.01, 5.01
"""Seconds after the answer in which a call ends: with a lock or a response that are slow to go, and
with a stream of the caller's."""
AGES = 10_000.0
"""Seconds after which something has hung, and goes on, so that a test that fails ends."""


DECK = Document.from_bytes(PDF, "deck.pdf")


async def upload_in_a_batch(client: MeetingClient, document: Document, **how: Any) -> Any:
    """Upload it as the only job of a batch."""
    async with client.upload_many([UploadJob("room01", document)], **how) as batch:
        (outcome,) = (await batch.wait()).outcomes
    assert (outcome.status, outcome.error) == ("accepted", None)
    return outcome


# --- what comes after the answer -----------------------------------------------------------------


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


def sent_as_it_comes(stream: Any) -> Document:
    """Make a document that is not spooled."""
    return Document.from_stream(stream, "deck.pdf", size=len(PDF), replayable=False)


def sleeping(seconds: float, error: Exception | None = None) -> Leave:
    """Make a function that takes so long and then raises, if there is an error."""

    async def leave() -> None:
        await anyio.sleep(seconds)
        if error is not None:
            raise error

    return leave


def raising(error: Exception) -> Callable[[Event], None]:
    """Make an observer that raises at every event."""

    def on_event(event: Event) -> None:
        raise error

    return on_event


def httpx_client(*how: Any) -> Any:
    """Make a transport of a caller's client of httpx."""
    return HttpxTransport(httpx.AsyncClient(transport=Closing(*how)))


SLOW, VERY_SLOW, NEVER = sleeping(2), sleeping(100), sleeping(AGES)
BOOM = [RuntimeError("boom"), TimeoutError(), RoomLocksUnavailable("boom")]
AFTER: dict[str, list[Any]] = {
    "lock": [
        SLOW, VERY_SLOW, NEVER, sleeping(1.5, OSError("gone")), *[sleeping(0, e) for e in BOOM]
    ],
    "response": [
        SLOW, VERY_SLOW, NEVER, sleeping(1.5, httpx.ReadError("no")),
        sleeping(0, RuntimeError("no")), sleeping(0, httpx.CloseError("no")),
    ],
    "stream": [SLOW, NEVER, sleeping(0, OSError("no"))],
    "observer": BOOM,
}  # fmt: skip
"""What is slow, hangs or raises once the document is accepted."""


def settings_of(what: str, trouble: Any) -> tuple[Any, dict[str, Any], Document]:
    """Return transport, settings and document with a trouble."""
    if what == "response":
        return httpx_client(trouble), {}, DECK
    if what == "stream":
        return FakeRooms(), {}, sent_as_it_comes(ClosableStream(trouble))
    name = {"lock": "room_locks", "observer": "on_event"}[what]
    made = LeavingLocks(trouble) if what == "lock" else raising(trouble)
    return FakeRooms(), {name: made}, DECK


@pytest.mark.both_loops
@pytest.mark.parametrize("timeout", [None, 1.0])
@pytest.mark.parametrize("upload", [upload, upload_in_a_batch], ids=["client", "batch"])
@pytest.mark.parametrize(
    ("what", "trouble"), [(what, trouble) for what in AFTER for trouble in AFTER[what]]
)
def test_nothing_undoes_a_receipt(
    run: Run,
    what: str,
    trouble: Any,
    upload: Any,
    timeout: float | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It costs a few seconds, and a warning if a lock may still be held."""

    async def main() -> None:
        transport, settings, document = settings_of(what, trouble)
        recorder = EventRecorder()
        async with client_of(transport, **{"on_event": recorder, **settings}) as client:
            with anyio.move_on_after(AGES / 2):
                made = await upload(client, document, timeout=timeout)
            assert anyio.current_time() <= (CLOSED if what == "stream" else LATEST)
        assert [attempt.verdict for attempt in made.attempts] == [Verdict.ACCEPTED]
        if what != "observer":
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
        async with client_of(rooms, room_locks=locks, on_event=recorder) as client:
            with anyio.move_on_after(AGES / 2), pytest.raises(RequestRefused) as caught:
                await upload(client, timeout=timeout)
            assert anyio.current_time() <= LATEST
        assert recorder.finished.error is caught.value

    run(main)


# --- a time limit, a cancellation ----------------------------------------------------------------


async def pieces() -> AsyncIterator[bytes]:
    """Yield a document and wait at the end."""
    try:
        yield PDF[:500]
        yield PDF[500:]
    finally:
        await anyio.lowlevel.checkpoint()


async def many(pieces: int = 40) -> AsyncIterator[bytes]:
    """Yield more than is kept in memory."""
    yield b"%PDF-1.7"
    for _ in range(pieces):
        await anyio.lowlevel.checkpoint()
        yield bytes(64 * 1024)


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "bytes": lambda: DECK,
    "spooled": lambda: Document.from_stream(pieces(), "deck.pdf"),
    "spooled on disk": lambda: Document.from_stream(many(), "deck.pdf"),
    "not spooled": lambda: sent_as_it_comes(pieces()),
    "not spooled, closable": lambda: sent_as_it_comes(ClosableStream(sleeping(0.01))),
    "bytes, through httpx": lambda: DECK,
}


async def leaving() -> None:
    """Take several waits to release a lock or a connection."""
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

    async def upload(self, kind: str, **how: Any) -> None:
        """Upload and keep what comes of it; then upload again, as locks must be released."""
        through_httpx = kind.endswith("httpx")
        transport = httpx_client(leaving, self.answered) if through_httpx else None
        locks, rooms = LeavingLocks(leaving), transport or Answering(self.answered)
        async with client_of(rooms, room_locks=locks, on_event=self.recorder) as client:
            self._run = Interrupted(self._upload(client, kind, **how), 0, self.strike)
            try:
                await self._run
            finally:
                finished = self.recorder.finished
                assert (finished.verdict, finished.error) == (Verdict.ACCEPTED, None)
                with anyio.CancelScope(shield=True):
                    await upload(client)
                if not through_httpx:
                    assert [visit.kind for visit in rooms.visits] == ["upload"] * 2

    async def _upload(self, client: MeetingClient, kind: str, **how: Any) -> None:
        try:
            receipt = await upload(client, DOCUMENTS[kind](), **how)
            await anyio.lowlevel.checkpoint_if_cancelled()  # as whatever comes next would
            self.receipt = receipt
        except BaseException as error:
            self.error = error
            raise

    @property
    def was_struck(self) -> bool:
        """Tell whether there were so many waits."""
        return self._run.waited >= self._run.number


def at_every_wait(kind: str, backend: str, one: Callable[[int], Awaitable[bool]]) -> None:
    """Strike at the first wait, the second … until there are no more."""
    number = 1
    loop = anyio.run if kind == "spooled on disk" else run_in_virtual_time  # it needs threads
    while loop(one, number, backend=backend):
        number += 1
    assert number > 3  # at least the waits of the locks


BY = [("asyncio", "task"), ("asyncio", "scope"), ("trio", "scope"),
      ("asyncio", "clock"), ("trio", "clock")]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "backend", "by"),
    [
        (kind, *how)
        for kind, how in itertools.product(DOCUMENTS, BY)
        if kind != "spooled on disk" or "clock" not in how  # that needs threads, in real time
    ],
)
def test_struck_after_the_answer(
    kind: str, backend: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the task is cancelled or its ``timeout`` ends: event and log say accepted.

    The room is released. A time limit that ends while the call only tidies up does not end it.
    """
    caplog.set_level(logging.DEBUG, "meeting_async")
    expected = asyncio.CancelledError if backend == "asyncio" else trio.Cancelled
    how = {"timeout": 5} if by == "clock" else {}

    async def one(number: int) -> bool:
        caplog.clear()
        scope, tasks = anyio.CancelScope(), list[asyncio.Task[None]]()
        strikes: dict[str, Callable[[], object]] = {
            "task": lambda: tasks[0].cancel(),  # noqa: PLW0108 - made below
            "scope": scope.cancel,
            "clock": lambda: advance(10),
        }
        struck = Struck(number, strikes[by])
        if by == "task":
            tasks.append(asyncio.create_task(struck.upload(kind)))
            with contextlib.suppress(asyncio.CancelledError):
                await tasks[0]
        else:
            with scope:
                await struck.upload(kind, **how)
        ends = [line for line in caplog.records if vars(line).get("action") == "Finished"]
        assert [vars(line)["verdict"] for line in ends] == ["accepted"] * 2
        is_cancelled = struck.was_struck and by != "clock"
        assert is_cancelled is isinstance(struck.error, expected) is (not struck.receipt)
        return struck.was_struck

    at_every_wait(kind, backend, one)


@pytest.mark.both_loops
def test_a_cancellation_by_the_last_event(run: Run) -> None:
    """An observer that cancels its own task when the call has finished finds it accepted."""

    async def main() -> None:
        finished: list[Finished] = []

        def on_event(event: Event) -> None:
            if isinstance(event, Finished):
                finished.append(event)
                scope.cancel()

        async with client_of(FakeRooms(), on_event=on_event) as client:
            with anyio.CancelScope() as scope:
                await upload(client)
                await anyio.lowlevel.checkpoint()
                pytest.fail("not cancelled")
        assert [event.verdict for event in finished] == [Verdict.ACCEPTED]

    run(main)
