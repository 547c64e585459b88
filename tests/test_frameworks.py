"""Uploads of real web frameworks go on to a room: parsed by them, read by us."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest

import _frameworks
from meeting_async import MeetingClient
from meeting_async.errors import DocumentEmpty, InvalidInput
from meeting_async.testing import MeetingServer, Room

pytestmark = pytest.mark.anyio

SMALL = b"%PDF-1.7\n" + bytes(range(256)) * 10
LARGE = b"%PDF-1.7\n" + os.urandom(3_000_000)
"""More than any framework keeps in memory."""

BOTH_LOOPS = [_frameworks.starlette, _frameworks.fastapi, _frameworks.litestar]
ASYNCIO_ONLY = [_frameworks.quart, _frameworks.django]
BACKENDS = [
    *[(make, backend) for make in BOTH_LOOPS for backend in ("asyncio", "trio")],
    *[(make, "asyncio") for make in ASYNCIO_ONLY],
]
on_each = pytest.mark.parametrize(
    ("make", "anyio_backend"),
    BACKENDS,
    ids=[f"{make.__name__}-{backend}" for make, backend in BACKENDS],
)


@pytest.fixture(scope="module")
def running() -> Iterator[MeetingServer]:
    """Run a meeting server that keeps what it gets."""
    server = MeetingServer(keep_content=True)
    with server.run():
        yield server


@pytest.fixture
def room(running: MeetingServer) -> Room:
    """Add a room to the server."""
    return running.add_room(f"room{len(running.rooms)}")


@asynccontextmanager
async def site(
    make: Callable[[_frameworks.Deliver], Any], deliver: _frameworks.Deliver
) -> AsyncIterator[httpx.AsyncClient]:
    """Run a framework's application in process; yield a browser for it."""
    transport = httpx.ASGITransport(app=make(deliver))
    async with httpx.AsyncClient(transport=transport, base_url="http://site") as browser:
        yield browser


@asynccontextmanager
async def meeting(server: MeetingServer) -> AsyncIterator[MeetingClient]:
    """Make a client for the server."""
    async with MeetingClient(
        server.url, api_key=server.api_key, api_secret=server.api_secret
    ) as client:
        yield client


def form(data: bytes, name: str = "déck.pdf", kind: str = "application/x-slides") -> Any:
    """Make the form's one file."""
    return {"document": (name, data, kind)}


@on_each
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["in memory", "on disk"])
async def test_an_upload_goes_on_to_a_room(
    make: Callable[..., Any], running: MeetingServer, room: Room, data: bytes
) -> None:
    """Byte for byte, under its own name and media type."""
    async with meeting(running) as client:

        async def deliver(upload: Any) -> None:
            await client.upload_whiteboard_file(room.room_id, upload)

        async with site(make, deliver) as browser:
            response = await browser.post("/", files=form(data))
    assert (response.status_code, "done" in response.text) == (200, True)
    (file,) = room.accepted
    assert (file.name, file.content_type, file.size) == (
        "déck.pdf",
        "application/x-slides",
        len(data),
    )
    assert file.sha256 == hashlib.sha256(data).hexdigest()


@on_each
async def test_every_attempt_reads_the_same_bytes(
    make: Callable[..., Any], running: MeetingServer, room: Room
) -> None:
    """A busy room costs a second attempt; the upload's position is where it was, afterwards."""
    running.reply_next(409, json={"status": False, "msg": "busy", "status_code": "CONFLICT"})
    positions = []
    async with meeting(running) as client:

        async def deliver(upload: Any) -> None:
            file = getattr(upload, "file", None) or upload.stream
            file.seek(9)
            receipt = await client.upload_whiteboard_file(room.room_id, upload, filename="rest.pdf")
            positions.append(file.tell())
            assert len(receipt.attempts) == 2
            assert not file.closed

        async with site(make, deliver) as browser:
            assert (await browser.post("/", files=form(b"not sent\n" + LARGE))).status_code == 200
    assert positions == [9]
    assert [file.content for file in room.accepted] == [LARGE]


@on_each
async def test_an_upload_that_was_read_before_is_empty(
    make: Callable[..., Any], running: MeetingServer, room: Room
) -> None:
    """Its position is at its end; nothing is sent."""
    raised = []
    async with meeting(running) as client:

        async def deliver(upload: Any) -> None:
            (getattr(upload, "file", None) or upload.stream).read()
            with pytest.raises(DocumentEmpty) as caught:
                await client.upload_whiteboard_file(room.room_id, upload)
            raised.append(caught.value)

        async with site(make, deliver) as browser:
            await browser.post("/", files=form(LARGE))
    assert "seek(0)" in "".join(raised[0].__notes__)
    assert room.accepted == ()


async def test_an_upload_whose_request_is_over_is_one_clear_error(
    running: MeetingServer, room: Room
) -> None:
    """FastAPI closes its uploads then (fastapi#10857)."""
    raised = []
    async with meeting(running) as client:

        async def deliver(upload: Any) -> None:
            with pytest.raises(InvalidInput, match="request is over") as caught:
                await client.upload_whiteboard_file(room.room_id, upload)
            raised.append(caught.value)

        async with site(_frameworks.fastapi_later, deliver) as browser:
            await browser.post("/", files=form(SMALL))
            await browser.post("/after")
    assert raised[0].field == "document"
    assert room.accepted == ()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_threads_of_the_framework_are_left_alone(
    running: MeetingServer, room: Room
) -> None:
    """An upload on disk is read while every thread that requests share is taken."""
    limiter = anyio.to_thread.current_default_thread_limiter()
    async with meeting(running) as client:
        await client.upload_whiteboard_file(room.room_id, SMALL, filename="first.pdf")

        async def deliver(upload: Any) -> None:
            borrowers = [object() for _ in range(int(limiter.available_tokens))]
            for borrower in borrowers:
                limiter.acquire_on_behalf_of_nowait(borrower)
            try:
                with anyio.fail_after(10):
                    await client.upload_whiteboard_file(room.room_id, upload)
            finally:
                for borrower in borrowers:
                    limiter.release_on_behalf_of(borrower)

        async with site(_frameworks.fastapi, deliver) as browser:
            assert (await browser.post("/", files=form(LARGE))).status_code == 200
    assert [file.size for file in room.accepted] == [len(SMALL), len(LARGE)]
