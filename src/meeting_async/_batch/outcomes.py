"""Outcomes on their way to whoever iterates over a batch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Self

import anyio
import attrs
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from meeting_async._batch.jobs import UploadOutcome


@attrs.define(eq=False)
class OutcomeStream:
    """Outcomes that nobody has taken yet; each goes to one of the iterators."""

    _sender: MemoryObjectSendStream[UploadOutcome] | None = None
    _receiver: MemoryObjectReceiveStream[UploadOutcome] | None = None
    _left: deque[UploadOutcome] = attrs.field(factory=deque)
    """What was not taken when the batch was left."""
    _is_keeping: bool = True
    """Whether outcomes are kept for iterators that are made later."""
    iterators: int = 0

    @contextmanager
    def opened(self) -> Generator[None, None, None]:
        """Take outcomes while the block runs."""
        self._sender, self._receiver = anyio.create_memory_object_stream[UploadOutcome](math.inf)
        try:
            yield
        finally:
            self._sender.close()
            with suppress(anyio.EndOfStream):
                while self.iterators:
                    self._left.append(self._receiver.receive_nowait())
            self._receiver.close()

    def put(self, outcome: UploadOutcome) -> None:
        """Hand an outcome to an iterator, or keep it for one, or drop it if there is none."""
        if self._sender is not None and (self._is_keeping or self.iterators):
            self._sender.send_nowait(outcome)

    async def take(self) -> UploadOutcome | None:
        """Wait for an outcome; ``None`` if no further one comes."""
        if self._receiver is not None:
            with suppress(anyio.EndOfStream, anyio.ClosedResourceError):
                return await self._receiver.receive()
        return self._left.popleft() if self._left else None

    def end(self) -> None:
        """No further outcome comes."""
        if self._sender is not None:
            self._sender.close()

    def stop_keeping(self) -> None:
        """Keep outcomes for those who iterate, and for nobody else."""
        self._is_keeping = False

    def count_untaken(self) -> int:
        """Return how many outcomes are kept until somebody takes them."""
        if self._sender is None or not self._is_keeping:
            return 0
        return self._sender.statistics().current_buffer_used


class OutcomeIterator:
    """Iterates over the outcomes of a batch that go to one consumer."""

    def __init__(
        self, stream: OutcomeStream, when_taken: Callable[[], None], at_end: Callable[[], None]
    ) -> None:
        self._stream, self._when_taken, self._at_end = stream, when_taken, at_end
        stream.iterators += 1

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> UploadOutcome:
        outcome = await self._stream.take()
        if outcome is not None:
            self._when_taken()
            return outcome
        self._at_end()
        raise StopAsyncIteration

    def __del__(self) -> None:
        # A loop that is left early drops its iterator: nobody takes outcomes for it any more.
        self._stream.iterators -= 1
