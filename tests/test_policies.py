"""The arithmetic of waiting: spans and random numbers in, spans out."""

from __future__ import annotations

import math
from typing import Any, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _properties import fuzz
from meeting_async._policies import LockPolicy, Options, RetryPolicy, Timeouts, jittered
from meeting_async.errors import ConfigurationError

MIDDLE = 0.5
"""The random number that moves nothing."""


def delay(policy: LockPolicy, waited: float, **facts: Any) -> float | None:
    """Ask for a delay with little to say."""
    usual: dict[str, Any] = {"send_seconds": 0.0, "hint": None, "random": MIDDLE}
    return policy.delay(waited=waited, **usual | facts)


# --- waiting for a room --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waited", "expected"),
    [
        (0.0, 0.5),
        (0.125, 0.5),
        (0.5, 2.0),
        (1.0, 4.0),
        (1.875, 7.5),
        (10.0, 7.5),
        (120.0, 7.5),
        (150.0, 6.0),
        (240.0, 3.75),
        (298.0, 2.0),
        (299.8, 0.5),
        (300.0, 3.0),
        (327.0, 7.5 * 120 / 327),
        (328.0, 2.0),
        (329.9, 330.0 - 329.9),
        (330.0, None),
        (331.0, None),
    ],
)
def test_delay_grows_with_the_time_waited(waited: float, expected: float | None) -> None:
    """Four times that, from 0.5 s to 7.5 s; after 120 s it shrinks; the last is on the edge."""
    assert delay(LockPolicy(), waited) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("waited", "expected"), [(300.0, 3.0), (479.0, 7.5 * 120 / 479), (480.0, 1.875), (1e6, 1.875)]
)
def test_old_waiters_do_not_hammer(waited: float, expected: float) -> None:
    """A quarter of the longest delay is left to whoever waits on and on."""
    assert delay(LockPolicy(max_wait=math.inf), waited) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("waited", "send_seconds", "expected"),
    [
        (250.0, 0.0, 3.6),
        (297.0, 0.0, 3.0),
        (297.0, 1.0, 2.0),
        (297.0, 2.4, 0.6),
        (297.0, 2.6, 0.5),
        (297.0, 9.0, 0.5),
        (300.0, 9.0, 13.5),
        (0.0, 299.0, 1.0),
        (0.0, 800.0, 0.5),
        (1.0, 800.0, 0.5),
    ],
)
def test_no_body_ends_after_the_lock_must_have_ended(
    waited: float, send_seconds: float, expected: float
) -> None:
    """The lock of the first 409 lives for 300 s at most; jitter does not matter then."""
    policy = LockPolicy(max_wait=math.inf)
    assert delay(policy, waited, send_seconds=send_seconds) == pytest.approx(expected)
    late = delay(policy, waited, send_seconds=send_seconds, random=0.999)
    assert late is not None
    if waited < 300 and expected < 3.6:
        assert late == pytest.approx(expected)


def test_window_of_another_server() -> None:
    """A lock that lives for a minute is not waited for as if it lived for five."""
    assert delay(LockPolicy(window=60), 57.0, send_seconds=1.0) == pytest.approx(2.0)
    assert delay(LockPolicy(window=60), 60.0) == 7.5


def test_budget_and_window_of_the_interface() -> None:
    """Five minutes of lock (interface section 8) and a margin to notice its end."""
    policy = LockPolicy()
    assert (policy.max_wait, policy.window) == (330.0, 300.0)


@pytest.mark.parametrize(("send_seconds", "attempts"), [(0.0, 71), (10.0, 15)])
def test_waiting_out_the_budget_ends(send_seconds: float, attempts: int) -> None:
    """Sleeping exactly as told reaches the end of the budget and then stops."""
    policy, waited, delays = LockPolicy(), 0.0, []
    while (seconds := delay(policy, waited, send_seconds=send_seconds)) is not None:
        delays.append(seconds)
        waited += seconds + send_seconds
    assert waited == pytest.approx(policy.max_wait + send_seconds)
    assert len(delays) == attempts
    assert min(delays[:-1]) >= 0.5


def test_no_wait_means_no_wait() -> None:
    """``max_wait=0`` raises at once, hint or not."""
    assert delay(LockPolicy(max_wait=0), 0.0) is None
    assert delay(LockPolicy(max_wait=0), 0.0, hint=5.0) is None


def test_end_of_the_budget_forgives_rounding() -> None:
    """A float's rounding short of the end makes no further attempt; a real rest does."""
    assert delay(LockPolicy(max_wait=10), 10 - 1e-9) is None
    assert delay(LockPolicy(max_wait=10), 9.99) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("hint", "expected"),
    [(0.0, 0.5), (0.4, 0.5), (1.5, 1.5), (20.0, 20.0), (45.0, 45.0), (60.0, 60.0), (1e10, 60.0)],
)
def test_hint_wins_within_its_cap(hint: float, expected: float) -> None:
    """Retry-After is obeyed beyond ``max_delay``, yet never to hammer nor to sleep for hours."""
    assert delay(LockPolicy(), 50.0, hint=hint) == expected
    assert delay(LockPolicy(), 50.0, hint=hint, random=0.0, send_seconds=40.0) == expected


def test_hint_does_not_exceed_the_budget() -> None:
    """The server may ask for more than the caller has."""
    assert delay(LockPolicy(), 325.0, hint=60.0) == pytest.approx(5.0)
    assert delay(LockPolicy(), 330.0, hint=60.0) is None


def test_obeying_no_hint_is_no_hammering() -> None:
    """A cap of 0 on hints must not turn every hint into an attempt without any delay."""
    seconds = delay(LockPolicy(max_retry_after=0), 50.0, hint=30.0)
    assert seconds is not None
    assert seconds >= LockPolicy().min_delay


@pytest.mark.parametrize(
    ("waited", "send_seconds", "expected"),
    [
        (0.0, 0.4, 0.5),
        (0.0, 1.0, 0.75),
        (0.0, 10.0, 7.5),
        (1.0, 10.0, 7.5),
        (3.0, 10.0, 12.0),
        (17.5, 10.0, 15.0),
        (200.0, 10.0, 15.0),
        (50.0, 4.0, 7.5),
        (50.0, 6.0, 9.0),
        (0.0, 40.0, 30.0),
        (70.0, 40.0, 60.0),
    ],
)
def test_slow_line_stays_mostly_free(waited: float, send_seconds: float, expected: float) -> None:
    """Delays grow to 1.5 times what the body took, so that it takes 40 % of the time."""
    seconds = delay(LockPolicy(), waited, send_seconds=send_seconds)
    assert seconds == pytest.approx(expected)


@pytest.mark.parametrize(
    ("line_share", "first", "grown"), [(0.5, 5.0, 10.0), (0.2, 20.0, 40.0), (1, 0.5, 7.5)]
)
def test_share_of_a_slow_line(line_share: float, first: float, grown: float) -> None:
    """With half of the line a body of 10 s is followed by 10 s; with all of it speed is no matter.

    The first delay is half of the later ones, or the shortest there is.
    """
    policy = LockPolicy(line_share=line_share)
    assert delay(policy, 0.0, send_seconds=10.0) == pytest.approx(first)
    assert delay(policy, 50.0, send_seconds=10.0) == pytest.approx(grown)


@pytest.mark.parametrize(
    ("waited", "expected"), [(0.0, 0.5), (0.25, 1.0), (0.5, 2.0), (50.0, 2.0), (299.5, 2.0)]
)
def test_probes_come_every_two_seconds(waited: float, expected: float) -> None:
    """However slow the line is and however long one has waited: a probe costs next to nothing."""
    for send_seconds in (0.0, 10.0, 800.0):
        seconds = delay(LockPolicy(probe=True), waited, send_seconds=send_seconds, probing=True)
        assert seconds == pytest.approx(expected)


def test_probing_has_its_own_interval_and_the_same_budget() -> None:
    """Jitter, hint and budget are as ever; ``probe`` by itself says nothing about a delay."""
    policy = LockPolicy(probe=True, probe_interval=4.0)
    assert delay(policy, 50.0, probing=True) == 4.0
    assert delay(policy, 50.0, probing=True, random=0.0) == 3.0
    assert delay(policy, 50.0, probing=True, hint=30.0) == 30.0
    assert delay(policy, 329.0, probing=True) == pytest.approx(1.0)
    assert delay(policy, 330.0, probing=True) is None
    assert delay(policy, 50.0) == delay(LockPolicy(), 50.0) == 7.5
    assert delay(LockPolicy(probe_interval=0.1), 50.0, probing=True) == pytest.approx(0.1)


def test_probing_is_off_unless_asked_for() -> None:
    """How a server answers an empty form is not specified."""
    assert LockPolicy().probe is False


@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_probe_is_a_switch(value: Any) -> None:
    """A number of seconds belongs elsewhere."""
    with pytest.raises(ConfigurationError) as caught:
        LockPolicy(probe=value)
    assert caught.value.field == "probe"


@pytest.mark.parametrize(
    ("random", "expected"), [(0.0, 5.625), (0.25, 6.5625), (0.5, 7.5), (1.0, 9.375)]
)
def test_jitter_is_a_quarter_each_way(random: float, expected: float) -> None:
    """Waiters of one moment do not march in step."""
    assert delay(LockPolicy(), 50.0, random=random) == pytest.approx(expected)
    assert jittered(7.5, random, spread=0.25) == pytest.approx(expected)
    assert delay(LockPolicy(jitter=0), 50.0, random=random) == 7.5


def test_settings_change_the_delay() -> None:
    """Each setting means what it says."""
    policy = LockPolicy(
        growth=0.5, min_delay=2.0, max_delay=8.0, patience=160.0, max_retry_after=3.0
    )
    found = [delay(policy, waited) for waited in (0.0, 10.0, 100.0, 160.0, 200.0)]
    assert found == pytest.approx([2.0, 5.0, 8.0, 8.0, 6.4])
    assert delay(policy, 10.0, hint=30.0) == 3.0
    assert delay(LockPolicy(patience=math.inf), 250.0) == 7.5
    assert delay(LockPolicy(min_delay=30.0), 50.0) == 30.0


seconds_of_a_day = st.floats(0, 86_400)
positive = st.floats(0.001, 86_400)
policies = st.builds(
    LockPolicy,
    max_wait=seconds_of_a_day,
    window=seconds_of_a_day,
    growth=st.floats(0.001, 10),
    min_delay=positive,
    max_delay=positive,
    line_share=st.floats(0.001, 1),
    patience=positive | st.just(math.inf),
    probe_interval=positive,
    max_retry_after=seconds_of_a_day,
    jitter=st.floats(0, 1),
)


facts = st.fixed_dictionaries(
    {
        "send_seconds": seconds_of_a_day,
        "hint": st.none() | st.floats(0, 1e12),
        "random": st.floats(0, 1, exclude_max=True),
        "probing": st.booleans(),
    }
)


@fuzz
@given(policies, seconds_of_a_day, facts)
def test_no_delay_is_negative_or_leaves_the_budget(
    policy: LockPolicy, waited: float, facts: dict[str, Any]
) -> None:
    """Whatever the settings and the server say."""
    seconds = policy.delay(waited=waited, **facts)
    if seconds is None:
        assert policy.max_wait - waited < 0.001
        return
    assert seconds >= 0
    assert waited + seconds <= math.nextafter(policy.max_wait, math.inf)
    if facts["hint"] is not None:
        assert seconds <= max(policy.max_retry_after, policy.min_delay)


@fuzz
@given(policies, seconds_of_a_day, st.floats(0, 1, exclude_max=True))
def test_jitter_stays_within_its_bounds(policy: LockPolicy, waited: float, random: float) -> None:
    """A delay is off the undisturbed one by at most the share that ``jitter`` says."""
    policy = attrs.evolve(policy, max_wait=math.inf, window=0.0)
    calm = delay(attrs.evolve(policy, jitter=0.0), waited)
    moved = delay(policy, waited, random=random)
    assert calm is not None
    assert moved is not None
    spread = policy.jitter + 1e-9
    assert calm * (1 - spread) <= moved <= calm * (1 + spread)


# --- repeating -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failures", "low", "high"),
    [
        (1, 0.25, 0.5),
        (2, 0.5, 1.0),
        (3, 1.0, 2.0),
        (6, 8.0, 16.0),
        (7, 10.0, 20.0),
        (10, 10.0, 20.0),
        (10**9, 10.0, 20.0),
    ],
)
def test_backoff_doubles_to_its_cap(failures: int, low: float, high: float) -> None:
    """Between half and all of the doubled delay; no number of failures is too large for it."""
    policy = RetryPolicy()
    assert policy.backoff(failures=failures, hint=None, random=0.0) == low
    assert policy.backoff(failures=failures, hint=None, random=0.5) == (low + high) / 2
    assert policy.backoff(failures=failures, hint=None, random=1.0) == high


@pytest.mark.parametrize(
    ("hint", "expected"), [(0.0, 0.0), (1.5, 1.5), (60.0, 60.0), (60.1, 60.0), (1e10, 60.0)]
)
def test_backoff_obeys_a_hint_up_to_its_cap(hint: float, expected: float) -> None:
    """Retry-After wins over doubling, whatever the failures and the dice."""
    for failures in (1, 9):
        for random in (0.0, 1.0):
            assert RetryPolicy().backoff(failures=failures, hint=hint, random=random) == expected


def test_backoff_settings() -> None:
    """Each setting means what it says."""
    policy = RetryPolicy(initial_delay=2.0, max_delay=5.0, max_retry_after=1.0)
    assert [policy.backoff(failures=n, hint=None, random=1.0) for n in (1, 2, 3)] == [2.0, 4.0, 5.0]
    assert policy.backoff(failures=1, hint=9.0, random=1.0) == 1.0


@fuzz
@given(
    st.builds(
        RetryPolicy,
        initial_delay=positive,
        max_delay=st.just(math.inf) | positive,
        max_retry_after=seconds_of_a_day,
    ),
    st.integers(1, 10**6),
    st.none() | st.floats(0, 1e12),
    st.floats(0, 1, exclude_max=True),
)
def test_backoff_stays_within_its_bounds(
    policy: RetryPolicy, failures: int, hint: float | None, random: float
) -> None:
    """Never negative, never above the cap that applies, never infinite."""
    seconds = policy.backoff(failures=failures, hint=hint, random=random)
    assert 0 <= seconds <= (policy.max_delay if hint is None else policy.max_retry_after)
    assert math.isfinite(seconds)


# --- settings ------------------------------------------------------------------------------------

NOT_SECONDS: list[Any] = [-0.001, -1, math.nan, "5", None, True, [], 1j]
SECONDS = {LockPolicy: ("max_wait", "window", "max_retry_after"), RetryPolicy: ("max_retry_after",)}
ABOVE_0 = {
    LockPolicy: (*("growth", "min_delay", "max_delay", "patience", "probe_interval"),),
    RetryPolicy: ("initial_delay", "max_delay"),
    Timeouts: ("connect", "send_stall", "reply", "upload_reply"),
}


def rows(table: dict[Any, tuple[str, ...]], values: list[Any]) -> list[Any]:
    """Cross the table's fields with values."""
    return [
        pytest.param(kind, field, value, id=f"{kind.__name__}.{field}={value!r}")
        for kind, fields in table.items()
        for field in fields
        for value in values
    ]


COUNTS: dict[Any, tuple[str, ...]] = {RetryPolicy: ("max_attempts", "max_interruptions")}


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    rows(SECONDS, NOT_SECONDS)
    + rows(ABOVE_0, [0, *NOT_SECONDS])
    + rows({LockPolicy: ("jitter",)}, [1.001, math.inf, *NOT_SECONDS])
    + rows({LockPolicy: ("line_share",)}, [0, 1.001, math.inf, *NOT_SECONDS])
    + rows(COUNTS, [-1, 1.0, 1.5, math.inf, *NOT_SECONDS])
    + rows({RetryPolicy: ("max_attempts",)}, [0]),
)
def test_unusable_settings_are_named(kind: Any, field: str, value: Any) -> None:
    """The error tells the field, what was given, and what would do."""
    with pytest.raises(ConfigurationError) as caught:
        kind(**{field: value})
    assert caught.value.field == field
    assert caught.value.value == repr(value)
    assert field in str(caught.value)
    assert "at least" in caught.value.problem or "above" in caught.value.problem


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    rows(SECONDS, [0, 0.0, 5, 1.5, math.inf])
    + rows(ABOVE_0, [0.001, 5, math.inf])
    + rows({LockPolicy: ("jitter",)}, [0, 0.5, 1])
    + rows({LockPolicy: ("line_share",)}, [0.001, 0.5, 1])
    + rows({RetryPolicy: ("max_attempts",)}, [1, 100])
    + rows({RetryPolicy: ("max_interruptions",)}, [0, 100]),
)
def test_edges_of_settings_are_usable(kind: Any, field: str, value: Any) -> None:
    """Zero where zero means something, and "for ever" as infinity."""
    assert getattr(kind(**{field: value}), field) == value


@pytest.mark.parametrize(
    ("kind", "field", "problem"),
    [
        (LockPolicy, "max_wait", "is not a number of at least 0"),
        (LockPolicy, "growth", "is not a number above 0"),
        (LockPolicy, "line_share", "is not a number above 0 and at most 1"),
        (LockPolicy, "jitter", "is not a number of at least 0 and at most 1"),
        (RetryPolicy, "max_attempts", "is not an integer of at least 1"),
        (RetryPolicy, "max_interruptions", "is not an integer of at least 0"),
    ],
)
def test_limits_are_spelled_out(kind: Any, field: str, problem: str) -> None:
    """The text says which limits hold."""
    with pytest.raises(ConfigurationError) as caught:
        kind(**{field: -1})
    assert caught.value.problem == problem


@pytest.mark.parametrize("kind", [LockPolicy, RetryPolicy, Timeouts, Options])
def test_settings_are_frozen_values(kind: Any) -> None:
    """Shared between calls, so never changed; given by name."""
    settings = kind()
    assert settings == kind()
    for field in attrs.fields(kind):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(settings, field.name, 1)
    with pytest.raises(TypeError):
        kind(1.0)


def test_default_timeouts_are_the_designed_ones() -> None:
    """An upload is answered after its conversion, so it may take the whole lock window."""
    assert attrs.asdict(Timeouts()) == {
        "connect": 10.0,
        "send_stall": 30.0,
        "reply": 15.0,
        "upload_reply": 330.0,
    }


def test_an_upload_is_interrupted_at_most_twice_in_a_row() -> None:
    """By default, before the call gives up: each time costs a part of the document."""
    assert RetryPolicy().max_interruptions == 2


def test_default_options() -> None:
    """Nothing is sent twice unless the caller says so."""
    assert Options() == Options(
        max_size_whiteboard_file=None,
        allow_images=False,
        delivery="at_most_once",
        lock=LockPolicy(),
        retry=RetryPolicy(),
        timeouts=Timeouts(),
        on_event=None,
    )


@pytest.mark.parametrize("delivery", ["at_most_once", "at_least_once"])
def test_known_deliveries(delivery: Any) -> None:
    """The two that there are."""
    assert Options(delivery=delivery).delivery == delivery


@pytest.mark.parametrize("delivery", ["exactly_once", "", None, 1])
def test_unknown_delivery_is_a_configuration_error(delivery: Any) -> None:
    """The error that the client promises for a setting that cannot be used."""
    with pytest.raises(ConfigurationError) as caught:
        Options(delivery=delivery)
    assert caught.value.field == "delivery"


@pytest.mark.parametrize("field", ["allow_images", "lock", "retry", "timeouts", "on_event"])
def test_options_of_a_wrong_type_are_named(field: str) -> None:
    """A number is none of these."""
    with pytest.raises((ConfigurationError, TypeError), match=field):
        Options(**cast("Any", {field: 1}))
