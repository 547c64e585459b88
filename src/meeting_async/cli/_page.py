"""The report of a batch for people: one page of HTML that needs nothing but itself.

Pure functions, no clock. It says everything without its script, which only filters and sorts the
table; a strict policy in its head lets nothing else run and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime

from meeting_async._jobs import UploadOutcome
from meeting_async._report import BatchReport
from meeting_async.cli._amounts import counted, duration, size
from meeting_async.cli._markup import isolated, plain
from meeting_async.cli._page_attention import attention
from meeting_async.cli._page_style import SCRIPT, STYLE
from meeting_async.cli._page_table import table
from meeting_async.cli._timeline import timeline


def page(report: BatchReport, *, title: str, server: str, began: datetime, total: int) -> str:
    """Make the page, to be written as UTF-8.

    ``title`` names the batch, such as the file it was read from; ``server`` is where it was sent.
    ``total`` is how many documents there were to send: a batch that was left early accounts for
    fewer.
    """
    outcomes = report.outcomes
    drawn = timeline(outcomes, report.seconds)
    parts = [
        *_head(f"{title}: {headline(report, total)}"),
        *_opening(report, title=title, server=server, began=began, total=total),
        attention(report, outcomes),
        f'<section id="timeline">\n<h2>Rooms over time</h2>\n{drawn}\n</section>' if drawn else "",
        table(outcomes),
        *_missing(report, outcomes),
        "</main>",
        f"<script>{SCRIPT}</script>",
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def headline(report: BatchReport, total: int) -> str:
    """Say in one sentence how it went."""
    total = max(total, report.total)
    if not total:
        return "There was nothing to send."
    if total == 1:
        return _only(report)
    rest = [words for number, words in _shortfall(report, total) if number]
    return f"{_success(report.accepted + report.resumed, total)}{_listed(rest)}."


def _only(report: BatchReport) -> str:
    ends = {
        "is in its room": report.accepted + report.resumed,
        "may or may not have arrived in its room": report.unknown,
        "was refused": report.refused,
        "did not reach its room": report.failed,
        "was not tried": report.skipped - report.resumed,
        "was not begun": 1,
    }
    return f"The document {next(end for end, number in ends.items() if number)}."


def _success(there: int, total: int) -> str:
    if there == total:
        return f"All {total:,} documents are in their rooms"
    if not there:
        return f"None of the {total:,} documents is known to be in its room"
    verb, whose = ("is", "its room") if there == 1 else ("are", "their rooms")
    return f"{there:,} of {total:,} documents {verb} in {whose}"


def _shortfall(report: BatchReport, total: int) -> Iterator[tuple[int, str]]:
    refused, failed, unknown = report.refused, report.failed, report.unknown
    skipped, missing = report.skipped - report.resumed, total - report.total
    yield refused, f"{refused:,} {'was' if refused == 1 else 'were'} refused"
    yield failed, f"{failed:,} failed"
    yield unknown, f"{unknown:,} may or may not have arrived"
    yield skipped, f"{skipped:,} {'was' if skipped == 1 else 'were'} not tried"
    yield missing, f"{missing:,} {'was' if missing == 1 else 'were'} not begun"


def _listed(parts: list[str]) -> str:
    return f"; {', '.join(parts)}" if parts else ""


def _head(title: str) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield '<meta name="referrer" content="no-referrer">'
    yield '<meta name="robots" content="noindex">'
    yield '<link rel="icon" href="data:,">'
    yield f"<title>{plain(title)}</title>"
    yield f"<style>{STYLE}</style>\n</head>\n<body>\n<main>"


def _policy() -> str:
    """Name by their digests the one style and the one script (CSP 3, section 2.3.1)."""
    style, script = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (STYLE, SCRIPT)
    )
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _opening(
    report: BatchReport, *, title: str, server: str, began: datetime, total: int
) -> Iterator[str]:
    when = began.strftime("%Y-%m-%d %H:%M:%S %Z").strip()
    yield "<header>"
    yield (
        f'<p class="about">{isolated(title)} to {isolated(server)}, '
        f'<time datetime="{began.isoformat()}">{when}</time></p>'
    )
    yield f"<h1>{headline(report, total)}</h1>"
    yield "</header>"
    yield '<section id="numbers" aria-label="Numbers">'
    yield _tiles("outcomes", _outcome_tiles(report))
    yield _tiles("traffic", _traffic_tiles(report))
    yield "</section>"


Tile = tuple[str, str, str, bool]
"""Class, name, value, and whether there is anything of it."""


def _outcome_tiles(report: BatchReport) -> Iterator[Tile]:
    counts = {
        "accepted": report.accepted,
        "resumed": report.resumed,
        "unknown": report.unknown,
        "refused": report.refused,
        "failed": report.failed,
        "skipped": report.skipped - report.resumed,
    }
    names = {"resumed": "in an earlier run", "skipped": "not tried"}
    for word, count in counts.items():
        yield word, names.get(word, word), f"{count:,}", bool(count)


def _traffic_tiles(report: BatchReport) -> Iterator[Tile]:
    again, sent, seconds = report.bytes_resent, report.bytes_sent, report.seconds
    share = f", {again / sent:.1%} of all bytes sent" if again and sent else ""
    rate = f"{size(report.bytes_delivered / seconds)}/s" if seconds else "-"
    yield "", "took", duration(seconds), True
    yield "", "delivered", size(report.bytes_delivered), bool(report.bytes_delivered)
    yield "", "rate", rate, bool(report.bytes_delivered)
    yield "", f"sent more than once{share}", size(again), bool(again)
    yield "", "waited, all documents together", duration(report.waited), bool(report.waited)
    yield "", "room was taken (409)", counted(report.conflicts, "time"), bool(report.conflicts)


def _tiles(name: str, tiles: Iterator[Tile]) -> str:
    items = "".join(
        f'<div class="{f"{kind} some" if some else "none"}"><dt>{label}</dt><dd>{value}</dd></div>'
        for kind, label, value, some in tiles
    )
    return f'<dl class="{name}">{items}</dl>'


def _missing(report: BatchReport, outcomes: Sequence[UploadOutcome]) -> Iterator[str]:
    if report.total and not outcomes:
        yield (
            '<p class="note">This batch kept its totals only, so there is neither a timeline '
            "nor a table of its documents.</p>"
        )
