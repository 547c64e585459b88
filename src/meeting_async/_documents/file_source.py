"""What all files have in common: a snapshot, and attempts that notice a change.

The snapshot is taken when the upload begins, and compared with the file before and after each
attempt reads it. A file of up to 256 KiB is opened, read, checked and closed in one call of a
thread, because such a call costs more than all of that.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from functools import partial

import attrs

from meeting_async._documents.source import (
    HEAD_BYTES,
    Content,
    Opened,
    OpenedBytes,
    Snapshot,
    Source,
    unreadable,
)
from meeting_async._threads import at_disk, leave_to_thread
from meeting_async.errors import DocumentChanged, DocumentEmpty, MeetingError

WHOLE_BYTES = 256 * 1024
"""Largest document that is read in one call of a thread, or hashed without one."""

State = tuple[int, ...]
"""State of a file: the offset of its end, then device, inode, modification and change time (in
nanoseconds), as far as they are known."""


class File(abc.ABC):
    """A file in use, for the snapshot or for one attempt. All but ``read_nowait`` may block."""

    start: int = 0
    """Offset in bytes at which the document begins: for an open file its position."""

    @abc.abstractmethod
    def measure(self) -> State:
        """Return the state of the file."""

    @abc.abstractmethod
    def states(self, end: int | None = None) -> Iterator[State]:
        """Yield states to compare, when an attempt begins, or when it has read to ``end``."""

    @abc.abstractmethod
    def read(self, limit: int, offset: int, /) -> bytes:
        """Return up to ``limit`` bytes; ``b""`` only at the end."""

    def read_nowait(self, limit: int, offset: int, /) -> bytes | None:
        """Return bytes if that is sure not to block, else ``None``."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """End the use; a read that is running in a thread ends first."""

    def read_all(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes, or as many as there are."""
        parts, end = [], offset + size
        while offset < end and (part := self.read(end - offset, offset)):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)


class FileSource(Source):
    """A file that can be read again for each attempt."""

    label: str = ""
    """Name of the file in errors; ``""``: the document's name."""

    @abc.abstractmethod
    def use(self) -> File:
        """Open the file for one use. It blocks."""

    @asynccontextmanager
    async def prepare(self, name: str, max_size: int | None) -> AsyncGenerator[Content, None]:
        """Take the snapshot; the file is closed again before the block begins."""
        label = self.label or name
        snapshot = await at_disk(partial(self._snapshot, label))
        yield Content(snapshot, partial(at_disk, partial(self._open, label, snapshot)))

    def _snapshot(self, label: str) -> Snapshot:
        with _errors_of(label), closing(self.use()) as file:
            state, start = file.measure(), file.start
            size = max(0, state[0] - start)
            head = file.read_all(start, min(size, HEAD_BYTES))
            if not state[0] and file.read(1, 0):  # in /proc, for example
                raise OSError("it has content, but no size: copy it to a file on disk")
            if not size and start:
                raise at_its_end(label, start)
            return Snapshot(size, head, state, start)

    def _open(self, label: str, snapshot: Snapshot) -> Opened:
        with _errors_of(label, again=True), ExitStack() as stack:
            file = stack.enter_context(closing(self.use()))
            opened = _OpenedFile(label, _begun(label, snapshot, file), file)
            if snapshot.size > WHOLE_BYTES:
                stack.pop_all()
                return opened
            data = file.read_all(snapshot.start, snapshot.size)
            opened.check()
            return OpenedBytes(data)


def at_its_end(label: str, start: int) -> DocumentEmpty:
    """Return the error for a file whose position is at its end."""
    error = DocumentEmpty(label)
    error.add_note(f"The file stands at byte {start:,}, its end: seek(0) to upload all of it.")
    return error


def _begun(label: str, snapshot: Snapshot, file: File) -> Snapshot:
    """Return the snapshot with the state in which an attempt begins.

    Raises:
        DocumentChanged: Size or modification time differ. An equal copy in its place, a new link or
            name, or another owner is no change.

    """
    known, begun = snapshot.fingerprint, None
    for state in file.states():
        begun = begun or state
        if _content(state) != _content(known):
            raise DocumentChanged(label, _difference(snapshot, state))
        if state[1:3] != begun[1:3]:
            raise DocumentChanged(label, _MOVED)
    return attrs.evolve(snapshot, fingerprint=begun or known)


def _content(state: State) -> tuple[int, ...]:
    """Return the parts of a state that show a change of the content: size, modification time."""
    return state[0], *state[3:4]


_MOVED = "another file has its place"


def _difference(snapshot: Snapshot, found: State) -> str:
    known = snapshot.fingerprint
    if found[1:3] != known[1:3]:
        return _MOVED
    if found[0] != known[0]:
        size = max(0, found[0] - snapshot.start)
        return f"it has {size:,} bytes instead of {snapshot.size:,}"
    if found[3:4] != known[3:4]:
        return "it was written to (its modification time differs)"
    return "its owner, its permissions or its links were changed while it was sent"


class _OpenedFile(Opened):
    """A large file, read directly if that cannot block, otherwise in threads.

    It does not read ahead: the operating system does.
    """

    def __init__(self, label: str, begun: Snapshot, file: File) -> None:
        self._label, self._begun, self._file = label, begun, file
        self._offset = begun.start
        self._is_closed = False

    async def read(self, limit: int, /) -> bytes:
        data = self._file.read_nowait(limit, self._offset)
        if data is None:
            data = await at_disk(partial(self._read, limit, self._offset))
        self._offset += len(data)
        return data

    async def finish(self) -> None:
        await at_disk(self._finish)

    def close(self) -> None:
        """Close the file in a thread, as that may block; a running read ends first."""
        if not self._is_closed:
            leave_to_thread(self._file.close)

    def check(self) -> None:
        """Raise :class:`DocumentChanged` if anything has changed during the attempt."""
        for state in self._file.states(self._begun.start + self._begun.size):
            if state != self._begun.fingerprint:
                raise DocumentChanged(self._label, _difference(self._begun, state))

    def _read(self, limit: int, offset: int) -> bytes:
        with _errors_of(self._label):
            return self._file.read(limit, offset)

    def _finish(self) -> None:
        with _errors_of(self._label, again=True):
            self.check()
        self._file.close()
        self._is_closed = True


@contextmanager
def _errors_of(label: str, *, again: bool = False) -> Iterator[None]:
    """Raise our errors instead of those of a file; ``again``: it was readable before."""
    try:
        yield
    except MeetingError:
        raise
    except Exception as error:
        if again and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise DocumentChanged(label, "it is gone") from error
        raise unreadable(label, error) from error
