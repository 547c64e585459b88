"""The file of an HTML report: it replaces an earlier report, and nothing else."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Collection, Iterable
from contextlib import suppress

from meeting_async.errors import InvalidInput


def check_report(path: str, *, needed: Iterable[str] = (), unmade: Collection[str] = ()) -> None:
    """Raise before the work starts if the report cannot be written, or would replace a file.

    ``needed`` are files that the command reads. ``unmade`` are files that it makes.
    """
    from meeting_async.cli import report as _  # noqa: F401 - fails now if a package is missing

    place = os.path.realpath(path)
    if place in {os.path.realpath(one) for one in unmade}:
        raise _refused(path, "is a file of the journal")
    try:
        known = os.stat(place)
    except FileNotFoundError:
        known = None
    except OSError as error:
        raise _refused(path, f"cannot be written: {error.strerror}") from error
    try:
        if known is not None:
            _check_replaceable(path, place, known, needed)
        if known is None or stat.S_ISREG(known.st_mode):
            descriptor, probe = tempfile.mkstemp(dir=os.path.dirname(place))
            os.close(descriptor)
            os.unlink(probe)
    except OSError as error:
        raise _refused(path, f"cannot be written: {error.strerror}") from error


def _check_replaceable(path: str, place: str, known: os.stat_result, needed: Iterable[str]) -> None:
    if stat.S_ISDIR(known.st_mode):
        raise _refused(path, "is a folder")
    if not stat.S_ISREG(known.st_mode):  # /dev/null, for example
        return
    with open(place, "rb") as file:
        head = file.read(1)
    if head not in {b"", b"<"}:  # HTML begins so
        raise _refused(path, "is a file of yours, and not a report")
    for other in needed:
        with suppress(OSError, ValueError):
            if os.path.samestat(known, os.stat(other)):
                raise _refused(path, "is one of the documents")


def _refused(path: str, problem: str) -> InvalidInput:
    return InvalidInput("--report", repr(path), problem, "give another path")


def write_report(path: str, page: str) -> None:
    """Write a report beside its place, then put it there; only its owner may read it.

    Raises:
        OSError: It cannot be written; an earlier report is still there, whole.

    """
    place = os.path.realpath(path)
    if os.path.exists(place) and not os.path.isfile(place):
        with open(place, "w", encoding="utf-8") as file:
            file.write(page)
        return
    descriptor, unfinished = tempfile.mkstemp(".html", ".report-", os.path.dirname(place))
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(page)
            file.flush()
            os.fsync(descriptor)
        os.replace(unfinished, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
