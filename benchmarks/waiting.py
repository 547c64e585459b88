"""How uploads wait for a locked room, in virtual time: ``python -m benchmarks.waiting``.

Real clients on a clock that jumps. Each has a line and a process of its own; none knows of the
others. The transport plays the lines and the server, which examines its lock when a whole form has
arrived: a document that gets 409 costs all of its bytes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio
import attrs

from meeting_async import LockPolicy, MeetingClient
from meeting_async.rooms import LocalRoomLocks
from meeting_async.testing import run_in_virtual_time
from meeting_async.transports import Body, Reply, Request

NAME = "python -m benchmarks.waiting"
PAGE = Path("docs/waiting.md")

ROUND_TRIP = 0.02
"""Seconds."""
LOCKS = (1, 5, 30)
"""Seconds of the lock that one waiter meets, give or take 20 %."""
CROWD, CROWD_SECONDS = 50, 10.0
"""So many uploads begin within so many seconds."""
CROWD_LOCKS, LONGEST = (30,), 300.0
"""Mean seconds for which each of them locks the room (exponential), and the most."""
OURS, BLIND, IDEAL = "meeting_async", "blind", "ideal"
POLICIES = {
    OURS: LockPolicy(max_wait=math.inf),
    BLIND: LockPolicy(max_wait=math.inf, probe=False),
}


@attrs.frozen
class Line:
    """What a document costs, and what carries it."""

    bits_per_second: float
    size: int = 30 * 2**20
    """Bytes of the document that it stands for."""

    @property
    def seconds(self) -> float:
        """How long the document takes."""
        return self.size * 8 / self.bits_per_second

    @property
    def document(self) -> bytes:
        """A shorter document that takes as long: nothing looks at its bytes."""
        return bytes(min(self.size, 65 * 1024))


SMALL = "64 KiB, 10 Mbit/s"
LINES = {
    "30 MiB, 1 Mbit/s": Line(1e6),
    "30 MiB, 10 Mbit/s": Line(1e7),
    "30 MiB, 100 Mbit/s": Line(1e8),
    "30 MiB, 1000 Mbit/s": Line(1e9),
    SMALL: Line(1e7, size=64 * 1024),
}


@attrs.define
class Tally:
    """What is counted, over all rounds."""

    starts: list[float] = attrs.field(factory=list)
    """Seconds from a release to the start of the document that takes the lock; 0 if it was on its
    way."""
    waits: list[float] = attrs.field(factory=list)
    """Seconds from the beginning of each upload to its lock."""
    documents: int = 0
    """Documents sent, accepted or not."""
    questions: int = 0
    """Empty forms."""

    @property
    def resent(self) -> float:
        """Bytes sent in vain for each byte delivered."""
        return self.documents / len(self.waits) - 1

    @property
    def mean(self) -> float:
        """Seconds that an upload waits."""
        return statistics.fmean(self.waits)

    @property
    def longest(self) -> float:
        """Seconds that 99 % of the uploads wait at most."""
        return sorted(self.waits)[math.ceil(0.99 * len(self.waits)) - 1]


ACTIVE = Reply(200, content=b'{"status": true, "msg": "", "status_code": "SUCCESS"}')
FREE = Reply(400, content=b'{"status": false, "msg": "", "status_code": "INVALID_PARAMETERS"}')
BUSY = Reply(409)


@attrs.define
class Room:
    """A room that somebody else has locked at first, and everybody's way to it: a transport."""

    line: Line
    holds: Iterator[float]
    """For how many seconds each upload locks it; the first is somebody else's."""
    tally: Tally
    free_at: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.free_at = next(self.holds)

    async def send(self, request: Request, /) -> Reply:
        """Answer."""
        if not isinstance(request.body, bytes):
            return await self._receive(request.body)
        is_form = request.url.endswith("uploadWhiteboardFile")
        self.tally.questions += is_form
        await anyio.sleep(len(request.body) * 8 / self.line.bits_per_second + ROUND_TRIP / 2)
        is_locked = anyio.current_time() < self.free_at
        await anyio.sleep(ROUND_TRIP / 2)
        return (BUSY if is_locked else FREE) if is_form else ACTIVE

    async def _receive(self, body: Body) -> Reply:
        began = anyio.current_time()
        self.tally.documents += 1
        async for chunk in body:
            await anyio.sleep(self.line.seconds * len(chunk) / body.length)
        await anyio.sleep(ROUND_TRIP / 2)
        is_locked = anyio.current_time() < self.free_at
        if not is_locked:
            self.tally.starts.append(max(0.0, began - self.free_at))
            self.free_at = anyio.current_time() + next(self.holds)
        await anyio.sleep(ROUND_TRIP / 2)
        return BUSY if is_locked else ACTIVE

    async def aclose(self) -> None:
        """Hold nothing."""

    async def upload(self, begins: float, lock: LockPolicy) -> None:
        """Upload from a process of its own."""
        await anyio.sleep(begins)
        async with MeetingClient(
            "https://meet.test",
            api_key="key-of-the-study",
            api_secret="secret-of-the-study",
            transport=self,
            lock=lock,
            room_locks=LocalRoomLocks(),
        ) as client:
            receipt = await client.upload_whiteboard_file(
                "room01", self.line.document, filename="deck.pdf", content_type="application/pdf"
            )
        self.tally.waits.append(receipt.seconds)


@attrs.frozen(kw_only=True)
class Scenario:
    """Who wants the room, and for how long it is locked."""

    mean: float
    uploads: int = 1
    rounds: int
    seed: int

    def played(self, line: Line, lock: LockPolicy) -> Tally:
        """Play all rounds at once, each in a room of its own."""
        tally = Tally()

        async def main() -> None:
            async with anyio.create_task_group() as group:
                for number in range(self.rounds):
                    begins, holds = self._drawn(number)
                    room = Room(line, holds, tally)
                    for moment in begins:
                        group.start_soon(room.upload, moment, lock)

        random.seed(self.seed)  # the client's jitter
        run_in_virtual_time(main)
        return tally

    def ideal(self, line: Line) -> Tally:
        """Let each document end at a release; who came first is served first."""
        tally = Tally()
        for number in range(self.rounds):
            begins, holds = self._drawn(number)
            free_at = next(holds)
            for moment in begins:
                taken = max(free_at, moment + line.seconds)
                tally.starts.append(0.0)
                tally.waits.append(taken - moment)
                tally.documents += 1
                free_at = taken + next(holds)
        return tally

    def _drawn(self, number: int) -> tuple[list[float], Iterator[float]]:
        """Return when the uploads of a round begin, and for how long the room is locked each time.

        They are the same for every line and every way to wait.
        """
        dice = random.Random(f"{self.seed} {number}")
        if self.uploads == 1:
            return [0.0], iter([self.mean * dice.uniform(0.8, 1.2), 0.0])
        begins = sorted(dice.uniform(0, CROWD_SECONDS) for _ in range(self.uploads))
        return begins, (min(dice.expovariate(1 / self.mean), LONGEST) for _ in itertools.count())


# --- the report ----------------------------------------------------------------------------------

INTRODUCTION = """\
Uploads that [wait for a locked room](delivery.md#a-locked-room-409), in virtual time: real
clients, a simulated line and server.

* *meeting_async*: the defaults.
* *blind*: `LockPolicy(probe=False)`, which sends a document to find out whether the room is free.
  A document of 64 KiB is sent once before anything is asked.
* *ideal*: each document ends when the room is released, first come, first served.
"""
ONE = """\
## One waiter

The lock takes 1, 5 or 30 s, give or take 20 %. Mean seconds from its release to the start of the
document / documents re-sent for each delivered.
"""
MANY = f"""\
## {CROWD} waiters

Each has a line and a process of its own; all begin within {CROWD_SECONDS:g} s. Bytes re-sent for
each delivered / seconds that an upload waits, mean / seconds that 99 % of the uploads wait at most.
"""

Row = Sequence[str]


def report(rounds: int, seed: int) -> str:
    """Simulate everything and return all tables."""
    parts = [INTRODUCTION, ONE, _table("lock", _alone(rounds * 20, seed)), MANY]
    for mean in CROWD_LOCKS:
        crowd = Scenario(mean=mean, uploads=CROWD, rounds=rounds, seed=seed)
        parts += [f"### Locks of {mean} s on average\n", _table("", _crowd(crowd))]
    return "\n".join(parts)


def _table(corner: str, rows: Iterator[Row]) -> str:
    head = [corner, *LINES]
    lines = [head, ["---", *["--:"] * len(LINES)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _alone(rounds: int, seed: int) -> Iterator[Row]:
    for seconds in LOCKS:
        scenario = Scenario(mean=seconds, rounds=rounds, seed=seed)
        found = [scenario.played(line, POLICIES[OURS]) for line in LINES.values()]
        cells = [f"{statistics.fmean(one.starts):.2f} / {one.resent:.2f}" for one in found]
        yield [f"{seconds} s", *cells]


def _crowd(scenario: Scenario) -> Iterator[Row]:
    lines = LINES.values()
    found = {name: [scenario.played(one, lock) for one in lines] for name, lock in POLICIES.items()}
    found[IDEAL] = [scenario.ideal(line) for line in lines]
    for name, tallies in found.items():
        yield [name, *(f"{t.resent:.2f} / {t.mean:.0f} / {t.longest:.0f}" for t in tallies)]
    questions = [tally.questions / len(tally.waits) for tally in found[OURS]]
    yield ["empty forms for each document", *(f"{count:.0f}" for count in questions)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, print, and save if asked to."""
    parser = argparse.ArgumentParser(prog=NAME, description=(__doc__ or "").partition(",")[0])
    parser.add_argument(
        "--rounds", type=int, default=8, help="of a crowd; 20 times as many of one waiter"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", action="store_true", help=f"write {PAGE}")
    found = parser.parse_args(arguments)
    text = report(found.rounds, found.seed)
    print(text)
    if found.save:
        command = f"{NAME} --rounds {found.rounds} --seed {found.seed} --save"
        page = f"# Waiting, simulated\n\n```sh\n{command}\n```\n\n{text}"
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
