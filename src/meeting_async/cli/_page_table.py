"""What became of every document, in the order of the input: one row each."""

from __future__ import annotations

from collections.abc import Sequence

from meeting_async._jobs import UploadOutcome
from meeting_async.cli._amounts import size
from meeting_async.cli._markup import plain
from meeting_async.cli._reasons import Reason

SIGNS = {
    "accepted": "✓",
    "resumed": "✓",
    "refused": "✕",
    "failed": "✕",
    "unknown": "?",
    "skipped": "○",
}
"""Beside the words, for those who look through many rows."""

_COLUMNS = (
    ("n", "#"),
    ("r", "Room"),
    ("d", "Document"),
    ("b", "Size"),
    ("o", "Outcome"),
    ("a", "Attempts"),
    ("s", "Seconds"),
    ("m", "Message"),
)


def word_for(outcome: UploadOutcome) -> str:
    """Name what became of a document, what an earlier run delivered apart from what was skipped."""
    return "resumed" if outcome.status == "skipped" and outcome.is_good else outcome.status


def message_of(outcome: UploadOutcome) -> str:
    """Return what the server or the error said; an error that skipped it is about another one."""
    if outcome.error is not None:
        reason = str(Reason.of(outcome.error))
        return reason if outcome.status == "skipped" else str(outcome.error) or reason
    if outcome.receipt is not None:
        return outcome.receipt.msg
    return "accepted in an earlier run" if word_for(outcome) == "resumed" else ""


def table(outcomes: Sequence[UploadOutcome]) -> str:
    """Make the table with its heading; what the script uses is hidden until it runs."""
    if not outcomes:
        return ""
    head = "".join(f'<th scope="col" class="{name}">{title}</th>' for name, title in _COLUMNS)
    columns = "".join(f'<col class="{name}">' for name, _ in _COLUMNS)
    return "\n".join(
        [
            '<section id="outcomes">',
            "<h2>All documents</h2>",
            _filter(outcomes),
            '<table><caption class="unseen">Every document in the order of the input</caption>',
            f"<colgroup>{columns}</colgroup>",
            f"<thead><tr>{head}</tr></thead>",
            "<tbody>",
            *map(_row, outcomes),
            "</tbody></table>",
            "</section>",
        ]
    )


def _row(outcome: UploadOutcome) -> str:
    word, bytes_ = word_for(outcome), outcome.size
    shown = "" if bytes_ is None else f'<data value="{bytes_}">{size(bytes_)}</data>'
    number = outcome.index + 1
    return (
        f'<tr id="n{number}" class="{word}"><td>{number}</td>'
        f'<th scope="row">{plain(outcome.room_id)}</th><td>{plain(outcome.document)}</td>'
        f"<td>{shown}</td><td>{SIGNS[word]} {word}</td><td>{len(outcome.attempts)}</td>"
        f"<td>{outcome.seconds:.2f}</td><td>{plain(message_of(outcome))}</td></tr>"
    )


def _filter(outcomes: Sequence[UploadOutcome]) -> str:
    words = {word_for(outcome) for outcome in outcomes}
    options = "".join(f"<option>{word}</option>" for word in SIGNS if word in words)
    return (
        '<form id="filter" hidden><label>Show <select name="outcome">'
        f'<option value="">every outcome</option>{options}</select></label>'
        '<label>with <input name="words" type="search" placeholder="room, document or message">'
        '</label><output aria-live="polite"></output></form>'
    )
