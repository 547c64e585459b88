"""Files that are decompressed while they are read: of gzip, bz2, lzma, members of archives.

To seek back, such a file is decompressed again from its beginning. So it is spooled like a stream,
once for all uploads of it that run at the same time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel
import attrs

from meeting_async._documents.file_objects import FileObjectSource
from meeting_async._documents.file_source import at_its_end
from meeting_async._documents.source import Content, Source
from meeting_async._documents.streams import PIECE_BYTES, StreamSource, cleanup_scope, spooled
from meeting_async._threads import at_disk, leave_to_thread


@attrs.define(eq=False)
class _Spool:
    """The content of a packed file, for all current uploads of it on one event loop."""

    packed: FileObjectSource
    """Keeps the file alive, so that no other object gets its ``id``."""
    lock: anyio.Lock = attrs.field(factory=anyio.Lock)
    source: Source | None = None
    stack: AsyncExitStack = attrs.field(factory=AsyncExitStack)
    users: int = 0

    @asynccontextmanager
    async def used(self, name: str, max_size: int | None) -> AsyncGenerator[Source, None]:
        """Spool the file, unless another upload has; the last user deletes the spool."""
        async with self.lock:
            if self.source is None:
                stream = StreamSource(_content(self.packed, name))
                async with aclosing(stream.pieces(name)) as pieces:
                    made = spooled(name, pieces, max_size)
                    self.source = await self.stack.enter_async_context(made)
            self.users += 1
        try:
            yield self.source
        finally:
            self.users -= 1
            if not self.users:
                self.source = None
                stack = self.stack.pop_all()  # another upload may begin meanwhile
                with cleanup_scope():
                    await stack.aclose()


_Spools = WeakValueDictionary[int, _Spool]
_spools: anyio.lowlevel.RunVar[_Spools] = anyio.lowlevel.RunVar("meeting_async_spools")


@attrs.frozen(eq=False)
class PackedSource(Source):
    """A packed file, from its current position."""

    packed: FileObjectSource

    @asynccontextmanager
    async def prepare(self, name: str, max_size: int | None) -> AsyncGenerator[Content, None]:
        """Use the spool of the file."""
        if (spools := _spools.get(None)) is None:
            _spools.set(spools := _Spools())
        spool = spools.setdefault(id(self.packed.file), _Spool(self.packed))
        async with (
            spool.used(name, max_size) as source,
            source.prepare(name, None) as content,
        ):
            yield content


async def _content(packed: FileObjectSource, name: str) -> AsyncGenerator[bytes, None]:
    """Read a file to its end in threads, then restore its position."""
    file = await at_disk(packed.use)
    offset = file.start
    try:
        while data := await at_disk(partial(file.read, PIECE_BYTES, offset)):
            offset += len(data)
            yield data
        await at_disk(file.close)
        if offset == file.start > 0:
            raise at_its_end(name, offset)
    finally:
        leave_to_thread(file.close)
