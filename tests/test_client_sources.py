"""Uploads of every kind of source: retried, waiting, too large, cancelled; never by halves."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from _fakes import EventRecorder, FakeTransport, Take, accepted, busy, failing, hanging, reply
from _peer import descriptors
from _streams import DATA, Producer, pieces, temporary_files
from meeting_async import Document, MeetingClient, RetryPolicy, WaitingForRoom, errors
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    DocumentChanged,
    DocumentTooLarge,
    RoomBusy,
    Throttled,
    UploadInterrupted,
    UploadOutcomeUnknown,
)

pytestmark = pytest.mark.anyio

QUICK = RetryPolicy(max_attempts=4, initial_delay=0.01, max_delay=0.01)
NOTE = "It was not tried again: the stream could not be read a second time."


@pytest.fixture(autouse=True)
def _own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """See that no test leaves a spool behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    assert temporary_files() == []


@asynccontextmanager
async def client(transport: FakeTransport, **settings: Any) -> AsyncIterator[MeetingClient]:
    """Make a client that retries at once."""
    settings = {"retry": QUICK, **settings}
    async with MeetingClient(
        "https://meet.example.com",
        api_key="key",
        api_secret="secret",
        transport=transport,
        **settings,
    ) as client:
        yield client


def once(data: bytes = DATA) -> tuple[Producer, Document]:
    """Make a stream that is sent as it comes."""
    producer = Producer(pieces(data))
    stream = Document.from_stream(producer(), "deck.pdf", size=len(data), replayable=False)
    return producer, stream


def notes(error: BaseException) -> list[str]:
    """Return what was noted on an error."""
    return getattr(error, "__notes__", [])


# Every kind, twice


def _path(path: Path) -> Any:
    return path


def _file(path: Path) -> Any:
    return path.open("rb")


def _memory(_path: Path) -> Any:
    return io.BytesIO(DATA)


def _generator(_path: Path) -> Any:
    return Producer(pieces())()


def _factory(path: Path) -> Any:
    return Document.from_factory(lambda: path.open("rb"), "deck.pdf")


def _stream_factory(_path: Path) -> Any:
    return Document.from_factory(Producer(pieces()), "deck.pdf", size=len(DATA))


KINDS = [_path, _file, _memory, _generator, _factory, _stream_factory]


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
async def test_each_attempt_sends_the_whole_document(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    """Cut off, refused as busy, taken: always the same bytes, and nothing is open in between."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(DATA)
    document = make(path)
    before, between, recorder = descriptors(), [], EventRecorder()

    async def look() -> None:
        await recorder.until(WaitingForRoom)
        await anyio.sleep(0.1)
        between.append(descriptors())

    transport = FakeTransport(failing(ConnectionLost("reset"), take=600_000), busy(), accepted())
    async with (
        client(transport, on_event=recorder) as meeting,
        anyio.create_task_group() as group,
    ):
        group.start_soon(look)
        receipt = await meeting.upload_whiteboard_file("room01", document, filename="deck.pdf")
    sent = [exchange.document for exchange in transport.exchanges]
    assert sent[1:] == [DATA, DATA]
    assert DATA.startswith(sent[0])
    assert receipt.size == len(DATA)
    assert between == [before]
    assert descriptors() == before
    if make is _file:
        assert document.tell() == 0
        document.close()


async def test_one_file_may_go_to_many_rooms_at_once() -> None:
    """They do not move each other's position."""
    file = io.BytesIO(DATA)
    transport = FakeTransport(then=lambda _request: accepted(sending=0.05))
    async with client(transport) as meeting, anyio.create_task_group() as group:
        for number in range(5):
            document = Document.from_file(file, filename="deck.pdf")
            group.start_soon(meeting.upload_whiteboard_file, f"room{number}", document)
    assert [exchange.document for exchange in transport.exchanges] == [DATA] * 5


# Streams that are sent as they come


async def test_a_stream_as_it_comes_is_sent_once() -> None:
    """With its exact length."""
    producer, document = once()
    transport = FakeTransport(accepted())
    async with client(transport) as meeting:
        receipt = await meeting.upload_whiteboard_file("room01", document)
    assert transport.exchanges[0].document == DATA
    assert receipt.size == len(DATA)
    assert producer.closed


async def test_a_stream_that_was_not_touched_may_be_tried_again() -> None:
    """Without a connection nothing was taken from it."""
    producer, document = once()
    refused = failing(ConnectFailed("refused"), take=Take.NOTHING)
    transport = FakeTransport(refused, refused, accepted())
    async with client(transport) as meeting:
        await meeting.upload_whiteboard_file("room01", document)
    assert [exchange.document for exchange in transport.exchanges] == [b"", b"", DATA]
    assert producer.closed


ENDINGS = [
    (busy(), RoomBusy, "at_most_once"),
    (failing(ConnectionLost("reset"), take=600_000), UploadInterrupted, "at_most_once"),
    (reply(503, b"", retry_after="0"), Throttled, "at_most_once"),
    (failing(ConnectionLost("reset")), UploadOutcomeUnknown, "at_least_once"),
]


@pytest.mark.parametrize(("act", "kind", "delivery"), ENDINGS)
async def test_a_stream_that_was_touched_is_not_tried_again(
    act: Any, kind: type[Exception], delivery: Any
) -> None:
    """The attempt's own error, and a note why it is the last; never a silent half document."""
    producer, document = once()
    transport = FakeTransport(act)
    async with client(transport, delivery=delivery) as meeting:
        with pytest.raises(errors.MeetingError) as caught:
            await meeting.upload_whiteboard_file("room01", document)
    assert type(caught.value) is kind
    assert NOTE in notes(caught.value)
    assert len(caught.value.attempts) == 1
    assert producer.closed


async def test_what_ends_a_call_anyway_has_no_such_note() -> None:
    """A refusal is final for every document."""
    transport = FakeTransport(reply(401, {"status": False, "msg": "no", "status_code": "X"}))
    async with client(transport) as meeting:
        with pytest.raises(errors.AuthenticationFailed) as caught:
            await meeting.upload_whiteboard_file("room01", once()[1])
    assert NOTE not in notes(caught.value)


@pytest.mark.parametrize("difference", [-1, 1])
async def test_a_stream_of_another_size_is_never_complete(difference: int) -> None:
    """The closing boundary does not go out."""
    producer = Producer(pieces())
    size = len(DATA) + difference
    document = Document.from_stream(producer(), "deck.pdf", size=size, replayable=False)
    transport = FakeTransport(accepted())
    async with client(transport) as meeting:
        with pytest.raises(DocumentChanged, match="declared"):
            await meeting.upload_whiteboard_file("room01", document)
    assert not transport.exchanges[0].complete
    assert producer.closed


# Before anything is sent


async def test_a_stream_that_is_too_large_is_not_sent() -> None:
    """It is found out while it is spooled."""
    producer = Producer(iter(lambda: bytes(10_000), None))
    transport = FakeTransport()
    async with client(transport, max_size_whiteboard_file=2_000_000) as meeting:
        with pytest.raises(DocumentTooLarge):
            await meeting.upload_whiteboard_file("room01", producer(), filename="deck.pdf")
    assert producer.given == 201
    assert producer.closed
    assert transport.exchanges == []


async def test_images_are_recognised_in_streams() -> None:
    """By their first bytes, once they are spooled."""
    producer = Producer([b"\x89PNG\r\n\x1a\n" + bytes(100)])
    async with client(FakeTransport()) as meeting:
        with pytest.raises(errors.DocumentTypeRefused):
            await meeting.upload_whiteboard_file("room01", producer(), filename="deck.pdf")


async def test_a_stream_cannot_be_uploaded_twice() -> None:
    """The second time it would be empty."""
    document = Document.from_stream(Producer(pieces())(), "deck.pdf")
    async with client(FakeTransport(accepted())) as meeting:
        await meeting.upload_whiteboard_file("room01", document)
        with pytest.raises(errors.DocumentUnreadable, match="once"):
            await meeting.upload_whiteboard_file("room02", document)


# Time


def test_the_deadline_holds_for_the_spooling_too(in_virtual_time: Callable[..., Any]) -> None:
    """A stream that never ends, and one that leaves too little for the rest."""

    async def main() -> None:
        for items, phase in ((iter(lambda: b"x", None), "reading"), ([b"x"] * 5, "sending")):
            producer, recorder = Producer(items, pause=1.0), EventRecorder()
            began = anyio.current_time()
            async with client(FakeTransport(hanging(take=Take.HEAD)), on_event=recorder) as meeting:
                with pytest.raises(DeadlineExceeded, match=phase) as caught:
                    await meeting.upload_whiteboard_file(
                        "room01", producer(), filename="deck.pdf", deadline=8.0
                    )
            assert anyio.current_time() - began == 8.0
            assert caught.value.seconds == 8.0
            assert producer.closed

    in_virtual_time(main)


@pytest.mark.parametrize("after", [0.0, 0.01, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
async def test_cancellation_leaves_nothing(
    tmp_path: Path, make: Callable[[Path], Any], after: float
) -> None:
    """Wherever it strikes: no descriptor, no spool; and the next upload works.

    To another room: where it strikes behind the closing boundary, the room stays shut for minutes.
    """
    path = tmp_path / "deck.pdf"
    path.write_bytes(DATA)
    document = make(path)
    before = descriptors()
    transport = FakeTransport(then=lambda _request: busy(sending=0.03))
    async with client(transport) as meeting:
        with anyio.move_on_after(after) as scope:
            await meeting.upload_whiteboard_file("room01", document, filename="deck.pdf")
        assert scope.cancelled_caught
        assert temporary_files() == []
        assert descriptors() == before
        transport._then = lambda _request: accepted()
        await meeting.upload_whiteboard_file("room02", b"%PDF-1.7", filename="deck.pdf")
    if make is _file:
        document.close()
