"""Outcomes that nobody has taken yet."""

from __future__ import annotations

from collections import deque

import anyio
import anyio.lowlevel
import attrs

from meeting_async._jobs import UploadOutcome


@attrs.define(eq=False)
class Outbox:
    """A queue whose reader waits, and whose writers do not."""

    _outcomes: deque[UploadOutcome] = attrs.field(factory=deque, init=False)
    _news: anyio.Event = attrs.field(factory=anyio.Event, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    def put(self, outcome: UploadOutcome) -> None:
        """Append an outcome."""
        self._outcomes.append(outcome)
        self._news.set()

    def close(self) -> None:
        """Let readers know that no other will come."""
        self._is_closed = True
        self._news.set()

    async def take(self) -> UploadOutcome | None:
        """Wait for the oldest outcome; ``None`` when none is left and no other will come."""
        await anyio.lowlevel.checkpoint()
        while not self._outcomes and not self._is_closed:
            self._news = anyio.Event()
            await self._news.wait()
        return self._outcomes.popleft() if self._outcomes else None
