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
from meeting_async.errors import InvalidInput

MARK = b'<meta name="generator" content="meeting-async">'
"""What the first bytes of each report contain."""

HEAD_BYTES = 1024
"""Bytes in which it is looked for."""


def check_report(
    path: str, *, field: str, needed: Iterable[str] = (), unmade: Collection[str] = ()
) -> None:
    """Raise before the work starts if the report cannot be written, or would replace a file.

    ``field`` is what errors call the path. ``needed`` are files that the caller reads. ``unmade``
    are files that it makes.
    """
    try:
        problem = name_problem(path) or _problem(path, needed, unmade)
    except OSError as error:
        problem = f"cannot be written: {error.strerror}{in_use(error)}"
    if problem:
        raise InvalidInput(field, repr(path), problem, "give another path")


def _problem(path: str, needed: Iterable[str], unmade: Collection[str]) -> str:
    place = os.path.realpath(path)
    if place in {os.path.realpath(one) for one in unmade}:
        return "is a file of the journal"
    known = _status_of(path)
    if known is not None and stat.S_ISDIR(known.st_mode):
        return "is a folder"
    if known is not None and not _is_replaced(known):
        return ""
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(place)):
        return _replacement_problem(path, known, needed) if known is not None else ""


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


def _replacement_problem(path: str, known: os.stat_result, needed: Iterable[str]) -> str:
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
    if head and MARK not in head:
        return "is your own file, and not a report"
    is_needed = any(_is_at(other, known) for other in needed)
    return "is one of the documents" if is_needed else ""


def _is_at(path: str, known: os.stat_result) -> bool:
    with suppress(OSError, ValueError):  # it is not there, or no path
        return os.path.samestat(known, os.stat(path))
    return False


def write_file(path: str, page: str) -> None:
    """Write a report beside its place, then put it there; only its owner may read it.

    Raises:
        OSError: It cannot be written; an earlier report is still there, whole. If only its place
            cannot be taken, because on Windows another program has the earlier one open, the new
            one stays beside it (:func:`is_kept`).

    """
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
        if not is_kept(error):
            os.unlink(unfinished)
        raise


def is_kept(error: BaseException) -> bool:
    """Return whether a new report is complete, and only could not be put into its place."""
    return bool(in_use(error)) and getattr(error, "filename2", None) is not None
