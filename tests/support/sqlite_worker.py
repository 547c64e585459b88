"""A process of its own that opens a journal: ``python -m support.sqlite_worker what path``."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from functools import partial

import anyio
import anyio.lowlevel

from meeting_async._batch.journal import JournalJob
from meeting_async._batch.sqlite_journal import SqliteJournal
from meeting_async.errors import JournalError
from support.journals import SERVER

say = partial(print, flush=True)


def _job(identity: str) -> JournalJob:
    return JournalJob(identity=identity, room_id="room01", document="deck.pdf", is_unique=False)


async def use(path: str) -> None:
    """Open it and say so."""
    async with SqliteJournal(path).opened(SERVER):
        say("opened")


async def die(path: str) -> None:
    """Register a job, which is not made durable, then be killed."""
    async with SqliteJournal(path).opened(SERVER) as journal:
        await journal.register(_job("one"))
        os.kill(os.getpid(), signal.SIGKILL)


async def overflow(path: str) -> None:
    """Write more than the operating system lets a file grow to; say what happens."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    async with SqliteJournal(path).opened(SERVER) as journal:
        entry = await journal.register(_job("one"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, -1))
        for step in (
            lambda: journal.record(entry, "failed", "x" * 100_000),
            lambda: journal.register(_job("y" * 100_000)),
            lambda: journal.mark_sending(entry, 7, "z" * 100_000),
        ):
            try:
                await step()
            except JournalError as error:
                say(error.reason)


async def use_as_nobody(path: str) -> None:
    """Open it without the rights of root."""
    await (
        anyio.lowlevel.checkpoint()
    )  # loads what nobody may not read, if the checkout is in a home folder
    if os.geteuid() == 0:
        os.setuid(65534)
    await use(path)


if __name__ == "__main__":
    try:
        asyncio.run(globals()[sys.argv[1]](sys.argv[2]))
    except JournalError as failure:
        say(repr(failure))
