"""What of a batch needs somebody's attention, the most urgent first, grouped by its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meeting_async._jobs import Status, UploadOutcome
from meeting_async._report import BatchReport
from meeting_async.cli._amounts import counted
from meeting_async.cli._markup import isolated, plain
from meeting_async.cli._reasons import Reason

MOST_LISTED = 100
"""Documents named in a group; all of them are in the table."""

MOST_OPEN = 10
"""A group up to so large is unfolded from the start."""

_TITLES: dict[Status, str] = {
    "unknown": "May or may not have arrived",
    "refused": "Refused",
    "failed": "Failed",
    "skipped": "Not tried",
}
"""The most urgent first."""

_ADVICE: dict[Status, str] = {
    "unknown": "Sent completely, but no valid answer came back. Look into the room before "
    "sending one again: if it is there already, the room sees it twice.",
    "refused": "The server or a check said no, and would say so again. Mend the cause before "
    "sending these again.",
    "failed": "These did not reach their rooms. Sending them again is safe.",
    "skipped": "Not sent, as something before them had failed. Once that is mended, sending "
    "them is safe.",
}


def attention(report: BatchReport, outcomes: Iterable[UploadOutcome]) -> str:
    """Tell what stopped the batch, and what is not in its room; nothing if all is well."""
    bad = [outcome for outcome in outcomes if not outcome.is_good]
    parts = [*_stop(report.stopped_by)]
    for status, title in _TITLES.items():
        mine = [outcome for outcome in bad if outcome.status == status]
        if mine:
            heading = f"<h3>{title}: {len(mine):,}</h3><p>{_ADVICE[status]}</p>"
            parts.append(f'<section class="{status}">{heading}')
            parts += (_group(reason, group) for reason, group in grouped(mine))
            parts.append("</section>")
    if not parts:
        return ""
    return "\n".join(['<section id="attention">', "<h2>Needs attention</h2>", *parts, "</section>"])


def _stop(error: Exception | None) -> Iterator[str]:
    if error is not None:
        what = str(error) or type(error).__name__
        yield f'<section class="stop"><h3>The batch was stopped</h3><p>{plain(what)}</p>'
        yield _hints(error)
        yield "</section>"


def grouped(outcomes: Iterable[UploadOutcome]) -> list[tuple[Reason, list[UploadOutcome]]]:
    """Put together what has the same reason, the largest group first."""
    groups: dict[Reason, list[UploadOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault(Reason.of(outcome.error), []).append(outcome)
    return sorted(groups.items(), key=lambda item: -len(item[1]))


def _group(reason: Reason, outcomes: Sequence[UploadOutcome]) -> str:
    rooms = len({outcome.room_id for outcome in outcomes})
    where = f"{counted(len(outcomes), 'document')} in {counted(rooms, 'room')}"
    detail = f": {isolated(reason.detail)}" if reason.detail else ""
    items = "".join(map(_item, outcomes[:MOST_LISTED]))
    if (more := len(outcomes) - MOST_LISTED) > 0:
        items += f'<li>and {more:,} more, all in the <a href="#outcomes">table</a></li>'
    return (
        f"<details{' open' if len(outcomes) <= MOST_OPEN else ''}>"
        f"<summary><b>{plain(reason.kind)}</b>{detail} <small>{where}</small></summary>"
        f"{_hints(outcomes[0].error)}<ul>{items}</ul></details>"
    )


def _item(outcome: UploadOutcome) -> str:
    room, name = isolated(outcome.room_id), isolated(outcome.document)
    return f'<li>{room}: <a href="#n{outcome.index + 1}">{name}</a></li>'


def _hints(error: Exception | None) -> str:
    return "".join(f"<p>{plain(note)}</p>" for note in getattr(error, "__notes__", ()))
