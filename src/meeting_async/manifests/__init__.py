"""What to upload, from a table or a folder: what ``meeting-async batch`` reads.

Guide: ``docs/batch.md``.
"""

from __future__ import annotations

import os
from functools import partial

from meeting_async import UploadJob
from meeting_async._documents.prepared import check_content
from meeting_async._policies import parse_size
from meeting_async._text import counted, printable
from meeting_async.errors import InvalidInput
from meeting_async.manifests._entries import Flaws
from meeting_async.manifests._source import manifest_of

__all__ = ["read_manifest"]

MISTAKES_SHOWN = 50
"""Mistakes that an error has as notes; further ones are only counted."""


def read_manifest(
    path: str | os.PathLike[str],
    *,
    max_size_whiteboard_file: int | str | None = None,
    allow_images: bool = False,
) -> list[UploadJob]:
    """Read a manifest or a folder, check all its documents, and return a job for each.

    This reads files, and blocks: in an async program call it in a thread.

    Args:
        path: A CSV file, a file with a JSON object on each line, a folder with a folder for each
            room, or ``"-"`` for stdin. The columns, the order of the files and what is left out
            of a folder: ``docs/command-line.md``, Many documents.
        max_size_whiteboard_file: The client's setting: bytes, or text such as ``"30MiB"``.
        allow_images: The client's setting.

    Raises:
        InvalidInput: The path cannot be read, names no documents, or has mistakes. The message has
            the first one with its line, and each is a note of the error (``__notes__``), up to 50.

    """
    source, field = os.fspath(path), "max_size_whiteboard_file"
    size = max_size_whiteboard_file
    limit = None if size is None else parse_size(size, field=field)
    manifest = manifest_of(source, field="path")
    check = partial(check_content, max_size=limit, allow_images=allow_images)
    manifest.flaws.find_in(manifest.entries, check)
    if manifest.flaws.count:
        raise _mistakes(source, manifest.flaws)
    return [entry.job() for entry in manifest.entries]


def _mistakes(source: str, flaws: Flaws) -> InvalidInput:
    """Return an error with the mistakes, in the order of the input."""
    found = sorted(flaws.found)
    notes = [printable(text if at in text else f"{at}: {text}") for _, at, text in found]
    count = counted(flaws.count, "mistake")
    fix = "correct each, and read it again"
    error = InvalidInput("path", repr(source), f"has {count}; the first: {notes[0]}", fix)
    for note in notes[:MISTAKES_SHOWN]:
        error.add_note(note)
    if flaws.count > MISTAKES_SHOWN:
        error.add_note(f"… and {flaws.count - MISTAKES_SHOWN:,} more mistakes")
    return error
