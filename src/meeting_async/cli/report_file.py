"""The file of an HTML report: it replaces an earlier report, and nothing else.

What cannot be replaced, a device, a pipe or this command's own output, is written instead.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TextIO

from meeting_async._system import in_use, name_problem, replace
from meeting_async.cli.console import Output
from meeting_async.errors import InvalidInput

MARK = b'<meta name="generator" content="meeting-async">'
"""What the first bytes of each report contain."""

HEAD_BYTES = 1024
"""Bytes in which it is looked for."""


def check_report(path: str, *, needed: Iterable[str] = (), unmade: Collection[str] = ()) -> None:
    """Raise before the work starts if the report cannot be written, or would replace a file.

    ``needed`` are files that the command reads. ``unmade`` are files that it makes.
    """
    from meeting_async.cli import report as _  # noqa: F401 - fails now if a package is missing

    if problem := name_problem(path):
        raise _refused(path, problem)
    place = os.path.realpath(path)
    if place in {os.path.realpath(one) for one in unmade}:
        raise _refused(path, "is a file of the journal")
    try:
        known = _status_of(path)
        if known is not None and stat.S_ISDIR(known.st_mode):
            raise _refused(path, "is a folder")
        if known is None or _is_replaced(known):
            if known is not None:
                _check_replaceable(path, known, needed)
            with tempfile.NamedTemporaryFile(dir=os.path.dirname(place)):
                pass
    except OSError as error:
        raise _refused(path, f"cannot be written: {error.strerror}{in_use(error)}") from error


def _status_of(path: str) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return os.stat(path)
    return None


def _own_stream(known: os.stat_result) -> TextIO | None:
    """Return stdout or stderr if it is this file, whatever a path such as /dev/stdout leads to."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # it is closed, or a fake in a test
            if known.st_ino and os.path.samestat(known, os.fstat(stream.fileno())):
                return stream
    return None


def _is_replaced(known: os.stat_result) -> bool:
    return stat.S_ISREG(known.st_mode) and _own_stream(known) is None


def _check_replaceable(path: str, known: os.stat_result, needed: Iterable[str]) -> None:
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
    if head and MARK not in head:
        raise _refused(path, "is your own file, and not a report")
    if any(_is_at(other, known) for other in needed):
        raise _refused(path, "is one of the documents")


def _is_at(path: str, known: os.stat_result) -> bool:
    with suppress(OSError, ValueError):  # it is not there, or no path
        return os.path.samestat(known, os.stat(path))
    return False


def _refused(path: str, problem: str) -> InvalidInput:
    return InvalidInput("--report", repr(path), problem, "give another path")


def write_report(path: str, page: str, output: Output) -> None:
    """Write a report beside its place, then put it there; only its owner may read it.

    If it cannot be written, that is told: an earlier report is still there, whole. On Windows
    another program may have that one open: then the new one stays beside it.
    """
    try:
        _write(path, page)
    except OSError as error:
        kept = f": the new report is {error.filename!r}" if _is_kept(error) else ""
        reason = f"{error.strerror}{in_use(error)}{kept}"
        output.note(f"error: {path} cannot be written: {reason}")


def _write(path: str, page: str) -> None:
    known = _status_of(path)
    if known is not None and not _is_replaced(known):
        if (stream := _own_stream(known)) is not None:
            stream.write(page)
        else:
            with open(path, "wb") as file:
                file.write(page.encode())
        return
    place = os.path.realpath(path)
    descriptor, unfinished = tempfile.mkstemp(".html", ".report-", os.path.dirname(place))
    try:
        with open(descriptor, "wb") as file:
            file.write(page.encode())
            file.flush()
            os.fsync(descriptor)
        replace(unfinished, place)
    except BaseException as error:
        if not _is_kept(error):
            os.unlink(unfinished)
        raise


def _is_kept(error: BaseException) -> bool:
    """Return whether a new report is complete, and only could not be put into its place."""
    return bool(in_use(error)) and getattr(error, "filename2", None) is not None
