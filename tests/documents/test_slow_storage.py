"""Storage that is slow, or never answers: it holds up no loop, caller, thread, fork or exit."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import os
import subprocess
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from documents.sources import (
    LARGE,
    SMALL,
    START,
    OwnFile,
    attempt,
    before_calls,
    prepared_document,
    sent,
    uploaded,
)
from meeting_async import Document, MeetingClient, MeetingError, RetryPolicy
from meeting_async import _threads as threads
from meeting_async.errors import DeadlineExceeded, ResourceExhausted
from meeting_async.testing import MeetingServer
from support.fake_rooms import Act, FakeRooms, busy, client_of, hanging
from support.leaks import threads_idle
from support.sending import until
from support.tables import in_turn

pytestmark = pytest.mark.anyio

MOST = 32
"""Threads that read at the same time (``docs/documents.md``)."""

ONCE = RetryPolicy(max_interruptions=0)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a large document to a disk from which nothing can be read at once."""
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    path = tmp_path / "deck.pdf"
    path.write_bytes(LARGE)
    return path


class Reading(io.BytesIO):
    """A document that says which are being read, and may wait."""

    def __init__(self, go_on: threading.Event | None = None) -> None:
        super().__init__(b"%PDF-1.7")
        self.go_on = go_on
        self.running: list[None] = []
        """An item for each read that has begun and not ended; documents may share it."""

    def read(self, size: int | None = -1, /) -> bytes:
        self.running.append(None)
        if self.go_on is not None:
            self.go_on.wait(30)
        self.running.pop()
        return super().read(size)


def some(count: int, go_on: threading.Event) -> tuple[list[Reading], list[None]]:
    """Make documents, and what counts their reads."""
    documents, running = [Reading(go_on) for _ in range(count)], list[None]()
    for document in documents:
        document.running = running
    return documents, running


class Stream:
    """Can be read, and cannot seek."""

    def __init__(self, file: OwnFile) -> None:
        self.read = file.read


def passed(file: OwnFile) -> Document:
    """Make a stream that is sent as it comes."""
    size = file.getbuffer().nbytes - START
    return Document.from_stream(Stream(file), "a.pdf", size=size, replayable=False)


# --- in threads ----------------------------------------------------------------------------------


IN_THREADS: dict[str, tuple[Any, set[str]]] = {
    "path": (lambda path, _: path, {"stat", "open", "fstat", "read", "close"}),
    "open file": (lambda path, _: path.open("rb"), {"fstat", "read", "close"}),
    "file object": (lambda _, file: file, {"read"}),
    "spooled": (lambda _, file: Stream(file), {"read"}),
    "passed": (lambda _, file: passed(file), {"read"}),
}


@pytest.mark.parametrize("size", [len(LARGE), len(SMALL)], ids=["large", "small"])
@in_turn("kind", IN_THREADS)
async def test_storage_is_asked_in_threads(
    path: Path, kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever may block: to look at a document, and to open, read and close it."""
    make, expected = IN_THREADS[kind]
    asked: dict[str, set[int]] = defaultdict(set)

    def note(name: str, *_call: object) -> None:
        asked[name].add(threading.get_ident())

    def noting(data: bytes) -> bytes:
        note("read")
        return data

    os.truncate(path, size)
    before_calls(monkeypatch, path, ["open", "stat", "fstat", "read", "close"], note)
    value = make(path, OwnFile(LARGE[:size], noting))
    asked.clear()  # to make it was the caller's
    await uploaded(value)
    if kind == "open file":
        value.close()
    assert set(asked) == expected
    assert threading.get_ident() not in set.union(*asked.values())


@pytest.mark.both_loops
async def test_at_most_so_many_are_read_at_once() -> None:
    """More only queue at the disk."""
    go_on = threading.Event()
    documents, running = some(MOST * 2, go_on)
    async with anyio.create_task_group() as group:
        for number, document in enumerate(documents):
            group.start_soon(partial(sent, document, filename=f"{number}.pdf"))
        try:
            await until(lambda: len(running) >= MOST)
            await anyio.sleep(0.1)  # in which one more would begin
            assert len(running) == MOST
        finally:
            go_on.set()


@pytest.mark.both_loops
async def test_reads_that_hang_hold_up_no_other_call() -> None:
    """Its server is looked up in a thread, too; the first call even loads modules there."""
    go_on, server = threading.Event(), MeetingServer()
    documents, running = some(MOST, go_on)
    keys: Any = {"api_key": server.api_key, "api_secret": server.api_secret, "preflight": False}
    with server.run() as url:
        async with MeetingClient(url.replace("127.0.0.1", "localhost"), **keys) as client:
            async with anyio.create_task_group() as group:
                for number, document in enumerate(documents):
                    room = server.add_room(f"room{number}").room_id
                    send = partial(client.upload_whiteboard_file, filename="deck.pdf")
                    group.start_soon(send, room, document)
                try:
                    await until(lambda: len(running) == MOST)
                    with anyio.fail_after(10):
                        await client.get_active_room_info("room1")
                finally:
                    go_on.set()


@in_turn("end", [("busy", busy), ("hanging", hanging)])
async def test_a_document_that_is_not_sent_to_its_end_is_closed_in_a_thread(
    path: Path, end: Callable[..., Act], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing may block, too."""
    closed: set[int] = set()
    before_calls(monkeypatch, path, ["close"], lambda *_: closed.add(threading.get_ident()))
    async with client_of(FakeRooms(lambda _: end(take=100_000)), retry=ONCE) as client:
        with pytest.raises(MeetingError):
            await client.upload_whiteboard_file("room01", path, max_wait=0, timeout=1)
    await threads_idle()
    assert closed
    assert threading.get_ident() not in closed


@pytest.mark.both_loops
@pytest.mark.parametrize("how_many", [0, 1])
async def test_no_thread_can_be_started(how_many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is told as it is; a timeout stays one."""
    go_on, idle, drained = threading.Event(), threads._threads._idle, 0

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    await sent(Reading(), filename="a.pdf")
    await threads_idle()
    while idle.acquire(blocking=False):
        drained += 1
    for _ in range(how_many):
        idle.release()
    monkeypatch.setattr(threading.Thread, "start", start)
    try:
        with pytest.raises(DeadlineExceeded if how_many else ResourceExhausted):
            await sent(Reading(go_on), filename="a.pdf", timeout=0.2)
    finally:
        go_on.set()
        for _ in range(drained - how_many):
            idle.release()


# --- never waited for ----------------------------------------------------------------------------


async def test_the_bytes_of_an_abandoned_read_are_not_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that returns after its attempt was cancelled spoils no other attempt."""
    end, hangs = threading.Event(), [True]

    def hanging(_name: str, _number: int, limit: int, offset: int) -> bytes | None:
        if not offset or not hangs[0]:
            return None
        end.wait()
        return b"X" * limit

    before_calls(monkeypatch, path, ["read"], hanging)
    async with prepared_document(path) as prepared:
        with anyio.move_on_after(0.05) as scope:
            await attempt(prepared)
        assert scope.cancelled_caught
        hangs[0] = False
        assert await attempt(prepared) == LARGE
        end.set()
        assert await attempt(prepared) == LARGE


@pytest.mark.filterwarnings("ignore:unclosed MeetingClient")  # its loop was closed before
@pytest.mark.parametrize("end", ["cancelled", "closed loop"])
def test_an_abandoned_document_is_gone_when_its_read_ends(end: str) -> None:
    """By a cancellation, or by the end of its event loop."""
    go_on = threading.Event()
    documents, running = some(1, go_on)
    gone = weakref.ref(documents[0])
    loop = asyncio.new_event_loop()

    async def upload() -> None:
        await sent(documents.pop(), filename="deck.pdf")

    task: Any = loop.create_task(upload())
    loop.run_until_complete(until(lambda: running))
    if end == "cancelled":
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
    loop.close()
    task._log_destroy_pending = False  # that is the test
    del task
    go_on.set()
    anyio.run(threads_idle)
    gc.collect()
    assert gone() is None


class Lost(io.BytesIO):
    """Its first read fails when nobody waits for it any more; what it leaves behind is a cycle."""

    def __init__(self, go_on: threading.Event) -> None:
        super().__init__(LARGE)
        self.go_on: threading.Event | None = go_on

    def read(self, size: int | None = -1, /) -> bytes:
        go_on, self.go_on = self.go_on, None
        if go_on is not None:
            go_on.wait(30)
            error: Any = OSError("the disk is gone")
            error.cause = error
            raise error
        gc.collect()  # as it may happen at any time
        return super().read(size)


async def test_what_an_abandoned_upload_has_left_is_collected_during_a_read() -> None:
    """The next upload of the same object reads on, and the object stands where it stood."""
    go_on = threading.Event()
    document = Lost(go_on)
    gc.disable()
    try:
        with anyio.move_on_after(0.05):
            await uploaded(document)
        go_on.set()
        await threads_idle()
        with anyio.fail_after(30):
            assert await uploaded(document) == LARGE
    finally:
        gc.enable()
    assert document.tell() == 0


HEAD = """
import anyio, asyncio, io, os, sys, tempfile
from meeting_async import MeetingClient
from meeting_async.transports import Reply

class Accepts:
    async def send(self, request):
        async for _chunk in request.body:
            pass
        return Reply(200, (), b'{"status": true, "msg": "ok", "status_code": "SUCCESS"}')
    async def aclose(self):
        pass

class Blocked(io.BytesIO):
    def read(self, size=-1):
        return os.read(os.pipe()[0], 1)

async def upload(document, transport=Accepts()):
    keys = {"api_key": "key", "api_secret": "secret", "transport": transport, "preflight": False}
    async with MeetingClient("https://meet.test", **keys) as client:
        return await client.upload_whiteboard_file("room01", document, filename="deck.pdf")
"""
PROGRAMS = {
    "exit": """
async def main():
    with anyio.move_on_after(0.05):
        await upload(Blocked(b"x"))
anyio.run(main)
sys.exit(7)
""",
    "fork": """
def run():
    return anyio.run(upload, io.BytesIO(b"1234567")).size
run()
child = os.fork()
if not child:
    os._exit(run())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "exit with a spool": """
class Never(Accepts):
    async def send(self, request):
        sending.set()
        await asyncio.Event().wait()

async def produce():
    yield bytes(3_000_000)

tempfile.tempdir = sys.argv[1]
loop, sending = asyncio.new_event_loop(), asyncio.Event()
task = loop.create_task(upload(produce(), Never()))
loop.run_until_complete(sending.wait())
if not os.fork():
    sys.exit(0)
os.wait()
sys.exit(6 + len(os.listdir(tempfile.tempdir)))
""",
}


@pytest.mark.parametrize("code", PROGRAMS.values(), ids=PROGRAMS)
def test_a_process_may_exit_or_fork(code: str, tmp_path: Path) -> None:
    """An interpreter ends while a read never returns; a forked one has threads of its own.

    One that exits amid an upload deletes its spool; a forked child leaves it alone.
    """
    command = [sys.executable, "-c", HEAD + code, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 7, ended.stderr
    assert list(tmp_path.iterdir()) == []
