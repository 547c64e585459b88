"""Open binary files without a descriptor of their own: in memory, spooled, or behind methods.

They are read by seeking, and their position is put back each time, so that every attempt begins
where the first one did, several uploads may read one file, and the caller finds it as it was.
"""

from __future__ import annotations

import io
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from typing import Any, Protocol, Self, TypeVar

import anyio
import attrs

from meeting_async._ahead import reading_ahead
from meeting_async._limits import HEAD_BYTES
from meeting_async._multipart import Reader
from meeting_async._pace import CHUNK_BYTES
from meeting_async._sources import BytesReader, Measure, checked_bytes, unreadable
from meeting_async._threads import in_thread
from meeting_async.errors import DocumentChanged, DocumentUnreadable

T = TypeVar("T")


class SeekableFile(Protocol):
    """What is asked of a file."""

    def read(self, size: int, /) -> bytes:
        """Read up to ``size`` bytes."""
        ...

    def seek(self, offset: int, whence: int = 0, /) -> object:
        """Go somewhere."""
        ...

    def tell(self) -> int:
        """Say where it is."""
        ...


_Locks = weakref.WeakKeyDictionary[object, T]
_locks: _Locks[threading.Lock] = weakref.WeakKeyDictionary()
_async_locks: _Locks[anyio.Lock] = weakref.WeakKeyDictionary()
_locks_lock = threading.Lock()


def _lock_of(file: object, locks: _Locks[T], make: Callable[[], T]) -> T:
    """Return the lock that all uploads of a file share, where a file can have one."""
    try:
        with _locks_lock:
            return locks.setdefault(file, make())
    except TypeError:  # it takes no weak references, or has no hash
        return make()


@attrs.frozen(eq=False)
class HandleSource:
    """An open file with synchronous methods: the rest of it, from its current position."""

    file: SeekableFile
    owner: object
    """What holds the file; some close it when they are gone."""
    label: str = ""
    _lock: threading.Lock = attrs.field(
        init=False,
        repr=False,
        default=attrs.Factory(
            lambda self: _lock_of(self.file, _locks, threading.Lock), takes_self=True
        ),
    )

    def held(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Self]:
        """Nothing to keep."""
        return nullcontext(attrs.evolve(self, label=name))

    async def measure(self) -> Measure:
        """Look at the file: in a thread, unless it is in memory."""
        return await self._run(self._measure)

    @asynccontextmanager
    async def open(self, measure: Measure) -> AsyncGenerator[Reader, None]:
        """Begin where the file stood when it was measured; small ones are read in one go."""
        if measure.size <= CHUNK_BYTES:
            yield BytesReader(await self._run(lambda: self._read_whole(measure)))
            return
        async with reading_ahead(
            self, measure.start, measure.size, lambda: self._run(lambda: self._check(measure))
        ) as reader:
            yield reader

    def at_hand(self, limit: int, offset: int) -> bytes | None:
        """Read from memory, if it is there for sure."""
        return self.fetch(limit, offset) if self._is_in_memory else None

    def fetch(self, limit: int, offset: int) -> bytes:
        """Read at a place, and put the position back."""
        with self._used() as file:
            file.seek(offset)
            data = checked_bytes(self.label, file.read(limit))
        if len(data) > limit:
            raise DocumentUnreadable(
                self.label, f"a read of {limit:,} bytes brought {len(data):,} bytes"
            )
        return data

    @property
    def _is_in_memory(self) -> bool:
        return type(self.file) is io.BytesIO

    async def _run(self, function: Callable[[], T]) -> T:
        return function() if self._is_in_memory else await in_thread(function)

    @contextmanager
    def _used(self) -> Iterator[SeekableFile]:
        try:
            with self._lock:
                position = self.file.tell()
                try:
                    yield self.file
                finally:
                    self.file.seek(position)
        except DocumentUnreadable:
            raise
        except Exception as error:  # whatever somebody's file raises
            raise unreadable(self.label, error) from error

    def _measure(self) -> Measure:
        with self._used() as file:
            start, end = file.tell(), _end(file)
        size = max(0, end - start)
        head = self.fetch(min(HEAD_BYTES, size), start) if size else b""
        return Measure(size, head, (end,), start)

    def _read_whole(self, measure: Measure) -> bytes:
        parts, left = [], measure.size
        while left and (part := self.fetch(left, measure.start + measure.size - left)):
            parts.append(part)
            left -= len(part)
        self._check(measure)
        return b"".join(parts)

    def _check(self, measure: Measure) -> None:
        with self._used() as file:
            end = _end(file)
        check_end(self.label, end, measure)


def _end(file: SeekableFile) -> int:
    file.seek(0, io.SEEK_END)
    return file.tell()


def check_end(label: str, end: int, measure: Measure) -> None:
    """See that a file ends where it did when it was measured."""
    if (end,) != measure.stamp:
        change = f"it has {end:,} bytes instead of {measure.start + measure.size:,}"
        raise DocumentChanged(label, change)


# --- asynchronous files --------------------------------------------------------------------------


@attrs.frozen(eq=False)
class AsyncHandleSource:
    """An open file with asynchronous methods, such as aiofiles': from its current position.

    Its methods are its own, and so are the threads they use. One attempt at a time reads it.
    """

    file: Any
    label: str = ""

    def held(self, name: str, max_size: int | None) -> AbstractAsyncContextManager[Self]:
        """Nothing to keep."""
        return nullcontext(attrs.evolve(self, label=name))

    async def measure(self) -> Measure:
        """Find the end, read the head, and go back."""
        async with self._used() as start:
            end = await self._end()
            await self.file.seek(start)
            head = checked_bytes(self.label, await self.file.read(HEAD_BYTES))
        return Measure(max(0, end - start), head, (end,), start)

    @asynccontextmanager
    async def open(self, measure: Measure) -> AsyncGenerator[Reader, None]:
        """Read from where the file stood when it was measured."""
        failure: Exception | None = None
        async with self._used():
            await self.file.seek(measure.start)
            try:
                yield _AsyncReader(self, measure)
            except Exception as error:  # noqa: BLE001 - not the file's: raised below, as it is
                failure = error
        if failure is not None:
            raise failure

    async def read(self, limit: int) -> bytes:
        """Read on."""
        try:
            return checked_bytes(self.label, await self.file.read(limit))
        except DocumentUnreadable:
            raise
        except Exception as error:  # whatever somebody's file raises
            raise unreadable(self.label, error) from error

    async def check(self, measure: Measure) -> None:
        """See that the file ends where it did."""
        try:
            end = await self._end()
        except Exception as error:  # whatever somebody's file raises
            raise unreadable(self.label, error) from error
        check_end(self.label, end, measure)

    @asynccontextmanager
    async def _used(self) -> AsyncGenerator[int, None]:
        try:
            async with _lock_of(self.file, _async_locks, anyio.Lock):
                position: int = await self.file.tell()
                try:
                    yield position
                finally:
                    # Its position undoes no upload: it may be closed by now.
                    with anyio.CancelScope(shield=True), suppress(Exception):
                        await self.file.seek(position)
        except DocumentUnreadable:
            raise
        except Exception as error:  # whatever somebody's file raises
            raise unreadable(self.label, error) from error

    async def _end(self) -> int:
        await self.file.seek(0, io.SEEK_END)
        end: int = await self.file.tell()
        return end


@attrs.define
class _AsyncReader:
    _source: AsyncHandleSource
    _measure: Measure
    _read: int = 0

    async def read(self, limit: int, /) -> bytes:
        data = await self._source.read(min(limit, self._measure.size - self._read))
        self._read += len(data)
        return data

    async def finish(self) -> None:
        await self._source.check(self._measure)
