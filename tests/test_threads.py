"""Worker threads of our own: nobody else's are taken, and none is waited for in vain."""

from __future__ import annotations

import threading
import time

import anyio
import anyio.to_thread
import pytest

from meeting_async._threads import READ_THREADS, Lease, in_thread

pytestmark = pytest.mark.anyio


async def test_a_function_runs_in_another_thread() -> None:
    """And its result, or what it raises, comes back."""
    assert await in_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_a_result_may_be_a_coroutine() -> None:
    """Trio would take it for a mistake; a factory's function may return one."""

    async def later() -> int:
        return 7

    assert await (await in_thread(later)) == 7


async def test_the_default_threads_are_left_alone() -> None:
    """Work of ours takes none of their places, and needs none."""
    limiter = anyio.to_thread.current_default_thread_limiter()
    seen = []
    async with anyio.create_task_group() as group:
        for _ in range(READ_THREADS + 3):
            group.start_soon(in_thread, lambda: time.sleep(0.02))
        await anyio.sleep(0.01)
        seen.append(limiter.borrowed_tokens)
    assert seen == [0]


async def test_no_more_than_so_many_run_at_once() -> None:
    """More only queue at the disk."""
    running, most, lock = [0], [0], threading.Lock()

    def work() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.02)
        with lock:
            running[0] -= 1

    async with anyio.create_task_group() as group:
        for _ in range(READ_THREADS * 2):
            group.start_soon(in_thread, work)
    assert most == [READ_THREADS]


async def test_a_cancelled_function_is_waited_for() -> None:
    """Unless it may never end."""
    done = threading.Event()

    def work() -> None:
        time.sleep(0.1)
        done.set()

    for abandon in (False, True):
        done.clear()
        with anyio.move_on_after(0.02):
            await in_thread(work, abandon=abandon)
        assert done.is_set() is not abandon
    await anyio.sleep(0.15)
    assert done.is_set()


# --- leases --------------------------------------------------------------------------------------


def test_what_nobody_uses_ends_at_once() -> None:
    """The owner gives it up, once or more often."""
    ends: list[str] = []
    lease = Lease(lambda: ends.append("end"))
    assert not lease.is_over
    lease.give_up()
    assert (ends, lease.is_over) == (["end"], True)


def test_what_is_used_ends_with_its_use() -> None:
    """Whoever is last, ends it; it does not end in the hands of who uses it."""
    ends: list[str] = []
    lease = Lease(lambda: ends.append("end"))
    with lease.used():
        lease.give_up()
        assert ends == []
    assert ends == ["end"]


def test_use_alone_ends_nothing() -> None:
    """As long as its owner wants it, it stays, even if its use fails."""
    ends: list[str] = []
    lease = Lease(lambda: ends.append("end"))
    with pytest.raises(KeyError), lease.used():
        raise KeyError
    assert ends == []
    lease.give_up()
    assert ends == ["end"]
