"""A batch of the command line at work: its display, and the signals that end it early."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
import attrs

from meeting_async import Batch, BatchReport, MeetingClient
from meeting_async.cli._amounts import counted
from meeting_async.cli._batch_display import LINE_INTERVAL, BatchDisplay, batch_display_on
from meeting_async.cli._batch_rooms import BatchRooms
from meeting_async.cli._batch_tally import Tally
from meeting_async.cli._batch_teller import Teller
from meeting_async.cli._console import console_on
from meeting_async.cli._manifest import Manifest

if TYPE_CHECKING:
    from meeting_async.cli._batch import Options


def run(client: MeetingClient, manifest: Manifest, options: Options) -> int:
    """Upload everything and return the exit code."""
    course, began = _Course(manifest, options), datetime.now(UTC)
    try:
        anyio.run(course.run, client)
    except KeyboardInterrupt:  # where signals cannot be received: it has cut everything off
        if course.report is None:
            raise KeyboardInterrupt("nothing was sent") from None
        course.interruptions += 1
    report = course.report or BatchReport()
    return course.teller.end(report, began, is_interrupted=course.interruptions > 0)


@attrs.define(eq=False)
class _Course:
    """One run of a batch."""

    manifest: Manifest
    options: Options
    teller: Teller = attrs.field(init=False)
    report: BatchReport | None = attrs.field(default=None, init=False)
    """The batch's, once that has begun."""
    interruptions: int = attrs.field(default=0, init=False)
    _rooms: BatchRooms = attrs.field(factory=BatchRooms, init=False)

    def __attrs_post_init__(self) -> None:
        self.teller = Teller(self.manifest, self.options)

    async def run(self, client: MeetingClient) -> None:
        """Upload everything."""
        options, display = self.options, self._display()
        async with client:
            with _signals() as signals, display:
                async with client.with_options(on_event=display).upload_many(
                    [entry.job for entry in self.manifest.entries],
                    concurrency=options.concurrency,
                    journal=options.journal,
                    on_unknown=options.on_unknown,
                    wait_active=options.wait_active,
                    max_wait=options.max_wait,
                ) as batch:
                    self.report, self.teller.stop = batch.report, batch.stop
                    await self._follow(batch, display, signals)

    def _display(self) -> BatchDisplay:
        rooms = (entry.room_id for entry in self.manifest.entries)
        tally = Tally.of(rooms, size=self.manifest.size, now=time.monotonic())
        is_plain = self.options.as_json and sys.stdout.isatty()  # both would be written to it
        return batch_display_on(console_on(sys.stderr), tally, self._rooms, is_plain=is_plain)

    async def _follow(
        self, batch: Batch, display: BatchDisplay, signals: AsyncIterator[int] | None
    ) -> None:
        """Tell outcomes until the end, or until the second signal; then leave the batch."""
        failure = None
        async with anyio.create_task_group() as tasks:
            if signals is not None:
                tasks.start_soon(self._heed, signals, batch, display, tasks.cancel_scope)
            tasks.start_soon(_tick, display)
            try:
                async for outcome in batch:
                    display.over(outcome, self.manifest.entries[outcome.index].size or 0)
                    self.teller.tell(outcome)
            except Exception as error:  # noqa: BLE001 - raised below, without a group around it
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _heed(
        self,
        signals: AsyncIterator[int],
        batch: Batch,
        display: BatchDisplay,
        scope: anyio.CancelScope,
    ) -> None:
        """Let the first signal begin nothing new, and the second end what is in flight."""
        async for _ in signals:
            self.interruptions += 1
            if self.interruptions > 1:
                scope.cancel()
                return
            batch.stop()
            text = f"finishing {self._in_flight()}; Ctrl-C again to cut that off"
            display.note(text)
            self.teller.complain(text)

    def _in_flight(self) -> str:
        moving, waiting = self._rooms.moving, self._rooms.active - self._rooms.moving
        waits = f", no longer waiting for {counted(waiting, 'room')}" if waiting else ""
        return f"{counted(moving, 'upload')}{waits}"


@contextmanager
def _signals() -> Iterator[AsyncIterator[int] | None]:
    """Receive Ctrl-C and SIGTERM, unless whoever started us wants them to be ignored."""
    wanted = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    try:
        receiver = anyio.open_signal_receiver(*wanted)
        signals = receiver.__enter__()
    except NotImplementedError:  # this event loop cannot: Windows
        yield None
        return
    try:
        yield signals
    finally:
        receiver.__exit__(None, None, None)


async def _tick(display: BatchDisplay) -> None:
    while True:
        await anyio.sleep(LINE_INTERVAL)
        display.tick()
