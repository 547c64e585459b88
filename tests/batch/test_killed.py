"""A batch that is killed again and again: nothing is lost, and nothing is twice in a room.

A process that runs a batch with a journal is killed (SIGKILL) at random moments, some of them in
the middle of what SQLite does, and started again. In the end the rooms of a server on a real socket
have what the journal says, and what it says is what was asked for. The usual run kills some five
processes, the nightly one hundreds.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from meeting_async.testing import MeetingServer
from support.batch_worker import WINDOW, Told, make_documents
from support.journal_files import states_in

ROOMS = 30
AT_SQLITE = 0.3
"""Share of the kills that strike when SQLite is about to execute a statement."""

TESTS = Path(__file__).parent.parent
KNOWN_TO_BE_OUT = {"sent", "unknown", "accepted"}


@attrs.define
class Batch:
    """A batch that is run until it is through, whatever happens to it."""

    helper: subprocess.Popen[str]
    order: dict[str, Any]
    server: MeetingServer
    kills: int = 0
    in_flight: Counter[str] = attrs.field(factory=Counter)
    """How often each document was in flight when a process was killed."""
    last: Told | None = None

    def run(self, **how: Any) -> Told:
        """Run it once more."""
        assert self.helper.stdin is not None
        assert self.helper.stdout is not None
        self.helper.stdin.write(json.dumps({**self.order, **how}) + "\n")
        self.helper.stdin.flush()
        self.last = told = Told(**json.loads(self.helper.stdout.readline()))
        if told.killed:
            self.kills += 1
            self.in_flight.update(told.in_flight)
        return told

    def run_killed(self, dice: random.Random) -> Told:
        """Run it and kill it: after a while, or at a statement; it may be through before."""
        if dice.random() < AT_SQLITE:
            return self.run(kill_at=dice.randint(1, 60))
        return self.run(kill_after=dice.uniform(0.02, 0.6))

    @property
    def journal(self) -> Path:
        """Where it is."""
        return Path(self.order["journal"])

    @property
    def in_rooms(self) -> Counter[str]:
        """How often each document is in its room."""
        rooms = self.server.rooms.values()
        return Counter(file.name for room in rooms for file in room.accepted)

    def states(self) -> dict[str, str]:
        """Return what the journal says, from a copy: the original stays as the kill left it."""
        return states_in(self.journal) if self.journal.exists() else {}


@pytest.fixture(scope="module")
def helper() -> Iterator[subprocess.Popen[str]]:
    """Provide the process that forks."""
    command = [sys.executable, "-m", "support.batch_worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=TESTS, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def batch_in(
    folder: Path, helper: subprocess.Popen[str], *, processing: float = 0.1, **how: Any
) -> Iterator[Batch]:
    """Provide a batch, its documents, and a server with its rooms."""
    folder.mkdir()
    make_documents(folder, how["jobs"])
    server = MeetingServer(lock_seconds=WINDOW, processing_seconds=processing)
    for number in range(ROOMS):
        server.add_room(f"room{number:02}")
    with server.run() as url:
        facts = {"journal": str(folder / "term.db"), "folder": str(folder), "rooms": ROOMS}
        yield Batch(helper, {"url": url, **facts, **how}, server)


def check_after_a_kill(batch: Batch) -> None:
    """Nothing that a room has counts as unsent, whatever was being written at that moment."""
    there = set(batch.in_rooms)
    states = batch.states()
    unsent = {name for name in there if states.get(name, "none") not in KNOWN_TO_BE_OUT}
    assert unsent == set(), f"called unsent, and there: {unsent}"


def check_at_the_end(batch: Batch, *, resend: bool) -> dict[str, int]:
    """Hold what the rooms have against what the last run says. Return the numbers."""
    time.sleep(0.1)  # for what the server is still busy with
    assert batch.last is not None
    outcomes, in_rooms, in_flight = batch.last.outcomes, batch.in_rooms, batch.in_flight
    assert len(outcomes) == batch.order["jobs"]
    unknown = {name for name, status in outcomes.items() if status == "unknown"}
    good = {name for name, status in outcomes.items() if status in {"accepted", "skipped"}}
    assert good | unknown == set(outcomes)
    assert all(in_rooms[name] >= 1 for name in good)  # nothing is lost
    if resend:
        assert unknown == set()
        assert all(in_rooms[name] <= 1 + in_flight[name] for name in in_rooms)
    else:
        twice = {name for name, times in in_rooms.items() if times > 1}
        assert twice == set(), f"twice in a room: {twice}"
        assert unknown <= set(in_flight)  # nothing is called unknown that was not in flight
    again = batch.run()
    assert not again.begun
    assert Counter(again.outcomes.values()) == Counter(skipped=len(good), unknown=len(unknown))
    return {
        "kills": batch.kills,
        "documents": len(outcomes),
        "in rooms": len(in_rooms),
        "unknown": len(unknown),
        "unknown, but there": len(unknown & set(in_rooms)),
        "twice or more": sum(times > 1 for times in in_rooms.values()),
    }


nightly = pytest.mark.nightly
RUNS = [
    pytest.param("report", 8, "asyncio", 3, 40, id="report"),
    pytest.param("resend", 1, "trio", 2, 12, id="resend"),
    *(
        pytest.param(
            on_unknown, concurrency, backend, 200, 300, marks=[nightly, pytest.mark.timeout(3600)]
        )
        for on_unknown in ("report", "resend")
        for concurrency in (1, 8)
        for backend in ("asyncio", "trio")
    ),
]


@pytest.mark.parametrize(("on_unknown", "concurrency", "backend", "kills", "jobs"), RUNS)
def test_killed_and_started_again(
    tmp_path: Path,
    helper: subprocess.Popen[str],
    on_unknown: str,
    concurrency: int,
    backend: str,
    kills: int,
    jobs: int,
) -> None:
    """As many batches as it takes for all the kills; each is run to its end at last."""
    dice = random.Random(f"{on_unknown} {concurrency} {backend}" if kills < 10 else None)
    sums: Counter[str] = Counter()
    while sums["kills"] < kills:
        how: dict[str, Any] = {
            "on_unknown": on_unknown,
            "concurrency": concurrency,
            "backend": backend,
        }
        with batch_in(tmp_path / str(sums["batches"]), helper, jobs=jobs, **how) as batch:
            left = kills - sums["kills"]
            while batch.kills < left and batch.run_killed(dice).killed:
                check_after_a_kill(batch)
            if batch.last is None or batch.last.killed:
                batch.run()
            sums += Counter(batches=1, **check_at_the_end(batch, resend=on_unknown == "resend"))
    sys.stdout.write(f"\n{on_unknown}, concurrency {concurrency}, {backend}: {dict(sums)}\n")


@nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("frozen", [0.5, 5, 14, 60])
def test_frozen_it_goes_on(
    tmp_path: Path, helper: subprocess.Popen[str], backend: str, frozen: float
) -> None:
    """As Ctrl-Z and a container that is paused do it, anywhere in a batch (findings 5.2)."""
    dice = random.Random(frozen)
    for number in range(3):
        with batch_in(tmp_path / str(number), helper, jobs=60, backend=backend) as batch:
            told = batch.run(kill_after=dice.uniform(0.05, 0.6), frozen=frozen)
            assert not told.killed
            assert Counter(told.outcomes.values()) == Counter(accepted=60)
