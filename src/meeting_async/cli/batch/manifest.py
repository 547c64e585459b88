"""SOURCE of a batch: a manifest or a folder, read as a whole before anything is sent."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator

import attrs

from meeting_async.cli.batch.rows import rows_in
from meeting_async.cli.entries import STDIN, Entry, Flaws
from meeting_async.cli.words import counted, size
from meeting_async.errors import InvalidInput

MAX_MANIFEST_BYTES = 256 * 1024**2
"""Largest manifest: some millions of lines. Anything larger is probably a wrong file."""

_DEBRIS = frozenset({"desktop.ini", "thumbs.db"})
"""What Windows leaves in folders that somebody has opened."""


@attrs.define(eq=False)
class Manifest:
    """What is to be uploaded, and what is wrong with it."""

    name: str
    """What messages call it."""
    entries: list[Entry] = attrs.field(factory=list)
    flaws: Flaws = attrs.field(factory=Flaws)
    left_out: int = 0
    """Hidden files of a folder."""

    @property
    def sums(self) -> dict[str, int]:
        """What there is to send, once it was checked."""
        return {
            "documents": len(self.entries),
            "rooms": len({entry.room_id for entry in self.entries}),
            "size": sum(entry.size or 0 for entry in self.entries),
        }

    def __str__(self) -> str:
        """Return the sums as text."""
        documents, rooms, total = self.sums.values()
        hidden = f", {counted(self.left_out, 'hidden file')} left out" if self.left_out else ""
        what = f"{counted(documents, 'document')} for {counted(rooms, 'room')}, {size(total)}"
        return f"{self.name}: {what}{hidden}"


def manifest_of(source: str, *, besides: Collection[str] = ()) -> Manifest:
    """Read what ``source`` names: a manifest, ``-`` for one on stdin, or a folder.

    The paths in ``besides`` do not belong to a folder. Documents are not looked at yet.

    Raises:
        InvalidInput: There is nothing that can be read as a whole, or nothing in it.

    """
    manifest = Manifest("stdin" if source == STDIN else source)
    if os.path.isdir(source):
        _read_folder(manifest, {os.path.abspath(path) for path in besides})
    else:
        _read_rows(manifest, _text_of(source), os.path.dirname(source))
    if not manifest.entries and not manifest.flaws.count:
        raise _unusable(source, "names no documents")
    _find_twins(manifest)
    return manifest


def _text_of(source: str) -> bytes:
    if source == STDIN and sys.stdin is None:
        raise _unusable(source, "is closed")
    try:
        with open(0 if source == STDIN else source, "rb", closefd=source != STDIN) as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise _unusable(source, f"cannot be read: {reason}") from error
    if len(data) > MAX_MANIFEST_BYTES:
        raise _unusable(source, f"is larger than {MAX_MANIFEST_BYTES // 1024**2} MiB")
    return data


def _unusable(source: str, problem: str) -> InvalidInput:
    return InvalidInput("SOURCE", repr(source), problem, "give a manifest, a folder or '-'")


def _read_rows(manifest: Manifest, data: bytes, folder: str) -> None:
    """Understand a manifest whose relative paths start at ``folder``."""
    name = manifest.name
    rooms: dict[str, str] = {}  # one string for each room, not one for each line
    for line, row in rows_in(data):
        if isinstance(row, str):
            manifest.flaws.add(line, f"{name}:{line}", row)
            continue
        room_id = rooms.setdefault(row["room_id"], row["room_id"])
        target, filename, key = row["document"], row.get("filename"), row.get("key")
        manifest.entries.append(Entry(room_id, target, folder, name, line, filename, key))


def _find_twins(manifest: Manifest) -> None:
    """Note what is there twice: a class would see the document twice.

    Whoever wants that gives each line a key of its own.
    """
    seen: dict[object, Entry] = {}
    for entry in manifest.entries:
        first = seen.setdefault(entry.identity, entry)
        if first is not entry:
            text = f"the same document for the same room as {first.place}: leave one out, "
            text += "or give each a key if the room is to get it twice"
            if entry.key is not None:
                text = f"key {entry.key!r} is taken by {first.place}"
            manifest.flaws.add(entry.number, entry.place, text)


# --- folders -------------------------------------------------------------------------------------


def _read_folder(manifest: Manifest, besides: Collection[str]) -> None:
    """Find the documents of all rooms: ``ROOM_ID/file``, a folder for each room, in natural order.

    A folder inside of a room's folder and a file beside them are mistakes, as leaving them out
    could mean that a document is missed; only hidden files and ``besides`` are left out.
    """
    source = manifest.name
    for room in _listed(source, manifest, besides):
        if not room.is_dir():
            text = "is beside the rooms' folders: ROOM_ID/file is expected"
            manifest.flaws.add(0, room.path, text)
            continue
        for file in _listed(room.path, manifest, besides):
            if file.is_dir():
                text = "is a folder inside of a room's folder: ROOM_ID/file is expected"
                manifest.flaws.add(0, file.path, text)
            else:
                written = os.path.relpath(file.path, source)
                manifest.entries.append(Entry(room.name, written, source))


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
