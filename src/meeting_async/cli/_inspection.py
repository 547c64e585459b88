"""A look at every document of a manifest before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import anyio

from meeting_async._files import PathSource
from meeting_async._limits import check_size, check_type
from meeting_async._threads import READ_THREADS, in_thread
from meeting_async.cli._manifest import Entry, Flaw, Manifest
from meeting_async.errors import DocumentError

FILES_AT_ONCE = 64
"""Looked at in one go: a hop to a thread costs as much as five looks."""


async def inspect(manifest: Manifest, max_size: int | None) -> None:
    """Measure every file, and note those that could not be uploaded.

    They are looked at in threads, several at the same time: on a file server each may take
    milliseconds.
    """
    entries = manifest.entries
    chunks = (entries[at : at + FILES_AT_ONCE] for at in range(0, len(entries), FILES_AT_ONCE))

    async def look() -> None:
        for chunk in chunks:
            manifest.flaws += await in_thread(lambda: list(_looked_at(chunk, max_size)))  # noqa: B023

    async with anyio.create_task_group() as tasks:
        for _ in range(READ_THREADS):
            tasks.start_soon(look)


def _looked_at(entries: Sequence[Entry], max_size: int | None) -> Iterator[Flaw]:
    for entry in entries:
        try:
            _look_at(entry, max_size)
        except DocumentError as error:
            text, _, _ = str(error).partition(", or pass allow_images")  # no option of a batch
            yield Flaw(entry.number, entry.place, text)


def _look_at(entry: Entry, max_size: int | None) -> None:
    """Make the checks that an upload begins with."""
    source, name = entry.document.source, entry.document.filename
    if isinstance(source, PathSource):  # not a link
        measure = source._measure()  # noqa: SLF001 - measure() would hop to a thread for each
        entry.size = measure.size
        check_size(name, measure.size, max_size)
        check_type(name, measure.head)
