"""Files of Django's models, whose storage may be a folder or something else."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs

from meeting_async._documents.files import PathSource
from meeting_async._documents.source import Content, Source, unreadable
from meeting_async._documents.streams import PIECE_BYTES, StreamSource
from meeting_async._threads import at_disk, leave_to_thread


@attrs.frozen(eq=False)
class StoredSource(Source):
    """A file in a storage. If the storage has no path for it, it is read once for each upload."""

    field: Any

    @asynccontextmanager
    async def prepare(self, name: str, max_size: int | None) -> AsyncGenerator[Content, None]:
        """Ask the storage for a path; without one spool the file."""
        path, storage = await at_disk(partial(self._path, name)), self.field.storage
        stream = StreamSource(_read_stored(storage, self.field.name))
        async with (PathSource(path, name) if path else stream).prepare(name, max_size) as content:
            yield content

    def _path(self, name: str) -> str | None:
        try:
            return str(self.field.path)
        except NotImplementedError:
            return None
        except Exception as error:  # whatever a storage raises
            raise unreadable(name, error) from error


async def _read_stored(storage: Any, name: str) -> AsyncGenerator[bytes, None]:
    """Open a file of a storage in a thread, and read it there."""
    file = await at_disk(partial(storage.open, name, "rb"))
    try:
        while data := await at_disk(partial(file.read, PIECE_BYTES)):
            yield data
    finally:
        leave_to_thread(file.close)
