"""So many attempts at a time: who gets the next free slot of a batch.

A slot is held while a document is prepared and sent, and while its answer is awaited; never while
an upload waits for its room. Who comes back from such a wait takes his turn among the rooms that
have not begun yet, and the room with the most left to do goes first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

import anyio
import attrs


@attrs.define(eq=False)
class _Claim:
    """Somebody who wants a slot back."""

    granted: anyio.Event = attrs.field(factory=anyio.Event)
    withdrawn: bool = False


@attrs.define(eq=False)
class Slots:
    """The slots of a batch."""

    free: int
    """Slots that nobody holds."""
    longest: Callable[[], int]
    """Returns the number of jobs in the longest queue from which one can be begun, or 0."""
    begin: Callable[[], None]
    """Begins a job from that queue, in a slot."""
    _claims: list[tuple[int, int, _Claim]] = attrs.field(factory=list, init=False)
    _order: itertools.count[int] = attrs.field(factory=itertools.count, init=False)

    def offer(self) -> None:
        """Give away what is free."""
        while self.free:
            claim, fresh = self._best(), self.longest()
            if claim is not None and -claim[0] >= fresh:
                heapq.heappop(self._claims)
                self.free -= 1
                claim[2].granted.set()
            elif fresh:
                self.free -= 1
                self.begin()
            else:
                return

    def give_back(self) -> None:
        """Free a slot, for whoever is next."""
        self.free += 1
        self.offer()

    async def claim(self, left: int) -> None:
        """Wait for a slot on behalf of a room with so many jobs left, the current one included."""
        claim = _Claim()
        heapq.heappush(self._claims, (-left, next(self._order), claim))
        self.offer()
        try:
            await claim.granted.wait()
        except BaseException:
            claim.withdrawn = True
            if claim.granted.is_set():
                self.give_back()
            raise

    def _best(self) -> tuple[int, int, _Claim] | None:
        while self._claims and self._claims[0][2].withdrawn:
            heapq.heappop(self._claims)
        return self._claims[0] if self._claims else None


@attrs.define(eq=False)
class Slot:
    """The slot of one job: held when it is begun, given back and claimed again around waits."""

    slots: Slots
    left: Callable[[], int]
    """Returns how many jobs the room has left, the current one included."""
    is_held: bool = True

    async def claim(self) -> None:
        """Wait for a slot, unless there is one."""
        if not self.is_held:
            await self.slots.claim(self.left())
            self.is_held = True

    def give_back(self) -> None:
        """Let somebody else have it."""
        if self.is_held:
            self.is_held = False
            self.slots.give_back()
