"""The command ``batch``: check everything, then deliver it."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import time
from collections.abc import Collection

from meeting_async import MeetingClient, errors
from meeting_async.cli.batch.manifest import Manifest, manifest_of
from meeting_async.cli.console import PROGRAM, Output
from meeting_async.cli.delivery import Options, WorkList, deliver
from meeting_async.cli.entries import check_files
from meeting_async.cli.results import ExitCode
from meeting_async.cli.words import counted, size


def check(source: str, output: Output, *, max_size: int | None) -> int:
    """Tell what is wrong with a manifest and its documents; no server is needed."""
    started = time.monotonic()
    manifest = _checked(source, output, (), max_size)
    if manifest is None:
        return ExitCode.USAGE
    if output.as_json:
        documents, rooms, total = _measures(manifest)
        output.say_object("check", {"documents": documents, "rooms": rooms, "size": total})
    else:
        output.tell(_summary(manifest, started))
    return output.code()


def batch(
    client: MeetingClient, source: str, options: Options, output: Output, *, max_size: int | None
) -> int:
    """Upload what ``source`` lists; nothing is sent unless all of it can be."""
    started = time.monotonic()
    ours = [options.report] if options.report else []
    if options.report is not None:
        _check_report(options.report)
    if options.journal is not None:
        ours += [f"{options.journal}{suffix}" for suffix in ("", "-wal", "-shm")]
    manifest = _checked(source, output, ours, max_size)
    if manifest is None:
        return ExitCode.USAGE
    if not options.quiet:
        output.note(_summary(manifest, started))
    return deliver(client, WorkList(manifest.name, manifest.entries), options, output)


def resumption(journal: str | None) -> str:
    """Say how to send what is left."""
    command = shlex.join([PROGRAM, *sys.argv[1:]])
    if journal is not None:
        return f"`{command}` goes on: what was accepted is not sent again"
    return "run again, this sends everything again; with --journal FILE it goes on where it ended"


def _checked(
    source: str, output: Output, besides: Collection[str], max_size: int | None
) -> Manifest | None:
    """Read and check everything; ``None`` if something is wrong, which is told."""
    manifest = manifest_of(source, besides=besides)
    check_files(manifest.entries, max_size, manifest.flaws)
    if manifest.flaws.count:
        manifest.flaws.tell(output)
        return None
    return manifest


def _summary(manifest: Manifest, started: float) -> str:
    documents, rooms, total = _measures(manifest)
    facts = [f"{counted(documents, 'document')} for {counted(rooms, 'room')}", size(total)]
    if manifest.left_out:
        facts.append(f"{counted(manifest.left_out, 'hidden file')} left out")
    facts.append(f"checked in {time.monotonic() - started:.1f} s")
    return f"{manifest.name}: {', '.join(facts)}"


def _measures(manifest: Manifest) -> tuple[int, int, int]:
    rooms = {entry.room_id for entry in manifest.entries}
    return len(manifest.entries), len(rooms), sum(entry.size or 0 for entry in manifest.entries)


def _check_report(path: str) -> None:
    """Find out before the batch whether the report can be written."""
    place = path if os.path.exists(path) else os.path.dirname(path) or "."
    problem = None
    if os.path.isdir(path):
        problem = "is a folder"
    elif not os.path.exists(place):
        problem = "is in a folder that is not there"
    elif not os.access(place, os.W_OK):
        problem = "cannot be written"
    if problem is not None:
        raise errors.InvalidInput("--report", repr(path), problem, "give another path")
    importlib.import_module("meeting_async.cli.report")  # a missing package is told now
