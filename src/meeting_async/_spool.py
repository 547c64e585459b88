"""A spool: the bytes of a stream, kept for the attempts of one upload.

In memory as long as they are few, then in a temporary file, which is written in worker threads and
open only while it is written or sent. Where it lies is ``tempfile``'s business (``TMPDIR``).
"""

from __future__ import annotations

import os
import tempfile

import anyio

from meeting_async._files import PathSource
from meeting_async._observer import logger
from meeting_async._pace import CHUNK_BYTES
from meeting_async._sources import BytesSource, unreadable
from meeting_async._threads import Lease, in_thread
from meeting_async.errors import DocumentTooLarge

MEMORY_BYTES = 1024 * 1024
"""Most bytes of a spool in memory: four chunks; a thousand uploads in wait take 1 GiB at most."""


class Spool:
    """Takes bytes until :meth:`finished`; :meth:`aclose` it in any case."""

    def __init__(self, name: str, max_size: int | None) -> None:
        self.size = 0
        """Bytes so far."""
        self._name = name
        self._max_size = max_size
        self._memory = bytearray()
        self._file: _TemporaryFile | None = None

    def __repr__(self) -> str:
        return f"<Spool, {self.size} bytes {'on disk' if self._file else 'in memory'}>"

    async def add(self, data: bytes | memoryview) -> None:
        """Take the next bytes, a chunk at most; raise as soon as there are too many."""
        self.size += len(data)
        if self._max_size is not None and self.size > self._max_size:
            error = DocumentTooLarge(self._name, self.size, self._max_size)
            error.add_note("The stream was not read any further; it may be larger still.")
            raise error
        self._memory += data
        if len(self._memory) > (CHUNK_BYTES if self._file else MEMORY_BYTES):
            await self._write()

    async def finished(self) -> BytesSource | PathSource:
        """Return what was taken."""
        if self._file is None:
            return BytesSource(bytes(self._memory))
        await self._write()
        return PathSource(self._file.path, self._name)

    async def aclose(self) -> None:
        """Delete the temporary file, whatever the caller is in the middle of."""
        self._memory = bytearray()
        if self._file is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                await in_thread(self._file.delete)
            except BaseException:  # asyncio's own cancellation breaks through shields
                self._file.delete()
                raise

    async def _write(self) -> None:
        data, self._memory = self._memory, bytearray()
        if self._file is None:
            self._file = _TemporaryFile()
        file = self._file
        try:
            await in_thread(lambda: file.append(data))
        except OSError as error:
            raise unreadable(self._name, error) from error


class _TemporaryFile:
    """A file that only its owner may read; it exists from its first bytes to its deletion."""

    def __init__(self) -> None:
        self.path = ""
        self._lease = Lease(self._end)

    def append(self, data: bytearray) -> None:
        """Write on, in a thread."""
        with self._lease.used():
            if self._lease.is_over:
                return
            with open(self._opened(), "ab", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]

    def delete(self) -> None:
        """Remove it, now or when the thread that uses it is done."""
        self._lease.give_up()

    def _opened(self) -> int:
        if self.path:
            return os.open(self.path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
        descriptor, self.path = tempfile.mkstemp(prefix="meeting-async-")
        return descriptor

    def _end(self) -> None:
        path, self.path = self.path, ""
        if path:
            _remove(path)


def _remove(path: str) -> None:
    """Delete what is no longer needed; failing at that undoes no upload."""
    try:
        os.unlink(path)
    except OSError as error:
        logger.warning(
            "the temporary file %s could not be deleted: %s",
            path,
            error,
            extra={"action": "SpoolLeft"},
        )
