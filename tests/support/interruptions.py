"""Cancellations that strike at the n-th wait of a coroutine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

import anyio
import attrs

T = TypeVar("T")


@attrs.define
class Interrupted(Generic[T]):
    """Drives a coroutine and does something when it waits for the n-th time."""

    coroutine: Coroutine[Any, Any, T]
    number: int
    strike: Callable[[], object]
    waited: int = 0
    """How often it waited."""

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self.coroutine.__await__()
        step: Callable[[], Any] = steps.__next__
        while True:
            try:
                trap = step()
            except StopIteration as end:
                result: T = end.value
                return result
            self.waited += 1
            if self.waited == self.number:
                self.strike()
            try:
                value = yield trap
            except BaseException as error:  # noqa: BLE001 - it goes to the coroutine
                step = functools.partial(steps.throw, error)
            else:
                step = functools.partial(steps.send, value)


async def cancelled_by_scope(coroutine: Coroutine[Any, Any, object], number: int) -> bool:
    """Cancel around the n-th wait; tell whether there was one."""
    with anyio.CancelScope() as scope:
        run = Interrupted(coroutine, number, scope.cancel)
        await run
    return run.waited >= number


async def cancelled_natively(coroutine: Coroutine[Any, Any, object], number: int) -> bool:
    """Cancel a task of asyncio around its n-th wait, once; tell whether there was one."""
    task: asyncio.Task[object]
    run = Interrupted(coroutine, number, lambda: task.cancel())  # noqa: PLW0108 - made below
    task = asyncio.ensure_future(run)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelling() <= 1  # or `asyncio.timeout` around it would take it for another one
    return run.waited >= number
