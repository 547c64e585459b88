"""Cancellations that nobody asked for, and errors that a task group put into a group."""

from __future__ import annotations

import asyncio
import math

import anyio


def is_stray(error: BaseException) -> bool:
    """Tell whether an error is a cancellation although nobody cancels the current task.

    On asyncio any code can raise one: awaiting what somebody else has cancelled does. Here that is
    a failure like any other, and must not end other jobs.
    """
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    is_cancelled = anyio.current_effective_deadline() == -math.inf
    return task is not None and not task.cancelling() and not is_cancelled


def ordinary(error: BaseException) -> RuntimeError:
    """Make an ordinary error of a stray cancellation."""
    made = RuntimeError(f"{type(error).__name__} was raised, though nobody cancelled the job")
    made.__cause__ = error
    return made


def one_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to raise in place of a group: what ends the program before anything else."""
    left = group.split(anyio.get_cancelled_exc_class())[1] or group
    first = (left.split(Exception)[1] or left).exceptions[0]
    return one_of(first) if isinstance(first, BaseExceptionGroup) else first
