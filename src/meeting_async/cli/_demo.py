"""``meeting-async demo``: the whole library at work, over real HTTP, in some twenty seconds.

An embedded server, four rooms, real documents. One room is locked by somebody else at first, one
gets two documents that must queue, one is filled to the server's limit. Then a batch for a dozen
further rooms, stopped half-way and resumed. What the rooms received is compared with what was sent.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio
import attrs
from rich.padding import Padding

from meeting_async import Document, MeetingClient, errors
from meeting_async.cli._console import complain, console_on, has_bars, printable, say
from meeting_async.cli._demo_batch import LOCK_POLICY, BatchStage, perform_batch
from meeting_async.cli._demo_report import Made, Refusal, Upload, compared, problems, table_of
from meeting_async.cli._documents import docx, pdf, png
from meeting_async.cli._extras import meeting_server
from meeting_async.cli._outcomes import ExitCode
from meeting_async.cli._progress import Display, display_on

if TYPE_CHECKING:
    from meeting_async.testing import MeetingServer

ROOMS = ("room01", "room02", "room03", "room04")
LOCKED = "room04"
LOCK_SECONDS = 4.0
"""How long somebody else holds the room: long enough to watch, short enough not to bore."""
PROCESSING_SECONDS = 1.0
"""What the server takes to convert a document."""


def demo(
    *, lock_seconds: float = LOCK_SECONDS, processing_seconds: float = PROCESSING_SECONDS
) -> ExitCode:
    """Perform, and return ``OK`` only if everything was as expected."""
    server = meeting_server()(processing_seconds=processing_seconds)
    for room_id in ROOMS:
        server.add_room(room_id)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="meeting-async-demo-") as folder, server.run() as url:
        say(f"A meeting server runs on {url}, with {ROOMS[0]} to {ROOMS[-1]}.")
        say(f"Somebody else's upload holds {LOCKED} for {lock_seconds:g} s.\n")
        stage = _Stage.set_up(server, Path(folder))
        server.rooms[LOCKED].lock(lock_seconds)
        refusals = anyio.run(_perform, stage)
        wrong = _report(stage, refusals)
        account = perform_batch(BatchStage.set_up(server, Path(folder)))
        wrong += account.problems()
    for problem in wrong:
        complain(f"not as expected: {problem}")
    if wrong:
        return ExitCode.FAILED
    say(
        f"\n{len(account.rooms)} rooms have their {account.total} documents of the batch: "
        "each once, in order, with the SHA-256 of what was sent."
    )
    say(
        f"\nEverything was as expected: {len(stage.uploads)} documents delivered, "
        f"{len(refusals)} refused unsent, {account.total} in a batch, none of them twice, "
        f"in {time.monotonic() - started:.1f} s."
    )
    return ExitCode.OK


@attrs.frozen
class _Stage:
    """The server with its rooms, and the documents."""

    server: MeetingServer
    uploads: Sequence[Upload]
    image: Path
    too_large: Path

    @classmethod
    def set_up(cls, server: MeetingServer, folder: Path) -> Self:
        """Make the documents: files in ``folder``, and one that the server offers as a link."""
        limit = server.settings.max_size_whiteboard_file
        handout = _file(folder / "handout.pdf", pdf(["Welcome!", "This is a page."]))
        timetable = _file(folder / "timetable.docx", docx(["Timetable", "Monday: mathematics"]))
        notes = _file(folder / "lecture-notes.pdf", pdf(["As large as allowed"], size=limit))
        image, too_large = folder / "diagram.png", folder / "too-large.pdf"
        image.write_bytes(png())
        too_large.write_bytes(pdf(["One byte too many"], size=limit + 1))
        linked = pdf(["Syllabus", "This file came by link."])
        link = Document.from_link(server.host_file("syllabus.pdf", linked))
        syllabus = Made.of("syllabus.pdf", linked, link)
        uploads = (
            Upload("room01", handout),
            Upload("room02", timetable),
            Upload("room02", syllabus, label="syllabus.pdf (link)"),
            Upload("room03", notes),
            Upload(LOCKED, handout),
        )
        return cls(server, uploads, image, too_large)


def _file(path: Path, content: bytes) -> Made:
    path.write_bytes(content)
    return Made.of(path.name, content, Document.from_path(path))


async def _perform(stage: _Stage) -> list[Refusal]:
    """Upload everything at once, then try what must be refused."""
    server = stage.server
    async with MeetingClient(
        server.url,
        api_key=server.api_key,
        api_secret=server.api_secret,
        max_size_whiteboard_file=server.settings.max_size_whiteboard_file,
        lock=LOCK_POLICY,
    ) as client:
        with display_on(console_on(sys.stdout), stays=True) as display:
            await _upload_all(client.with_options(on_event=display), display, stage.uploads)
        return [
            await _refusal(client, server, stage.image, errors.DocumentTypeRefused),
            await _refusal(client, server, stage.too_large, errors.DocumentTooLarge),
        ]


async def _upload_all(client: MeetingClient, display: Display, uploads: Sequence[Upload]) -> None:
    for upload in uploads:
        display.expect(upload.room_id, upload.made.document.filename, upload.label)
    async with anyio.create_task_group() as tasks:
        for upload in uploads:
            tasks.start_soon(_upload, client, upload)


async def _upload(client: MeetingClient, upload: Upload) -> None:
    try:
        upload.receipt = await client.upload_whiteboard_file(upload.room_id, upload.made.document)
    except errors.MeetingError as error:
        upload.error = error


async def _refusal(
    client: MeetingClient, server: MeetingServer, path: Path, expected: type[errors.DocumentError]
) -> Refusal:
    before, seen = len(server.requests), None
    try:
        await client.upload_whiteboard_file(ROOMS[0], path)
    except errors.MeetingError as error:
        seen = error
    return Refusal(path.name, expected, seen, len(server.requests) - before)


def _report(stage: _Stage, refusals: Sequence[Refusal]) -> list[str]:
    """Show what came of the single uploads, and return what is not as expected."""
    console = console_on(sys.stdout)
    say("\nRefused before a byte was sent:\n")
    for refusal in refusals:
        text = printable(str(refusal.error or f"not {refusal.name}"))
        if has_bars(console):  # whole words for a terminal, whole lines for a log
            console.print(Padding(text, (0, 0, 0, 2)))
        else:
            say(f"  {text}")
    say("\nWhat the rooms received:\n")
    comparisons = compared(stage.uploads, stage.server.rooms)
    console.print(table_of(comparisons))
    return list(problems(stage.uploads, comparisons, refusals, LOCKED))
