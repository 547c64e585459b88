"""Room locks of a caller's, for what happens when they are released."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import attrs

Leave = Callable[[], Awaitable[object]]

AGES = 10_000.0
"""Seconds after which something has hung, and goes on, so that a test that fails ends."""


def sleeping(seconds: float, error: Exception | None = None) -> Leave:
    """Make a function that takes so long and then raises, if there is an error."""

    async def leave() -> None:
        await anyio.sleep(seconds)
        if error is not None:
            raise error

    return leave


@attrs.define(eq=False)
class LeavingLocks:
    """Every room is free at once; a function is awaited whenever a lock is released."""

    leave: Leave
    left: int = 0
    """How often that function has ended by itself."""

    @asynccontextmanager
    async def acquire(self, room: str, *, timeout: float | None) -> AsyncGenerator[None]:
        """Hold nothing."""
        try:
            yield
        finally:
            await self.leave()
            self.left += 1
