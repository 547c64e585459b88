"""The account of the demonstration's batch: what its two runs did, and what the rooms received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from rich.box import SIMPLE_HEAD
from rich.table import Table

from meeting_async import BatchReport, UploadOutcome, errors

if TYPE_CHECKING:
    from meeting_async.cli._demo_report import Made
    from meeting_async.testing import ReceivedFile


@attrs.frozen
class Account:
    """What a batch was to do, beside what its two runs say and what the rooms have."""

    sent: Mapping[str, Sequence[Made]]
    """The documents of each room, in their order."""
    received: Mapping[str, Sequence[ReceivedFile]]
    """Those of each room that there is, in the order in which they came."""
    first: BatchReport
    """Of the run that was stopped."""
    second: BatchReport
    """Of the run of the same jobs, with the same journal."""
    locked: str
    """The room that somebody else held at first."""
    absent: str
    """The room that is not there."""

    @property
    def rooms(self) -> list[str]:
        """The rooms that are to receive something."""
        return [room_id for room_id in self.sent if room_id != self.absent]

    @property
    def total(self) -> int:
        """Documents that have a room."""
        return sum(len(self.sent[room_id]) for room_id in self.rooms)

    def problems(self) -> Iterator[str]:
        """Tell everything that is not as expected."""
        yield from self._of_the_runs()
        for outcome in self.second.outcomes:
            is_absent = outcome.room_id == self.absent
            if not (_has_no_room(outcome) if is_absent else outcome.is_good):
                name = f"{outcome.document} to {outcome.room_id}"
                yield f"{name}: {outcome.status}: {outcome.error or 'the room was there'}"
        for room_id in self.rooms:
            yield from differences(room_id, self.sent[room_id], self.received.get(room_id, ()))

    def _of_the_runs(self) -> Iterator[str]:
        first, second = self.first, self.second
        if not 0 < first.accepted < self.total:
            yield f"the batch was stopped half-way: {first.accepted} of {self.total} accepted"
        if second.resumed != first.accepted:
            yield f"{first.accepted} accepted in the first run: {second.resumed} resumed"
        if first.accepted + second.accepted != self.total:
            yield f"{first.accepted} + {second.accepted} accepted: not {self.total}"
        outcomes = (*first.outcomes, *second.outcomes)
        if not any(outcome.conflicts for outcome in outcomes if outcome.room_id == self.locked):
            yield f"batch for {self.locked}: the room was not locked"

    def table(self) -> Table:
        """Show what each run did."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column("run", no_wrap=True)
        for title in ("accepted", "accepted before", "no such room", "left"):
            table.add_column(title, no_wrap=True, justify="right")
        for name, report in (("first, stopped", self.first), ("second", self.second)):
            roomless = sum(map(_has_no_room, report.outcomes))
            left = report.total - report.accepted - report.resumed - roomless
            numbers = (report.accepted, report.resumed, roomless, left)
            table.add_row(name, *(str(number) for number in numbers))
        return table


def _has_no_room(outcome: UploadOutcome) -> bool:
    return isinstance(outcome.error, errors.RoomNotFound)


def differences(
    room_id: str, sent: Sequence[Made], received: Sequence[ReceivedFile]
) -> Iterator[str]:
    """Tell how what a room received is not what was sent: each once, as it was, in order."""
    times = Counter(file.name for file in received)
    for made in sent:
        if times[made.name] != 1:
            what = f"received {times[made.name]} times" if times[made.name] else "missing"
            yield f"{made.name} in {room_id}: {what}"
    expected = {made.name: (made.size, made.sha256) for made in sent}
    for file in received:
        if file.name not in expected:
            yield f"{file.name} in {room_id}: unexpected"
        elif expected[file.name] != (file.size, file.sha256):
            yield f"{file.name} in {room_id}: differs"
    there = _once(file.name for file in received if file.name in expected)
    if there != [made.name for made in sent if made.name in times]:
        yield f"{room_id}: in the wrong order: {', '.join(there)}"


def _once(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
