"""A small database for the tests, and a process of its own that opens it."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from functools import partial

from meeting_async._database import Action, Schema, opened
from meeting_async.errors import JournalError

say = partial(print, flush=True)

SCHEMA = Schema(
    application_id=0x74657374,
    version=3,
    tables=("CREATE TABLE notes (text TEXT NOT NULL)",),
    update="INSERT INTO notes SELECT json_extract(value, '$[0]') FROM json_each(?)",
)


def note(text: str) -> Action[str]:
    """Make an action that writes something down and returns it."""

    def write(connection: sqlite3.Connection) -> str:
        connection.execute("INSERT INTO notes VALUES (?)", (text,))
        return text

    return write


async def use(path: str) -> None:
    """Open it and say so."""
    async with opened(path, SCHEMA):
        say("opened")


async def die(path: str) -> None:
    """Write to it, then be killed."""
    async with opened(path, SCHEMA) as database:
        await database.write(note("one"), durable=False)
        os.kill(os.getpid(), signal.SIGKILL)


async def overflow(path: str) -> None:
    """Write more than the operating system lets a file grow to; say what happens."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    async with opened(path, SCHEMA) as database:
        await database.write(note("one"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, -1))
        for _ in range(2):
            try:
                await database.write(note("x" * 100_000))
            except JournalError as error:
                say(error.reason)


async def use_as_nobody(path: str) -> None:
    """Open it without the rights of root."""
    if os.geteuid() == 0:
        os.setuid(65534)
    await use(path)


if __name__ == "__main__":
    try:
        asyncio.run(globals()[sys.argv[1]](sys.argv[2]))
    except JournalError as failure:
        say(repr(failure))
