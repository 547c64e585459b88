"""What all calls of a client together may spend on repeating themselves. Pure.

A token bucket as in the AWS SDKs' standard mode: as long as most calls succeed, repeating is free;
against a server that fails everybody, the bucket runs empty, and calls end with their own error
instead of doubling the load.
"""

from __future__ import annotations

import attrs

CAPACITY = 500.0
"""Tokens of a full bucket: enough for 100 repetitions in a row without a success."""

REPETITION_COST = 5.0
SUCCESS_REFUND = 1.0
"""For a call that succeeded at once; one that succeeded repeated gets its last repetition back."""


@attrs.define
class RetryBudget:
    """The tokens of one client."""

    tokens: float = CAPACITY

    def take(self) -> bool:
        """Pay for one repetition; ``False`` if there is not enough left."""
        if self.tokens < REPETITION_COST:
            return False
        self.tokens -= REPETITION_COST
        return True

    def refund(self, *, repeated: bool) -> None:
        """Put back what a success earns."""
        earned = REPETITION_COST if repeated else SUCCESS_REFUND
        self.tokens = min(self.tokens + earned, CAPACITY)
