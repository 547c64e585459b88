"""A folder as the source of a batch: ``ROOM_ID/file``, a folder for each room."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

import attrs

_DEBRIS = frozenset({"desktop.ini", "thumbs.db"})
"""What Windows leaves behind where somebody has looked at files."""


@attrs.define
class Found:
    """What is in a folder, in natural order: rooms, and the files of each."""

    documents: list[tuple[str, str]] = attrs.field(factory=list)
    """Pairs of room id and path."""
    mistakes: list[tuple[str, str]] = attrs.field(factory=list)
    """Pairs of path and what is wrong with it."""
    left_out: int = 0
    """Hidden files, those of file managers and the lock files of office programs."""


def documents_in(folder: str, besides: Collection[str]) -> Found:
    """Find the documents of all rooms.

    A folder inside of a room's folder and a file beside them are mistakes, as leaving them out
    could mean that a document is missed; only hidden files and the absolute paths in ``besides``
    are left out.
    """
    found = Found()
    for room in _listed(folder, found):
        if os.path.abspath(room.path) in besides:  # noqa: PTH100 - a name may be any string
            continue
        if not room.is_dir():
            text = "lies beside the rooms' folders: ROOM_ID/file is wanted"
            found.mistakes.append((room.path, text))
            continue
        for file in _listed(room.path, found):
            if file.is_dir():
                text = "a folder inside of a room's folder: ROOM_ID/file is wanted"
                found.mistakes.append((file.path, text))
            elif os.path.abspath(file.path) not in besides:  # noqa: PTH100 - as above
                found.documents.append((room.name, file.path))
    if not found.documents and not found.mistakes:
        found.mistakes.append((folder, "no documents in it: ROOM_ID/file is wanted"))
    return found


def _listed(folder: str, found: Found) -> list[os.DirEntry[str]]:
    """Return what is in a folder and not hidden, in natural order."""
    try:
        with os.scandir(folder) as entries:
            everything = list(entries)
    except OSError as error:
        found.mistakes.append((folder, f"cannot be read: {error.strerror}"))
        return []
    shown = [entry for entry in everything if not _is_hidden(entry.name)]
    found.left_out += len(everything) - len(shown)
    return sorted(shown, key=lambda entry: natural(entry.name))


def _is_hidden(name: str) -> bool:
    """Tell what nobody means to upload; office programs write ``~$deck.docx`` while it is open."""
    return name.startswith((".", "~$")) or name.lower() in _DEBRIS


def natural(name: str) -> tuple[object, ...]:
    """Return what sorts ``chapter 9`` before ``chapter 10``."""
    parts = re.split(r"([0-9]+)", name.casefold())
    numbered = [int(part) if at % 2 else part for at, part in enumerate(parts)]
    return (numbered, name)
