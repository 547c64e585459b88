"""When its upload has ended, however it ended, nothing keeps a document alive."""

from __future__ import annotations

import copy
import gc
import gzip
import io
import json
import logging
import sys
import tempfile
import tracemalloc
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import httpx
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile  # type: ignore[import-untyped]
from litestar.datastructures import UploadFile as LitestarUpload
from starlette.datastructures import UploadFile as StarletteUpload
from werkzeug.datastructures import FileStorage

from meeting_async import Document, MeetingClient, RetryPolicy, Timeouts, UploadJob
from meeting_async.errors import ConnectFailed, ConnectionLost, MeetingError
from meeting_async.transports import HttpxTransport, Reply, Request, Transport
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


class Peculiar(sources.Peculiar):
    """The same for a file object without hash."""

    __slots__ = ("__weakref__",)


def _path(data: bytes) -> Path:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(data)
    return Path(file.name)


def _filled(file: Any, data: bytes) -> Any:
    file.write(data)
    file.seek(0)
    return file


def _spooled(data: bytes, limit: int) -> Any:
    return _filled(tempfile.SpooledTemporaryFile(limit), data)


def _gzip(data: bytes) -> list[Any]:
    packed = io.BytesIO(gzip.compress(data, 1))
    return [gzip.GzipFile(fileobj=packed), packed]


def _upload(wrap: Callable[[Any], Any], limit: int) -> Callable[[bytes], list[Any]]:
    """Make an upload object around a spooled temporary file, as the frameworks' parsers do."""

    def make(data: bytes) -> list[Any]:
        file = _spooled(data, limit)
        return [wrap(file), file]

    return make


async def _pieces(data: bytes) -> AsyncGenerator[bytes]:
    for piece in sources.pieces(data):
        yield piece


def _stream(data: bytes) -> list[Any]:
    stream = _pieces(data)
    return [stream, Document.from_stream(stream, "deck.pdf", size=len(data), replayable=False)][
        ::-1
    ]


def _litestar(data: bytes) -> list[Any]:
    upload = LitestarUpload("application/pdf", "deck.pdf", data)
    return [upload, upload.file]


def _document(file: Any, make: Callable[[Any], Document]) -> list[Any]:
    return [make(file), file]


KINDS: dict[str, Callable[[bytes], list[Any]]] = {
    "bytearray": lambda data: [Bytes(data)],
    "memoryview": lambda data: [memoryview(data)],
    "BytesIO": lambda data: [io.BytesIO(data)],
    "open file": lambda data: [_path(data).open("rb")],
    "unbuffered file": lambda data: [_path(data).open("rb", buffering=0)],
    "NamedTemporaryFile": lambda data: [
        _filled(tempfile.NamedTemporaryFile(), data)  # noqa: SIM115 - dropped on purpose
    ],
    "SpooledTemporaryFile in memory": lambda data: [_spooled(data, 1 << 30)],
    "SpooledTemporaryFile on disk": lambda data: [_spooled(data, 1)],
    "gzip": _gzip,
    "no hash": lambda data: [Peculiar(data)],
    "Starlette": _upload(lambda file: StarletteUpload(file, filename="deck.pdf"), 1 << 30),
    "Starlette on disk": _upload(lambda file: StarletteUpload(file, filename="deck.pdf"), 1),
    "Litestar": _litestar,
    "werkzeug": _upload(lambda file: FileStorage(file, "deck.pdf"), 1 << 30),
    "Django": lambda data: [SimpleUploadedFile("deck.pdf", data)],
    "async generator": lambda data: [_pieces(data)],
    "asynchronous file": lambda data: [sources.AsyncSeekable(data)],
    "stream sent as it comes": _stream,
    "document of bytes": lambda data: [Document.from_bytes(data, "deck.pdf")],
    "document of a path": lambda data: [Document.from_path(_path(data))],
    "document of a file": lambda data: _document(
        io.BytesIO(data), lambda file: Document.from_file(file, filename="deck.pdf")
    ),
    "document of a generator": lambda data: _document(
        _pieces(data), lambda stream: Document.from_stream(stream, "deck.pdf")
    ),
    "link": lambda _data: [Document.from_link("https://files.example.com/deck.pdf?token=hush")],
}
"""What can be uploaded, and what it is made of: no reference to any of it may stay."""

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
    """A transport that takes what it is given, keeps nothing, and ends as it is told to."""

    ending: str = "accepted"

    async def aclose(self) -> None:
        """Hold nothing."""

    async def send(self, request: Request, /) -> Reply:
        """Read the body, if the request comes that far."""
        await anyio.lowlevel.checkpoint()
        if isinstance(request.body, bytes):
            return _record(200, room={})
        if self.ending == "no connection":
            raise ConnectFailed("nobody listens", "meet.test:443") from _raised(OSError())
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


def _raised(error: OSError) -> OSError:
    """Return an error with a traceback, which refers to all frames of its task."""
    try:
        raise error
    except OSError:
        return error


STATUS = {"refused": 400, "busy": 409, "failed": 500, "throttled": 429}


def _record(status: int, **more: Any) -> Reply:
    record = {"status": status == 200, "msg": "scripted", "status_code": "NAME", **more}
    return Reply(status, ((b"Content-Type", b"application/json"),), json.dumps(record).encode())


FAILURES = [
    "no connection", "cut off", "unknown", "a bug", *STATUS, "timeout", "cancelled", "too large"
]  # fmt: skip

HOW: dict[str, dict[str, Any]] = {"busy": {"max_wait": 0}, "timeout": {"timeout": 0.01}}

NEVER_AGAIN = RetryPolicy(max_attempts=1, max_interruptions=0, max_outage=0)


def client_of(transport: Transport, **settings: Any) -> MeetingClient:
    """Make a client that gives up at the first failure."""
    return MeetingClient(
        "https://meet.test",
        api_key="key-0f-the-app",
        api_secret="secret-0f-the-app",
        transport=transport,
        retry=NEVER_AGAIN,
        **settings,
    )


async def upload(client: MeetingClient, made: list[Any], **how: Any) -> MeetingError | None:
    """Upload the last that is in a list; nobody but the library has a reference to it then."""
    if not isinstance(made[-1], Document):
        how = {"filename": "deck.pdf", **how}
    try:
        await client.upload_whiteboard_file("room01", made.pop(), **how)
    except MeetingError as error:
        return error
    return None


def make(kind: str, size: int) -> tuple[list[Any], list[weakref.ref[Any]]]:
    """Make a document, and weak references to what it is made of (Litestar's takes none)."""
    found = KINDS[kind](b"%PDF" + bytes(size - 4))
    parts = [part for part in found if not isinstance(part, LitestarUpload)]
    return found[:1], [weakref.ref(part) for part in parts]


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


async def _accepted(client: MeetingClient, kind: str, size: int) -> None:
    async with nothing_left():
        made, gone = make(kind, size)
        assert await upload(client, made) is None
        assert await until(lambda: not any(ref() for ref in gone), PATIENCE), f"{size} bytes"


@each_kind
@pytest.mark.usefixtures("_without_collector")
async def test_an_accepted_document_is_gone(kind: str) -> None:
    """It dies with the caller's last reference, without waiting for the garbage collector."""
    async with client_of(Forgetful()) as client:
        for size in SIZES:
            await _accepted(client, kind, size)


@pytest.mark.nightly
@in_turn("kind", KINDS)
@pytest.mark.usefixtures("_without_collector")
async def test_an_accepted_document_of_30_mib_is_gone(kind: str) -> None:
    """The same for the largest that most servers take."""
    async with client_of(Forgetful()) as client:
        await _accepted(client, kind, 30 * MIB)


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


async def _fail(client: MeetingClient, kind: str, ending: str) -> tuple[Any, list[Any]]:
    made, gone = make(kind, 256 * KIB)
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
    """Also when the caller keeps the client, and the error without traceback and cause."""
    errors: dict[str, MeetingError | None] = {}
    gone: dict[str, list[weakref.ref[Any]]] = {}
    async with nothing_left(), AsyncExitStack() as clients:
        for ending in FAILURES:
            how: Any = {"max_size_whiteboard_file": 1000} if ending == "too large" else {}
            client = await clients.enter_async_context(client_of(Forgetful(ending), **how))
            error, gone[ending] = await _fail(client, kind, ending)
            errors[ending] = copy.copy(error)
            del error
        assert await _still_there(gone) == []
    succeeded = [ending for ending, error in errors.items() if error is None]
    assert succeeded == ["cancelled", *["too large"] * (kind == "link")]  # it has no size


@pytest.mark.parametrize("given", ["bytes", "document"])
@pytest.mark.parametrize(
    "size", [64 * KIB, 256 * KIB, pytest.param(30 * MIB, marks=pytest.mark.nightly)]
)
@in_turn("ending", ["accepted", "refused", "unknown", "busy"])
async def test_nothing_refers_to_bytes(given: str, ending: str, size: int) -> None:
    """Bytes are sent as they are, and have as many references afterwards as before."""
    data = b"%PDF".ljust(size)
    gc.collect()
    before = sys.getrefcount(data)
    async with client_of(Forgetful(ending)) as client:
        made: list[Any] = [data if given == "bytes" else Document.from_bytes(data, "deck.pdf")]
        error = await upload(client, made, **HOW.get(ending, {}))
    assert (error is None) == (ending == "accepted")
    without_tracebacks(error)
    gc.collect()
    assert sys.getrefcount(data) == before


@both_loops
async def test_a_temporary_file_is_deleted() -> None:
    """What belongs to the caller's object goes with it, after success and after failure."""
    for ending in ("accepted", "refused"):
        async with client_of(Forgetful(ending)) as client:
            for size in SIZES:
                made, _ = make("NamedTemporaryFile", size)
                path = Path(made[0].name)
                error = await upload(client, made)
                without_tracebacks(error)
                gc.collect()
                assert await until(partial(_is_deleted, path), PATIENCE), size


def _is_deleted(path: Path) -> bool:
    return not path.exists()


# --- many ----------------------------------------------------------------------------------------

COUNT, EACH, MOST = 60, 8 * MIB, 16 * MIB
LEFT = in_turn("left", [("its end", 100 * KIB)], nightly=[("all of it", EACH)])
"""How much of each file is sent: it may have been read before."""


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


def _read_before(left: int) -> list[Any]:
    file = io.BytesIO(bytes(EACH))
    file.seek(EACH - left)
    return [file]


@LEFT
async def test_60_documents_of_8_mib_leave_less_than_16(left: int) -> None:
    """One after another, as a service sends them all day."""
    async with client_of(Forgetful()) as client, growing_less_than(MOST):
        for _ in range(COUNT):
            assert await upload(client, _read_before(left)) is None


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
        async with client_of(Forgetful(ending)) as client:
            for size in (256 * KIB, MIB + 1):
                async with client.upload_many(_jobs(kind, size, 4, gone)) as batch:
                    report = await batch.wait()
                assert {outcome.delivered for outcome in report.outcomes} == {ending == "accepted"}
                gc.collect()
                assert await until(lambda: not any(ref() for ref in gone), PATIENCE), size


@in_turn("ending", ["accepted", "refused"])
async def test_the_report_of_a_batch_keeps_less_than_16_mib(ending: str) -> None:
    """60 documents of 8 MiB, each with an outcome."""

    def jobs() -> Iterator[UploadJob]:
        for number in range(COUNT):
            yield UploadJob("room01", _read_before(100 * KIB).pop(), filename=f"{number}.pdf")

    async with client_of(Forgetful(ending)) as client, growing_less_than(MOST):
        async with client.upload_many(jobs(), concurrency=2, window=4) as batch:
            report = await batch.wait()
    assert report.total == COUNT


@both_loops
async def test_a_signer_that_raises_keeps_no_document() -> None:
    """An error of the caller's own code ends the call, and what was read for it is gone."""

    class Raising:
        def sign(self, message: bytes, /) -> Any:
            raise LookupError("the vault is closed")

    made, gone = make("BytesIO", 256 * KIB)
    async with MeetingClient(
        "https://meet.test", signer=Raising(), transport=Forgetful(), timeouts=Timeouts()
    ) as client:
        try:
            await client.upload_whiteboard_file("room01", made.pop(), filename="deck.pdf")
        except LookupError as error:
            without_tracebacks(error)
    gc.collect()
    assert await until(lambda: not any(ref() for ref in gone), PATIENCE)
