"""Sending the documents of a command, with progress, signals, results and a summary."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import anyio
import anyio.to_thread
import attrs

from meeting_async import Batch, BatchReport, MeetingClient, UploadJob, UploadOutcome
from meeting_async._models import count_of
from meeting_async._system import ENDING_SIGNALS
from meeting_async._text import counted, duration, size
from meeting_async._threads import POLL_SECONDS
from meeting_async.cli.console import Output
from meeting_async.cli.display import Display, display_on
from meeting_async.cli.results import (
    ExitCode,
    document_object,
    exit_code,
    summary_object,
)
from meeting_async.cli.words import hints, labelled, message_of
from meeting_async.manifests._entries import Entry
from meeting_async.reports._groups import category_of, groups_of, headline

GROUPS_SHOWN = 20
"""Reasons that the summary lists; further ones are only counted."""


@attrs.frozen
class Order:
    """What to send, how, and how much to print."""

    name: str
    entries: Sequence[Entry]
    settings: Mapping[str, Any]
    """Arguments of ``upload_many``."""
    server: str
    """Base URL of the server."""
    quiet: bool
    report: str | None = None
    """Path of the HTML report; ``None``: no report."""
    detailed: bool = False
    """Print what happens to every document, because there are few."""
    resumption: str = ""
    """Hint how to send the rest later; ``""`` for none."""

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[UploadJob]:
        """Make each job when it is read: there may be a million."""
        return (entry.job() for entry in self.entries)


@contextmanager
def signals_counted() -> Iterator[list[int]]:
    """Collect Ctrl-C, SIGTERM and its kind instead of ending the process.

    After the block they are ignored, so that none of them can interrupt the summary or the exit.
    """
    seen: list[int] = []
    # The parent process may have set a signal to be ignored, as `nohup` does.
    caught = [it for it in ENDING_SIGNALS if signal.getsignal(it) is not signal.SIG_IGN]
    for number in caught:
        signal.signal(number, lambda number, _frame: seen.append(number))
    yield seen
    for number in caught:
        signal.signal(number, signal.SIG_IGN)


def deliver(client: MeetingClient, order: Order, output: Output) -> ExitCode:
    """Send everything, print the results, and return the exit code."""
    with signals_counted() as signals:
        output.results.is_hurried = output.notes.is_hurried = lambda: len(signals) > 1
        run = _Run(order, output, signals)
        failure: Exception | None = None
        try:
            with output.in_thread(is_hurried=False):
                anyio.run(run.send, client)
        except Exception as error:  # noqa: BLE001 - printed below, after the outcomes
            failure = error
            while isinstance(failure, ExceptionGroup):
                failure = failure.exceptions[0]
            if run.batch is None:
                raise failure from None
        return run.end(failure)


@attrs.define(eq=False)
class _Run:
    """A running order."""

    order: Order
    output: Output
    signals: Sequence[int]
    batch: Batch | None = attrs.field(default=None, init=False)
    """``None`` before it begins."""
    _began: datetime = attrs.field(factory=lambda: datetime.now().astimezone(), init=False)
    _told: set[int] = attrs.field(factory=set, init=False)

    async def send(self, client: MeetingClient) -> None:
        """Send everything; the second signal cancels the running uploads."""
        order = self.order
        display = display_on(self.output, len(order), detailed=order.detailed, quiet=order.quiet)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, display, tasks.cancel_scope)
            batch = client.upload_many(order, on_event=display, **order.settings)
            display.report = batch.report
            async with client, batch as self.batch:
                with display:
                    async for outcome in batch:
                        # In a thread: a pipe that nobody reads would block the event loop.
                        await anyio.to_thread.run_sync(self.tell, outcome)
            tasks.cancel_scope.cancel()

    async def _watch(self, display: Display, scope: anyio.CancelScope) -> None:
        """Stop starting uploads at the first signal, and cancel running ones at the second."""
        is_stopped = False
        while len(self.signals) < 2:
            if self.batch and not is_stopped and (self.signals or self.output.is_lost):
                is_stopped = display.is_stopping = True
                self.batch.stop()
                self.output.note(
                    "finishing the running uploads; press Ctrl-C again to cancel them"
                    if self.signals
                    else "the output cannot be written: finishing the running uploads"
                )
            display.tick()
            await anyio.sleep(POLL_SECONDS)
        scope.cancel()

    def tell(self, outcome: UploadOutcome) -> None:
        """Print an outcome: every one with ``--json`` or if detailed, otherwise only failures."""
        self._told.add(outcome.index)
        entry, output, order = self.order.entries[outcome.index], self.output, self.order
        is_json = output.as_json
        is_told = is_json and output.say_object("document", document_object(outcome, entry))
        if not outcome.delivered or (is_json and not is_told):
            is_failure = outcome.status != "skipped" and category_of(outcome) != "stopped"
            if order.detailed or is_failure:
                output.note(line_for(outcome, entry), wait=True)
        elif order.detailed and not order.quiet and not is_json:
            output.tell(line_for(outcome, entry), wait=True)

    # --- the end ---------------------------------------------------------------------------------

    def end(self, failure: Exception | None) -> ExitCode:
        """Print what was not printed yet, write the report and return the exit code."""
        report = self.batch.report if self.batch else BatchReport()
        for outcome in report.outcomes:
            if outcome.index not in self._told:  # it was cancelled
                self.tell(outcome)
        documents, interrupted = len(self.order), bool(self.signals)
        unread = self.output.is_lost
        code = exit_code(report, documents, interrupted=interrupted, unread=unread)
        sums = headline(report, documents, interrupted=interrupted)
        if self.order.report is not None:
            self._write_page(self.order.report, report, sums)
        line = f"{self.order.name}: {sums}"
        if self.output.as_json:
            fields = summary_object(report, documents, interrupted=interrupted, code=code)
            if not self.output.say_object("summary", fields):
                self.output.note(line)
        elif not self.order.quiet:
            self._sum_up(report, line)
        self._advise(report, failure)
        return code

    def _write_page(self, path: str, report: BatchReport, sums: str) -> None:
        from meeting_async.cli.report import write_page

        order = self.order
        write_page(
            path,
            report,
            self.output,
            title=order.name,
            headline=sums,
            documents=len(order),
            server=order.server,
            began=self._began,
            rooms=(entry.room_id for entry in order.entries),
            hint=self._resumption(report),
        )

    def _sum_up(self, report: BatchReport, sums: str) -> None:
        """Print the totals, the traffic, and what needs attention, the most urgent first."""
        detailed = self.order.detailed
        if not detailed or len(self.order) > 1 or self.signals or self.output.is_lost:
            self.output.tell(sums)
        if not detailed:
            tell_details(report, self.output)

    def _advise(self, report: BatchReport, failure: Exception | None) -> None:
        """Print the error that ended the batch early, and hints what to do next."""
        first = next((o.error for o in report.outcomes if not o.delivered), None)
        if failure is not None:
            self.output.note(f"error: {message_of(failure)}")
        advice = [*hints(failure or report.stopped_by or first, self.order.server)]
        if report.unknown and self._has_journal:
            advice.append(
                "the same command with --delivery exactly_once finds out what became of unknown "
                "documents, if the server shows its files"
            )
        if resumption := self._resumption(report):
            advice.append(resumption)
        for line in advice:
            self.output.note(f"hint: {line}")

    @property
    def _has_journal(self) -> bool:
        return self.order.settings.get("journal") is not None

    def _resumption(self, report: BatchReport) -> str:
        """Return the hint how to send the rest, ``""`` if there is none."""
        done = report.accepted + report.already_delivered + report.unknown * self._has_journal
        return self.order.resumption if done < len(self.order) else ""


def line_for(outcome: UploadOutcome, entry: Entry) -> str:
    """Return the outcome of a document as one line."""
    if outcome.error is not None:
        return labelled(entry.place, f"{outcome.status}: {message_of(outcome.error)}")
    facts = [] if entry.size is None else [size(entry.size)]
    facts += [f"{outcome.seconds:.1f} s"]
    if (attempts := count_of(outcome.attempts)) > 1:
        facts.append(counted(attempts, "attempt"))
    return f"{outcome.document}: accepted by {outcome.room_id} ({', '.join(facts)})"


def tell_details(report: BatchReport, output: Output) -> None:
    """Print the traffic, and what needs attention."""
    output.tell(_traffic(report))
    groups = groups_of(report.outcomes)
    for group in groups[:GROUPS_SHOWN]:
        output.tell(str(group))
    if len(groups) > GROUPS_SHOWN:
        output.tell(f"… and {counted(len(groups) - GROUPS_SHOWN, 'further reason')}")


def _traffic(report: BatchReport) -> str:
    facts = [f"{size(report.bytes_sent)} sent in {duration(report.seconds)}"]
    if report.bytes_resent:
        facts.append(f"{size(report.bytes_resent)} of that were sent again")
    if report.conflicts:
        facts.append(f"a room was locked {counted(report.conflicts, 'time')}")
    return ", ".join(facts)
