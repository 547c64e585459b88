"""The results of a batch in the queue."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import anyio
import attrs

from meeting_async import MeetingClient, UploadOutcome
from meeting_async._system import command_line
from meeting_async._text import duration
from meeting_async.cli.console import PROGRAM, Output
from meeting_async.cli.delivery import line_for, tell_details
from meeting_async.cli.display import display_on
from meeting_async.cli.queue.database import no_such_batch, uploads_in
from meeting_async.cli.report import write_page
from meeting_async.cli.results import (
    ExitCode,
    document_object,
    exit_code,
    summary_object,
)
from meeting_async.cli.words import labelled
from meeting_async.manifests._entries import Entry
from meeting_async.procrastinate import QueueReport, WhiteboardUploads
from meeting_async.reports._groups import headline

WAIT_SECONDS = 1.0
"""Shortest interval at which the results are read while somebody waits for them."""

LONGEST_SHARE = 0.2
"""Share of the time for reading the results: those of a large batch take long."""


@attrs.frozen
class Results:
    """What was found of a batch."""

    batch: str
    server: str
    report: QueueReport
    began: datetime

    @property
    def documents(self) -> int:
        """Number of documents, with those that have no outcome yet."""
        return self.report.total + self.report.queued

    @property
    def headline(self) -> str:
        """The results as one sentence."""
        return headline(self.report, self.documents, left="queued")

    @property
    def code(self) -> ExitCode:
        """Exit code; unknown outcomes win, and the others may change while documents are queued."""
        if self.report.queued and not self.report.unknown:
            return ExitCode.BUSY
        return exit_code(self.report, self.documents, interrupted=False, unread=False)

    def write_page(self, path: str, output: Output) -> None:
        """Write the HTML report."""
        command = f"`{command_line([PROGRAM, 'queue', 'retry', self.batch])}`"
        hint = f"{command} queues again what was refused or has failed"
        is_needed = self.report.refused or self.report.failed
        write_page(
            path,
            self.report,
            output,
            title=self.batch,
            headline=self.headline,
            documents=self.documents,
            server=self.server,
            began=self.began.astimezone(),
            hint=hint if is_needed else "",
        )

    def tell(self, output: Output) -> int:
        """Print the results and return the exit code."""
        if output.as_json:
            self._say_objects(output)
        else:
            for outcome in self.report.outcomes:
                if not outcome.delivered:
                    output.note(labelled(outcome.room_id, line_for(outcome, _entry(outcome))))
            output.tell(f"{self.batch}: {self.headline}")
            self._tell_schedule(output)
            tell_details(self.report, output)
        return self.code or output.code()

    def _tell_schedule(self, output: Output) -> None:
        if self.report.scheduled:
            output.tell(f"{self.report.scheduled:,} queued for later")
        if self.report.due:
            since = f"{self.report.due:,} due, for up to {duration(self.report.due_for)}"
            output.tell(f"{since}: older documents of the room, or a worker, come first")

    def _say_objects(self, output: Output) -> None:
        for outcome in self.report.outcomes:
            output.say_object("document", document_object(outcome, _entry(outcome)))
        facts: dict[str, Any] = {"interrupted": False, "code": self.code, "left": "queued"}
        times = {"scheduled": self.report.scheduled, "due": self.report.due}
        summary = {**summary_object(self.report, self.documents, **facts), **times}
        output.say_object("summary", summary)


def _entry(outcome: UploadOutcome) -> Entry:
    return Entry(outcome.room_id, outcome.document, size=outcome.size, key=outcome.key)


@attrs.frozen
class Query:
    """A batch to look up, at once or when it has no queued documents any more."""

    batch: str
    server: str
    output: Output
    wait: bool = attrs.field(kw_only=True)
    quiet: bool = attrs.field(kw_only=True)

    async def results(self, dsn: str | None, client: MeetingClient) -> Results:
        """Return the results.

        Raises:
            InvalidInput: The server has no such batch.

        """
        async with uploads_in(dsn, client) as (_, uploads):
            if self.wait:
                await self._wait(uploads)
            report = await uploads.report(self.batch)
        if report.began is None:
            raise no_such_batch(self.batch, self.server)
        return Results(self.batch, self.server, report, report.began)

    async def _wait(self, uploads: WhiteboardUploads) -> None:
        report, pause = await self._progress(uploads)
        documents = report.total + report.queued
        display = display_on(self.output, documents, detailed=False, quiet=self.quiet)
        display.report = report
        with display:
            while report.queued:
                await anyio.sleep(pause)
                report, pause = await self._progress(uploads)
                display.report = report
                display.tick()

    async def _progress(self, uploads: WhiteboardUploads) -> tuple[QueueReport, float]:
        """Return the totals, and how long to pause until they are read again."""
        began = time.monotonic()
        report = await uploads.report(self.batch, keep_outcomes=False)
        report.bytes_sent = 0  # the display would show a speed that counts earlier bytes
        took = time.monotonic() - began
        return report, max(WAIT_SECONDS, took / LONGEST_SHARE)
