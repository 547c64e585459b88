"""A file that changes before it is sent: its new version is delivered, or none."""

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
from support.fake_rooms import FakeRooms, Visit, accepted, busy, client_of

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


def _in_place(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


def _replaced(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.replace(path)


CHANGES: dict[str, Callable[[Path, bytes], object]] = {
    "in place": _in_place,
    "longer": lambda path, data: path.write_bytes(data + b"more"),
    "shorter": lambda path, data: path.write_bytes(data[:-100]),
    "replaced": _replaced,
}


@attrs.define(eq=False)
class Changing:
    """A file that changes once."""

    path: Path
    size: int
    change: Callable[[Path, bytes], object]
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


# --- moments -------------------------------------------------------------------------------------


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


class Amid(FakeRooms):
    """Rooms that take a piece of a form, then something happens, then they take the rest."""

    def __init__(self, happening: Callable[[], None]) -> None:
        super().__init__()
        self._happening = happening

    async def send(self, request: Request, /) -> Reply:
        assert not isinstance(request.body, bytes)
        visit = self._visit(request)
        async for chunk in request.body:
            visit.sent += chunk
            if b"%PDF" in chunk:
                self._happening()
            await anyio.lowlevel.checkpoint()
        visit.is_complete = visit.is_accepted = True
        result = accepted().result
        assert isinstance(result, Reply)
        return result


def on(kind: type[Event], happening: Callable[[], None]) -> Callable[[Event], None]:
    """Let something happen at an event."""
    return lambda event: happening() if isinstance(event, kind) else None


Uploads = tuple[FakeRooms, Callable[[MeetingClient], Any], dict[str, Any]]


def _while_signed(file: Changing) -> Uploads:
    return FakeRooms(), uploading(file.path), {"signer": SlowSigner(file)}


def _while_a_connection_is_made(file: Changing) -> Uploads:
    def answer(_visit: Visit) -> Any:
        file()
        return accepted()

    return FakeRooms(answer), uploading(file.path), {}


def _behind_another_upload(file: Changing) -> Uploads:
    first_is_out, go_on = anyio.Event(), anyio.Event()

    async def hold(visit: Visit) -> None:
        if visit.name == "first.pdf":
            first_is_out.set()
            await go_on.wait()

    def queued() -> None:
        file()
        go_on.set()

    async def upload(client: MeetingClient) -> None:
        failures: list[DocumentChanged] = []
        async with anyio.create_task_group() as group:
            group.start_soon(uploading(b"%PDF-1.7", filename="first.pdf"), client)
            await first_is_out.wait()
            try:
                await uploading(file.path, on_event=on(Queued, queued))(client)
            except DocumentChanged as error:
                failures.append(error)
        for failure in failures:
            raise failure

    return FakeRooms(at_end=hold), upload, {}


def _while_the_room_is_locked(file: Changing) -> Uploads:
    rooms = FakeRooms(lambda visit: busy() if visit.number == 1 else accepted())
    upload = uploading(file.path, on_event=on(WaitingForRoom, file))
    return rooms, upload, {"lock": LockPolicy(min_delay=0.25)}


def _while_it_is_sent(file: Changing) -> Uploads:
    return Amid(file), uploading(file.path), {}


def _in_a_batch(file: Changing) -> Uploads:
    async def upload(client: MeetingClient) -> None:
        async with client.upload_many([UploadJob("room01", file.path)]) as batch:
            (outcome,) = (await batch.wait()).outcomes
        if outcome.error is not None:
            raise outcome.error

    return FakeRooms(), upload, {"signer": SlowSigner(file)}


def _of_an_open_file(file: Changing) -> Uploads:
    async def upload(client: MeetingClient) -> None:
        with file.path.open("rb") as opened:
            await uploading(opened)(client)

    return FakeRooms(), upload, {"signer": SlowSigner(file)}


def uploading(document: Any, **how: Any) -> Callable[[MeetingClient], Any]:
    """Make a function that uploads."""
    return lambda client: client.upload_whiteboard_file("room01", document, **how)


MOMENTS = [
    *(_while_signed, _while_a_connection_is_made, _behind_another_upload),
    *(_while_the_room_is_locked, _while_it_is_sent, _in_a_batch, _of_an_open_file),
]
EACH_TIME = [("in place", 1000), ("in place", 300_000), ("longer", 70_000), ("replaced", 1000)]
SELDOM = {_while_the_room_is_locked: 1, _in_a_batch: 1, _of_an_open_file: 1}
"""Moments that are like another one, or slow: how many changes are tried each time."""


def cases() -> list[Any]:
    """Make parameters: every moment, change and size; only some are tried each time."""
    found = []
    for moment, change, size in itertools.product(MOMENTS, CHANGES, [1000, 70_000, 300_000]):
        if moment is _of_an_open_file and change == "replaced":
            continue  # it is another file, of which the open one knows nothing
        each_time = (change, size) in EACH_TIME[: SELDOM.get(moment)]
        name = f"{moment.__name__}-{change}-{size}"
        marks = () if each_time else pytest.mark.nightly
        found.append(pytest.param(moment, change, size, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("moment", "change", "size"), cases())
async def test_a_room_gets_the_new_version_or_none(
    moment: Callable[[Changing], Uploads],
    change: str,
    size: int,
    tmp_path: Path,
) -> None:
    """Whenever the file changes; no room gets a part of one version and a part of another."""
    file = Changing(tmp_path / "deck.pdf", size, CHANGES[change])
    rooms, upload, settings = moment(file)
    is_delivered = True
    async with client_of(rooms, preflight=False, **settings) as client:
        with anyio.fail_after(20):
            try:
                await upload(client)
            except DocumentChanged:
                is_delivered = False
    assert file.changed
    delivered = [
        bytes(visit.sent).partition(b"\r\n\r\n")[2].rpartition(b"\r\n--")[0]
        for visit in rooms.uploads
        if visit.is_accepted and visit.name != "first.pdf"
    ]
    versions = {file.path.read_bytes()}
    if moment is _while_it_is_sent:
        versions.add(file.old)  # it had been read before it changed
    assert len(delivered) == is_delivered
    assert set(delivered) <= versions
