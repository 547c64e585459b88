"""A machine without a free descriptor: that is told, whatever the resolver makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.interpreter import Interpreter

PROGRAM = """
import errno, json, os, resource, socket
import anyio
from meeting_async import MeetingClient, RetryPolicy, UploadJob
from meeting_async.errors import ConnectFailed, MeetingError
from support.peer import Peer, answering, reply

ERRORS = {
    "EBUSY": OSError(errno.EBUSY, "Device or resource busy"),
    "EMFILE": OSError(errno.EMFILE, "Too many open files"),
    "ENFILE": OSError(errno.ENFILE, "Too many open files in system"),
    "ENOENT": OSError(errno.ENOENT, "No such file or directory"),
    "EIO": OSError(errno.EIO, "Input/output error"),
    "EAI_AGAIN": socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    "EAI_NONAME": socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    "EAI_FAIL": socket.gaierror(socket.EAI_FAIL, "Non-recoverable failure in name resolution"),
    "EAI_SYSTEM": socket.gaierror(socket.EAI_SYSTEM, "System error"),
    "real": None,
}
POLICY = RetryPolicy(max_attempts=1, max_outage=0)
PDF = b"%PDF-1.7"
real = socket.getaddrinfo

def exhaust():
    "Take all descriptors; return those that were taken."
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        return taken

async def error_of(awaitable):
    try:
        await awaitable
    except MeetingError as error:
        return type(error).__name__
    except Exception as error:
        return repr(error)
    return "nothing"

async def batch(client):
    async with client.upload_many([UploadJob("room01", PDF, filename="deck.pdf")]) as running:
        (outcome,) = (await running.wait()).outcomes
    raise outcome.error

async def all_calls(client):
    return [
        await error_of(client.get_active_room_info("room01")),
        await error_of(client.call("room/ping")),
        await error_of(client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")),
        await error_of(batch(client)),
    ]

def failing(error):
    def getaddrinfo(*arguments, **settings):
        flags = settings.get("flags", arguments[-1] if len(arguments) == 6 else 0)
        if flags & socket.AI_NUMERICHOST:  # trio asks for numbers first
            return real(*arguments, **settings)
        raise error
    return getaddrinfo

async def main(port):
    found = {}
    keys = dict(api_key="key", api_secret="secret", retry=POLICY, preflight=False)
    async with MeetingClient(f"http://localhost:{port}", **keys) as client:
        await client.call("room/ping")  # what is imported later is imported now
        found["free"] = await error_of(batch(client))
        for name, error in ERRORS.items():
            if error is not None:
                socket.getaddrinfo = failing(error)
            taken = exhaust()
            try:
                found[name] = await all_calls(client)
            finally:
                for descriptor in taken:
                    os.close(descriptor)
                if name == "EBUSY":
                    found["EBUSY, and descriptors are free"] = await all_calls(client)
                socket.getaddrinfo = real
        assert (await client.call("room/ping"))["status"]
    print(json.dumps(found))

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
with Peer(answering(reply())) as peer:
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    anyio.run(main, peer.port, backend=BACKEND)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_no_descriptor_is_no_outage(python: Interpreter, backend: str, tmp_path: Path) -> None:
    """Every call says ``ResourceExhausted``, for any error of a resolver that has no descriptor."""
    tests = Path(__file__).parents[1]
    code = f"import sys\nsys.path.insert(0, {str(tests)!r})\nBACKEND = {backend!r}\n" + PROGRAM
    status, stdout, stderr = python.run(code, tmp_path)
    assert status == 0, stderr
    found = json.loads(stdout)
    assert found.pop("EBUSY, and descriptors are free") == ["ConnectFailed"] * 4
    assert found.pop("free") != "ResourceExhausted"
    assert found == dict.fromkeys(found, ["ResourceExhausted"] * 4)
