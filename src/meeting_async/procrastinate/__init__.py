"""Uploads by any number of workers on any number of machines (extra ``procrastinate``).

`procrastinate <https://procrastinate.readthedocs.io/>`_ is a job queue on PostgreSQL. This package
has the job for one upload, the table of outcomes, and the recovery of uploads whose worker has
died; the queue itself, its workers and its schema are procrastinate's. Guide: ``docs/queue.md``.
"""

from __future__ import annotations

try:
    import procrastinate as _  # noqa: F401 - for the message
except ModuleNotFoundError as _error:
    _hint = f'{__name__} needs procrastinate: pip install ".[procrastinate]" in a clone'
    raise ModuleNotFoundError(_hint, name=_error.name) from _error

from meeting_async.procrastinate._runner import connector
from meeting_async.procrastinate._statements import SCHEMA
from meeting_async.procrastinate._table import QueueStatus, RoomStatus
from meeting_async.procrastinate._uploads import QueueReport, WhiteboardUploads
from meeting_async.procrastinate._worker import Documents

__all__ = [
    "SCHEMA",
    "Documents",
    "QueueReport",
    "QueueStatus",
    "RoomStatus",
    "WhiteboardUploads",
    "connector",
]
