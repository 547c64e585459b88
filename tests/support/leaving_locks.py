"""Room locks of a caller's, for what happens when they are released."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs


@attrs.define(eq=False)
class LeavingLocks:
    """Every room is free at once; a function is awaited whenever a lock is released."""

    leave: Callable[[], Awaitable[object]]
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
