"""What the demonstration does, what it says of it, and whether that was as expected.

Single documents first: by path, by link, to a room that is taken, up to the server's limit, and two
that must be refused. Then a batch that is stopped on its way and run again. In the end every room
must have received the very bytes that were sent, each document once and in its order.
"""

from __future__ import annotations

import hashlib
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import attrs

from meeting_async import BatchReport, Document, MeetingClient, UploadJob, UploadOutcome, errors
from meeting_async.cli.console import Output, OutputLost, printable
from meeting_async.cli.demo.documents import PNG, docx, pdf
from meeting_async.cli.display import display_on
from meeting_async.cli.results import ExitCode
from meeting_async.cli.words import counted, size

if TYPE_CHECKING:
    from meeting_async.testing import MeetingServer

WIDTH = 79
"""Columns: the width of a narrow terminal."""

PROCESSING_SECONDS = 0.3
"""What the server takes to convert a document; of the batch, half of that."""

LOCK_SECONDS = 2.0
"""How long somebody else holds a room."""

TAKEN, TAKEN_CLASS, ABSENT_CLASS = "room04", "class03", "class06"
CLASSES = [f"class{number:02}" for number in range(1, 7)]
WEEKS = 5
"""Documents for each class."""

STOP_AFTER = 10
"""Outcomes after which the first run of the batch is stopped."""


@attrs.frozen
class Item:
    """A document for a room."""

    room_id: str
    name: str
    content: bytes = attrs.field(repr=False)
    document: Document
    remark: str = ""
    error: type[errors.MeetingError] | None = None
    """What must refuse it."""


def demo(output: Output) -> int:
    """Perform, and return 0 only if everything was as expected."""
    from meeting_async.testing import MeetingServer

    started = time.monotonic()
    server = MeetingServer(processing_seconds=PROCESSING_SECONDS)
    with tempfile.TemporaryDirectory(prefix="meeting-async-demo-") as name, server.run() as url:
        _say(output, f"A meeting server runs on {url}. It got these documents:\n")
        problems = _perform_single(server, Path(name), output)
        problems += _perform_batch(server, Path(name), output)
    for problem in problems:
        output.note(f"error: not as expected: {problem}")
    there = sum(len(room.received) for room in server.rooms.values())
    sentence = (
        f"Everything was as expected: {there} documents are in their rooms, each once and with the "
        "bytes that were sent (SHA-256), 2 were refused before anything was sent, in "
        f"{time.monotonic() - started:.1f} s."
    )
    if problems:
        sentence = f"Not everything was as expected: {counted(len(problems), 'problem')}."
    _say(output, sentence)
    return ExitCode.FAILED if problems else output.code()


def _say(output: Output, text: str) -> None:
    for paragraph in text.split("\n"):
        for line in textwrap.wrap(paragraph, WIDTH) or [""]:
            if not output.say(line):
                raise OutputLost


# --- what happens --------------------------------------------------------------------------------


def _perform_single(server: MeetingServer, folder: Path, output: Output) -> list[str]:
    items = _single(server, folder)
    server.rooms[TAKEN].lock(LOCK_SECONDS)
    outcomes = anyio.run(_deliver, server, items, output).outcomes
    for item, outcome in zip(items, outcomes, strict=True):
        _say(output, _line(item, outcome))
    _say(output, "")
    problems = [*_problems(server, items, outcomes)]
    if not any(outcome.conflicts for outcome in outcomes if outcome.room_id == TAKEN):
        problems.append(f"{TAKEN} was not taken")
    return problems


def _perform_batch(server: MeetingServer, folder: Path, output: Output) -> list[str]:
    items = _batch(server, folder)
    server.rooms[TAKEN_CLASS].lock(LOCK_SECONDS / 2)
    _say(
        output,
        f"A batch of {len(items)} documents for {len(CLASSES)} rooms, with a journal. One room is "
        f"taken at first, and there is no {ABSENT_CLASS}. It is stopped, then the same jobs are "
        "run again:\n",
    )
    journal = folder / "batch.db"
    first = anyio.run(_deliver, server, items, output, journal, STOP_AFTER)
    _say(output, f"  first run   {first.accepted:,} accepted, then stopped")
    second = anyio.run(_deliver, server, items, output, journal)
    there, before = second.accepted, second.already_delivered
    rest = f"{before:,} accepted before, {second.total - there - before:,} without a room"
    _say(output, f"  second run  {there:,} accepted, {rest}\n")
    problems = [*_problems(server, items, second.outcomes)]
    if before != first.accepted:
        problems.append(f"the second run did not go on after the first: {first!r}, {second!r}")
    return problems


async def _deliver(
    server: MeetingServer,
    items: Sequence[Item],
    output: Output,
    journal: Path | None = None,
    stop_after: int = 0,
) -> BatchReport:
    display = display_on(output, len(items) if journal else 1, detailed=False)
    jobs = [UploadJob(item.room_id, item.document) for item in items]
    async with (
        MeetingClient(
            server.url,
            api_key=server.api_key,
            api_secret=server.api_secret,
            max_size_whiteboard_file=server.settings.max_size_whiteboard_file,
        ) as client,
        client.upload_many(jobs, journal=journal, on_event=display) as batch,
    ):
        display.report = batch.report
        with display:
            left = stop_after
            async for _ in batch:
                display.tick()
                left -= 1
                if left == 0:
                    batch.stop()
    return batch.report


# --- whether that was as expected ----------------------------------------------------------------


def _line(item: Item, outcome: UploadOutcome) -> str:
    """Say what became of a document."""
    fate, remark = f"accepted in {outcome.seconds:.1f} s", item.remark
    if item.error is not None:
        fate = "refused unsent"
    elif not outcome.delivered:
        fate, remark = "NOT ACCEPTED", printable(str(outcome.error))
    return f"  {item.name:<15} to {item.room_id}  {fate:<18}  {remark}".rstrip()


def _problems(
    server: MeetingServer, items: Sequence[Item], outcomes: Sequence[UploadOutcome]
) -> Iterator[str]:
    for item, outcome in zip(items, outcomes, strict=True):
        is_right = isinstance(outcome.error, item.error) if item.error else outcome.delivered
        if not is_right:
            yield f"{item.name} to {item.room_id}: {outcome.error or outcome.status}"
    for room_id in dict.fromkeys(item.room_id for item in items):
        mine = [item for item in items if item.room_id == room_id and item.error is None]
        sent = [(i.name, len(i.content), hashlib.sha256(i.content).hexdigest()) for i in mine]
        room = server.rooms.get(room_id)
        received = [(f.name, f.size, f.sha256) for f in room.received] if room else []
        if received != sent:
            names = ", ".join(name for name, *_ in received) or "nothing"
            yield f"{room_id} received {names} instead of {', '.join(i.name for i in mine)}"


# --- documents -----------------------------------------------------------------------------------


def _single(server: MeetingServer, folder: Path) -> list[Item]:
    limit = server.settings.max_size_whiteboard_file
    linked = pdf(["Syllabus", "This file came by link."])
    link = Document.from_link(server.host_file("syllabus.pdf", linked))
    largest, too_large = pdf(["As large as allowed"], size=limit), pdf(["Oh"], size=limit + 1)
    is_image, is_too_large = errors.DocumentTypeRefused, errors.DocumentTooLarge
    for room_id in ("room01", "room02", "room03", TAKEN):
        server.add_room(room_id)
    return [
        _item(folder, "room01", "handout.pdf", pdf(["Welcome!"])),
        _item(folder, "room02", "timetable.docx", docx(["Timetable"])),
        Item("room02", "syllabus.pdf", linked, link, "by link"),
        _item(folder, "room03", "lecture.pdf", largest, f"{size(limit)}, the limit"),
        _item(folder, TAKEN, "exam.pdf", pdf(["Exam"]), "waited: the room was taken"),
        _item(folder, "room01", "diagram.png", PNG, "it is a PNG image", is_image),
        _item(folder, "room01", "too-large.pdf", too_large, "1 byte above it", is_too_large),
    ]


def _batch(server: MeetingServer, folder: Path) -> list[Item]:
    """Open the rooms but one, and write documents for all of them; no two are alike."""
    for room_id in CLASSES:
        (folder / room_id).mkdir()
        if room_id != ABSENT_CLASS:
            server.add_room(room_id).processing_seconds = PROCESSING_SECONDS / 2
    return [
        _item(
            folder / room_id,
            room_id,
            f"week-{week}.pdf",
            pdf([room_id, f"Week {week}"]),
            error=errors.RoomNotFound if room_id == ABSENT_CLASS else None,
        )
        for week in range(1, WEEKS + 1)
        for room_id in CLASSES
    ]


def _item(
    folder: Path,
    room_id: str,
    name: str,
    content: bytes,
    remark: str = "",
    error: type[errors.MeetingError] | None = None,
) -> Item:
    (folder / name).write_bytes(content)
    return Item(room_id, name, content, Document.from_path(folder / name), remark, error)
