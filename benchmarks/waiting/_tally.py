"""What is counted in a simulation, and the figures that follow from it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import attrs


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is not exceeded by so large a share of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@attrs.define
class Tally:
    """Sums over all rounds. Times are seconds, sizes are bytes."""

    mean_hold: float
    """Of the distribution of holding times."""
    idles: list[float] = attrs.field(factory=list)
    """From each release to the next taking of the lock, if anybody was waiting."""
    lags: list[float] = attrs.field(factory=list)
    """From each release to the beginning of the body that took the lock; 0 if it began before."""
    waits: list[float] = attrs.field(factory=list)
    """From the beginning of each upload's first attempt to its taking of the lock."""
    bytes_sent: int = 0
    bytes_refused: int = 0
    """Of documents: sent in vain, and so sent again."""
    bytes_probed: int = 0
    bytes_delivered: int = 0
    seconds_waited: float = 0.0
    """Sum of all waits, also of those that are not listed."""
    seconds_refused: float = 0.0
    """Spent on sending bodies that were refused."""
    refusals: int = 0
    """Of bodies."""
    simulated: float = 0.0

    def refused(self, size: int, seconds: float) -> None:
        """Count a body that was sent in vain."""
        self.bytes_sent += size
        self.bytes_refused += size
        self.seconds_refused += seconds
        self.refusals += 1

    def delivered(self, size: int, *, waited: float, counts: bool) -> None:
        """Count a body that was accepted."""
        self.bytes_sent += size
        self.bytes_delivered += size
        self.seconds_waited += waited
        if counts:
            self.waits.append(waited)

    def probed(self, size: int) -> None:
        """Count a probe."""
        self.bytes_sent += size
        self.bytes_probed += size

    def found_free(self, *, released: float, began: float, taken: float) -> None:
        """Count the end of a wait for a release."""
        self.idles.append(max(0.0, taken - released))
        self.lags.append(max(0.0, began - released))

    @property
    def idle(self) -> float:
        """Mean seconds for which a released room stands idle."""
        return statistics.fmean(self.idles)

    @property
    def idle_share(self) -> float:
        """That, as a share of the mean holding time."""
        return self.idle / self.mean_hold

    @property
    def lag(self) -> float:
        """Mean seconds after which the body that takes the room begins."""
        return statistics.fmean(self.lags)

    @property
    def resent(self) -> float:
        """Bytes of documents sent again, for each byte delivered."""
        return self.bytes_refused / self.bytes_delivered

    @property
    def probed_share(self) -> float:
        """Bytes of probes, for each byte delivered."""
        return self.bytes_probed / self.bytes_delivered

    @property
    def resending(self) -> float:
        """Share of the time from first attempt to lock that is spent on bodies sent in vain."""
        return self.seconds_refused / self.seconds_waited

    def wait(self, share: float) -> float:
        """Return a percentile of the waiting times, in seconds."""
        return percentile(self.waits, share)
