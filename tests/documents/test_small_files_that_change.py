"""A small file that changes before it is sent: its new version is delivered, or none."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from meeting_async import Event, LockPolicy, MeetingClient, Queued, UploadJob, WaitingForRoom
from meeting_async.errors import DocumentChanged
from meeting_async.signers import HmacSigner, SignedHeaders
from meeting_async.transports import Reply, Request
from support.fake_rooms import Act, FakeRooms, Visit, accepted, busy, client_of

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

SIZES = [1000, 70_000, 300_000]


def in_place(path: Path, data: bytes) -> None:
    """Overwrite the content; its size stays the same."""
    with path.open("r+b") as file:
        file.write(data)


def longer(path: Path, data: bytes) -> None:
    """Overwrite the content with more."""
    path.write_bytes(data + b"more")


def shorter(path: Path, data: bytes) -> None:
    """Overwrite the content with less."""
    path.write_bytes(data[:-100])


def replaced(path: Path, data: bytes) -> None:
    """Put another file in its place."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.replace(path)


CHANGES = [in_place, longer, shorter, replaced]


def cases(*each_time: tuple[Callable[[Path, bytes], None], int]) -> list[Any]:
    """Make parameters: every change of every size; only a few are tried each time."""
    return [
        pytest.param(*row, marks=() if row in each_time else pytest.mark.nightly)
        for row in itertools.product(CHANGES, SIZES)
    ]


each_change = pytest.mark.parametrize(
    ("change", "size"),
    cases((in_place, 1000), (in_place, 300_000), (longer, 70_000), (replaced, 1000)),
)


@attrs.define(eq=False)
class Changing:
    """A file that changes once."""

    path: Path
    size: int
    change: Callable[[Path, bytes], None]
    changed: int = 0

    def __attrs_post_init__(self) -> None:
        self.path.write_bytes(self.old)
        os.utime(self.path, (1_600_000_000, 1_600_000_000))  # as if written long ago

    @property
    def old(self) -> bytes:
        """The content at first."""
        return b"%PDF-1.7 old".ljust(self.size, b"o")

    def __call__(self) -> None:
        """Change, if that has not happened: by another thread, as if by another program."""
        self.changed += 1
        if self.changed == 1:
            new = b"%PDF-1.7 new".ljust(self.size, b"n")
            program = threading.Thread(target=self.change, args=[self.path, new])
            program.start()
            program.join()

    async def check(self, upload: Callable[[], Any], rooms: FakeRooms) -> None:
        """Upload it: the room then has the new version, or nothing and the call says why."""
        try:
            receipt = await upload()
        except DocumentChanged:
            assert self.changed
            assert not [visit for visit in rooms.uploads if visit.is_complete]
            return
        assert self.changed
        new = self.path.read_bytes()
        delivered = [content(visit) for visit in rooms.uploads if visit.is_accepted]
        assert [found[:12] for found in delivered] == [new[:12]]
        assert delivered == [new]
        assert receipt.size == len(new)


def content(visit: Visit) -> bytes:
    """Cut the document out of its form."""
    return bytes(visit.sent).partition(b"\r\n\r\n")[2].rpartition(b"\r\n--")[0]


def put(client: MeetingClient, document: Any, **how: Any) -> Callable[[], Any]:
    """Make a function that uploads."""
    return lambda: client.upload_whiteboard_file("room01", document, **how)


@attrs.define
class SlowSigner:
    """Signs by a service elsewhere; meanwhile something happens."""

    happening: Callable[[], None]

    async def sign(self, message: bytes, /) -> SignedHeaders:
        """Sign."""
        await anyio.lowlevel.checkpoint()
        self.happening()
        await anyio.lowlevel.checkpoint()
        return HmacSigner("key", "secret").sign(message)


@each_change
async def test_while_the_request_is_signed(
    change: Callable[[Path, bytes], None], size: int, tmp_path: Path
) -> None:
    """A signer that takes its time."""
    file, rooms = Changing(tmp_path / "deck.pdf", size, change), FakeRooms()
    async with client_of(rooms, signer=SlowSigner(file), preflight=False) as client:
        await file.check(put(client, file.path), rooms)


@each_change
async def test_while_a_connection_is_made(
    change: Callable[[Path, bytes], None], size: int, tmp_path: Path
) -> None:
    """The transport has the request, and has not yet asked for its body."""

    def answer(_visit: Visit) -> Act:
        file()
        return accepted()

    file, rooms = Changing(tmp_path / "deck.pdf", size, change), FakeRooms(answer)
    async with client_of(rooms, preflight=False) as client:
        await file.check(put(client, file.path), rooms)


@each_change
async def test_behind_another_upload(
    change: Callable[[Path, bytes], None], size: int, tmp_path: Path
) -> None:
    """Another document of this application is being sent to the room."""
    first_is_out, go_on = anyio.Event(), anyio.Event()

    async def hold(visit: Visit) -> None:
        if visit.name == "first.pdf":
            first_is_out.set()
            await go_on.wait()

    def on_event(event: Event) -> None:
        if isinstance(event, Queued):
            file()
            go_on.set()

    file, rooms = Changing(tmp_path / "deck.pdf", size, change), FakeRooms(at_end=hold)
    async with client_of(rooms, preflight=False) as client, anyio.create_task_group() as group:
        group.start_soon(put(client, b"%PDF-1.7", filename="first.pdf"))
        await first_is_out.wait()
        await file.check(put(client, file.path, on_event=on_event), Others(rooms, "first.pdf"))


class Others(FakeRooms):
    """The visits of rooms, without those of one document."""

    def __init__(self, rooms: FakeRooms, name: str) -> None:
        super().__init__()
        self._rooms, self._name = rooms, name

    @property
    def uploads(self) -> list[Visit]:
        return [visit for visit in self._rooms.uploads if visit.name != self._name]


@pytest.mark.parametrize(("change", "size"), cases((in_place, 1000)))
async def test_while_the_room_is_locked(
    change: Callable[[Path, bytes], None], size: int, tmp_path: Path
) -> None:
    """The first attempt got 409, with the old version."""

    def on_event(event: Event) -> None:
        if isinstance(event, WaitingForRoom):
            file()

    file = Changing(tmp_path / "deck.pdf", size, change)
    rooms = FakeRooms(lambda visit: busy() if visit.number == 1 else accepted())
    async with client_of(rooms, lock=LockPolicy(min_delay=0.25), preflight=False) as client:
        with anyio.fail_after(20):
            await file.check(put(client, file.path, on_event=on_event), Later(rooms))


class Later(FakeRooms):
    """The visits of rooms, without the first upload."""

    def __init__(self, rooms: FakeRooms) -> None:
        super().__init__()
        self._rooms = rooms

    @property
    def uploads(self) -> list[Visit]:
        return self._rooms.uploads[1:]


class Amid(FakeRooms):
    """Rooms that take a piece of a form, then something happens, then they take the rest."""

    def __init__(self, happening: Callable[[], None]) -> None:
        super().__init__()
        self._happening = happening

    async def send(self, request: Request, /) -> Reply:
        body = request.body
        assert not isinstance(body, bytes)
        visit = self._visit(request)
        async for chunk in body:
            visit.sent += chunk
            if b"%PDF" in chunk:
                self._happening()
            await anyio.lowlevel.checkpoint()
        visit.is_complete = visit.is_accepted = True
        result = accepted().result
        assert isinstance(result, Reply)
        return result


@each_change
async def test_while_it_is_sent(
    change: Callable[[Path, bytes], None], size: int, tmp_path: Path
) -> None:
    """No room ever gets a part of one version and a part of another."""
    file = Changing(tmp_path / "deck.pdf", size, change)
    rooms = Amid(file)
    async with client_of(rooms, preflight=False) as client:
        try:
            await put(client, file.path)()
        except DocumentChanged:
            assert not [visit for visit in rooms.uploads if visit.is_complete]
        else:
            assert content(rooms.uploads[0]) in {file.old, file.path.read_bytes()}
    assert file.changed


async def test_in_a_batch(tmp_path: Path) -> None:
    """The job fails, or the room has the new version."""
    file, rooms = Changing(tmp_path / "deck.pdf", 1000, in_place), FakeRooms()
    async with client_of(rooms, signer=SlowSigner(file), preflight=False) as client:

        async def upload() -> Any:
            async with client.upload_many([UploadJob("room01", file.path)]) as batch:
                (outcome,) = (await batch.wait()).outcomes
            if outcome.error is not None:
                raise outcome.error
            return outcome.receipt

        await file.check(upload, rooms)


async def test_an_open_file(tmp_path: Path) -> None:
    """A file that the caller has opened, and that another program overwrites."""
    file, rooms = Changing(tmp_path / "deck.pdf", 1000, in_place), FakeRooms()
    with file.path.open("rb") as opened:
        async with client_of(rooms, signer=SlowSigner(file), preflight=False) as client:
            await file.check(put(client, opened), rooms)
