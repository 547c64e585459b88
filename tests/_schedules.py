"""Schedules for the model: what several uploads of one client run into, drawn by hypothesis.

A schedule is plain data, so that a failing one shrinks to the few faults that matter and prints
as what can be pasted into a test.
"""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import strategies as st

from _faults import Content, Fault, Hold, Point, Seen
from meeting_async import RetryPolicy
from meeting_async._policies import Delivery

ROOMS = ("room01", "room02")


@attrs.frozen(kw_only=True)
class Job:
    """One upload: what is asked for, and what happens to its attempts."""

    room: str = ROOMS[0]
    delay: float = 0.0
    """Seconds until it is asked for."""
    delivery: Delivery = "at_most_once"
    size: int = 30
    comes_once: bool = False
    """The document is a stream that is sent as it comes, so there is no second attempt."""
    max_wait: float | None = None
    deadline: float | None = None
    cancelled_after: float | None = None
    """Seconds until its caller gives up."""
    faults: tuple[Fault, ...] = ()
    """One for each attempt; further attempts meet none."""


@attrs.frozen(kw_only=True)
class Schedule:
    """Everything that is not up to the client."""

    jobs: tuple[Job, ...]
    holds: tuple[tuple[Hold, ...], tuple[Hold, ...]] = ((), ())
    """Uploads of others, per room."""
    retry: RetryPolicy = RetryPolicy()  # noqa: RUF009 - frozen


def _one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


_points = st.one_of(
    st.just(Point(0)),
    st.builds(Point, _one_of(1, 5, 39, 40, 41, 45, 60)),
    st.builds(Point, _one_of(0, 1, 60, 200, 70_000, 150_000), st.just(False)),
)
"""Anywhere in a form, and more often around its closing boundary, which has 40 bytes."""
_early_points = _one_of(Point(0, from_end=False), Point(60, from_end=False), Point(60), Point(40))
"""Before the closing boundary, whatever the size of the form."""
_hints = _one_of("0", "1.5", "50", "9999999999")
_junk = _one_of(None, "soon", "-1", "1e400")
_foreign = _one_of(Content.HTML, Content.NOTHING, Content.NO_STATUS, Content.TEXT_STATUS)

_sending = _one_of(0.0, 0.0, 0.25, 1.0, 9.0)
_after = _one_of(0.0, 1.0, 29.0, 60.0, 329.0, 331.0)
_processing = _one_of(0.0, 1.0, 60.0, 299.0, 299.999, 300.0, 300.001, 320.0, 400.0)
_lingering = _one_of(0.0, 0.0, 0.3, 200.0)


def _answers(**how: st.SearchStrategy[Any]) -> st.SearchStrategy[Fault]:
    return st.builds(Fault, seen=st.just(Seen.ANSWER), **how)


_own_replies = st.builds(
    Fault,
    missing=_one_of(0, 0, 0, 1, 30),
    connecting=_one_of(0.0, 1.0, 11.0),
    sending=_sending,
    processing=_processing,
    lingering=_lingering,
    converts=_one_of(True, True, False),
)
_losses = st.builds(
    Fault,
    seen=_one_of(Seen.RESET, Seen.SILENCE),
    point=_points,
    sending=_sending,
    after=_after,
    processing=_processing,
    converts=st.booleans(),
)
_foreign_answers = _answers(
    point=_points,
    forwarded=st.booleans(),
    status=_one_of(504, 502, 503, 500, 408, 200, 201),
    content=_foreign,
    retry_after=_junk,
    after=_after,
    processing=_processing,
)
_refusals = _answers(
    point=_points,
    forwarded=st.just(False),  # who refuses a form has not taken it
    status=_one_of(409, 409, 413, 400, 401, 307, 500, 200),
    content=st.just(Content.REFUSAL),
    sending=_sending,
)
_pleas = _answers(
    point=_points,
    forwarded=st.just(False),
    status=_one_of(429, 503),
    content=_one_of(*Content),
    retry_after=_hints,
)
_lies = _answers(
    point=_early_points, status=_one_of(200, 200, 201), content=st.just(Content.SUCCESS)
)
_no_connections = st.builds(Fault, seen=st.just(Seen.REFUSED), connecting=_one_of(0.0, 1.0, 11.0))

faults = st.one_of(
    _losses, _own_replies, _foreign_answers, _refusals, _pleas, _no_connections, _lies
)

jobs = st.builds(
    Job,
    room=_one_of(ROOMS[0], ROOMS[0], ROOMS[1]),
    delay=_one_of(0.0, 0.0, 0.5, 10.0, 299.0, 301.0),
    delivery=_one_of("at_most_once", "at_least_once"),
    size=_one_of(30, 1, 30, 140_000),
    comes_once=_one_of(False, False, False, True),
    max_wait=_one_of(None, None, 0.0, 5.0, 60.0),
    deadline=_one_of(*[None] * 6, 0.25, 10.0, 299.5, 300.5, 700.0),
    cancelled_after=_one_of(*[None] * 12, 0.0, 0.25, 5.0, 100.0, 310.0),
    faults=st.lists(faults, max_size=4).map(tuple),
)

_holds = st.lists(
    st.builds(Hold, _one_of(0.0, 2.0, 290.0, 300.0, 310.0), _one_of(0.4, 20.0, 299.0, 300.0)),
    max_size=3,
).map(tuple)

schedules = st.builds(
    Schedule,
    jobs=st.lists(jobs, min_size=1, max_size=4).map(tuple),
    holds=st.tuples(_holds, _holds),
    retry=st.builds(
        RetryPolicy, max_attempts=_one_of(5, 5, 2, 1), max_interruptions=_one_of(2, 0, 1)
    ),
)
