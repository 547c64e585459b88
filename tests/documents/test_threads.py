"""Threads of our own: abandoned at once, never in anybody's way, nothing of theirs is lost."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import anyio
import anyio.to_thread
import pytest

from meeting_async import _threads as threads
from meeting_async._threads import MAX_RUNNING, in_thread
from support.leaks import threads_idle, until

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


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


async def test_a_result_that_nobody_takes_is_dropped_in_a_thread() -> None:
    """Also if it has arrived before the cancellation: what closes itself then may block."""
    dropped: list[int] = []
    go_on = threading.Event()

    class Closing:
        def __del__(self) -> None:
            dropped.append(threading.get_ident())

    def function() -> Closing:
        go_on.wait(30)
        return Closing()

    async def cancel(scope: anyio.CancelScope) -> None:
        await anyio.sleep(0.01)
        go_on.set()
        time.sleep(0.05)  # noqa: ASYNC251 - so that the caller cannot be resumed
        scope.cancel()

    async with anyio.create_task_group() as group:
        with anyio.CancelScope() as scope:
            group.start_soon(cancel, scope)
            await in_thread(function)
        assert scope.cancelled_caught
    assert await until(lambda: bool(dropped))
    assert dropped != [threading.get_ident()]


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


# --- loops and processes -------------------------------------------------------------------------


def test_a_closed_loop_disturbs_no_thread() -> None:
    """A function that returns after its event loop was closed: its result is dropped."""
    go_on, made = threading.Event(), list[weakref.ref[Thing]]()

    def function() -> Thing:
        go_on.wait(30)
        made.append(weakref.ref(thing := Thing()))
        return thing

    loop = asyncio.new_event_loop()
    task: Any = loop.create_task(in_thread(function))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    task._log_destroy_pending = False  # that is the test
    del task
    go_on.set()
    anyio.run(threads_idle)
    gc.collect()
    assert made[0]() is None


def _run(code: str) -> subprocess.CompletedProcess[str]:
    head = "import anyio, os, sys, threading\n"
    head += "from meeting_async._threads import in_thread\n"
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", head + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def test_a_blocked_thread_does_not_hold_the_exit_up() -> None:
    """The interpreter ends while a read of a pipe never returns."""
    ended = _run(
        "async def main():\n"
        "    reading, writing = os.pipe()\n"
        "    with anyio.move_on_after(0.01):\n"
        "        await in_thread(lambda: os.read(reading, 1))\n"
        "anyio.run(main)\n"
        "print('over')\n"
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("over\n", "", 0)


def test_a_forked_process_has_threads_of_its_own() -> None:
    """An idle thread of the parent is not waited for in the child."""
    ended = _run(
        "async def main():\n"
        "    with anyio.fail_after(30):\n"
        "        return await in_thread(lambda: 7)\n"
        "run = lambda: anyio.run(main)\n"
        "run()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(run())\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert ended.returncode == 7, ended.stderr
