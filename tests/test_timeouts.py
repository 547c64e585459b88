"""``timeout=`` limits everything, on a real clock: a call ends within 0.25 s after it."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest

from meeting_async import Document, LockPolicy, MeetingClient, UploadJob
from meeting_async.errors import DeadlineExceeded, RoomBusy, UploadOutcomeUnknown
from meeting_async.signers import SignedHeaders
from meeting_async.testing import MeetingServer
from meeting_async.transports import Reply, Request
from support.lateness import machine_delay

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

TIMEOUT = 0.5
GRACE = 0.25

Use = Callable[[MeetingClient], Awaitable[object]]


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


class Silent:
    """A transport whose replies never come."""

    async def send(self, request: Request) -> Reply:
        if not isinstance(request.body, bytes):
            async for _ in request.body:
                pass
        await anyio.sleep(60)
        raise AssertionError

    async def aclose(self) -> None:
        pass


class Forgetful:
    """A signer that never answers."""

    async def sign(self, _message: bytes) -> SignedHeaders:
        await anyio.sleep(60)
        raise AssertionError


async def _endless() -> AsyncIterator[bytes]:
    while True:
        await anyio.sleep(0.01)
        yield b"%PDF"


def slow(_event: object) -> None:
    """Observe at length."""
    time.sleep(0.1)


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


async def took(use: Callable[[], Awaitable[object]], *kinds: type[Exception]) -> float:
    """Return how long a call took that ends with one of the errors."""
    before = time.monotonic()
    with pytest.raises(kinds):
        await use()
    return time.monotonic() - before


async def check(use: Callable[[], Awaitable[object]], *kinds: type[Exception]) -> None:
    """A call ends within 0.25 s of its timeout, and of what the machine itself is late."""
    with machine_delay() as late:
        seconds = await took(use, *kinds)
    assert seconds <= TIMEOUT + GRACE + late()


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


async def test_an_endless_stream(url: str) -> None:
    """Reading the document counts."""
    async with client(url) as meeting:
        await check(
            lambda: meeting.upload_whiteboard_file(
                "free", _endless(), filename="deck.pdf", timeout=TIMEOUT
            ),
            DeadlineExceeded,
        )


async def test_a_lock_that_is_never_released(url: str) -> None:
    """Waiting for the room counts."""
    async with client(url) as meeting:
        await check(
            lambda: meeting.upload_whiteboard_file(
                "locked", b"%PDF", filename="deck.pdf", timeout=TIMEOUT
            ),
            DeadlineExceeded,
            RoomBusy,
        )


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


async def test_a_signer_that_hangs(url: str) -> None:
    """So does the signer."""
    async with client(url, signer=Forgetful()) as meeting:
        await check(
            lambda: meeting.upload_whiteboard_file(
                "free", b"%PDF", filename="deck.pdf", timeout=TIMEOUT
            ),
            DeadlineExceeded,
        )


async def test_an_observer_that_is_slow(url: str) -> None:
    """An observer that takes 0.1 s for an event does not add up over the events."""
    async with client(url, on_event=slow) as meeting:
        data = b"%PDF".ljust(20 * 1024**2)
        await check(
            lambda: meeting.upload_whiteboard_file(
                "free", data, filename="deck.pdf", timeout=TIMEOUT
            ),
            DeadlineExceeded,
            UploadOutcomeUnknown,
            RoomBusy,
        )


async def test_a_reply_that_never_comes() -> None:
    """After the document was sent, the outcome is unknown."""
    async with client("https://meet.example.com", transport=Silent()) as meeting:
        await check(
            lambda: meeting.upload_whiteboard_file(
                "free", b"%PDF", filename="deck.pdf", timeout=TIMEOUT
            ),
            UploadOutcomeUnknown,
        )
        await check(lambda: meeting.get_active_room_info("free", timeout=TIMEOUT), DeadlineExceeded)


async def test_max_wait_behind_an_upload_from_here(url: str) -> None:
    """``max_wait`` limits the queue here, too."""
    lock = LockPolicy(max_wait=TIMEOUT)
    async with client(url, lock=lock) as meeting, anyio.create_task_group() as group:
        group.start_soon(_hold, meeting)
        await anyio.sleep(0.2)
        await check(
            lambda: meeting.upload_whiteboard_file("free", b"%PDF", filename="deck.pdf"),
            RoomBusy,
        )
        group.cancel_scope.cancel()


async def _hold(meeting: MeetingClient) -> None:
    await meeting.upload_whiteboard_file("free", b"%PDF", filename="first.pdf", max_wait=30)
