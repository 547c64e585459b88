"""``meeting-async batch``: read and check a whole manifest or folder, then deliver it.

:mod:`meeting_async.manifests` reads it; ``cli/delivery.py`` sends its documents.
"""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from meeting_async._system import command_line, name_problem
from meeting_async._text import link_label
from meeting_async.cli.console import PROGRAM, Output
from meeting_async.cli.options import (
    DEFAULTS,
    Common,
    DryRun,
    File,
    PositiveSeconds,
    Printed,
    Seconds,
)
from meeting_async.errors import InvalidInput

if TYPE_CHECKING:
    from meeting_async.manifests._source import Manifest


def batch(
    source: Annotated[File, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    journal: File | None = None,
    report: File | None = None,
    check: DryRun = False,
    concurrency: Annotated[int, Parameter(validator=Number(gte=1), show_default=True)] = 32,
    max_wait: Seconds | None = None,
    wait_active: PositiveSeconds | None = None,
    once_per: Annotated[Literal["session", "room"], Parameter(show_default=True)] = "session",
    common: Common = DEFAULTS,
    output: Printed,
) -> int:
    """Upload many documents to many rooms, in the given order within each room.

    SOURCE is a folder with a folder for each room (ROOM_ID/file...), or a
    manifest ("-": stdin). A manifest is CSV, or has a JSON object on each line.
    Its columns or fields are room_id, document (a path or link) and, optionally,
    filename and key; in CSV the first line names the columns. Relative paths
    start at the manifest's folder. Everything is checked before anything is sent.

    After Ctrl-C no new upload starts, and the running ones end normally; a second
    Ctrl-C cancels them.

    Args:
        source: Manifest, "-" or folder.
        journal: File that records what was accepted; run the same command again to resume.
        report: HTML file to write the report to.
        check: Only check the manifest and the documents. This needs no server.
        concurrency: Maximum of uploads at the same time, without those that wait for a room.
        max_wait: Longest wait for a busy room in seconds, for each document; 0: do not wait.
        wait_active: Seconds to wait for a room to become active. Default: the room is skipped.
        once_per: With a journal: "session" sends a document again to a new session of its room.
        common: Options of all commands.
        output: Where to print.

    """
    from meeting_async.cli.delivery import Order, deliver
    from meeting_async.cli.entries import tell_flaws
    from meeting_async.cli.results import ExitCode

    client = None if check else common.client()
    started = time.monotonic()
    manifest = _checked(source, journal, report)
    if manifest.flaws.count:
        tell_flaws(manifest.flaws, output)
        return ExitCode.USAGE
    sums = f"{manifest}, checked in {time.monotonic() - started:.1f} s"
    if client is None:
        return tell_check(manifest, sums, output)
    if not common.quiet:
        output.note(sums)
    settings = {
        "concurrency": concurrency,
        "journal": journal,
        "max_wait": max_wait,
        "once_per": once_per,
        "wait_active": wait_active,
    }
    order = Order(
        manifest.name,
        manifest.entries,
        settings,
        report=report,
        server=common.server,
        quiet=common.quiet,
        resumption=_resumption(journal),
    )
    return deliver(client, order, output)


def _checked(source: str, journal: str | None, report: str | None) -> Manifest:
    """Read the source, and check its documents and the places of journal and report."""
    from meeting_async.cli.entries import check_of_files
    from meeting_async.manifests._source import manifest_of

    if journal is not None and (problem := name_problem(journal)):
        raise InvalidInput("--journal", repr(journal), problem, "give another path")
    ours = _files_of(journal)
    # An earlier report in the folder is not one of its documents.
    pages = [report] if report and report.lower().endswith((".html", ".htm")) else []
    manifest = manifest_of(source, field="SOURCE", besides=[*ours, *pages])
    if report is not None:
        from meeting_async.reports._file import check_report

        needed = (entry.path for entry in manifest.entries)
        check_report(report, field="--report", needed=needed, unmade=ours)
    manifest.flaws.find_in(manifest.entries, check_of_files())
    return manifest


def tell_check(manifest: Manifest, sums: str, output: Output) -> int:
    """Print what a manifest without mistakes has."""
    if output.as_json:
        output.say_object("check", manifest.sums)
    else:
        output.tell(sums)
    return output.code()


def _files_of(journal: str | None) -> list[str]:
    """Return the files that a journal has; beside a link, they are where the file is."""
    if journal is None:
        return []
    places = {journal, os.path.realpath(journal)}
    return [f"{place}{end}" for place in places for end in ("", "-journal", "-wal", "-shm")]


def _resumption(journal: str | None) -> str:
    """Return the hint how to send the rest."""
    argv = sys.argv[1:]
    words = (re.sub("(?s)[^=]*://.*", lambda link: link_label(link[0]), one) for one in argv)
    command = command_line([PROGRAM, *words])
    if journal is not None:
        return f"run `{command}` again to resume: accepted documents are not sent again"
    return "another run sends everything again; a run with --journal FILE can be resumed"
