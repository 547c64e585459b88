"""Journals for tests: one in memory, and one where things happen."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

import anyio.lowlevel
import attrs

from meeting_async.journals import JournalEntry, JournalJob

SERVER = "https://meet.test/auth"
"""The one of ``fake_rooms``."""


@attrs.define(eq=False)
class MemoryJournal:
    """A journal in memory, for one run."""

    states: list[Any] = attrs.field(factory=list)

    @asynccontextmanager
    async def opened(self, _server: str) -> AsyncGenerator[None]:
        """Hold nothing."""
        yield

    def register(self, _job: JournalJob) -> Awaitable[JournalEntry]:
        """Make an entry."""
        self.states.append("ready")
        return _Later(JournalEntry(len(self.states) - 1, "ready"))

    async def mark_sending(self, entry: JournalEntry, *_facts: object) -> None:
        """Keep it."""
        self.states[entry.id] = "sent"

    async def record(self, entry: JournalEntry, state: str, _reason: str | None) -> None:
        """Keep it."""
        self.states[entry.id] = state


Hook = Callable[[], Awaitable[object]]


@attrs.define(eq=False)
class HookedJournal:
    """A journal where something happens before and after what a batch asks of it."""

    journal: Any = attrs.field(factory=MemoryJournal)
    before: dict[str, Hook] = attrs.field(factory=dict)
    """By method, or ``close``; what a hook raises, the method raises."""
    after: dict[str, Hook] = attrs.field(factory=dict)
    calls: list[str] = attrs.field(factory=list)
    """The methods that were called."""

    @asynccontextmanager
    async def opened(self, server: str) -> AsyncGenerator[None]:
        """Open and close it."""
        await self._at("opened")
        async with self.journal.opened(server):
            yield
            await self._at("close")

    def register(self, job: JournalJob) -> Awaitable[JournalEntry]:
        """Register a job at once; the hook delays the answer."""
        self.calls.append("register")
        return _Later(self.journal.register(job), self.before.get("register"))

    async def mark_sending(self, *facts: Any) -> None:
        """Mark a job."""
        await self._at("mark_sending")
        await self.journal.mark_sending(*facts)

    async def record(self, *facts: Any) -> None:
        """Record an outcome."""
        await self._at("record")
        await self.journal.record(*facts)
        if "record" in self.after:
            await self.after["record"]()

    async def _at(self, verb: str) -> None:
        self.calls.append(verb)
        await anyio.lowlevel.checkpoint()
        if verb in self.before:
            await self.before[verb]()


@attrs.frozen
class _Later:
    """An answer that nobody has to wait for."""

    answer: Any
    hook: Hook | None = None

    def __await__(self) -> Generator[Any, Any, JournalEntry]:
        return self._answered().__await__()

    async def _answered(self) -> JournalEntry:
        await anyio.lowlevel.checkpoint()
        if self.hook is not None:
            await self.hook()
        is_entry = isinstance(self.answer, JournalEntry)
        found: JournalEntry = self.answer if is_entry else await self.answer
        return found
