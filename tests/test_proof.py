"""Delivery that can be proved: no schedule of faults, however malicious, breaks a promise."""

from __future__ import annotations

from hypothesis import given, settings

from _invariants import played
from _schedules import Schedule, schedules


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(schedules)
def test_promises(schedule: Schedule) -> None:
    """Every one."""
    played(schedule).check()
