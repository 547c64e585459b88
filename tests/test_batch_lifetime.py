"""How batches begin and end: reading, leaving, stopping, cancelling; what they leave behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from _batches import PDF, Town, Visit, client_of, job, jobs_for
from _fakes import Act, Take, accepted, busy, failing, hanging, record, reply
from _wires import cancelled_by_scope, cancelled_natively, living_tasks
from meeting_async import Batch, MeetingClient, UploadJob
from meeting_async.errors import BatchFailed, BatchStopped, ConnectionLost, UploadOutcomeUnknown

pytestmark = pytest.mark.anyio

InVirtualTime = Callable[..., Any]


class Oops(Exception):
    """What a caller's code raises."""


def statuses(batch: Batch) -> list[str]:
    """Return what became of the jobs in the order of the input; each has one outcome."""
    outcomes = batch.report.outcomes
    assert [outcome.index for outcome in outcomes] == list(range(batch.report.total))
    return [outcome.status for outcome in outcomes]


class TheEnd(BaseException):
    """What no program goes on after."""


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    with anyio.fail_after(5):
        while not condition():  # noqa: ASYNC110 - whatever it is
            await anyio.sleep(0.001)


def record_of_absent() -> Act:
    """Answer that there is no such room."""
    return reply(200, record("ROOM_NOT_FOUND", status=False))


def is_idle(batch: Batch, client: MeetingClient) -> bool:
    """Tell whether neither a slot nor a place at a room's door is taken."""
    gate: Any = client._calls.shared.gate
    return batch._slots.free == batch._terms.concurrency and not gate._lines


async def works(client: MeetingClient) -> None:
    """See that the next batch of a client works."""
    async with client.upload_many([job("another", 0), job("another", 1)]) as batch:
        report = await batch.wait()
    assert report.accepted == 2


# --- what the caller's body raises ---------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        *(Oops("x"), KeyboardInterrupt(), SystemExit(3), StopAsyncIteration(), StopIteration()),
        *(ExceptionGroup("mine", [Oops("y")]), GeneratorExit()),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_the_body_raises_comes_out_as_it_is(error: BaseException) -> None:
    """No group around it; what was on its way is cut off, and everything accounted for."""
    town = Town(lambda visit: hanging() if visit.room != "another" else accepted())
    async with client_of(town) as client:
        with pytest.raises(type(error)) as caught:  # noqa: PT012
            async with client.upload_many(jobs_for(3, 2), concurrency=2) as batch:
                await until(lambda: sum(v.exchange.complete for v in town.uploads) == 2)
                raise error
        assert caught.value is error
        assert sorted(statuses(batch)) == ["skipped"] * 4 + ["unknown"] * 2
        assert is_idle(batch, client)
        await works(client)


async def test_an_error_while_cancelled_is_not_lost() -> None:
    """As without a batch: what a body raises when it is cancelled wins."""
    async with client_of(Town(lambda _: hanging())) as client:
        with pytest.raises(Oops), anyio.move_on_after(0.05):  # noqa: PT012
            async with client.upload_many(jobs_for(2, 2)):
                try:
                    await anyio.sleep_forever()
                finally:
                    raise Oops


async def test_a_loop_that_is_left_early() -> None:
    """What is on its way is cut off, what was read is accounted for."""
    town = Town(lambda visit: accepted() if visit.room == "room00" else hanging())
    async with client_of(town) as client:
        async with client.upload_many(jobs_for(4, 2), concurrency=4) as batch:
            async for outcome in batch:
                assert outcome.room_id == "room00"
                await until(lambda: town.running >= 3)
                break
        assert statuses(batch)[0] == "accepted"
        assert {"accepted", "unknown", "skipped"} >= set(statuses(batch)) > {"skipped"}
        assert batch.report.total == 8
        assert is_idle(batch, client)


async def test_the_program_ends_in_a_job() -> None:
    """What is no Exception comes out bare; the rest is accounted for.

    Not with Ctrl-C itself, which asyncio lets out of the whole loop wherever a task raises it.
    """

    def interrupted(visit: Visit) -> Any:
        return failing(TheEnd(), take=5) if visit.room == "room00" else hanging(take=5)

    async with client_of(Town(interrupted)) as client:
        with pytest.raises(TheEnd):
            async with client.upload_many(jobs_for(3, 1)) as batch:
                await batch.wait()
    assert batch.report.total == 3
    assert statuses(batch)[0] == "failed"
    assert set(statuses(batch)) <= {"failed", "skipped"}


# --- cancellation from outside -------------------------------------------------------------------


async def test_a_scope_around_the_batch() -> None:
    """It ends in time; the scope knows that it caught it."""
    town = Town(lambda visit: hanging() if visit.room != "another" else accepted())
    async with client_of(town) as client:
        with anyio.CancelScope() as scope:
            async with client.upload_many(jobs_for(3, 2)) as batch, anyio.create_task_group() as g:
                g.start_soon(batch.wait)
                await until(lambda: sum(v.exchange.complete for v in town.uploads) == 3)
                scope.cancel()
        assert scope.cancelled_caught
        assert sorted(statuses(batch)) == ["skipped"] * 3 + ["unknown"] * 3
        for outcome in batch.report.outcomes:
            kind = UploadOutcomeUnknown if outcome.status == "unknown" else BatchStopped
            assert isinstance(outcome.error, kind)
        assert is_idle(batch, client)
        await works(client)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_timeout_of_asyncio(anyio_backend: str) -> None:
    """It becomes the TimeoutError that it is."""
    town = Town(lambda _: hanging())
    async with client_of(town) as client:
        batch = client.upload_many(jobs_for(3, 2))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), batch:
                await batch.wait()
    assert batch.report.total == 6
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_that_is_cancelled(anyio_backend: str) -> None:
    """``Task.cancel`` ends as cancelled, once everything is accounted for."""
    town, batches = Town(lambda _: hanging()), []

    async def run() -> None:
        async with client_of(town) as client, client.upload_many(jobs_for(3, 2)) as batch:
            batches.append(batch)
            await batch.wait()

    task = asyncio.create_task(run())
    await until(lambda: town.running == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert batches[0].report.total == 6


@pytest.mark.parametrize("how", ["generator", "document", "transport", "late"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancellation_that_nobody_asked_for(anyio_backend: str, how: str) -> None:
    """To await what was cancelled elsewhere raises CancelledError: the failure of one job."""
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    future.cancel()

    async def pieces() -> AsyncIterator[bytes]:
        yield PDF
        yield await future

    async def read() -> AsyncIterator[UploadJob]:
        yield job("good", 0)
        if how == "generator":
            await future
        yield job("bad", 0, pieces() if how == "document" else PDF)
        yield job("good", 1)

    take = 5 if how == "transport" else -1
    is_bad = how in {"transport", "late"}
    town = Town(
        lambda visit: (
            failing(asyncio.CancelledError(), **({"take": take} if take > 0 else {}))
            if is_bad and visit.room == "bad"
            else accepted()
        )
    )
    async with client_of(town) as client, client.upload_many(read()) as batch:
        if how == "generator":
            with pytest.raises(asyncio.CancelledError):
                await batch.wait()
        else:
            await batch.wait()
    bad = "unknown" if how == "late" else "failed"
    expected = ["accepted"] if how == "generator" else ["accepted", bad, "accepted"]
    assert statuses(batch) == expected


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_the_input_raises(kind: str) -> None:
    """Those read before still end, then iteration raises the caller's own exception, once."""
    error = Oops("row 3")

    def plain() -> Iterator[UploadJob]:
        yield from jobs_for(3, 1)
        raise error

    async def asynchronous() -> AsyncIterator[UploadJob]:
        for one in plain():
            yield one

    came = []
    async with client_of(Town(seconds=0.05)) as client:
        jobs: Any = plain() if kind == "sync" else asynchronous()
        async with client.upload_many(jobs) as batch:
            with pytest.raises(Oops) as caught:  # noqa: PT012
                async for outcome in batch:
                    came.append(outcome.status)  # noqa: PERF401 - it raises at the end
            assert caught.value is error
            assert (await batch.wait()).total == 3
    assert came == ["accepted"] * 3
    assert batch.report.stopped_by is error
    with pytest.raises(BatchFailed, match="row 3") as failed:
        batch.report.raise_for_failures()
    assert failed.value.__cause__ is error


@pytest.mark.parametrize("item", [None, ("room", "deck.pdf"), "deck.pdf", UploadJob])
async def test_an_item_that_is_no_job(item: Any) -> None:
    """It is named by its place; those read before still end."""
    jobs = [job("a", 0), job("a", 1), item, job("a", 2)]
    async with client_of(Town()) as client, client.upload_many(jobs) as batch:
        with pytest.raises(TypeError, match="job 2 must be an UploadJob"):
            await batch.wait()
    assert statuses(batch) == ["accepted", "accepted"]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("end", ["left", "raised", "stopped", "doomed"])
async def test_generators_are_closed(kind: str, end: str) -> None:
    """However the batch ends, their ``finally`` has run when the block is left."""
    closed, waits = [], end != "doomed"

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

    town = Town() if waits else Town(ask=lambda _: failing(Oops("no"), take=0))
    jobs: Any = plain() if kind == "sync" else asynchronous()
    async with client_of(town) as client:
        try:
            async with client.upload_many(jobs, window=5) as batch:
                outcome = await anext(batch)
                if end == "raised":
                    raise Oops  # noqa: TRY301
                if end in {"stopped", "doomed"}:
                    batch.stop()
                    with anyio.fail_after(5):
                        await batch.wait()
                    assert closed
        except Oops:
            pass
    assert closed
    assert outcome.index == 0


async def test_stopping_does_not_wait_for_the_next_job() -> None:
    """A generator that waits for ever is given up."""

    async def waiting() -> AsyncIterator[UploadJob]:
        yield job("a")
        await anyio.sleep_forever()

    async with client_of(Town()) as client, client.upload_many(waiting()) as batch:
        await anext(batch)
        batch.stop()
        with anyio.fail_after(2):
            report = await batch.wait()
    assert report.accepted == report.total == 1


async def test_stopping_lets_end_what_is_on_its_way() -> None:
    """Nothing new is begun, and a list is accounted for to its end."""
    town = Town(seconds=0.05)
    client = client_of(town)
    async with client, client.upload_many(jobs_for(2, 50), concurrency=2, window=10) as batch:
        await anext(batch)
        await until(lambda: town.running == 2)
        batch.stop()
        batch.stop()
        await batch.wait()
    assert 2 <= batch.report.accepted <= 4
    assert batch.report.skipped == 100 - batch.report.accepted
    assert statuses(batch).count("skipped") == batch.report.skipped
    assert batch.report.stopped_by is None
    with pytest.raises(BatchFailed, match="skipped"):
        batch.report.raise_for_failures()


@pytest.mark.parametrize("delivery", ["at_most_once", "at_least_once"])
def test_stopping_waits_for_no_room(in_virtual_time: Callable[..., Any], delivery: Any) -> None:
    """What is being answered comes to its end; what waits, now or then, ends at once, unsent."""

    def answer(visit: Visit) -> Act:
        match visit.room:
            case "locked":
                return busy()
            case "locked at last":
                return busy(replying=20.0)
            case "lost":
                return failing(ConnectionLost("reset"), take=Take.EVERYTHING)
        return accepted(replying=20.0)

    async def run() -> tuple[float, Batch]:
        town = Town(answer, ask=lambda v: record_of_absent() if v.room == "absent" else accepted())
        rooms = ("free", "locked", "locked at last", "absent", "lost")
        jobs = [job(room) for room in rooms]
        client = client_of(town, delivery=delivery)
        async with client, client.upload_many(jobs, wait_active=600) as batch:
            await anyio.sleep(10)
            batch.stop()
            await batch.wait()
        assert len([v for v in town.uploads if v.room == "lost"]) == 1
        return anyio.current_time(), batch

    seconds, batch = in_virtual_time(run)
    assert seconds == pytest.approx(20, abs=1)
    found = {outcome.room_id: outcome for outcome in batch.report.outcomes}
    assert {room: outcome.status for room, outcome in found.items()} == {
        "free": "accepted",
        "locked": "failed",
        "locked at last": "failed",
        "absent": "skipped",
        "lost": "unknown",
    }
    stopped = [found[room].error for room in ("locked", "locked at last", "absent")]
    assert all(isinstance(error, BatchStopped) for error in stopped)
    assert isinstance(found["lost"].error, UploadOutcomeUnknown)


async def test_a_batch_stopped_before_it_begins() -> None:
    """Nothing is sent; of a generator nothing is read."""
    read: list[int] = []

    def numbered() -> Iterator[UploadJob]:
        for number in range(9):
            read.append(number)
            yield job("a", number)

    for jobs, total in ((list(numbered()), 9), (numbered(), 0)):
        town = Town()
        read.clear()
        async with client_of(town) as client:
            batch = client.upload_many(jobs)
            batch.stop()
            async with batch:
                report = await batch.wait()
        assert town.visits == []
        assert report.skipped == report.total >= total
        assert len(read) <= 1


@pytest.mark.parametrize("kind", ["list", "generator"])
async def test_what_was_read_is_accounted_for(kind: str) -> None:
    """A job that waits for a place in the window when the block is left, too."""
    read = []

    def numbered() -> Iterator[UploadJob]:
        for number in range(9):
            read.append(number)
            yield job("a", number)

    town = Town(lambda _: hanging())
    async with client_of(town) as client:
        jobs: Any = numbered() if kind == "generator" else list(numbered())
        read.clear()
        async with client.upload_many(jobs, window=3) as batch:
            await until(lambda: town.uploads and town.uploads[0].exchange.complete)
            await anyio.wait_all_tasks_blocked()
    assert statuses(batch) == ["unknown", "skipped", "skipped", "skipped"]
    assert len(read) in (0, 4)


async def test_a_generator_that_waits_for_outcomes_of_its_batch() -> None:
    """The first answer decides what comes next."""
    ended = anyio.Event()

    async def read() -> AsyncIterator[UploadJob]:
        yield job("a", 0)
        await ended.wait()
        yield job("a", 1)

    async with client_of(Town()) as client, client.upload_many(read()) as batch:
        with anyio.fail_after(5):
            async for _ in batch:
                ended.set()
    assert statuses(batch) == ["accepted", "accepted"]


async def test_a_slow_consumer_stops_the_reading_and_nothing_else() -> None:
    """No more is read than the window holds; what was read goes on to its end."""
    read: list[int] = []

    def numbered() -> Iterator[UploadJob]:
        for number in itertools.count():
            read.append(number)
            yield job(f"room{number % 4}", number)

    town = Town()
    async with client_of(town) as client, client.upload_many(numbered(), window=10) as batch:
        await until(lambda: batch.report.accepted == 10)
        await anyio.wait_all_tasks_blocked()
        assert len(read) == 11
        for _ in range(5):
            await anext(batch)
        await until(lambda: batch.report.accepted == 15)
        await anyio.wait_all_tasks_blocked()
        assert (len(read), town.running) == (16, 0)


# --- misuse --------------------------------------------------------------------------------------


async def test_a_batch_runs_once() -> None:
    """Entering it twice, during or afterwards, is a mistake that shows."""
    async with client_of(Town()) as client:
        batch = client.upload_many([job("a")])
        async with batch:
            with pytest.raises(RuntimeError, match="a batch runs once"):
                async with batch:
                    pass
            await batch.wait()
        with pytest.raises(RuntimeError, match="a batch runs once"):
            await batch.__aenter__()
    assert batch.report.accepted == 1


async def test_iterating_outside_of_the_block() -> None:
    """Before it is a mistake; afterwards there is nothing more."""
    async with client_of(Town()) as client:
        batch = client.upload_many([job("a")])
        with pytest.raises(RuntimeError, match="in an `async with` block"):
            await anext(batch)
        async with batch:
            assert (await batch.wait()) is (await batch.wait()) is batch.report
        assert [outcome async for outcome in batch] == []
        assert (await batch.wait()).accepted == 1
        batch.stop()


async def test_a_closed_client() -> None:
    """It says so on entering; nothing is left unclosed."""
    client = client_of(Town())
    await client.aclose()
    batch = client.upload_many([job("a")])
    with pytest.raises(RuntimeError, match="closed"):
        async with batch:
            pass
    with pytest.raises(RuntimeError, match="in an `async with` block"):
        await anext(batch)
    del batch
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.upload_many([job("a")])
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


async def test_a_client_that_is_closed_meanwhile() -> None:
    """Each job that is left fails by itself."""
    town = Town(seconds=0.05)
    client = client_of(town)
    async with client.upload_many(jobs_for(1, 5)) as batch:
        await anext(batch)
        await client.aclose()
        report = await batch.wait()
    assert report.accepted in {1, 2}
    assert report.failed == 5 - report.accepted
    assert isinstance(report.outcomes[-1].error, RuntimeError)


def test_the_report_stops_its_watch_with_the_batch(in_virtual_time: InVirtualTime) -> None:
    """However long the caller stays in the block afterwards."""

    async def main() -> float:
        async with client_of(Town(seconds=5.0)) as client, client.upload_many([job("a")]) as batch:
            await batch.wait()
            await anyio.sleep(100)
        return batch.report.seconds

    assert in_virtual_time(main) == pytest.approx(5)


async def test_an_observer_sees_events_of_single_uploads() -> None:
    """And breaks nothing by what it raises."""
    seen = []

    def observe(event: Any) -> None:
        seen.append(event)
        raise Oops

    async with client_of(Town()) as client:
        derived = client.with_options(on_event=observe)
        async with derived.upload_many(jobs_for(2, 1)) as batch:
            assert (await batch.wait()).accepted == 2
    assert {event.room_id for event in seen} == {"room00", "room01"}


# --- at every await ------------------------------------------------------------------------------

Canceller = Callable[[Any, int], Awaitable[Any]]


async def cancelled_everywhere(canceller: Canceller) -> set[str]:
    """Cancel a batch around each of the waits of its caller; return what became of jobs."""
    seen: set[str] = set()
    town = Town(seconds=0.002)
    async with client_of(town) as client:
        tasks = living_tasks()
        for number in itertools.count(1):
            batches: list[Batch] = []

            async def run(
                number: int = number,
                batches: list[Batch] = batches,
            ) -> None:
                jobs = [UploadJob(f"r{number}-{n % 2}", PDF, filename=f"{n}.pdf") for n in range(4)]
                async with client.upload_many(jobs, concurrency=1, window=2) as batch:
                    batches.append(batch)
                    async for _ in batch:
                        pass

            struck = await canceller(run(), number)
            for batch in batches:
                seen.update(statuses(batch))
                assert batch._slots.free == 1
            assert client._calls.shared.gate._lines == {}  # type: ignore[union-attr]
            assert living_tasks() <= tasks
            assert town.running == 0
            if not struck.waited:
                break
        await works(client)
    assert number > 4
    return seen


async def test_cancelled_at_every_await_by_a_scope() -> None:
    """No task, slot or place is left, each job read has one outcome, the next batch works."""
    assert await cancelled_everywhere(cancelled_by_scope) >= {"accepted", "skipped"}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_cancelled_at_every_await_natively(anyio_backend: str) -> None:
    """The same with ``Task.cancel``, which strikes once."""
    assert await cancelled_everywhere(cancelled_natively) >= {"accepted", "skipped"}
