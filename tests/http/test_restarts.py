"""The server of a batch goes away for two seconds and comes back; with nginx in front, and without.

One meeting server and one nginx serve several batches at the same time, one for each way to the
server, so that all of them wait through the same outage.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import attrs
import httpx
import pytest

from meeting_async import (
    AttemptStarted,
    BatchReport,
    Event,
    MeetingClient,
    RetryPolicy,
    UploadJob,
    UploadOutcome,
)
from meeting_async.errors import UploadOutcomeUnknown
from meeting_async.testing import MeetingServer
from meeting_async.transports import HttpxTransport
from support.nginx import PROGRAM, Nginx, needs_nginx

ROOMS, EACH = 10, 3
SIZES = [8, 10_000, 70_000, 300_000]
"""Bytes; the rooms take them in turn."""

CONVERSION, LONG_CONVERSION = 0.3, 60.0
"""Seconds; the long one is that of the document amid which the server goes, and ends with it."""

KEPT_UPSTREAM = 'proxy_http_version 1.1; proxy_set_header Connection "";'
UNBUFFERED = "proxy_request_buffering off;"


@attrs.frozen
class Way:
    """How a batch reaches the server."""

    settings: str | None
    """Of nginx; ``None``: no nginx."""
    is_borrowed: bool = False
    """Whether its transport uses a client of httpx."""


WAYS = {
    "direct": Way(None),
    "direct-httpx": Way(None, is_borrowed=True),
    "buffered": Way(""),
    "unbuffered": Way(UNBUFFERED),
    "unbuffered-httpx": Way(UNBUFFERED, is_borrowed=True),
}
THROUGH_NGINX = [name for name, way in WAYS.items() if way.settings is not None]
UPSTREAMS = {
    "buffered-1.0": Way("proxy_http_version 1.0;"),
    "unbuffered-1.0": Way(f"{UNBUFFERED} proxy_http_version 1.0;"),
    "buffered-1.1": Way(KEPT_UPSTREAM),
    "unbuffered-1.1": Way(f"{UNBUFFERED} {KEPT_UPSTREAM}"),
    "direct": Way(None),
}

rows = [pytest.param(way, marks=needs_nginx if way in THROUGH_NGINX else ()) for way in WAYS]


@attrs.define
class Run:
    """Batches, a server, and an outage."""

    ways: dict[str, Way]
    directory: Path
    server: MeetingServer = attrs.field(factory=MeetingServer)
    reports: dict[str, BatchReport] = attrs.field(factory=dict)
    log: str = ""
    """Of nginx."""

    def rooms(self, way: str) -> list[str]:
        """Return the rooms of a batch."""
        return [f"{way.replace('.', '_')}-{number}" for number in range(ROOMS)]

    def jobs(self, way: str) -> list[UploadJob]:
        """Make the jobs of a batch: the rooms in turn, documents with names of their own."""
        return [
            UploadJob(room, b"%PDF-1.7".ljust(size, b"%"), filename=f"{room}-{turn}.pdf")
            for turn in range(EACH)
            for room, size in zip(self.rooms(way), SIZES * ROOMS, strict=False)
        ]

    def run(
        self, go_away: Callable[[Run], bool], seconds: float, on_event: Callable[[Event], None]
    ) -> None:
        """Run the batches; stop the server when ``go_away`` says so, for some seconds."""
        for room in [room for way in self.ways for room in self.rooms(way)]:
            self.server.add_room(room).processing_seconds = CONVERSION

        async def main() -> None:
            with contextlib.ExitStack() as running, contextlib.ExitStack() as proxy:
                url = running.enter_context(self.server.run())
                nginx = self._front(url, proxy)
                with anyio.fail_after(40):
                    async with anyio.create_task_group() as group:
                        for name, way in self.ways.items():
                            base = url if way.settings is None else f"{nginx and nginx.url}/{name}"
                            group.start_soon(self._batch, name, base, on_event)
                        while not go_away(self):  # noqa: ASYNC110 - the server is in a thread
                            await anyio.sleep(0.005)
                        await anyio.to_thread.run_sync(stop, running)
                        for room in self.server.rooms.values():
                            room.unlock()
                        await anyio.sleep(seconds)
                        port = int(url.rpartition(":")[2])
                        running.enter_context(self.server.run(port=port))
                self.log = nginx.log() if nginx else ""

        with warnings.catch_warnings():  # see `stop`
            warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
            anyio.run(main)
            gc.collect()

    def _front(self, url: str, stack: contextlib.ExitStack) -> Nginx | None:
        blocks = [
            f"location /{name}/ {{ proxy_pass {url}/; {way.settings} }}"
            for name, way in self.ways.items()
            if way.settings is not None
        ]
        nginx = Nginx(self.directory, "\n".join(blocks)) if blocks else None
        return stack.enter_context(nginx) if nginx else None

    async def _batch(self, name: str, base: str, on_event: Callable[[Event], None]) -> None:
        async with (
            httpx.AsyncClient() as borrowed,
            MeetingClient(
                base,
                api_key="devkey",
                api_secret="devsecret",
                transport=HttpxTransport(borrowed) if self.ways[name].is_borrowed else None,
                retry=RetryPolicy(max_delay=1),
                on_event=on_event,
            ) as client,
            client.upload_many(self.jobs(name)) as batch,
        ):
            self.reports[name] = await batch.wait()

    # --- what came of it -------------------------------------------------------------------------

    def outcomes(self, way: str) -> tuple[UploadOutcome, ...]:
        """Return the outcomes of a batch."""
        return tuple(self.reports[way].outcomes)

    def held(self, way: str) -> Counter[str]:
        """Count how often each document is in its room, converted or not."""
        return Counter(
            file.name for room in self.rooms(way) for file in self.server.rooms[room].accepted
        )

    def wrong(self, way: str) -> list[str]:
        """Return what breaks the promise: all accepted but few, each once."""
        held, wrong = self.held(way), []
        for outcome in self.outcomes(way):
            copies = held[outcome.document]
            if outcome.status == "unknown":
                assert isinstance(outcome.error, UploadOutcomeUnknown)
            if copies > 1 or (outcome.status == "accepted") != (copies == 1):
                allowed = outcome.status == "unknown" and copies <= 1
                wrong += (
                    [] if allowed else [f"{outcome.document}: {outcome.status}, {copies} times"]
                )
            elif outcome.status not in {"accepted", "unknown"}:
                wrong.append(f"{outcome.document}: {outcome.status} {outcome.error!r}")
        return wrong

    def unknown(self, way: str) -> list[str]:
        """Return the names of the documents of unknown outcome."""
        return [o.document for o in self.outcomes(way) if o.status == "unknown"]


def stop(running: contextlib.ExitStack) -> None:
    """Stop a server without a log of what connected at that very moment.

    asyncio accepts such a connection for a future that is cancelled, and logs an error that keeps
    it open for as long as pytest keeps the log (https://github.com/python/cpython/issues/153761).
    """
    logger = logging.getLogger("asyncio")
    logger.disabled = True
    try:
        running.close()
        gc.collect()
    finally:
        logger.disabled = False


def is_second(document: str | None) -> bool:
    """Tell whether it is a room's second document."""
    return (document or "").endswith("-1.pdf")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Stop the server when every room is converting its second document, and start it again."""
    ways = {name: way for name, way in WAYS.items() if PROGRAM or way.settings is None}
    run = Run(ways, tmp_path_factory.mktemp("restart"))

    def long_or_short(event: Event) -> None:
        if isinstance(event, AttemptStarted) and event.room_id:
            room = run.server.rooms[event.room_id]
            is_long = is_second(event.document)
            room.processing_seconds = LONG_CONVERSION if is_long else CONVERSION

    def all_convert(run: Run) -> bool:
        return all(len(room.accepted) == 2 for room in run.server.rooms.values())

    run.run(all_convert, 2, long_or_short)
    yield run
    print(run.log)  # noqa: T201 - pytest shows it if a test fails


@pytest.mark.nightly
@pytest.mark.parametrize("way", rows)
def test_what_is_not_unknown_is_in_its_room_once(run: Run, way: str) -> None:
    """Every document is accepted and in its room once, but for unknown ones: at most once."""
    assert len(run.outcomes(way)) == ROOMS * EACH
    assert run.wrong(way) == []


@pytest.mark.parametrize("way", rows)
def test_only_what_was_being_answered_is_unknown(run: Run, way: str) -> None:
    """No document is sent into the outage: only those of which the server had every byte."""
    assert [name for name in run.unknown(way) if not is_second(name)] == []


def _any_moment(share: float) -> Callable[[Run], bool]:
    """Stop when so many of all documents have reached the server."""
    return lambda run: (
        sum(len(room.accepted) for room in run.server.rooms.values())
        >= share * ROOMS * EACH * len(run.ways)
    )


@pytest.mark.nightly
@needs_nginx
@pytest.mark.parametrize("turn", range(5))
def test_at_any_moment(tmp_path: Path, turn: int) -> None:
    """With each version of HTTP behind nginx, at most one unknown outcome in each room."""
    share = (0.02, 0.2, 0.4, 0.6, 0.9)[turn]
    run = Run(UPSTREAMS, tmp_path)
    run.run(_any_moment(share), random.Random(turn).uniform(1, 4), lambda _event: None)
    for way in UPSTREAMS:
        assert run.wrong(way) == [], (way, run.log)
        rooms = Counter(name.rpartition("-")[0] for name in run.unknown(way))
        assert all(count == 1 for count in rooms.values()), (way, rooms)
