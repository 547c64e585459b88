"""``meeting-async upload``: documents to one room, one after another."""

from __future__ import annotations

from collections.abc import Sequence

from meeting_async import MeetingClient
from meeting_async.cli.console import Output
from meeting_async.cli.delivery import Options, WorkList, deliver
from meeting_async.cli.entries import STDIN, Entry, Flaws, Origin, StdinEntry, check_files
from meeting_async.cli.results import ExitCode
from meeting_async.errors import InvalidInput


def upload(
    client: MeetingClient,
    room_id: str,
    targets: Sequence[str],
    filename: str | None,
    options: Options,
    output: Output,
    *,
    max_size: int | None,
) -> ExitCode:
    """Upload paths, links and stdin; nothing is sent unless all of them can be."""
    _check_filename(targets, filename)
    origin = Origin()
    entries = [
        (StdinEntry if target == STDIN else Entry)(room_id, target, origin, filename=filename)
        for target in targets
    ]
    flaws = Flaws()
    for entry in entries:
        for problem in entry.problems():
            flaws.add(0, entry.place, problem)
    check_files(entries, max_size, flaws)
    if flaws.count:
        flaws.tell(output)
        return ExitCode.USAGE
    return deliver(client, WorkList(room_id, entries), options, output)


def _check_filename(targets: Sequence[str], filename: str | None) -> None:
    if filename is not None and len(targets) > 1:
        problem = "is given for several documents"
        raise InvalidInput("--filename", repr(filename), problem, "upload them one by one")
    if filename is None and STDIN in targets:
        fix = "give a single document, and --filename NAME.pdf"
        raise InvalidInput("FILE", "'-'", "has no name", fix)
