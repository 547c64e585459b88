"""A client whose event loop was closed amid a call can be used in the next one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.interpreter import Interpreter

PROGRAM = """
import asyncio, gc, itertools, json, os, threading
import anyio, trio
from meeting_async import MeetingClient, UploadJob, transports
from support.peer import PATIENCE, Peer, reply

Transport = transports.HttpTransport
PDF = b"%PDF-1.7"
silent, pending = threading.Event(), threading.Event()

def script(connection):
    while connection.read_head():
        connection.read_body()
        if silent.is_set():
            pending.set()
            connection.closed_within(PATIENCE)
            return
        connection.send(reply())

async def call(client):
    await client.get_active_room_info("room01")

async def upload(client):
    await client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")

async def queued(client):
    await asyncio.gather(upload(client), upload(client))

async def stream(client):
    async def pieces():
        yield PDF
        pending.set()
        await asyncio.sleep(60)
    await client.upload_whiteboard_file("room01", pieces(), filename="deck.pdf")

async def batch(client):
    async with client.upload_many([UploadJob("room01", PDF, filename="deck.pdf")] * 2) as running:
        await running.wait()

async def until_pending():
    while not pending.is_set():
        await asyncio.sleep(0.001)

def abandon(call):
    "Close a loop amid a call."
    silent.set(), pending.clear()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    task = loop.create_task(call)
    loop.run_until_complete(until_pending())
    assert not task.done(), task
    loop.stop()
    loop.close()
    silent.clear()
    return task

async def use(client):
    with anyio.fail_after(5):
        await client.get_active_room_info("room01")
        receipt = await client.upload_whiteboard_file("room01", PDF, filename="next.pdf")
    return receipt.document

def one(url, function, is_kept, is_limited):
    "Close a loop amid a call, then use the client in another one."
    settings = {"transport": Transport(max_connections=1)} if is_limited else {}
    client = MeetingClient(url, api_key="key", api_secret="secret", preflight=False, **settings)
    kept = abandon(function(client))
    if not is_kept:
        del kept
    gc.collect()
    try:
        return RUN(use, client)
    except Exception as error:
        return repr(error)

def main():
    cases = itertools.product((call, upload, queued, stream, batch), (True, False), (True, False))
    with Peer(script) as peer:
        found = {
            f"{function.__name__}, kept: {is_kept}, limited: {is_limited}":
            one(peer.url, function, is_kept, is_limited)
            for function, is_kept, is_limited in cases
            if ALL or is_kept is is_limited
        }
        print(json.dumps(found), flush=True)
        os._exit(0)  # nobody waits for what was abandoned

main()
"""

RUNNERS = {"asyncio": "asyncio.run(function(*args))", "trio": "trio.run(function, *args)"}


@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_closed_loop_is_gone(
    python: Interpreter, runner: str, all_of_them: bool, tmp_path: Path
) -> None:
    """Whatever call was pending: the client works in a new loop, also with its one connection."""
    tests = Path(__file__).parents[1]
    run = f"import sys\nsys.path.insert(0, {str(tests)!r})\nALL = {all_of_them}\n"
    run += f"def RUN(function, *args):\n    return {RUNNERS[runner]}\n"
    status, stdout, stderr = python.run(run + PROGRAM, tmp_path)
    assert status == 0, stderr
    found = json.loads(stdout)
    assert found == dict.fromkeys(found, "next.pdf")
