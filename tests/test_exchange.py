"""One exchange: its limits of time, and what each way to fail is called."""

from __future__ import annotations

import contextlib
import gc
import select
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import httpcore
import httpx
import pytest

from _peer import (
    RECORD,
    Connection,
    Peer,
    Script,
    answering,
    answering_once,
    dripping,
    reply,
    resetting,
    shown_elsewhere,
    silent,
)
from _transports import (
    API_KEY,
    FAILURES,
    JSON_BODY,
    KIB,
    MIB,
    PATIENT,
    REPLIES,
    SIGNATURE,
    Supply,
    Wire,
    both_kinds,
    call,
    either,
    endless_content,
    endless_headers,
    endless_hints,
    finish,
    headers,
    over,
    until,
    upload,
    within,
)
from meeting_async import (
    HttpxTransport,
    Reply,
    Request,
    Timeouts,
    _exchange,
)
from meeting_async._exchange import BodyStream, Exchange
from meeting_async._records import Body
from meeting_async._stack import HTTPX
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    DocumentUnreadable,
    MeetingError,
    TransferTimeout,
    TransportError,
)

pytestmark = pytest.mark.anyio


async def test_a_reply_cut_off_at_every_byte(transport: HttpxTransport) -> None:
    """No part of a reply is taken for a reply."""
    whole = reply()
    cuts: Iterator[int] = iter(range(len(whole)))

    def cut(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        connection.send(whole[: next(cuts)])

    with Peer(cut) as peer:
        for _ in range(len(whole)):
            with pytest.raises(ConnectionLost) as caught:
                await transport.send(call(peer.url))
            assert type(caught.value) is ConnectionLost
    assert peer.connected == len(whole)


async def test_a_chunked_reply_cut_off_at_every_byte(transport: HttpxTransport) -> None:
    """The last chunk is what tells the end, for uploads as well."""
    whole = REPLIES["chunked"]
    cuts: Iterator[int] = iter(range(0, len(whole), 3))

    def cut(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        connection.send(whole[: next(cuts)])

    with Peer(cut) as peer:
        for _ in range(0, len(whole), 3):
            request, body = upload(peer.url)
            with pytest.raises(ConnectionLost):
                await transport.send(request)
            assert body.complete


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\0" * 200_000,
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 2OO OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"<html>",
    ],
    ids=lambda data: repr(data[:25]),
)
async def test_what_is_no_http(transport: HttpxTransport, data: bytes) -> None:
    """The peer violated HTTP: the connection is lost, whatever it said."""
    with Peer(answering_once(data)) as peer:
        for kind in ("json", "upload"):
            with within(2), pytest.raises(ConnectionLost) as caught:
                await transport.send(either(kind, peer.url))
            assert type(caught.value) is ConnectionLost
            assert len(caught.value.reason) < 1000


@both_kinds
@pytest.mark.parametrize("length", [True, False], ids=["declared", "endless"])
async def test_a_reply_over_the_limit(
    transport: HttpxTransport, kind: str, length: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply is read up to the limit and no further; a reply of just the limit is read."""
    monkeypatch.setattr(_exchange, "MAX_REPLY_BYTES", 100_000)
    with Peer(answering_once(reply(content=b"y" * 100_000, length=length))) as peer:
        assert len((await transport.send(either(kind, peer.url))).content) == 100_000
    with Peer(answering_once(reply(content=b"y" * 100_001, length=length))) as peer:
        with within(2), pytest.raises(ConnectionLost, match="100,000"):
            await transport.send(either(kind, peer.url))
        await until(peer.idle)


@both_kinds
async def test_silence_after_the_request(wire: Wire, kind: str) -> None:
    """Given up after the time for the reply, which differs between the kinds."""
    timeouts = attrs.evolve(PATIENT, **{"reply" if kind == "json" else "upload_reply": 0.1})
    async with over(wire, silent) as (transport, peer):
        with within(1.5), pytest.raises(TransferTimeout) as caught:
            await transport.send(either(kind, peer.url, timeouts))
    assert isinstance(caught.value, TimeoutError)


@both_kinds
@pytest.mark.parametrize("pieces", [endless_headers, endless_hints, endless_content])
async def test_a_reply_that_never_ends(
    transport: HttpxTransport, kind: str, pieces: Callable[[], Iterator[bytes]]
) -> None:
    """The time for the reply is a total, from the end of the request: a drip does not extend it."""
    timeouts = attrs.evolve(PATIENT, reply=0.2, upload_reply=0.2)
    with Peer(dripping(pieces, 0.03)) as peer:
        with within(1.5), pytest.raises(TransferTimeout):
            await transport.send(either(kind, peer.url, timeouts))
        await until(peer.idle)


async def test_a_slow_upload_leaves_all_the_time_for_the_reply(transport: HttpxTransport) -> None:
    """The time for the reply starts when the body has ended; that to connect has ended before."""
    timeouts = attrs.evolve(PATIENT, connect=0.3, upload_reply=0.4)

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        connection.closed_within(0.2)
        connection.send(reply())

    with Peer(script) as peer:
        supply = Supply(1000, 500, lambda: anyio.sleep(0.6))
        assert (await transport.send(upload(peer.url, supply, timeouts)[0])).status == 200


async def test_our_own_error_from_a_body_passes_through(wire: Wire) -> None:
    """The same error, with its cause, and no complete form at the other end."""
    cause = OSError("torn")
    error = DocumentUnreadable("deck.pdf", "torn")
    error.__cause__ = cause

    async def fail() -> None:
        raise error

    async with over(wire, silent) as (transport, peer):
        request, body = upload(peer.url, Supply(MIB, MIB // 2, fail))
        with within(2), pytest.raises(DocumentUnreadable) as caught:
            await transport.send(request)
        await until(peer.idle)
    assert caught.value is error
    assert caught.value.__cause__ is cause
    assert not body.complete


@pytest.mark.parametrize("kind", [OSError, ConnectionResetError, TimeoutError, httpx.ReadError])
async def test_another_error_from_a_body_is_not_the_network(
    transport: HttpxTransport, kind: type[Exception]
) -> None:
    """A source of the caller that fails is not a lost connection, which would be tried again."""

    async def fail() -> None:
        raise kind("torn")

    with Peer(silent) as peer, pytest.raises(kind) as caught:
        await transport.send(upload(peer.url, Supply(MIB, MIB // 2, fail))[0])
    assert not isinstance(caught.value, MeetingError)


async def test_a_body_of_another_length_is_not_sent(transport: HttpxTransport) -> None:
    """Neither a shorter nor a longer one makes a complete request."""

    @attrs.define
    class Lying:
        length: int
        left: int = 2

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self

        async def __anext__(self) -> bytes:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return b"x" * 500

    for declared in (999, 1001):
        body: Body = Lying(1000)
        with Peer(silent) as peer:
            pairs = headers(declared)
            request = Request("POST", f"{peer.url}/auth/x", pairs, body, PATIENT, 0.3)
            with within(2), pytest.raises(ConnectionLost):
                await transport.send(request)
            await until(peer.idle)


@both_kinds
@pytest.mark.parametrize("script", FAILURES.values(), ids=FAILURES.keys())
async def test_the_cause_is_kept_without_frames(
    transport: HttpxTransport, kind: str, script: Script
) -> None:
    """What was raised below is the cause; its frames, which know the headers, are gone."""
    limit = 0.1 if script is silent else 5.0
    timeouts = attrs.evolve(PATIENT, reply=limit, upload_reply=limit)
    with Peer(script) as peer, pytest.raises(TransportError) as caught:
        await transport.send(either(kind, peer.url, timeouts))
    error = caught.value
    link: BaseException | None = error.__cause__
    assert script is silent or link is not None
    assert not isinstance(link, MeetingError)
    while link is not None:
        assert link.__traceback__ is None
        link = link.__cause__ or link.__context__
    for secret in (API_KEY, SIGNATURE):
        assert secret.decode() not in shown_elsewhere(error)
        assert secret.decode() not in repr(error) + str(error)


@pytest.mark.parametrize("script", FAILURES.values(), ids=FAILURES.keys())
async def test_the_callers_own_error_keeps_its_traceback(
    transport: HttpxTransport, script: Script
) -> None:
    """A request made while another error is handled leaves that error as it was."""
    timeouts = attrs.evolve(PATIENT, reply=0.1 if script is silent else 5.0)

    def fail() -> None:
        raise KeyError("the caller's")

    async def fall_back() -> None:
        try:
            fail()
        except KeyError:
            with contextlib.suppress(TransportError):
                await transport.send(call(peer.url, timeouts))
            raise

    with Peer(script) as peer, pytest.raises(KeyError) as caught:
        await fall_back()
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "fail"


@pytest.mark.parametrize("value", [SIGNATURE + b"\n", b" " + SIGNATURE, SIGNATURE + b"\0"])
async def test_a_header_that_cannot_be_sent_is_not_shown(
    transport: HttpxTransport, value: bytes
) -> None:
    """The library below quotes illegal values in its error; ours must not."""
    request = call("http://127.0.0.1:9")
    pairs = (*request.headers[2:], (b"HASH-SIGNATURE", value))
    with Peer(silent) as peer:
        url = f"{peer.url}/auth/room/call"
        with pytest.raises(TransportError) as caught:
            await transport.send(attrs.evolve(request, url=url, headers=pairs))
    assert SIGNATURE.decode() not in str(caught.value)
    assert SIGNATURE.decode() not in shown_elsewhere(caught.value)


async def test_an_error_amid_the_reply_leaves_no_generator(
    transport: HttpxTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left for the garbage collector to close; it would warn."""
    monkeypatch.setattr(_exchange, "MAX_REPLY_BYTES", 10)
    left: list[Any] = []
    hooks = sys.get_asyncgen_hooks()

    def finalizer(generator: Any) -> None:
        left.append(generator)
        if hooks.finalizer:
            hooks.finalizer(generator)

    sys.set_asyncgen_hooks(firstiter=hooks.firstiter, finalizer=finalizer)
    try:
        with Peer(answering(reply(content=b"y" * 100_000))) as peer:
            for kind in ("json", "upload"):
                with pytest.raises(ConnectionLost):
                    await transport.send(either(kind, peer.url))
            gc.collect()
    finally:
        sys.set_asyncgen_hooks(*hooks)
    assert [generator.ag_code for generator in left] == []


# --- Expect: 100-continue ------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def asking(wire: Wire, script: Script) -> AsyncIterator[tuple[HttpxTransport, Peer]]:
    """Open a transport that asks before it sends a body, and a peer."""
    transport = HttpxTransport(verify=wire[1], expect_continue=True)
    with Peer(script, tls=wire[0]) as peer:
        try:
            yield transport, peer
        finally:
            await finish(transport)


@pytest.mark.alone
async def test_a_body_that_is_asked_for(wire: Wire) -> None:
    """It waits for the 100, and goes out then."""
    ahead: list[bool] = []

    def script(connection: Connection) -> None:
        connection.read_head()
        ahead.append(readable(connection, 0.15))
        connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.read_body()
        connection.send(reply())

    async with asking(wire, script) as (transport, peer):
        with within(0.9):
            answer = await transport.send(upload(peer.url, Supply(MIB))[0])
    assert (answer.status, answer.content) == (200, RECORD)
    assert peer.requests[0].values(b"Expect") == [b"100-continue"]
    assert len(peer.requests[0].body) == peer.requests[0].length
    assert ahead == [False]


def readable(connection: Connection, seconds: float) -> bool:
    """Tell whether something arrives within so many seconds."""
    return bool(select.select([connection.sock], [], [], seconds)[0])


@pytest.mark.alone
@pytest.mark.parametrize(
    ("status", "interim"),
    [
        *((401, b""), (409, b""), (413, b""), (417, b"")),
        (409, b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    ],
)
async def test_a_body_that_is_refused(wire: Wire, status: int, interim: bytes) -> None:
    """A final answer at once costs not a byte of the body."""
    received = bytearray()

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.send(interim + reply(status))
        with contextlib.suppress(ConnectionError):
            while data := connection.sock.recv(65536):
                received.extend(data)

    async with asking(wire, script) as (transport, peer):
        request, body = upload(peer.url, Supply(4 * MIB))
        with within(0.9):
            answer = await transport.send(request)
        await until(peer.idle)
    assert (answer.status, answer.content) == (status, RECORD)
    assert received == b""
    assert not body.complete


@pytest.mark.alone
async def test_a_server_that_does_not_know_the_question() -> None:
    """After a second the body goes out all the same."""
    async with asking((None, True), answering(reply())) as (transport, peer):
        started = anyio.current_time()
        request, body = upload(peer.url)
        assert (await transport.send(request)).status == 200
        assert 0.98 <= anyio.current_time() - started < 1.6
    assert body.complete
    assert len(peer.requests[0].body) == body.length


@pytest.mark.alone
async def test_a_call_is_not_asked_for() -> None:
    """It is so small that the question would cost more."""
    async with asking((None, True), answering(reply())) as (transport, peer):
        with within(0.5):
            assert (await transport.send(call(peer.url))).status == 200
    assert peer.requests[0].values(b"Expect") == []


def leaving(connection: Connection) -> None:
    """Close when the head has been read."""
    connection.read_head()


@pytest.mark.alone
@pytest.mark.parametrize("script", [resetting(0), leaving])
async def test_a_server_that_leaves_when_asked(wire: Wire, script: Script) -> None:
    """The connection is lost, and the body was not sent."""
    async with asking(wire, script) as (transport, peer):
        request, body = upload(peer.url, Supply(4 * MIB))
        with within(0.9), pytest.raises(ConnectionLost):
            await transport.send(request)
    assert not body.complete


async def test_an_interim_reply_is_not_the_last_word(wire: Wire) -> None:
    """After the 100 the server may still refuse."""

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.read_body(64 * KIB)
        connection.send(reply(413))
        connection.closed_within(5)

    async with asking(wire, script) as (transport, peer):
        request, body = upload(peer.url, Supply(64 * MIB))
        with within(2):
            assert (await transport.send(request)).status == 413
    assert not body.complete


# --- by themselves -------------------------------------------------------------------------------


def exchange_of(body: Body | bytes = JSON_BODY, **limits: float) -> Exchange:
    """Make an exchange that nobody sends."""
    request = attrs.evolve(call("http://meet.invalid", Timeouts(**limits)), body=body)
    return Exchange(request, HTTPX.failures)


@pytest.mark.parametrize(
    ("phase", "expected", "match"),
    [
        ("connecting", ConnectFailed, r"no connection in time \(3 s\)"),
        ("sending", None, ""),
        ("replying", TransferTimeout, "no complete reply within 7 s"),
    ],
)
def test_each_phase_has_its_limit(
    in_virtual_time: Callable[..., Any], phase: str, expected: type[Exception] | None, match: str
) -> None:
    """Connecting as a whole, none for the body, then the reply as a whole."""

    async def converse(exchange: Exchange) -> Reply:
        if phase != "connecting":
            await anyio.sleep(2.9)
            exchange.begin_body()
            await anyio.sleep(10_000)
        if phase == "replying":
            exchange.begin_reply()
            await anyio.sleep(3)
            exchange.begin_reply()  # the first one counts
            await anyio.sleep(3.9)
            started.append(anyio.current_time())
        await anyio.sleep(100 if expected else 0)
        return Reply(200, (), b"")

    async def run() -> None:
        exchange = exchange_of(connect=3, reply=7)
        with contextlib.nullcontext() if expected is None else pytest.raises(expected, match=match):
            await exchange.run(converse)
        if phase == "replying":
            assert anyio.current_time() - started[0] == pytest.approx(0.1)

    started: list[float] = []
    in_virtual_time(run)


def test_a_reply_begins_only_after_a_body(in_virtual_time: Callable[..., Any]) -> None:
    """A cut while connecting does not give the time of a reply to it."""

    async def converse(exchange: Exchange) -> Reply:
        exchange.begin_reply()
        await anyio.sleep(5)
        raise AssertionError

    async def run() -> None:
        started = anyio.current_time()
        with pytest.raises(ConnectFailed):
            await exchange_of(connect=3, reply=7).run(converse)
        assert anyio.current_time() - started == pytest.approx(3)

    in_virtual_time(run)


async def test_a_body_before_it_is_iterated_over() -> None:
    """It is at its end, and stays there."""
    stream = BodyStream(exchange_of())
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert [chunk async for chunk in stream] == [JSON_BODY]
    assert [chunk async for chunk in stream] == [JSON_BODY]
    assert [chunk async for chunk in BodyStream(exchange_of(b""))] == []


async def test_a_pause_comes_once_before_the_first_chunk() -> None:
    """When the head is on its way."""
    paused: list[str] = []

    async def pause() -> None:
        paused.append("paused")

    stream = aiter(BodyStream(exchange_of(), pause))
    assert paused == []
    paused += [chunk.decode() async for chunk in stream]
    assert paused == ["paused", JSON_BODY.decode()]


@pytest.mark.parametrize("tunnel", [True, False])
@pytest.mark.parametrize("phase", ["connecting", "sending", "replying"])
@pytest.mark.parametrize(
    "raised", [httpcore.ReadError("x"), httpcore.ConnectError("x"), httpcore.WriteTimeout("x")]
)
async def test_what_an_error_means_depends_on_the_phase(
    tunnel: bool, phase: str, raised: Exception
) -> None:
    """``ConnectFailed`` only while connecting; in a tunnel everything there is."""

    async def converse(exchange: Exchange) -> Reply:
        exchange.tunnel = tunnel
        if phase != "connecting":
            exchange.begin_body()
        if phase == "replying":
            exchange.begin_reply()
        raise raised

    with pytest.raises(TransportError) as caught:
        await exchange_of().run(converse)
    connecting = phase == "connecting" and (tunnel or isinstance(raised, httpcore.ConnectError))
    other = TransferTimeout if isinstance(raised, httpcore.WriteTimeout) else ConnectionLost
    assert type(caught.value) is (ConnectFailed if connecting else other)
    assert "(x)" in caught.value.reason
    assert caught.value.__cause__ is raised
