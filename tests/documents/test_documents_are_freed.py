"""When its upload has ended, however it ended, nothing keeps a document alive."""

from __future__ import annotations

import gc
import sys
import tempfile
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from documents.sources import KINDS, START, Make, OnlyReads, Opened
from meeting_async import Document, MeetingClient, RetryPolicy, UploadJob
from meeting_async.errors import MeetingError
from meeting_async.signers import SignedHeaders
from meeting_async.transports import HttpxTransport, Request
from support import fake_rooms as acts
from support.fake_rooms import Act, FakeRooms, Visit
from support.leaks import descriptors, temporary_files
from support.peer import Peer, discarding
from support.sending import until
from support.tables import in_turn

pytestmark = [
    pytest.mark.usefixtures("log_is_not_kept"),
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # That is about files which nobody closes: here they are dropped on purpose.
    pytest.mark.filterwarnings("ignore:.*unclosed file:pytest.PytestUnraisableExceptionWarning"),
]

KIB, MIB = 1024, 1024**2
SIZES = [64 * KIB, 256 * KIB + 1, MIB + 1]
"""Bytes: where a document is read in one piece or in several, and where a stream is spooled."""


# --- documents -----------------------------------------------------------------------------------


class Bytes(bytearray):
    """A buffer to which there can be weak references."""


def document_of_a_file(stack: AsyncExitStack, data: bytes, path: Path) -> Opened:
    """Make a document around a file."""
    file = KINDS["BytesIO"](stack, data, path).value
    return Opened(Document.from_file(file, filename="deck.pdf"), b"", file)


OWN: dict[str, Make] = {
    "bytearray": lambda _stack, data, _path: Opened(Bytes(data), b""),
    "document of bytes": lambda _stack, data, _path: Opened(
        Document.from_bytes(data, "deck.pdf"), b""
    ),
    "document of a file": document_of_a_file,
}
USUAL = [
    "BytesIO", "open file", "NamedTemporaryFile", "SpooledTemporaryFile in memory",
    "SpooledTemporaryFile on disk", "Starlette", "werkzeug", "async generator",
    "asynchronous file", "document of bytes", "document of a file", "link",
]  # fmt: skip
each_kind = in_turn("kind", USUAL, nightly=["bytearray", "stream sent as it comes"])


def make(kind: str, size: int) -> tuple[list[Any], list[weakref.ref[Any]]]:
    """Make a document, and weak references to what it is made of; nothing closes it."""
    path, data = Path(tempfile.mkdtemp()) / "deck.pdf", bytes(START) + b"%PDF".ljust(size)
    path.write_bytes(data)
    found = {**KINDS, **OWN}[kind](AsyncExitStack(), data, path)
    parts = [part for part in (found.value, found.inside) if part is not None]
    return [found.value], [weakref.ref(part) for part in parts]


# --- endings -------------------------------------------------------------------------------------


class Forgetful(FakeRooms):
    """Rooms that keep nothing of what they were sent."""

    def _visit(self, request: Request) -> Visit:
        visit = super()._visit(request)
        self.visits.clear()
        return visit


class BrokenSigner:
    """The caller's own code, which raises."""

    def sign(self, _message: bytes, /) -> SignedHeaders:
        """Raise."""
        raise LookupError("the vault is closed")


ENDINGS: dict[str, Callable[[], Act]] = {
    "accepted": acts.accepted,
    "no connection": acts.unreachable,
    "cut off": acts.cut_off,
    "unknown": acts.lost,
    "a bug": lambda: acts.failing(ZeroDivisionError()),
    "a signer's bug": acts.accepted,
    "refused": acts.refused,
    "busy": acts.busy,
    "failed": acts.conversion_failed,
    "throttled": lambda: acts.reply(429, acts.record("NAME")),
    "timeout": lambda: acts.hanging(take=1),
    "cancelled": lambda: acts.hanging(take=1),
    "too large": acts.accepted,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "a signer's bug": {"signer": BrokenSigner()},
    "too large": {"max_size_whiteboard_file": 1000},
}
HOW: dict[str, dict[str, Any]] = {"busy": {"max_wait": 0}, "timeout": {"timeout": 0.01}}


def client_of(ending: str = "accepted") -> MeetingClient:
    """Make a client that gives up at the first failure."""
    once = RetryPolicy(max_attempts=1, max_interruptions=0, max_outage=0)
    rooms = Forgetful(lambda _: ENDINGS[ending]())
    return acts.client_of(rooms, retry=once, **SETTINGS.get(ending, {}))


async def upload(
    client: MeetingClient, made: list[Any], room: str = "room01", **how: Any
) -> Exception | None:
    """Upload the last that is in a list; nobody but the library has a reference to it then."""
    if not isinstance(made[-1], Document):
        how = {"filename": "deck.pdf", **how}
    try:
        await client.upload_whiteboard_file(room, made.pop(), **how)
    except (MeetingError, LookupError) as error:
        return error
    return None


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Neither descriptors nor temporary files of the library are left at the end."""
    before = descriptors()
    yield
    await until(lambda: descriptors() <= before)
    assert temporary_files() == []


@pytest.fixture
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# --- single uploads ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [SIZES, pytest.param([30 * MIB], marks=pytest.mark.nightly)], ids=["usual", "largest"]
)
@each_kind
@pytest.mark.usefixtures("_without_collector")
async def test_an_accepted_document_is_gone(kind: str, sizes: list[int]) -> None:
    """It dies with the caller's last reference, without waiting for the garbage collector."""
    async with client_of() as client:
        for size in sizes:
            async with nothing_left():
                made, gone = make(kind, size)
                assert await upload(client, made) is None
                await until(lambda gone=gone: not any(ref() for ref in gone))  # type: ignore[misc]


@pytest.mark.both_loops
@pytest.mark.usefixtures("_without_collector")
async def test_documents_that_are_accepted_at_last_are_gone() -> None:
    """Also after a second and a third attempt."""
    gone: list[weakref.ref[Any]] = []
    endings = {1: "busy", 2: "throttled"}
    rooms = Forgetful(lambda visit: ENDINGS[endings.get(visit.number, "accepted")]())

    async def at_last(client: MeetingClient, kind: str) -> None:
        made, refs = make(kind, 64 * KIB)
        gone.extend(refs)
        assert await upload(client, made, room=kind) is None

    async with nothing_left(), acts.client_of(rooms, retry=RetryPolicy(initial_delay=0.25)) as own:
        async with anyio.create_task_group() as group:
            for kind in ("BytesIO", "open file", "async generator", "document of bytes"):
                group.start_soon(at_last, own, kind)
        await until(lambda: not any(ref() for ref in gone))


async def test_a_stream_without_weak_references_is_gone() -> None:
    """It is known as used only during its upload."""
    async with nothing_left(), client_of() as client:
        made = [OnlyReads(b"%PDF")]
        gone = weakref.ref(made[0].file)
        assert await upload(client, made) is None
        await until(lambda: gone() is None)


@in_turn("kind", ["BytesIO", "SpooledTemporaryFile on disk", "async generator"])
@pytest.mark.parametrize("is_borrowed", [False, True], ids=["own", "borrowed"])
async def test_an_accepted_document_is_gone_from_connections(kind: str, is_borrowed: bool) -> None:
    """Neither a connection nor a client of yours keeps what went through it."""
    with Peer(discarding) as peer:
        async with httpx.AsyncClient(trust_env=False, verify=False) as borrowed:
            settings: dict[str, Any] = {"api_key": "key-0f-the-app", "api_secret": "s3cret"}
            if is_borrowed:
                settings["transport"] = HttpxTransport(borrowed)
            async with MeetingClient(peer.url, **settings) as client:
                for size in (256 * KIB, MIB + 1):
                    made, gone = make(kind, size)
                    assert await upload(client, made) is None
                    assert await _still_there({f"{size} bytes": gone}) == []


async def _fail(
    clients: AsyncExitStack, kind: str, ending: str, size: int
) -> tuple[Any, list[weakref.ref[Any]]]:
    client = await clients.enter_async_context(client_of(ending))
    made, gone = make(kind, size)
    with anyio.move_on_after(0.01 if ending == "cancelled" else None):
        return await upload(client, made, **HOW.get(ending, {})), gone
    return None, gone


def without_tracebacks(error: BaseException | None) -> None:
    """Forget where an error came from, as a pickle of it does."""
    if error is not None:
        error.__traceback__ = None
        without_tracebacks(error.__cause__)
        without_tracebacks(error.__context__)


async def _still_there(gone: dict[str, list[weakref.ref[Any]]]) -> list[str]:
    """Tell which endings keep something of their documents alive."""
    gc.collect()
    found: list[str] = []

    def look() -> bool:
        found[:] = [ending for ending, refs in gone.items() if any(ref() for ref in refs)]
        return not found

    with suppress(TimeoutError):
        await until(look)
    return found


@each_kind
async def test_a_document_that_failed_is_gone(kind: str) -> None:
    """Also when the caller keeps the client, and the error without its traceback."""
    errors: dict[str, Exception | None] = {}
    gone: dict[str, list[weakref.ref[Any]]] = {}
    async with nothing_left(), AsyncExitStack() as clients:
        for ending in ENDINGS:
            errors[ending], gone[ending] = await _fail(clients, kind, ending, 256 * KIB)
            without_tracebacks(errors[ending])
        assert await _still_there(gone) == []
    succeeded = [ending for ending, error in errors.items() if error is None]
    too_large = ["too large"] * (kind == "link")  # it has no size
    assert succeeded == ["accepted", "cancelled", *too_large]


@pytest.mark.parametrize("given", ["bytes", "document"])
@in_turn("ending", ["accepted", "unknown"])
async def test_nothing_refers_to_bytes(given: str, ending: str) -> None:
    """Bytes are sent as they are, and have as many references afterwards as before."""
    data = b"%PDF".ljust(256 * KIB)
    gc.collect()
    before = sys.getrefcount(data)
    async with client_of(ending) as client:
        made: list[Any] = [data if given == "bytes" else Document.from_bytes(data, "deck.pdf")]
        error = await upload(client, made, **HOW.get(ending, {}))
    assert (error is None) == (ending == "accepted")
    without_tracebacks(error)
    gc.collect()
    assert sys.getrefcount(data) == before


# --- batches -------------------------------------------------------------------------------------


async def _jobs(
    kind: str, sizes: list[int], gone: list[weakref.ref[Any]]
) -> AsyncGenerator[UploadJob]:
    for number, size in enumerate(sizes):
        made, refs = await anyio.to_thread.run_sync(make, kind, size)
        gone += refs
        name = None if isinstance(made[0], Document) else f"{number}.pdf"
        yield UploadJob(f"room{number % 3}", made.pop(), filename=name)


@pytest.mark.parametrize("ending", ["accepted", "refused", "unknown"])
@in_turn(
    "kind",
    ["BytesIO", "NamedTemporaryFile", "async generator"],
    nightly=["Starlette", "document of bytes"],
)
async def test_the_documents_of_a_batch_are_gone(kind: str, ending: str) -> None:
    """Also those that failed, while the report of the batch is kept with all its errors."""
    gone: list[weakref.ref[Any]] = []
    async with nothing_left():
        async with client_of(ending) as client:
            sizes = [256 * KIB, MIB + 1] * 2
            async with client.upload_many(_jobs(kind, sizes, gone)) as batch:
                report = await batch.wait()
            assert {outcome.delivered for outcome in report.outcomes} == {ending == "accepted"}
            gc.collect()
            await until(lambda: not any(ref() for ref in gone))
