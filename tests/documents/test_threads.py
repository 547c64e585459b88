"""Threads of our own: abandoned at once, never in anybody's way, nothing of theirs is lost."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

from meeting_async._documents import threads
from meeting_async._documents.threads import MAX_RUNNING, in_thread, try_in_thread
from support.leaks import threads_idle, until

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


@pytest.fixture
def block() -> Iterator[Callable[[], str]]:
    """Make a function that does not return before the test ends."""
    end = threading.Event()

    def blocked() -> str:
        end.wait()
        return "late"

    yield blocked
    end.set()


class Thing:
    """Something that a weak reference can follow."""


async def test_a_function_runs_in_another_thread() -> None:
    """Its result comes back, and what it raises."""
    assert await in_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)
    with pytest.raises(SystemExit):
        await in_thread(lambda: sys.exit(3))
    assert isinstance(await in_thread(lambda: ValueError("a value")), ValueError)


async def test_nobody_elses_threads_are_taken() -> None:
    """The event loop's default threads are neither used nor needed."""
    limiter = anyio.to_thread.current_default_thread_limiter()
    borrowers = [object() for _ in range(int(limiter.available_tokens))]
    for borrower in borrowers:
        limiter.acquire_on_behalf_of_nowait(borrower)
    with anyio.fail_after(30):
        assert await in_thread(lambda: 7) == 7
    for borrower in borrowers:
        limiter.release_on_behalf_of(borrower)


async def test_threads_are_used_again() -> None:
    """A thousand calls, one after another, need few."""
    idents = set()
    for _ in range(1000):
        idents.add(await in_thread(threading.get_ident))
    assert len(idents) < 50


async def test_at_most_so_many_run_at_once() -> None:
    """More only queue at the disk."""
    lock, running, most = threading.Lock(), [0], [0]

    def work() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.01)
        with lock:
            running[0] -= 1

    async with anyio.create_task_group() as group:
        for _ in range(MAX_RUNNING * 3):
            group.start_soon(in_thread, work)
    assert most[0] <= MAX_RUNNING


# --- cancellation --------------------------------------------------------------------------------


async def test_a_cancelled_caller_goes_on_at_once(
    block: Callable[[], str], anyio_backend: Any
) -> None:
    """The thread is still blocked when the caller goes on, in a scope and by ``task.cancel()``."""
    with anyio.fail_after(30), anyio.move_on_after(0.01) as scope:
        await in_thread(block)
    assert scope.cancelled_caught
    if anyio_backend[0] == "asyncio":
        task = asyncio.create_task(in_thread(block))
        await anyio.sleep(0.01)
        task.cancel()
        with anyio.fail_after(30), pytest.raises(asyncio.CancelledError):
            await task


async def test_abandoned_functions_do_not_count(block: Callable[[], str]) -> None:
    """Forty reads that never return do not delay a healthy one."""
    async with anyio.create_task_group() as group:
        for _ in range(40):
            group.start_soon(in_thread, block)
        await anyio.sleep(0.01)
        assert try_in_thread(lambda: None) is None
        group.cancel_scope.cancel()
    with anyio.fail_after(30):
        assert await in_thread(lambda: 7) == 7
        job = try_in_thread(lambda: 8)
        assert job is not None
        assert await job.result() == 8


@pytest.mark.parametrize("when", ["running", "finished"])
async def test_a_result_that_nobody_takes_is_discarded_in_a_thread(when: str) -> None:
    """Whether it comes after the cancellation or has arrived before it was taken."""
    discarded: list[tuple[str, int]] = []
    go_on, has_run = threading.Event(), threading.Event()

    def function() -> str:
        go_on.wait(30)
        return "it"

    def discard(result: str) -> None:
        discarded.append((result, threading.get_ident()))
        has_run.set()

    async def cancel(scope: anyio.CancelScope) -> None:
        await anyio.sleep(0.01)
        if when == "finished":
            go_on.set()
            time.sleep(0.05)  # noqa: ASYNC251 - so that the caller cannot be resumed
        scope.cancel()

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(cancel, scope)
            await in_thread(function, discard=discard)
        assert scope.cancelled_caught
    assert when == "finished" or not discarded
    go_on.set()
    assert await until(has_run.is_set)
    ((result, thread),) = discarded
    assert result == "it"
    assert thread != threading.get_ident()


async def test_an_abandoned_error_is_dropped() -> None:
    """There is nobody to hear it, and nothing to discard."""
    discarded: list[Any] = []
    go_on = threading.Event()

    def fail() -> None:
        go_on.wait(30)
        raise ZeroDivisionError

    with anyio.move_on_after(0.01):
        await in_thread(fail, discard=discarded.append)
    go_on.set()
    await threads_idle()
    assert discarded == []


async def test_the_result_of_a_job_is_taken_once() -> None:
    """A job whose result was taken has none any more; giving it up then does nothing."""
    job = try_in_thread(lambda: 7)
    assert job is not None
    assert await job.result() == 7
    job.abandon()
    job.abandon()
    with pytest.raises(RuntimeError, match="taken already"):
        await job.result()


# --- references ----------------------------------------------------------------------------------


async def test_nothing_keeps_a_result_or_a_function() -> None:
    """What they hold is closed by reference counting, not by a garbage collection."""
    gc.disable()
    try:
        result = await in_thread(Thing)
        found = weakref.ref(result)
        del result
        assert found() is None
        held = Thing()
        found = weakref.ref(held)
        await in_thread(lambda held=held: None)  # type: ignore[misc]
        threads.run_in_thread(lambda held=held: None)  # type: ignore[misc]
        del held
        assert await until(lambda: found() is None, 5.0)  # less than a thread stays idle
    finally:
        gc.enable()


async def test_a_kept_cancellation_keeps_neither_result_nor_function() -> None:
    """Its traceback leads through our frames."""
    go_on, made, kept = threading.Event(), list[weakref.ref[Thing]](), list[BaseException]()
    held = Thing()
    found = weakref.ref(held)

    def function(_held: Thing) -> Thing:
        go_on.wait(30)
        result = Thing()
        made.append(weakref.ref(result))
        return result

    gc.disable()
    try:
        with anyio.move_on_after(0.01):
            try:
                await in_thread(lambda held=held: function(held))  # type: ignore[misc]
            except BaseException as error:
                kept.append(error)
                raise
        del held
        go_on.set()
        assert await until(lambda: bool(made) and made[0]() is None and found() is None)
    finally:
        gc.enable()
    assert kept[0].__traceback__


async def test_an_error_makes_no_reference_cycle() -> None:
    """It is gone with its last reference, as documents keep errors."""

    class Failed(Exception):
        pass

    def fail() -> None:
        raise Failed

    gc.disable()
    try:
        try:
            await in_thread(fail)
        except Failed as error:
            found = weakref.ref(error)
        assert await until(lambda: found() is None)
    finally:
        gc.enable()


# --- loops and processes -------------------------------------------------------------------------


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_closed_loop_loses_no_result(is_cancelled: bool, anyio_backend: Any) -> None:
    """A thread that finishes after its loop was closed discards its result by itself."""
    discarded: list[str] = []
    go_on = threading.Event()

    def function() -> str:
        go_on.wait(30)
        return "it"

    async def main() -> None:
        with anyio.move_on_after(0.01):
            await in_thread(function, discard=discarded.append)

    def forsaken() -> None:
        loop = asyncio.new_event_loop()
        task: Any = loop.create_task(in_thread(function, discard=discarded.append))
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
        task._log_destroy_pending = False  # that is the test

    if is_cancelled:
        anyio.run(main, backend=anyio_backend[0])
    else:
        forsaken()
    go_on.set()
    anyio.run(threads_idle)
    assert discarded == ["it"]


def _run(code: str) -> subprocess.CompletedProcess[str]:
    head = "import anyio, os, sys, threading\n"
    head += "from meeting_async._documents.threads import in_thread\n"
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", head + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def test_a_blocked_thread_does_not_hold_the_exit_up(anyio_backend: Any) -> None:
    """The interpreter ends while a read of a pipe never returns."""
    ended = _run(
        "async def main():\n"
        "    reading, writing = os.pipe()\n"
        "    with anyio.move_on_after(0.01):\n"
        "        await in_thread(lambda: os.read(reading, 1))\n"
        f"anyio.run(main, backend={anyio_backend[0]!r})\n"
        "print('over')\n"
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("over\n", "", 0)


def test_a_forked_process_has_threads_of_its_own(anyio_backend: Any) -> None:
    """An idle thread of the parent is not waited for in the child."""
    ended = _run(
        "async def main():\n"
        "    with anyio.fail_after(30):\n"
        "        return await in_thread(lambda: 7)\n"
        f"run = lambda: anyio.run(main, backend={anyio_backend[0]!r})\n"
        "run()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(run())\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert ended.returncode == 7, ended.stderr


async def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while; until then they wait for the next function."""
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(threads, "_threads", own := threads._Threads())
    workers = {await in_thread(threading.current_thread) for _ in range(3)}
    assert await until(lambda: not any(worker.is_alive() for worker in workers))
    assert own._idle._value == 0
    assert await in_thread(lambda: 7) == 7
