"""The clock of a meeting server.

Locks and conversions are time stamps, not background tasks, so they outlive the request that
started them and need nothing but a clock. In process that is the clock of the caller's event loop
(virtual time included); once the server has run in a thread of its own it is `time.monotonic`,
which that thread's asyncio loop uses too and which every other thread can read.
"""

import math
import time

import anyio
import attrs


@attrs.define(eq=False)
class Clock:
    """Tells the time in seconds; its zero has no meaning."""

    _threaded: bool = False
    _latest: float = -math.inf

    def leave_the_loop(self) -> None:
        """Use the monotonic clock from now on: the server gets a thread of its own."""
        self._threaded = True

    def now(self) -> float:
        """Return the current time; `RuntimeError` where there is no clock to read."""
        if self._threaded:
            return time.monotonic()
        try:
            self._latest = anyio.current_time()
        except RuntimeError as error:
            raise RuntimeError(
                "a meeting server in process has its event loop's clock: "
                "do this inside the loop, or inside `with server.run():`"
            ) from error
        return self._latest

    def latest(self) -> float:
        """Return the current time or, outside the event loop, the last time the server saw."""
        try:
            return self.now()
        except RuntimeError:
            return self._latest

    async def sleep_until(self, moment: float) -> None:
        """Return as soon as `now()` is not before `moment`, whatever a sleep's rounding."""
        left = moment - self.now()
        while left > 0:
            await anyio.sleep(left)
            left = moment - self.now()
