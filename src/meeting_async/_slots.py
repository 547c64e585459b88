"""So many attempts at a time: who gets the next free slot of a batch.

A slot is held while a document is prepared and sent, and while its answer is awaited; never while
an upload waits for its room. Who comes back from such a wait stands in line for a slot, beside the
rooms that have not begun. Those go first as a rule, being free as a rule: a room that is still
locked costs the line a body and the slot its time. But a room whose jobs, one after another, take
longer than all that is queued takes in all slots decides when all is over, and goes before them.
Now and then it is the turn of each side, so that nobody waits for ever.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

import anyio
import attrs

FAIR_TURNS = 8
"""Of so many slots one goes to the oldest claim, and one to a room that has not begun."""


@attrs.define(eq=False)
class _Claim:
    """Somebody who wants a slot back."""

    left: int
    """Jobs that his room has left."""
    granted: anyio.Event = attrs.field(factory=anyio.Event)
    withdrawn: bool = False

    @property
    def is_open(self) -> bool:
        """Whether he still wants one."""
        return not self.withdrawn and not self.granted.is_set()


@attrs.define(eq=False)
class Slots:
    """The slots of a batch."""

    free: int
    """Slots that nobody holds."""
    longest: Callable[[], int]
    """Returns the number of jobs in the longest queue from which one can be begun, or 0."""
    begin: Callable[[], None]
    """Begins a job from the longest queue, in a slot."""
    queued: Callable[[], int] = lambda: 0
    """Returns the number of jobs in all queues."""
    _all: int = attrs.field(init=False)
    """Slots, held or not."""
    _by_left: list[tuple[int, int, _Claim]] = attrs.field(factory=list, init=False)
    _by_age: deque[_Claim] = attrs.field(factory=deque, init=False)
    """The same claims; those that are no longer open are dropped when they are come upon."""
    _order: itertools.count[int] = attrs.field(factory=itertools.count, init=False)
    _given: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._all = self.free

    def offer(self) -> None:
        """Give away what is free."""
        while self.free and (give := self._next()):
            self.free -= 1
            self._given += 1
            give()

    def _next(self) -> Callable[[], None] | None:
        """Return what gives the next slot to whom it is for, or ``None`` if nobody wants it."""
        best, fresh = self._best(), self.longest()
        if best is None:
            return self.begin if fresh else None
        turn = self._given % FAIR_TURNS
        decides = best.left * self._all >= self.queued()
        if fresh and turn and (turn == FAIR_TURNS // 2 or not decides):
            return self.begin
        claim = best if turn and decides else self._by_age[0]
        return claim.granted.set

    def give_back(self) -> None:
        """Free a slot, for whoever is next."""
        self.free += 1
        self.offer()

    async def claim(self, left: int) -> None:
        """Wait for a slot on behalf of a room with so many jobs left, the current one included."""
        claim = _Claim(left)
        heapq.heappush(self._by_left, (-left, next(self._order), claim))
        self._by_age.append(claim)
        self.offer()
        try:
            await claim.granted.wait()
        except BaseException:
            claim.withdrawn = True
            if claim.granted.is_set():
                self.give_back()
            raise

    def _best(self) -> _Claim | None:
        """Return the open claim of the room with most left, the oldest of several."""
        while self._by_left and not self._by_left[0][2].is_open:
            heapq.heappop(self._by_left)
        while self._by_age and not self._by_age[0].is_open:
            self._by_age.popleft()
        return self._by_left[0][2] if self._by_left else None


@attrs.define(eq=False)
class Slot:
    """The slot of one job: held when it is begun, given back and claimed again around waits."""

    slots: Slots
    left: Callable[[], int]
    """Returns how many jobs the room has left, the current one included."""
    is_held: bool = True
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope, init=False)
    """Around the job: cancelled when it has been told to stop, and would wait."""
    _is_last: bool = attrs.field(default=False, init=False)

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
            if self._is_last:
                self.scope.cancel()

    def stop(self) -> None:
        """Let what is done in the slot come to its end, and nothing wait for another."""
        self._is_last = True
        if not self.is_held:
            self.scope.cancel()
