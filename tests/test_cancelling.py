"""Whose cancellation it is: a scope's, a task's, or somebody's own."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from meeting_async._cancelling import is_stray

pytestmark = pytest.mark.anyio


async def looked_at() -> tuple[BaseException, bool]:
    """Wait for a cancellation and say what it is, and whether it is stray."""
    try:
        await anyio.sleep(5)
    except anyio.get_cancelled_exc_class() as error:
        return error, is_stray(error)
    raise AssertionError("nobody cancelled")


async def test_a_scope_cancels() -> None:
    """That is ours."""
    with anyio.CancelScope() as scope:
        scope.cancel()
        error, stray = await looked_at()
        assert not stray
        assert isinstance(error, BaseException)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_is_cancelled(anyio_backend: str) -> None:
    """That is meant for us, too."""
    task = asyncio.create_task(looked_at())
    await asyncio.sleep(0)
    task.cancel()
    _, stray = await task
    assert not stray


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_was_cancelled_elsewhere(anyio_backend: str) -> None:
    """Awaiting it raises the same error, and nobody cancels us."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await future
    assert is_stray(caught.value)


@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt(), GeneratorExit()])
async def test_other_errors(error: BaseException) -> None:
    """They are no cancellations at all."""
    assert not is_stray(error)
