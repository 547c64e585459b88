"""When its upload has ended, however it ended, nothing keeps a document alive."""

from __future__ import annotations

import gc
import io
import json
import logging
import sys
import tempfile
import tracemalloc
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import httpx
import pytest
from starlette.datastructures import UploadFile as StarletteUpload
from werkzeug.datastructures import FileStorage

from meeting_async import Document, MeetingClient, RetryPolicy, UploadJob
from meeting_async.errors import ConnectFailed, ConnectionLost, MeetingError
from meeting_async.signers import HmacSigner, SignedHeaders
from meeting_async.transports import HttpxTransport, Reply, Request
from support import sources  # also because it configures Django
from support.leaks import descriptors, temporary_files, until
from support.loops import in_turn
from support.peer import Peer, discarding

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # That is about files which nobody closes: here they are dropped on purpose.
    pytest.mark.filterwarnings("ignore:.*unclosed file:pytest.PytestUnraisableExceptionWarning"),
]

KIB, MIB = 1024, 1024**2
SIZES = [64 * KIB, 256 * KIB - 1, 256 * KIB, 256 * KIB + 1, MIB + 1]
"""Bytes: where a document is read in one piece or in several, and where a stream is spooled."""

PATIENCE = 1.0
"""Seconds for a thread to end."""


# --- documents -----------------------------------------------------------------------------------


class Bytes(bytearray):
    """A buffer to which there can be weak references."""


def _path(data: bytes) -> Path:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(data)
    return Path(file.name)


def _filled(file: Any, data: bytes) -> Any:
    file.write(data)
    file.seek(0)
    return file


def _spooled(data: bytes, limit: int = 1 << 30) -> Any:
    return _filled(tempfile.SpooledTemporaryFile(limit), data)


async def _pieces(data: bytes) -> AsyncGenerator[bytes]:
    for piece in sources.pieces(data):
        yield piece


def _around(wrap: Callable[[Any], Any], make: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Make something around something else, of which no reference may stay either."""

    def both(data: bytes) -> list[Any]:
        inside = make(data)
        return [wrap(inside), inside]

    return both


def _once(stream: Any, size: int) -> Document:
    return Document.from_stream(stream, "deck.pdf", size=size, replayable=False)


KINDS: dict[str, Callable[[bytes], Any]] = {
    "bytearray": Bytes,
    "BytesIO": io.BytesIO,
    "open file": lambda data: _path(data).open("rb"),
    "NamedTemporaryFile": lambda data: _filled(tempfile.NamedTemporaryFile(), data),  # noqa: SIM115 - dropped on purpose
    "SpooledTemporaryFile in memory": _spooled,
    "SpooledTemporaryFile on disk": lambda data: _spooled(data, 1),
    "Starlette": _around(lambda file: StarletteUpload(file, filename="deck.pdf"), _spooled),
    "werkzeug": _around(lambda file: FileStorage(file, "deck.pdf"), _spooled),
    "async generator": _pieces,
    "asynchronous file": sources.AsyncSeekable,
    "stream sent as it comes": lambda data: _around(
        lambda stream: _once(stream, len(data)), _pieces
    )(data),
    "document of bytes": lambda data: Document.from_bytes(data, "deck.pdf"),
    "document of a file": _around(
        lambda file: Document.from_file(file, filename="deck.pdf"), io.BytesIO
    ),
    "link": lambda _data: Document.from_link("https://files.example.com/deck.pdf?token=hush"),
}
"""What can be uploaded, and what is inside: no reference to any of it may stay."""

USUAL = [
    "BytesIO", "open file", "NamedTemporaryFile", "SpooledTemporaryFile in memory",
    "SpooledTemporaryFile on disk", "Starlette", "werkzeug", "async generator",
    "asynchronous file", "document of bytes", "document of a file", "link",
]  # fmt: skip
each_kind = in_turn("kind", USUAL, nightly=[kind for kind in KINDS if kind not in USUAL])
both_loops = pytest.mark.both_loops


# --- endings -------------------------------------------------------------------------------------


@attrs.define
class Forgetful:
    """A transport that takes what it is given, keeps nothing, and ends as it is told to.

    It signs, too.
    """

    ending: str = "accepted"

    def sign(self, message: bytes, /) -> SignedHeaders:
        """Sign, or raise what the caller's own code raises."""
        if self.ending == "a signer's bug":
            raise LookupError("the vault is closed")
        return HmacSigner("key", "secret").sign(message)

    async def aclose(self) -> None:
        """Hold nothing."""

    async def send(self, request: Request, /) -> Reply:
        """Read the body, if the request comes that far."""
        await anyio.lowlevel.checkpoint()
        if isinstance(request.body, bytes):
            return _record(200, room={})
        if self.ending == "no connection":
            raise ConnectFailed("nobody listens", "meet.test:443")
        async for _chunk in request.body:
            await anyio.lowlevel.checkpoint()
            if self.ending == "cut off":
                raise ConnectionLost("reset", "meet.test:443")
            if self.ending in {"timeout", "cancelled"}:
                await anyio.sleep_forever()
        if self.ending == "unknown":
            raise ConnectionLost("reset", "meet.test:443")
        if self.ending == "a bug":
            raise ZeroDivisionError
        return _record(STATUS.get(self.ending, 200))


STATUS = {"refused": 400, "busy": 409, "failed": 500, "throttled": 429}


def _record(status: int, **more: Any) -> Reply:
    record = {"status": status == 200, "msg": "scripted", "status_code": "NAME", **more}
    return Reply(status, ((b"Content-Type", b"application/json"),), json.dumps(record).encode())


FAILURES = [
    "no connection", "cut off", "unknown", "a bug", "a signer's bug", *STATUS,
    "timeout", "cancelled", "too large",
]  # fmt: skip

HOW: dict[str, dict[str, Any]] = {"busy": {"max_wait": 0}, "timeout": {"timeout": 0.01}}

NEVER_AGAIN = RetryPolicy(max_attempts=1, max_interruptions=0, max_outage=0)


def client_of(ending: str = "accepted", **settings: Any) -> MeetingClient:
    """Make a client that gives up at the first failure."""
    way = Forgetful(ending)
    return MeetingClient(
        "https://meet.test", signer=way, transport=way, retry=NEVER_AGAIN, **settings
    )


async def upload(client: MeetingClient, made: list[Any], **how: Any) -> Exception | None:
    """Upload the last that is in a list; nobody but the library has a reference to it then."""
    if not isinstance(made[-1], Document):
        how = {"filename": "deck.pdf", **how}
    try:
        await client.upload_whiteboard_file("room01", made.pop(), **how)
    except (MeetingError, LookupError) as error:
        return error
    return None


def make(kind: str, size: int) -> tuple[list[Any], list[weakref.ref[Any]]]:
    """Make a document, and weak references to what it is made of."""
    found = KINDS[kind](b"%PDF" + bytes(size - 4))
    found = found if isinstance(found, list) else [found]
    return found[:1], [weakref.ref(part) for part in found]


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Neither descriptors nor temporary files of the library are left at the end."""
    before = descriptors()
    yield
    assert await until(lambda: descriptors() <= before, PATIENCE)
    assert temporary_files() == []


@pytest.fixture(autouse=True)
def _log_is_not_kept() -> Iterator[None]:
    """Else pytest keeps every record, and what the errors in it hold."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


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
                assert await until(lambda gone=gone: not any(ref() for ref in gone), PATIENCE)  # type: ignore[misc]


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
    settings: dict[str, Any] = {"max_size_whiteboard_file": 1000} if ending == "too large" else {}
    client = await clients.enter_async_context(client_of(ending, **settings))
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

    await until(look, PATIENCE)
    return found


@each_kind
async def test_a_document_that_failed_is_gone(kind: str) -> None:
    """Also when the caller keeps the client, and the error without its traceback."""
    errors: dict[str, Exception | None] = {}
    gone: dict[str, list[weakref.ref[Any]]] = {}
    async with nothing_left(), AsyncExitStack() as clients:
        for ending in FAILURES:
            errors[ending], gone[ending] = await _fail(clients, kind, ending, 256 * KIB)
            without_tracebacks(errors[ending])
        assert await _still_there(gone) == []
    succeeded = [ending for ending, error in errors.items() if error is None]
    assert succeeded == ["cancelled", *["too large"] * (kind == "link")]  # it has no size


@pytest.mark.parametrize("given", ["bytes", "document"])
@in_turn("ending", ["accepted", "refused", "unknown", "busy"])
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


# --- many ----------------------------------------------------------------------------------------

COUNT, EACH, MOST = 20, 8 * MIB, 16 * MIB


@asynccontextmanager
async def growing_less_than(most: int) -> AsyncIterator[None]:
    """Fail if the objects of this process need so many more bytes at the end."""
    gc.collect()
    tracemalloc.start(1)
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < most, f"{grown / MIB:.0f} MiB are kept"


def _jobs_of_8_mib() -> Iterator[UploadJob]:
    """Files that have been read but for their end."""
    for number in range(COUNT):
        file = io.BytesIO(bytes(EACH))
        file.seek(EACH - 100 * KIB)
        yield UploadJob("room01", file, filename=f"{number}.pdf")


@in_turn("ending", ["accepted", "refused"])
async def test_20_documents_of_8_mib_leave_less_than_16(ending: str) -> None:
    """One after another, as a service sends them all day; and in a batch, whose report is kept."""
    async with client_of(ending) as client, growing_less_than(MOST):
        for job in _jobs_of_8_mib():
            assert (await upload(client, [job.document]) is None) == (ending == "accepted")
        del job
        async with client.upload_many(_jobs_of_8_mib(), concurrency=2, window=4) as batch:
            report = await batch.wait()
    assert report.total == COUNT


# --- batches -------------------------------------------------------------------------------------


async def _jobs(
    kind: str, size: int, count: int, gone: list[weakref.ref[Any]]
) -> AsyncGenerator[UploadJob]:
    for number in range(count):
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
            for size in (256 * KIB, MIB + 1):
                async with client.upload_many(_jobs(kind, size, 4, gone)) as batch:
                    report = await batch.wait()
                assert {outcome.delivered for outcome in report.outcomes} == {ending == "accepted"}
                gc.collect()
                assert await until(lambda: not any(ref() for ref in gone), PATIENCE), size
