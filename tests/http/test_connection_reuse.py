"""Connections: which are used again, for how long they are kept, how many there are."""

from __future__ import annotations

import copy
import operator
import pickle
import threading
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import attrs
import pytest

from meeting_async._http import connections
from meeting_async._http.stream import Stream
from meeting_async.errors import ConnectionLost
from meeting_async.transports import HttpTransport
from support.interpreter import Interpreter
from support.peer import (
    CHUNKED,
    RECORD,
    Connection,
    Peer,
    Script,
    answering,
    answering_once,
    reply,
)
from support.sending import Form, Wire, call, over, until, upload

pytestmark = [pytest.mark.anyio]

TCP: Wire = None, True
both_loops = pytest.mark.both_loops


@both_loops
async def test_uploads_have_connections_of_their_own(wire: Wire) -> None:
    """Uploads, and calls that must not be sent twice, neither use an idle one nor leave one."""
    async with over(wire, answering(reply())) as (transport, peer):
        await transport.send(call(peer.url))
        await transport.send(upload(peer.url))
        await transport.send(call(peer.url, idempotent=False))
        await until(lambda: peer.open == 1)
        assert peer.connected == 3
        await transport.send(call(peer.url))
        await transport.send(upload(peer.url, Form(), idempotent=True))
        assert peer.connected == 4


@both_loops
@pytest.mark.parametrize("end", ["closes", "resets", "reads"])
async def test_a_stale_connection(wire: Wire, end: str) -> None:
    """A proxy drops idle connections: the next call notices, or goes out again on a new one.

    What must not be sent twice is not on it.
    """

    def once(connection: Connection) -> None:
        answering_once(reply())(connection)
        if end == "resets":
            connection.reset()
        elif end == "reads":
            connection.read_head()  # of the second request

    async with over(wire, once) as (transport, peer):
        for number in range(3):
            request = call(peer.url, idempotent=end != "reads")
            assert (await transport.send(request)).status == 200
            await until(lambda: not peer.open)
            assert peer.connected == number + 1
        if end == "reads":
            for number in (4, 5):  # the fifth connection is for the second call
                assert (await transport.send(call(peer.url))).status == 200
                assert peer.connected == number


@both_loops
async def test_what_follows_a_check_goes_nowhere_else(wire: Wire) -> None:
    """The server may have restarted: what breaks on a kept connection is told, not sent again."""

    def once(connection: Connection) -> None:
        answering_once(reply())(connection)
        connection.read_head()

    async with over(wire, once) as (transport, peer):
        asked = (await transport.send(call(peer.url, is_check=True))).peer
        with pytest.raises(ConnectionLost) as caught:
            await transport.send(attrs.evolve(call(peer.url), peer=asked))
        assert (caught.value.stale, peer.connected) == (True, 1)


async def test_a_reply_can_be_copied() -> None:
    """By a transport that records; who has answered is of use only to the one that has asked."""
    async with over(TCP, answering(reply())) as (transport, peer):
        answer = await transport.send(call(peer.url, is_check=True))
    assert answer.peer is not None
    for copied in (pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer)):
        assert copied == answer
        assert copied.peer is None


SMUGGLED = reply(content=b'{"status":true,"room":"somebody else\'s"}')

CLEAN = {
    "plain": (reply(), True),
    "empty": (reply(content=b""), True),
    "long": (reply(content=RECORD.ljust(100_000)), True),
    "long head": (reply(headers=[b"X-Long: " + b"x" * 50_000]), True),
    "refusal": (reply(500), True),
    "length twice": (reply(headers=[b"Content-Length: %d" % len(RECORD)]), True),
    "odd length": (reply(length=False, headers=[b"Content-Length: 0%d" % len(RECORD)]), True),
    "chunked": (
        reply(length=False, content=b"0\r\n\r\n", headers=[b"Transfer-Encoding: chunked"]),
        True,
    ),
    "chunked, a byte behind": (
        reply(length=False, content=b"0\r\n\r\nx", headers=[b"Transfer-Encoding: chunked"]),
        False,
    ),
    "in two chunks": (
        CHUNKED
        + b"10\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (RECORD[:16], len(RECORD) - 16, RECORD[16:]),
        True,
    ),
    "after 103": (b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + reply(), True),
    "no length": (reply(length=False, headers=[b"Connection: close"]), False),
    "close": (reply(headers=[b"Connection: close"]), False),
    "1.0": (reply(version=b"1.0", headers=[b"Connection: keep-alive"]), False),
    "a byte behind": (reply() + b"x", False),
    "a reply behind": (reply() + SMUGGLED, False),
}


@both_loops
@pytest.mark.parametrize(("data", "shared"), CLEAN.values(), ids=CLEAN.keys())
async def test_replies_of_all_kinds(wire: Wire, data: bytes, shared: bool) -> None:
    """Each is understood; a connection is used again if its last reply is whole and all that came.

    So what follows is never the next reply.
    """
    script = answering(data) if shared else answering_once(data)
    async with over(wire, script) as (transport, peer):
        for _ in range(3):
            answer = await transport.send(call(peer.url))
            assert answer.status in {200, 500}
            assert answer.content.rstrip() == (RECORD if RECORD[16:] in data else b"")
        assert peer.connected == (1 if shared else 3)


@both_loops
async def test_surplus_that_comes_later(wire: Wire) -> None:
    """Bytes that follow a reply some time after it never answer the next call."""
    sent: list[None] = []

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        connection.send(reply())
        connection.closed_within(0.02)
        connection.send(SMUGGLED)
        sent.append(None)
        connection.drain()

    async with over(wire, script) as (transport, peer):
        for number in range(1, 4):
            assert (await transport.send(call(peer.url))).content == RECORD
            assert peer.connected == number
            await until(partial(operator.eq, sent, [None] * number))
            await anyio.sleep(0.02)


async def test_a_kept_connection_is_looked_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is it quiet, and then for the reply, after a wait; each look is a system call."""
    looks: list[bytes | None] = []
    receive = Stream.receive

    def counted(stream: Stream) -> bytes | None:
        looks.append(receive(stream))
        return looks[-1]

    async with over(TCP, answering(reply())) as (transport, peer):
        await transport.send(call(peer.url))
        monkeypatch.setattr(Stream, "receive", counted)
        await transport.send(call(peer.url))
    assert looks == [None, reply()]


# --- idle ones -----------------------------------------------------------------------------------


async def together(transport: HttpTransport, url: str, count: int) -> None:
    """Send so many calls at the same time."""
    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(transport.send, call(url))


def together_answered(count: int) -> Script:
    """Make a script that answers when so many requests are there, and then at once."""
    barrier = threading.Barrier(count)

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        barrier.wait(10)
        connection.send(reply())
        answering(reply())(connection)

    return script


async def test_no_more_than_twenty_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are closed; the newest is used first."""
    monkeypatch.setattr(connections, "IDLE_SECONDS", 60)
    async with over(TCP, together_answered(22)) as (transport, peer):
        await together(transport, peer.url, 22)  # though all look the server up at the same time
        await until(lambda: peer.open == 20)
        for _ in range(3):
            await transport.send(call(peer.url))
        assert (peer.open, peer.connected) == (20, 22)


@both_loops
async def test_old_connections_are_closed(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """When one is taken or kept, those that are too old are closed; a use makes one young again."""
    clock = [0.0]
    monkeypatch.setattr(connections, "clock_of", lambda _loop: lambda: clock[0])
    scripts = [*[together_answered(3)] * 3, answering(reply())]
    async with over(wire, *scripts) as (transport, peer):
        await together(transport, peer.url, 3)
        for _ in range(6):
            clock[0] += 1
            await transport.send(call(peer.url))
        await until(lambda: peer.open == 1)  # the two others are closed
        assert peer.connected == 3
        clock[0] += 4.5
        await transport.send(upload(peer.url))
        await until(lambda: not peer.open)
        assert peer.connected == 4


@pytest.mark.parametrize(("backend", "end"), [("asyncio", "leave"), ("trio", "close")])
def test_an_idle_connection_keeps_no_program_alive(
    python: Interpreter, tmp_path: Path, backend: str, end: str
) -> None:
    """The loop ends at once, and without a warning if the transport was closed."""
    code = """
import anyio, sys, time
sys.path.append({tests!r})
from support.sending import call
from meeting_async._http import connections
from meeting_async._http.stream import Stream
from meeting_async.transports import HttpTransport

connections.IDLE_SECONDS = 30

async def main():
    transport = HttpTransport()
    await transport.send(call({url!r}))
    if {end!r} == "close":
        await transport.aclose()

started = time.monotonic()
anyio.run(main, backend={backend!r})
sys.exit(time.monotonic() - started > 20)
"""
    with Peer(answering(reply())) as peer:
        tests = Path(__file__).parents[1]
        code = code.format(tests=str(tests), url=peer.url, end=end, backend=backend)
        status, _, stderr = python.run(code, tmp_path)
    assert status == 0, stderr
    assert end == "leave" or stderr == ""
