"""What fails is named, and shows neither key nor signature, also where locals are shown."""

from __future__ import annotations

import logging
import ssl
import traceback
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import attrs
import httpx
import httpx2
import pytest

from meeting_async import errors
from meeting_async._models import Secret
from meeting_async.transports import HttpTransport, HttpxTransport, Request, Transport
from support.interruptions import cancelled_by_scope
from support.peer import (
    WHOLE,
    Peer,
    Script,
    answering,
    answering_once,
    deaf,
    early,
    flooding,
    reply,
    resetting,
    resetting_at_once,
    silent,
)
from support.sending import (
    API_KEY,
    KIB,
    MIB,
    SIGNATURE,
    Form,
    Wire,
    call,
    closing,
    either,
    headers,
    living_tasks,
    over,
    shown,
    until,
    upload,
    within,
)

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]

both_kinds = pytest.mark.parametrize(
    "kind", [pytest.param("call", marks=pytest.mark.nightly), "upload"]
)

LOST, LATE = errors.ConnectionLost, errors.TransferTimeout
FAILURES: dict[str, tuple[Script, tuple[type[errors.TransportError], ...]]] = {
    "reset at once": (resetting_at_once, (LOST, errors.ConnectFailed)),
    "reset in the body": (resetting(100), (LOST,)),
    "reset behind the body": (resetting(WHOLE), (LOST,)),
    "no HTTP": (answering_once(b"garbage\r\n\r\n"), (LOST,)),
    "closed": (answering_once(b""), (LOST,)),
    "half a head": (answering_once(reply()[:20]), (LOST,)),
    "half a reply": (answering_once(reply()[:-5]), (LOST,)),
    "too long": (flooding(bytes(64 * KIB), 4 * MIB), (LOST,)),
    "silent": (silent, (LATE,)),
    "deaf": (deaf, (LATE, errors.ConnectFailed)),
    "early and closed": (early(b"", lambda connection: None), (LOST,)),
}
each_failure = pytest.mark.parametrize(
    ("script", "expected"), FAILURES.values(), ids=FAILURES.keys()
)


@pytest.fixture
async def any_transport(
    request: pytest.FixtureRequest, tls: Contexts
) -> AsyncGenerator[tuple[Transport, ssl.SSLContext | None]]:
    """Provide one of our own, or one with a client of each kind, and what its peer needs."""
    if request.param.startswith("own"):
        transport = HttpTransport(verify=tls[1])
        async with closing(transport):
            yield transport, tls[0] if "tls" in request.param else None
        return
    module: Any = {"httpx": httpx, "httpx2": httpx2}[request.param]
    async with module.AsyncClient(verify=tls[1], trust_env=False) as client:
        yield HttpxTransport(client), None


@both_kinds
@each_failure
async def test_each_failure_is_named_and_shows_no_secret(
    any_transport: tuple[Transport, ssl.SSLContext | None],
    kind: str,
    script: Script,
    expected: tuple[type[errors.TransportError], ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither in error nor causes, nor in the debug logs of what is below our own transport."""
    caplog.set_level(logging.DEBUG)
    transport, server_side = any_transport
    limits: dict[str, Any] = {"max_reply_bytes": MIB}
    if script in {silent, deaf}:
        limits |= {"reply_timeout": 0.2, "stall_timeout": 0.2, "connect_timeout": 1}
    tasks = living_tasks()
    with Peer(script, tls=server_side, receive_buffer=16 * KIB) as peer:
        request = call(peer.url, **limits) if kind == "call" else _large(peer.url, **limits)
        with within(10), pytest.raises(expected) as caught:
            await transport.send(request)
        assert caught.value.host == f"127.0.0.1:{peer.port}"
        if script is not deaf:  # which does not see the end of a connection that is full
            await until(lambda: not peer.open)
    await until(lambda: living_tasks() <= tasks)
    assert _leaks(caught.value) == []
    if "your own client" not in repr(transport):
        assert [word for word in SECRETS if word in caplog.text] == []


SECRETS = [API_KEY, SIGNATURE]


def _large(url: str, **limits: Any) -> Request:
    return upload(url, Form(8 * MIB), **limits)


def _leaks(error: BaseException) -> list[str]:
    text = shown(error)
    return [word for word in SECRETS if word in text]


@both_kinds
@pytest.mark.parametrize("script", [deaf, silent], ids=["sending", "waiting"])
async def test_no_cancellation_shows_a_secret(wire: Wire, kind: str, script: Script) -> None:
    """Its traceback goes through every frame below."""
    raised: list[BaseException] = []

    async def send(transport: Transport, request: Request) -> None:
        try:
            await transport.send(request)
        except BaseException as error:
            raised.append(error)
            raise

    async with over(wire, script, receive_buffer=16 * KIB) as (transport, peer):
        for seconds in (0.001, 0.01, 0.05, 0.2):
            request = call(peer.url) if kind == "call" else _large(peer.url)
            with anyio.move_on_after(seconds):
                await send(transport, request)
    assert len(raised) == 4
    for error in raised:
        assert _leaks(error) == []


@pytest.mark.parametrize("size", [100, 20 * KIB])
async def test_no_cancellation_at_any_wait_shows_a_secret(wire: Wire, size: int) -> None:
    """Wherever it strikes, also with a head that is longer than what is usually gathered."""
    raised: list[BaseException] = []
    async with over(wire, answering(reply())) as (transport, peer):
        request = call(peer.url, idempotent=False)
        request = attrs.evolve(request, headers=(*request.headers, (b"X-Long", b"x" * size)))
        await transport.send(call(peer.url))  # what is settled once for a server is settled then

        async def send() -> None:
            try:
                await transport.send(request)
            except BaseException as error:
                raised.append(error)
                raise

        number = 1
        while await cancelled_by_scope(send(), number):
            number += 1
    assert number > 2
    assert len(raised) > 1
    for error in raised:
        assert _leaks(error) == []


@pytest.mark.parametrize("value", [SIGNATURE + "\n", " " + SIGNATURE, SIGNATURE + "\0"])
async def test_a_header_that_cannot_be_sent(
    any_transport: tuple[Transport, ssl.SSLContext | None], value: str
) -> None:
    """The libraries below quote it in their errors; ours do not, and nothing hangs on to theirs."""
    pairs = (*headers(2)[:1], (b"HASH-SIGNATURE", Secret(value.encode())), *headers(2)[2:])
    with Peer(answering(reply())) as peer:
        request = attrs.evolve(call(peer.url, b"{}"), headers=pairs)
        with pytest.raises(errors.TransportError) as caught:
            await any_transport[0].send(request)
    assert _leaks(caught.value) == []
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert peer.requests == []


@pytest.mark.parametrize("failure", ["reset at once", "no HTTP", "silent"])
async def test_the_callers_own_error_keeps_its_traceback(failure: str) -> None:
    """A request made while another error is handled leaves that error as it was."""

    def fail() -> None:
        raise KeyError("the caller's")

    async def fall_back(transport: Transport, url: str) -> None:
        try:
            fail()
        except KeyError:
            with pytest.raises(errors.TransportError):
                await transport.send(either("call", url, reply_timeout=0.2, max_reply_bytes=MIB))
            raise

    async with over((None, True), FAILURES[failure][0]) as (transport, peer):
        with pytest.raises(KeyError) as caught:
            await fall_back(transport, peer.url)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "fail"
