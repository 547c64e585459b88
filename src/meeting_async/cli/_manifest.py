"""SOURCE of a batch: a manifest or a folder, read as a whole before anything is sent."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Collection, Iterator

import attrs

from meeting_async import Document, UploadJob, _wire
from meeting_async.cli._folder import documents_in
from meeting_async.cli._rows import Row, rows_in
from meeting_async.cli._targets import document_at, is_link
from meeting_async.errors import InvalidInput

STDIN = "-"

MAX_MANIFEST_BYTES = 256 * 1024**2
"""Largest manifest: some millions of lines. What is larger is no manifest but ``/dev/zero``."""


@attrs.define(eq=False)
class Entry:
    """A document for a room, as a line of the manifest or a file of the folder says."""

    number: int
    """Its line, or its place among the files."""
    place: str
    """What mistakes call it: ``term.csv:17``, or the path of the file."""
    room_id: str
    document: Document
    written: str
    """Path or link as it is written, a path from the folder of the manifest."""
    key: str | None = None
    size: int | None = None
    """Bytes; ``None`` for a link and before it was looked at."""

    @property
    def job(self) -> UploadJob:
        """What a batch takes. A journal knows it again when manifest and documents have moved."""
        key = self.key
        if key is None and self.document.link is None:
            key = json.dumps([self.room_id, self.written, self.document.filename])
        return UploadJob(self.room_id, self.document, key=key)


@attrs.frozen(order=True)
class Flaw:
    """A mistake of the manifest; those of a line stand together."""

    number: int
    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


@attrs.define(eq=False)
class Manifest:
    """What is to be uploaded, and what is wrong with it."""

    name: str
    """What messages call it."""
    entries: list[Entry] = attrs.field(factory=list)
    flaws: list[Flaw] = attrs.field(factory=list)
    left_out: int = 0
    """Hidden files of a folder."""

    @property
    def rooms(self) -> int:
        """How many rooms get something."""
        return len({entry.room_id for entry in self.entries})

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size or 0 for entry in self.entries)


def manifest_of(source: str, *, besides: Collection[str] = ()) -> Manifest:
    """Read what ``source`` names: a manifest, ``-`` for one on stdin, or a folder.

    Of a folder, the paths in ``besides`` do not belong to it. Documents are not looked at yet.

    Raises:
        InvalidInput: There is nothing that can be read as a whole.

    """
    if source == STDIN:
        return _written(sys.stdin.buffer.read(MAX_MANIFEST_BYTES + 1), "stdin", "")
    try:
        if stat.S_ISDIR(os.stat(source).st_mode):  # noqa: PTH116 - a path may be any string
            return _folder(source, besides)
        with open(source, "rb") as file:  # noqa: PTH123 - as above
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise _unusable(source, f"cannot be read: {reason}") from error
    return _written(data, source, os.path.dirname(source))  # noqa: PTH120 - as above


def _unusable(source: str, problem: str) -> InvalidInput:
    return InvalidInput("SOURCE", repr(source), problem, "give a manifest, a folder or '-'")


def _written(data: bytes, name: str, base: str) -> Manifest:
    """Understand a manifest whose relative paths start at the folder ``base``."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise _unusable(name, f"is larger than {MAX_MANIFEST_BYTES // 1024**2} MiB")
    manifest = Manifest(name)
    for found in rows_in(data):
        place = f"{name}:{found.line}"
        if isinstance(found, Row):
            _add(manifest, place, found, base)
        else:
            manifest.flaws.append(Flaw(found.line, place, found.text))
    _find_twins(manifest)
    return manifest


def _folder(source: str, besides: Collection[str]) -> Manifest:
    """Understand a folder with a folder for each room."""
    found = documents_in(source, {os.path.abspath(path) for path in besides})  # noqa: PTH100
    manifest = Manifest(source, left_out=found.left_out)
    manifest.flaws += [Flaw(0, path, text) for path, text in found.mistakes]
    for number, (room_id, path) in enumerate(found.documents, 1):
        written = os.path.relpath(path, source)
        _add(manifest, path, Row(number, {"room_id": room_id, "document": written}), source)
    return manifest


def _add(manifest: Manifest, place: str, row: Row, base: str) -> None:
    """Add what a row asks for, if its document can be named; note everything wrong with it."""
    values = row.values
    written, key = values["document"], values.get("key")
    target = written
    if not is_link(target):  # absolute, as one file may be written in several ways
        target = os.path.abspath(os.path.join(base, target))  # noqa: PTH100, PTH118 - any string
    problems = []
    try:
        _wire.room_id_bytes(values["room_id"])
    except InvalidInput as error:
        problems.append(str(error))
    if key is not None and re.search("[\ud800-\udfff]", key):
        problems.append("key contains characters that are no Unicode text")
    try:
        document = document_at(target, values.get("filename"))
        manifest.entries.append(Entry(row.line, place, values["room_id"], document, written, key))
    except InvalidInput as error:
        problems.append(str(error))
    manifest.flaws += [Flaw(row.line, place, problem) for problem in problems]


def _find_twins(manifest: Manifest) -> None:
    """Note what is there twice: a class would see the document twice.

    Whoever wants that gives each line a key of its own.
    """
    seen: dict[object, Entry] = {}
    for entry in manifest.entries:
        first = seen.setdefault(_identity(entry), entry)
        if first is not entry:
            manifest.flaws.append(Flaw(entry.number, entry.place, _twin(entry, first)))


def _identity(entry: Entry) -> object:
    if entry.key is not None:
        return entry.key
    document = entry.document
    return entry.room_id, document.source or document.link, document.filename


def _twin(entry: Entry, first: Entry) -> str:
    if entry.key is not None:
        return f"key {entry.key!r} is taken by {first.place}"
    return (
        f"the same document for the same room as {first.place}: leave one out, "
        "or give each a key if the room shall get it twice"
    )


def flaws_shown(manifest: Manifest, most: int) -> Iterator[str]:
    """Yield a line for each of the first mistakes, and one for the rest."""
    flaws = sorted(manifest.flaws)
    yield from map(str, flaws[:most])
    if len(flaws) > most:
        yield f"… and {len(flaws) - most:,} more"
