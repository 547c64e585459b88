"""When connections keep failing: all wait together, and few try.

One failed connection says little. When several calls of a client in a row get none, the server is
away (a restart, a network that is down), and whoever waits anyway need not find that out by
himself: somebody tries every other second, and the first success wakes all.
"""

from __future__ import annotations

import anyio
import attrs

THRESHOLD = 10
"""Failed connections in a row that make an outage: more than one call makes by default."""

SCOUT_SECONDS = 2.0
"""Between two attempts, of all that wait together."""


@attrs.define(eq=False)
class Outage:
    """What a client knows of its way to the server."""

    _failures: int = 0
    _waiting: int = 0
    _over: anyio.Event | None = None

    @property
    def is_on(self) -> bool:
        """Whether nobody gets through."""
        return self._failures >= THRESHOLD

    def note(self, *, reached: bool) -> None:
        """Note whether an attempt reached the server, whatever it answered."""
        if not reached:
            self._failures += 1
            return
        self._failures = 0
        if self._over is not None:
            self._over.set()
            self._over = None

    def patience(self, random: float) -> float:
        """Return how long the next one may wait for news before it tries, in seconds.

        The more wait, the longer each; ``random`` in [0, 1) spreads them.
        """
        return SCOUT_SECONDS * (self._waiting + 1) * (0.5 + random)

    async def wait(self, seconds: float) -> None:
        """Wait until somebody gets through, at most so long."""
        self._over = self._over or anyio.Event()
        self._waiting += 1
        try:
            with anyio.move_on_after(seconds):
                await self._over.wait()
        finally:
            self._waiting -= 1
