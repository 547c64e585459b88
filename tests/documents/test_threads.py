"""Documents whose reading never ends: they block neither exit, nor fork, nor memory, nor others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import anyio
import pytest

from support.leaks import threads_idle
from support.sources import sent

pytestmark = pytest.mark.anyio

MOST = 32
"""Threads that read at the same time (``docs/documents.md``)."""


class Reading(io.BytesIO):
    """A document that says how many are being read, and may wait."""

    lock, running, most = threading.Lock(), 0, 0

    def __init__(self, go_on: threading.Event | None = None) -> None:
        super().__init__(b"%PDF-1.7")
        self.go_on = go_on

    def read(self, size: int | None = -1, /) -> bytes:
        with self.lock:
            Reading.running += 1
            Reading.most = max(Reading.most, Reading.running)
        time.sleep(0.01) if self.go_on is None else self.go_on.wait(30)
        with self.lock:
            Reading.running -= 1
        return super().read(size)


@pytest.mark.both_loops
async def test_at_most_so_many_are_read_at_once() -> None:
    """More only queue at the disk."""
    Reading.most = 0
    async with anyio.create_task_group() as group:
        for number in range(MOST * 2):
            group.start_soon(lambda number: sent(Reading(), filename=f"{number}.pdf"), number)
    assert 1 < Reading.most <= MOST


@pytest.mark.parametrize("end", ["cancelled", "closed loop"])
def test_an_abandoned_document_is_gone_when_its_read_ends(end: str) -> None:
    """By a cancellation, or by the end of its event loop."""
    go_on = threading.Event()
    documents = [Reading(go_on)]
    gone = weakref.ref(documents[0])
    loop = asyncio.new_event_loop()

    async def upload() -> None:
        await sent(documents.pop(), filename="deck.pdf")

    task: Any = loop.create_task(upload())
    loop.run_until_complete(asyncio.sleep(0.05))
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


HEAD = """
import anyio, io, os, sys
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

async def upload(document):
    keys = {"api_key": "key", "api_secret": "secret", "transport": Accepts(), "preflight": False}
    async with MeetingClient("https://meet.test", **keys) as client:
        return await client.upload_whiteboard_file("room01", document, filename="deck.pdf")
"""
EXIT = """
async def main():
    with anyio.move_on_after(0.05):
        await upload(Blocked(b"x"))
anyio.run(main)
sys.exit(7)
"""
FORK = """
def run():
    return anyio.run(upload, io.BytesIO(b"1234567")).size
run()
child = os.fork()
if not child:
    os._exit(run())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("code", [EXIT, FORK], ids=["exit", "fork"])
def test_a_thread_holds_up_no_process(code: str) -> None:
    """An interpreter ends while a read never returns; a forked one has threads of its own."""
    command = [sys.executable, "-c", HEAD + code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ended.returncode == 7, ended.stderr
