"""Journals of batches: the one in an SQLite file, and what a journal of yours needs.

Pass one to ``upload_many`` as ``journal=``.
"""

from meeting_async._batch.journal import Journal, JournalEntry, JournalJob
from meeting_async._batch.sqlite_journal import SqliteJournal

__all__ = ["Journal", "JournalEntry", "JournalJob", "SqliteJournal"]
