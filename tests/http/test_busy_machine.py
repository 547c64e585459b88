"""A machine that is busy: no thread of anybody's is free, a drive hangs, descriptors are used up.

The first request needs nobody else's threads, the time to connect is limited, and a want of
descriptors is told, whatever the resolver makes of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio
import trio.to_thread

from meeting_async import Document, MeetingClient, RetryPolicy, Timeouts
from meeting_async.errors import ConnectFailed
from meeting_async.transports import HttpTransport
from support.interpreter import Interpreter
from support.peer import answering, reply
from support.sending import closing, over
from support.tables import LOOPS, crossed

pytestmark = pytest.mark.anyio

KEYS: dict[str, Any] = {"api_key": "key", "api_secret": "secret"}
AT_ONCE = 20.0
"""Seconds for a request that waits for nobody, on a busy machine."""
CONNECT = 0.2
"""Seconds for a connection in these tests."""
LATE = 8.0
"""Seconds by which a limit may be exceeded."""


@asynccontextmanager
async def busy_threads(backend: str) -> AsyncIterator[None]:
    """Let all threads that are shared by everybody do something else: anyio's, and the loop's."""
    limiter, end = anyio.to_thread.current_default_thread_limiter(), threading.Event()

    async def occupy() -> None:
        await anyio.to_thread.run_sync(end.wait)

    async def occupy_trio() -> None:
        await trio.to_thread.run_sync(end.wait)

    async with anyio.create_task_group() as group:
        futures: list[Any] = []
        for _ in range(int(limiter.total_tokens)):
            group.start_soon(occupy)
        if backend == "asyncio":
            loop = asyncio.get_running_loop()
            futures += [loop.run_in_executor(None, end.wait) for _ in range(64)]
        else:
            own = trio.to_thread.current_default_thread_limiter()
            for _ in range(int(own.total_tokens)):
                group.start_soon(occupy_trio)
            while own.borrowed_tokens < own.total_tokens:  # noqa: ASYNC110 - of trio
                await anyio.sleep(0.001)
        while limiter.borrowed_tokens < limiter.total_tokens:  # noqa: ASYNC110 - of anyio
            await anyio.sleep(0.001)
        try:
            yield
        finally:
            end.set()
            for future in futures:
                await future


WHAT = {"call": "call", "upload": "upload"}


@crossed(
    what=WHAT,
    anyio_backend=LOOPS,
    host={"name": "localhost", "address": "127.0.0.1"},
    scheme={"TCP": "http", "TLS": "https"},
)
async def test_the_first_request_when_all_threads_are_busy(
    what: str,
    scheme: str,
    host: str,
    files: tuple[Path, Path],
    server: ssl.SSLContext,
    tmp_path: Path,
    anyio_backend_name: str,
) -> None:
    """It works at once: to look up a name and to load certificates takes threads of our own."""
    wire: Any = (server, str(files[1])) if scheme == "https" else (None, True)
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7")
    async with over(wire, answering(reply())) as (transport, peer):
        url = peer.url.replace("127.0.0.1", host)
        async with MeetingClient(url, transport=transport, preflight=False, **KEYS) as client:
            async with busy_threads(anyio_backend_name):
                with anyio.fail_after(AT_ONCE):
                    if what == "call":
                        assert (await client.call("room/ping"))["status"] is True
                    else:
                        await client.upload_whiteboard_file("room01", tmp_path / "deck.pdf")


# --- what hangs ----------------------------------------------------------------------------------


@contextmanager
def hanging_file(path: Path) -> Iterator[None]:
    """Make a file that nobody can open while the block runs."""
    os.mkfifo(path)
    stop = threading.Event()

    def open_it() -> None:
        stop.wait(60)
        until = time.monotonic() + 1
        while time.monotonic() < until:  # for each that waits, now or soon
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:  # nobody waits
                if stop.is_set():
                    return
            time.sleep(0.01)

    thread = threading.Thread(target=open_it)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def seconds_to_fail(client: MeetingClient, what: str) -> float:
    """Make a call or an upload that gets no connection; return how long it took."""
    document = Document.from_bytes(b"%PDF-1.7", "deck.pdf")
    upload = functools.partial(client.upload_whiteboard_file, "room01", document)
    request: Any = upload if what == "upload" else functools.partial(client.call, "room/ping")
    started = time.monotonic()
    with pytest.raises(ConnectFailed):
        await request()
    return time.monotonic() - started


ONCE: dict[str, Any] = {
    "timeouts": Timeouts(connect=CONNECT),
    "retry": RetryPolicy(max_attempts=1, max_outage=0),
    "preflight": False,
    **KEYS,
}


@crossed(
    setting={name: name for name in ("verify", "cert", "resolver")},
    what=WHAT,
    anyio_backend=LOOPS,
)
async def test_files_that_cannot_be_read(
    setting: str,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    anyio_backend_name: str,
) -> None:
    """Of certificates and names, on a drive that does not answer: ``Timeouts.connect`` ends it.

    Also while all shared threads are busy.
    """
    path = tmp_path / "file"
    url, given = "https://127.0.0.1:9", {setting: str(path)}
    if setting == "resolver":
        monkeypatch.setenv("HOSTALIASES", str(path))  # glibc reads it for names without dots
        monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
        url, given = "http://meet-host", {}
    how: dict[str, Any] = {"allow_plaintext": True, **ONCE}
    with hanging_file(path):
        async with contextlib.AsyncExitStack() as stack:
            transport = HttpTransport(**({"verify": False} | given))  # type: ignore[arg-type]
            await stack.enter_async_context(closing(transport))
            client = await stack.enter_async_context(MeetingClient(url, transport=transport, **how))
            async with busy_threads(anyio_backend_name):
                with anyio.fail_after(AT_ONCE):
                    taken = await seconds_to_fail(client, what)
    assert taken < CONNECT + LATE


@pytest.mark.both_loops
async def test_certificates_that_cannot_be_read_delay_nobody_else(tmp_path: Path) -> None:
    """However many calls wait for such a file, other clients read their documents at once."""
    path = tmp_path / "file.pem"
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7".ljust(100_000))
    stuck: Any = {**ONCE, "timeouts": Timeouts(connect=2 * AT_ONCE)}
    wire: Any = (None, str(path))
    with hanging_file(path):
        async with (
            over(wire, answering(reply())) as (hanging, _),
            over((None, True), answering(reply())) as (transport, peer),
            MeetingClient("https://127.0.0.1:9", transport=hanging, **stuck) as other,
            MeetingClient(peer.url, transport=transport, preflight=False, **KEYS) as client,
            anyio.create_task_group() as group,
        ):
            for number in range(60):
                group.start_soon(other.call, f"room/ping{number}")
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(AT_ONCE):
                await client.upload_whiteboard_file("room01", tmp_path / "deck.pdf")
            group.cancel_scope.cancel()


# --- descriptors ---------------------------------------------------------------------------------

PROGRAM = """
import errno, json, os, resource, socket
import anyio
from meeting_async import MeetingClient, RetryPolicy, UploadJob
from meeting_async.errors import ConnectFailed, MeetingError
from support.peer import Peer, answering, reply

ERRORS = {
    "EBUSY": OSError(errno.EBUSY, "Device or resource busy"),
    "EAI_NONAME": socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
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
        while peer.open:  # its thread may still have a descriptor
            await anyio.sleep(0.01)
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
