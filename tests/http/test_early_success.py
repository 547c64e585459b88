"""A success whose head comes before the last byte of the form: unknown, never a receipt."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest

from meeting_async import Document, MeetingClient, UploadJob, Verdict
from meeting_async.errors import UploadOutcomeUnknown
from support.fakes import EventRecorder
from support.peer import RECORD, Connection, delivered, reply
from support.sending import KIB, MIB, Wire, over

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

KEYS: dict[str, Any] = {"api_key": "key", "api_secret": "secret", "preflight": False}
RECEIVE_BUFFER = 64 * KIB
"""Of the peer, so that it answers long before everything is sent."""
SECONDS = 10.0
"""More than a busy machine needs."""


@attrs.define(eq=False)
class Early:
    """A script: it answers amid the form, reads the rest of it and keeps the connection open."""

    before: int
    """Bytes of the form that it reads first."""
    first: bytes = reply()
    """What it sends then."""
    last: bytes = b""
    """What it sends when it has the whole form."""
    has_answered: threading.Event = attrs.field(factory=threading.Event)

    def __call__(self, connection: Connection) -> None:
        """Serve one connection."""
        connection.read_head()
        connection.read_body(self.before, keep=False)
        connection.send(self.first)
        delivered(connection)
        self.has_answered.set()
        left = connection.request.length - self.before
        connection.read_body(left, keep=False)
        connection.send(self.last)
        connection.drain()


async def after(event: threading.Event, size: int, first: int) -> AsyncIterator[bytes]:
    """Yield so many bytes, and the rest when the peer has answered."""
    yield b"%PDF-1.7".ljust(first)
    await anyio.to_thread.run_sync(event.wait, SECONDS)
    yield bytes(size - first)


HEAD, END = reply()[: -len(RECORD)], RECORD

ANSWERS: dict[str, dict[str, Any]] = {
    "whole": {"first": reply()},
    "its head only": {"first": HEAD, "last": END},
    "all but a byte": {"first": reply()[:-1], "last": END[-1:]},
    "status line only": {"first": HEAD[:20], "last": HEAD[20:] + END},
    "after an interim reply": {"first": b"HTTP/1.1 100 Continue\r\n\r\n" + reply()},
}
"""What comes early and what comes late."""


def client_of(url: str, transport: Any, **settings: Any) -> MeetingClient:
    """Make a client."""
    return MeetingClient(url, transport=transport, **KEYS, **settings)


@pytest.mark.parametrize("before", [pytest.param(0, marks=pytest.mark.nightly), 65 * KIB])
async def test_an_early_success_of_a_large_document(
    wire: Wire, before: int, tmp_path: Path
) -> None:
    """The peer takes 30 MiB to their end, and has said "accepted" before: nobody knows."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(b"%PDF-1.7".ljust(30 * MIB))
    recorder, early = EventRecorder(), Early(before)
    async with over(wire, early, receive_buffer=RECEIVE_BUFFER) as (transport, peer):
        async with client_of(peer.url, transport, on_event=recorder) as client:
            with anyio.fail_after(SECONDS), pytest.raises(UploadOutcomeUnknown):
                await client.upload_whiteboard_file("room01", path)
        assert len(peer.requests) == 1
    assert recorder.finished.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("before", "name"),
    [
        pytest.param(before, name, marks=pytest.mark.nightly if before and name != "whole" else ())
        for before in (0, 65 * KIB)
        for name in ANSWERS
    ],
)
async def test_an_early_success_of_a_small_document(wire: Wire, before: int, name: str) -> None:
    """The same with 70 KB, of which the rest is sent when the answer, or a part of it, is there."""
    early = Early(before, **ANSWERS[name])
    stream = after(early.has_answered, 70_000, 69_000)
    document = Document.from_stream(stream, "deck.pdf", size=70_000, replayable=False)
    async with over(wire, early) as (transport, peer):
        async with client_of(peer.url, transport) as client:
            with anyio.fail_after(SECONDS), pytest.raises(UploadOutcomeUnknown) as caught:
                await client.upload_whiteboard_file("room01", document)
        assert len(peer.requests) == 1
    assert [attempt.verdict for attempt in caught.value.attempts] == [Verdict.UNKNOWN]


async def test_a_success_after_the_form(wire: Wire) -> None:
    """The same peer, if it answers in time, is believed."""
    early = Early(0, first=b"", last=reply())
    stream = after(early.has_answered, 70_000, 69_000)
    document = Document.from_stream(stream, "deck.pdf", size=70_000, replayable=False)
    async with over(wire, early) as (transport, peer):
        async with client_of(peer.url, transport) as client:
            with anyio.fail_after(SECONDS):
                receipt = await client.upload_whiteboard_file("room01", document)
    assert receipt.size == 70_000


async def test_an_early_success_in_a_batch(tmp_path: Path) -> None:
    """The job's outcome is unknown, also for the next run."""
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7".ljust(8 * MIB))
    jobs = [UploadJob("room01", tmp_path / "deck.pdf")]
    async with over((None, True), Early(0), receive_buffer=RECEIVE_BUFFER) as (transport, peer):
        async with client_of(peer.url, transport) as client:
            for _ in range(2):
                async with client.upload_many(jobs, journal=tmp_path / "term.db") as batch:
                    report = await batch.wait()
                assert [outcome.status for outcome in report.outcomes] == ["unknown"]
        assert len(peer.requests) == 1
