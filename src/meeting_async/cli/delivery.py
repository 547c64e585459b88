"""Sending what a command lists: display, signals, what is told of each document, and the end."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from datetime import datetime
from types import FrameType
from typing import Literal

import anyio
import anyio.to_thread
import attrs

from meeting_async import Batch, BatchReport, MeetingClient, UploadJob, UploadOutcome
from meeting_async.cli.console import Output
from meeting_async.cli.display import Display, display_on
from meeting_async.cli.entries import Entry
from meeting_async.cli.results import (
    ExitCode,
    document_object,
    exit_code,
    groups_of,
    headline,
    summary_object,
)
from meeting_async.cli.words import counted, duration, hints, labelled, message_of, size

POLL_SECONDS = 0.1
"""How soon a signal is noticed."""

GROUPS_SHOWN = 20
"""Reasons that are listed in the end; further ones are counted."""


@attrs.frozen(kw_only=True)
class Options:
    """How to send, and what to say meanwhile; times are seconds."""

    server: str
    """Base URL of the server."""
    concurrency: int = 1
    journal: str | None = None
    wait_active: float | None = None
    on_unknown: Literal["report", "resend"] | None = None
    max_wait: float | None = None
    timeout: float | None = None
    report: str | None = None
    quiet: bool = False
    detailed: bool = False
    """Tell of every document what goes on, as there are few."""
    resumption: str = ""
    """What to do to send the rest."""


@attrs.frozen
class WorkList:
    """What is to be sent. Jobs are made when they are read: there may be a million."""

    name: str
    entries: Sequence[Entry]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[UploadJob]:
        return (entry.job() for entry in self.entries)


class Signals:
    """Counts Ctrl-C, SIGTERM and a hang-up, in place of what they do.

    They stay caught after the last document, so that none can get in the way of the summary.
    """

    def __init__(self) -> None:
        self.count: int = 0
        numbers = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
        # Whoever started us may want a signal to be ignored, as `nohup` does.
        self._caught = [n for n in numbers if n and signal.getsignal(n) is not signal.SIG_IGN]
        for number in self._caught:
            signal.signal(number, self._add)

    def _add(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1

    def ignore(self) -> None:
        """Ignore them until the process ends, as everything is told."""
        for number in self._caught:
            signal.signal(number, signal.SIG_IGN)


def deliver(client: MeetingClient, work: WorkList, options: Options, output: Output) -> ExitCode:
    """Send everything, tell what became of it, and return the exit code."""
    signals = Signals()
    run = _Run(work, options, output, signals)
    began = datetime.now().astimezone()
    failure: Exception | None = None
    try:
        anyio.run(run.send, client)
    except Exception as error:  # noqa: BLE001 - told below, after what is known of the documents
        failure = error
        while isinstance(failure, ExceptionGroup):
            failure = failure.exceptions[0]
        if run.batch is None:
            raise failure from None
    code = run.end(began, failure)
    signals.ignore()
    return code


@attrs.define(eq=False)
class _Run:
    """One list of documents on its way."""

    work: WorkList
    options: Options
    output: Output
    signals: Signals
    batch: Batch | None = attrs.field(default=None, init=False)
    """There once it has begun."""
    _told: set[int] = attrs.field(factory=set, init=False)

    async def send(self, client: MeetingClient) -> None:
        """Send everything; the second signal cancels what is under way."""
        options = self.options
        display = display_on(
            self.output, len(self.work), detailed=options.detailed, quiet=options.quiet
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, display, tasks.cancel_scope)
            async with (
                client,
                client.upload_many(
                    self.work,
                    concurrency=options.concurrency,
                    journal=options.journal,
                    on_unknown=options.on_unknown,
                    wait_active=options.wait_active,
                    max_wait=options.max_wait,
                    timeout=options.timeout,
                    on_event=display,
                ) as self.batch,
            ):
                display.report = self.batch.report
                with display:
                    async for outcome in self.batch:
                        # In a thread, as a pipe that nobody reads would hold up the event loop.
                        await anyio.to_thread.run_sync(self.tell, outcome)
            tasks.cancel_scope.cancel()

    async def _watch(self, display: Display, scope: anyio.CancelScope) -> None:
        """Let the first signal begin nothing new, and the second end what is under way."""
        is_stopped = False
        while self.signals.count < 2:
            if self.batch and not is_stopped and (self.signals.count or self.output.is_lost):
                is_stopped = True
                self.batch.stop()
                self.output.note(
                    "finishing what is being sent; Ctrl-C again cuts it off"
                    if self.signals.count
                    else "the output cannot be written: finishing what is being sent"
                )
            display.tick()
            await anyio.sleep(POLL_SECONDS)
        scope.cancel()

    def tell(self, outcome: UploadOutcome) -> None:
        """Tell an outcome: to programs every one, to people what they need to know."""
        self._told.add(outcome.index)
        entry, output = self.work.entries[outcome.index], self.output
        is_told = output.as_json and output.say_object("document", document_object(outcome, entry))
        is_wanted = self.options.detailed or outcome.status != "skipped"
        if not outcome.delivered:
            if is_wanted:
                output.note(_line(outcome, entry))
        elif output.as_json:
            if not is_told and is_wanted:
                output.note(_line(outcome, entry))
        elif self.options.detailed and not self.options.quiet:
            output.tell(_line(outcome, entry))

    # --- the end ---------------------------------------------------------------------------------

    def end(self, began: datetime, failure: Exception | None) -> ExitCode:
        """Tell what is not told yet, write the report and return the exit code."""
        report = self.batch.report if self.batch else BatchReport()
        for outcome in report.outcomes:
            if outcome.index not in self._told:  # it was cut off
                self.tell(outcome)
        is_interrupted = self.signals.count > 0
        code = exit_code(
            report,
            len(self.work),
            interrupted=is_interrupted,
            unread=self.output.is_lost,
        )
        self._write_page(report, began, is_interrupted=is_interrupted)
        self._sum_up(report, code, is_interrupted=is_interrupted)
        self._advise(report, failure)
        return code

    def _write_page(self, report: BatchReport, began: datetime, *, is_interrupted: bool) -> None:
        if self.options.report is None:
            return
        from meeting_async.cli.report import write_page

        try:
            write_page(
                self.options.report,
                report,
                title=self.work.name,
                server=self.options.server,
                began=began,
                documents=len(self.work),
                interrupted=is_interrupted,
            )
        except OSError as error:
            self.output.note(f"error: {self.options.report} cannot be written: {error.strerror}")

    def _sum_up(self, report: BatchReport, code: ExitCode, *, is_interrupted: bool) -> None:
        documents, output = len(self.work), self.output
        sums = f"{self.work.name}: {headline(report, documents, interrupted=is_interrupted)}"
        if output.as_json:
            fields = summary_object(report, documents, interrupted=is_interrupted, code=code)
            if not output.say_object("summary", fields):
                output.note(sums)
            return
        if self.options.quiet and not output.is_lost:
            return
        if not self.options.detailed or documents > 1 or is_interrupted or output.is_lost:
            output.tell(sums)
        if not self.options.detailed:
            for line in _details(report):
                output.tell(line)

    def _advise(self, report: BatchReport, failure: Exception | None) -> None:
        """Say what ended the batch early, and what to do next."""
        first = next((o.error for o in report.outcomes if not o.delivered), None)
        error = failure or report.stopped_by
        if error is not None and (failure or not report.total):
            self.output.note(f"error: {message_of(error)}")
        advice = [*hints(error or first, self.options.server)]
        if report.unknown and self.options.journal is not None:
            advice.append("what is unknown is sent again only with --on-unknown resend")
        is_rest = report.accepted + report.already_delivered < len(self.work)
        if is_rest and self.options.resumption:
            advice.append(self.options.resumption)
        for line in advice:
            self.output.note(f"hint: {line}")


def _line(outcome: UploadOutcome, entry: Entry) -> str:
    """Say in one line what became of a document."""
    if outcome.error is not None:
        text = f"{outcome.status}: {message_of(outcome.error)}"
        return labelled(entry.place, text)
    if outcome.status == "skipped":
        return f"{entry.place}: accepted in an earlier run"
    facts = [] if entry.size is None else [size(entry.size)]
    facts += [f"{outcome.seconds:.1f} s"]
    if len(outcome.attempts) > 1:
        facts.append(counted(len(outcome.attempts), "attempt"))
    return f"{outcome.document}: accepted by {outcome.room_id} ({', '.join(facts)})"


def _details(report: BatchReport) -> Iterator[str]:
    """Sum up the traffic, then what needs attention, the most urgent first."""
    facts = [f"{size(report.bytes_sent)} sent in {duration(report.seconds)}"]
    if report.bytes_resent:
        facts.append(f"{size(report.bytes_resent)} of it again")
    if report.conflicts:
        facts.append(f"a room was taken {counted(report.conflicts, 'time')}")
    yield ", ".join(facts)
    groups = groups_of(report.outcomes)
    yield from map(str, groups[:GROUPS_SHOWN])
    if len(groups) > GROUPS_SHOWN:
        yield f"… and {counted(len(groups) - GROUPS_SHOWN, 'further reason')}"
