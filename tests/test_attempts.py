"""What is remembered of an attempt: a frozen value with no room for a secret."""

from __future__ import annotations

import pickle

import attrs
import pytest

from meeting_async._attempts import Attempt


def test_an_attempt_tells_what_was_tried_and_seen() -> None:
    """In this order; an attempt of a JSON call has no document."""
    attempt = Attempt(2, 0.75, 12.5, "unknown", None, "silence")
    assert attrs.asdict(attempt) == {
        "number": 2,
        "started": 0.75,
        "seconds": 12.5,
        "verdict": "unknown",
        "status": None,
        "reason": "silence",
        "bytes_sent": 0,
        "body_seconds": None,
    }
    assert Attempt(1, 0.0, 0.5, "busy", 409, "HTTP 409", 4096).bytes_sent == 4096


def test_an_attempt_is_a_frozen_value() -> None:
    """It compares, hashes, and travels with its error between processes."""
    attempt = Attempt(1, 0.0, 0.5, "busy", 409, "HTTP 409", bytes_sent=4096)
    assert attempt == pickle.loads(pickle.dumps(attempt))
    assert hash(attempt) == hash(attrs.evolve(attempt))
    for field in attrs.fields(Attempt):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(attempt, field.name, None)
