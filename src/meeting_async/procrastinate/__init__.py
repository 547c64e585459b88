"""Uploads by any number of workers on any number of machines (extra ``procrastinate``).

`procrastinate <https://procrastinate.readthedocs.io/>`_ is a job queue on PostgreSQL. Here a
job is a tick, "this room has work"; the uploads are rows of the table in ``queue.sql``. Guide:
``docs/queue.md``.
"""

from __future__ import annotations

try:
    import procrastinate as _  # noqa: F401 - for the message
except ModuleNotFoundError as _error:
    _hint = f'{__name__} needs procrastinate: pip install ".[procrastinate]" in a clone'
    raise ModuleNotFoundError(_hint, name=_error.name) from _error

from meeting_async.procrastinate._connect import connector
from meeting_async.procrastinate._report import QueueReport, QueueStatus, RoomStatus
from meeting_async.procrastinate._table import SCHEMA
from meeting_async.procrastinate._uploads import WhiteboardUploads
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
