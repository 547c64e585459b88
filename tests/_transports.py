"""Requests, limits and other props for the tests of the transport and of what it is made of."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
import trio

from _peer import (
    RECORD,
    Peer,
    Script,
    answering_once,
    reply,
    resetting,
    resetting_at_once,
    silent,
)
from meeting_async import (
    HttpxTransport,
    Reply,
    Request,
    Timeouts,
)
from meeting_async._multipart import MultipartBody, plan_document
from meeting_async.errors import (
    ConnectFailed,
)

KIB, MIB = 1024, 1024**2
ROOM = "salle-été".encode()
JSON_BODY = b'{"room_id":"room01"}'
API_KEY, SIGNATURE = b"a-key-that-is-known", b"5ec2e7" * 10 + b"abcd"
SECRET = "hunter2-secret"
BOUNDARY = "b" * 32
PATIENT = Timeouts(connect=5, send_stall=5, reply=5, upload_reply=5)


async def nothing() -> None:
    """Do nothing."""


@attrs.define
class Supply:
    """An open document of ``size`` bytes, with something happening before byte ``at`` is read."""

    size: int = 1000
    at: int = -1
    happening: Callable[[], Awaitable[object]] = nothing
    offset: int = 0

    async def read(self, limit: int, /) -> bytes:
        """Read on; what happens, happens between two reads."""
        if self.offset == self.at:
            await self.happening()
        elif self.offset < self.at:
            limit = min(limit, self.at - self.offset)
        chunk = b"x" * min(limit, self.size - self.offset)
        self.offset += len(chunk)
        return chunk

    async def finish(self) -> None:
        """End as declared; what happens at the end, happens before the closing boundary."""
        if self.at == self.size:
            await self.happening()


def headers(length: int, **more: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Make the header pairs of a request."""
    named = {name.replace("_", "-").encode(): value for name, value in more.items()}
    pairs = {b"API-KEY": API_KEY, b"HASH-SIGNATURE": SIGNATURE, **named}
    return (*pairs.items(), (b"Content-Length", b"%d" % length))


def call(url: str, timeouts: Timeouts = PATIENT, body: bytes = JSON_BODY) -> Request:
    """Make a JSON call."""
    pairs = headers(len(body), Content_Type=b"application/json", Accept_Encoding=b"identity")
    return Request("POST", f"{url}/auth/room/call", pairs, body, timeouts, timeouts.reply)


def upload(
    url: str, supply: Supply | None = None, timeouts: Timeouts = PATIENT
) -> tuple[Request, MultipartBody]:
    """Make an upload and return its body, too."""
    supply = supply or Supply()
    plan = plan_document("deck.pdf", "application/pdf", supply.size, boundary=BOUNDARY)
    body = MultipartBody(plan, supply)
    bodies.append(body)
    pairs = headers(plan.length, Room_Id=ROOM, Content_Type=plan.content_type)
    address = f"{url}/auth/room/upload"
    return Request("POST", address, pairs, body, timeouts, timeouts.upload_reply), body


bodies: list[MultipartBody] = []
"""Bodies that are to be closed at the end of a test, as every attempt closes its own."""


async def finish(transport: HttpxTransport) -> None:
    """Close everything; what is unclosed then shows while the loop still runs."""
    await transport.aclose()
    await close_bodies()
    gc.collect()
    await anyio.lowlevel.checkpoint()


async def close_bodies() -> None:
    """Close the bodies of the test."""
    while bodies:
        await bodies.pop().aclose()


def either(kind: str, url: str, timeouts: Timeouts = PATIENT) -> Request:
    """Make a request of either kind."""
    return call(url, timeouts) if kind == "json" else upload(url, timeouts=timeouts)[0]


both_kinds = pytest.mark.parametrize("kind", ["json", "upload"])


async def until(condition: Callable[[], object], seconds: float = 3) -> None:
    """Wait until another thread has come so far."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - it happens in another thread
            await anyio.sleep(0.002)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer."""
    started = time.monotonic()
    with anyio.fail_after(seconds * 3):
        yield
    assert time.monotonic() - started < seconds


Wire = tuple[ssl.SSLContext | None, ssl.SSLContext | bool]


@contextlib.asynccontextmanager
async def over(wire: Wire, *scripts: Script, **options: Any) -> AsyncIterator[Any]:
    """Open a transport and a peer."""
    transport = HttpxTransport(verify=wire[1])
    with Peer(*scripts, tls=wire[0], **options) as peer:
        try:
            yield transport, peer
        finally:
            await finish(transport)


REPLIES = {
    "HTTP/1.0": reply(version=b"1.0", length=False),
    "no length": reply(length=False, headers=[b"Connection: close"]),
    "chunked": reply(
        length=False,
        content=b"10\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (RECORD[:16], len(RECORD) - 16, RECORD[16:]),
        headers=[b"Transfer-Encoding: chunked"],
    ),
    "after 103": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + reply(),
    "after 100": b"HTTP/1.1 100 Continue\r\n\r\n" + reply(),
    "garbage behind": reply() + b"garbage\r\n\r\n",
}


async def never_connects(
    transport: HttpxTransport, url: str, *, seconds: float = 1.5, connect: float = 0.1
) -> ConnectFailed:
    """Fail with ``ConnectFailed`` for either kind of request, with no body touched."""
    timeouts = attrs.evolve(PATIENT, connect=connect)
    with within(seconds), pytest.raises(ConnectFailed):
        await transport.send(call(url, timeouts))
    request, body = upload(url, timeouts=timeouts)
    with within(seconds), pytest.raises(ConnectFailed) as caught:
        await transport.send(request)
    assert (body.handed_over, body.complete) == (0, False)
    assert type(caught.value) is ConnectFailed
    assert caught.value.reason
    return caught.value


def closed_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def endless_headers() -> Iterator[bytes]:
    """Answer one header after the other."""
    yield b"HTTP/1.1 200 OK\r\n"
    for number in itertools.count():
        yield b"X-%d: x\r\n" % number


def endless_hints() -> Iterator[bytes]:
    """Answer that the answer will come."""
    while True:
        yield b"HTTP/1.1 103 Early Hints\r\n\r\n"


def endless_content() -> Iterator[bytes]:
    """Answer byte by byte."""
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    while True:
        yield b" "


FAILURES: dict[str, Script] = {
    "reset at once": resetting_at_once,
    "reset": resetting(100),
    "no HTTP": answering_once(b"garbage\r\n\r\n"),
    "closed": answering_once(b""),
    "silent": silent,
}


def living_tasks() -> int:
    """Count the tasks of the running loop."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return trio.lowlevel.current_statistics().tasks_living


async def cancelled(transport: HttpxTransport, request: Request, after: float) -> None:
    """Send and cancel after so many seconds."""
    with anyio.move_on_after(after) as scope:
        await transport.send(request)
    assert scope.cancelled_caught


def json_or_upload(url: str, number: int) -> Request:
    """Make either kind of request in turn."""
    return call(url) if number % 2 else upload(url)[0]


def large_upload(url: str, _number: int) -> Request:
    """Make an upload that fills every buffer."""
    return upload(url, Supply(64 * MIB))[0]


@attrs.define
class Interrupted:
    """Drives a coroutine and cancels it when it waits for the n-th time."""

    coroutine: Coroutine[Any, Any, Reply]
    number: int
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)

    def __await__(self) -> Generator[Any, Any, Reply]:
        steps = self.coroutine.__await__()
        waited = 0
        step: Callable[[], Any] = steps.__next__
        while True:
            try:
                trap = step()
            except StopIteration as end:
                reply: Reply = end.value
                return reply
            waited += 1
            if waited == self.number:
                self.scope.cancel()
            try:
                value = yield trap
            except BaseException as error:  # noqa: BLE001 - it goes to the coroutine
                step = functools.partial(steps.throw, error)
            else:
                step = functools.partial(steps.send, value)
