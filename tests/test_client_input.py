"""What a client is given: documents, and arguments that are refused before any I/O."""

import io
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from _clients import PDF, PNG, connected, upload
from _fakes import (
    EventRecorder,
    FakeTransport,
    Take,
    accepted,
)
from meeting_async import (
    Document,
    MeetingClient,
)
from meeting_async.errors import (
    DocumentEmpty,
    DocumentTooLarge,
    DocumentTypeRefused,
    DocumentUnreadable,
    InvalidInput,
)

pytestmark = pytest.mark.anyio


# --- documents -----------------------------------------------------------------------------------


def make_path(directory: Path) -> Path:
    """Write the document to disk."""
    path = directory / "deck.pdf"
    path.write_bytes(PDF)
    return path


@pytest.mark.parametrize(
    "make",
    [
        make_path,
        lambda directory: str(make_path(directory)),
        lambda directory: Document.from_path(make_path(directory)),
        lambda _: Document.from_bytes(PDF, "deck.pdf"),
    ],
    ids=["Path", "str", "from_path", "from_bytes"],
)
async def test_ways_to_give_a_document(make: Callable[[Path], Any], tmp_path: Path) -> None:
    """A path as text or object, and a ``Document``, all name themselves."""
    transport = FakeTransport(accepted())
    async with connected(transport) as client:
        receipt = await client.upload_whiteboard_file("room01", make(tmp_path))
    assert (receipt.document, receipt.size) == ("deck.pdf", len(PDF))
    assert transport.exchanges[0].document == PDF


@pytest.mark.parametrize("data", [PDF, bytearray(PDF), memoryview(PDF), memoryview(PDF * 2)[::2]])
async def test_bytes_of_any_kind(data: Any) -> None:
    """Bytes, bytearray and memoryview, even one with gaps; later changes do not matter."""
    expected = bytes(data)
    transport = FakeTransport(accepted())
    async with connected(transport) as client:
        await client.upload_whiteboard_file("room01", data, filename="deck.txt")
    assert transport.exchanges[0].document == expected


async def test_name_and_type_can_be_given(tmp_path: Path) -> None:
    """``filename`` and ``content_type`` win over what the document brings."""
    transport = FakeTransport(accepted(), accepted())
    async with connected(transport) as client:
        for document in (make_path(tmp_path), Document.from_bytes(PDF, "other.pdf")):
            receipt = await client.upload_whiteboard_file(
                "room01", document, filename="Ünï.bin", content_type="application/x-own"
            )
            assert receipt.document == "Ünï.bin"
    for exchange in transport.exchanges:
        assert 'filename="Ünï.bin"\r\nContent-Type: application/x-own'.encode() in exchange.sent


async def test_a_link() -> None:
    """The URL goes out whole; receipt and form show no more of it than they must."""
    url = "https://files.example.com/deck.pdf?token=abc"
    transport = FakeTransport(accepted())
    async with connected(transport) as client:
        receipt = await client.upload_whiteboard_file("room01", Document.from_link(url))
    assert (receipt.size, receipt.document) == (None, "https://files.example.com/deck.pdf?…")
    assert transport.exchanges[0].document == url.encode()
    assert b'name="document_link"' in transport.exchanges[0].sent


async def test_a_document_can_be_used_again(tmp_path: Path) -> None:
    """To any number of rooms, at the same time."""
    document = Document.from_path(make_path(tmp_path))
    transport = FakeTransport(then=lambda _: accepted())
    async with connected(transport) as client, anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(client.upload_whiteboard_file, f"room{number}", document)
    assert [exchange.document for exchange in transport.exchanges] == [PDF] * 10


async def test_images_are_refused_beforehand() -> None:
    """By content, or by name where there is none to go by; unless the server takes them."""
    transport = FakeTransport(accepted())
    async with connected(transport) as client:
        with pytest.raises(DocumentTypeRefused, match="PNG image"):
            await client.upload_whiteboard_file("room01", PNG, filename="deck.pdf")
        with pytest.raises(DocumentTypeRefused, match="JPG image"):
            await client.upload_whiteboard_file("room01", b"nothing known", filename="scan.JPG")
        assert not transport.exchanges
        open_minded = client.with_options(allow_images=True)
        await open_minded.upload_whiteboard_file("room01", PNG, filename="deck.png")
    assert transport.exchanges[0].document == PNG


@pytest.mark.parametrize("limit", [1000, "1000", "1000B"])
async def test_the_size_limit(limit: Any) -> None:
    """A document of just the limit passes; one byte more is refused before anything is sent."""
    transport = FakeTransport(accepted())
    async with connected(transport, max_size_whiteboard_file=limit) as client:
        await client.upload_whiteboard_file("room01", b"a" * 1000, filename="deck.txt")
        with pytest.raises(DocumentTooLarge) as caught:
            await client.upload_whiteboard_file("room01", b"a" * 1001, filename="deck.txt")
    assert (caught.value.document, caught.value.size, caught.value.limit) == (
        "deck.txt",
        1001,
        1000,
    )
    assert len(transport.exchanges) == 1


async def test_no_limit_is_no_limit() -> None:
    """Unless configured, the size is the server's business."""
    transport = FakeTransport(accepted(take=Take.EVERYTHING))
    async with connected(transport) as client:
        await client.upload_whiteboard_file("room01", bytes(40 * 1024**2), filename="deck.pdf")


async def test_an_empty_document_is_refused(tmp_path: Path) -> None:
    """There is nothing to show."""
    (tmp_path / "empty.pdf").touch()
    transport = FakeTransport()
    async with connected(transport) as client:
        with pytest.raises(DocumentEmpty):
            await client.upload_whiteboard_file("room01", b"", filename="deck.pdf")
        with pytest.raises(DocumentEmpty):
            await client.upload_whiteboard_file("room01", tmp_path / "empty.pdf")
    assert not transport.exchanges


async def test_an_unusual_room_id_is_only_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Known servers use ids as message subjects; another one may not."""
    transport = FakeTransport(accepted(), accepted())
    with caplog.at_level(logging.WARNING, "meeting_async"):
        async with connected(transport) as client:
            await client.upload_whiteboard_file("Room_01-a", PDF, filename="deck.pdf")
            assert not caplog.records
            await client.upload_whiteboard_file("room.01/ä", PDF, filename="deck.pdf")
    (entry,) = caplog.records
    assert (entry.name, entry.levelname) == ("meeting_async", "WARNING")
    assert "room.01/ä" in entry.getMessage()
    assert hasattr(entry, "action")
    assert transport.exchanges[1].headers["room-id"] == "room.01/ä"


# --- bad input -----------------------------------------------------------------------------------

BAD_ROOM_IDS = [
    "",
    " room01",
    "room01\t",
    "a\nb",
    "a\r\nX: y",
    "a\0b",
    "\x7f",
    "\ud800",
    "r" * 10_000,
]
BAD_SECONDS = [0, -1, float("nan"), True, "5"]


def call(client: MeetingClient, path: Any = "x", payload: Any = None) -> Any:
    """Call with arguments that need not make sense."""
    return client.call(path, payload)


BAD_INPUT: list[tuple[Callable[[MeetingClient], Any], str, type[Exception]]] = [
    *[(partial(upload, room_id=room), "room_id", InvalidInput) for room in BAD_ROOM_IDS],
    *[(lambda c, r=r: c.get_active_room_info(r), "room_id", InvalidInput) for r in BAD_ROOM_IDS],
    *[(lambda c, r=r: c.wait_until_active(r, 1), "room_id", InvalidInput) for r in BAD_ROOM_IDS],
    *[(partial(upload, room_id=room), "room_id", TypeError) for room in (None, 1, b"room01")],
    *[(partial(upload, deadline=value), "deadline", InvalidInput) for value in BAD_SECONDS],
    *[
        (partial(upload, max_wait=value), "max_wait", InvalidInput)
        for value in (-1, float("nan"), True, "5")
    ],
    *[
        (lambda c, v=v: c.get_active_room_info("room01", deadline=v), "deadline", InvalidInput)
        for v in BAD_SECONDS
    ],
    *[(lambda c, v=v: c.call("x", deadline=v), "deadline", InvalidInput) for v in BAD_SECONDS],
    *[(lambda c, v=v: c.wait_until_active("x", v), "timeout", InvalidInput) for v in BAD_SECONDS],
    *[
        (partial(call, path=path), "path", InvalidInput)
        for path in ("", "/", "auth/room/create", "../x", "a//b", "a b", "a?b", "https://x/y", "ä")
    ],
    (partial(call, path=None), "path", TypeError),
    *[
        (partial(call, payload=payload), "payload", TypeError)
        for payload in ([], [1], "", "{}", 0, 1, False, b"{}")
    ],
    *[
        (partial(call, payload={"a": value}), "payload", InvalidInput)
        for value in ({1}, object(), b"", float("nan"), float("inf"), "\ud800")
    ],
    (lambda c: upload(c, document=PDF, filename=None), "filename", InvalidInput),
    *[
        (partial(upload, filename=name), "filename", InvalidInput)
        for name in ("", "..", "a/", "a\0b", "\ud800")
    ],
    *[
        (partial(upload, content_type=kind), "content_type", InvalidInput)
        for kind in ("", "pdf", "a/b\r\nX: y", "a/b; ü")
    ],
    *[
        (partial(upload, document=thing), "document", TypeError)
        for thing in (None, 1, io.StringIO("x"), ["deck.pdf"], object())
    ],
    (partial(upload, document="https://x.test/deck.pdf"), "from_link", TypeError),
    (partial(upload, document=b"".join), "document", TypeError),
    (partial(upload, document="/does/not/exist.pdf"), "exist.pdf", DocumentUnreadable),
    (partial(upload, document="/dev/zero"), "/dev/zero", DocumentUnreadable),
    (partial(upload, document="/tmp"), "/tmp", DocumentUnreadable),
    (partial(upload, document="a\0b.pdf"), "filename", InvalidInput),
]


@pytest.mark.parametrize(("call", "names", "kind"), BAD_INPUT)
async def test_bad_input_is_one_clear_error(
    call: Callable[[MeetingClient], Any], names: str, kind: type[Exception]
) -> None:
    """Named field, what was given, what to do; before any I/O and without an event."""
    transport, recorder = FakeTransport(), EventRecorder()
    async with connected(transport, on_event=recorder) as client:
        with pytest.raises(kind) as caught:
            await call(client)
    error = caught.value
    assert names in str(error)
    assert len(str(error)) < 600
    assert "\n" not in str(error)
    if isinstance(error, InvalidInput):
        assert error.field == names
        assert error.problem
        assert error.fix
        assert isinstance(error, ValueError)
    assert not transport.exchanges
    assert not recorder.events


async def test_a_payload_too_deep_for_json() -> None:
    """Deeply nested input ends as an error about the payload, not about Python's stack."""
    payload: dict[str, Any] = {}
    for _ in range(100_000):
        payload = {"a": payload}
    async with connected(FakeTransport()) as client:
        with pytest.raises(InvalidInput, match="payload"):
            await client.call("x", payload)


def test_both_or_neither_of_file_and_link() -> None:
    """A document is exactly one of the two (interface section 4.2 rule 1)."""
    with pytest.raises(InvalidInput, match="neither"):
        Document()
    source = Document.from_bytes(PDF, "deck.pdf").source
    with pytest.raises(InvalidInput, match="both"):
        Document(source, "https://files.example.com/deck.pdf")
