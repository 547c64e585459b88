"""The two kinds of call: signed and opened afresh for each attempt, nothing open in between."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.lowlevel
import attrs
import pytest

from _peer import descriptors, shown_elsewhere
from meeting_async import Document, HmacSigner, Request, SignedHeaders, Signer, Timeouts
from meeting_async._multipart import MultipartBody, Reader
from meeting_async._operations import JsonOperation, UploadOperation
from meeting_async._sources import Measure
from meeting_async._verdicts import Repeatability
from meeting_async.errors import DocumentChanged, DocumentUnreadable, InvalidInput

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
ROOM = "salle-été"
# Computed once with: printf '%s' MESSAGE | openssl dgst -sha256 -hmac devsecret
ROOM_SIGNATURE = "4aecbeac84ec6c1efcdf38f90102653ce0075164b9f4a601a9c289a0b3fa6aa2"
JSON_SIGNATURE = "b9f69b7e041d3d561af25b853f9176a688a112b661bf60d83432e7b7ee27b689"
JSON_BODY = '{"room_id":"salle-été"}'.encode()
TIMEOUTS = Timeouts(connect=1, send_stall=2, reply=3, upload_reply=4)


async def no_progress(_sent: int) -> None:
    """Take no notice."""


class Counting:
    """Signs with a new signature each time, and remembers for what."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def sign(self, message: bytes, /) -> SignedHeaders:
        """Return what nobody else would."""
        self.messages.append(message)
        return SignedHeaders("key", f"signature-{len(self.messages)}")


class Asking:
    """Fetches the signature from somewhere else."""

    async def sign(self, message: bytes, /) -> SignedHeaders:
        """Take its time."""
        await anyio.lowlevel.checkpoint()
        return SignedHeaders("key", message.hex())


class Failing:
    """Cannot sign."""

    def sign(self, message: bytes, /) -> SignedHeaders:
        """Fail."""
        raise LookupError("the vault is closed")


class Wrong:
    """Returns something else."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def sign(self, message: bytes, /) -> SignedHeaders | Awaitable[SignedHeaders]:
        """Return something else."""
        result: SignedHeaders = self.result
        return result


def json_operation(signer: Signer | None = None) -> JsonOperation:
    """Make the small call."""
    return JsonOperation(
        path="room/getActiveRoomInfo",
        url="https://meet.example.com/auth/room/getActiveRoomInfo",
        body=JSON_BODY,
        room_id=ROOM,
        repeatability=Repeatability.IDEMPOTENT,
        signer=signer or HmacSigner("devkey", "devsecret"),
        timeouts=TIMEOUTS,
    )


async def upload_operation(
    document: Document | None = None, signer: Signer | None = None
) -> UploadOperation:
    """Make an upload."""
    document = document or Document.from_bytes(PDF, "deck.pdf")
    async with document.held(max_size=None, allow_images=False) as held:
        return UploadOperation(
            path="room/uploadWhiteboardFile",
            url="https://meet.example.com/auth/room/uploadWhiteboardFile",
            room_id=ROOM,
            room=ROOM.encode(),
            held=held,
            repeatability=Repeatability.AT_MOST_ONCE,
            signer=signer or HmacSigner("devkey", "devsecret"),
            timeouts=TIMEOUTS,
        )


def header(request: Request, name: bytes) -> bytes:
    """Return the value of a header that is there once."""
    (value,) = (value for key, value in request.headers if key.lower() == name.lower())
    return value


async def taken(request: Request) -> bytes:
    """Take the whole body."""
    assert isinstance(request.body, MultipartBody)
    return b"".join([chunk async for chunk in request.body])


# JSON calls


async def test_the_body_that_is_signed_is_sent() -> None:
    """The signature is over the very bytes of the body (interface section 5 rule 2)."""
    async with json_operation().prepared(no_progress) as request:
        assert request.body == JSON_BODY
        assert header(request, b"HASH-SIGNATURE").decode() == JSON_SIGNATURE
        assert header(request, b"API-KEY") == b"devkey"
        assert header(request, b"Content-Type") == b"application/json"
        assert header(request, b"Content-Length") == b"%d" % len(JSON_BODY)
        assert (request.method, request.url) == ("POST", json_operation().url)
        assert (request.timeouts, request.reply_timeout) == (TIMEOUTS, TIMEOUTS.reply)


def test_a_json_call_has_no_document() -> None:
    """What events and errors ask for is there, and empty."""
    operation = json_operation()
    assert (operation.label, operation.size, operation.upload) == (None, 0, False)


# Uploads


async def test_the_room_that_is_signed_is_sent() -> None:
    """The signature is over the very bytes of the Room-Id header (interface section 5 rule 3)."""
    operation = await upload_operation()
    async with operation.prepared(no_progress) as request:
        assert header(request, b"Room-Id") == ROOM.encode()
        assert header(request, b"HASH-SIGNATURE").decode() == ROOM_SIGNATURE
        assert header(request, b"API-KEY") == b"devkey"
        assert (request.method, request.url) == ("POST", operation.url)
        assert (request.timeouts, request.reply_timeout) == (TIMEOUTS, TIMEOUTS.upload_reply)
    assert (operation.label, operation.size, operation.upload) == ("deck.pdf", len(PDF), True)


async def test_the_length_is_that_of_the_form() -> None:
    """Content-Length is exact, and the type names the boundary that is used."""
    operation = await upload_operation()
    async with operation.prepared(no_progress) as request:
        form = await taken(request)
    assert header(request, b"Content-Length") == b"%d" % len(form)
    kind, _, boundary = header(request, b"Content-Type").partition(b"; boundary=")
    assert kind == b"multipart/form-data"
    assert form.startswith(b"--" + boundary + b"\r\n")
    assert form.endswith(PDF + b"\r\n--" + boundary + b"--\r\n")
    assert b'name="document"; filename="deck.pdf"' in form
    assert b"Content-Type: application/pdf\r\n\r\n%PDF" in form


async def test_a_link_is_sent_as_the_other_field() -> None:
    """document_link carries the whole URL and no file name; never both fields."""
    url = "https://files.example.com/deck.pdf?token=abc"
    operation = await upload_operation(Document.from_link(url))
    async with operation.prepared(no_progress) as request:
        form = await taken(request)
    assert header(request, b"Content-Length") == b"%d" % len(form)
    assert b'name="document_link"\r\n\r\n' + url.encode() + b"\r\n--" in form
    assert b"filename" not in form
    assert b'"document"' not in form
    assert operation.label == "https://files.example.com/deck.pdf?…"


async def test_a_document_without_a_type_gets_the_general_one() -> None:
    """A document made by hand may have no media type."""
    document = attrs.evolve(Document.from_bytes(PDF, "deck.pdf"), content_type=None)
    async with (await upload_operation(document)).prepared(no_progress) as request:
        assert b"Content-Type: application/octet-stream\r\n" in await taken(request)


async def test_each_attempt_has_a_boundary_of_its_own() -> None:
    """So no document can be made to contain it."""
    operation = await upload_operation()
    kinds = set()
    for _ in range(3):
        async with operation.prepared(no_progress) as request:
            kinds.add(header(request, b"Content-Type"))
    assert len(kinds) == 3


async def test_progress_is_told_in_bytes_of_the_document() -> None:
    """Never above the size, and the size at the end."""
    told = []

    async def progress(sent: int) -> None:
        told.append(sent)

    operation = await upload_operation(Document.from_bytes(PDF * 40_000, "deck.pdf"))
    async with operation.prepared(progress) as request:
        await taken(request)
    assert told == sorted(told)
    assert len(told) > 1
    assert told[-1] == operation.size == len(PDF) * 40_000


# Signers


@pytest.mark.parametrize("upload", [True, False])
async def test_the_signer_is_asked_once_for_each_attempt(upload: bool) -> None:
    """So a rotated key is used from the next attempt on."""
    signer = Counting()
    operation = await upload_operation(signer=signer) if upload else json_operation(signer)
    for number in (1, 2, 3):
        async with operation.prepared(no_progress) as request:
            if upload:
                await taken(request)
            assert header(request, b"HASH-SIGNATURE") == b"signature-%d" % number
    assert signer.messages == [ROOM.encode() if upload else JSON_BODY] * 3


@pytest.mark.parametrize("upload", [True, False])
async def test_a_signer_may_be_asynchronous(upload: bool) -> None:
    """It may ask a vault over the network."""
    operation = await upload_operation(signer=Asking()) if upload else json_operation(Asking())
    async with operation.prepared(no_progress) as request:
        signed = ROOM.encode() if upload else JSON_BODY
        assert header(request, b"HASH-SIGNATURE") == signed.hex().encode()


@pytest.mark.parametrize("upload", [True, False])
async def test_what_a_signer_raises_comes_through(upload: bool, tmp_path: Path) -> None:
    """As it is, and before a file was opened."""
    document = Document.from_path(saved(tmp_path))
    operation: Any = json_operation(Failing())
    if upload:
        operation = await upload_operation(document, Failing())
    before = descriptors()
    with pytest.raises(LookupError, match="vault"):
        async with operation.prepared(no_progress):
            pass
    assert descriptors() == before


@pytest.mark.parametrize("result", [None, ("key", "signature"), {"API-KEY": "key"}])
async def test_a_signer_that_returns_something_else_is_told(result: Any) -> None:
    """By type, never by value: it may hold the signature."""
    with pytest.raises(TypeError, match="SignedHeaders") as caught:
        async with json_operation(Wrong(result)).prepared(no_progress):
            pass
    assert "signature" not in str(caught.value)


@pytest.mark.parametrize("value", ["s3cr3t\r\nX: y", "s3cr3t ", "s3cr3té", ""])
async def test_a_signature_that_cannot_stand_in_a_header_is_refused(value: str) -> None:
    """Before anything is sent, and without showing it, locals of frames included."""
    for signed in (SignedHeaders("key", value), SignedHeaders(value, "signature")):
        with pytest.raises(InvalidInput, match="header") as caught:
            async with json_operation(Wrong(signed)).prepared(no_progress):
                pass
        assert "s3cr3t" not in str(caught.value) + repr(caught.value)
        assert "s3cr3t" not in shown_elsewhere(caught.value)


# What is held


def saved(tmp_path: Path) -> Path:
    """Write a document to disk, long ago."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(PDF)
    os.utime(path, (1_600_000_000, 1_600_000_000))
    return path


async def test_the_file_is_open_for_the_attempt_only(tmp_path: Path) -> None:
    """However the attempt ends: whole, abandoned half-way, failed, never read."""
    path = saved(tmp_path)
    path.write_bytes(PDF * 20_000)  # more than a chunk: small ones are read in one go
    operation = await upload_operation(Document.from_path(path))
    before = descriptors()
    async with operation.prepared(no_progress) as request:
        assert str(tmp_path / "deck.pdf") in descriptors()
        await taken(request)
    assert descriptors() == before
    async with operation.prepared(no_progress) as request:
        assert await anext(aiter(request.body))  # type: ignore[arg-type]
    assert descriptors() == before
    async with operation.prepared(no_progress):
        pass
    assert descriptors() == before
    with pytest.raises(ZeroDivisionError):
        async with operation.prepared(no_progress):
            raise ZeroDivisionError
    assert descriptors() == before


async def test_a_body_does_not_outlive_its_attempt() -> None:
    """What kept the request after its attempt gets nothing more out of it."""
    operation = await upload_operation()
    async with operation.prepared(no_progress) as request:
        pass
    assert await taken(request) == b""


async def test_cancelled_amid_the_body_nothing_stays_open(tmp_path: Path) -> None:
    """The generator is closed within the attempt, not by the garbage collector."""
    operation = await upload_operation(Document.from_path(saved(tmp_path)))
    before = descriptors()

    async def wait_for_ever(_sent: int) -> None:
        await anyio.sleep_forever()

    with anyio.move_on_after(0.05) as scope:
        async with operation.prepared(wait_for_ever) as request:
            await taken(request)
    assert scope.cancelled_caught
    assert descriptors() == before


async def test_a_document_that_is_gone_is_not_sent(tmp_path: Path) -> None:
    """Between two attempts a file can change."""
    path = saved(tmp_path)
    operation = await upload_operation(Document.from_path(path))
    async with operation.prepared(no_progress) as request:
        await taken(request)
    path.unlink()
    with pytest.raises(DocumentChanged, match="gone"):
        async with operation.prepared(no_progress):
            pass


@attrs.frozen
class Torn:
    """A source that fails half-way, with a cause."""

    def held(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Self]:
        """Keep nothing."""
        return nullcontext(self)

    async def measure(self) -> Measure:
        """Claim two parts."""
        return Measure(2 * len(PDF), PDF)

    @asynccontextmanager
    async def open(self, measure: Measure) -> AsyncIterator[Reader]:
        """Give one part."""
        yield TornReader()


class TornReader:
    """Reads once."""

    def __init__(self) -> None:
        self.reads = 0

    async def read(self, limit: int, /) -> bytes:
        """Fail the second time."""
        self.reads += 1
        if self.reads == 1:
            return PDF
        raise DocumentUnreadable("deck.pdf", "torn") from OSError("torn")

    async def finish(self) -> None:
        """Never come here."""
        raise AssertionError


# Secrets


async def test_no_secret_stands_in_reprs(caplog: pytest.LogCaptureFixture) -> None:
    """Neither operation nor request nor body shows key, secret or signature."""
    caplog.set_level(logging.DEBUG)
    operation = await upload_operation()
    async with (
        operation.prepared(no_progress) as request,
        json_operation().prepared(no_progress) as call,
    ):
        seen = "".join(map(repr, [operation, request, request.body, json_operation(), call]))
    for secret in ("devsecret", ROOM_SIGNATURE, JSON_SIGNATURE):
        assert secret not in seen
        assert secret not in caplog.text


async def test_no_secret_stands_in_a_traceback_with_locals() -> None:
    """A document that fails amid an attempt raises through frames that know the signature."""
    operation = await upload_operation(Document(Torn(), filename="deck.pdf"))
    with pytest.raises(DocumentUnreadable) as caught:
        async with operation.prepared(no_progress) as request:
            await taken(request)
    assert ROOM_SIGNATURE not in shown_elsewhere(caught.value)
    assert "devsecret" not in shown_elsewhere(caught.value)


async def test_no_secret_stands_in_a_traceback_of_a_json_call() -> None:
    """Whatever is raised while a prepared request is in use."""
    with pytest.raises(ZeroDivisionError) as caught:
        async with json_operation().prepared(no_progress):
            raise ZeroDivisionError
    assert JSON_SIGNATURE not in shown_elsewhere(caught.value)
