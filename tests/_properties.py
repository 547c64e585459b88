"""One way to run hypothesis for all property tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

fuzz = settings(
    deadline=None,  # a busy machine is no bug; pytest's own timeout ends what hangs
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow],
)
"""Decorates a property."""
