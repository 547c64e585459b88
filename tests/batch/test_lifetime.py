"""How batches begin and end: consumers, leaving, stopping, cancelling; what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from meeting_async import Batch, Event, MeetingClient, UploadJob, errors
from meeting_async.testing import run_in_virtual_time
from support.batches import job, jobs_for, statuses
from support.documents import PDF
from support.fake_rooms import (
    Act,
    FakeRooms,
    Visit,
    absent,
    accepted,
    busy,
    client_of,
    failing,
    hanging,
    lost,
    record,
    reply,
)
from support.journals import MemoryJournal
from support.sending import until
from support.tables import LOOPS, crossed, in_turn

pytestmark = pytest.mark.anyio
both_loops = pytest.mark.both_loops


class Oops(Exception):
    """What a caller's code raises."""


class TheEnd(BaseException):
    """What no program goes on after."""


async def check_idle(batch: Batch, client: MeetingClient) -> None:
    """See that no room's lock is taken: the next batch to the same rooms is refused by nobody."""
    used = {outcome.room_id for outcome in batch.report.outcomes if outcome.attempts}
    again = [job(room, number, name="another.pdf") for room in used for number in range(2)]
    async with client.upload_many(again, max_wait=0) as following:
        assert (await following.wait()).accepted == len(again)


def out(rooms: FakeRooms) -> int:
    """Count the documents that were sent to their end."""
    return sum(visit.is_complete for visit in rooms.uploads)


# --- consumers -----------------------------------------------------------------------------------


@in_turn("end", ["by itself", "wait", "leave"])
async def test_several_consumers(end: str) -> None:
    """Each outcome goes to one of them, and every one ends when the last job has, however slow.

    Nobody needs to wait for the batch or to leave its block; those that iterate outlive it.
    """
    came: dict[int, list[int]] = {number: [] for number in range(3)}

    async def consume(number: int, batch: Batch) -> None:
        async for outcome in batch:
            came[number].append(outcome.index)
            await anyio.sleep(0.001 * number)

    async with client_of(FakeRooms(seconds=0.001)) as client, anyio.create_task_group() as outside:
        async with client.upload_many(jobs_for(10, 10), window=20) as batch:
            with anyio.fail_after(10):
                async with anyio.create_task_group() as inside:
                    for number in came:
                        tasks = inside if end == "by itself" else outside
                        tasks.start_soon(consume, number, batch)
            if end == "wait":
                await batch.wait()
    assert sorted(itertools.chain(*came.values())) == list(range(100))
    assert all(came.values())


@both_loops
async def test_a_slow_consumer_stops_the_reading_and_nothing_else() -> None:
    """No more is read than the window holds; what was read goes on to its end."""
    read: list[int] = []

    def numbered() -> Iterator[UploadJob]:
        for number in itertools.count():
            read.append(number)
            yield job(f"room{number % 4}", number)

    rooms = FakeRooms()
    async with client_of(rooms) as client, client.upload_many(numbered(), window=10) as batch:
        await until(lambda: batch.report.accepted == 10)
        await anyio.wait_all_tasks_blocked()
        assert len(read) == 11
        outcomes = aiter(batch)
        for _ in range(5):
            await anext(outcomes)
        await until(lambda: batch.report.accepted == 15)
        await anyio.wait_all_tasks_blocked()
        assert (len(read), rooms.running) == (16, 0)
        batch.stop()


async def test_a_generator_that_waits_for_outcomes_of_its_batch() -> None:
    """The first answer decides what comes next."""
    ended = anyio.Event()

    async def read() -> AsyncIterator[UploadJob]:
        yield job("a", 0)
        await ended.wait()
        yield job("a", 1)

    async with client_of(FakeRooms()) as client, client.upload_many(read()) as batch:
        with anyio.fail_after(20):
            async for _ in batch:
                ended.set()
    assert statuses(batch.report) == ["accepted", "accepted"]


# --- leaving -------------------------------------------------------------------------------------


@in_turn("body", ["nothing", "break", "an iterator that is kept", "wait"])
async def test_leaving_the_block_waits_for_all_jobs(body: str) -> None:
    """However many outcomes nobody has taken; they are in the report."""
    async with client_of(FakeRooms(seconds=0.001)) as client:
        async with client.upload_many(jobs_for(10, 10), window=7) as batch:
            kept = aiter(batch)
            if body in {"break", "an iterator that is kept"}:
                assert (await anext(kept)).status == "accepted"
            if body != "an iterator that is kept":
                del kept
            if body == "wait":
                assert (await batch.wait()).total == 100
    assert statuses(batch.report) == ["accepted"] * 100
    left = [outcome async for outcome in batch]
    assert len(left) == (99 if body == "an iterator that is kept" else 0)


RAISED = [
    *(Oops("x"), SystemExit(3), StopAsyncIteration(), StopIteration()),
    *(ExceptionGroup("mine", [Oops("y")]), GeneratorExit()),
]


@in_turn("error", [(type(error).__name__, error) for error in RAISED])
async def test_what_the_body_raises_comes_out_as_it_is(error: BaseException) -> None:
    """No group around it, its place in the traceback; what was on its way is cut off."""
    rooms = FakeRooms(lambda visit: hanging() if visit.number == 1 else accepted())
    async with client_of(rooms) as client:
        with pytest.raises(type(error)) as caught:  # noqa: PT012 - the block is what is tested
            async with client.upload_many(jobs_for(3, 2), concurrency=2) as batch:
                await until(lambda: out(rooms) == 2)
                raise error
        assert caught.value is error
        assert "raise error" in str(caught.traceback[0].statement)
        assert sorted(statuses(batch.report)) == ["skipped"] * 4 + ["unknown"] * 2
        await check_idle(batch, client)


@both_loops
async def test_an_error_while_cancelled_is_not_lost() -> None:
    """As without a batch: what a body raises when it is cancelled wins."""
    async with client_of(FakeRooms(lambda _: hanging())) as client:
        with pytest.raises(Oops), anyio.CancelScope() as scope:  # noqa: PT012 - as above
            async with client.upload_many(jobs_for(2, 2)):
                try:
                    scope.cancel()
                    await anyio.sleep_forever()
                finally:
                    raise Oops


@both_loops
async def test_a_keyboard_interrupt_in_a_job_comes_out_bare() -> None:
    """As any other BaseException, without a group around it; the rest is accounted for.

    Not with Ctrl-C itself, which asyncio lets out of the whole loop wherever a task raises it.
    """

    def interrupted(visit: Visit) -> Act:
        return failing(TheEnd(), take=5) if visit.room == "room00" else hanging(take=5)

    async with client_of(FakeRooms(interrupted)) as client:
        with pytest.raises(TheEnd):
            async with client.upload_many(jobs_for(3, 1)) as batch:
                await batch.wait()
    assert batch.report.total == 3
    assert statuses(batch.report)[0] == "failed"
    assert set(statuses(batch.report)) <= {"failed", "skipped"}


# --- cancellation from outside -------------------------------------------------------------------


by_scope_and_natively = pytest.mark.parametrize(
    ("anyio_backend", "by"),
    [("asyncio", "scope"), ("trio", "scope"), ("asyncio", "asyncio's own")],
    indirect=["anyio_backend"],
)


@contextlib.asynccontextmanager
async def limit(by: str) -> AsyncIterator[Callable[[], object]]:
    """Give a way to cancel the block, as a scope or asyncio's own timeout does."""
    if by == "scope":
        with anyio.CancelScope() as scope:
            yield scope.cancel
        assert scope.cancelled_caught
        return
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as timeout:
            yield lambda: timeout.reschedule(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@by_scope_and_natively
@pytest.mark.parametrize("when", ["in the block", "while it is left"])
async def test_a_batch_that_is_cancelled_from_outside(when: str, by: str) -> None:
    """It ends in time, and the scope knows that it caught it; nothing begins any more.

    A note on the cancellation says how many documents may have arrived.
    """
    events: list[Event] = []
    rooms = FakeRooms(lambda visit: hanging() if visit.number == 1 else accepted())
    async with client_of(rooms) as client, anyio.create_task_group() as tasks:

        async def strike(cancel: Callable[[], object]) -> None:
            await until(lambda: out(rooms) >= 3)
            cancel()

        async with limit(by) as cancel:
            tasks.start_soon(strike, cancel)
            try:
                async with client.upload_many(jobs_for(3, 2), on_event=events.append) as batch:
                    if when == "in the block":
                        await batch.wait()
            except BaseException as error:
                notes = error.__notes__
                raise
        assert "3 of its documents may have arrived: see batch.report" in notes
        assert sorted(statuses(batch.report)) == ["skipped"] * 3 + ["unknown"] * 3
        unknown = {o.index for o in batch.report.outcomes if o.status == "unknown"}
        assert {event.index for event in events} == unknown
        for outcome in batch.report.outcomes:
            is_out = outcome.status == "unknown"
            kind = errors.UploadOutcomeUnknown if is_out else errors.BatchStopped
            assert isinstance(outcome.error, kind)
        await check_idle(batch, client)


@in_turn("how", ["generator", "document", "transport", "late"])
async def test_a_stray_cancelled_error_fails_one_job(how: str) -> None:
    """To await what was cancelled elsewhere raises CancelledError: the failure of one job."""

    async def pieces() -> AsyncIterator[bytes]:
        yield PDF
        raise asyncio.CancelledError

    async def read() -> AsyncIterator[UploadJob]:
        yield job("good", 0)
        if how == "generator":
            raise asyncio.CancelledError
        yield job("bad", 0, pieces() if how == "document" else PDF)
        yield job("good", 1)

    def answer(visit: Visit) -> Act:
        if visit.room != "bad" or how not in {"transport", "late"}:
            return accepted()
        return failing(asyncio.CancelledError(), take=5 if how == "transport" else None)

    async with client_of(FakeRooms(answer)) as client, client.upload_many(read()) as batch:
        if how == "generator":
            with pytest.raises(asyncio.CancelledError):
                await batch.wait()
        else:
            await batch.wait()
    bad = "unknown" if how == "late" else "failed"
    assert statuses(batch.report) == (
        ["accepted"] if how == "generator" else ["accepted", bad, "accepted"]
    )


async def natively_cancelled(steps: int, function: Callable[[], Any]) -> bool:
    """Run a function and cancel its task, as ``asyncio.timeout`` does; tell whether it struck."""
    task = asyncio.create_task(function())
    for _ in range(steps):
        await asyncio.sleep(0)
    struck = task.cancel()
    await asyncio.wait([task])
    return struck


async def cancelled_by_scope(steps: int, function: Callable[[], Any]) -> bool:
    """Run a function in a scope that is cancelled after so many steps of the loop."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

            tasks.start_soon(cancel)
            await function()
            tasks.cancel_scope.cancel()
    return scope.cancelled_caught


@attrs.define(eq=False)
class Door(MemoryJournal):
    """A journal that knows whether it is open."""

    is_open: bool = False

    def opened(self, _server: str) -> Any:
        """Open it, without a generator that the collector would close."""
        return self

    async def __aenter__(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.is_open = True

    async def __aexit__(self, *_exception: object) -> None:
        self.is_open = False


@by_scope_and_natively
async def test_a_batch_cancelled_at_any_moment_leaves_nothing(by: str) -> None:
    """No permit, lock or task is left, each job that was read has one outcome, the next works.

    The journal is closed.
    """
    cancelled, door = cancelled_by_scope if by == "scope" else natively_cancelled, Door()
    seen: set[str] = set()
    rooms = FakeRooms()
    async with client_of(rooms) as client:
        for steps in itertools.count(1):
            batches: list[Batch] = []

            async def run(steps: int = steps, batches: list[Batch] = batches) -> None:
                jobs = [UploadJob(f"r{steps}-{n % 2}", PDF, filename=f"{n}.pdf") for n in range(4)]
                how: dict[str, Any] = {"journal": door, "concurrency": 1, "window": 2}
                async with client.upload_many(jobs, **how) as batch:
                    batches.append(batch)
                    async for _ in batch:
                        pass

            struck = await cancelled(steps, run)
            for batch in batches:
                seen.update(statuses(batch.report))
                await check_idle(batch, client)
            assert (rooms.running, door.is_open) == (0, False)
            if not struck:
                break
    assert seen >= {"accepted", "skipped"}
    assert steps > 10


# --- reading -------------------------------------------------------------------------------------


@crossed(where=("iteration", "wait", "leaving"), kind=("sync", "async"), anyio_backend=LOOPS)
async def test_an_input_that_raises(kind: str, where: str) -> None:
    """Those read before still end; then the caller's own exception comes out, as it is and once."""
    error = Oops("row 3")

    def plain() -> Iterator[UploadJob]:
        yield from jobs_for(3, 1)
        raise error

    async def asynchronous() -> AsyncIterator[UploadJob]:
        for one in plain():
            yield one

    came = []
    async with client_of(FakeRooms(seconds=0.02)) as client:
        with pytest.raises(Oops) as caught:  # noqa: PT012 - the block is what is tested
            async with client.upload_many(plain() if kind == "sync" else asynchronous()) as batch:
                if where == "wait":
                    await batch.wait()
                elif where == "iteration":
                    async for outcome in batch:
                        came.append(outcome.status)  # noqa: PERF401 - it raises at the end
        assert caught.value is error
        assert "plain" in [entry.name for entry in caught.traceback]
        assert (await batch.wait()).total == 3
    assert statuses(batch.report) == ["accepted"] * 3
    assert came == (["accepted"] * 3 if where == "iteration" else [])
    assert batch.report.stopped_by is error
    with pytest.raises(errors.BatchFailed, match="row 3") as failed:
        batch.report.raise_for_failures()
    assert failed.value.__cause__ is error


async def test_an_item_that_is_no_job() -> None:
    """It is named by its place; those read before still end."""
    jobs: list[Any] = [job("a", 0), job("a", 1), UploadJob, job("a", 2)]
    async with client_of(FakeRooms()) as client, client.upload_many(jobs) as batch:
        with pytest.raises(TypeError, match="job 2 must be an UploadJob"):
            await batch.wait()
    assert statuses(batch.report) == ["accepted", "accepted"]


@crossed(
    kind=("sync", "async", "with a length"),
    end=("wrong key", "raised", "stopped"),
    anyio_backend=LOOPS,
)
async def test_a_generator_is_not_read_on(kind: str, end: str) -> None:
    """It is closed when the block is left, though it has no end; what was read is accounted for.

    However the batch ends, and also if it has a length, as a progress bar has.
    """
    read, closed = list[int](), list[bool]()

    def plain() -> Iterator[UploadJob]:
        try:
            for number in itertools.count():
                read.append(number)
                yield job(f"room{number}", number)
        finally:
            closed.append(True)

    async def asynchronous() -> AsyncIterator[UploadJob]:
        try:
            for number in range(5):
                read.append(number)
                yield job(f"room{number}", number)
            await anyio.sleep_forever()
        finally:
            closed.append(True)

    class ProgressBar:
        def __len__(self) -> int:
            return 10**9

        def __iter__(self) -> Iterator[UploadJob]:
            return plain()

    wrong_key = reply(401, record("INVALID_API_KEY"))
    rooms = FakeRooms(ask=lambda _: wrong_key if end == "wrong key" else accepted())
    kinds: dict[str, Callable[[], Any]]
    kinds = {"sync": plain, "async": asynchronous, "with a length": ProgressBar}
    async with client_of(rooms) as client:
        with contextlib.suppress(Oops):
            async with client.upload_many(kinds[kind](), window=50) as batch:
                await anext(aiter(batch))
                if end == "raised":
                    raise Oops
                if end == "stopped":
                    batch.stop()
    assert batch.report.total == len(read) < 60
    assert closed
    if end == "wrong key":
        assert isinstance(batch.report.stopped_by, errors.AuthenticationFailed)
        assert len(rooms.visits) == 1


@in_turn("kind", ["sync", "async"])
async def test_other_tasks_run_while_jobs_are_read(kind: str, tmp_path: Path) -> None:
    """A generator that never waits does not hold the loop for 20 ms."""
    turns, document = 0, PDF.ljust(250_000)  # with a journal it is hashed when it is read

    async def count() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    def plain() -> Iterator[UploadJob]:
        before, began = turns, time.thread_time()
        for number in range(1000):  # all at once it would be a quarter of a second
            yield job("room", number, document)
        found.append((turns - before, time.thread_time() - began))

    async def asynchronous() -> AsyncIterator[UploadJob]:
        for one in plain():
            yield one

    found = list[tuple[int, float]]()
    rooms = FakeRooms(ask=lambda _: hanging())
    async with client_of(rooms) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        jobs = plain() if kind == "sync" else asynchronous()
        async with client.upload_many(jobs, journal=tmp_path / "term.db") as batch:
            await until(lambda: found)
            batch.stop()
        tasks.cancel_scope.cancel()
    ((turns, seconds),) = found
    assert turns >= seconds / 0.02


# --- stopping ------------------------------------------------------------------------------------


@in_turn("delivery", ["at_most_once", "at_least_once"], loop="backend")
def test_stopping_lets_answers_come_and_sends_nothing_more(backend: str, delivery: Any) -> None:
    """What is being answered comes to its end; what waits, now or then, ends at once, unsent.

    Nothing new is begun, and a list is accounted for to its end, beyond the window, too.
    """

    def answer(visit: Visit) -> Act:
        match visit.room:
            case "locked":
                return busy()
            case "locked at last":
                return busy(replying=20.0)
            case "lost":
                return lost()
        return accepted(replying=20.0)

    async def slow() -> AsyncIterator[bytes]:
        yield PDF
        await anyio.sleep(3600)

    async def run() -> tuple[float, Batch]:
        began = anyio.current_time()
        rooms = FakeRooms(
            answer,
            ask=lambda v: (
                absent() if v.room == "absent" else busy() if v.kind == "probe" else accepted()
            ),
        )
        names = ("free", "locked", "locked at last", "absent", "lost")
        jobs = [*(job(name) for name in names), job("unread", 0, slow())]
        jobs += [job("free", number) for number in range(1, 50)]
        async with client_of(rooms, delivery=delivery) as client:
            async with client.upload_many(jobs, wait_active=600, window=20) as batch:
                await anyio.sleep(10)
                batch.stop()
                batch.stop()
        assert len(rooms.of("upload", "lost")) == len(rooms.of("upload", "free")) == 1
        return anyio.current_time() - began, batch

    seconds, batch = run_in_virtual_time(run, backend=backend)
    assert seconds == pytest.approx(20, abs=1)
    assert statuses(batch.report)[6:] == ["skipped"] * 49
    assert batch.report.stopped_by is None
    with pytest.raises(errors.BatchFailed, match="skipped"):
        batch.report.raise_for_failures()
    found = {outcome.room_id: outcome for outcome in batch.report.outcomes[:6]}
    assert {room: outcome.status for room, outcome in found.items()} == {
        "free": "accepted",
        "locked": "failed",
        "locked at last": "failed",
        "absent": "skipped",
        "lost": "unknown",
        "unread": "skipped",
    }
    stopped = [found[room].error for room in ("locked", "locked at last", "absent", "unread")]
    assert all(isinstance(error, errors.BatchStopped) for error in stopped)
    assert isinstance(found["lost"].error, errors.UploadOutcomeUnknown)


async def test_a_batch_stopped_before_it_begins() -> None:
    """Nothing is sent; of a generator nothing is read."""
    read: list[int] = []

    def numbered() -> Iterator[UploadJob]:
        for number in range(9):
            read.append(number)
            yield job("a", number)

    for jobs, total in ((list(numbered()), 9), (numbered(), 0)):
        rooms = FakeRooms()
        read.clear()
        async with client_of(rooms) as client:
            batch = client.upload_many(jobs)
            batch.stop()
            async with batch:
                report = await batch.wait()
        assert rooms.visits == []
        assert report.skipped == report.total >= total
        assert len(read) <= 1


# --- misuse --------------------------------------------------------------------------------------


async def test_a_batch_runs_once_and_in_its_block() -> None:
    """Anything else is a mistake that shows; afterwards there is nothing more."""
    async with client_of(FakeRooms()) as client:
        batch = client.upload_many([job("a")])
        with pytest.raises(RuntimeError, match="in an `async with` block"):
            aiter(batch)
        with pytest.raises(RuntimeError, match="in an `async with` block"):
            await batch.wait()
        async with batch:
            with pytest.raises(RuntimeError, match="a batch runs once"):
                await batch.__aenter__()
            assert (await batch.wait()) is (await batch.wait()) is batch.report
        with pytest.raises(RuntimeError, match="a batch runs once"):
            await batch.__aenter__()
        assert [outcome async for outcome in batch] == []
        assert (await batch.wait()).accepted == 1
        batch.stop()


async def test_a_closed_client() -> None:
    """It says so on entering; nothing is left unclosed, which would be a warning."""
    client = client_of(FakeRooms())
    await client.aclose()
    batch = client.upload_many([job("a")])
    with pytest.raises(RuntimeError, match="closed"):
        async with batch:
            pass
    del batch
    client.upload_many([job("a")])
    gc.collect()
