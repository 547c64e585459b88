"""The journal in an SQLite file, and the protocol for a journal of your own.

Pass one to ``upload_many`` as ``journal=``.
"""

from meeting_async._batch.journal import Journal, JournalEntry, JournalJob
from meeting_async._batch.sqlite_journal import SqliteJournal

__all__ = ["Journal", "JournalEntry", "JournalJob", "SqliteJournal"]
