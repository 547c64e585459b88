"""The demo: it uploads documents, prints the outcomes, and checks that they are as expected.

First single documents: one by link, one to a locked room, one as large as the server allows, and
two that must be refused. Then a batch whose process is killed, and that is run again. At the end
every room must have received exactly the bytes that were sent, each document once and in order.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import attrs

from meeting_async import (
    BatchReport,
    Document,
    MeetingClient,
    RetryPolicy,
    UploadJob,
    UploadOutcome,
    errors,
)
from meeting_async._text import counted, printable, size
from meeting_async.cli.console import Output
from meeting_async.cli.demo.documents import PNG, pdf
from meeting_async.cli.display import display_on

if TYPE_CHECKING:
    from meeting_async.testing import MeetingServer

PROCESSING_SECONDS = 0.3
"""Duration of a conversion on the server; half of that in the batch."""

LIMIT = 30 * 1024**2
"""Largest document that the server accepts, in bytes."""

LOCK_SECONDS = 2.0
"""How long a room is locked by another client."""

LOCKED, LOCKED_CLASS, ABSENT_CLASS = "room04", "class03", "class06"
CLASSES = [f"class{number:02}" for number in range(1, 7)]
WEEKS = 5
"""Documents for each class."""

KILL_AFTER = 10
"""Documents after which the first run of the batch is killed."""

KILL_SECONDS = 60.0
"""Longest time until then in seconds: the first run is a new process."""

SETTLE_SECONDS = 2.0
"""``RetryPolicy.settle_after``: there is no proxy here."""


@attrs.frozen
class Item:
    """A document for a room."""

    room_id: str
    name: str
    content: bytes
    remark: str = ""
    error: type[errors.MeetingError] | None = None
    """The error that must refuse it; ``None`` if it must be accepted."""
    link: str | None = None

    def job(self) -> UploadJob:
        """Make the job that uploads it."""
        if self.link is not None:
            return UploadJob(self.room_id, Document.from_link(self.link))
        return UploadJob(self.room_id, self.content, filename=self.name)


def perform(output: Output) -> int:
    """Run the demo, and return 0 only if everything was as expected."""
    from meeting_async.testing import MeetingServer

    started = time.monotonic()
    server = MeetingServer(max_size_whiteboard_file=LIMIT, processing_seconds=PROCESSING_SECONDS)
    with tempfile.TemporaryDirectory(prefix="meeting-async-demo-") as name, server.run() as url:
        output.say(f"A meeting server runs on {url}. Documents sent to it:\n")
        problems = [*_perform_single(server, output)]
        problems += _perform_batch(server, output, Path(name) / "batch.db")
    for problem in problems:
        output.note(f"error: not as expected: {problem}")
    if problems:
        output.say(f"Not everything was as expected: {counted(len(problems), 'problem')}.")
        return 1
    there = sum(len(room.received) for room in server.rooms.values())
    output.say(
        f"Everything was as expected: {there} documents are in their rooms, each once and\n"
        "with the bytes that were sent (SHA-256), 2 were refused before anything was\n"
        f"sent, in {time.monotonic() - started:.1f} s.",
    )
    return output.code()


# --- uploads, and the problems found -------------------------------------------------------------


def _perform_single(server: MeetingServer, output: Output) -> Iterator[str]:
    items = _single(server)
    server.rooms[LOCKED].lock(LOCK_SECONDS)
    outcomes = anyio.run(_deliver, server, items, output).outcomes
    for item, outcome in zip(items, outcomes, strict=True):
        output.say(_line(item, outcome))
    output.say("")
    yield from _problems(server, items, outcomes)
    if not any(outcome.conflicts for outcome in outcomes if outcome.room_id == LOCKED):
        yield f"{LOCKED} was not locked"


def _perform_batch(server: MeetingServer, output: Output, journal: Path) -> Iterator[str]:
    items = _batch(server)
    server.rooms[LOCKED_CLASS].lock(LOCK_SECONDS / 2)
    output.say(
        f"A batch of {len(items)} documents for {len(CLASSES)} rooms, with a journal. One room is\n"
        f"locked at first, and {ABSENT_CLASS} does not exist. The batch is killed amid its\n"
        "uploads, then the same jobs are run again:\n",
    )
    there = _killed(server, items, journal)
    output.say(f"  first run   killed (kill -9) when the server had {there} documents")
    second = anyio.run(_deliver, server, items, output, journal)
    receipts = [outcome.receipt for outcome in second.outcomes if outcome.receipt is not None]
    found = sum(not receipt.status_code for receipt in receipts)
    sums = [
        f"{second.already_delivered} accepted before",
        f"{found} found there",
        f"{second.accepted - found} sent",
        f"{second.refused + second.skipped} without a room",
    ]
    output.say(f"  second run  {', '.join(sums)}\n")
    yield from _problems(server, items, second.outcomes)
    if not there or second.unknown:
        yield f"the second run did not settle what the first has left: {second!r}"


def _killed(server: MeetingServer, items: Sequence[Item], journal: Path) -> int:
    """Run the batch in a process of its own, kill it, and return how much the server has."""
    keys = server.api_key, server.api_secret
    of_batch = [server.rooms[room_id] for room_id in CLASSES if room_id in server.rooms]
    process = multiprocessing.get_context("spawn").Process(
        target=_first_run, args=(server.url, *keys, [*items], journal), daemon=True
    )
    process.start()
    until = time.monotonic() + KILL_SECONDS
    while sum(len(room.received) for room in of_batch) < KILL_AFTER and process.is_alive():
        if time.monotonic() > until:
            break
        time.sleep(0.005)
    process.kill()
    process.join()
    return sum(len(room.received) for room in of_batch)


def _first_run(url: str, key: str, secret: str, items: Sequence[Item], journal: Path) -> None:
    async def run() -> None:
        client = MeetingClient(url, api_key=key, api_secret=secret)
        async with client, client.upload_many([item.job() for item in items], journal=journal):
            pass

    anyio.run(run)


async def _deliver(
    server: MeetingServer,
    items: Sequence[Item],
    output: Output,
    journal: Path | None = None,
) -> BatchReport:
    display = display_on(output, len(items) if journal else 1, detailed=False)
    client = MeetingClient(
        server.url,
        api_key=server.api_key,
        api_secret=server.api_secret,
        max_size_whiteboard_file=LIMIT,
        delivery="exactly_once",
        retry=RetryPolicy(settle_after=SETTLE_SECONDS),
    )
    batch = client.upload_many([item.job() for item in items], journal=journal, on_event=display)
    display.report = batch.report
    async with client, batch:
        with display:
            async for _ in batch:
                display.tick()
    return batch.report


def _line(item: Item, outcome: UploadOutcome) -> str:
    """Return the outcome of a document as one line."""
    fate, remark = f"accepted in {outcome.seconds:.1f} s", item.remark
    if item.error is not None:
        fate = "refused, not sent"
    elif not outcome.delivered:
        fate, remark = "NOT ACCEPTED", printable(str(outcome.error))
    return f"  {item.name:<15} to {item.room_id}  {fate:<18}  {remark}".rstrip()


def _problems(
    server: MeetingServer, items: Sequence[Item], outcomes: Sequence[UploadOutcome]
) -> Iterator[str]:
    rooms: dict[str, list[Item]] = {}
    for item, outcome in zip(items, outcomes, strict=True):
        is_right = isinstance(outcome.error, item.error) if item.error else outcome.delivered
        if not is_right:
            yield f"{item.name} to {item.room_id}: {outcome.error or outcome.status}"
        if item.error is None:
            rooms.setdefault(item.room_id, []).append(item)
    for room_id, mine in rooms.items():
        received = server.rooms[room_id].received
        if [(f.name, f.sha256) for f in received] != [
            (i.name, sha256(i.content).hexdigest()) for i in mine
        ]:
            names = ", ".join(file.name for file in received) or "nothing"
            yield f"{room_id} received {names} instead of {', '.join(i.name for i in mine)}"


# --- documents -----------------------------------------------------------------------------------


def _single(server: MeetingServer) -> list[Item]:
    linked = pdf(["Syllabus", "This file came by link."])
    link = server.host_file("syllabus.pdf", linked)
    largest, too_large = pdf(["As large as allowed"], size=LIMIT), pdf(["Oh"], size=LIMIT + 1)
    is_image, is_too_large = errors.DocumentTypeRefused, errors.DocumentTooLarge
    for room_id in ("room01", "room02", "room03", LOCKED):
        server.add_room(room_id)
    return [
        Item("room01", "handout.pdf", pdf(["Welcome!"])),
        Item("room02", "timetable.txt", b"Monday: algebra\n"),
        Item("room02", "syllabus.pdf", linked, "by link", link=link),
        Item("room03", "lecture.pdf", largest, f"{size(LIMIT)}, the limit"),
        Item(LOCKED, "exam.pdf", pdf(["Exam"]), "waited: the room was locked"),
        Item("room01", "diagram.png", PNG, "it is a PNG image", is_image),
        Item("room01", "too-large.pdf", too_large, "1 byte above the limit", is_too_large),
    ]


def _batch(server: MeetingServer) -> list[Item]:
    """Open all rooms except one, and make different documents for all of them."""
    for room_id in CLASSES:
        if room_id != ABSENT_CLASS:
            server.add_room(room_id).processing_seconds = PROCESSING_SECONDS / 2
    absent = {ABSENT_CLASS: errors.RoomNotFound}
    return [
        Item(room_id, f"week-{n}.pdf", pdf([room_id, f"Week {n}"]), error=absent.get(room_id))
        for n in range(1, WEEKS + 1)
        for room_id in CLASSES
    ]
