"""Where the bytes of a document come from: memory, and files that can be read at any offset.

A source is prepared once per upload: a snapshot is taken, and a stream is spooled until the upload
ends. Each attempt opens the content again, so that no file is open while the upload waits, and
compares it with the snapshot before and after it is read. A file of up to 256 KiB is opened, read,
checked and closed in one call of a thread, because such a call costs more than all of that.

A regular file is read through its own descriptor, which does not move the caller's position. It is
closed with its last reference: when the attempt ends, or when an abandoned thread returns. Any
other file (in memory, spooled, compressed) is read by seeking, and its position is restored when
its last user is done. So every attempt begins at the same position, and a file that is expensive to
go back in is read about once.
"""

from __future__ import annotations

import abc
import io
import os
import stat
from collections.abc import AsyncGenerator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import BinaryIO, Protocol

import attrs

from meeting_async._system import (
    NO_DESCRIPTOR,
    NO_WAIT,
    READ_FLAGS,
    change_time,
    duplicate,
    in_use,
    openable,
    read_at,
    read_nowait,
)
from meeting_async._text import short_repr
from meeting_async._threads import at_disk, leave_to_thread
from meeting_async.errors import (
    DocumentChanged,
    DocumentEmpty,
    DocumentUnreadable,
    MeetingError,
    ResourceExhausted,
)

HEAD_BYTES = 32
"""First bytes of a document that are enough to detect an image."""

WHOLE_BYTES = 256 * 1024
"""Largest file that is read in one call of a thread."""

Buffer = bytes | bytearray | memoryview


@attrs.frozen
class Snapshot:
    """State of a document when its upload begins."""

    size: int
    """Bytes."""
    head: bytes = attrs.field(default=b"", repr=False)
    """The first bytes (at most 32), to tell images from documents."""
    fingerprint: tuple[int, ...] = ()
    """What must not change until the document is sent; empty if it cannot change.

    For a path: size, device, inode, modification time and change time (nanoseconds; on Windows 0).
    """
    start: int = 0
    """Offset in bytes at which the document begins in its file."""


class Reader(abc.ABC):
    """A document that is open for one attempt, read once from its beginning to its end."""

    @abc.abstractmethod
    async def read(self, limit: int, /) -> bytes:
        """Return the next bytes (a stream: also more than ``limit``); ``b""`` only at the end."""

    async def finish(self) -> None:  # noqa: B027 - bytes do not change
        """Raise :class:`DocumentChanged` if the document does not match its snapshot."""

    def close(self) -> None:  # noqa: B027 - only a file is open
        """Release what is open."""


class Content(abc.ABC):
    """The bytes of a document during one upload."""

    snapshot: Snapshot
    is_consumed: bool = False
    """Whether the bytes were read and cannot be read again."""

    @abc.abstractmethod
    async def open(self) -> Reader:
        """Open the content for one attempt."""


class Source(Protocol):
    """Where the bytes of a document come from."""

    def prepare(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Content]:
        """Prepare the content for one upload.

        ``name`` is for errors. At most ``max_size`` bytes of a stream are read.
        """
        ...


@attrs.frozen
class BytesSource(Content):
    """A document in memory, which is always ready."""

    data: bytes = attrs.field(repr=lambda data: f"{len(data)} bytes")
    snapshot: Snapshot = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        head = self.data[:HEAD_BYTES]
        object.__setattr__(self, "snapshot", Snapshot(len(self.data), head))

    def prepare(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Content]:
        """Return it as it is."""
        return nullcontext(self)

    async def open(self) -> Reader:
        """Read from the start."""
        return BytesReader(self.data)


class BytesReader(Reader):
    """Reads bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    async def read(self, limit: int, /) -> bytes:
        """Return the next bytes."""
        return self._file.read(limit)


def unreadable(name: str, error: BaseException) -> MeetingError:
    """Return the error of a document that cannot be read."""
    if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
        return ResourceExhausted(f"{name!r} cannot be opened: {error.strerror}")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return DocumentUnreadable(name, reason[:500] + in_use(error))


def as_view(data: object) -> memoryview:
    """Return a view of the single bytes of a buffer, as a ``read`` should return."""
    if data is None:
        raise TypeError("it returned None instead of bytes: it must wait for its bytes")
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # some libraries have a class of their own
    except TypeError:
        raise TypeError(f"it returned {short_repr(data, 40)} instead of bytes") from None
    return view.cast("B") if view.c_contiguous else memoryview(bytes(view))


# --- files ---------------------------------------------------------------------------------------


State = tuple[int, ...]
"""Of a file: the offset of its end, then device, inode, modification and change time (nanoseconds),
as far as known."""


class OpenedFile(abc.ABC):
    """A file that is open for one attempt. All but ``read_nowait`` run in threads."""

    @abc.abstractmethod
    def states(self) -> Iterator[State]:
        """Yield the state of the open file, then the state of what has its path now, if any."""

    def states_of_attempt(self, end: int | None = None) -> Iterator[State]:
        """Yield them when an attempt begins, or when it has read up to ``end``."""
        return self.states()

    @abc.abstractmethod
    def read(self, limit: int, offset: int, /) -> bytes:
        """Return up to ``limit`` bytes; ``b""`` only at the end."""

    def read_nowait(self, limit: int, offset: int, /) -> bytes | None:
        """Return bytes if that is sure not to block, else ``None``."""
        return None

    def close(self) -> None:  # noqa: B027 - the caller's file stays open
        """Close it, after a read that is running in a thread."""

    def read_all(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes, or as many as there are."""
        parts, end = [], offset + size
        while offset < end and (part := self.read(end - offset, offset)):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)


class FileSource(abc.ABC):
    """A file that can be opened again for each attempt. All methods but one run in threads."""

    label: str = ""
    """What errors call the file, if that tells more than its name."""

    @abc.abstractmethod
    def open(self) -> OpenedFile:
        """Open the file."""

    def start(self) -> int:
        """Return the offset at which the document begins."""
        return 0

    @asynccontextmanager
    async def prepare(self, name: str, max_size: int | None) -> AsyncGenerator[Content, None]:
        """Take the snapshot; the file is closed after that."""
        label = self.label or name
        yield _FileContent(self, label, await at_disk(partial(self._snapshot, label)))

    def _snapshot(self, label: str) -> Snapshot:
        with _errors_of(label), closing(self.open()) as opened:
            fingerprint, start = next(opened.states()), self.start()
            size = max(0, fingerprint[0] - start)
            head = opened.read_all(start, min(size, HEAD_BYTES))
            if not fingerprint[0] and opened.read(1, 0):  # in /proc, for example
                raise OSError("it has content, but no size: copy it to a file on disk")
            if not size and start:
                error = DocumentEmpty(label)
                at = f"The file stands at byte {start:,}, its end"
                error.add_note(f"{at}: seek(0) to upload all of it.")
                raise error
            return Snapshot(size, head, fingerprint, start)


@attrs.define(eq=False)
class _FileContent(Content):
    source: FileSource
    label: str
    snapshot: Snapshot

    async def open(self) -> Reader:
        """Open the file, if it still matches the snapshot."""
        return await at_disk(self._open)

    def _open(self) -> Reader:
        with _errors_of(self.label, again=True), ExitStack() as stack:
            opened = stack.enter_context(closing(self.source.open()))
            begun = self._begun(opened)
            if self.snapshot.size > WHOLE_BYTES:
                stack.pop_all()
                return _FileReader(self, opened, begun)
            data = opened.read_all(self.snapshot.start, self.snapshot.size)
            self.check(opened, begun)
            return BytesReader(data)

    def _begun(self, opened: OpenedFile) -> State:
        """Return the state when an attempt begins; the content must be that of the snapshot.

        Whoever has copied, linked or renamed the file, or given it to somebody else, has not
        changed the document.
        """
        begun = self.snapshot.fingerprint
        for number, state in enumerate(opened.states_of_attempt()):
            begun = begun if number else state
            if _content(state) != _content(begun) or _content(state) != _content(
                self.snapshot.fingerprint
            ):
                raise DocumentChanged(self.label, _difference(self.snapshot, state))
            if state[1:3] != begun[1:3]:
                raise DocumentChanged(self.label, _MOVED)
        return begun

    def check(self, opened: OpenedFile, begun: State) -> None:
        """Raise :class:`DocumentChanged` if anything has changed during an attempt."""
        end = self.snapshot.start + self.snapshot.size
        for state in opened.states_of_attempt(end):
            if state != begun:
                known = attrs.evolve(self.snapshot, fingerprint=begun)
                raise DocumentChanged(self.label, _difference(known, state))


def _content(state: State) -> tuple[int, ...]:
    """Return what differs if the content does: the size and the modification time."""
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


class _FileReader(Reader):
    """Reads a large file: directly if that cannot block, otherwise in threads.

    It does not read ahead, because the operating system does.
    """

    def __init__(self, content: _FileContent, opened: OpenedFile, begun: State) -> None:
        self._content, self._opened, self._begun = content, opened, begun
        self._offset = content.snapshot.start
        self._is_closed = False

    async def read(self, limit: int, /) -> bytes:
        data = self._opened.read_nowait(limit, self._offset)
        if data is None:
            data = await at_disk(partial(self._read, limit, self._offset))
        self._offset += len(data)
        return data

    async def finish(self) -> None:
        await at_disk(self._finish)

    def close(self) -> None:
        """Close the file in a thread, as that may block; one that reads it keeps it open."""
        if not self._is_closed:
            leave_to_thread(self._opened.close)

    def _read(self, limit: int, offset: int) -> bytes:
        with _errors_of(self._content.label):
            return self._opened.read(limit, offset)

    def _finish(self) -> None:
        with _errors_of(self._content.label, again=True):
            self._content.check(self._opened, self._begun)
        self._opened.close()
        self._is_closed = True


@contextmanager
def _errors_of(label: str, *, again: bool = False) -> Iterator[None]:
    """Raise our errors for those of a file; ``again``: it was readable before."""
    try:
        yield
    except MeetingError:
        raise
    except Exception as error:
        if again and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise DocumentChanged(label, "it is gone") from error
        raise unreadable(label, error) from error


# --- regular files -------------------------------------------------------------------------------


@attrs.frozen
class PathSource(FileSource):
    """A file on disk."""

    path: str
    label: str = attrs.Factory(lambda self: self.path, takes_self=True)

    def open(self) -> OpenedFile:
        """Open the file."""
        path = openable(self.path)
        return _RegularFile(_open_regular(path), path)


@attrs.frozen(eq=False)
class OpenFileSource(FileSource):
    """A regular file that the caller has opened, from its current position.

    A duplicate of its descriptor is read: if the caller closes the file, its number may soon belong
    to another one.
    """

    file: BinaryIO
    owner: object
    """The object that holds the file; some delete it when they are collected."""

    def open(self) -> OpenedFile:
        """Duplicate the descriptor."""
        if self.file.writable():
            self.file.flush()
        return _RegularFile(_checked(duplicate(self.file.fileno())))

    def start(self) -> int:
        """Return the position of the caller's file."""
        return self.file.tell()


def file_version(size: int, modified: int) -> str:
    """Return what tells a journal whether a file is still the same; ``modified``: nanoseconds."""
    return f"{size} bytes, {modified}"


class _Descriptor:
    """A descriptor that is closed with its last reference."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class _RegularFile(OpenedFile):
    """An open regular file; if it has a path, the path must still lead to it.

    Its descriptor belongs to one attempt, which reads it in one thread at a time: so two uploads of
    a file stay apart also where a read moves the descriptor's position.
    """

    def __init__(self, number: int, path: str | None = None) -> None:
        self._path = path
        self._descriptor: _Descriptor | None = _Descriptor(number)
        self._buffer = bytearray()

    def states(self) -> Iterator[State]:
        with self._used() as number:
            status = os.fstat(number)
        yield self._state(status)
        if self._path is not None:
            yield self._state(os.stat(self._path))

    def read(self, limit: int, offset: int, /) -> bytes:
        with self._used() as number:
            return read_at(number, limit, offset)

    def read_nowait(self, limit: int, offset: int, /) -> bytes | None:
        # One buffer for all reads saves CPU. The caller gets a copy, as a transport may still hold
        # the last chunk.
        if self._descriptor is None:
            return None
        if len(self._buffer) < limit:
            self._buffer = bytearray(limit)
        view = memoryview(self._buffer)[:limit]
        count = read_nowait(self._descriptor.number, view, offset)
        return bytes(view[:count]) if count else None  # a thread finds out

    def close(self) -> None:
        self._descriptor = None

    @contextmanager
    def _used(self) -> Iterator[int]:
        """Keep the descriptor open during a call; a kept error does not keep this frame."""
        descriptor = self._descriptor
        if descriptor is None:
            raise ValueError("the attempt has ended")
        yield descriptor.number

    def _state(self, status: os.stat_result) -> State:
        state = (status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns)
        # By path, the change time catches a modification time that was restored. The owner of an
        # open file may rename or delete it.
        return state if self._path is None else (*state, change_time(status))


def _open_regular(path: str) -> int:
    """Open a file, but nothing that would wait for its other end."""
    _check_regular(os.stat(path))
    try:
        descriptor = os.open(path, READ_FLAGS | NO_WAIT)
    except BlockingIOError:  # a file server holds a lease on it, which ends shortly
        descriptor = os.open(path, READ_FLAGS)
    return _checked(descriptor)  # something else may have the path by now


def _checked(descriptor: int) -> int:
    try:
        _check_regular(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise OSError("it is a directory: give a file; `meeting-async batch` uploads a folder")
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a regular file")
