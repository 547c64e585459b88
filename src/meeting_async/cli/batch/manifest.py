"""SOURCE of a batch: a manifest or a folder, read as a whole before anything is sent."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Collection, Iterator

import attrs

from meeting_async.cli.batch.rows import Mistake, rows_in
from meeting_async.cli.entries import STDIN, Entry, Flaws, Origin
from meeting_async.errors import InvalidInput

MAX_MANIFEST_BYTES = 256 * 1024**2
"""Largest manifest: some millions of lines. Anything larger is probably a wrong file."""

_DEBRIS = frozenset({"desktop.ini", "thumbs.db"})
"""What Windows leaves in folders that somebody has opened."""

_LAYOUT = "ROOM_ID/file is expected"


@attrs.define(eq=False)
class Manifest:
    """What is to be uploaded, and what is wrong with it."""

    name: str
    """What messages call it."""
    entries: list[Entry] = attrs.field(factory=list)
    flaws: Flaws = attrs.field(factory=Flaws)
    left_out: int = 0
    """Hidden files of a folder."""

    def add(self, entry: Entry) -> None:
        """Add an entry, and what is wrong with it."""
        for problem in entry.problems():
            self.flaws.add(entry.number, entry.place, problem)
        self.entries.append(entry)


def manifest_of(source: str, *, besides: Collection[str] = ()) -> Manifest:
    """Read what ``source`` names: a manifest, ``-`` for one on stdin, or a folder.

    The paths in ``besides`` do not belong to a folder. Documents are not looked at yet.

    Raises:
        InvalidInput: There is nothing that can be read as a whole, or nothing in it.

    """
    manifest = _read(source, besides)
    if not manifest.entries and not manifest.flaws.count:
        raise _unusable(source, "names no documents")
    _find_twins(manifest)
    return manifest


def _read(source: str, besides: Collection[str]) -> Manifest:
    if source == STDIN:
        if sys.stdin is None:
            raise _unusable(source, "is closed")
        return _written(sys.stdin.buffer.read(MAX_MANIFEST_BYTES + 1), "stdin", "")
    try:
        if stat.S_ISDIR(os.stat(source).st_mode):
            return _folder(source, {os.path.abspath(path) for path in besides})
        with open(source, "rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise _unusable(source, f"cannot be read: {reason}") from error
    return _written(data, source, os.path.dirname(source))


def _unusable(source: str, problem: str) -> InvalidInput:
    return InvalidInput("SOURCE", repr(source), problem, "give a manifest, a folder or '-'")


def _written(data: bytes, name: str, folder: str) -> Manifest:
    """Understand a manifest whose relative paths start at ``folder``."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise _unusable(name, f"is larger than {MAX_MANIFEST_BYTES // 1024**2} MiB")
    manifest = Manifest(name)
    origin = Origin(name, folder, os.path.abspath(folder))
    rooms: dict[str, str] = {}  # one string for each room, not one for each line
    for row in rows_in(data):
        if isinstance(row, Mistake):
            manifest.flaws.add(row.line, f"{name}:{row.line}", row.text)
            continue
        values = row.values
        room_id = rooms.setdefault(values["room_id"], values["room_id"])
        entry = Entry(room_id, values["document"], origin, row.line)
        entry.filename, entry.key = values.get("filename"), values.get("key")
        manifest.add(entry)
    return manifest


def _find_twins(manifest: Manifest) -> None:
    """Note what is there twice: a class would see the document twice.

    Whoever wants that gives each line a key of its own.
    """
    seen: dict[object, Entry] = {}
    for entry in manifest.entries:
        first = seen.setdefault(entry.identity, entry)
        if first is not entry:
            manifest.flaws.add(entry.number, entry.place, _twin(entry, first))


def _twin(entry: Entry, first: Entry) -> str:
    if entry.key is not None:
        return f"key {entry.key!r} is taken by {first.place}"
    return (
        f"the same document for the same room as {first.place}: leave one out, "
        "or give each a key if the room is to get it twice"
    )


# --- folders -------------------------------------------------------------------------------------


def _folder(source: str, besides: Collection[str]) -> Manifest:
    """Find the documents of all rooms: ``ROOM_ID/file``, a folder for each room, in natural order.

    A folder inside of a room's folder and a file beside them are mistakes, as leaving them out
    could mean that a document is missed; only hidden files and ``besides`` are left out.
    """
    manifest = Manifest(source)
    origin = Origin("", source, os.path.abspath(source))
    for room in _listed(source, manifest, besides):
        if not room.is_dir():
            manifest.flaws.add(0, room.path, f"is beside the rooms' folders: {_LAYOUT}")
            continue
        for file in _listed(room.path, manifest, besides):
            if file.is_dir():
                text = f"is a folder inside of a room's folder: {_LAYOUT}"
                manifest.flaws.add(0, file.path, text)
            else:
                written = os.path.relpath(file.path, source)
                manifest.add(Entry(room.name, written, origin))
    return manifest


def _listed(
    folder: str, manifest: Manifest, besides: Collection[str]
) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder and not hidden, in natural order."""
    try:
        with os.scandir(folder) as entries:
            everything = sorted(entries, key=lambda entry: natural(entry.name))
    except OSError as error:
        manifest.flaws.add(0, folder, f"cannot be read: {error.strerror}")
        return
    for entry in everything:
        if _is_hidden(entry.name):
            manifest.left_out += 1
        elif os.path.abspath(entry.path) not in besides:
            yield entry


def _is_hidden(name: str) -> bool:
    """Tell what nobody means to upload; office programs write ``~$deck.docx`` while it is open."""
    return name.startswith((".", "~$")) or name.lower() in _DEBRIS


def natural(name: str) -> tuple[object, ...]:
    """Return what sorts ``chapter 9`` before ``chapter 10``."""
    parts = re.split(r"([0-9]+)", name.casefold())
    numbered = [int(part) if at % 2 else part for at, part in enumerate(parts)]
    return (numbered, name)
