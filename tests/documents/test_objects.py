"""Objects of other packages, as people have them: each is uploaded, or the error says what to pass.

The classes are real; what they get their bytes from is a server on loopback or memory.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import threading
import urllib.request
import zipfile
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio.to_thread
import httpx
import pytest

from meeting_async import Document, UploadJob
from meeting_async.errors import DocumentUnreadable, InvalidInput, MeetingError
from support.fake_rooms import FakeRooms, client_of
from support.peer import Peer, answering_once

pytestmark = pytest.mark.anyio

DATA = b"%PDF-1.7\n" + bytes(range(256)) * 1200
Made = AbstractAsyncContextManager[Any]


def serving(data: bytes = DATA, length: int | None = None) -> Peer:
    """Serve a file; a longer ``length`` is never reached, as the connection breaks."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (length or len(data))
    return Peer(answering_once(head + data))


def body_of_urlopen(length: int | None = None) -> Callable[[Path], Made]:
    """Make what ``urllib.request.urlopen`` returns."""

    @asynccontextmanager
    async def made(_: Path) -> AsyncGenerator[Any]:
        with serving(length=length) as peer, _opened(peer.url) as response:
            yield response

    return made


def _opened(url: str) -> Any:
    return urllib.request.urlopen(url, b"")


@asynccontextmanager
async def member_of_streaming_tar(_: Path) -> AsyncGenerator[Any]:
    """Make a member of an archive that cannot go back."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo("deck.pdf")
        info.size = len(DATA)
        archive.addfile(info, io.BytesIO(DATA))
    packed.seek(0)
    with tarfile.open(fileobj=packed, mode="r|gz") as archive:
        yield archive.extractfile(next(iter(archive)))


@asynccontextmanager
async def field_of_django(folder: Path) -> AsyncGenerator[Any]:
    """Make a model's field whose file is in a folder."""
    files = pytest.importorskip("django.core.files.storage")
    yield _field(files.FileSystemStorage(str(folder)), folder)


@asynccontextmanager
async def field_elsewhere(folder: Path) -> AsyncGenerator[Any]:
    """Make one whose storage is not a folder."""
    files = pytest.importorskip("django.core.files.storage")
    base = pytest.importorskip("django.core.files.base")

    class Elsewhere(files.FileSystemStorage):  # type: ignore[name-defined,misc]
        def path(self, _: str) -> str:
            raise NotImplementedError

        def _open(self, name: str, mode: str = "rb") -> Any:
            return base.File((folder / name).open(mode))

    yield _field(Elsewhere(str(folder)), folder)


def _field(storage: Any, folder: Path) -> Any:
    conf, models = pytest.importorskip("django.conf"), pytest.importorskip("django.db.models")
    if not conf.settings.configured:
        conf.settings.configure()
    (folder / "deck.pdf").write_bytes(DATA)
    field = models.FileField(storage=storage)
    return field.attr_class(None, field, "deck.pdf")


@asynccontextmanager
async def body_of_boto3(_: Path) -> AsyncGenerator[Any]:
    """Make the ``Body`` of boto3's ``get_object``."""
    urllib3, response = pytest.importorskip("urllib3"), pytest.importorskip("botocore.response")
    with serving() as peer, urllib3.PoolManager() as pool:
        got = pool.request("GET", peer.url, preload_content=False)
        yield response.StreamingBody(got, len(DATA))


@asynccontextmanager
async def response_of_aiohttp(_: Path) -> AsyncGenerator[Any]:
    """Make a response of aiohttp."""
    aiohttp = pytest.importorskip("aiohttp")
    with serving() as peer:
        async with aiohttp.ClientSession() as session, session.get(peer.url) as response:
            yield response


@asynccontextmanager
async def content_of_aiohttp(folder: Path) -> AsyncGenerator[Any]:
    """Make what the error for a response of aiohttp says."""
    async with response_of_aiohttp(folder) as response:
        yield response.content


@asynccontextmanager
async def body_of_aioboto3(folder: Path) -> AsyncGenerator[Any]:
    """Make the ``Body`` of aioboto3's ``get_object``."""
    wrapper = pytest.importorskip("aiobotocore.response")
    async with response_of_aiohttp(folder) as response:
        yield wrapper.StreamingBody(response, len(DATA))


@asynccontextmanager
async def result_of_obstore(_: Path) -> AsyncGenerator[Any]:
    """Make what obstore's ``get`` returns."""
    obstore = pytest.importorskip("obstore")
    store = pytest.importorskip("obstore.store").MemoryStore()
    await obstore.put_async(store, "deck.pdf", DATA)
    yield await obstore.get_async(store, "deck.pdf")


@asynccontextmanager
async def stream_of_obstore(folder: Path) -> AsyncGenerator[Any]:
    """Make what the error for that says."""
    async with result_of_obstore(folder) as result:
        yield result.stream()


@asynccontextmanager
async def reader_of_obstore(_: Path) -> AsyncGenerator[Any]:
    """Make obstore's file, which has bytes of its own kind."""
    obstore = pytest.importorskip("obstore")
    store = pytest.importorskip("obstore.store").MemoryStore()
    obstore.put(store, "deck.pdf", DATA)
    yield obstore.open_reader(store, "deck.pdf")


@asynccontextmanager
async def reader_of_google(_: Path) -> AsyncGenerator[Any]:
    """Make Google's reader of an object; the object is in memory."""
    fileio = pytest.importorskip("google.cloud.storage.fileio")

    class Blob:
        size, downloaded = len(DATA), 0

        def reload(self, **_: Any) -> None:
            """Do nothing."""

        def download_as_bytes(self, start: int = 0, end: int | None = None, **_: Any) -> bytes:
            """Count, and return a range."""
            found = DATA[start : None if end is None else end + 1]
            self.downloaded += len(found)
            assert self.downloaded <= 2.1 * len(DATA)
            return found

    yield fileio.BlobReader(Blob(), chunk_size=40_000)


@asynccontextmanager
async def response_of_httpx(_: Path) -> AsyncGenerator[Any]:
    """Make a response of httpx."""
    with serving() as peer:
        async with (
            httpx.AsyncClient(trust_env=False) as client,
            client.stream("GET", peer.url) as it,
        ):
            yield it


@asynccontextmanager
async def bytes_of_httpx(folder: Path) -> AsyncGenerator[Any]:
    """Make what the error for that says."""
    async with response_of_httpx(folder) as response:
        yield response.aiter_bytes()


@asynccontextmanager
async def async_reader_of_obstore(_: Path) -> AsyncGenerator[Any]:
    """Make obstore's file with asynchronous methods, which no class tells."""
    obstore = pytest.importorskip("obstore")
    store = pytest.importorskip("obstore.store").MemoryStore()
    obstore.put(store, "deck.pdf", DATA)
    yield await obstore.open_reader_async(store, "deck.pdf")


def in_cloud(*, is_there: bool = True) -> Callable[[Path], Made]:
    """Make a path of cloudpathlib, whose storage is a folder; it tells who downloads from it."""

    @asynccontextmanager
    async def made(folder: Path) -> AsyncGenerator[Any]:
        local = pytest.importorskip("cloudpathlib.local")

        class Client(local.LocalS3Client):  # type: ignore[name-defined,misc]
            def _download_file(self, *arguments: Any) -> Any:
                assert threading.current_thread() is not threading.main_thread()
                return super()._download_file(*arguments)

        (folder / "bucket").mkdir(exist_ok=True)
        if is_there and not (folder / "bucket" / "deck.pdf").exists():
            (folder / "bucket" / "deck.pdf").write_bytes(DATA)
        with TemporaryDirectory(dir=folder) as cache:  # another one in each run
            client = Client(local_storage_dir=folder, local_cache_dir=cache)
            yield client.CloudPath("s3://bucket/deck.pdf")

    return made


def path_of_fsspec(protocol: str) -> Callable[[Path], Made]:
    """Make a path of universal_pathlib."""

    @asynccontextmanager
    async def made(folder: Path) -> AsyncGenerator[Any]:
        path = pytest.importorskip("upath").UPath(f"{protocol}://{folder}/deck.pdf")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(DATA)
        yield path

    return made


@asynccontextmanager
async def file_of_upath(folder: Path) -> AsyncGenerator[Any]:
    """Make what the error for a path of another file system says."""
    async with path_of_fsspec("memory")(folder) as path:
        with path.open("rb") as file:
            yield file


@asynccontextmanager
async def open_file_of_fsspec(folder: Path) -> AsyncGenerator[Any]:
    """Make what ``fsspec.open`` returns, which is not open yet."""
    fsspec = pytest.importorskip("fsspec")
    (folder / "deck.pdf").write_bytes(DATA)
    yield fsspec.open(str(folder / "deck.pdf"), "rb")


@asynccontextmanager
async def file_of_fsspec(folder: Path) -> AsyncGenerator[Any]:
    """Make what the error for that says."""
    async with open_file_of_fsspec(folder) as it:
        with it as file:
            yield file


@asynccontextmanager
async def path_in_zip(folder: Path) -> AsyncGenerator[Any]:
    """Make a path in an archive."""
    with zipfile.ZipFile(folder / "decks.zip", "w") as archive:
        archive.writestr("deck.pdf", DATA)
    with zipfile.ZipFile(folder / "decks.zip") as archive:
        yield zipfile.Path(archive, "deck.pdf")


@asynccontextmanager
async def file_in_zip(folder: Path) -> AsyncGenerator[Any]:
    """Make what the error for that says."""
    async with path_in_zip(folder) as path:
        with path.open("rb") as file:
            yield file


class Foreign(os.PathLike[str]):
    """A path of somebody's, which cannot be found out."""

    def __fspath__(self) -> str:
        raise LookupError("no such bucket")


@asynccontextmanager
async def path_that_raises(_: Path) -> AsyncGenerator[Any]:
    """Make a path of somebody's that fails."""
    yield Foreign()


class Nameless(io.BytesIO):
    """A file that cannot say its name."""

    @property
    def name(self) -> str:
        """Raise."""
        raise LookupError("no such bucket")


@asynccontextmanager
async def name_that_raises(_: Path) -> AsyncGenerator[Any]:
    """Make a file whose name fails."""
    yield Nameless(DATA)


@asynccontextmanager
async def gzip_file(_: Path) -> AsyncGenerator[Any]:
    """Make a packed file."""
    with gzip.open(io.BytesIO(gzip.compress(DATA))) as file:
        yield file


nightly = pytest.mark.nightly
GOOD: dict[str, Callable[[Path], Made]] = {
    "urlopen": body_of_urlopen(),
    "tarfile, streaming": member_of_streaming_tar,
    "Django's FieldFile": field_of_django,
    "Django's FieldFile, elsewhere": field_elsewhere,
    "gzip": gzip_file,
    "httpx's aiter_bytes": bytes_of_httpx,
    "boto3's Body": body_of_boto3,
    "aioboto3's Body": body_of_aioboto3,
    "aiohttp's content": content_of_aiohttp,
    "obstore's stream": stream_of_obstore,
    "obstore's reader": reader_of_obstore,
    "Google's BlobReader": reader_of_google,
    "cloudpathlib's path": in_cloud(),
    "upath's FilePath": path_of_fsspec("file"),
    "upath's file": file_of_upath,
    "fsspec's file": file_of_fsspec,
    "file in a zip": file_in_zip,
}
BAD: dict[str, tuple[Callable[[Path], Made], type[Exception], str]] = {
    "urlopen, cut short": (body_of_urlopen(400_000), DocumentUnreadable, "bytes early"),
    "httpx's response": (response_of_httpx, TypeError, r"pass response\.aiter_bytes\(\)"),
    "aiohttp's response": (response_of_aiohttp, TypeError, r"pass response\.content"),
    "obstore's result": (result_of_obstore, TypeError, r"pass result\.stream\(\)"),
    "obstore's reader": (async_reader_of_obstore, DocumentUnreadable, "pass an async iterable"),
    "cloudpathlib's path": (in_cloud(is_there=False), DocumentUnreadable, "deck.pdf"),
    "upath's path": (path_of_fsspec("memory"), TypeError, r"pass path\.open\('rb'\)"),
    "fsspec's OpenFile": (open_file_of_fsspec, TypeError, "pass the file that `with"),
    "path in a zip": (path_in_zip, TypeError, r"pass path\.open\('rb'\)"),
    "a path that raises": (path_that_raises, DocumentUnreadable, "no such bucket"),
    "a name that raises": (name_that_raises, DocumentUnreadable, "no such bucket"),
}
NIGHTLY = {"boto3", "aioboto3", "aiohttp", "obstore", "Google", "cloudpathlib", "upath", "fsspec"}
"""Packages that are not there each time."""


async def upload(client: Any, value: Any) -> None:
    """Upload it."""
    await client.upload_whiteboard_file("room01", value, filename="deck.pdf")


async def from_stream(client: Any, value: Any) -> None:
    """Upload it as a stream, or a path as a path."""
    if isinstance(value, os.PathLike):
        document = await anyio.to_thread.run_sync(Document.from_path, value)
    else:
        document = Document.from_stream(value, "deck.pdf")
    await client.upload_whiteboard_file("room01", document)


async def batch(client: Any, value: Any) -> None:
    """Upload it in a batch."""
    jobs = [UploadJob("room01", value, filename="deck.pdf")]
    async with client.upload_many(jobs) as running:
        async for outcome in running:
            if outcome.error is not None:
                raise outcome.error


WAYS = {"upload": upload, "from_stream": from_stream, "batch": batch}


def rows(table: dict[str, Any]) -> list[Any]:
    """Return the names of a table; those of packages that few have are nightly."""
    return [
        pytest.param(name, marks=nightly if name.partition("'")[0] in NIGHTLY else ())
        for name in table
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", rows(GOOD))
async def test_what_is_uploaded(name: str, way: str, tmp_path: Path) -> None:
    """The bytes of it, all of them, however they are given."""
    rooms = FakeRooms()
    async with client_of(rooms, preflight=False) as client, GOOD[name](tmp_path) as value:
        await WAYS[way](client, value)
    assert rooms.uploads[0].is_accepted
    assert DATA in bytes(rooms.uploads[0].sent)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", rows(BAD))
async def test_what_is_refused(name: str, way: str, tmp_path: Path) -> None:
    """Before anything is sent, with the words to write instead."""
    make, error, words = BAD[name]
    rooms = FakeRooms()
    async with client_of(rooms, preflight=False) as client, make(tmp_path) as value:
        with pytest.raises((error, MeetingError), match=words):
            await WAYS[way](client, value)
    assert not any(visit.is_accepted for visit in rooms.uploads)


@nightly
async def test_a_journal_knows_an_object_by_its_address(tmp_path: Path) -> None:
    """Not by where it was downloaded to, which differs each time."""
    rooms = FakeRooms()
    for expected in ("accepted", "skipped"):
        async with client_of(rooms, preflight=False) as client, in_cloud()(tmp_path) as path:
            jobs = [UploadJob("room01", path)]
            async with client.upload_many(jobs, journal=tmp_path / "journal.db") as running:
                statuses = [outcome.status async for outcome in running]
            assert statuses == [expected]
    assert len(rooms.uploads) == 1


async def test_a_field_without_a_file(tmp_path: Path) -> None:
    """Says so; one whose file is gone is unreadable."""
    async with (
        field_of_django(tmp_path) as field,
        client_of(FakeRooms(), preflight=False) as client,
    ):
        (tmp_path / "deck.pdf").unlink()
        with pytest.raises(DocumentUnreadable, match=r"deck\.pdf"):
            await client.upload_whiteboard_file("room01", field)
        field.name = None
        with pytest.raises(InvalidInput, match="field without a file"):
            await client.upload_whiteboard_file("room01", field)
