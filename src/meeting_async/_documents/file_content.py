"""The content of a file that can be read at any offset: regular files and file objects.

A snapshot is taken once. The file is opened for each attempt, and compared with the snapshot at the
end of the attempt. A file of up to 256 KiB is opened, read, checked and closed in one call of a
thread, because such a call costs more than all of that.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial

import attrs

from meeting_async._documents.checks import HEAD_BYTES
from meeting_async._documents.source import (
    BytesReader,
    PreparedSource,
    Reader,
    Snapshot,
    unreadable,
)
from meeting_async._threads import in_thread
from meeting_async.errors import DocumentChanged, MeetingError

WHOLE_BYTES = 256 * 1024
"""Largest file that is read in one call of a thread."""


class OpenedFile(abc.ABC):
    """A file that is open for one attempt. All but ``read_nowait`` and ``close`` run in threads."""

    start = 0
    """Offset at which the document begins."""

    @abc.abstractmethod
    def fingerprints(self) -> Iterator[tuple[int, ...]]:
        """Yield the state of the open file, then the state of what has its path now, if any.

        A state is the offset of the end, then device, inode and times, as far as known.
        """

    @abc.abstractmethod
    def read(self, limit: int, offset: int, /) -> bytes:
        """Return up to ``limit`` bytes; ``b""`` only at the end."""

    def read_nowait(self, limit: int, offset: int, /) -> bytes | None:
        """Return bytes if that is sure not to block, else ``None``."""
        return None

    def close(self) -> None:  # noqa: B027 - the caller's file stays open
        """Close it, after a read that is running in a thread."""


class FileSource(abc.ABC):
    """A file that can be opened again for each attempt."""

    @abc.abstractmethod
    def open(self) -> OpenedFile:
        """Open the file, in a thread."""

    def label(self, name: str) -> str:
        """Return what errors call the file."""
        return name

    @asynccontextmanager
    async def prepare(
        self, name: str, max_size: int | None
    ) -> AsyncGenerator[PreparedSource, None]:
        """Take the snapshot; the file is closed after that."""
        yield await in_thread(partial(_measure, self, self.label(name)))


def _measure(source: FileSource, label: str) -> FileContent:
    """Take the snapshot of a file."""
    with _reading(label), closing(source.open()) as opened:
        fingerprint = next(opened.fingerprints())
        size = max(0, fingerprint[0] - opened.start)
        head = _read(opened, opened.start, min(size, HEAD_BYTES))
        if not fingerprint[0] and opened.read(1, 0):  # in /proc, for example
            raise OSError("it has content, but no size: copy it to a file on disk")
        return FileContent(source, label, Snapshot(size, head, fingerprint, opened.start))


@attrs.define(eq=False)
class FileContent(PreparedSource):
    """A file during one upload."""

    _source: FileSource
    _label: str
    snapshot: Snapshot

    async def open(self) -> Reader:
        """Open the file, if it still matches the snapshot."""
        if self.snapshot.size <= WHOLE_BYTES:
            return BytesReader(await in_thread(self._read_whole))
        return FileReader(self, await in_thread(self._reopen))

    def fetch(self, opened: OpenedFile, limit: int, offset: int) -> bytes:
        """Read, in a thread."""
        with _reading(self._label):
            return opened.read(limit, offset)

    def check(self, opened: OpenedFile) -> None:
        """Raise :class:`DocumentChanged` if the file does not match the snapshot, in a thread."""
        with _reading(self._label, again=True):
            for fingerprint in opened.fingerprints():
                _compare(self._label, self.snapshot, fingerprint)

    def _reopen(self) -> OpenedFile:
        with _reading(self._label, again=True):
            opened = self._source.open()
            try:
                _compare(self._label, self.snapshot, next(opened.fingerprints()))
            except BaseException:
                opened.close()
                raise
            return opened

    def _read_whole(self) -> bytes:
        with closing(self._reopen()) as opened, _reading(self._label):
            data = _read(opened, self.snapshot.start, self.snapshot.size)
            self.check(opened)
            return data


class FileReader(Reader):
    """Reads a large file: directly if that cannot block, otherwise in threads.

    It does not read ahead, because the operating system does.
    """

    def __init__(self, content: FileContent, opened: OpenedFile) -> None:
        self._content = content
        self._opened = opened
        self._offset = content.snapshot.start
        self._end = content.snapshot.start + content.snapshot.size

    async def read(self, limit: int, /) -> bytes:
        """Return the next bytes."""
        limit = min(limit, self._end - self._offset)
        data = self._opened.read_nowait(limit, self._offset)
        if data is None:
            fetch = partial(self._content.fetch, self._opened, limit, self._offset)
            data = await in_thread(fetch)
        self._offset += len(data)
        return data

    async def finish(self) -> None:
        """Check in a thread that the file is unchanged, and close it there."""
        await in_thread(self._finish)

    def _finish(self) -> None:
        self._content.check(self._opened)
        self._opened.close()

    def close(self) -> None:
        """Close the file; a thread that reads it keeps it open."""
        self._opened.close()


def _read(opened: OpenedFile, offset: int, size: int) -> bytes:
    parts, end = [], offset + size
    while offset < end and (part := opened.read(end - offset, offset)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def _compare(label: str, snapshot: Snapshot, fingerprint: tuple[int, ...]) -> None:
    before = snapshot.fingerprint
    if fingerprint == before:
        return
    if fingerprint[1:3] != before[1:3]:
        change = "another file has its place"
    elif fingerprint[0] != before[0]:
        size = max(0, fingerprint[0] - snapshot.start)
        change = f"it has {size:,} bytes instead of {snapshot.size:,}"
    else:
        change = "it was written to"
    raise DocumentChanged(label, change)


@contextmanager
def _reading(label: str, *, again: bool = False) -> Iterator[None]:
    """Return our error for an exception of a file; ``again``: it was readable before."""
    try:
        yield
    except MeetingError:
        raise
    except Exception as error:
        if again and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise DocumentChanged(label, "it is gone") from error
        raise unreadable(label, error) from error
