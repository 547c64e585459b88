"""First come, first served within a room: the place in the line is taken by the call itself.

Before the document is opened, read or spooled. Event loops and threads are real, the server is in
process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.datastructures import UploadFile

from meeting_async import Document, MeetingClient, UploadReceipt
from meeting_async.errors import (
    DeadlineExceeded,
    DocumentTooLarge,
    DocumentTypeRefused,
    DocumentUnreadable,
    MeetingError,
)
from meeting_async.rooms import LocalRoomLocks
from support.fake_rooms import FakeRooms, client_of
from support.interruptions import Interrupted
from support.tables import LOOPS, crossed

Run = Callable[..., Any]

MIB = 1024**2
SMALL = b"%PDF-1.7"


class Slow:
    """A stream whose pieces come one after another, each after some turns of the event loop."""

    def __init__(self, pieces: int = 3) -> None:
        self.pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self.pieces):
            await anyio.sleep(0.001)
            yield SMALL


Make = Callable[[Path, str], Any]
"""Makes a document of a name; the folder is for files."""


def a_path(folder: Path, name: str, size: int = 8) -> Path:
    """Write a file; a large one has a hole."""
    path = folder / name
    with path.open("wb") as file:
        file.write(SMALL)
        file.truncate(size)
    return path


def an_upload(folder: Path, name: str) -> UploadFile:
    """Make what a web framework hands over."""
    return UploadFile(a_path(folder, name).open("rb"), filename=name)


KINDS: dict[str, Make] = {
    "path": a_path,
    "path of 2 MiB": partial(a_path, size=2 * MIB),
    "bytes": lambda _folder, _name: SMALL,
    "bytes of 1 MiB": lambda _folder, _name: SMALL.ljust(MIB),
    "open file": lambda folder, name: a_path(folder, name).open("rb"),
    "slow stream": lambda _folder, _name: Slow(),
    "framework": an_upload,
    "link": lambda _folder, name: Document.from_link(f"https://files.test/{name}"),
}
EVERY_KIND = {name: name for name in KINDS}


class Line:
    """Calls that begin one after another; who was sent is known by the size or the name."""

    def __init__(self, folder: Path) -> None:
        self.rooms = FakeRooms()
        self.outcomes: dict[str, Any] = {}
        self._folder = folder

    async def call(
        self,
        group: anyio.abc.TaskGroup,
        client: MeetingClient,
        name: str,
        make: Make,
        room: str = "room01",
        **how: Any,
    ) -> None:
        """Call; return as soon as the call has begun and waits for the first time, or has ended."""
        document = make(self._folder, name)
        if not isinstance(document, Document):
            how["filename"] = name
        begun = anyio.Event()
        call = client.upload_whiteboard_file(room, document, **how)

        async def run() -> None:
            try:
                self.outcomes[name] = await Interrupted(call, 1, begun.set)
            except MeetingError as error:
                self.outcomes[name] = error
            finally:
                begun.set()
                if hasattr(document, "close"):
                    (document.file if isinstance(document, UploadFile) else document).close()

        group.start_soon(run)
        await begun.wait()

    @property
    def sent(self) -> list[str]:
        """Return the names of the documents in the order in which they were sent."""
        forms = [bytes(visit.sent[:600]) for visit in self.rooms.uploads]
        names = sorted(self.outcomes)
        return [next(name for name in names if name.encode() in form) for form in forms]


async def in_order(folder: Path, kinds: Iterable[str]) -> None:
    """Call for one document after another, and look in which order they were sent."""
    line, names = Line(folder), []
    async with client_of(line.rooms) as client, anyio.create_task_group() as group:
        for number, kind in enumerate(kinds):
            names.append(f"{number}.pdf")
            await line.call(group, client, names[-1], KINDS[kind])
    assert [type(outcome) for outcome in line.outcomes.values()] == [UploadReceipt] * len(names)
    assert line.sent == names, kinds
    assert not line.rooms.collisions


# --- every pair ----------------------------------------------------------------------------------


@pytest.mark.anyio
@crossed(first=EVERY_KIND, anyio_backend=LOOPS)
async def test_the_first_call_is_sent_first(tmp_path: Path, first: str) -> None:
    """Whatever the documents are: each kind, then each kind, then bytes."""
    for second in KINDS:
        await in_order(tmp_path, [first, second, "bytes"])


@pytest.mark.anyio
@pytest.mark.both_loops
async def test_clients_of_one_server_share_the_line(tmp_path: Path) -> None:
    """A second client of the same loop, and one with other options, come after the first."""
    line, locks = Line(tmp_path), LocalRoomLocks()
    async with (
        client_of(line.rooms, room_locks=locks) as client,
        client_of(line.rooms, room_locks=locks) as other,
        anyio.create_task_group() as group,
    ):
        await line.call(group, client, "0.pdf", KINDS["path"])
        await line.call(group, other, "1.pdf", KINDS["bytes"])
        await line.call(group, client.with_options(preflight=False), "2.pdf", KINDS["bytes"])
    assert line.sent == ["0.pdf", "1.pdf", "2.pdf"]


# --- who fails, who is slow; in virtual time -----------------------------------------------------


async def pieces(seconds: float, *items: bytes | Exception) -> AsyncIterator[bytes]:
    """Produce slowly; an exception among the items is raised."""
    for item in items:
        await anyio.sleep(seconds)
        if isinstance(item, Exception):
            raise item
        yield item


def of(*items: bytes | Exception) -> Make:
    """Make a stream that takes 5 s for each item."""
    return lambda _folder, _name: pieces(5, *items)


Failure = tuple[Make, dict[str, Any], type[Exception] | None, float]
FAILURES: dict[str, Failure] = {
    "it raises": (of(SMALL, OSError("disk")), {}, DocumentUnreadable, 10),
    "it is too large": (of(SMALL, bytes(2000)), {}, DocumentTooLarge, 10),
    "it is an image": (of(b"\x89PNG\r\n\x1a\n" + bytes(32)), {}, DocumentTypeRefused, 5),
    "its time is up": (of(*[SMALL] * 9), {"timeout": 7}, DeadlineExceeded, 7),
    "it is not there": (lambda folder, name: folder / name, {}, DocumentUnreadable, 0),
    "it is cancelled": (of(*[SMALL] * 9), {"cancelled": 7}, None, 7),
}


@crossed(failure=FAILURES, anyio_backend=LOOPS)
def test_a_failed_upload_lets_the_next_one_begin(
    run: Run, tmp_path: Path, failure: Failure
) -> None:
    """At once, and not before: a document that is being prepared has its place in the line."""
    make, how, error, end = failure
    cancelled = how.get("cancelled")

    async def main() -> None:
        line = Line(tmp_path)
        async with (
            client_of(line.rooms, max_size_whiteboard_file=1000) as client,
            anyio.create_task_group() as group,
            anyio.create_task_group() as first,
        ):
            await line.call(first, client, "first.pdf", make, **({} if cancelled else how))
            await line.call(group, client, "second.pdf", KINDS["bytes"])
            if cancelled:
                await anyio.sleep(cancelled)
                first.cancel_scope.cancel()
        assert error is None or isinstance(line.outcomes["first.pdf"], error)
        assert isinstance(line.outcomes["second.pdf"], UploadReceipt)
        (sent,) = line.rooms.uploads
        assert end <= sent.began <= end + 0.25

    run(main)
