"""The first request: it needs nobody else's threads, and the time to connect is limited."""

from __future__ import annotations

import asyncio
import contextlib
import functools
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
from support.peer import answering, reply
from support.sending import closing, over
from support.tables import LOOPS, crossed

pytestmark = pytest.mark.anyio

KEYS: dict[str, Any] = {"api_key": "key", "api_secret": "secret"}
AT_ONCE = 2.0
"""Seconds for a request that waits for nobody, on a busy machine."""
CONNECT = 0.2
"""Seconds for a connection in these tests."""
LATE = 0.25
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
    """Make a file whose opening takes ten times as long as a connection may."""
    os.mkfifo(path)
    stop = threading.Event()

    def open_it() -> None:
        stop.wait(10 * CONNECT)
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
                    taken = [await seconds_to_fail(client, what)]
                    if taken[0] >= CONNECT + LATE:  # a busy machine may be late once
                        taken.append(await seconds_to_fail(client, what))
    assert min(taken) < CONNECT + LATE


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
