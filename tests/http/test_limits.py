"""Limits that limit: connecting, stalls, replies that are slow, long or endless."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from meeting_async import errors
from meeting_async.transports import HttpTransport
from support.peer import (
    Connection,
    Peer,
    answering,
    deaf,
    dripping,
    endless_content,
    in_another_process,
    reply,
    silent,
)
from support.sending import (
    KIB,
    MIB,
    Form,
    Ticker,
    Wire,
    call,
    closing,
    either,
    over,
    until,
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


def endless_headers() -> Iterator[bytes]:
    """Answer one header after the other."""
    return itertools.chain(
        [b"HTTP/1.1 200 OK\r\n"], (b"X-%d: x\r\n" % n for n in itertools.count())
    )


def endless_hints() -> Iterator[bytes]:
    """Answer that the answer will come."""
    return itertools.repeat(b"HTTP/1.1 103 Early Hints\r\n\r\n")


@pytest.mark.parametrize(
    ("kind", "pieces"),
    [
        ("call", None),
        ("upload", endless_headers),
        ("call", endless_hints),
        ("upload", endless_content),
    ],
)
async def test_a_reply_is_limited_as_a_whole(
    wire: Wire, kind: str, pieces: Callable[[], Iterable[bytes]] | None
) -> None:
    """From the end of the body to the end of the reply, however it drips."""
    async with over(wire, dripping(pieces, 0.02) if pieces else silent) as (transport, peer):
        request = either(kind, peer.url, reply_timeout=0.4)
        with within(3), pytest.raises(errors.TransferTimeout, match=r"within 0\.4 s") as caught:
            await transport.send(request)
        await until(lambda: not peer.open)
    assert caught.value.host == f"127.0.0.1:{peer.port}"


async def test_the_time_of_a_reply_begins_with_the_end_of_the_body(wire: Wire) -> None:
    """And the time to connect has ended before."""
    async with over(wire, answering(reply())) as (transport, peer):
        form = Form(1000, 500, lambda: anyio.sleep(0.6))
        request = upload(peer.url, form, connect_timeout=0.5, reply_timeout=0.5)
        assert (await transport.send(request)).status == 200


# --- too long, and too talkative -----------------------------------------------------------------


@both_kinds
async def test_a_reply_is_counted_on_the_wire(wire: Wire, kind: str) -> None:
    """Head, content and the framing of chunks; one byte more is an error at once."""
    plain, chunked = reply(content=b"y" * 5000), _chunked(b"y" * 5000)
    for data in (plain, chunked):
        async with over(wire, answering(data)) as (transport, peer):
            answer = await transport.send(either(kind, peer.url, max_reply_bytes=len(data)))
            assert len(answer.content) == 5000
            with pytest.raises(errors.ConnectionLost, match="longer than"):
                await transport.send(either(kind, peer.url, max_reply_bytes=len(data) - 1))


def _chunked(content: bytes) -> bytes:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in content)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


async def test_too_many_interim_replies(wire: Wire) -> None:
    """A hundred are read over; more are no HTTP that anybody means well with."""
    interim = b"HTTP/1.1 102 Processing\r\n\r\n"
    async with over(wire, answering(interim * 100 + reply(), interim * 101 + reply())) as (
        transport,
        peer,
    ):
        assert (await transport.send(upload(peer.url))).status == 200
    async with over(wire, answering(interim * 101 + reply())) as (transport, peer):
        with pytest.raises(errors.ConnectionLost, match="interim"):
            await transport.send(upload(peer.url))


ENDLESS = {
    "endless content": (16 * MIB, 3, "longer than 16,777,216"),
    "endless 1-byte chunks": (128 * KIB, 1, "longer than 131,072"),
    "endless interim replies": (16 * MIB, 1, "interim"),
    "endless headers": (16 * MIB, 1, "head of the reply"),
}
"""What a peer sends, the limit, how often it is asked, and the error."""


@pytest.mark.parametrize("name", ENDLESS)
async def test_a_peer_that_talks_at_full_speed(name: str) -> None:
    """An error as soon as the limit is reached; the loop never works for 100 ms on end."""
    limit, times, words = ENDLESS[name]
    with in_another_process(name) as url:
        transport = HttpTransport()
        async with closing(transport), Ticker().running() as ticker:
            for _ in range(times):
                request = call(url, max_reply_bytes=limit, reply_timeout=30)
                with pytest.raises(errors.ConnectionLost, match=words):
                    await transport.send(request)
    assert ticker.gap < 0.1


async def test_the_time_of_a_reply_limits_a_fast_peer() -> None:
    """Chunks of one byte keep h11 busy for longer than the reply may take."""
    with in_another_process("endless 1-byte chunks") as url:
        transport = HttpTransport()
        async with closing(transport):
            started = anyio.current_time()
            request = call(url, reply_timeout=0.5, max_reply_bytes=1 << 40)
            with pytest.raises(errors.TransferTimeout):
                await transport.send(request)
            assert anyio.current_time() - started < 1.5


def read_on(connection: Connection) -> None:
    """Read the body until the other side gives up."""
    with contextlib.suppress(OSError):
        connection.read_body()


async def test_a_flood_while_the_body_goes_out() -> None:
    """What is taken in meanwhile is bounded; the form is completed, then the reply is too long."""

    def script(connection: Connection) -> None:
        connection.read_head()
        thread = threading.Thread(target=read_on, args=(connection,))
        thread.start()
        connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(OSError):  # it is not taken in
            connection.send(bytes(16 * MIB))
        thread.join()

    async with over((None, True), script) as (transport, peer):
        form = Form(2 * MIB)
        with pytest.raises(errors.ConnectionLost, match="longer"):
            await transport.send(upload(peer.url, form, max_reply_bytes=64 * KIB))
    assert form.is_complete


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
