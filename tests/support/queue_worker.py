"""A worker of a queue of uploads, in a process of its own, for tests that kill it.

Its argument is an order as JSON. It appends to a file what it begins (``begun NAME``) and what is
over (``over NAME``), so that a test knows what was in flight when it was killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, cast

import attrs
import procrastinate

from meeting_async import AttemptStarted, Event, Finished, LockPolicy, MeetingClient
from meeting_async.errors import UploadPutBack
from meeting_async.procrastinate import WhiteboardUploads, _table, connector

WINDOW = 2.0
"""Seconds for which the server holds a room at most."""

STALLED_AFTER = 3.0
"""Seconds without a heartbeat after which a worker counts as dead."""


@attrs.frozen(kw_only=True)
class Order:
    """What to work on, and how."""

    dsn: str
    url: str
    log: str
    """File for what begins and ends."""
    concurrency: int = 8
    delivery: str = "at_most_once"
    suspect_seconds: float = 10.0
    """For so long a job and its row may disagree."""
    forgets: bool = False
    """Whether to leave out that a document is about to arrive: the tests must notice."""


@attrs.frozen
class Told:
    """What a worker has told of itself. Documents go by their names."""

    begun: tuple[str, ...]
    """In order, one for each attempt."""
    in_flight: frozenset[str]
    """Those that were begun and not over at its end."""
    is_ready: bool
    put_back: frozenset[str] = frozenset()
    """Those that were last put back. If it is killed before the table has that, nobody else knows
    that the room was only locked."""


def read_log(path: Path) -> Told:
    """Read what a worker has told so far."""
    text = path.read_text("utf-8") if path.exists() else ""
    begun: list[str] = []
    in_flight: set[str] = set()
    put_back: set[str] = set()
    for line in text.splitlines():
        word, _, name = line.partition(" ")
        if word == "begun":
            begun.append(name)
            in_flight.add(name)
        elif word in {"over", "back"}:
            in_flight.discard(name)
            (put_back.add if word == "back" else put_back.discard)(name)
    return Told(tuple(begun), frozenset(in_flight), "ready" in text, frozenset(put_back))


async def main(order: Order) -> None:
    """Work until it is stopped."""
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(*words: str) -> None:
        os.write(log, (" ".join(words) + "\n").encode())

    def on_event(event: Event) -> None:
        if isinstance(event, AttemptStarted) and event.document:
            tell("begun", event.document)
        elif isinstance(event, Finished) and event.document:
            tell("back" if isinstance(event.error, UploadPutBack) else "over", event.document)

    cast("Any", _table).SETTLED_SECONDS = order.suspect_seconds
    if order.forgets:
        cast("Any", _table).Table.mark_sending = _forgotten
    client = MeetingClient(
        order.url,
        api_key="devkey",
        api_secret="devsecret",
        delivery=cast("Any", order.delivery),
        lock=LockPolicy(window=WINDOW),
        on_event=on_event,
    )
    app = procrastinate.App(connector=connector(order.dsn))
    uploads = WhiteboardUploads(app, client=client, stalled_after=STALLED_AFTER)
    async with app.open_async(), client:
        tell("ready")
        await uploads.run_worker(
            concurrency=order.concurrency,
            fetch_job_polling_interval=0.1,
            update_heartbeat_interval=0.5,
        )


async def _forgotten(*_: object) -> bool:
    """Write nothing."""
    return True


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main(Order(**json.loads(sys.argv[1]))))
