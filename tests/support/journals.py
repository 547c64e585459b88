"""Every kind of journal that there is, for the tests that all of them must pass.

To let another kind join, add what makes journals that share one place of storage: each stands for a
process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from meeting_async._batch.journal import Journal
from meeting_async._batch.sqlite_journal import SqliteJournal

SERVER = "https://meet.example.com/auth"


class Clock:
    """Unix time, at the test's command."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        """Return it."""
        return self.now


MakeJournal = Callable[[], Journal]


def _sqlite(folder: Path, clock: Clock) -> MakeJournal:
    return lambda: SqliteJournal(folder / "term.db", now=clock)


KINDS: dict[str, Callable[[Path, Clock], MakeJournal]] = {"sqlite": _sqlite}
