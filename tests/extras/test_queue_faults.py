"""One table of faults: whatever happens meanwhile, each document has one true outcome.

Worker processes upload from a real PostgreSQL to a server on a real socket. The server keeps the
SHA-256 of each document: each is in its room once, in its order, or is reported as unknown. What
may be unknown is what was on its way when something died.
"""

from __future__ import annotations

import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import attrs
import procrastinate
import psycopg
import pytest

from extras.queues import ENDED, ENDS_WELL, LARGE, SECONDS, UPLOAD, Queue, queue_at
from meeting_async import RetryPolicy
from meeting_async.errors import JournalError
from meeting_async.testing import MeetingServer
from support.ports import free_port
from support.postgres import Network, PostgresServer, needs_postgres
from support.queue_worker import Process

pytestmark = [pytest.mark.anyio, needs_postgres]
nightly = pytest.mark.nightly

PLACES = 4
"""Uploads of a worker at the same time."""
FROZEN = 4.5
"""Seconds: a worker that is frozen for so long counts as dead."""


@attrs.define(eq=False)
class Site:
    """A queue, and what can be done to it."""

    queue: Queue
    postgres: PostgresServer
    network: Network
    """Between the workers and the database."""
    dice: random.Random
    running: AsyncExitStack
    """Runs the meeting server."""
    port: int

    def work(self, count: int) -> None:
        """Start workers."""
        self.queue.start(count, dsn=self.network.address(self.queue.order.dsn), concurrency=PLACES)

    @property
    def worker(self) -> Process:
        """One of the workers."""
        return self.dice.choice(self.queue.workers)


# --- what happens --------------------------------------------------------------------------------


async def killed(site: Site) -> None:
    """A worker is killed, and replaced."""
    site.worker.kill()


async def killed_and_lost(site: Site) -> None:
    """The same, and a form that is on its way gets lost."""
    site.queue.server.lose_next_reply(path=UPLOAD, when="instead")
    await anyio.sleep(site.dice.uniform(0, 0.1))
    await killed(site)


async def frozen(site: Site, seconds: float = FROZEN) -> None:
    """A worker is stopped for a while, like a paused container, and goes on."""
    worker = site.worker
    worker.signal(signal.SIGSTOP)
    await anyio.sleep(seconds)
    worker.signal(signal.SIGCONT)


async def told_to_stop(site: Site, *codes: int) -> None:
    """A rolling restart: a worker ends what it sends, and another one starts meanwhile."""
    worker = site.worker
    worker.signal(signal.SIGTERM)
    assert await worker.ended(ENDED) in ENDS_WELL.union(codes)


async def cut(site: Site) -> None:
    """All connections to the database are reset."""
    site.network.reset()


async def silent(site: Site, seconds: float = FROZEN) -> None:
    """Nothing arrives on them for a while."""
    site.network.freeze()
    await anyio.sleep(seconds)
    site.network.thaw()


async def restarted(site: Site) -> None:
    """The database is stopped, and starts again some time later."""
    assert await anyio.to_thread.run_sync(site.postgres.stop) < 10
    await anyio.sleep(site.dice.uniform(0, 2))
    await anyio.to_thread.run_sync(site.postgres.start)


async def crashed(site: Site) -> None:
    """The database is killed, and recovers."""
    await anyio.to_thread.run_sync(site.postgres.kill)
    await anyio.to_thread.run_sync(site.postgres.start)


async def server_away(site: Site) -> None:
    """The meeting server restarts; it would mix up its rooms."""
    await site.running.aclose()
    await anyio.sleep(site.dice.uniform(0.5, 2))
    await site.running.enter_async_context(site.queue.server.run(port=site.port))


async def locked(site: Site) -> None:
    """Somebody else locks rooms."""
    for room in site.dice.sample([*site.queue.server.rooms.values()], 8):
        room.lock(site.dice.uniform(0.2, 1.5), after=site.dice.uniform(0, 1))


async def jumps(site: Site) -> None:
    """The wall clocks of the workers jump by ten minutes, back or forth."""
    for worker in site.queue.workers:
        worker.signal(site.dice.choice([signal.SIGUSR1, signal.SIGUSR2]))


async def jumps_and_stops(site: Site) -> None:
    """After such a jump a worker is told to stop."""
    await jumps(site)
    await told_to_stop(site)


BY_HAND = (
    "DELETE FROM procrastinate_jobs",
    "UPDATE procrastinate_jobs SET status = 'cancelled'",
    "UPDATE procrastinate_jobs SET status = 'failed'",
    "UPDATE procrastinate_jobs SET scheduled_at = now() + interval '1 day'",
)
"""What is done to every fifth job of procrastinate that waits."""


async def by_hand(site: Site) -> None:
    """An operator deletes, cancels, moves and retries jobs of procrastinate that do not run."""
    manager, dice = site.queue.app.job_manager, site.dice
    for job in await manager.list_jobs_async():
        how = dice.choice(["cancel", "delete", "retry", "retry later", "leave"])
        at = datetime.now(UTC) + timedelta(days=how == "retry later")
        with suppress(procrastinate.exceptions.ProcrastinateException):
            if how in {"cancel", "delete"} and job.status == "todo":
                await manager.cancel_job_by_id_async(job.id or 0, delete_job=how == "delete")
            elif how.startswith("retry") and job.status != "doing":
                await manager.retry_job_by_id_async(job.id or 0, at)
    with psycopg.connect(site.queue.order.dsn) as connection:
        for number, statement in enumerate(BY_HAND):
            connection.execute(f"{statement} WHERE status = 'todo' AND id % 5 = {number}".encode())


async def aborted(site: Site) -> None:
    """An operator aborts all jobs of procrastinate, also those that run."""
    for job in await site.queue.app.job_manager.list_jobs_async():
        await site.queue.app.job_manager.cancel_job_by_id_async(job.id or 0, abort=True)


async def _stopped(site: Site) -> None:
    """The worker may have lost its database just before."""
    await told_to_stop(site, 1)


async def anything(site: Site) -> None:
    """One of these."""
    await site.dice.choice([killed, _stopped, cut, locked, jumps, by_hand, server_away])(site)


@attrs.frozen
class Trouble:
    """What happens, how often, and how many documents may be unknown each time.

    A worker that loses its database ends with 1, and may be about to at the end of a test.
    """

    happens: Callable[[Site], Awaitable[None]]
    unknown: int = 0
    rounds: int = 10
    """Those with one round are in the usual run, the others nightly."""
    client: Mapping[str, Any] = attrs.field(factory=dict)
    """Options of the workers' client."""
    ends: AbstractSet[int] = ENDS_WELL
    """Exit codes of workers that are told to stop in the end."""


ON_THE_WAY = 2 * PLACES
MAY_BE_ENDING = ENDS_WELL | {1}
EXACTLY: Any = {"delivery": "exactly_once", "retry": RetryPolicy(settle_after=2)}
TROUBLES = {
    "once: clocks jump, told to stop": Trouble(jumps_and_stops, rounds=1),
    "once: connections cut": Trouble(cut, ON_THE_WAY, rounds=1, ends=MAY_BE_ENDING),
    "once: killed": Trouble(killed, PLACES, rounds=1),
    "once: killed, found out": Trouble(killed, rounds=1, client=EXACTLY),
    "killed": Trouble(killed, PLACES, rounds=30),
    "killed, found out": Trouble(killed_and_lost, rounds=20, client=EXACTLY),
    "frozen": Trouble(frozen, PLACES),
    "frozen for 8 s": Trouble(partial(frozen, seconds=8), PLACES, rounds=8),
    "frozen for 45 s": Trouble(partial(frozen, seconds=45), PLACES, rounds=3),
    "told to stop": Trouble(told_to_stop),
    "connections cut": Trouble(cut, ON_THE_WAY, rounds=50, ends=MAY_BE_ENDING),
    "silence": Trouble(silent, ON_THE_WAY, rounds=8, ends=MAY_BE_ENDING),
    "silence for 45 s": Trouble(
        partial(silent, seconds=45), ON_THE_WAY, rounds=2, ends=MAY_BE_ENDING
    ),
    "database restarted": Trouble(restarted, ON_THE_WAY, ends=MAY_BE_ENDING),
    "database crashed": Trouble(crashed, ON_THE_WAY, ends=MAY_BE_ENDING),
    "server away": Trouble(server_away, ON_THE_WAY),
    "rooms locked": Trouble(locked),
    "clocks jump": Trouble(jumps),
    "jobs changed by hand": Trouble(by_hand),
    "jobs aborted": Trouble(aborted, ON_THE_WAY),
    "anything": Trouble(anything, ON_THE_WAY, rounds=40, ends=MAY_BE_ENDING),
    "anything, found out": Trouble(anything, rounds=20, client=EXACTLY, ends=MAY_BE_ENDING),
}
ROWS = [
    pytest.param(name, marks=nightly if trouble.rounds > 1 else ())
    for name, trouble in TROUBLES.items()
]


@pytest.fixture
async def site(
    dsn: str, postgres: PostgresServer, network: Network, tmp_path: Path
) -> AsyncIterator[Site]:
    """Provide a queue of 20 rooms whose conversions take a while; no worker runs."""
    server = MeetingServer(lock_seconds=30, processing_seconds=0.3, mixes_up_rooms=True)
    for number in range(20):
        server.add_room(f"room{number}")
    async with AsyncExitStack() as running:
        port = free_port()
        await running.enter_async_context(server.run(port=port))
        async with queue_at(dsn, server, tmp_path) as queue:
            yield Site(queue, postgres, network, random.Random(), running, port)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ROWS)
async def test_what_happens_meanwhile(site: Site, name: str) -> None:
    """Every document has one outcome, which is true, whatever happens while it is on its way."""
    seed = f"{name} {random.SystemRandom().randrange(10**9)}"
    print(f"seed {seed!r}")  # noqa: T201 - pytest shows it if the test fails
    trouble, site.dice, queue = TROUBLES[name], random.Random(seed), site.queue
    order = queue.order
    queue.order = attrs.evolve(order, client={**order.client, **trouble.client})
    await queue.defer_many(24, rooms=20)
    site.work(2)
    await queue.until(lambda: len(queue.accepted()) >= PLACES)
    for _ in range(trouble.rounds):
        await trouble.happens(site)
        with anyio.fail_after(SECONDS):
            await defer_in_any_case(queue, 12)
        await queue.supervise()
        await anyio.sleep(site.dice.uniform(0, 0.6))
    report = await queue.reported(seconds=240)
    await queue.check(report, unknown=trouble.unknown * trouble.rounds)
    if trouble.happens is by_hand:
        await queue.stop()
        site.work(1)
        await nothing_follows(site)
    assert set(await queue.stop()) <= trouble.ends


async def defer_in_any_case(queue: Queue, count: int) -> None:
    """Defer some more, again and again while the database is away."""
    jobs = queue.jobs(count, rooms=20)
    while True:
        try:
            await queue.uploads.defer_many(jobs, batch="default")
        except JournalError:
            await anyio.sleep(0.1)
        else:
            return


async def nothing_follows(site: Site) -> None:
    """Even if all jobs that ever were run again, nothing is sent twice."""
    before = site.queue.accepted()
    with psycopg.connect(site.queue.order.dsn) as connection:
        connection.execute(
            "UPDATE procrastinate_jobs SET status = 'todo', queueing_lock = NULL,"
            " scheduled_at = NULL WHERE status <> 'doing'"
        )
    await anyio.sleep(2)
    assert site.queue.accepted() == before


# --- a fault at each statement -------------------------------------------------------------------

STATEMENTS = 16
"""More than one upload needs, with what its worker asks meanwhile."""


@nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_locked", [False, True], ids=["", "put back"])
@pytest.mark.parametrize("executed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("how", ["reset", "freeze"])
async def test_a_fault_at_each_statement(
    site: Site, how: str, *, executed: bool, is_locked: bool
) -> None:
    """A document is there at most once, and nothing that is late makes its outcome untrue.

    The connections of a worker are reset, or freeze until another worker has dealt with its
    document, at one statement after the other, before the database executes it or after.
    """
    queue, room = site.queue, site.queue.server.rooms["room0"]
    room.processing_seconds = 0.0
    site.work(1)
    for number in range(STATEMENTS if how == "reset" else STATEMENTS // 2):
        if is_locked:
            room.lock(0.7)
        path = queue.document("room0", LARGE)
        site.network.strike(number, how, executed=executed)
        await queue.uploads.defer("room0", path)
        with anyio.move_on_after(SECONDS):
            while not site.network.struck.is_set():
                await queue.supervise()
                await anyio.sleep(0.02)
        assert site.network.struck.is_set(), await queue.picture()
        if how == "freeze":
            async with queue.working():
                await queue.reported()
            there = queue.accepted()
            site.network.thaw()
            await anyio.sleep(0.5)
            assert queue.accepted() == there
        await queue.reported()
    report = await queue.reported()
    await anyio.sleep(1)
    await queue.check(report, unknown=3 * STATEMENTS // 4)
    await queue.stop()
