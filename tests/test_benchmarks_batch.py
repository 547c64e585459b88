"""The benchmark of batches keeps its own laws, and batches come near the least they could take."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))  # it is not installed

pytest.importorskip("resource", reason="the benchmarks measure children with getrusage")

from benchmarks.batch import _loads, _schedule, _ways  # noqa: E402
from benchmarks.batch._loads import FAST, SHAPES, SLOW, Load, Pace  # noqa: E402
from benchmarks.batch._occupancy import Occupancy  # noqa: E402
from benchmarks.batch._queues import InputOrder  # noqa: E402
from benchmarks.batch._virtual import SlowServer, in_virtual_time  # noqa: E402

from meeting_async import Reply, Request  # noqa: E402

PACE = Pace("by hand", send=0.0, convert=1.0)


# --- loads, and the least they can take ----------------------------------------------------------


@pytest.mark.parametrize(
    ("chains", "locked", "slots", "send", "least"),
    [
        ([[1, 1, 1], [1]], [0, 0], 2, 0, 3),  # the chain of the first room
        ([[1, 1], [1, 1], [1, 1]], [0, 0, 0], 2, 0, 3),  # total work
        ([[1, 1, 1], [1]], [0, 5], 2, 0, 6),  # a release, and the chain after it
        ([[1, 1, 1], [2], [2]], [0, 5, 5], 1, 0, 9),  # what cannot begin before 5
        ([[1], [9]], [7, 3], 2, 0, 12),
        ([[1], [9]], [7, 3], 2, 2, 10),  # the body was on its way when the room was given back
        ([[5]], [1], 1, 2, 5),
    ],
)
def test_the_least_by_hand(
    chains: list[list[float]], locked: list[float], slots: int, send: float, least: float
) -> None:
    """Chains, releases and slots each set a limit; the largest counts."""
    pace = attrs.evolve(PACE, send=send)
    load = Load(tuple(map(tuple, chains)), tuple(locked), pace)
    assert load.bound(slots) == least


def test_shapes() -> None:
    """All have about ten documents for each room; the largest room is what the name says."""
    counts = {name: sorted(shape(100), reverse=True) for name, shape in SHAPES.items()}
    assert counts["uniform"] == [10] * 100
    assert counts["one hot room"] == [100, *[10] * 99]
    for name, exponent in (("skewed (Zipf 0.5)", 0.5), ("skewed (Zipf 1)", 1.0)):
        assert sum(counts[name]) == pytest.approx(1000, rel=0.02)
        assert counts[name][0] / counts[name][3] == pytest.approx(4**exponent, rel=0.05)
        assert counts[name][-1] >= 1


def test_the_same_seed_makes_the_same_load() -> None:
    """The longest room is locked, rooms are not sorted by length, times have their mean."""
    first, again, other = (
        _loads.load(SHAPES["one hot room"], 100, locked=0.3, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other
    lengths = [len(chain) for chain in first.chains]
    assert first.locked[lengths.index(100)] > 0
    assert (lengths.index(100), len(other.chains[lengths.index(100)])) != (0, 100)
    assert sum(release > 0 for release in first.locked) == 30
    assert all(release == 0 or 10 <= release <= 150 for release in first.locked)
    times = [seconds for chain in first.chains for seconds in chain]
    assert sum(times) / len(times) == pytest.approx(2.0, rel=0.1)
    assert min(times) > FAST.send


# --- what counts ---------------------------------------------------------------------------------


def _request(room: str) -> Request:
    return Request("POST", "http://localhost", ((b"Room-Id", room.encode()),), _Body())


class _Body:
    length = 1

    async def __aiter__(self) -> Any:
        yield b"x"


def _virtually(main: Any) -> Any:
    trio = pytest.importorskip("trio")
    pytest.importorskip("trio.testing")
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_occupancy_by_hand() -> None:
    """Two slots: both in use for 1 s, then one for 2 s; then one room is left, and it is over."""

    class Server:
        async def send(self, request: Request, /) -> Reply:
            await anyio.sleep({b"a": 1.0, b"b": 3.0}[request.headers[0][1]])
            return Reply(200)

        async def aclose(self) -> None:
            raise AssertionError

    async def main() -> None:
        slots = Occupancy(Server(), 2, Counter(a=1, b=2))
        async with anyio.create_task_group() as tasks:
            for room in "ab":
                tasks.start_soon(slots.send, _request(room))
            await anyio.sleep(0.5)
            assert slots.share is None
        assert slots.share == 1.0
        slots.begin(Counter(a=1, b=1, c=1))
        await slots.send(_request("b"))
        await slots.send(_request("a"))
        assert slots.share == pytest.approx(0.5)
        assert slots.attempts == 2

    _virtually(main)


def test_the_server_keeps_time_and_locks() -> None:
    """A room that is held refuses, after the body; a free one takes what its document takes."""
    load = Load(((3.0,),), (10.0,), Pace("by hand", send=2.0, convert=1.0))

    async def main() -> None:
        server = SlowServer(load, tells=True)
        reply = await server.send(_request("room0000"))
        assert (reply.status, anyio.current_time() - server.began) == (409, 2.0)
        assert reply.headers == ((b"Retry-After", b"9"),)
        await anyio.sleep(6.0)
        reply = await server.send(_request("room0000"))
        assert (reply.status, anyio.current_time() - server.began) == (200, 11.0)

    _virtually(main)


def test_input_order_by_hand() -> None:
    """The earliest job whose room is free comes next, however much there is of another."""
    queues = InputOrder()
    for index, room in enumerate("abbba"):
        queues.put(room, attrs.make_class("Job", ["index"])(index))
    assert len(queues) == 5
    order = []
    while (found := queues.take()) is not None:
        order.append(found[1].index)
        if len(order) == 2:
            assert (queues.longest, queues.take(), "a" in queues) == (0, None, True)
            for room in "ab":
                queues.done(room)
    assert order == [0, 1, 2, 4]
    assert [job.index for job in queues.drain_all()] == [3]


# --- in virtual time -----------------------------------------------------------------------------


@pytest.mark.parametrize("pace", [FAST, SLOW], ids=lambda pace: pace.name)
@pytest.mark.parametrize("locked", [0.0, 0.5])
@pytest.mark.parametrize(
    ("way", "tells"),
    [each[2:] for each in _schedule.WAYS],
    ids=[each[0] for each in _schedule.WAYS],
)
def test_nothing_is_faster_than_the_least(
    way: _ways.Way, tells: bool, locked: float, pace: Pace
) -> None:
    """However it is done; and everything is done."""
    pytest.importorskip("trio")
    load = _loads.load(SHAPES["uniform"], 12, locked=locked, seed=3, pace=pace)
    sample = in_virtual_time(way, load, 5, tells=tells)
    assert sample.bound_seconds is not None
    assert sample.seconds >= sample.bound_seconds - 1e-6
    assert sample.uploads == 120 <= sample.calls
    assert (sample.calls > 120) == (locked > 0)


@pytest.mark.parametrize(("shape", "locked"), [(s, k) for s in SHAPES for k in (0.0, 0.3)])
def test_a_batch_takes_little_more_than_the_least(shape: str, locked: float) -> None:
    """Within 6 % of it, where the report has more rooms and 5 %."""
    pytest.importorskip("trio")
    load = _loads.load(SHAPES[shape], 80, locked=locked, seed=1)
    least = load.bound(16)
    assert in_virtual_time(_ways.batch, load, 16).seconds <= 1.06 * least


def test_refusals_on_a_slow_line_take_few_slots() -> None:
    """Rooms that are likely to be free come before those that were locked a moment ago."""
    pytest.importorskip("trio")
    pace = attrs.evolve(SLOW, releases=(50.0, 150.0))
    load = _loads.load(SHAPES["uniform"], 80, locked=0.8, seed=1, pace=pace)
    sample = in_virtual_time(_ways.batch, load, 12)
    assert sample.seconds <= 1.15 * load.bound(12)
    assert sample.calls <= 1.15 * load.uploads


# --- as a user runs it ---------------------------------------------------------------------------


@pytest.mark.timeout(150)
def test_the_costs_quickly() -> None:
    """Targets, ratios and figures, as JSON, and the command that makes them again."""
    command = [sys.executable, "-m", "benchmarks.batch", "--quick", "--json", "--part", "costs"]
    only = ["--clients", "httpx,a list"]
    done = subprocess.run(
        [*command, *only], cwd=ROOT, capture_output=True, text=True, check=False, timeout=140
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert re.match(
        r"python -m benchmarks\.batch --quick --part costs --rounds 1 --", found["command"]
    )
    comparisons = found["comparisons"]
    assert len(comparisons) == 6
    for key, comparison in comparisons.items():
        assert comparison["left_out"] == {}, key
        figures = comparison["clients"]["meeting_async"].values()
        assert any(figure["median"] > 0 for figure in figures if figure), key
        assert all(target["reached"] for target in comparison["targets"]), key
    assert list(comparisons["batch-journal-fast"]["ratios"]) == ["no journal"]
    assert set(comparisons["batch-cpu"]["ratios"]) == {
        "httpx, connections kept",
        "httpx, a connection each",
    }
