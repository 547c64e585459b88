"""The SOURCE of a batch: a manifest or a folder, read completely before anything is sent."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from functools import partial

import attrs

from meeting_async._documents.junk import is_junk_file, is_junk_folder
from meeting_async._system import in_use
from meeting_async._text import counted, size
from meeting_async._threads import result_of, run_in_thread
from meeting_async.errors import InvalidInput
from meeting_async.manifests._entries import STDIN, Entry, Flaws
from meeting_async.manifests._rows import rows_in

MAX_MANIFEST_BYTES = 256 * 1024**2
"""Largest manifest: some millions of lines. A larger file is probably not a manifest."""

JUNK_SHOWN = 3
"""Names of files that are left out because they are not documents; further ones are counted."""


@attrs.define(eq=False)
class Manifest:
    """The documents to upload, and the mistakes in them."""

    name: str
    """Its name in messages."""
    entries: list[Entry] = attrs.field(factory=list)
    flaws: Flaws = attrs.field(factory=Flaws)
    hidden: int = 0
    """Number of hidden files that were left out."""
    junk: list[str] = attrs.field(factory=list)
    """Paths that were left out because they are not documents (:func:`is_junk_file`)."""

    @property
    def sums(self) -> dict[str, int]:
        """Numbers of documents, rooms, bytes (known after the check), and files left out."""
        return {
            "documents": len(self.entries),
            "rooms": len({entry.room_id for entry in self.entries}),
            "size": sum(entry.size or 0 for entry in self.entries),
            "left_out": self.hidden + len(self.junk),
        }

    def __str__(self) -> str:
        """Return the name and the sums as text."""
        documents, rooms, total, _ = self.sums.values()
        what = f"{counted(documents, 'document')} for {counted(rooms, 'room')}, {size(total)}"
        return f"{self.name}: {what}{self.left_out}"

    @property
    def left_out(self) -> str:
        """Text about what is left out of a folder; ``""`` if nothing is."""
        text = f", {counted(self.hidden, 'hidden file')} left out" if self.hidden else ""
        if self.junk:
            names = [os.path.relpath(path, self.name) for path in self.junk[:JUNK_SHOWN]]
            shown = ", ".join(names + ["…"] * (len(self.junk) > JUNK_SHOWN))
            text += f", {counted(len(self.junk), 'file')} left out as not documents ({shown})"
        return text

    def find_unstorable(self) -> None:
        """Add a mistake for each path that is not valid Unicode: no database can store it."""
        for entry in self.entries:
            if re.search("[\ud800-\udfff]", entry.path):
                text = "the path is not valid Unicode: rename the file or the folder"
                self.flaws.add(entry.number, entry.place, text)


def manifest_of(source: str, *, field: str, besides: Collection[str] = ()) -> Manifest:
    """Read what ``source`` names: a manifest, ``-`` for one on stdin, or a folder.

    The paths in ``besides`` are not documents of the folder. ``field`` is what errors call the
    source. Documents are not checked here.

    Raises:
        InvalidInput: The source cannot be read, is too large, or names no documents.

    """
    manifest = Manifest("stdin" if source == STDIN else source)
    if os.path.isdir(source):
        _read_folder(manifest, {os.path.abspath(path) for path in besides})
    else:
        _read_rows(manifest, _text_of(source, field), os.path.dirname(source))
    if not manifest.entries and not manifest.flaws.count:
        raise _unusable(field, source, f"names no documents{manifest.left_out}")
    _find_twins(manifest)
    return manifest


def _text_of(source: str, field: str) -> bytes:
    if source == STDIN and sys.stdin is None:
        raise _unusable(field, source, "is closed")
    read = Future[bytes]()
    run_in_thread(partial(_read, source, read))
    try:
        data = result_of(read)
    except OSError as error:
        raise _unusable(
            field, source, f"cannot be read: {error.strerror}{in_use(error)}"
        ) from error
    if len(data) > MAX_MANIFEST_BYTES:
        raise _unusable(field, source, f"is larger than {MAX_MANIFEST_BYTES // 1024**2} MiB")
    return data


def _read(source: str, read: Future[bytes]) -> None:
    try:
        with open(os.dup(0) if source == STDIN else source, "rb") as file:
            read.set_result(file.read(MAX_MANIFEST_BYTES + 1))
    except Exception as error:  # noqa: BLE001 - raised where the result is taken
        read.set_exception(error)


def _unusable(field: str, source: str, problem: str) -> InvalidInput:
    return InvalidInput(field, repr(source), problem, "give a manifest, a folder or '-'")


def _read_rows(manifest: Manifest, data: bytes, folder: str) -> None:
    """Add the entries of a manifest whose relative paths start at ``folder``."""
    name = manifest.name
    for line, row in rows_in(data):
        if isinstance(row, str):
            manifest.flaws.add(line, f"{name}:{line}", row)
            continue
        room_id = sys.intern(row["room_id"])  # one string per room instead of one per line
        target, filename, key = row["document"], row.get("filename"), row.get("key")
        manifest.entries.append(Entry(room_id, target, folder, name, line, filename, key))


def _find_twins(manifest: Manifest) -> None:
    """Add a mistake for each key that a room has already, and for each document.

    Files are looked at only where a room would show a name twice.
    """
    keys: dict[tuple[str, str], Entry] = {}
    for entry in manifest.entries:
        if entry.key is not None:
            first = keys.setdefault((entry.room_id, entry.key), entry)
            if first is not entry:
                text = f"key {entry.key!r} is already used by {first.place}"
                manifest.flaws.add(entry.number, entry.place, text)
    fix = "remove one, or give each a key of its own if the room should get it twice"
    manifest.flaws.find_twins(manifest.entries, fix)


# --- folders -------------------------------------------------------------------------------------


def _read_folder(manifest: Manifest, besides: Collection[str]) -> None:
    """Find the documents of all rooms: ``ROOM_ID/file``, a folder for each room, in natural order.

    A folder inside a room's folder is a mistake, and so is a file outside the rooms' folders: if
    they were ignored, a document could be missed. Only hidden files, ``besides`` and what is not a
    document by its name are left out.
    """
    source = manifest.name
    for room in _listed(source, manifest, besides):
        if (is_folder := _is_folder(room, manifest)) is None:
            continue
        if not is_folder:
            text = "is not in the folder of a room: ROOM_ID/file is expected"
            manifest.flaws.add(0, room.path, text)
            continue
        for file in _listed(room.path, manifest, besides):
            if (is_folder := _is_folder(file, manifest)) is None:
                continue
            if is_folder:
                text = "is a folder inside a room's folder: ROOM_ID/file is expected"
                manifest.flaws.add(0, file.path, text)
            else:
                written = os.path.relpath(file.path, source)
                manifest.entries.append(Entry(room.name, written, source))


def _is_folder(entry: os.DirEntry[str], manifest: Manifest) -> bool | None:
    """Return whether an entry is a folder; ``None`` if it leads nowhere, which is a mistake."""
    try:
        return entry.is_dir()
    except OSError as error:  # a link that leads to itself
        manifest.flaws.add(0, entry.path, f"cannot be read: {error.strerror}")
        return None


def _listed(
    folder: str, manifest: Manifest, besides: Collection[str]
) -> Iterator[os.DirEntry[str]]:
    """Yield the content of a folder in natural order, without what is left out."""
    try:
        with os.scandir(folder) as entries:
            everything = sorted(entries, key=lambda entry: natural(entry.name))
    except OSError as error:
        manifest.flaws.add(0, folder, f"cannot be read: {error.strerror}")
        return
    for entry in everything:
        if _is_junk(entry, is_of_a_room=folder != manifest.name):
            manifest.junk.append(entry.path)
        elif entry.name.startswith("."):
            manifest.hidden += 1
        elif os.path.abspath(entry.path) not in besides:
            yield entry


def _is_junk(entry: os.DirEntry[str], *, is_of_a_room: bool) -> bool:
    """Return whether an entry is not a document by its name.

    A room's folder may end with ``.part``. A folder inside it with such a name is Safari's.
    """
    if is_junk_folder(entry.name):
        return True
    return is_junk_file(entry.name) and (is_of_a_room or not os.path.isdir(entry.path))


def natural(name: str) -> tuple[object, ...]:
    """Return a key that sorts ``chapter 9`` before ``chapter 10``."""
    parts = re.split(r"([0-9]+)", name.casefold())
    numbered = [int(part) if at % 2 else part for at, part in enumerate(parts)]
    return (numbered, name)
