"""The clock that jumps."""

from __future__ import annotations

import asyncio
import time

import anyio
import anyio.to_thread
import pytest

from meeting_async.testing import VirtualTimeLoop, _virtual_time, run_in_virtual_time

BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@BACKENDS
def test_a_day_takes_no_time(backend: str) -> None:
    """Sleeps, limits and several tasks keep their order; the result is returned."""
    woken: list[int] = []

    async def sleeper(hours: int) -> None:
        await anyio.sleep(hours * 3600)
        woken.append(hours)

    async def main(hours: int) -> float:
        began = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            for number in range(hours, 0, -1):
                tasks.start_soon(sleeper, number)
            with anyio.move_on_after(1800) as limit:
                await anyio.sleep_forever()
            assert limit.cancelled_caught
        return anyio.current_time() - began

    began = time.monotonic()
    assert run_in_virtual_time(main, 72, backend=backend) == 72 * 3600
    assert woken == list(range(1, 73))
    assert time.monotonic() - began < 20  # three days in some milliseconds


@BACKENDS
def test_infinity_is_never_reached(backend: str) -> None:
    """A task that sleeps for ever does not stop the clock for the others."""

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            await anyio.sleep(10**6)
            tasks.cancel_scope.cancel()

    run_in_virtual_time(main, backend=backend)


@BACKENDS
def test_a_thread_is_waited_for_when_no_timer_is_left(backend: str) -> None:
    """It takes real time, and none on the clock."""

    async def main() -> float:
        began = anyio.current_time()
        await anyio.to_thread.run_sync(time.sleep, 0.1)
        return anyio.current_time() - began

    assert run_in_virtual_time(main, backend=backend) == 0


def test_a_standstill_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing can happen any more, asyncio's loop says so instead of hanging."""
    monkeypatch.setattr(_virtual_time, "STUCK_SECONDS", 0.05)
    with pytest.raises(RuntimeError, match="nothing can happen any more"):
        run_in_virtual_time(anyio.sleep_forever)


def test_the_loop_is_anyio_s_option() -> None:
    """A whole run on that loop, as the fixture `anyio_backend` of a module says it."""

    async def main() -> object:
        await anyio.sleep(300)
        return asyncio.get_running_loop()

    options = {"loop_factory": VirtualTimeLoop}
    assert isinstance(anyio.run(main, backend_options=options), VirtualTimeLoop)
