"""Schedules for the model: what several uploads of one client run into, drawn by hypothesis.

A schedule is plain data, so that a failing one shrinks to the few faults that matter and prints
as what can be pasted into a test.
"""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import strategies as st

from _model import Content, Fault, Hold, Point, Seen, is_refusal
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


_short = _one_of(0.0, 0.25, 1.0, 9.0)
_any_time = _one_of(0.0, 1.0, 60.0, 299.0, 299.999, 300.0, 300.001, 320.0, 400.0)

_points = st.one_of(
    st.just(Point(0)),
    st.builds(Point, _one_of(0, 1, 5, 39, 40, 41, 45, 60)),
    st.builds(Point, _one_of(0, 1, 60, 200, 70_000, 150_000), st.just(False)),
)
_STATUSES = (504, 502, 503, 500, 408, 200, 201, 429, 409, 413, 400, 401, 307)


def _honest(fault: Fault) -> Fault:
    """Keep an answer from lying: what refuses a form has not taken it, nor does a half one do."""
    if fault.seen is not Seen.ANSWER:
        return fault
    if is_refusal(fault.status, fault.content.value, fault.retry_after):
        return attrs.evolve(fault, forwarded=False)
    if fault.content is Content.SUCCESS and fault.status == 200 and not _is_early(fault.point):
        return attrs.evolve(fault, content=Content.TEXT_STATUS)
    return fault


def _is_early(point: Point) -> bool:
    """Tell whether the closing boundary stays behind, whatever the size of the form."""
    return point.offset >= 60 if point.from_end else point.offset <= 60


faults = st.builds(
    Fault,
    seen=_one_of(Seen.RESET, Seen.REPLY, Seen.ANSWER, Seen.SILENCE, Seen.REPLY, Seen.REFUSED),
    point=_points,
    forwarded=st.booleans(),
    status=_one_of(*_STATUSES),
    content=_one_of(*Content),
    retry_after=_one_of(None, None, "0", "1.5", "50", "9999999999", "soon"),
    missing=_one_of(0, 0, 1, 30),
    connecting=_one_of(0.0, 0.0, 1.0, 11.0),
    sending=_short,
    after=_one_of(0.0, 1.0, 29.0, 60.0, 329.0, 331.0),
    processing=_any_time,
    lingering=_one_of(0.0, 0.3, 200.0),
    converts=_one_of(True, True, True, False),
).map(_honest)

jobs = st.builds(
    Job,
    room=_one_of(ROOMS[0], ROOMS[0], ROOMS[1]),
    delay=_one_of(0.0, 0.0, 0.5, 10.0, 299.0, 301.0),
    delivery=_one_of("at_most_once", "at_least_once"),
    size=_one_of(30, 1, 30, 140_000),
    max_wait=_one_of(None, None, 0.0, 5.0, 60.0),
    deadline=_one_of(None, None, 0.25, 10.0, 299.5, 300.5, 700.0),
    cancelled_after=_one_of(None, None, None, 0.0, 0.25, 5.0, 100.0, 310.0),
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
