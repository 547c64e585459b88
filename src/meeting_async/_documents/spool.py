"""A spool: the bytes of a stream, kept for the attempts of one upload.

Up to 1 MiB stays in memory; more goes to a temporary file (in ``TMPDIR``), which is written in
threads and open only while it is written or sent.
"""

from __future__ import annotations

import logging
import os
import tempfile
import weakref
from functools import partial

import anyio

from meeting_async._documents.files import PathSource
from meeting_async._documents.source import BytesSource, Source, unreadable
from meeting_async._documents.threads import in_thread
from meeting_async.errors import DocumentTooLarge

MEMORY_BYTES = 1024**2
"""Most bytes of a spool in memory; a thousand waiting uploads take 1 GiB at most."""

_WRITE_BYTES = 256 * 1024
"""Bytes that are gathered before they are written to the file."""

_CLEANUP_SECONDS = 5.0
_GRACE_SECONDS = 0.1
"""Two cleanups together stay within the 0.25 s by which a call may exceed its timeout."""

logger = logging.getLogger("meeting_async")


def cleanup_scope() -> anyio.CancelScope:
    """Shield a cleanup: it may take 5 s, and no more than 0.1 s beyond the end of the call."""
    now = anyio.current_time()
    end = max(now, anyio.current_effective_deadline()) + _GRACE_SECONDS
    return anyio.CancelScope(shield=True, deadline=min(end, now + _CLEANUP_SECONDS))


class Spool:
    """Takes bytes and makes a source of them; :meth:`delete` it in any case."""

    def __init__(self, name: str, max_size: int | None) -> None:
        self.size = 0
        """Bytes so far."""
        self._name = name
        self._max_size = max_size
        self._memory = bytearray()
        self._file: _TemporaryFile | None = None

    async def add(self, data: bytes | memoryview) -> None:
        """Take the next bytes, 256 KiB at most; raise as soon as there are too many."""
        self.size += len(data)
        if self._max_size is not None and self.size > self._max_size:
            error = DocumentTooLarge(self._name, self.size, self._max_size)
            error.add_note("The stream was not read any further; it may be larger still.")
            raise error
        self._memory += data
        if len(self._memory) > (MEMORY_BYTES if self._file is None else _WRITE_BYTES):
            await self._write()

    async def source(self) -> Source:
        """Return all bytes that were added."""
        if self._file is None:
            data, self._memory = bytes(self._memory), bytearray()
            return BytesSource(data)
        await self._write()
        return PathSource(self._file.path, self._name)

    async def delete(self) -> None:
        """Delete the temporary file, if there is one."""
        self._memory = bytearray()
        file, self._file = self._file, None
        if file is not None:
            with cleanup_scope():
                await in_thread(file.delete)

    async def _write(self) -> None:
        data, self._memory = self._memory, bytearray()
        try:
            if self._file is None:
                self._file = await in_thread(_TemporaryFile)
            await in_thread(partial(self._file.append, data))
        except OSError as error:
            failure = unreadable(self._name, error)
            failure.add_note("It could not be written to a temporary file.")
            raise failure from error


class _TemporaryFile:
    """A file that only its owner may read.

    It is deleted by :meth:`delete`, with its last reference, or when the interpreter exits.
    """

    def __init__(self) -> None:
        descriptor, self.path = tempfile.mkstemp(prefix="meeting-async-")
        self.delete = weakref.finalize(self, _remove, self.path, os.getpid())
        os.close(descriptor)

    def append(self, data: bytearray) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
        with open(descriptor, "ab", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]


def _remove(path: str, process: int) -> None:
    """Delete a file, but not the file of a parent process; a failure affects no upload."""
    if os.getpid() != process:
        return
    try:
        os.unlink(path)
    except OSError as error:
        logger.warning(
            "the temporary file %s could not be deleted: %s",
            path,
            error,
            extra={"action": "SpoolLeft", "path": path},
        )
