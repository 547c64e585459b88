"""The content of a file that can be read at any offset: regular files and file objects.

It is measured once, opened for each attempt, and checked at the end of the attempt. A file of up to
256 KiB is opened, read, checked and closed in one call of a thread, as each such call costs more
than all of that; the bytes that are read when it is measured serve the first attempt.
"""

from __future__ import annotations

import abc
import collections
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import Protocol

import attrs

from meeting_async._documents.checks import HEAD_BYTES
from meeting_async._documents.source import BytesReader, Content, Reader, Snapshot, unreadable
from meeting_async._documents.threads import ThreadJob, in_thread, try_in_thread
from meeting_async.errors import DocumentChanged, MeetingError

WHOLE_BYTES = 256 * 1024
"""Largest file that is read in one call of a thread."""

MAX_KEPT = 64
"""Small files whose bytes are kept for their first attempt: together at most 16 MiB."""


class OpenedFile(Protocol):
    """A file that is open for one attempt. All but ``read_nowait`` and ``close`` run in threads."""

    @property
    def start(self) -> int:
        """Offset at which the document begins."""
        ...

    def fingerprints(self) -> Iterator[tuple[int, ...]]:
        """Yield the state of the open file, then the state of what has its path now, if any.

        A state is the offset of the end, then device, inode and times, as far as known.
        """
        ...

    def read(self, limit: int, offset: int, /) -> bytes:
        """Return up to ``limit`` bytes; ``b""`` only at the end."""
        ...

    def read_nowait(self, limit: int, offset: int, /) -> bytes | None:
        """Return bytes if that is sure not to block, else ``None``."""
        ...

    def close(self) -> None:
        """Close it, after a read that is running in a thread."""
        ...


class FileSource(abc.ABC):
    """A file that can be opened again for each attempt."""

    @abc.abstractmethod
    def open(self) -> OpenedFile:
        """Open the file, in a thread."""

    def label(self, name: str) -> str:
        """Return what errors call the file."""
        return name

    @asynccontextmanager
    async def prepare(self, name: str, max_size: int | None) -> AsyncGenerator[Content, None]:
        """Measure the file; nothing is open afterwards."""
        label = self.label(name)
        snapshot, data = await in_thread(partial(_measure, self, label))
        yield FileContent(self, label, snapshot, _keep(data))


@attrs.frozen(eq=False)
class FileContent:
    """A file during one upload."""

    _source: FileSource
    _label: str
    snapshot: Snapshot
    _kept: list[bytes] = attrs.field(repr=False)
    """The whole content, for the first attempt; or nothing."""
    is_spent = False

    async def open(self) -> Reader:
        """Open the file, if it is still the one that was measured."""
        kept = self._kept[:]
        self._kept.clear()
        if kept:
            return BytesReader(kept[0])
        if self.snapshot.size <= WHOLE_BYTES:
            whole = partial(_read_whole, self._source, self._label, self.snapshot)
            return BytesReader(await in_thread(whole))
        opened = await in_thread(partial(_reopen, self._source, self._label, self.snapshot))
        return FileReader(opened, self._label, self.snapshot)

    def release(self) -> None:
        """Drop the bytes that are kept for the first attempt."""
        self._kept.clear()


_kept: collections.deque[list[bytes]] = collections.deque()


def _keep(data: bytes | None) -> list[bytes]:
    """Keep the bytes of a small file, and drop those that have been kept for longest."""
    kept = [] if data is None else [data]
    if kept:
        _kept.append(kept)
    while len(_kept) > MAX_KEPT:
        _kept.popleft().clear()
    return kept


class FileReader:
    """Reads a large file: directly if that cannot block, else in threads, one chunk ahead."""

    def __init__(self, opened: OpenedFile, label: str, snapshot: Snapshot) -> None:
        self._opened = opened
        self._label = label
        self._snapshot = snapshot
        self._offset = snapshot.start
        self._end = snapshot.start + snapshot.size
        self._ahead: ThreadJob[bytes] | None = None

    async def read(self, limit: int, /) -> bytes:
        """Return the next bytes: about ``limit`` at most, as a chunk may have been read ahead."""
        data = self._read_nowait(limit)
        if data is None:
            data = await self._read_in_thread(limit)
        self._offset += len(data)
        return data

    async def finish(self) -> None:
        """Check in a thread that the file is unchanged, and close it there."""
        await in_thread(self._finish)

    def close(self) -> None:
        """Abandon the chunk that is read ahead; a thread that reads it keeps the file open."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.abandon()
        self._opened.close()

    def _read_nowait(self, limit: int) -> bytes | None:
        wanted = min(limit, self._end - self._offset)
        if wanted <= 0:
            return b""
        return None if self._ahead else self._opened.read_nowait(wanted, self._offset)

    async def _read_in_thread(self, limit: int) -> bytes:
        ahead, self._ahead = self._ahead, None
        data = await (in_thread(self._fetch(limit, 0)) if ahead is None else ahead.result())
        if data and self._offset + len(data) < self._end:
            self._ahead = try_in_thread(self._fetch(limit, len(data)))
        return data

    def _fetch(self, limit: int, ahead: int) -> partial[bytes]:
        offset = self._offset + ahead
        return partial(_fetch, self._opened, self._label, min(limit, self._end - offset), offset)

    def _finish(self) -> None:
        try:
            _check(self._opened, self._label, self._snapshot)
        finally:
            self._opened.close()


# --- in threads ----------------------------------------------------------------------------------


def _measure(source: FileSource, label: str) -> tuple[Snapshot, bytes | None]:
    """Return what the file is, and all of its bytes if they are few."""
    with _reading(label), closing(source.open()) as opened:
        fingerprint = next(opened.fingerprints())
        start, size = opened.start, max(0, fingerprint[0] - opened.start)
        is_small = size <= WHOLE_BYTES
        data = _read(opened, start, size if is_small else HEAD_BYTES)
        snapshot = Snapshot(size, data[:HEAD_BYTES], fingerprint, start)
        if is_small:
            _check(opened, label, snapshot)
        return snapshot, data if is_small else None


def _reopen(source: FileSource, label: str, snapshot: Snapshot) -> OpenedFile:
    with _reading(label, again=True):
        opened = source.open()
        try:
            _compare(label, snapshot, next(opened.fingerprints()))
        except BaseException:
            opened.close()
            raise
        return opened


def _read_whole(source: FileSource, label: str, snapshot: Snapshot) -> bytes:
    with closing(_reopen(source, label, snapshot)) as opened, _reading(label):
        data = _read(opened, snapshot.start, snapshot.size)
        _check(opened, label, snapshot)
        return data


def _fetch(opened: OpenedFile, label: str, limit: int, offset: int) -> bytes:
    with _reading(label):
        return opened.read(limit, offset)


def _check(opened: OpenedFile, label: str, snapshot: Snapshot) -> None:
    with _reading(label, again=True):
        for fingerprint in opened.fingerprints():
            _compare(label, snapshot, fingerprint)


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
    """Turn what a file raises into an error of ours; ``again``: it was there before."""
    try:
        yield
    except MeetingError:
        raise
    except Exception as error:
        if again and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise DocumentChanged(label, "it is gone") from error
        raise unreadable(label, error) from error
