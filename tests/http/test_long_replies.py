"""Replies that are long, slow or endless: what limits them, and what is read of them."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import attrs
import httpx
import pytest

from meeting_async import errors
from meeting_async.transports import HttpTransport, HttpxTransport, Reply
from support.fake_rooms import Act, FakeRooms, client_without_checks
from support.peer import (
    CHUNKED,
    Connection,
    Peer,
    Script,
    answering,
    deaf,
    dripping,
    endless_content,
    in_another_process,
    reply,
    silent,
)
from support.sending import KIB, MIB, Form, call, closing, either, over, until, upload, within
from support.tables import in_turn

pytestmark = [pytest.mark.anyio]

both_transports = pytest.mark.parametrize("transport_kind", ["ours", "httpx"])


@contextlib.asynccontextmanager
async def connected(kind: str, script: Script) -> AsyncIterator[tuple[Any, Peer]]:
    """Open a transport, ours or one with a client of httpx, and a peer."""
    if kind == "ours":
        async with over((None, True), script, receive_buffer=64 * KIB) as opened:
            yield opened
        return
    with Peer(script) as peer:
        async with httpx.AsyncClient(trust_env=False) as client:
            yield HttpxTransport(client), peer


@contextlib.asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """Note the processor time of the loop's thread each time that other tasks may run."""
    times: list[float] = []

    async def tick() -> None:
        while True:
            times.append(time.thread_time())
            await anyio.sleep(0.001)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await anyio.sleep(0.01)
        yield times
        await anyio.sleep(0.01)  # for what it did last
        group.cancel_scope.cancel()


def longest_gap(times: list[float]) -> float:
    """Return for how long the loop worked without letting other tasks run, at most."""
    return max(after - before for before, after in itertools.pairwise(times))


# --- time ----------------------------------------------------------------------------------------


def endless_headers() -> Iterator[bytes]:
    """Answer one header after the other."""
    return itertools.chain(
        [b"HTTP/1.1 200 OK\r\n"], (b"X-%d: x\r\n" % n for n in itertools.count())
    )


def endless_hints() -> Iterator[bytes]:
    """Answer that the answer will come."""
    return itertools.repeat(b"HTTP/1.1 103 Early Hints\r\n\r\n")


Slow = tuple[str, str, Script]
SLOW: dict[str, Slow] = {
    "silence": ("ours", "call", silent),
    "headers": ("ours", "upload", dripping(endless_headers, 0.02)),
    "hints": ("ours", "call", dripping(endless_hints, 0.02)),
    "silence after an upload": ("ours", "upload", silent),
    "content": ("ours", "upload", dripping(endless_content, 0.02)),
    "content, httpx": ("httpx", "upload", dripping(endless_content, 0.02)),
}


@in_turn("slow", SLOW.items())
async def test_a_reply_is_limited_as_a_whole(slow: Slow) -> None:
    """From the end of the body to the end of the reply, however it drips."""
    transport_kind, kind, script = slow
    async with connected(transport_kind, script) as (transport, peer):
        request = either(kind, peer.url, reply_timeout=0.4)
        with within(9), pytest.raises(errors.TransferTimeout, match=r"within 0\.4 s") as caught:
            await transport.send(request)
        await until(lambda: not peer.open)
    assert caught.value.host == f"127.0.0.1:{peer.port}"


async def test_the_time_of_a_reply_begins_with_the_end_of_the_body() -> None:
    """And the time to connect has ended before."""
    async with connected("ours", answering(reply())) as (transport, peer):
        form = Form(1000, 500, lambda: anyio.sleep(1.6))
        request = upload(peer.url, form, connect_timeout=1.5, reply_timeout=1.5)
        assert (await transport.send(request)).status == 200


# --- length --------------------------------------------------------------------------------------

CONTENT = b"y" * 500
FRAMINGS = {
    "length": reply(content=CONTENT),
    "chunks of a byte": CHUNKED + b"1\r\ny\r\n" * 500 + b"0\r\n\r\n",
    "after interim replies": b"HTTP/1.1 100 Continue\r\n\r\n" * 100 + reply(content=CONTENT),
}


@both_transports
@in_turn("data", FRAMINGS.items())
async def test_the_content_of_a_reply_is_limited(transport_kind: str, data: bytes) -> None:
    """Not its framing: what fits is read; a byte more is an error, or is cut off."""
    async with connected(transport_kind, answering(data)) as (transport, peer):
        for more, cut in itertools.product((1, 0, -1), (False, True)):
            request = call(peer.url, max_reply_bytes=500 + more, cut_reply=cut)
            if more < 0 and not cut:
                with pytest.raises(errors.ReplyTooLarge, match=r"499 bytes.*max_reply_bytes"):
                    await transport.send(request)
            else:
                answer = await transport.send(request)
                assert answer.content == CONTENT[: 500 + more]
                assert answer.is_cut is (more < 0)
            if more < 0 and not cut and transport_kind == "ours":
                await until(lambda: not peer.open)  # it is not kept


@pytest.mark.parametrize(("size", "connections"), [(250_000, 1), (270_000, 2)])
async def test_a_reply_that_is_cut_keeps_its_connection(size: int, connections: int) -> None:
    """Its rest is read and dropped, up to 256 KiB; more would cost more than a connection."""
    async with connected("ours", answering(reply(content=b"y" * size))) as (transport, peer):
        for _ in range(2):
            request = call(peer.url, max_reply_bytes=1000, cut_reply=True)
            answer = await transport.send(request)
            assert (answer.content, answer.is_cut) == (b"y" * 1000, True)
        assert peer.connected == connections


async def test_the_rest_of_a_reply_that_is_cut_is_not_waited_for() -> None:
    """What counts has come: a peer that sends no more, or breaks off, does no harm."""
    for then in (deaf, Connection.reset):

        def script(connection: Connection, then: Any = then) -> None:
            connection.read_head()
            connection.read_body()
            connection.send(reply(content=b"y" * 100_000)[:60_000])
            then(connection)

        async with connected("ours", script) as (transport, peer):
            request = call(peer.url, max_reply_bytes=1000, cut_reply=True)
            with within(5):
                answer = await transport.send(request)
        assert (answer.status, answer.is_cut) == (200, True)


@attrs.define
class Long:
    """A script that answers with so many bytes, and counts how many of them it could send."""

    size: int
    chunked: bool = False
    written: int = 0

    def __call__(self, connection: Connection) -> None:
        """Serve one connection."""
        connection.read_head()
        connection.read_body()
        head = reply(200, b"", [b"Content-Length: %d" % self.size], length=False)
        connection.send(CHUNKED if self.chunked else head)
        block = bytes(8 * KIB)
        for _ in range(0, self.size, len(block)):
            connection.send(b"2000\r\n" + block + b"\r\n" if self.chunked else block)
            self.written += len(block)


SLACK = 64 * KIB + 6 * MIB
"""Bytes that loopback's sockets may take beyond what was read (``tcp_rmem``, ``tcp_wmem``)."""


@both_transports
@in_turn("chunked", [("length", False), ("chunks", True)])
async def test_a_long_reply_is_cut(transport_kind: str, chunked: bool) -> None:
    """At once: what follows stays in the sockets, and the loop goes on."""
    script = Long(64 * MIB, chunked)
    async with connected(transport_kind, script) as (transport, peer):
        async with ticking() as times:
            with within(8):
                request = call(peer.url, max_reply_bytes=64 * KIB, cut_reply=True)
                answer = await transport.send(request)
        await until(lambda: not peer.open)
    assert answer == Reply(200, answer.headers, bytes(64 * KIB), is_cut=True, sent=answer.sent)
    assert script.written < 64 * KIB + SLACK
    assert longest_gap(times) < 0.05


Endless = tuple[str, int, float, str]
"""What a peer sends, the limits of bytes and time, and the error."""
ENDLESS: dict[str, Endless] = {
    "content": ("endless content", 16 * MIB, 30, "longer than 16,777,216"),
    "1-byte chunks": ("endless 1-byte chunks", 16 * KIB, 30, "longer than 16,384"),
    "interim replies": ("endless interim replies", 16 * MIB, 30, "interim"),
    "headers": ("endless headers", 16 * MIB, 30, "head of the reply"),
    "time": ("endless 1-byte chunks", 1 << 40, 0.5, "within 0.5 s"),
}


@in_turn("endless", ENDLESS.items())
async def test_a_peer_that_talks_at_full_speed(endless: Endless) -> None:
    """An error as soon as a limit is reached; the loop never works for 100 ms on end."""
    script, limit, seconds, words = endless
    with in_another_process(script) as url:
        transport = HttpTransport()
        async with closing(transport), ticking() as times:
            started = anyio.current_time()
            request = call(url, max_reply_bytes=limit, reply_timeout=seconds)
            with pytest.raises(errors.TransportError, match=words):
                await transport.send(request)
            assert anyio.current_time() - started < seconds + 20  # else it never ends
    assert longest_gap(times) < 0.1


# --- max_reply_bytes= of a call ------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"max_reply_bytes": 3000}, {"max_reply_bytes": 8 * MIB}])
async def test_a_call_says_how_long_its_reply_may_be(how: dict[str, Any]) -> None:
    """1 MiB, or more, or less: the transport is told."""
    rooms = FakeRooms()
    async with client_without_checks(rooms) as client:
        await client.call("room/any", {}, **how)
    (visit,) = rooms.visits
    assert visit.request.max_reply_bytes == how.get("max_reply_bytes", MIB)


async def test_a_reply_that_just_fits_keeps_no_loop() -> None:
    """While 1 MiB of JSON is taken apart, the loop stands still for less than 50 ms.

    On a slower machine: for at most three times as long as Python's own decoder takes.
    """
    person = json.dumps({"sid": "PA_1", "identity": "u1", "name": "Ada", "joined_at": "1700000000"})
    start, end = '{"status":true,"msg":"yes","status_code":"SUCCESS","found":[', "]}"
    count = (MIB - KIB - len(start + end)) // (len(person) + 1)
    content = (start + ",".join([person] * count) + end).encode()
    rooms = FakeRooms(ask=lambda _: Act(result=Reply(200, (), content)))
    async with client_without_checks(rooms) as client:
        began = time.thread_time()
        json.loads(content)
        decoding = time.thread_time() - began
        async with ticking() as times:
            assert len((await client.call("room/fetchPastRooms"))["found"]) == count
    assert longest_gap(times) < max(0.05, 3 * decoding)
