"""The HTML report of a command: its texts are for a command line, and its troubles are told."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from meeting_async._system import in_use
from meeting_async.cli.words import hints, message_of

if TYPE_CHECKING:
    from meeting_async import BatchReport
    from meeting_async.cli.console import Output


def write_page(
    path: str, report: BatchReport, output: Output, *, server: str, **facts: Any
) -> None:
    """Write the report with the ``facts`` of a page; if that is not possible, it is told."""
    from meeting_async.reports._file import is_kept, write_file
    from meeting_async.reports._page import page

    helpful = partial(hints, server=server)
    made = page(report, server=server, message=message_of, hints=helpful, **facts)
    try:
        write_file(path, made)
    except OSError as error:
        kept = f": the new report is {error.filename!r}" if is_kept(error) else ""
        reason = f"{error.strerror}{in_use(error)}{kept}"
        output.note(f"error: {path} cannot be written: {reason}")
