"""The contract of ``Transport`` on real sockets: bytes, cuts, errors, cancellation, closing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import h11
import httpx
import httpx2
import pytest
import trio

from meeting_async import errors
from meeting_async._models import Request, Secret
from meeting_async.transports import Body, HttpTransport, HttpxTransport, Transport
from support.interruptions import cancelled_by_scope, cancelled_natively
from support.leaks import descriptors
from support.peer import (
    RECORD,
    WHOLE,
    Connection,
    Peer,
    Script,
    answering,
    deaf,
    dripping,
    endless_content,
    reply,
    resetting,
    resetting_at_once,
    silent,
)
from support.ports import free_port
from support.sending import (
    JSON_BODY,
    KIB,
    MIB,
    SIGNATURE,
    TAIL,
    Form,
    Wire,
    call,
    closing,
    headers,
    living_tasks,
    over,
    shown,
    until,
    upload,
    within,
)
from support.tables import in_turn

pytestmark = [pytest.mark.anyio]

both_loops = pytest.mark.both_loops
both_kinds = pytest.mark.parametrize("kind", ["call", "upload"])

# --- the first request ---------------------------------------------------------------------------

FIRST_REQUESTS = """
import sys, time
import anyio
from meeting_async import MeetingClient

class SlowDisk:
    loading = False
    def find_spec(self, name, path=None, target=None):
        if name == "httptools":
            self.loading = True
            time.sleep(2)
            self.loading = False

async def main(url, ticks=0):
    async with MeetingClient(url, api_key="key", api_secret="secret") as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call, "any", {})
            await anyio.sleep(0.1)
            group.start_soon(client.call, "any", {})
            while not ticks or disk.loading:
                ticks += disk.loading
                await anyio.sleep(0.01)
    assert ticks > 5, ticks  # one, if the second request holds up the loop

disk = SlowDisk()
assert "httptools" not in sys.modules
sys.meta_path.insert(0, disk)
anyio.run(main, sys.argv[1], backend=sys.argv[2])
"""


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_loop_runs_while_what_sends_is_loaded(backend: str) -> None:
    """Also if a second request begins meanwhile."""
    answer = reply(200, b'{"status": true, "msg": "done"}')
    with Peer(answering(answer), answering(answer)) as peer:
        command = [sys.executable, "-c", FIRST_REQUESTS, peer.url, backend]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- bytes ---------------------------------------------------------------------------------------


@both_loops
@pytest.mark.parametrize("size", [0, 1000, 3 * MIB + 1])
async def test_the_bytes_on_the_wire(wire: Wire, size: int) -> None:
    """Method, target, headers and body arrive exactly as they were given."""
    form = Form(size)
    async with over(wire, answering(reply())) as (transport, peer):
        answer = await transport.send(upload(peer.url, form))
    assert (answer.status, answer.content) == (200, RECORD)
    assert (b"Content-Type", b"application/json") in answer.headers
    (received,) = peer.requests
    assert received.body == Form(size).content
    assert answer.sent == form.length
    lines = received.head.split(b"\r\n")
    assert lines[0] == b"POST /auth/room/upload HTTP/1.1"
    assert lines[1] == b"Host: 127.0.0.1:%d" % peer.port
    assert lines[2].startswith(b"User-Agent: meeting-async")
    assert lines[3:-2] == [b"%b: %b" % pair for pair in headers(form.length, Room_Id=b"room01")]


@both_loops
async def test_a_call_is_one_packet(wire: Wire) -> None:
    """Head and body leave together, so that the server is woken once."""
    sizes: list[int] = []

    def script(connection: Connection) -> None:
        sizes.append(len(connection.sock.recv(65536)))
        connection.send(reply())

    async with over(wire, script) as (transport, peer):
        await transport.send(call(peer.url))
    assert sizes[0] > len(JSON_BODY) + 200


# --- cuts ----------------------------------------------------------------------------------------

SIZE = 2 * MIB
LENGTH = SIZE + len(TAIL)
CUTS: dict[str, tuple[Script, int, range]] = {
    "at once": (resetting_at_once, 64 * KIB, range(64 * KIB + 1)),
    "before the body": (resetting(0), 64 * KIB, range(64 * KIB + 1)),
    "after 1 MiB": (resetting(MIB), MIB + 64 * KIB, range(MIB, MIB + 64 * KIB + 1)),
    "one byte before the boundary": (
        resetting(-len(TAIL) - 1),
        SIZE - 1,
        range(SIZE - 1, SIZE),
    ),
    "right before the boundary": (resetting(-len(TAIL)), SIZE, range(SIZE, SIZE + 1)),
    "within the boundary": (resetting(-len(TAIL) + 1), -1, range(LENGTH, LENGTH + 1)),
    "right after the boundary": (resetting(WHOLE), -1, range(LENGTH, LENGTH + 1)),
}
"""Where the peer resets, up to which byte the body waits for that, and how much was then sent."""


@both_loops
@pytest.mark.parametrize(("script", "hold", "sent"), CUTS.values(), ids=CUTS.keys())
async def test_a_connection_that_is_cut_off(
    wire: Wire, script: Script, hold: int, sent: range
) -> None:
    """The connection is lost, and ``sent`` is what the operating system took.

    A server that got one byte of the closing boundary may have the document.
    """
    async with over(wire, script) as (transport, peer):

        async def is_cut() -> None:
            await until(lambda: peer.connected and not peer.open)

        form = Form(SIZE, hold, is_cut)
        with within(10), pytest.raises((errors.ConnectionLost, errors.ConnectFailed)) as caught:
            await transport.send(upload(peer.url, form))
    assert caught.value.sent in sent
    assert caught.value.host == f"127.0.0.1:{peer.port}"
    assert peer.connected == 1
    assert all(len(received.body) in range(sent.stop) for received in peer.requests)


async def test_a_peer_that_hangs_up_before_reading() -> None:
    """A small document that was only gathered in a buffer of ours was not sent."""
    async with over((None, True), lambda connection: None) as (transport, peer):

        async def is_gone() -> None:
            await until(lambda: peer.connected and not peer.open)

        form = Form(1000, 1000, is_gone)
        with pytest.raises(errors.TransportError) as caught:
            await transport.send(upload(peer.url, form))
    assert caught.value.sent == 0


@both_loops
@pytest.mark.parametrize("seconds", [0.02, 0.4])
async def test_a_peer_that_stops_reading(wire: Wire, seconds: float) -> None:
    """It is given up in time; ``sent`` is what fits into the buffers, not what the body yielded."""
    async with over(wire, deaf, receive_buffer=64 * KIB) as (transport, peer):
        form, started = Form(64 * MIB), anyio.current_time()
        words = f"stopped reading for {seconds:g} s"
        with within(5), pytest.raises(errors.TransferTimeout, match=words) as caught:
            await transport.send(upload(peer.url, form, stall_timeout=seconds))
        assert anyio.current_time() - started > seconds - 0.005
    assert caught.value.sent
    assert caught.value.sent < form.taken < 32 * MIB


async def test_a_fragment_is_reset() -> None:
    """The peer learns that what it got is no request, whatever ended it; a whole one arrives."""
    ends: list[str] = []

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.closed_within(5)
        try:
            connection.drain()
        except ConnectionResetError:
            ends.append("reset")
        else:
            ends.append("closed")

    async with over((None, True), script, receive_buffer=16 * KIB) as (transport, peer):
        with pytest.raises(errors.TransferTimeout):
            await transport.send(upload(peer.url, Form(8 * MIB), stall_timeout=0.1))
        with anyio.move_on_after(0.5):
            await transport.send(upload(peer.url, Form(8 * MIB)))
        with anyio.move_on_after(0.5):
            await transport.send(call(peer.url))
        await until(lambda: not peer.open)
    assert sorted(ends) == ["closed", "reset", "reset"]


# --- errors --------------------------------------------------------------------------------------


ADDRESSES = {
    **dict.fromkeys(["", "ftp://127.0.0.1", "http://", "http://:80"], "http or https with a host"),
    "http://[::1": "Invalid IPv6",
    "http://h:99999": "out of range",
    "a closed port": "refused",
}


@pytest.mark.parametrize(("url", "words"), ADDRESSES.items())
async def test_what_cannot_be_connected_to(url: str, words: str) -> None:
    """No address, or nobody listens there: the request was not sent, and the body not touched."""
    host, form = f"127.0.0.1:{free_port()}", Form()
    is_closed = url == "a closed port"
    url = f"http://{host}" if is_closed else url
    transport = HttpTransport()
    async with closing(transport):
        for request in (call(url), upload(url, form)):
            with pytest.raises(errors.ConnectFailed) as caught:
                await transport.send(request)
            assert words in caught.value.reason
    assert form.taken == caught.value.sent == 0
    if is_closed:
        assert (caught.value.host, type(caught.value)) == (host, errors.ConnectFailed)
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)


@contextlib.asynccontextmanager
async def transport_of(module: Any) -> AsyncIterator[Transport]:
    """Open a transport, ours or one with a client of a library."""
    if module is None:
        transport = HttpTransport()
        async with closing(transport):
            yield transport
        return
    async with module.AsyncClient(trust_env=False) as client:
        yield HttpxTransport(client)


@in_turn("module", [("ours", None), ("httpx", httpx)])
@pytest.mark.parametrize("kind", [OSError, h11.RemoteProtocolError, errors.ConnectionLost])
async def test_an_error_of_the_body(module: Any, kind: type[Exception]) -> None:
    """It reaches the caller as it is, whatever it is, and no complete form is sent."""
    error = kind("torn")

    async def fail() -> None:
        raise error

    with Peer(silent) as peer:
        async with transport_of(module) as transport:
            form = Form(MIB, MIB // 2, fail)
            with within(5), pytest.raises(type(error)) as caught:
                await transport.send(upload(peer.url, form))
            await until(lambda: not peer.open)
    assert caught.value is error
    assert form.taken == MIB // 2


async def test_a_body_of_another_length() -> None:
    """Neither a shorter nor a longer one makes a complete request."""

    @attrs.define
    class Lying(Form):
        declared: int = 0

    for declared in (1000, 1100):
        body: Body = Lying(1000, declared=declared)
        async with over((None, True), silent) as (transport, peer):
            request = Request(url=peer.url, headers=headers(declared), body=body, reply_timeout=0.3)
            with within(5), pytest.raises(errors.ConnectionLost):
                await transport.send(request)
            await until(lambda: not peer.open)


@pytest.mark.parametrize("module", [None, httpx, httpx2])
async def test_a_header_that_cannot_be_sent(module: Any) -> None:
    """The libraries below quote it in their errors; ours do not, and nothing hangs on to theirs."""
    broken = Secret(SIGNATURE.encode() + b"\n")
    pairs = (*headers(2)[:1], (b"HASH-SIGNATURE", broken), *headers(2)[2:])
    with Peer(answering(reply())) as peer:
        request = attrs.evolve(call(peer.url, b"{}"), headers=pairs)
        async with transport_of(module) as transport:
            with pytest.raises(errors.TransportError) as caught:
                await transport.send(request)
    assert SIGNATURE not in shown(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert peer.requests == []


@pytest.mark.parametrize("script", [resetting_at_once, silent])
async def test_the_callers_own_error_keeps_its_traceback(script: Script) -> None:
    """A request made while another error is handled leaves that error as it was."""

    def fail() -> None:
        raise KeyError("the caller's")

    async def fall_back(transport: Transport, url: str) -> None:
        try:
            fail()
        except KeyError:
            with pytest.raises(errors.TransportError):
                await transport.send(call(url, reply_timeout=0.2))
            raise

    async with over((None, True), script) as (transport, peer):
        with pytest.raises(KeyError) as caught:
            await fall_back(transport, peer.url)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "fail"


# --- closing -------------------------------------------------------------------------------------


def test_it_is_a_transport() -> None:
    """The protocol can be checked at run time."""
    assert isinstance(HttpTransport(), Transport)
    assert repr(HttpTransport()) == "<HttpTransport with 0 requests in progress>"
    assert repr(HttpTransport.__new__(HttpTransport)).startswith("<HttpTransport")


async def test_a_closed_transport() -> None:
    """Using it again is a mistake that is told; closing it again is none."""
    transport = HttpTransport()
    for _ in range(2):
        await transport.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await transport.send(call("http://127.0.0.1:9"))


PHASES: dict[str, Script] = {
    "sending": deaf,
    "waiting": silent,
    "reading": silent,
    "receiving": dripping(endless_content, 0.01),
    **dict.fromkeys(["looking up", "connecting", "shaking hands", "tunnelling"], deaf),
}


@in_turn("phase", PHASES)
async def test_closing_ends_what_is_under_way(
    phase: str, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, with an error that says so; nothing is sent afterwards."""
    has_begun = phase in {"sending", "waiting", "reading", "receiving"}
    looks = threading.Event()

    def lookup(*_args: object, **_options: object) -> list[object]:
        looks.set()
        time.sleep(1)
        return []

    with Peer(PHASES[phase], receive_buffer=64 * KIB) as peer:
        urls = {
            "looking up": f"http://localhost:{peer.port}",
            "connecting": f"http://{full}",
            "shaking hands": f"https://127.0.0.1:{peer.port}",
            "tunnelling": "https://meet.invalid",
        }
        if phase == "looking up":
            monkeypatch.setattr(socket, "getaddrinfo", lookup)
        proxy = peer.url if phase == "tunnelling" else None
        transport, others = HttpTransport(verify=False, proxy=proxy), contextlib.ExitStack()

        async def close_at_once() -> None:
            await transport.aclose()
            for sock in socket.socketpair():  # one of them has the number of the socket
                others.enter_context(sock)

        form = Form(16 * MIB, at=MIB if phase == "reading" else -1, happening=close_at_once)

        async def close() -> None:
            if phase == "reading":
                return
            await anyio.wait_all_tasks_blocked()  # the request has begun
            if has_begun:
                await until(lambda: form.taken if phase == "sending" else form.is_complete)
            elif phase != "connecting":
                await until(lambda: peer.connected or looks.is_set())
            await anyio.sleep(0.05)
            await transport.aclose()

        with within(9), others:
            async with anyio.create_task_group() as group:
                group.start_soon(close)
                kind = errors.ConnectionLost if has_begun else errors.ConnectFailed
                with pytest.raises(kind, match="was closed") as caught:
                    await transport.send(upload(urls.get(phase, peer.url), form))
        await until(lambda: not peer.open)
    assert ":" in caught.value.host or phase == "connecting"  # perhaps it has not begun to
    assert caught.value.sent in (range(1, form.taken + 1) if has_begun else [0])
    assert form.taken > 0 or not has_begun


@both_loops
async def test_closing_at_any_moment_of_connecting() -> None:
    """Either the request was sent before, or never is; no connection is left."""
    for delay in range(12):
        with Peer(answering(reply())) as peer:
            transport = HttpTransport()
            outcome: list[object] = []

            async def send(transport: HttpTransport, url: str, outcome: list[object]) -> None:
                try:
                    outcome.append((await transport.send(call(url))).status)
                except (errors.ConnectFailed, RuntimeError):  # the latter if it was closed before
                    outcome.append("never sent")
                except errors.ConnectionLost:
                    outcome.append("lost")

            async with anyio.create_task_group() as group:
                group.start_soon(send, transport, peer.url, outcome)
                for _ in range(delay):
                    await anyio.lowlevel.checkpoint()
                await transport.aclose()
            await until(lambda peer=peer: not peer.open)  # type: ignore[misc]
        assert outcome != ["never sent"] or peer.requests == []


# --- loops ---------------------------------------------------------------------------------------


def test_one_loop_after_another() -> None:
    """Idle connections of the first loop are closed, not used."""
    transport = HttpTransport()

    async def main(peer: Peer, last: bool) -> None:
        assert (await transport.send(call(peer.url))).status == 200
        if last:
            await transport.aclose()

    with Peer(answering(reply())) as peer:
        asyncio.run(main(peer, False))
        asyncio.run(main(peer, False))
        trio.run(main, peer, True)
        assert peer.connected == 3


# --- cancellation --------------------------------------------------------------------------------


@both_loops
@both_kinds
async def test_cancelled_at_every_wait(wire: Wire, kind: str) -> None:
    """Its connection is closed, no task and no place is left, and the next request works."""
    await _cancelled_everywhere(wire, kind, cancelled_by_scope)


@both_kinds
def test_cancelled_natively_at_every_wait(wire: Wire, kind: str) -> None:
    """The same for ``task.cancel()`` of asyncio, which breaks through shields."""
    asyncio.run(_cancelled_everywhere(wire, kind, cancelled_natively))


async def _cancelled_everywhere(
    wire: Wire, kind: str, cancel: Callable[..., Awaitable[bool]]
) -> None:
    async with over(wire, answering(reply())) as (transport, peer):
        await transport.send(call(peer.url, idempotent=False))  # loads certificates
        await until(lambda: not peer.open)
        before, tasks = descriptors(peer), living_tasks()
        number = 1
        while await cancel(transport.send(_fresh(kind, peer.url)), number):
            await until(lambda: not peer.open)
            assert (await transport.send(_fresh(kind, peer.url))).status == 200
            await until(lambda: not peer.open)
            assert descriptors(peer) == before
            await until(lambda: living_tasks() == tasks)
            number += 1
        assert number > 2


def _fresh(kind: str, url: str) -> Request:
    return call(url, idempotent=False) if kind == "call" else upload(url, Form(100 * KIB))
