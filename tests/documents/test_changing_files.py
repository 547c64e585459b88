"""A file that changes before it is sent or meanwhile: its new version is delivered, or none."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from documents.sources import OLD, START, OwnFile, make_fifo
from meeting_async import Event, LockPolicy, WaitingForRoom
from meeting_async.errors import DocumentChanged, DocumentUnreadable
from meeting_async.signers import HmacSigner, SignedHeaders
from meeting_async.transports import Reply, Request
from support.fake_rooms import FakeRooms, accepted, busy, client_of
from support.leaks import descriptors, threads_idle
from support.tables import crossed, in_turn

pytestmark = pytest.mark.anyio

# --- changes -------------------------------------------------------------------------------------


def _write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def _rewrite(path: Path) -> None:
    _write(path, 0, b"X" * path.stat().st_size)


def _rewrite_and_restore_time(path: Path) -> None:
    """As ``cp --preserve`` and ``rsync --inplace --times`` do."""
    _rewrite(path)
    os.utime(path, OLD)


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"Y" * path.stat().st_size)
    os.utime(other, OLD)
    other.replace(path)


def _move_parent(path: Path, make: Callable[[Path], object]) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    make(path.parent)


def _swap_parent(path: Path) -> None:
    """Nothing of the file itself changes; another one has its path."""
    content = b"Z" * path.stat().st_size
    _move_parent(path, Path.mkdir)
    path.write_bytes(content)


def _instead(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Put something else in the file's place."""

    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


SIZE = r"[\d,]+ bytes instead of [\d,]+"
NOT_THE_SAME = "another file|not a regular file|directory"
Change = tuple[Callable[[Any], object], str]
OPEN_CHANGES: dict[str, Change] = {
    "grow": (lambda path: _write(path, path.stat().st_size, b"more"), SIZE),
    "shrink by one": (lambda path: os.truncate(path, path.stat().st_size - 1), SIZE),
    "empty": (lambda path: os.truncate(path, 0), SIZE),
    "rewrite": (_rewrite, "written to"),
}
PATH_CHANGES: dict[str, Change] = {
    **OPEN_CHANGES,
    "delete": (Path.unlink, "gone"),
    "replace": (_replace, "another file"),
    "rewrite, restore time": (_rewrite_and_restore_time, "written to"),
    "to directory": (_instead(Path.mkdir), NOT_THE_SAME),
    "to fifo": (_instead(make_fifo), NOT_THE_SAME),
    "to device": (_instead(lambda path: path.symlink_to("/dev/zero")), NOT_THE_SAME),
    "swap parent": (_swap_parent, "another file"),
    "parent to file": (lambda path: _move_parent(path, Path.touch), "gone"),
}


def _resized(size: int, more: bytes = b"") -> Callable[[OwnFile], object]:
    def change(file: OwnFile) -> None:
        file.seek(0, io.SEEK_END)
        file.write(more)
        file.truncate(size or None)
        file.seek(START)

    return change


OBJECT_CHANGES: dict[str, Change] = {
    "at its end": (_resized(START), "ended after"),
    "nearly at its end": (_resized(START + 10), "ended after"),
    "longer": (_resized(0, b"more"), SIZE),
}
CHANGES = {"path": PATH_CHANGES, "open file": OPEN_CHANGES, "file object": OBJECT_CHANGES}


@attrs.define(eq=False)
class Changing:
    """A document that changes once."""

    path: Path
    kind: str
    size: int
    change: Callable[[Any], object]
    changed: int = 0
    stack: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack)
    value: Any = None

    def __attrs_post_init__(self) -> None:
        self.path.parent.mkdir()
        self.path.write_bytes(self.old)
        os.utime(self.path, OLD)  # as if written long ago
        self.value = self.path
        if self.kind == "open file":
            self.value = self.stack.enter_context(self.path.open("rb"))
        elif self.kind == "file object":
            self.value = OwnFile(bytes(START) + self.old)

    @property
    def old(self) -> bytes:
        """The content at first."""
        return b"%PDF-1.7 old".ljust(self.size, b"o")

    @property
    def versions(self) -> set[bytes]:
        """What may be delivered when it has changed."""
        return {self.path.read_bytes()} if self.path.is_file() else set()

    def __call__(self) -> None:
        """Change, if that has not happened: by another thread, as if by another program."""
        self.changed += 1
        if self.changed == 1:
            target = self.value if self.kind == "file object" else self.path
            program = threading.Thread(target=self.change, args=[target])
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


def on_waiting(file: Changing) -> Callable[[Event], None]:
    """Let a file change when its upload begins to wait."""
    return lambda event: file() if isinstance(event, WaitingForRoom) else None


Moment = tuple[Callable[[Changing], FakeRooms], Callable[[Changing], dict[str, Any]]]
MOMENTS: dict[str, Moment] = {
    "signed": (lambda _: FakeRooms(), lambda file: {"signer": SlowSigner(file)}),
    "sent": (Amid, lambda _: {}),
    "locked": (
        lambda _: FakeRooms(lambda visit: busy() if visit.number == 1 else accepted()),
        lambda file: {"lock": LockPolicy(max_wait=0.5), "on_event": on_waiting(file)},
    ),
}
"""What is done while the file changes: the rooms, and the settings of the client."""
SMALL, LARGE = 1000, 700_000
"""Bytes of a document that is read in one piece, and of one that is not."""

Case = tuple[str, str, str, int]
CASES: dict[bool, list[tuple[str, Case]]] = {True: [], False: []}
"""Every moment, kind, change and size, by whether it is tried each time, or at night only."""
for _kind, _changes in CHANGES.items():
    for _case in itertools.product(MOMENTS, [_kind], _changes, (SMALL, LARGE)):
        is_usual = (_case[0] != "locked" and _case[3] == LARGE) or _case[1:3] == ("path", "rewrite")
        CASES[is_usual].append((", ".join(map(str, _case)), _case))


@in_turn("case", CASES[True], nightly=CASES[False])
async def test_a_room_gets_the_new_version_or_none(case: Case, tmp_path: Path) -> None:
    """Whenever a file changes; no room gets a part of one version and a part of another."""
    moment, kind, change, size = case
    happening, said = CHANGES[kind][change]
    make_rooms, settings = MOMENTS[moment]
    file = Changing(tmp_path / "documents" / "deck.pdf", kind, size, happening)
    before, errors = descriptors(), list[DocumentChanged | DocumentUnreadable]()
    with file.stack:
        rooms = make_rooms(file)
        async with client_of(rooms, preflight=False, **settings(file)) as client:
            with anyio.fail_after(20):
                try:
                    await client.upload_whiteboard_file("room01", file.value, filename="deck.pdf")
                except (DocumentChanged, DocumentUnreadable) as error:
                    errors.append(error)
        await threads_idle()
        assert descriptors() == before  # though the kept error has a traceback
    assert file.changed
    delivered = [
        bytes(visit.sent).partition(b"\r\n\r\n")[2].rpartition(b"\r\n--")[0]
        for visit in rooms.uploads
        if visit.is_accepted
    ]
    assert len(delivered) + len(errors) == 1
    if moment == "sent" and size == SMALL:
        assert delivered == [file.old] or errors  # it had been read before it changed
    else:
        assert set(delivered) <= file.versions
    for raised in errors:
        assert "deck.pdf" in raised.document
        assert repr(str(file.path)) in str(raised) or kind != "path" or "ended after" in str(raised)
        if moment == "signed":
            assert re.search(said, str(raised))
            assert isinstance(raised, DocumentChanged) or said == NOT_THE_SAME


# --- nothing of the content has changed -----------------------------------------------------------


def _copy_over(path: Path) -> None:
    """Put a copy in the file's place, as `cp --preserve` and network drives do."""
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def _there_and_back(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.with_name("away").rename(path)


AROUND: dict[str, Callable[[Path], object]] = {
    "permissions": lambda path: path.chmod(0o600),
    "owner": lambda path: os.chown(path, os.getuid(), os.getgid()),
    "a link": lambda path: os.link(path, path.with_name("link")),
    "renamed": _there_and_back,
    "copied": _copy_over,
}


@crossed(around=AROUND, moment=["signed", "locked", "sent"], anyio_backend=["asyncio", "trio"])
async def test_only_the_content_counts_while_an_upload_waits(
    around: Callable[[Path], None], moment: str, tmp_path: Path
) -> None:
    """Whose it is and what leads to it may change then; while it is sent, nothing may."""
    make_rooms, settings = MOMENTS[moment]
    file = Changing(tmp_path / "documents" / "deck.pdf", "path", LARGE, around)
    rooms = make_rooms(file)
    async with client_of(rooms, preflight=False, **settings(file)) as client:
        send = client.upload_whiteboard_file("room01", file.value, filename="deck.pdf")
        if moment == "sent":
            with pytest.raises(DocumentChanged, match=r"owner|another file"):
                await send
        else:
            await send
    assert file.changed
    assert rooms.uploads[-1].is_accepted == (moment != "sent")
