"""The simulator of waiting keeps its own laws, and the lock policy its targets."""

from __future__ import annotations

import itertools
import math
import re
import statistics
import sys
from pathlib import Path
from random import Random
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))  # it is not installed

from benchmarks.waiting import __main__ as command  # noqa: E402
from benchmarks.waiting import _holds, _strategies, _study, _targets  # noqa: E402
from benchmarks.waiting._holds import Holds  # noqa: E402
from benchmarks.waiting._simulation import (  # noqa: E402
    Contender,
    Meeting,
    Point,
    Round,
    Scenario,
    simulate,
)
from benchmarks.waiting._strategies import ORACLE, OURS, PEERS, PROBING, Refusal  # noqa: E402
from benchmarks.waiting._study import Effort, Line  # noqa: E402
from benchmarks.waiting._tally import Tally, percentile  # noqa: E402

from meeting_async import LockPolicy  # noqa: E402

MB = 1_000_000


def scenario(
    holds: Holds, send_seconds: float, meeting: Meeting = "race", contenders: int = 1
) -> Scenario:
    """Return one without a round trip, so that the arithmetic stays simple."""
    return Scenario(
        holds,
        size=MB,
        bits_per_second=8 * MB / send_seconds,
        round_trip=0,
        contenders=contenders,
        meeting=meeting,
    )


# --- the holds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("holds", _holds.SHAPES, ids=lambda holds: holds.name)
def test_every_shape_has_the_mean_it_says(holds: Holds) -> None:
    """Also after the cut at the window; and a draw is a quantile."""
    found = [holds.quantile((number + 0.5) / 20_000) for number in range(20_000)]
    assert statistics.fmean(found) == pytest.approx(_holds.MEAN, rel=1e-3)
    assert holds.mean == pytest.approx(_holds.MEAN)
    assert max(found) <= 300
    assert found == sorted(found)
    assert holds.draw(Random(1)) == holds.quantile(Random(1).random())


def test_log_uniform_holds_span_their_range() -> None:
    """From 1 s to 300 s, half of them below the geometric mean."""
    quantile = _holds.log_uniform().quantile
    assert [quantile(part) for part in (0, 0.5, 1)] == pytest.approx([1, math.sqrt(300), 300])


# --- the room ------------------------------------------------------------------------------------


@pytest.mark.parametrize("meeting", ["race", "any"])
@pytest.mark.parametrize("holds", _holds.SHAPES, ids=lambda holds: holds.name)
def test_the_oracle_is_never_late(holds: Holds, meeting: Meeting) -> None:
    """Its body ends with the hold, and it sends nothing twice."""
    tally = simulate(scenario(holds, 10.0, meeting), ORACLE, rounds=100)
    assert tally.idle == 0
    assert tally.refusals == tally.bytes_probed == 0
    share = 1.0 if meeting == "race" else 0.5
    assert statistics.fmean(tally.waits) == pytest.approx(10 + share * _holds.MEAN, rel=0.05)


@pytest.mark.parametrize(
    ("hold", "delay", "send_seconds", "refused", "idle"),
    [
        (10.0, 4.0, 1.0, 2, 0.0),
        (10.5, 4.0, 1.0, 3, 4.5),
        (3.0, 4.0, 1.0, 1, 2.0),
        (100.0, 5.0, 2.0, 15, 5.0),
        (1.0, 1.0, 80.0, 1, 80.0),
    ],
)
def test_a_fixed_delay_by_hand(
    hold: float, delay: float, send_seconds: float, refused: int, idle: float
) -> None:
    """The first body is refused at 0, the next ones end every delay plus body later."""
    tally = simulate(scenario(_holds.fixed(hold), send_seconds), _strategies.fixed(delay), rounds=3)
    assert tally.refusals == 3 * refused
    assert tally.idles == pytest.approx([idle] * 3)
    assert tally.waits == pytest.approx([send_seconds + hold + idle] * 3)
    wait = send_seconds + refused * (delay + send_seconds)
    assert tally.resending == pytest.approx(refused * send_seconds / wait)


@pytest.mark.parametrize(("mean", "delay", "send_seconds"), [(8.0, 4.0, 1.0), (5.0, 0.5, 0.1)])
def test_a_fixed_delay_against_its_formula(mean: float, delay: float, send_seconds: float) -> None:
    """Exponential holds, a body every c seconds: 1 / (1 - exp(-c / mean)) of them are refused."""
    holds, cycle = _holds.exponential(mean), delay + send_seconds
    tally = simulate(scenario(holds, send_seconds), _strategies.fixed(delay), rounds=2000)
    refused = 1 / -math.expm1(-cycle / mean)
    assert tally.refusals / 2000 == pytest.approx(refused, rel=0.01)
    assert tally.idle == pytest.approx(refused * cycle - mean, rel=0.01)


def test_a_round_trip_delays_every_attempt() -> None:
    """Half of it before the lock is examined, half until the 409 is known."""
    slow = Scenario(
        _holds.fixed(10.0), size=MB, bits_per_second=8 * MB, round_trip=2.0, meeting="race"
    )
    tally = simulate(slow, _strategies.fixed(4.0), rounds=1)
    assert (tally.refusals, tally.idles) == (2, [4.0])  # examined at 0, 7, 14
    assert tally.waits == [1 + 1 + 14]


def test_a_probe_costs_its_bytes_and_a_round_trip() -> None:
    """The document goes out once, right after the probe that finds the room free."""
    slow = Scenario(
        _holds.fixed(3.2), size=MB, bits_per_second=8 * MB, round_trip=0.1, meeting="race"
    )
    calm = _strategies.ours(LockPolicy(probe=True, jitter=0))
    tally = simulate(slow, calm, rounds=1)
    # probes take 0.1003 s and are examined at 0, 0.6003, 2.7006, 4.8009
    assert tally.bytes_probed == 4 * 300
    assert (tally.refusals, tally.bytes_sent) == (0, MB + 4 * 300)
    assert tally.idle == pytest.approx(4.8009 + 0.05 + 1 + 0.05 - 3.2, abs=1e-6)
    assert tally.lag == pytest.approx(4.8009 + 0.05 - 3.2, abs=1e-6)


@pytest.mark.parametrize("strategy", [OURS, ORACLE, *PEERS], ids=lambda strategy: strategy.name)
def test_a_free_room_is_nobodys_fault(strategy: _strategies.Strategy) -> None:
    """Who finds it free sends once and has waited for its own body only; that is no idle time."""
    tally = simulate(scenario(_holds.fixed(0.001), 10.0, "crowd"), strategy, rounds=5)
    assert tally.waits == pytest.approx([10.0] * 5)
    assert (tally.refusals, tally.idles) == (0, [])


def test_only_the_wait_for_a_release_is_idle_time() -> None:
    """Of twelve uploads, one after another, the first alone meets somebody else's hold."""
    place = scenario(_holds.fixed(20.0), 0.5, "steady")
    tally = simulate(place, _strategies.fixed(4.0), rounds=1)
    assert (len(tally.waits), len(tally.idles)) == (5, 1)
    assert 0 <= tally.idle < 4.5


def test_what_a_waiter_knows() -> None:
    """The time since its first 409, its own delays and how long its body took; no more."""
    seen: list[Refusal] = []

    def spy(refusal: Refusal, _random: Random) -> float:
        seen.append(refusal)
        return 4.0

    strategy = _strategies.Strategy("spy", _strategies.Role.PEER, spy)
    simulate(scenario(_holds.fixed(10.5), 1.0), strategy, rounds=1)
    assert seen == [
        Refusal(waited=0.0, send_seconds=1.0, number=0, previous=None),
        Refusal(waited=5.0, send_seconds=1.0, number=1, previous=4.0),
        Refusal(waited=10.0, send_seconds=1.0, number=2, previous=4.0),
    ]


def test_probing_gives_up_on_a_server_that_lies() -> None:
    """Two bodies refused right after "free" end it, unless a probe was refused between them."""

    def found(*probes: bool) -> bool:
        round_ = Round(
            Scenario(_holds.fixed()), PROBING, Tally(mean_hold=1), seed="", first=Point(0, 0)
        )
        me = Contender(arrived=0.0, probing=True)
        for probe in probes:
            round_.refuse(me, probe=probe)
        return me.probing

    body, probe = False, True
    assert found(probe, probe, body, probe, body)
    assert found(probe, body)
    assert not found(probe, body, body)
    assert not found(body, body, probe)


@pytest.mark.parametrize("strategy", _strategies.ALL, ids=lambda strategy: strategy.name)
@pytest.mark.parametrize("meeting", ["crowd", "steady"])
def test_no_byte_is_lost_or_made_up(strategy: _strategies.Strategy, meeting: Meeting) -> None:
    """What was sent is what was delivered, refused and probed; everybody is served."""
    crowd = scenario(_holds.exponential(5.0), 0.5, meeting, contenders=8)
    tally = simulate(crowd, strategy, rounds=2)
    uploads, counted = (1, 1) if meeting == "crowd" else (12, 5)
    assert tally.bytes_delivered == 2 * 8 * uploads * MB
    assert tally.bytes_refused == tally.refusals * MB
    assert tally.bytes_sent == tally.bytes_delivered + tally.bytes_refused + tally.bytes_probed
    assert len(tally.waits) == 2 * 8 * counted
    assert (tally.bytes_probed > 0) == (strategy is PROBING)


@pytest.mark.parametrize("strategy", [OURS, PROBING, ORACLE, *PEERS], ids=lambda s: s.name)
def test_one_holds_the_room_at_a_time(strategy: _strategies.Strategy) -> None:
    """Ten contenders that hold it for 20 s each need 200 s, after the one that was first."""
    tally = simulate(scenario(_holds.fixed(20.0), 0.5, "crowd", 10), strategy, rounds=1)
    ordered = sorted(tally.waits)
    assert all(later - earlier > 9 for earlier, later in itertools.pairwise(ordered))
    assert ordered[-1] > 9 * 20


def test_the_same_seed_gives_the_same_figures() -> None:
    """Another one gives others; and each strategy meets the same holds."""
    place = Scenario(_holds.log_uniform())
    first, again = (simulate(place, OURS, rounds=20) for _ in range(2))
    assert first == again
    assert simulate(place, OURS, rounds=20, seed=2) != first
    best = simulate(place, ORACLE, rounds=20)
    late = [mine - ideal for mine, ideal in zip(first.waits, best.waits, strict=True)]
    assert late == pytest.approx(first.idles)


def test_percentiles() -> None:
    """The smallest value that so many do not exceed."""
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([7.0], 0.99) == 7


# --- the strategies ------------------------------------------------------------------------------


def schedule(name: str, dice: float) -> list[float]:
    """Return the first seven delays of a strategy whose dice always show the same."""

    class Dice(Random):
        def random(self) -> float:
            return dice

    strategy = next(strategy for strategy in _strategies.ALL if strategy.name == name)
    found: list[float] = []
    for number in range(7):
        previous = found[-1] if found else None
        refusal = Refusal(sum(found), 0.5, number, previous)
        found.append(strategy.delay(refusal, Dice()))
    return found


@pytest.mark.parametrize(
    ("name", "dice", "expected"),
    [
        ("fixed 5 s", 0.3, [5, 5, 5, 5, 5, 5, 5]),
        ("AWS full jitter", 0.0, [0, 0, 0, 0, 0, 0, 0]),
        ("AWS full jitter", 1.0, [1, 2, 4, 8, 16, 20, 20]),
        ("decorrelated jitter", 0.0, [1, 1, 1, 1, 1, 1, 1]),
        ("decorrelated jitter", 1.0, [3, 9, 20, 20, 20, 20, 20]),
        ("stamina", 0.0, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5]),
        ("stamina", 1.0, [1.1, 1.2, 1.4, 1.8, 2.6, 4.2, 5]),
        ("openai", 0.0, [0.5, 1, 2, 4, 8, 8, 8]),
        ("openai", 1.0, [0.375, 0.75, 1.5, 3, 6, 6, 6]),
        ("meeting_async", 0.5, [0.5, 2, 7.5, 7.5, 7.5, 7.5, 7.5]),
        ("meeting_async", 0.0, [0.375, 1.125, 4.5, 5.625, 5.625, 5.625, 5.625]),
    ],
)
def test_schedules(name: str, dice: float, expected: list[float]) -> None:
    """What each policy says of itself; ours is the lock policy of the library."""
    assert schedule(name, dice) == pytest.approx(expected)


@pytest.mark.parametrize("strategy", PEERS, ids=lambda strategy: strategy.name)
def test_patience_without_end(strategy: _strategies.Strategy) -> None:
    """No budget ends a comparison, and no doubling overflows."""
    assert 0 <= strategy.delay(Refusal(1e9, 0.5, 10**6, 20.0), Random(1)) <= 30


# --- the targets ---------------------------------------------------------------------------------

REDUCED = Effort(rounds=150, crowds=2)


@pytest.mark.parametrize(
    ("line", "idle", "resending"), [(_study.TYPICAL, 0.08, 0.10), (_study.SLOW, 0.25, 0.40)]
)
def test_one_waiter_keeps_its_targets(line: Line, idle: float, resending: float) -> None:
    """With holds of every shape, against every policy."""
    single = _study.single(line, REDUCED)
    for target in _targets.waiting(single, "", idle=idle, resending=resending):
        assert target.is_met, target
    assert list(single.better()) == []
    for tallies in single.shapes.values():
        assert tallies[PROBING.name].refusals == 0
        assert tallies[PROBING.name].lag < 2
        assert tallies[PROBING.name].probed_share < 0.01


@pytest.mark.parametrize("line", _study.GRID[:4] + _study.GRID[8:9] + _study.GRID[12:13], ids=str)
def test_nobody_is_better_on_any_line(line: Line) -> None:
    """At every time that a body of the report takes: 0.8 ms to 800 s."""
    single = _study.single(line, Effort(rounds=60), (OURS, *PEERS))
    assert list(single.better()) == []


@pytest.mark.parametrize("line", [_study.TYPICAL, _study.SLOW], ids=str)
def test_nobody_starves_in_a_crowd(line: Line) -> None:
    """Fifty with one document each: 99 % of the waits are within three fair shares."""
    crowd = _study.crowd(line, "crowd", REDUCED, (50,), (OURS,))
    assert _targets.sharing(crowd).is_met


def test_old_waiters_come_before_newcomers() -> None:
    """In a crowd without end the longest waits are those of policies that do not know an age."""
    peers = (PEERS[1], PEERS[3])
    crowd = _study.crowd(_study.TYPICAL, "steady", Effort(crowds=3), (50,), (OURS, *peers))
    assert crowd.unfairness(50, OURS.name) < 3.3
    assert min(crowd.unfairness(50, peer.name) for peer in peers) > 4


def test_a_target_can_be_missed() -> None:
    """A policy that is beaten is reported as such."""
    tallies = {name: Tally(mean_hold=50) for name in (OURS.name, *(peer.name for peer in PEERS))}
    for name, tally in tallies.items():
        tally.found_free(released=0, began=0, taken=5 if name == OURS.name else 4)
        tally.refused(MB * (2 if name == PEERS[0].name else 3), 1)
        tally.delivered(MB, waited=10, counts=True)
    target = _targets.domination([tallies], "")
    assert (target.reached, target.is_met) == (1, False)
    assert list(_study.better(tallies)) == [PEERS[0].name]


# --- the report ----------------------------------------------------------------------------------


def test_prints_and_saves_tables_and_charts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is in the page; each policy has its bar and its dot."""
    monkeypatch.setattr(_study, "GRID", _study.GRID[:2])
    command.main(["--rounds", "4", "--crowds", "1", "--seed", "3", "--save", str(tmp_path)])
    page = (tmp_path / "README.md").read_text("utf-8")
    assert "python -m benchmarks.waiting --rounds 4 --crowds 1 --seed 3 --save" in page
    assert page[page.index("## Targets") :].strip() in capsys.readouterr().out
    for name, shown in (("trade", (OURS, *PEERS)), ("crowd", _strategies.ALL)):
        root = ET.parse(tmp_path / f"{name}.svg").getroot()
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        for strategy in shown:
            assert strategy.name in texts


def test_the_page_quotes_the_report() -> None:
    """Every row of figures in ``docs/waiting.md`` is one that the command has written."""
    report = (ROOT / "docs/waiting/README.md").read_text("utf-8").splitlines()
    page = (ROOT / "docs/waiting.md").read_text("utf-8")
    rows = re.findall(
        r"^\| (?:meeting_async|fixed|AWS|decor|stamina|openai|oracle|body of).*", page, re.MULTILINE
    )
    assert len(rows) > len(_strategies.ALL)
    assert set(rows) <= set(report)
