"""``timeout=`` limits everything, on a real clock: a call ends within 0.25 s after it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest

from meeting_async import Document, MeetingClient, UploadJob
from meeting_async.errors import DeadlineExceeded, RoomBusy
from meeting_async.testing import MeetingServer

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

TIMEOUT = 0.3
GRACE = 0.25


class Drive:
    """A file on a network drive that does not answer any more."""

    name = "deck.pdf"

    def __init__(self) -> None:
        self.back = threading.Event()

    def read(self, _size: int = -1) -> bytes:
        self.back.wait(30)
        return b""

    def seek(self, *_args: int) -> int:
        self.back.wait(30)
        return 0

    def tell(self) -> int:
        return 0


@pytest.fixture
def drive() -> Iterator[Drive]:
    """Provide a drive; its threads end with the test."""
    drive = Drive()
    yield drive
    drive.back.set()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Run a server with a room that stays locked, one that is not active, and a free one."""
    server = MeetingServer(processing_seconds=60)
    server.add_room("free")
    locked = server.add_room("locked")
    server.add_room("inactive", active=False)
    with server.run() as address:
        locked.lock(300)
        yield address


@contextlib.contextmanager
def machine_delay() -> Iterator[Callable[[], float]]:
    """Yield a function that says how much too late threads were woken meanwhile, in seconds.

    On a quiet machine that is a millisecond. A few wake-ups in a row may each be as late.
    """
    largest, stopped = 0.0, threading.Event()

    def watch() -> None:
        nonlocal largest
        while not stopped.is_set():
            before = time.monotonic()
            time.sleep(0.005)
            largest = max(largest, time.monotonic() - before - 0.005)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: 4 * largest
    finally:
        stopped.set()


async def took(use: Callable[[], Awaitable[object]], *kinds: type[Exception]) -> float:
    """Return how long a call took that ends with one of the errors."""
    before = time.monotonic()
    with pytest.raises(kinds):
        await use()
    return time.monotonic() - before


async def check(use: Callable[[], Awaitable[object]], *kinds: type[Exception]) -> None:
    """A call ends within 0.25 s of its timeout, and of what the machine itself is late.

    The best of three counts: what outlasts its limit does so each time.
    """
    for _ in range(3):
        with machine_delay() as late:
            seconds = await took(use, *kinds)
        if seconds <= TIMEOUT + GRACE + late():
            return
    pytest.fail(f"it took {seconds:.2f} s")


def client(url: str, **settings: Any) -> MeetingClient:
    """Make a client."""
    if "signer" not in settings:
        settings.update(api_key="devkey", api_secret="devsecret")
    return MeetingClient(url, **settings)


@pytest.mark.parametrize("kind", ["raw", "stream"])
async def test_a_dead_network_drive(url: str, drive: Drive, kind: str) -> None:
    """A read that never returns is given up with the call."""
    document: Any = drive
    if kind == "stream":
        document = Document.from_stream(drive, "deck.pdf")
    async with client(url) as meeting:
        await check(
            lambda: meeting.upload_whiteboard_file("free", document, timeout=TIMEOUT),
            DeadlineExceeded,
        )


async def test_many_dead_drives_do_not_delay_a_healthy_document(url: str, drive: Drive) -> None:
    """Reads that were given up take no thread from others."""
    async with client(url) as meeting, anyio.create_task_group() as group:
        for _ in range(40):
            dead = Document.from_stream(drive, "deck.pdf")
            group.start_soon(_ignored, meeting, dead)
        await anyio.sleep(0.3)
        await check(
            lambda: meeting.upload_whiteboard_file("locked", __file__, max_wait=0), RoomBusy
        )


async def _ignored(meeting: MeetingClient, dead: Document) -> None:
    with pytest.raises(DeadlineExceeded):
        await meeting.upload_whiteboard_file("free", dead, timeout=0.2)


async def test_a_room_that_never_becomes_active(url: str) -> None:
    """So does waiting until the room is active, alone and in a batch."""
    async with client(url) as meeting:
        await check(lambda: meeting.wait_until_active("inactive", TIMEOUT), DeadlineExceeded)
        jobs = [UploadJob("inactive", b"%PDF", filename="deck.pdf")]
        with machine_delay() as late:
            before = time.monotonic()
            async with meeting.upload_many(jobs, wait_active=60, timeout=TIMEOUT) as batch:
                report = await batch.wait()
            seconds = time.monotonic() - before
    assert not report.accepted
    assert seconds <= TIMEOUT + GRACE + late()
