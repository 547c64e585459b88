"""``meeting-async batch``: many documents to many rooms."""

from __future__ import annotations

import os
import time
from typing import Literal

import anyio
import attrs

from meeting_async import MeetingClient, errors
from meeting_async._environment import settings_from
from meeting_async.cli import _amounts
from meeting_async.cli._batch_run import run
from meeting_async.cli._console import complain, say
from meeting_async.cli._inspection import inspect
from meeting_async.cli._manifest import Manifest, flaws_shown, manifest_of
from meeting_async.cli._outcomes import ExitCode

FLAWS_SHOWN = 50
"""Mistakes of a manifest that are shown; further ones are counted."""


@attrs.frozen(kw_only=True)
class Options:
    """What the command line says about a batch; times are seconds."""

    concurrency: int = 32
    journal: str | None = None
    wait_active: float | None = None
    on_unknown: Literal["report", "resend"] = "report"
    max_wait: float | None = None
    as_json: bool = False
    report: str | None = None
    check: bool = False


def batch(source: str, options: Options) -> int:
    """Upload what ``source`` lists; nothing is sent unless all of it can be."""
    client = None if options.check else MeetingClient.from_env()  # wrong settings come first
    if options.report is not None:
        _check_report(options.report)
    started = time.monotonic()
    try:
        manifest = _checked(source, options)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("nothing was sent") from None
    if manifest.flaws:
        return _tell_flaws(manifest)
    text = f"{_measures(manifest)}, checked in {time.monotonic() - started:.1f} s"
    if client is None:
        say(text)
        return ExitCode.OK
    complain(text)
    return run(client, manifest, options)


def _checked(source: str, options: Options) -> Manifest:
    journal, ours = options.journal, [options.report] if options.report else []
    if journal is not None:
        ours += [journal, f"{journal}-wal", f"{journal}-shm"]
    manifest = manifest_of(source, besides=ours)
    max_size = settings_from(os.environ).get("max_size_whiteboard_file")
    anyio.run(inspect, manifest, max_size)
    return manifest


def _tell_flaws(manifest: Manifest) -> ExitCode:
    for line in flaws_shown(manifest, FLAWS_SHOWN):
        complain(line)
    mistakes = _amounts.counted(len(manifest.flaws), "mistake")
    complain(f"error: {mistakes} in {manifest.name}: nothing was sent")
    return ExitCode.USAGE


def _measures(manifest: Manifest) -> str:
    documents = _amounts.counted(len(manifest.entries), "document")
    facts = [f"{documents} for {_amounts.counted(manifest.rooms, 'room')}"]
    if manifest.size:
        facts.append(_amounts.size(manifest.size))
    if manifest.left_out:
        facts.append(f"{_amounts.counted(manifest.left_out, 'hidden file')} left out")
    return f"{manifest.name}: {', '.join(facts)}"


def _check_report(path: str) -> None:
    """See that the report can be written, before a batch of hours."""
    place = path if os.path.exists(path) else os.path.dirname(path) or "."  # noqa: PTH110, PTH120 - any string
    problem = None
    if os.path.isdir(path):  # noqa: PTH112 - as above
        problem = "is a folder"
    elif not os.path.exists(place):  # noqa: PTH110 - as above
        problem = "is in a folder that is not there"
    elif not os.access(place, os.W_OK):
        problem = "cannot be written"
    if problem is not None:
        raise errors.InvalidInput("--report", repr(path), problem, "give another path")
