"""Limits that limit: connecting, stalls, replies that are slow, long or endless."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from meeting_async import errors
from meeting_async.transports import HttpTransport
from support.peer import (
    Peer,
    deaf,
    in_another_process,
)
from support.sending import (
    call,
    closing,
    upload,
    within,
)

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

both_kinds = pytest.mark.parametrize("kind", ["call", "upload"])


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_connecting_is_limited(scheme: str, full: str) -> None:
    """TCP that is not answered, and a TLS handshake that is not."""
    with Peer(deaf) as peer:
        host = full if scheme == "http" else f"127.0.0.1:{peer.port}"
        transport = HttpTransport(verify=False)
        async with closing(transport):
            started = anyio.current_time()
            request = upload(f"{scheme}://{host}", connect_timeout=0.3)
            with pytest.raises(errors.ConnectFailed, match="in time") as caught:
                await transport.send(request)
            assert 0.29 < anyio.current_time() - started < 2  # on a busy machine
    assert caught.value.host == host


async def test_a_lookup_that_hangs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the resolver is abandoned."""
    asked: list[float] = []

    def slow(*_: object, **_options: object) -> Any:
        asked.append(time.monotonic())
        time.sleep(1)
        raise socket.gaierror(socket.EAI_NONAME, "late")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    transport = HttpTransport()
    async with closing(transport):
        with within(0.9), pytest.raises(errors.ConnectFailed, match="in time"):
            await transport.send(call("http://meet.invalid", connect_timeout=0.2))
    assert len(asked) == 1


# --- descriptors ---------------------------------------------------------------------------------

EXHAUSTED = """
import collections, json, resource, sys
import anyio
from meeting_async import errors
from support.peer import Peer, answering, reply
from support.sending import Form, call, upload
from meeting_async.transports import HttpTransport

async def main(url):
    found = collections.Counter()
    transport = HttpTransport(max_connections=300)
    async def send(number):
        try:
            request = call(url) if number % 2 else upload(url, Form(100_000))
            found[str((await transport.send(request)).status)] += 1
        except errors.MeetingError as error:
            found[type(error).__name__] += 1
    async with anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(send, number)
    await transport.aclose()
    print(json.dumps(found))

resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
anyio.run(main, sys.argv[1], backend=sys.argv[2])
"""


@pytest.mark.parametrize(
    ("backend", "host"),
    [("asyncio", "localhost"), pytest.param("trio", "127.0.0.1", marks=pytest.mark.nightly)],
)
def test_too_few_descriptors(backend: str, host: str) -> None:
    """200 requests at once with 120 descriptors: this machine is the reason, not the server."""
    with in_another_process("late") as url:
        done = subprocess.run(
            [sys.executable, "-c", EXHAUSTED, url.replace("127.0.0.1", host), backend],
            env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sum(found.values()) == 200
    assert set(found) == {"200", "ResourceExhausted"}, found
