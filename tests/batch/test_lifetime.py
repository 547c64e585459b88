"""How batches begin and end: consumers, leaving, stopping, cancelling; what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from meeting_async import Batch, Event, MeetingClient, UploadJob, errors
from support import virtual_time
from support.fake_rooms import (
    PDF,
    Act,
    FakeRooms,
    Visit,
    absent,
    accepted,
    busy,
    client_of,
    failing,
    hanging,
    job,
    jobs_for,
    lost,
)
from support.sending import until

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]
both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@pytest.fixture
def asyncio_only(anyio_backend_name: str) -> None:
    """Leave out trio, which has no cancellation but that of scopes."""
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio's own cancellation")


class Oops(Exception):
    """What a caller's code raises."""


class TheEnd(BaseException):
    """What no program goes on after."""


def statuses(batch: Batch) -> list[str]:
    """Return what became of the jobs in the order of the input; each has one outcome."""
    outcomes = batch.report.outcomes
    assert [outcome.index for outcome in outcomes] == list(range(batch.report.total))
    return [outcome.status for outcome in outcomes]


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


@pytest.mark.parametrize("end", ["by itself", "wait", "leave"])
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
    assert statuses(batch) == ["accepted", "accepted"]


# --- leaving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["nothing", "break", "an iterator that is kept", "wait"])
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
    assert statuses(batch) == ["accepted"] * 100
    left = [outcome async for outcome in batch]
    assert len(left) == (99 if body == "an iterator that is kept" else 0)


@pytest.mark.parametrize(
    "error",
    [
        *(Oops("x"), SystemExit(3), StopAsyncIteration(), StopIteration()),
        *(ExceptionGroup("mine", [Oops("y")]), GeneratorExit()),
    ],
    ids=lambda error: type(error).__name__,
)
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
        assert sorted(statuses(batch)) == ["skipped"] * 4 + ["unknown"] * 2
        await check_idle(batch, client)


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


async def test_the_program_ends_in_a_job() -> None:
    """What is no Exception comes out bare; the rest is accounted for.

    Not with Ctrl-C itself, which asyncio lets out of the whole loop wherever a task raises it.
    """

    def interrupted(visit: Visit) -> Act:
        return failing(TheEnd(), take=5) if visit.room == "room00" else hanging(take=5)

    async with client_of(FakeRooms(interrupted)) as client:
        with pytest.raises(TheEnd):
            async with client.upload_many(jobs_for(3, 1)) as batch:
                await batch.wait()
    assert batch.report.total == 3
    assert statuses(batch)[0] == "failed"
    assert set(statuses(batch)) <= {"failed", "skipped"}


# --- cancellation from outside -------------------------------------------------------------------


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


@pytest.mark.parametrize("by", ["scope", "timeout"])
@pytest.mark.parametrize("when", ["in the block", "while it is left"])
async def test_cancelled_from_outside(when: str, by: str, anyio_backend_name: str) -> None:
    """It ends in time, and the scope knows that it caught it; nothing begins any more."""
    if by == "timeout" and anyio_backend_name != "asyncio":
        pytest.skip("asyncio's own cancellation")
    events: list[Event] = []
    rooms = FakeRooms(lambda visit: hanging() if visit.number == 1 else accepted())
    async with client_of(rooms) as client, anyio.create_task_group() as tasks:

        async def strike(cancel: Callable[[], object]) -> None:
            await until(lambda: out(rooms) >= 3)
            cancel()

        async with limit(by) as cancel:
            tasks.start_soon(strike, cancel)
            async with client.upload_many(jobs_for(3, 2), on_event=events.append) as batch:
                if when == "in the block":
                    await batch.wait()
        assert sorted(statuses(batch)) == ["skipped"] * 3 + ["unknown"] * 3
        unknown = {o.index for o in batch.report.outcomes if o.status == "unknown"}
        assert {event.index for event in events} == unknown
        for outcome in batch.report.outcomes:
            is_out = outcome.status == "unknown"
            kind = errors.UploadOutcomeUnknown if is_out else errors.BatchStopped
            assert isinstance(outcome.error, kind)
        await check_idle(batch, client)


@pytest.mark.parametrize("how", ["generator", "document", "transport", "late"])
async def test_a_cancellation_that_nobody_asked_for(how: str) -> None:
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
    assert statuses(batch) == (
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


@pytest.mark.parametrize("how", ["scope", "task"])
async def test_cancelled_at_any_moment(how: str, anyio_backend_name: str) -> None:
    """No permit, lock or task is left, each job that was read has one outcome, the next works."""
    if how == "task" and anyio_backend_name != "asyncio":
        pytest.skip("asyncio's own cancellation")
    cancelled = natively_cancelled if how == "task" else cancelled_by_scope
    seen: set[str] = set()
    rooms = FakeRooms()
    async with client_of(rooms) as client:
        for steps in itertools.count(1):
            batches: list[Batch] = []

            async def run(steps: int = steps, batches: list[Batch] = batches) -> None:
                jobs = [UploadJob(f"r{steps}-{n % 2}", PDF, filename=f"{n}.pdf") for n in range(4)]
                async with client.upload_many(jobs, concurrency=1, window=2) as batch:
                    batches.append(batch)
                    async for _ in batch:
                        pass

            struck = await cancelled(steps, run)
            for batch in batches:
                seen.update(statuses(batch))
                await check_idle(batch, client)
            assert rooms.running == 0
            if not struck:
                break
    assert seen >= {"accepted", "skipped"}
    assert steps > 10


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["iteration", "wait", "leaving"])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_the_input_raises(kind: str, where: str) -> None:
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
    assert statuses(batch) == ["accepted"] * 3
    assert came == (["accepted"] * 3 if where == "iteration" else [])
    assert batch.report.stopped_by is error
    with pytest.raises(errors.BatchFailed, match="row 3") as failed:
        batch.report.raise_for_failures()
    assert failed.value.__cause__ is error


@pytest.mark.parametrize("item", [None, ("room", "deck.pdf"), "deck.pdf", UploadJob])
async def test_an_item_that_is_no_job(item: Any) -> None:
    """It is named by its place; those read before still end."""
    jobs = [job("a", 0), job("a", 1), item, job("a", 2)]
    async with client_of(FakeRooms()) as client, client.upload_many(jobs) as batch:
        with pytest.raises(TypeError, match="job 2 must be an UploadJob"):
            await batch.wait()
    assert statuses(batch) == ["accepted", "accepted"]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("end", ["raised", "stopped"])
async def test_generators_are_closed(kind: str, end: str) -> None:
    """However the batch ends, their ``finally`` has run when the block is left."""
    closed: list[bool] = []

    def plain() -> Iterator[UploadJob]:
        try:
            for number in itertools.count():
                yield job("room", number)
        finally:
            closed.append(True)

    async def asynchronous() -> AsyncIterator[UploadJob]:
        try:
            yield job("room")
            await anyio.sleep_forever()
        finally:
            closed.append(True)

    async with client_of(FakeRooms()) as client:
        with contextlib.suppress(Oops):
            jobs: Any = plain() if kind == "sync" else asynchronous()
            async with client.upload_many(jobs, window=5) as batch:
                outcome = await anext(aiter(batch))
                if end == "raised":
                    raise Oops
                batch.stop()
    assert closed
    assert outcome.index == 0


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_other_tasks_run_while_jobs_are_read(kind: str, tmp_path: Path) -> None:
    """A generator that never waits does not hold the loop for 20 ms (findings 5.9)."""
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


@both
@pytest.mark.parametrize("delivery", ["at_most_once", "at_least_once"])
def test_stopping_waits_for_nothing_else(backend: str, delivery: Any) -> None:
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

    seconds, batch = virtual_time.run(backend, run)
    assert seconds == pytest.approx(20, abs=1)
    assert statuses(batch)[6:] == ["skipped"] * 49
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
    """It says so on entering; nothing is left unclosed."""
    client = client_of(FakeRooms())
    await client.aclose()
    batch = client.upload_many([job("a")])
    with pytest.raises(RuntimeError, match="closed"):
        async with batch:
            pass
    del batch
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.upload_many([job("a")])
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
