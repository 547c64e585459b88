"""What is named on the command line or in a manifest as a document, and what is wrong with it."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import attrs

from meeting_async import Document, UploadJob
from meeting_async._batch.local_checks import check_file, check_room_id
from meeting_async.cli.console import Output
from meeting_async.cli.words import labelled, message_of
from meeting_async.errors import InvalidInput, MeetingError

STDIN = "-"

FILES_AT_ONCE = 256
"""Looked at in one go: to hand work to a thread costs as much as several looks."""

SLOW_SECONDS = 0.0005
"""From this time per file on, as on a file server, several are looked at side by side."""

THREADS = 16

FLAWS_SHOWN = 50
"""Mistakes that are told to people; further ones are counted."""

FLAWS_KEPT = 10_000
"""Mistakes that are kept, for programs; further ones are counted."""

_LINK = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@attrs.frozen
class Origin:
    """Where entries are named: in a manifest, in a folder, or on the command line."""

    name: str = ""
    """Name of the manifest, if it is one."""
    folder: str = ""
    """Where relative paths begin, as messages show it."""
    root: str = attrs.field(factory=os.getcwd)
    """The same as an absolute path."""


@attrs.define(eq=False)
class Entry:
    """A document for a room. A manifest may have a million of them."""

    room_id: str
    target: str
    """Path or link as it is written."""
    origin: Origin
    number: int = 0
    """Its line in the manifest."""
    filename: str | None = None
    key: str | None = None
    size: int | None = None
    """Bytes; ``None`` for a link, and before it was checked."""

    @property
    def place(self) -> str:
        """What messages call it: ``term.csv:17``, or the path or link."""
        return f"{self.origin.name}:{self.number}" if self.number else self.shown

    @property
    def shown(self) -> str:
        """Path from the working directory, or link without its query, which may be a secret."""
        if self.is_link:
            return re.split(r"[?#]", self.target, maxsplit=1)[0]
        return os.path.join(self.origin.folder, self.target)

    @property
    def is_link(self) -> bool:
        """Whether the server downloads it."""
        return _LINK.match(self.target) is not None

    @property
    def path(self) -> str:
        """Absolute path, as one file may be written in several ways."""
        return os.path.normpath(os.path.join(self.origin.root, self.target))

    @property
    def identity(self) -> object:
        """What two entries must not share: a class would see the document twice."""
        if self.key is not None:
            return self.key
        return self.room_id, self.target if self.is_link else self.path, self.filename

    def document(self) -> Document:
        """Make the document; nothing is read.

        Raises:
            InvalidInput: Name or link cannot be used.

        """
        if self.is_link:
            return Document.from_link(self.target).renamed(self.filename, None)
        return Document.from_path(self.path, filename=self.filename)

    def job(self) -> UploadJob:
        """Make the job. A journal recognises it when manifest and documents have moved."""
        document, key = self.document(), self.key
        if key is None and not self.is_link:
            key = json.dumps([self.room_id, self.target, document.filename])
        return UploadJob(self.room_id, document, key=key)

    def problems(self) -> Iterator[str]:
        """Tell what is wrong with the entry itself; no file is looked at."""
        try:
            check_room_id(self.room_id)
        except InvalidInput as error:
            yield str(error)
        if self.key is not None and re.search("[\ud800-\udfff]", self.key):
            yield "key contains characters that are no Unicode text"
        if self.is_link or self.filename is not None:
            try:
                self.document()
            except InvalidInput as error:
                yield str(error)

    def check(self, max_size: int | None) -> str | None:
        """Look at the file, and tell what is wrong with it."""
        if self.is_link:
            return None
        name = self.filename or os.path.basename(self.target)
        try:
            self.size = check_file(self.path, name, max_size)
        except MeetingError as error:
            return message_of(error)
        return None


class StdinEntry(Entry):
    """What is read from stdin, once."""

    @property
    def shown(self) -> str:
        """Its name in the room."""
        return self.filename or self.target

    def document(self) -> Document:
        """Make the document."""
        stdin = io.FileIO(0, closefd=False)  # a thread that reads sys.stdin would hold up the exit
        return Document.from_stream(stdin, self.filename or "")

    def problems(self) -> Iterator[str]:
        """Tell what is wrong with it; nothing is read."""
        if sys.stdin is None:
            yield "stdin is closed"
        else:
            yield from super().problems()

    def check(self, max_size: int | None) -> str | None:
        """Nothing is known before it is read."""


@attrs.frozen(order=True)
class Flaw:
    """Something that must be corrected before anything is sent; those of a line stand together."""

    number: int
    place: str
    text: str

    def __str__(self) -> str:
        """Return one line."""
        return labelled(self.place, self.text)


@attrs.define(eq=False)
class Flaws:
    """Mistakes; of very many only the number is known."""

    found: list[Flaw] = attrs.field(factory=list)
    count: int = 0

    def add(self, number: int, place: str, text: str) -> None:
        """Note a mistake."""
        self.count += 1
        if len(self.found) < FLAWS_KEPT:
            self.found.append(Flaw(number, place, text))

    def tell(self, output: Output) -> None:
        """Tell mistakes, in the order of the input."""
        told = sorted(self.found)[: None if output.as_json else FLAWS_SHOWN]
        for flaw in told:
            if output.as_json:
                output.say_object("mistake", {"place": flaw.place, "message": flaw.text})
            else:
                output.note(f"error: {flaw}")
        if self.count > len(told):
            output.note(f"… and {self.count - len(told):,} more mistakes")
        output.note("nothing was sent")


def check_files(entries: Sequence[Entry], max_size: int | None, flaws: Flaws) -> None:
    """Measure every file, and note those that cannot be uploaded."""

    def look(start: int) -> list[tuple[Entry, str]]:
        some = entries[start : start + FILES_AT_ONCE]
        checked = ((entry, entry.check(max_size)) for entry in some)
        return [(entry, problem) for entry, problem in checked if problem]

    def note(found: list[tuple[Entry, str]]) -> None:
        for entry, problem in found:
            flaws.add(entry.number, entry.place, problem)

    began = time.monotonic()
    note(look(0))
    is_slow = time.monotonic() - began > SLOW_SECONDS * FILES_AT_ONCE
    pool = ThreadPoolExecutor(THREADS)
    try:
        rest = range(FILES_AT_ONCE, len(entries), FILES_AT_ONCE)
        for found in pool.map(look, rest) if is_slow else map(look, rest):
            note(found)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
