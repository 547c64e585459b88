"""A peer that breaks HTTP at length: what is said of it is one short printable line."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import httpx
import httpx2
import pytest

from meeting_async import Document, MeetingClient, RetryPolicy, RetryScheduled
from meeting_async.errors import MeetingError
from meeting_async.transports import HttpxTransport
from support.fakes import EventRecorder
from support.peer import Peer, Script, answering_once
from support.sending import over

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

KEYS: dict[str, Any] = {
    "api_key": "key",
    "api_secret": "secret",
    "preflight": False,
    "retry": RetryPolicy(max_attempts=1, max_interruptions=0),
}
nightly = pytest.mark.nightly
DOCUMENT = Document.from_bytes(b"%PDF-1.7", "deck.pdf")
LONGEST = 1000
"""Characters of a line that quotes somebody else."""

DIRT = b"\x1b[31m\x07\x08\x7f\x9b \xe2\x80\xae" * 5000
"""60 KB of colours, bells, deletions and changes of direction."""
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

BROKEN = {
    "header": b"HTTP/1.1 200 OK\r\nno header " + DIRT + b"\r\n\r\n",
    "header's name": b"HTTP/1.1 200 OK\r\n" + DIRT + b": yes\r\n\r\n",
    "header's value": b"HTTP/1.1 200 OK\r\nX-Dirt: " + DIRT + b"\x00\r\n\r\n",
    "status line": b"HTTP/1.1 2oo " + DIRT + b"\r\n\r\n",
    "no HTTP": DIRT + b"\r\n\r\n",
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"x" * 60_000 + b"\r\n\r\n",
    "encoding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + b"x" * 60_000 + b"\r\n\r\n",
    "chunk": CHUNKED + b"z" * 60_000 + b"\r\n",
    "end of chunk": CHUNKED + b"1\r\nx" + DIRT + b"\r\n0\r\n\r\n",
    "trailer": CHUNKED + b"0\r\nno trailer " + DIRT + b"\r\n\r\n",
    "reason": b"HTTP/1.1 500 " + b"x" * 60_000 + b"\r\nContent-Length: 0\r\n\r\n",
}


EACH_TIME = {("header", "ours"), ("chunk", "ours"), ("trailer", "ours"), ("header", "httpx")}


@contextlib.asynccontextmanager
async def connected(kind: str, script: Script) -> AsyncIterator[tuple[Any, Peer]]:
    """Open a transport, ours or one with a client of httpx, and a peer."""
    if kind == "ours":
        async with over((None, True), script) as opened:
            yield opened
        return
    module: Any = {"httpx": httpx, "httpx2": httpx2}[kind]
    with Peer(script) as peer:
        async with module.AsyncClient(trust_env=False) as client:
            yield HttpxTransport(client), peer


def check_line(text: str) -> None:
    """See that a text is one printable line that fits into a log."""
    assert text
    assert text.isprintable(), text[:200]
    assert len(text) <= LONGEST


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(
            name,
            kind,
            marks=() if (name, kind) in EACH_TIME else nightly,
        )
        for name, kind in itertools.product(BROKEN, ["ours", "httpx", "httpx2"])
    ],
)
async def test_what_is_quoted_is_short(
    name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the errors of calls and uploads, in their attempts, and in the log."""
    caplog.set_level(logging.DEBUG, "meeting_async")
    async with connected(kind, answering_once(BROKEN[name])) as (transport, peer):
        async with MeetingClient(peer.url, transport=transport, **KEYS) as client:
            calls: list[Callable[[], Awaitable[object]]] = [
                partial(client.call, "room/ping"),
                partial(client.get_active_room_info, "room01"),
                partial(client.upload_whiteboard_file, "room01", DOCUMENT),
            ]
            for call in calls:
                with pytest.raises(MeetingError) as caught:
                    await call()
                check_line(str(caught.value))
                check_line(getattr(caught.value, "reason", "none"))
                for attempt in getattr(caught.value, "attempts", ()):
                    check_line(attempt.reason or "none")
    for entry in caplog.records:
        if entry.name == "meeting_async":
            assert entry.getMessage().isprintable()
            assert len(entry.getMessage()) <= 2 * LONGEST


@nightly
async def test_what_is_quoted_in_an_event_is_short() -> None:
    """A call that is repeated says why in an event."""
    recorder = EventRecorder()
    retry: dict[str, Any] = {**KEYS, "retry": RetryPolicy(max_attempts=2, initial_delay=0.25)}
    async with over((None, True), answering_once(BROKEN["header"])) as (transport, peer):
        async with MeetingClient(peer.url, transport=transport, **retry) as client:
            with pytest.raises(MeetingError):
                await client.get_active_room_info("room01", on_event=recorder)
    (event,) = recorder.of(RetryScheduled)
    check_line(event.reason)
