"""What a batch has done so far: totals, and the outcome of every job."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter

import attrs

from meeting_async._batch.jobs import Status, UploadOutcome
from meeting_async.errors import BatchFailed


@attrs.define(kw_only=True, repr=False)
class BatchReport:
    """The account of a batch, so far. Sizes are bytes, times seconds."""

    seconds: float = 0.0
    """How long the batch took."""
    stopped_by: Exception | None = None
    """The error that ended the batch early because every further job would meet it, such as a
    wrong key, or what reading the jobs raised; else ``None``."""
    bytes_delivered: int = 0
    """Bytes of the documents that were accepted."""
    bytes_sent: int = 0
    """Bytes of documents that were sent, delivered or not."""
    bytes_resent: int = 0
    """Those that were sent more than once."""
    waited: float = 0.0
    """Time spent waiting for rooms, summed over all jobs."""
    conflicts: int = 0
    """How often a document was refused because its room was locked (409)."""
    already_delivered: int = 0
    """Jobs that were skipped because, by the journal, an earlier run had them accepted."""
    _keep: bool = attrs.field(default=True, alias="keep")
    _counts: Counter[Status] = attrs.field(factory=Counter, init=False)
    _outcomes: list[UploadOutcome] = attrs.field(factory=list, init=False)
    _first_bad: UploadOutcome | None = attrs.field(default=None, init=False)

    def add(self, outcome: UploadOutcome) -> None:
        """Account for a job that has ended."""
        self._counts[outcome.status] += 1
        self.bytes_sent += outcome.bytes_sent
        self.bytes_resent += outcome.bytes_resent
        self.waited += outcome.waited
        self.conflicts += outcome.conflicts
        self.already_delivered += outcome.status == "skipped" and outcome.delivered
        if outcome.status == "accepted":
            self.bytes_delivered += outcome.size or 0
        if not outcome.delivered and self._first_bad is None:
            self._first_bad = outcome
        if self._keep:
            self._outcomes.append(outcome)

    def __repr__(self) -> str:
        names = ("accepted", "already_delivered", "refused", "failed", "unknown", "skipped")
        counts = ", ".join(f"{count:,} {name}" for name in names if (count := getattr(self, name)))
        stopped = f", stopped by {type(self.stopped_by).__name__}" if self.stopped_by else ""
        found = f": {counts}" if counts else ""
        return f"<BatchReport of {self.total:,} jobs in {self.seconds:.1f} s{found}{stopped}>"

    @property
    def outcomes(self) -> list[UploadOutcome]:
        """All outcomes so far in the order of the input; empty with ``keep_outcomes=False``."""
        return sorted(self._outcomes, key=attrgetter("index"))

    @property
    def total(self) -> int:
        """Jobs that have an outcome."""
        return self._counts.total()

    @property
    def accepted(self) -> int:
        """Jobs whose document the server accepted in this run."""
        return self._counts["accepted"]

    @property
    def refused(self) -> int:
        """Jobs refused by the server or by a local check; fix the cause before retrying."""
        return self._counts["refused"]

    @property
    def failed(self) -> int:
        """Jobs whose document did not reach its room."""
        return self._counts["failed"]

    @property
    def unknown(self) -> int:
        """Jobs whose document may or may not have reached its room."""
        return self._counts["unknown"]

    @property
    def skipped(self) -> int:
        """Jobs that were not tried, :attr:`already_delivered` included."""
        return self._counts["skipped"]

    def raise_for_failures(self) -> None:
        """Raise unless every document is in its room.

        Raises:
            BatchFailed: With the numbers, and the first job that failed.

        """
        if self._first_bad is None and self.stopped_by is None:
            return
        first = self._first_bad
        error = BatchFailed(
            total=self.total,
            refused=self.refused,
            failed=self.failed,
            unknown=self.unknown,
            skipped=self.skipped - self.already_delivered,
            first=f"{first.document!r} for room {first.room_id!r}: {first.error}"
            if first
            else repr(self.stopped_by),
        )
        raise error from (first.error if first else self.stopped_by)
