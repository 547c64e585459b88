"""Requests, bodies and limits for tests of transports on real sockets."""

from __future__ import annotations

import gc
import ssl
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import attrs

from meeting_async._models import Request, Secret
from meeting_async.transports import HttpTransport, Transport
from support.peer import Peer, Script
from support.telling import texts, traceback_with_locals

KIB, MIB = 1024, 1024**2
API_KEY, SIGNATURE = "a-key-that-is-known", "5ec2e7" * 10 + "abcd"
JSON_BODY = b'{"room_id":"room01"}'
TAIL = b"\r\n--" + b"b" * 32 + b"--\r\n"
"""The closing boundary of a form."""

Wire = tuple[ssl.SSLContext | None, ssl.SSLContext | bool]
"""What a peer needs, and what ``HttpTransport(verify=...)`` needs."""

T = TypeVar("T")


async def nothing() -> None:
    """Do nothing."""


@attrs.define
class Form:
    """A body with ``size`` bytes before its closing boundary.

    Something may happen before byte ``at`` is yielded.
    """

    size: int = 1000
    at: int = -1
    happening: Callable[[], Awaitable[object]] = nothing
    chunk: int = 64 * KIB
    taken: int = 0
    """Bytes that were yielded."""
    _has_happened: bool = False

    @property
    def length(self) -> int:
        """Return the number of bytes, closing boundary included."""
        return self.size + len(TAIL)

    @property
    def content(self) -> bytes:
        """Return everything that is yielded."""
        return self._cut(0, self.size) + TAIL

    @property
    def is_complete(self) -> bool:
        """Tell whether all of it was taken."""
        return self.taken == self.length

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self.taken == self.at and not self._has_happened:
            self._has_happened = True
            await self.happening()
        if self.taken == self.length:
            raise StopAsyncIteration
        start, self.taken = self.taken, self._end_of_chunk()
        return TAIL if start == self.size else self._cut(start, self.taken)

    def _end_of_chunk(self) -> int:
        if self.taken == self.size:
            return self.length
        bound = self.at if self.taken < self.at else self.size
        return min(self.taken + self.chunk, self.size, bound)

    def _cut(self, start: int, end: int) -> bytes:
        first = start // 256
        return (_PATTERN * ((end - first * 256) // 256 + 1))[
            start - first * 256 : end - first * 256
        ]


_PATTERN = bytes(range(256))


def headers(length: int, **more: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Make the headers of a request; key and signature are credentials."""
    return (
        (b"API-KEY", Secret(API_KEY.encode())),
        (b"HASH-SIGNATURE", Secret(SIGNATURE.encode())),
        *((name.replace("_", "-").encode(), value) for name, value in more.items()),
        (b"Content-Length", b"%d" % length),
    )


def call(url: str, body: bytes = JSON_BODY, **settings: Any) -> Request:
    """Make a JSON call that may use an idle connection, unless ``idempotent=False``."""
    settings = {**PATIENT, "idempotent": True, **settings}
    pairs = headers(len(body), Content_Type=b"application/json")
    return Request(url=f"{url}/auth/room/call", headers=pairs, body=body, **settings)


def upload(url: str, form: Form | None = None, **settings: Any) -> Request:
    """Make an upload."""
    form = form or Form()
    pairs = headers(form.length, Room_Id=b"room01")
    settings = {**PATIENT, "max_reply_bytes": MIB, **settings}
    return Request(url=f"{url}/auth/room/upload", headers=pairs, body=form, **settings)


def either(kind: str, url: str, **settings: Any) -> Request:
    """Make a ``"call"`` or an ``"upload"``."""
    return call(url, **settings) if kind == "call" else upload(url, **settings)


PATIENT = {"connect_timeout": 10.0, "stall_timeout": 10.0, "reply_timeout": 10.0}
"""More than a busy machine needs."""


@asynccontextmanager
async def over(
    wire: Wire, *scripts: Script, receive_buffer: int = 0, **settings: Any
) -> AsyncGenerator[tuple[HttpTransport, Peer]]:
    """Open a transport and a peer; at the end neither task nor descriptor is left."""
    with Peer(*scripts, tls=wire[0], receive_buffer=receive_buffer) as peer:
        transport = HttpTransport(verify=wire[1], **settings)
        async with closing(transport):
            yield transport, peer


@asynccontextmanager
async def closing(transport: Transport) -> AsyncGenerator[None]:
    """Close a transport; what was left open then shows while the loop still runs."""
    try:
        yield
    finally:
        await transport.aclose()
        gc.collect()
        await anyio.lowlevel.checkpoint()


async def until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait until another thread has come so far."""
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - it happens in another thread
            await anyio.sleep(0.002)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer."""
    started = time.monotonic()
    with anyio.fail_after(seconds * 3):
        yield
    assert time.monotonic() - started < seconds


def living_tasks() -> int:
    """Count the tasks of the running loop."""
    return len(anyio.get_running_tasks())


def shown(error: BaseException) -> str:
    """Show an error with the locals of every frame, as some reporters do, but for the tests'."""
    return "\n".join(text for _, text in [*traceback_with_locals(error), *texts(error)])
