"""What procrastinate's worker asks its tables: a lock of somebody else must not end it."""

from __future__ import annotations

import copy
from typing import Any

import procrastinate
from procrastinate.exceptions import AppNotOpen, ConnectorException
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from procrastinate.worker import Worker
from psycopg import errors
from psycopg_pool import PoolTimeout

from meeting_async._log import logger
from meeting_async.procrastinate._database import is_locked


class TickWorker(Worker):
    """A worker of procrastinate that survives locks of others."""

    def __init__(self, app: procrastinate.App, unfinished: set[int], **settings: Any) -> None:
        ours = copy.copy(app)
        ours.job_manager = Ticks(app.connector, self, unfinished)
        super().__init__(ours, **settings)


class Ticks(JobManager):
    """What cannot be fetched or finished because of a lock is tried again a bit later."""

    def __init__(self, connector: Any, worker: Worker, unfinished: set[int]) -> None:
        super().__init__(connector)
        self._worker, self._unfinished = worker, unfinished

    async def fetch_job(self, queues: Any, worker_id: int) -> Job | None:
        """Return the next tick; ``None``: there is none, or somebody has locked the table."""
        try:
            return await super().fetch_job(queues, worker_id)
        except ConnectorException as error:
            if isinstance(error.__cause__, errors.ForeignKeyViolation):
                # It was frozen for so long that others took it for lost.
                self._worker.worker_id = await self.register_worker()
                text = "the worker was taken for lost, and goes on with a new id"
                logger.warning(text, extra={"action": "queue"})
            elif not _is_kept_waiting(error):
                raise
            return None

    async def finish_job_by_id_async(
        self,
        job_id: int,
        status: Status,
        delete_job: bool,
    ) -> None:
        """Delete a tick, or leave that to recovery."""
        try:
            await super().finish_job_by_id_async(job_id, status, delete_job)
        except AppNotOpen:
            pass  # the program was ended at once
        except ConnectorException as error:
            if not _is_kept_waiting(error):
                raise
            self._unfinished.add(job_id)

    async def prune_stalled_workers(self, seconds_since_heartbeat: float) -> list[int]:
        """Delete lost workers, or leave that to the next one that begins."""
        try:
            return await super().prune_stalled_workers(seconds_since_heartbeat)
        except ConnectorException as error:
            if not is_locked(error):
                raise
            return []

    async def unregister_worker(self, worker_id: int) -> None:
        """Delete a worker that ends, or leave that to one that begins."""
        try:
            await super().unregister_worker(worker_id)
        except ConnectorException as error:
            if not is_locked(error):
                raise


def _is_kept_waiting(error: Exception) -> bool:
    return is_locked(error) or isinstance(error.__cause__, PoolTimeout | errors.QueryCanceled)
