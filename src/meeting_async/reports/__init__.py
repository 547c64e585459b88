"""The result of a batch as one HTML page without other files or scripts (extra ``cli``).

It is what ``meeting-async batch --report`` writes. Guide: ``docs/batch.md``.
"""

from __future__ import annotations

import importlib.util
import os
from datetime import datetime, timedelta

from meeting_async import BatchReport
from meeting_async.reports._file import check_report, write_file
from meeting_async.reports._groups import headline

if importlib.util.find_spec("jinja2") is None:
    _hint = 'meeting_async.reports needs jinja2: pip install ".[cli]" in a clone'
    raise ModuleNotFoundError(_hint, name="jinja2")

__all__ = ["html_report", "write_report"]


def html_report(report: BatchReport, *, title: str, server: str = "") -> str:
    """Return the page, for a mail or a web application: totals, what failed, a timeline per room.

    Times are local. The page begins when the batch has ended: its start is counted from now.

    Args:
        report: The report of a batch that has ended, and kept its outcomes.
        title: What was uploaded, such as the name of the manifest.
        server: Base URL that the page names.

    """
    from meeting_async.reports._page import page  # noqa: PLC0415 - commands without a report

    now = datetime.now().astimezone()
    return page(
        report,
        title=title,
        headline=headline(report, report.total),
        documents=report.total,
        server=server,
        began=now - timedelta(seconds=report.seconds),
    )


def write_report(
    report: BatchReport, path: str | os.PathLike[str], *, title: str, server: str = ""
) -> None:
    """Write the page of :func:`html_report` to a file that only its owner may read.

    It replaces an earlier report, whole, and no other file with content. This blocks: in an async
    program call it in a thread.

    Raises:
        InvalidInput: The path cannot be written, or is another file.
        OSError: Writing failed, such as on a full disk. An earlier report is still there, whole.

    """
    place = os.fspath(path)
    check_report(place, field="path")
    write_file(place, html_report(report, title=title, server=server))
