"""So many attempts at a time: who gets the next free slot of a batch.

A slot is held while a document is prepared and sent, and while its answer is awaited; never while
an upload waits for its room. Who comes back from such a wait stands in line for a slot, beside the
rooms in which the next job can be begun. Most slots go to the latter: they are likely to be free,
whereas a room that is still locked costs the line a body and the slot its time. But a room whose
jobs, one after another, take longer than all that is queued does in all slots must not lose time.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

import anyio
import attrs

TURN = 8
"""Of so many slots that both want, who has stood in line for longest gets one."""


@attrs.define(eq=False)
class _Claim:
    """Somebody who wants a slot back."""

    left: int
    """Jobs that the room has left."""
    granted: anyio.Event = attrs.field(factory=anyio.Event)
    withdrawn: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it has been answered, or wants none any more."""
        return self.withdrawn or self.granted.is_set()


def _free_of(slots: Slots) -> int:
    return slots.free


@attrs.define(eq=False)
class Slots:
    """The slots of a batch."""

    free: int
    """Slots that nobody holds."""
    longest: Callable[[], int]
    """Returns the number of jobs in the longest queue from which one can be begun, or 0."""
    queued: Callable[[], int]
    """Returns the number of jobs in all queues."""
    begin: Callable[[], None]
    """Begins a job from the longest queue, in a slot."""
    _all: int = attrs.field(init=False, default=attrs.Factory(_free_of, takes_self=True))
    """Slots, held or not."""
    _claims: list[tuple[int, int, _Claim]] = attrs.field(factory=list, init=False)
    """Of the room with most left first."""
    _line: deque[_Claim] = attrs.field(factory=deque, init=False)
    """The same, oldest first."""
    _order: itertools.count[int] = attrs.field(factory=itertools.count, init=False)
    _begun: int = attrs.field(default=0, init=False)
    """Jobs that were begun in a row while somebody was waiting to come back."""

    def offer(self) -> None:
        """Give away what is free."""
        while self.free:
            claim = self._next(self.longest())
            if claim is not None:
                self._begun = 0
                self.free -= 1
                claim.granted.set()
            elif self.longest():
                self._begun += bool(self._line)
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
        claim = _Claim(left)
        heapq.heappush(self._claims, (-left, next(self._order), claim))
        self._line.append(claim)
        self.offer()
        try:
            await claim.granted.wait()
        except BaseException:
            claim.withdrawn = True
            if claim.granted.is_set():
                self.give_back()
            raise

    def _next(self, fresh: int) -> _Claim | None:
        """Choose who comes back before another job is begun, if anybody shall."""
        while self._claims and self._claims[0][2].is_over:
            heapq.heappop(self._claims)
        while self._line and self._line[0].is_over:
            self._line.popleft()
        if not self._line:
            return None
        longest, oldest = self._claims[0][2], self._line[0]
        if longest.left * self._all >= self.queued():
            return longest
        return None if fresh and self._begun < TURN - 1 else oldest


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
