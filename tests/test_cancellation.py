"""Cancellation at every await: what is left, what the next call meets, what the event says."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import hashlib
import itertools
import random
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterator
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from _fakes import EventRecorder
from _peer import Connection, Peer, descriptors, reply
from _wires import (
    KIB,
    MIB,
    WIRES,
    Struck,
    cancelled_by_scope,
    cancelled_natively,
    client_of,
    living_tasks,
    meeting,
    nothing_left,
    on_each_wire,
    peer_on,
    until,
)
from meeting_async import BytesSent, Document, Finished, MeetingClient, Queued
from meeting_async.errors import (
    MeetingError,
    RoomBusy,
    UploadInterrupted,
    UploadOutcomeUnknown,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

CONTENT = b"%PDF-1.7\n" + bytes(range(256)) * 1200
"""More than one chunk, and more than fits the peer's receive buffer."""
LARGE = CONTENT + bytes(32 * MIB)
DEAF = 1.0
"""Seconds for which the peer does not read; a close that stands behind unread data is not seen."""
HELD = 0.02
"""Seconds for which an answer is held back, so that the client surely waits for it."""
TIMES = 500
"""Cancellations after random times."""


# --- the peer ------------------------------------------------------------------------------------


@attrs.define
class Rooms:
    """A script that answers, or does what the room's name says; it counts complete forms."""

    forms: collections.Counter[str] = attrs.field(factory=collections.Counter)
    digests: dict[str, str] = attrs.field(factory=dict)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def __call__(self, connection: Connection) -> None:
        """Serve one connection."""
        while connection.read_head():
            (room,) = connection.request.values(b"Room-Id") or [b"json"]
            behaviour = room.partition(b"-")[0]
            if behaviour == b"deaf":
                connection.closed_within(DEAF)
                return
            start = self._take_form(connection, room.decode(), slowly=behaviour == b"slow")
            if behaviour == b"silent":
                connection.drain()
                return
            if behaviour == b"dripping":
                connection.drip(itertools.repeat(b"x"), 0.005)
                return
            if b"held" in start:
                connection.closed_within(HELD)
            connection.send(reply())

    def _take_form(self, connection: Connection, room: str, *, slowly: bool) -> bytes:
        request = connection.request
        while len(request.body) < request.length:
            if slowly:
                time.sleep(0.005)
            connection.read_body(min(64 * KIB, request.length - len(request.body)))
        start, digest = bytes(request.body[:500]), hashlib.sha256(request.body).hexdigest()
        with self._lock:
            self.forms[room] += 1
            self.digests[room] = digest
        request.body.clear()
        return start


# --- what must hold after each -------------------------------------------------------------------


@attrs.define
class Watch:
    """Looks after each cancelled call at what it left behind."""

    client: MeetingClient
    peer: Peer
    rooms: Rooms
    recorder: EventRecorder
    before: collections.Counter[str]
    tasks: int
    verdicts: dict[str, str] = attrs.field(factory=dict)

    async def check(self, room: str, *, cancelled: bool = True, leaks: bool = True) -> str:
        """Assert what must hold after an upload to ``room``, and return its verdict."""
        verdict = self._verdict(room)
        self.verdicts[room] = verdict
        assert verdict in ({"cancelled", "unknown"} if cancelled else {"accepted"}), room
        if leaks:
            where = f" by what was {verdict} ({room})"
            await nothing_left(self.peer, self.before, self.tasks, where)
        self.recorder.events.clear()
        return verdict

    def _verdict(self, room: str) -> str:
        mine = [event for event in self.recorder.events if event.room_id == room]
        if not mine:
            return "cancelled"  # while the document was measured: the call had not begun
        end = mine[-1]
        assert isinstance(end, Finished), f"{room}: {end} is no end"
        assert end.error is None, f"{room}: {end}"
        if end.verdict == "unknown":
            out = [e for e in mine if isinstance(e, BytesSent) and e.sent == e.total]
            assert out, f"{room} is called unknown, though the document was not out: {mine}"
        return end.verdict

    async def check_room(self, room: str) -> None:
        """Assert that the next upload to a room is admitted, unless the last may be in it."""
        upload = self.client.upload_whiteboard_file(room, CONTENT, filename="next.pdf")
        if self.verdicts[room] != "unknown":
            with anyio.fail_after(5):
                await upload
        else:
            with pytest.raises(RoomBusy, match="unknown outcome"):
                await upload
        self.recorder.events.clear()

    def check_forms(self, followed: Container[str] = ()) -> None:
        """Assert that no form arrived whose upload is said to have been cut off in time."""
        for room, verdict in self.verdicts.items():
            first = {"cancelled": 0, "unknown": 1, "accepted": 1}[verdict]
            more = room in followed and verdict != "unknown"
            forms = self.rooms.forms[room]
            assert forms <= first + more, f"{room} was {verdict}, and got {forms} forms"


@contextlib.asynccontextmanager
async def watched(wire: str) -> Any:
    """Open a client that has been used once, and a watch over it."""
    rooms, recorder = Rooms(), EventRecorder()
    async with meeting(wire, rooms, on_event=recorder) as (client, peer):
        await client.upload_whiteboard_file("warm-up", CONTENT, filename="deck.pdf")
        await until(peer.idle, "the connection of an upload is still open")
        recorder.events.clear()
        yield Watch(client, peer, rooms, recorder, descriptors(peer), living_tasks())
        await until(lambda: peer.open <= 1, lambda: f"{peer.open} connections are open")
    gc.collect()


@pytest.fixture(autouse=True)
def _no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves a temporary file."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield
    assert list(directory.iterdir()) == []


@pytest.fixture(params=["bytes", "path"])
def document(request: pytest.FixtureRequest, tmp_path: Path) -> Document:
    """Make a document of each kind."""
    if request.param == "bytes":
        return Document.from_bytes(CONTENT, "held.pdf")
    path = tmp_path / "held.pdf"
    path.write_bytes(CONTENT)
    return Document.from_path(path)


# --- at every await ------------------------------------------------------------------------------

Canceller = Callable[[Coroutine[Any, Any, object], int], Awaitable[Struck]]


async def upload_cancelled_everywhere(
    wire: str, document: Document, canceller: Canceller
) -> dict[str, str]:
    """Cancel uploads around each of their waits; return the verdict of each."""
    async with watched(wire) as watch:
        complete = 0
        for number in itertools.count(1):
            room = f"room-{number}"
            upload = watch.client.upload_whiteboard_file(room, document)
            struck = await canceller(upload, number)
            await watch.check(room, cancelled=struck.cancelled)
            await watch.check_room(room)
            complete += not struck.waited
            if complete == 3:  # the next may still wait once more than the last
                break
        watch.check_forms(followed=watch.verdicts)
        assert sum(watch.rooms.forms.values()) >= number, "the next uploads did not arrive"
        return dict(watch.verdicts)


def check_course(verdicts: dict[str, str]) -> None:
    """Assert that uploads were struck before and behind the boundary.

    How often an upload waits differs a little from one to the next, so the order does, too.
    """
    first, *_, last = verdicts.values()
    assert (first, last) == ("cancelled", "accepted"), verdicts
    seen = set(verdicts.values())
    # An answer that is there at once leaves no moment between boundary and answer to cancel in.
    assert {"cancelled", "accepted"} <= seen <= {"cancelled", "unknown", "accepted"}, verdicts


@on_each_wire
async def test_an_upload_cancelled_at_every_await(wire: str, document: Document) -> None:
    """Nothing is left, the room is free or shut as the verdict says, and that verdict is true."""
    check_course(await upload_cancelled_everywhere(wire, document, cancelled_by_scope))


@on_each_wire
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_upload_whose_task_is_cancelled_at_every_await(
    wire: str, document: Document, anyio_backend: str
) -> None:
    """``Task.cancel`` strikes once and breaks through shields; the same holds."""
    check_course(await upload_cancelled_everywhere(wire, document, cancelled_natively))


async def call_cancelled_everywhere(wire: str, canceller: Canceller, *, fresh: bool) -> None:
    """Cancel calls around each of their waits, on new connections or on a kept one."""
    async with watched(wire) as watch:
        complete = 0
        for number in itertools.count(1):
            await watch.client.call("room/x", {"number": 0})
            if fresh:
                await drop_idle(watch)
            struck = await canceller(watch.client.call("room/x", {"held": number}), number)
            end = watch.recorder.events[-1]
            assert isinstance(end, Finished)
            expected = "cancelled" if struck.cancelled else "accepted"
            assert end.verdict == expected, f"await {number}: {end}"
            where = f" by a call that was {expected} (await {number})"
            await nothing_left(watch.peer, watch.before, watch.tasks, where, kept=1)
            with anyio.fail_after(5):
                await watch.client.call("room/x", {"number": -number})
            await until(lambda: watch.peer.open <= 1, f"connections are left{where}")
            complete += not struck.waited
            if complete == 3:
                break
        assert number > 3


async def drop_idle(watch: Watch) -> None:
    """Make the peer close what the client keeps, so that the next call connects."""
    for sock in list(watch.peer._open):
        with contextlib.suppress(OSError):
            sock.shutdown(2)
    await until(watch.peer.idle, "the peer did not close")
    await anyio.sleep(0.005)


@on_each_wire
@pytest.mark.parametrize("fresh", [True, False], ids=["connecting", "kept"])
async def test_a_call_cancelled_at_every_await(wire: str, fresh: bool) -> None:
    """The next call works, and no more than one connection is kept."""
    await call_cancelled_everywhere(wire, cancelled_by_scope, fresh=fresh)


@on_each_wire
@pytest.mark.parametrize("fresh", [True, False], ids=["connecting", "kept"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_call_whose_task_is_cancelled_at_every_await(
    wire: str, fresh: bool, anyio_backend: str
) -> None:
    """``Task.cancel`` strikes once and breaks through shields; the same holds."""
    await call_cancelled_everywhere(wire, cancelled_natively, fresh=fresh)


# --- after random times --------------------------------------------------------------------------


@on_each_wire
async def test_cancelled_five_hundred_times(wire: str) -> None:
    """Uploads and calls in turn; every 50th time the next ones work; nothing is left."""
    delays = random.Random(3)
    async with watched(wire) as watch:
        typical = await seconds_of_an_upload(watch)
        struck: collections.Counter[str] = collections.Counter()
        for number in range(TIMES):
            room = f"room-{number}"
            with anyio.move_on_after(1.3 * typical * delays.random() ** 3) as scope:
                if number % 2:
                    await watch.client.call("room/x")
                else:
                    await watch.client.upload_whiteboard_file(room, CONTENT, filename="held.pdf")
            if number % 2 == 0:
                cancelled = scope.cancelled_caught
                struck[await watch.check(room, cancelled=cancelled, leaks=False)] += 1
            if number % 50 == 0:
                if room in watch.verdicts:
                    await watch.check_room(room)
                await watch.client.call("room/x")
        where = f" by {TIMES} cancelled calls"
        await nothing_left(watch.peer, watch.before, watch.tasks, where, kept=1)
    assert min(struck["cancelled"], struck["unknown"]) >= 5, struck
    watch.check_forms(followed={f"room-{number}" for number in range(0, TIMES, 50)})


async def seconds_of_an_upload(watch: Watch) -> float:
    """Measure an upload that nobody disturbs; the middle one of five."""
    times = []
    for number in range(5):
        started = time.monotonic()
        await watch.client.upload_whiteboard_file(f"free-{number}", CONTENT, filename="held.pdf")
        times.append(time.monotonic() - started)
    watch.recorder.events.clear()
    return sorted(times)[2]


# --- at known moments ----------------------------------------------------------------------------


@on_each_wire
@pytest.mark.parametrize(
    ("room", "size", "verdict"),
    [
        ("deaf-1", len(LARGE), "cancelled"),
        ("slow-1", len(LARGE), "cancelled"),
        ("silent-1", 1000, "unknown"),
        ("dripping-1", 1000, "unknown"),
    ],
)
async def test_the_event_says_whether_the_form_was_out(
    wire: str, room: str, size: int, verdict: str
) -> None:
    """Amid the body: cancelled, the room is free. Amid the reply: unknown, the room is shut."""
    async with watched(wire) as watch:
        document = Document.from_bytes(memoryview(LARGE)[:size], "deck.pdf")
        started = time.monotonic()
        with anyio.move_on_after(0.1) as scope:
            await watch.client.upload_whiteboard_file(room, document)
        assert scope.cancelled_caught
        assert time.monotonic() - started < 1, "a cancelled upload does not end"
        assert await watch.check(room) == verdict
        shut = pytest.raises(RoomBusy) if verdict == "unknown" else contextlib.nullcontext()
        with shut, anyio.move_on_after(0.05):
            await watch.client.upload_whiteboard_file(room, document)
        watch.check_forms()


@on_each_wire
async def test_cancelled_uploads_leave_the_line(wire: str) -> None:
    """The one at the front, and one in the middle: the last has its turn, and arrives once."""
    rooms, recorder = Rooms(), EventRecorder()
    scopes = [anyio.CancelScope() for _ in range(3)]
    settings = {"on_event": recorder, "lock": None}
    async with meeting(wire, rooms, **settings) as (client, peer):

        async def run(number: int) -> None:
            content = LARGE if number == 0 else CONTENT
            with scopes[number]:
                await client.upload_whiteboard_file("slow-1", content, filename=f"{number}.pdf")

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for number in range(3):
                    group.start_soon(run, number)
                    await until(lambda: peer.requests, "nothing was sent")
                await until(lambda: len(recorder.of(Queued)) == 2, "they do not queue")
                scopes[1].cancel()
                await anyio.sleep(0.02)
                scopes[0].cancel()
        ends = {event.document: event.verdict for event in recorder.of(Finished)}
        assert ends == {"0.pdf": "cancelled", "1.pdf": "cancelled", "2.pdf": "accepted"}
        assert rooms.forms == {"slow-1": 1}


@on_each_wire
async def test_half_of_eight_uploads_are_cancelled(wire: str) -> None:
    """At different moments; the other half arrives whole, and nothing is left of any."""
    rooms, recorder = Rooms(), EventRecorder()
    contents = [b"%PDF-" + bytes([number]) * (8 * MIB + number) for number in range(8)]
    receipts: dict[int, Any] = {}
    async with meeting(wire, rooms, on_event=recorder) as (client, peer):
        scopes = [anyio.CancelScope() for _ in range(8)]

        async def run(number: int) -> None:
            with scopes[number]:
                receipts[number] = await client.upload_whiteboard_file(
                    f"slow-{number}", contents[number], filename="deck.pdf"
                )

        with anyio.fail_after(15):
            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(run, number)
                await until(lambda: len(peer.requests) == 8, "they are not sent at once")
                for number in range(1, 8, 2):
                    await anyio.sleep(0.01)
                    scopes[number].cancel()
        await until(peer.idle, "a connection is still open")
    assert sorted(receipts) == [0, 2, 4, 6]
    assert rooms.forms == {f"slow-{number}": 1 for number in receipts}
    assert len(set(rooms.digests.values())) == 4
    verdicts = {event.room_id: event.verdict for event in recorder.of(Finished)}
    assert verdicts == {
        f"slow-{number}": "cancelled" if number % 2 else "accepted" for number in range(8)
    }


# --- closing the client --------------------------------------------------------------------------


@on_each_wire
async def test_closing_while_uploads_run(wire: str) -> None:
    """Each ends soon, and with the truth: cut off before the boundary, unknown behind it."""
    rooms, recorder, ends = Rooms(), EventRecorder(), {}
    async with meeting(wire, rooms, on_event=recorder) as (client, peer):

        async def run(room: str, size: int) -> None:
            document = Document.from_bytes(memoryview(LARGE)[:size], "deck.pdf")
            try:
                await client.upload_whiteboard_file(room, document)
            except MeetingError as error:
                ends[room] = error

        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                for number in range(3):
                    group.start_soon(run, f"deaf-{number}", len(LARGE))
                    group.start_soon(run, f"silent-{number}", 1000)
                await until(lambda: len(peer.requests) == 6, "they are not sent at once")
                await until(lambda: len(rooms.forms) == 3, "the small ones are not out")
                started = time.monotonic()
                await client.aclose()
        assert time.monotonic() - started < 3
        with pytest.raises(RuntimeError, match="closed"):
            await client.call("room/x")
    for room, error in ends.items():
        kind = UploadInterrupted if room.startswith("deaf") else UploadOutcomeUnknown
        assert isinstance(error, kind), f"{room}: {error!r}"
    verdicts = {event.room_id: event.verdict for event in recorder.of(Finished)}
    assert verdicts == {f"deaf-{n}": "partial" for n in range(3)} | {
        f"silent-{n}": "unknown" for n in range(3)
    }


@on_each_wire
async def test_closing_while_calls_run(wire: str) -> None:
    """Each ends soon with one of our errors; idle connections are closed, too."""

    def script(connection: Connection) -> None:
        while connection.read_head():
            connection.read_body()
            if b'"silent"' in connection.request.body:
                connection.drain()
                return
            connection.send(reply())

    ends: list[MeetingError] = []
    async with meeting(wire, script) as (client, peer):

        async def run() -> None:
            with pytest.raises(MeetingError) as caught:
                await client.call("room/x", {"room_id": "silent"})
            ends.append(caught.value)

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(client.call, "room/x")
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(run)
                await until(lambda: len(peer.requests) == 6, "they are not sent at once")
                await anyio.sleep(0.02)
                await client.aclose()
        await until(peer.idle, "a connection is still open")
    assert len(ends) == 3


def test_the_loop_is_closed_amid_an_upload() -> None:
    """``asyncio.run`` cancels what is left and closes: no descriptor and no warning is left."""
    rooms = Rooms()

    async def main(peer: Peer, wire: str) -> None:
        client = client_of(peer, wire)
        tasks = [
            asyncio.create_task(client.upload_whiteboard_file(room, LARGE, filename="deck.pdf"))
            for room in ("deaf-1", "slow-1")
        ]
        await until(lambda: len(peer.requests) == len(tasks), "nothing was sent")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.aclose()

    for wire in WIRES:
        with peer_on(wire, rooms) as peer:
            before = descriptors(peer)
            asyncio.run(main(peer, wire))
            gc.collect()
            assert not descriptors(peer) - before
