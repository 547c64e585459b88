"""Neither key nor signature shows when something fails, also where local variables are shown."""

from __future__ import annotations

import logging
import ssl
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import anyio
import attrs
import httpx
import httpx2
import pytest

from meeting_async import errors
from meeting_async._models import Secret
from meeting_async.transports import HttpxTransport, Request
from support.peer import (
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
    Interrupted,
    Wire,
    call,
    closing,
    either,
    headers,
    over,
    shown,
    upload,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.both_loops,
    # On trio, httpx leaves its generator around a body to the garbage collector.
    pytest.mark.filterwarnings(
        "ignore:.*AsyncIteratorByteStream:pytest.PytestUnraisableExceptionWarning"
    ),
]

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]

both_kinds = pytest.mark.parametrize("kind", ["call", "upload"])

FAILURES: dict[str, Script] = {
    "reset at once": resetting_at_once,
    "reset in the body": resetting(100),
    "no HTTP": answering_once(b"garbage\r\n\r\n"),
    "closed": answering_once(b""),
    "half a reply": answering_once(reply()[:-5]),
    "too long": flooding(bytes(64 * KIB), 4 * MIB),
    "silent": silent,
    "deaf": deaf,
    "early and closed": early(b"", lambda connection: None),
}


@pytest.fixture(params=["own, tcp", "own, tls", "httpx", "httpx2"])
async def transport(request: pytest.FixtureRequest, tls: Contexts) -> AsyncGenerator[Any]:
    """Provide a transport of our own, and one with a client of each kind."""
    if request.param.startswith("own"):
        transport = HttpxTransport(verify=tls[1])
        async with closing(transport):
            yield transport
        return
    module: Any = {"httpx": httpx, "httpx2": httpx2}[request.param]
    async with module.AsyncClient(verify=tls[1], trust_env=False) as client:
        yield HttpxTransport(client)


@pytest.fixture
def server_side(request: pytest.FixtureRequest, tls: Contexts) -> ssl.SSLContext | None:
    """Provide what the peer of that transport needs."""
    return tls[0] if "own, tls" in request.node.callspec.id else None


@both_kinds
@pytest.mark.parametrize("script", FAILURES.values(), ids=FAILURES.keys())
async def test_no_failure_shows_a_secret(
    transport: HttpxTransport,
    server_side: ssl.SSLContext | None,
    kind: str,
    script: Script,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither the error nor its causes, nor the debug logs of what is below our own transport."""
    caplog.set_level(logging.DEBUG)
    limits: dict[str, Any] = {"max_reply_bytes": MIB}
    if script in {silent, deaf}:
        limits |= {"reply_timeout": 0.2, "stall_timeout": 0.2}
    with Peer(script, tls=server_side, receive_buffer=16 * KIB) as peer:
        request = call(peer.url, **limits) if kind == "call" else _large(peer.url, **limits)
        with pytest.raises(errors.TransportError) as caught:
            await transport.send(request)
    assert _leaks(caught.value) == []
    if "client of yours" not in repr(transport):
        assert [word for word in SECRETS if word in caplog.text] == []


SECRETS = [API_KEY, SIGNATURE]


def _large(url: str, **limits: Any) -> Request:
    return upload(url, Form(16 * MIB), **limits)


def _leaks(error: BaseException) -> list[str]:
    text = shown(error)
    return [word for word in SECRETS if word in text]


@both_kinds
@pytest.mark.parametrize("script", [deaf, silent], ids=["sending", "waiting"])
async def test_no_cancellation_shows_a_secret(wire: Wire, kind: str, script: Script) -> None:
    """Its traceback goes through every frame below."""
    raised: list[BaseException] = []

    async def send(transport: HttpxTransport, request: Request) -> None:
        try:
            await transport.send(request)
        except BaseException as error:
            raised.append(error)
            raise

    async with over(wire, script, receive_buffer=16 * KIB) as (transport, peer):
        for seconds in (0.001, 0.01, 0.1, 0.3):
            request = call(peer.url) if kind == "call" else _large(peer.url)
            with anyio.move_on_after(seconds):
                await send(transport, request)
    assert len(raised) == 4
    for error in raised:
        assert _leaks(error) == []


@pytest.mark.parametrize("size", [100, 20 * KIB])
async def test_no_cancellation_at_any_wait_shows_a_secret(wire: Wire, size: int) -> None:
    """Wherever it strikes, also with a head that is longer than what is usually gathered."""
    async with over(wire, silent) as (transport, peer):
        request = call(peer.url, idempotent=False)
        request = attrs.evolve(request, headers=(*request.headers, (b"X-Long", b"x" * size)))
        raised: list[BaseException] = []

        async def send(number: int) -> bool:
            with anyio.move_on_after(0.5) as scope:
                run = Interrupted(transport.send(request), number, scope.cancel)
                try:
                    await run
                except BaseException as error:
                    raised.append(error)
                    raise
            return run.waited >= number

        with anyio.move_on_after(0.3):  # what is settled once for a server is settled then
            await transport.send(call(peer.url))
        number = 1
        while await send(number):
            number += 1
    assert number > 3
    for error in raised:
        assert _leaks(error) == []


@pytest.mark.parametrize("value", [SIGNATURE + "\n", " " + SIGNATURE, SIGNATURE + "\0"])
async def test_a_header_that_cannot_be_sent(transport: HttpxTransport, value: str) -> None:
    """The libraries below quote it in their errors; ours do not, and nothing hangs on to theirs."""
    pairs = (*headers(2)[:1], (b"HASH-SIGNATURE", Secret(value.encode())), *headers(2)[2:])
    with Peer(answering(reply())) as peer:
        request = attrs.evolve(call(peer.url, b"{}"), headers=pairs)
        with pytest.raises(errors.TransportError) as caught:
            await transport.send(request)
    assert _leaks(caught.value) == []
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert peer.requests == []


@pytest.mark.parametrize("script", FAILURES.values(), ids=FAILURES.keys())
async def test_the_callers_own_error_keeps_its_traceback(script: Script) -> None:
    """A request made while another error is handled leaves that error as it was."""

    def fail() -> None:
        raise KeyError("the caller's")

    async def fall_back(transport: HttpxTransport, url: str) -> None:
        try:
            fail()
        except KeyError:
            with pytest.raises(errors.TransportError):
                await transport.send(either("call", url, reply_timeout=0.2, max_reply_bytes=MIB))
            raise

    async with over((None, True), script) as (transport, peer):
        with pytest.raises(KeyError) as caught:
            await fall_back(transport, peer.url)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "fail"


async def test_the_search_finds_what_is_there() -> None:
    """The words looked for would be found."""
    run: Callable[[], Awaitable[None]] = _careless
    with pytest.raises(LookupError) as caught:
        await run()
    frames = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert SIGNATURE in "".join(frames.format())


async def _careless() -> None:
    header = SIGNATURE
    raise LookupError(len(header))
