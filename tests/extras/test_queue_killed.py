"""Workers of a queue that are killed again and again: nothing is lost, and nothing is twice.

Four processes work on one queue in a real PostgreSQL. They are killed (SIGKILL) at random moments
and replaced. In the end each document has one outcome, and the rooms of a server on a real socket
have what the outcomes say. The usual run kills a few processes, the nightly ones fifty; one of
those restarts PostgreSQL, too.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs
import procrastinate
import pytest

from meeting_async import MeetingClient, UploadJob, UploadOutcome
from meeting_async.errors import JournalError
from meeting_async.procrastinate import QueueReport, WhiteboardUploads
from meeting_async.testing import MeetingServer
from support.postgres import PostgresServer, needs_postgres, postgres_running
from support.queue_worker import WINDOW, read_log

pytestmark = needs_postgres

ROOMS = 100
WORKERS = 4
BATCH = "term"
TESTS = Path(__file__).parent.parent
ENDED = 20.0
"""Longest time for a worker that is told to stop."""


# --- documents and workers -----------------------------------------------------------------------


def name_of(number: int) -> str:
    """Name a document."""
    return f"{number:04}.pdf"


def number_of(name: str) -> int:
    """Return the number of a document, which is its place in the order of deferring."""
    return int(name.partition(".")[0])


def room_of(number: int) -> str:
    """Return the room of a document."""
    return f"room{number % ROOMS:02}"


def make_documents(folder: Path, count: int, dice: random.Random) -> None:
    """Make documents of 1 to 200 KiB; no two have the same content."""
    for number in range(count):
        head = b"%%PDF-1.7\n%% %d\n" % number
        size = int(1024 * 200 ** dice.random())
        (folder / name_of(number)).write_bytes(head + dice.randbytes(size))


@attrs.define(eq=False)
class Worker:
    """A process that works on the queue."""

    log: Path
    process: subprocess.Popen[bytes]

    @property
    def is_ready(self) -> bool:
        """Whether it has begun to work."""
        return read_log(self.log).is_ready


@attrs.define(eq=False)
class Site:
    """A queue, its documents, a meeting server, and workers that a supervisor replaces."""

    dsn: str
    url: str
    folder: Path
    server: MeetingServer
    options: dict[str, Any] = attrs.field(factory=dict)
    """For the workers."""
    workers: list[Worker] = attrs.field(factory=list)
    kills: int = 0
    exits: int = 0
    """Workers that ended by themselves, and were replaced."""
    in_flight: set[str] = attrs.field(factory=set)
    """Documents that were in flight when their worker was killed, or ended by itself."""
    begun: set[str] = attrs.field(factory=set)
    """Documents that these workers had begun at any time."""
    is_restarted: bool = False
    """Whether PostgreSQL was restarted: a mark may then be stored although its worker saw it fail,
    did not complete the document, and was killed before it could say so."""
    _started: int = 0

    def start_worker(self) -> Worker:
        """Start one more."""
        log = self.folder / f"worker{self._started}.log"
        self._started += 1
        order = {"dsn": self.dsn, "url": self.url, "log": str(log), **self.options}
        with log.with_suffix(".stderr").open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "support.queue_worker", json.dumps(order)],
                cwd=TESTS,
                stderr=stderr,
            )
        self.workers.append(Worker(log, process))
        return self.workers[-1]

    def kill(self, worker: Worker) -> None:
        """Kill a worker, and note what it had in flight."""
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()
        self.kills += 1
        self._bury(worker)

    def supervise(self) -> None:
        """Replace the workers that have ended by themselves."""
        for worker in [*self.workers]:
            if worker.process.poll() is not None:
                self.exits += 1
                self._bury(worker)
                self.start_worker()

    def stop(self) -> list[int]:
        """Tell the workers to stop, and return how they have ended."""
        for worker in self.workers:
            worker.process.send_signal(signal.SIGTERM)
        try:
            return [worker.process.wait(ENDED) for worker in self.workers]
        finally:
            self.workers.clear()

    def clear(self) -> None:
        """End what is left."""
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()

    def _bury(self, worker: Worker) -> None:
        told = read_log(worker.log)
        self.in_flight |= told.in_flight | told.put_back
        self.begun |= set(told.begun)
        self.workers.remove(worker)

    # --- what is said, and what is so ------------------------------------------------------------

    @asynccontextmanager
    async def application(self) -> AsyncIterator[WhiteboardUploads]:
        """Open an application that has no worker."""
        app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self.dsn))
        client = MeetingClient(self.url, api_key="devkey", api_secret="devsecret")
        async with app.open_async(), client:
            yield WhiteboardUploads(app, client=client)

    def defer(self, numbers: range) -> int:
        """Put documents into the queue."""

        async def defer() -> int:
            async with self.application() as uploads:
                paths = ((room_of(number), self.folder / name_of(number)) for number in numbers)
                return await uploads.defer_many((UploadJob(*job) for job in paths), batch=BATCH)

        return asyncio.run(defer())

    def report(self) -> QueueReport:
        """Ask for the outcomes."""

        async def report() -> QueueReport:
            async with self.application() as uploads:
                return await uploads.report(BATCH)

        return asyncio.run(report())

    def job_states(self) -> Counter[str]:
        """Count the jobs of the queue by their status."""

        async def count() -> Counter[str]:
            app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=self.dsn))
            async with app.open_async():
                jobs = await app.job_manager.list_jobs_async()
                return Counter(
                    job.status for job in jobs if "upload_id" in job.task_kwargs and job.status
                )

        return asyncio.run(count())

    def in_rooms(self) -> Counter[str]:
        """Count how often each document is in its room."""
        rooms = self.server.rooms.values()
        return Counter(file.name for room in rooms for file in room.accepted)

    def wait(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition holds; dead workers are replaced meanwhile."""
        ends_at = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < ends_at, self.picture()
            self.supervise()
            time.sleep(0.1)

    def wait_until_finished(self, seconds: float) -> QueueReport:
        """Wait until each document has an outcome."""
        reports: list[QueueReport] = []

        def is_finished() -> bool:
            time.sleep(0.3)
            try:
                reports.append(self.report())
            except (JournalError, procrastinate.exceptions.ConnectorException):
                return False  # PostgreSQL is being restarted
            return reports[-1].queued == 0

        self.wait(is_finished, seconds)
        return reports[-1]

    def picture(self) -> str:
        """Describe what is not over, for a test that fails."""
        outcomes = Counter(outcome.status for outcome in self.report().outcomes)
        errors = [path.read_text()[-1000:] for path in self.folder.glob("*.stderr")]
        jobs, report = self.job_states(), self.report()
        return f"{report.queued} are queued, {outcomes}, jobs {jobs}\n" + "\n".join(errors[-4:])


@pytest.fixture(scope="module")
def server_of_module() -> Iterator[PostgresServer]:
    """Run one PostgreSQL for all tests."""
    with postgres_running() as server:
        yield server


@pytest.fixture
def postgres(server_of_module: PostgresServer) -> Iterator[PostgresServer]:
    """Provide it; afterwards it runs, whatever a test did to it."""
    yield server_of_module
    if server_of_module.process is None:
        server_of_module.start()


@contextmanager
def site_in(
    folder: Path, postgres: PostgresServer, *, processing: float = 0.3, **options: Any
) -> Iterator[Site]:
    """Provide a database with both schemas and a server with its rooms; no worker runs."""
    server = MeetingServer(lock_seconds=WINDOW, processing_seconds=processing)
    for number in range(ROOMS):
        server.add_room(room_of(number))
    with server.run() as url:
        site = Site(postgres.new_database(), url, folder, server, options)
        asyncio.run(apply_schemas(site))
        try:
            yield site
        finally:
            site.clear()


async def apply_schemas(site: Site) -> None:
    """Make the tables."""
    async with site.application() as uploads:
        await uploads._app.schema_manager.apply_schema_async()
        await uploads.apply_schema()


# --- the proof -----------------------------------------------------------------------------------


def disturb(site: Site, dice: random.Random) -> None:
    """Lock a third of the rooms for somebody else, now or a little later."""
    for room in dice.sample(sorted(site.server.rooms), ROOMS // 3):
        site.server.rooms[room].lock(dice.uniform(0.2, 1.5), after=dice.uniform(0.0, 2.0))


def check(site: Site, report: QueueReport, documents: int) -> dict[str, int]:
    """Hold what the rooms have against what the report says. Return the numbers."""
    time.sleep(0.5)  # for what the server is still busy with
    outcomes = {outcome.document: outcome for outcome in report.outcomes}
    in_rooms = site.in_rooms()
    # Exactly one outcome for each document.
    assert len(report.outcomes) == len(outcomes) == report.total == documents
    assert set(outcomes) == {name_of(number) for number in range(documents)}
    by_status = {
        status: {name for name, outcome in outcomes.items() if outcome.status == status}
        for status in ("accepted", "unknown", "failed", "refused", "skipped")
    }
    assert sum(map(len, by_status.values())) == documents
    # Nothing is twice in a room, and nothing is where it does not belong.
    assert {name: times for name, times in in_rooms.items() if times > 1} == {}
    misplaced = [
        file.name
        for room in site.server.rooms.values()
        for file in room.accepted
        if room.room_id != room_of(number_of(file.name))
    ]
    assert misplaced == []
    # Nothing is lost: what is accepted is there, and complete.
    received = {
        file.name: file.sha256 for room in site.server.rooms.values() for file in room.received
    }
    expected = {
        name: sha256((site.folder / name).read_bytes()).hexdigest()
        for name in by_status["accepted"]
    }
    assert {name: received.get(name) for name in expected} == expected
    # What has failed is not there. Unknown is only what a room has, or what was in flight.
    assert not (by_status["failed"] | by_status["refused"] | by_status["skipped"]) & set(in_rooms)
    may_be_unknown = set(in_rooms) | (site.begun if site.is_restarted else site.in_flight)
    assert by_status["unknown"] <= may_be_unknown
    check_order(site, by_status["unknown"])
    return {
        "kills": site.kills,
        "exits": site.exits,
        "documents": documents,
        "in rooms": len(in_rooms),
        **{status: len(names) for status, names in by_status.items()},
        "unknown, but there": len(by_status["unknown"] & set(in_rooms)),
        "in flight at a kill": len(site.in_flight),
    }


def check_order(site: Site, unknown: set[str]) -> None:
    """Documents of a room arrived in the order of deferring, except for unknown ones."""
    for room in site.server.rooms.values():
        names = [file.name for file in room.accepted if file.name not in unknown]
        assert names == sorted(names, key=number_of), room


def check_jobs(site: Site, report: QueueReport) -> None:
    """The queue says the same of each job as its outcome, after the last recovery.

    After a false alarm, such as a restart of the database may cause, a job stays failed although
    its worker was alive and has got the answer.
    """
    expected = Counter(succeeded=report.accepted, failed=report.total - report.accepted)

    def is_settled() -> bool:
        states = site.job_states()
        if not site.is_restarted:
            return states == +expected
        return states.total() == report.total and states["succeeded"] <= report.accepted

    site.wait(is_settled, 20)


def run_killed(
    site: Site,
    dice: random.Random,
    *,
    documents: int,
    kills: int,
    gap: float,
    seconds: float,
    in_between: Callable[[int], None] = lambda _: None,
) -> dict[str, int]:
    """Defer, half of it while workers are killed and replaced; return the numbers of the end."""
    make_documents(site.folder, documents, dice)
    assert site.defer(range(documents // 2)) == documents // 2
    for _ in range(WORKERS):
        site.start_worker()
    site.wait(lambda: all(worker.is_ready for worker in site.workers), 30)
    disturb(site, dice)
    for kill in range(kills):
        time.sleep(dice.uniform(0.05, gap))
        if kill == kills // 2:
            assert site.defer(range(documents)) == documents - documents // 2
            disturb(site, dice)
        in_between(kill)
        site.supervise()
        busy = [worker for worker in site.workers if worker.is_ready]
        site.kill(dice.choice(busy or site.workers))
        site.start_worker()
    report = site.wait_until_finished(seconds)
    numbers = check(site, report, documents)
    check_jobs(site, report)
    assert set(site.stop()) == {0}
    return numbers


def dice_for(name: str, *, fixed: bool = False) -> random.Random:
    """Return what decides, and print how to repeat it."""
    seed = name if fixed else f"{name} {random.SystemRandom().randrange(10**9)}"
    sys.stdout.write(f"\nseed {seed!r}\n")
    return random.Random(seed)


@pytest.mark.nightly
@pytest.mark.timeout(90)
def test_killed_workers_lose_nothing_and_send_nothing_twice(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """Each document has one outcome, which is true, although three workers are killed."""
    dice = dice_for("killed")
    with site_in(tmp_path, postgres, suspect_seconds=3.0) as site:
        numbers = run_killed(site, dice, documents=120, kills=3, gap=0.8, seconds=45)
    sys.stdout.write(f"{numbers}\n")
    assert numbers["kills"] == 3
    assert numbers["accepted"] + numbers["unknown"] == 120


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("restarts", [0, 1], ids=["", "and PostgreSQL restarted"])
def test_many_killed_workers(tmp_path: Path, postgres: PostgresServer, restarts: int) -> None:
    """The same for 1,000 documents and 50 kills; PostgreSQL may be restarted under way."""
    dice = dice_for("nightly")

    def restart(kill: int) -> None:
        if restarts and kill == 20:
            site.is_restarted = True
            postgres.stop()
            time.sleep(dice.uniform(0.1, 1.5))
            postgres.start()

    with site_in(tmp_path, postgres) as site:
        numbers = run_killed(
            site, dice, documents=1000, kills=50, gap=1.5, seconds=300, in_between=restart
        )
    sys.stdout.write(f"{numbers}\n")
    assert numbers["kills"] == 50
    assert numbers["accepted"] + numbers["unknown"] == 1000


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_queue_that_forgets_is_found_out(tmp_path: Path, postgres: PostgresServer) -> None:
    """The checks can fail: without the mark before the closing boundary they do."""
    with site_in(tmp_path, postgres, processing=0.5, forgets=True) as site:
        with pytest.raises(AssertionError, match=r"== \{\}|in_flight|not"):
            run_killed(site, random.Random(7), documents=300, kills=15, gap=0.8, seconds=120)


# --- one worker ----------------------------------------------------------------------------------


def outcome_of(report: QueueReport, number: int) -> UploadOutcome:
    """Return the outcome of a document."""
    (found,) = [outcome for outcome in report.outcomes if outcome.document == name_of(number)]
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    "delivery", ["at_most_once", pytest.param("at_least_once", marks=pytest.mark.nightly)]
)
def test_what_was_not_complete_runs_again(
    tmp_path: Path, postgres: PostgresServer, delivery: str
) -> None:
    """A killed worker's complete document is unknown, or sent again if you want; the other runs."""
    with site_in(tmp_path, postgres, delivery=delivery) as site:
        for number in range(2):
            content = b"%PDF-1.7\n".ljust((16 * 1024**2) >> (20 * number), b"%d" % number)
            (tmp_path / name_of(number)).write_bytes(content)
        cut, complete = (site.server.rooms[room_of(number)] for number in range(2))
        complete.processing_seconds = 1.0
        site.server.stall_next_upload(seconds=0)  # the empty form
        site.server.stall_next_upload(after=100_000)
        site.defer(range(1))
        worker = site.start_worker()
        site.wait(lambda: name_of(0) in read_log(worker.log).begun, 15)
        site.defer(range(2))
        site.wait(lambda: bool(complete.accepted), 15)
        assert site.in_rooms()[name_of(0)] == 0

        site.kill(worker)
        site.start_worker()
        report = site.wait_until_finished(25)

        assert outcome_of(report, 0).status == "accepted"
        assert len(cut.accepted) == 1
        if delivery == "at_most_once":
            unknown = outcome_of(report, 1)
            assert (unknown.status, type(unknown.error).__name__) == (
                "unknown",
                "UploadOutcomeUnknown",
            )
            assert len(complete.accepted) == 1
        else:
            assert outcome_of(report, 1).status == "accepted"
            assert len(complete.accepted) == 2
        check_jobs(site, report)
        assert site.stop() == [0]


@pytest.mark.nightly
def test_a_worker_that_is_told_to_stop(tmp_path: Path, postgres: PostgresServer) -> None:
    """It finishes what it sends, and another worker delivers the rest; nothing is twice."""
    documents = 30
    with site_in(tmp_path, postgres, processing=0.4, concurrency=4) as site:
        make_documents(tmp_path, documents, random.Random(1))
        for number in range(0, 8, 2):
            site.server.rooms[room_of(number)].lock(2)
        site.defer(range(documents))
        first = site.start_worker()
        site.wait(lambda: len(site.in_rooms()) >= 5, 20)

        assert site.stop() == [0]
        stopped = site.report()
        in_rooms = site.in_rooms()
        assert 5 <= len(in_rooms) < documents
        assert read_log(first.log).in_flight == frozenset()
        assert (stopped.accepted, stopped.total) == (len(in_rooms), len(in_rooms))
        assert set(site.job_states()) == {"succeeded", "todo"}

        site.start_worker()
        report = site.wait_until_finished(20)
        assert check(site, report, documents)["accepted"] == documents
        assert site.stop() == [0]


@pytest.mark.nightly
@pytest.mark.timeout(180)
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_postgres_is_restarted(tmp_path: Path, postgres: PostgresServer, end: str) -> None:
    """Each document gets one outcome although the database goes away for some seconds."""
    dice = dice_for("restarted")
    documents = 300
    with site_in(tmp_path, postgres) as site:
        make_documents(tmp_path, documents, dice)
        site.defer(range(documents))
        for _ in range(WORKERS):
            site.start_worker()
        site.wait(lambda: len(site.in_rooms()) > 40, 30)
        site.is_restarted = True
        getattr(postgres, end)()
        time.sleep(dice.uniform(0.5, 4))
        postgres.start()
        site.wait_until_finished(100)
        report = site.report()
        numbers = check(site, report, documents)
        check_jobs(site, report)
        sys.stdout.write(f"{numbers}\n")
        assert numbers["accepted"] + numbers["unknown"] == documents
        site.stop()
