"""Entries, the documents that a manifest or command line names, and the mistakes in them."""

from __future__ import annotations

import os
import re
import stat
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache, partial

import attrs

from meeting_async import Document, UploadJob
from meeting_async._documents.document import known_as
from meeting_async._documents.junk import junk_kind
from meeting_async._documents.source import HEAD_BYTES, unreadable
from meeting_async._protocol.multipart import file_name
from meeting_async._protocol.requests import room_of
from meeting_async._system import openable, without_drive
from meeting_async._text import link_label
from meeting_async._threads import result_of, run_in_thread
from meeting_async.errors import InvalidInput, MeetingError

STDIN = "-"

FILES_AT_ONCE = 256
"""Files that one thread checks in a row: giving it work costs as much as several checks."""

THREADS = 16
"""Threads that check files where a check is slow, as on a file server."""

SLOW_LOOK = 0.001
"""Seconds per file. Faster checks run in one thread: more threads would not be faster."""

FLAWS_KEPT = 10_000
"""Mistakes that are kept; further ones are only counted."""

Check = Callable[[str, int, bytes], None]
"""What an upload checks of a file before it sends it: name, size in bytes and first bytes."""


@attrs.define(eq=False)
class Entry:
    """One document for one room. A manifest may have a million of them."""

    room_id: str
    target: str
    """Path or link as it was given."""
    folder: str = ""
    """Folder at which a relative path starts."""
    manifest: str = ""
    """Name of the manifest; ``""`` if the entry is not from a manifest."""
    number: int = 0
    """Its line in the manifest."""
    filename: str | None = None
    key: str | None = None
    size: int | None = None
    """Bytes; ``None`` for a link, and before the check."""

    @property
    def place(self) -> str:
        """Its name in messages: ``term.csv:17``, or the path, or the link without its secrets."""
        if self.manifest:
            return f"{self.manifest}:{self.number}"
        return link_label(self.target) if self.is_link else self.path

    @property
    def is_link(self) -> bool:
        """Whether it is a link, which the server downloads."""
        return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", self.target) is not None

    @property
    def path(self) -> str:
        """Path relative to the working directory, as it is on disk."""
        if self.target.isascii():
            return os.path.join(self.folder, self.target)
        return _on_disk(self.folder, self.target)

    @property
    def shown(self) -> str:
        """The name that the room shows, or the whole link.

        Raises:
            InvalidInput: The name cannot be used.

        """
        return (
            self.target if self.is_link else file_name(self.filename or without_drive(self.target))
        )

    @property
    def file(self) -> object:
        """Equal for two entries of the same file, however its path is written."""
        with suppress(OSError, ValueError):  # the check finds what is wrong with it
            if not self.is_link:
                status = os.stat(openable(self.path))
                return status.st_dev, status.st_ino
        return self.target if self.is_link else os.path.abspath(self.path)

    def document(self) -> Document:
        """Make the document. This reads nothing.

        Raises:
            InvalidInput: The name or the link cannot be used.

        """
        if self.is_link:
            return Document.from_link(self.target).renamed(self.filename, None)
        return known_as(Document.from_path(self.path, filename=self.filename), self.target)

    def job(self) -> UploadJob:
        """Make the job. A journal knows it, too, if manifest and documents are moved together."""
        return UploadJob(self.room_id, self.document(), key=self.key)

    def problems(self, check_content: Check) -> Iterator[str]:
        """Yield what is wrong with it; a file is opened and its first bytes are read."""
        for check in (
            partial(_check_room_id, self.room_id),
            partial(self.check_document, check_content),
        ):
            try:
                check()
            except MeetingError as error:
                yield str(error)
        if self.key is not None and re.search("[\ud800-\udfff]", self.key):
            yield "key contains characters that are not valid Unicode"

    def check_document(self, check_content: Check) -> None:
        """Make the checks that an upload makes before it sends, and one of the name.

        On Windows ``deck.pdf:Zone.Identifier`` would be opened.
        """
        if not self.is_link:
            if kind := junk_kind(self.target):
                fix = "leave it out, or rename it if it is a document"
                raise InvalidInput("document", repr(self.target), f"is {kind}", fix)
            name = self.filename or os.path.basename(self.target)
            self.size, head = _looked_at(self.path)
            check_content(name, self.size, head)
        self.document()


def _on_disk(folder: str, target: str) -> str:
    """Return the path of a file, also if its name on disk is in another form of Unicode.

    A Mac takes names apart (NFD), and spreadsheets write them whole (NFC). What is there as it is
    written comes first; what is not there stays as it is written.
    """
    written = os.path.join(folder, target)
    if os.path.lexists(written):
        return written
    path = folder
    for part in re.split(r"(?<=/)", target):
        path = next(filter(os.path.lexists, _forms(path, part)), os.path.join(path, part))
    return path if os.path.lexists(path) else written


def _forms(folder: str, part: str) -> Iterator[str]:
    yield os.path.join(folder, part)
    for form in ("NFC", "NFD"):
        yield os.path.join(folder, unicodedata.normalize(form, part))


_check_room_id = lru_cache(maxsize=1000)(room_of)
"""Cached, because many entries have the same room."""


def _looked_at(path: str) -> tuple[int, bytes]:
    """Return the size and the first bytes of a file."""
    problem = "it is not a regular file"
    try:
        status = os.stat(openable(path))
        if stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its other end
            with open(openable(path), "rb", buffering=0) as file:
                head = file.read(HEAD_BYTES)
            if status.st_size or not head:
                return status.st_size, head
            problem = "it has content, but no size: copy it to a file on disk"  # as in /proc
    except (OSError, ValueError) as error:  # ValueError: half a character in the path
        raise unreadable(path, error) from error
    raise unreadable(path, OSError(problem))


_Look = Future[list[tuple[int, str, str]]]
"""A check of some entries: line, place and text of each mistake."""


def _look(look: _Look, entries: Sequence[Entry], check_content: Check) -> None:
    """Check entries in one of our own threads: a dead network drive does not block the exit."""
    try:
        look.set_result(
            [
                (entry.number, entry.place, problem)
                for entry in entries
                for problem in entry.problems(check_content)
            ]
        )
    except BaseException as error:  # noqa: BLE001 - raised where the result is taken
        look.set_exception(error)


@attrs.define
class Flaws:
    """Mistakes that must be fixed before anything is sent; beyond 10,000 only their number."""

    found: list[tuple[int, str, str]] = attrs.field(factory=list)
    """Line of the manifest (0: none), place and text."""
    count: int = 0

    def add(self, number: int, place: str, text: str) -> None:
        """Add a mistake."""
        self.count += 1
        if len(self.found) < FLAWS_KEPT:
            self.found.append((number, place, text))

    def find_twins(self, entries: Iterable[Entry], fix: str = "remove one") -> None:
        """Find documents that a room would get twice: the same file under the same name.

        Entries that have a key each are meant to be two documents.
        """
        names: dict[tuple[str, str], list[Entry]] = {}
        for entry in entries:
            with suppress(InvalidInput):  # `find_in` finds it
                names.setdefault((entry.room_id, entry.shown), []).append(entry)
        for same in names.values():
            if len(same) > 1 and any(entry.key is None for entry in same):
                self._find_same_files(same, fix)

    def _find_same_files(self, entries: list[Entry], fix: str) -> None:
        seen: dict[object, Entry] = {}
        for entry in entries:
            first = seen.setdefault(entry.file, entry)
            if first is not entry and None in {entry.key, first.key}:
                text = f"the same document for the same room as {first.place}: {fix}"
                self.add(entry.number, entry.place, text)

    def find_in(self, entries: Sequence[Entry], check_content: Check) -> None:
        """Check every entry and its file."""
        looks, at_once = deque[_Look](), 1
        for start in range(0, len(entries), FILES_AT_ONCE):
            before = time.monotonic()
            looks.append(_Look())
            some = entries[start : start + FILES_AT_ONCE]
            run_in_thread(partial(_look, looks[-1], some, check_content))
            if len(looks) == at_once:
                self._add_all(looks.popleft())
            if time.monotonic() - before > FILES_AT_ONCE * SLOW_LOOK:
                at_once = THREADS
        while looks:
            self._add_all(looks.popleft())

    def _add_all(self, look: _Look) -> None:
        for flaw in result_of(look):
            self.add(*flaw)
