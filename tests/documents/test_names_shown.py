"""A receipt has the name that the room shows: that of the document, as servers shorten it."""

from __future__ import annotations

from pathlib import Path

import pytest

from meeting_async import Document, MeetingClient, UploadJob
from meeting_async.errors import InvalidInput
from meeting_async.testing import MeetingServer
from support.fake_rooms import FakeRooms, client_of, refused

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7"

CUT = [
    (" deck.pdf", "deck.pdf"),
    ("deck.pdf ", "deck.pdf"),
    (".hidden.pdf", "hidden.pdf"),
    ("...deck.pdf...", "deck.pdf"),
    ("deck.pdf.", "deck.pdf"),
    (" . deck . v2.pdf . ", "deck . v2.pdf"),
    ("/srv/files/ .deck.pdf", "deck.pdf"),
    ("C:\\files\\ deck.pdf ", "deck.pdf"),
    (" ?.", "_"),
    ("." * 300 + "deck.pdf", "deck.pdf"),
    (" " * 300 + "deck.pdf", "deck.pdf"),
    ("deck.pdf" + " ." * 150, "deck.pdf"),
    ("x" * 199 + " " + "y" * 50, "x" * 199),
    ("x" * 199 + ". " + "y" * 50, "x" * 199),
]
"""Names and what is shown: without the blanks and dots around them."""

KEPT = [
    "deck v1. .pdf",
    "\u00a0deck.pdf\u00a0",
    "\u200bdeck.pdf\u200b",
    "\u202edeck\u202e.pdf",
    "\ufeffdeck.pdf\ufeff",
    "\u2060deck.pdf",
    "\u3000deck.pdf\u2003",
    "deck\u00ad.pdf",
]
"""Names that are shown as they are: only blanks and dots are cut."""

TABLE = CUT + [(name, name) for name in KEPT]


@pytest.mark.parametrize(("name", "shown"), TABLE, ids=lambda name: ascii(name)[:24])
async def test_the_name_that_the_room_shows(name: str, shown: str) -> None:
    """Of a receipt, of a batch's outcome, and of an error."""
    async with client_of(FakeRooms()) as client:
        receipt = await client.upload_whiteboard_file("room01", PDF, filename=name)
    assert receipt.document == shown
    async with client_of(FakeRooms(lambda _: refused())) as client:
        async with client.upload_many([UploadJob("room01", PDF, filename=name)]) as batch:
            report = await batch.wait()
    (outcome,) = report.outcomes
    assert outcome.document == shown
    assert getattr(outcome.error, "document", None) == shown


async def test_names_of_files(tmp_path: Path) -> None:
    """Whoever gives the name: a path, an open file, or a document."""
    path = tmp_path / ".deck.pdf "
    path.write_bytes(PDF)
    async with client_of(FakeRooms()) as client:
        with path.open("rb") as file:
            for document in (path, str(path), file, Document.from_path(path)):
                receipt = await client.upload_whiteboard_file("room01", document)
                assert receipt.document == "deck.pdf"


async def test_a_server_shows_the_same() -> None:
    """The one of this package cuts names as others do."""
    server = MeetingServer()
    room = server.add_room("room01")
    with server.run() as url:
        async with MeetingClient(url, api_key="devkey", api_secret="devsecret") as client:
            receipts = [
                await client.upload_whiteboard_file("room01", PDF, filename=name) for name, _ in CUT
            ]
    assert [receipt.document for receipt in receipts] == [one.stored_name for one in room.received]


@pytest.mark.parametrize("name", [" ", ".", "..", ". . .", " ...", "x/ . "])
async def test_a_name_of_blanks_and_dots(name: str) -> None:
    """Nothing would be left of it, so it is refused before anything is sent."""
    rooms = FakeRooms()
    async with client_of(rooms) as client:
        with pytest.raises(InvalidInput) as caught:
            await client.upload_whiteboard_file("room01", PDF, filename=name)
    assert caught.value.field == "filename"
    assert rooms.visits == []
