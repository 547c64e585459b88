"""What a batch says while it runs and in the end, and to whom."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import attrs

from meeting_async import BatchReport, UploadOutcome
from meeting_async.cli._batch_words import Ending, exit_code_of, outcome_object, summary_object
from meeting_async.cli._console import complain, console_on, printable, say
from meeting_async.cli._manifest import Manifest
from meeting_async.cli._outcomes import ExitCode, explained
from meeting_async.errors import MeetingError

T = TypeVar("T")

if TYPE_CHECKING:
    from meeting_async.cli._batch import Options

INTERRUPTED = 130
"""Exit code after Ctrl-C (128 + SIGINT)."""


@attrs.define(eq=False)
class Teller:
    """Tells outcomes as they come and the sums in the end.

    When nobody reads any more, it is silent and calls ``stop``: nothing new is begun, but what is
    in flight is not cut off.
    """

    manifest: Manifest
    options: Options
    stop: Callable[[], None] = attrs.field(default=lambda: None, init=False)
    is_unread: bool = attrs.field(default=False, init=False)
    """Whether whoever read our output is gone."""
    _told: set[int] = attrs.field(factory=set, init=False)

    def tell(self, outcome: UploadOutcome) -> None:
        """Tell an outcome at once: to programs every one, to people what is not good."""
        self._told.add(outcome.index)
        entry = self.manifest.entries[outcome.index]
        if self.options.as_json:
            self.say(json.dumps(outcome_object(entry, outcome)))
        if outcome.status in {"accepted", "skipped"}:  # skipped ones are counted in the end
            return
        for line in _explained(outcome.error):
            self.complain(f"{entry.place}: {line}")

    def say(self, text: str) -> None:
        """Print a result."""
        self._write(say, text)

    def complain(self, text: str) -> None:
        """Print a line to stderr."""
        self._write(complain, text)

    def end(self, report: BatchReport, began: datetime, *, is_interrupted: bool) -> int:
        """Tell how it all ended, write the report and return the exit code."""
        outcomes = report.outcomes
        for outcome in outcomes:
            if outcome.index not in self._told:  # it was cut off
                self.tell(outcome)
        if self.options.report is not None:
            self._write_page(self.options.report, report, began)
        code = INTERRUPTED if is_interrupted else int(exit_code_of(outcomes))
        is_patient = self.options.wait_active is not None
        entries, journal = self.manifest.entries, self.options.journal
        ending = Ending(report, entries, journal, is_patient, outcomes)
        if self.options.as_json:
            self.say(json.dumps(summary_object(report, len(self.manifest.entries), code)))
        else:
            self._write(_show, ending)
        for line in ending.advice(is_interrupted=is_interrupted):
            self.complain(line)
        return ExitCode.UNREAD if self.is_unread and not is_interrupted else code

    def _write_page(self, path: str, report: BatchReport, began: datetime) -> None:
        from meeting_async.cli._page import page

        text = page(
            report,
            title=self.manifest.name,
            server=os.environ.get("MEETING_BASE_URL", ""),
            began=began,
            total=len(self.manifest.entries),
        )
        try:
            with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - any string
                file.write(text)
        except OSError as error:
            self.complain(f"error: {path} cannot be written: {error.strerror}")

    def _write(self, write: Callable[[T], None], what: T) -> None:
        if self.is_unread:
            return
        try:
            write(what)
        except BrokenPipeError:
            self.is_unread = True
            # What is still in a buffer must not fail when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self.stop()


def _explained(error: Exception | None) -> list[str]:
    return explained(error) if isinstance(error, MeetingError) else [f"error: {error}"]


def _show(ending: Ending) -> None:
    """Print the final table, and what needs attention."""
    console_on(sys.stdout).print(ending.table())
    say("")
    for line in (ending.sentence(), *ending.attention()):
        say(printable(line))
