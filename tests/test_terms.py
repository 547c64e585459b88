"""The arguments of a batch: each is checked before anything happens, and named."""

from __future__ import annotations

from typing import Any

import pytest

from meeting_async import Document, UploadJob
from meeting_async._terms import Terms
from meeting_async.errors import ConfigurationError, InvalidInput


def test_defaults() -> None:
    """What is not said: 32 at a time, nothing sent again, nothing waited for but locks."""
    terms = Terms()
    assert (terms.concurrency, terms.window, terms.keep_outcomes) == (32, 10_000, True)
    assert (terms.journal, terms.wait_active, terms.max_wait, terms.deadline) == (None,) * 4
    assert not terms.resends_unknown
    assert Terms(on_unknown="resend").resends_unknown


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("concurrency", value) for value in (0, -1, 1.0, True, "32", None)),
        *(("window", value) for value in (0, -5, 2.5, False)),
        *(("on_unknown", value) for value in ("", "ignore", None, ["report"])),
        *((name, value) for name in ("wait_active", "deadline") for value in (0, -1, "9", True)),
        *(("max_wait", value) for value in (-1, "9", True, float("nan"))),
    ],
)
def test_what_cannot_be_used(field: str, value: Any) -> None:
    """The error names the argument and what was given."""
    with pytest.raises((InvalidInput, ConfigurationError)) as caught:
        Terms(**{field: value})
    assert caught.value.field == field
    assert caught.value.value == repr(value)


@pytest.mark.parametrize("seconds", [0.001, 1, 3600.0])
def test_what_can_be_used(seconds: float) -> None:
    """Seconds may be whole or not; a wait of nothing is one, too."""
    Terms(wait_active=seconds, deadline=seconds, max_wait=seconds, concurrency=1, window=1)
    Terms(max_wait=0)


def test_a_job_is_a_value_that_shows_no_content() -> None:
    """It compares by what it asks for, and its repr is short."""
    job = UploadJob("room01", b"secret" * 1000, filename="a.pdf", key="7")
    assert job == UploadJob("room01", b"secret" * 1000, filename="a.pdf", key="7")
    assert "secret" not in repr(job)
    assert UploadJob("room01", Document.from_bytes(b"x", "a.pdf")).filename is None
