"""``meeting-async upload``: documents to one room, one after another."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from meeting_async.cli.console import PROGRAM
from meeting_async.cli.options import DEFAULTS, Common, File, Printed, Seconds


def upload(
    room_id: str,
    file: Annotated[list[File], Parameter(allow_leading_hyphen=True)],
    /,
    *,
    filename: str | None = None,
    max_wait: Seconds | None = None,
    common: Common = DEFAULTS,
    output: Printed,
) -> int:
    """Upload documents to the whiteboard files of an active room, in the given order.

    If another upload has locked the room, this command waits until the room is
    free: at most 330 s for each document, unless you give --max-wait.

    After Ctrl-C no new upload starts, and the running one ends normally; a second
    Ctrl-C cancels it.

    Args:
        room_id: The room.
        file: Paths, links that the server downloads itself, or "-" for stdin.
        filename: Name to show in the room instead of the file's own (single document only).
        max_wait: Longest wait for a busy room in seconds, for each document; 0: do not wait.
        common: Options of all commands.
        output: Where to print.

    """
    from meeting_async.cli.delivery import Order, deliver
    from meeting_async.cli.entries import StdinEntry, check_of_files, tell_flaws
    from meeting_async.cli.results import ExitCode
    from meeting_async.manifests._entries import STDIN, Entry, Flaws

    _check_targets(file, filename)
    entries = [
        (StdinEntry if target == STDIN else Entry)(room_id, target, filename=filename)
        for target in file
    ]
    client, flaws = common.client(), Flaws()
    flaws.find_in(entries, check_of_files())
    flaws.find_twins(entries)
    if flaws.count:
        tell_flaws(flaws, output)
        return ExitCode.USAGE
    settings = {"max_wait": max_wait}
    order = Order(
        room_id, entries, settings, server=common.server, detailed=True, quiet=common.quiet
    )
    return deliver(client, order, output)


def _check_targets(targets: list[str], filename: str | None) -> None:
    from meeting_async.errors import InvalidInput

    for target in filter(os.path.isdir, targets):
        fix = f"use `{PROGRAM} batch FOLDER` (FOLDER/ROOM_ID/file), or name its files"
        raise InvalidInput("FILE", repr(target), "is a folder", fix)
    if filename is not None and len(targets) > 1:
        problem = "is given for several documents"
        raise InvalidInput("--filename", repr(filename), problem, "upload them one by one")
    if filename is None and "-" in targets:
        fix = "give a single document, and --filename NAME.pdf"
        raise InvalidInput("FILE", "'-'", "has no name", fix)
