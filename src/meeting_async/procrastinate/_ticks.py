"""What procrastinate's worker asks its tables: a lock of somebody else must not end it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
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


@contextmanager
def unless_locked(otherwise: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Do something else if a statement ends because of a lock."""
    try:
        yield
    except ConnectorException as error:
        waited = isinstance(error.__cause__, PoolTimeout | errors.QueryCanceled)
        if not waited and not is_locked(error):
            raise
        otherwise()


class Ticks(JobManager):
    """What cannot be fetched or finished because of a lock is tried again a bit later."""

    def __init__(self, connector: Any, worker: Worker, unfinished: set[int]) -> None:
        super().__init__(connector)
        self._worker, self._unfinished = worker, unfinished

    async def fetch_job(self, queues: Any, worker_id: int) -> Job | None:
        """Return the next tick; ``None``: there is none, or it cannot be fetched now."""
        with unless_locked():
            try:
                return await super().fetch_job(queues, worker_id)
            except ConnectorException as error:
                if not isinstance(error.__cause__, errors.ForeignKeyViolation):
                    raise
                # It was frozen for so long that another worker has deleted it.
                self._worker.worker_id = await self.register_worker()
                text = "the worker was taken for lost, and goes on as another one"
                logger.warning(text, extra={"action": "queue"})
        return None

    async def finish_job_by_id_async(
        self,
        job_id: int,
        status: Status,
        delete_job: bool,
    ) -> None:
        """Delete a tick, or leave that to recovery."""
        with unless_locked(partial(self._unfinished.add, job_id)), suppress(AppNotOpen):
            # The app is not open after a second signal.
            await super().finish_job_by_id_async(job_id, status, delete_job)

    async def prune_stalled_workers(self, seconds_since_heartbeat: float) -> list[int]:
        """Delete lost workers, or leave that to the next one that begins."""
        found = list[int]()
        with unless_locked():
            found += await super().prune_stalled_workers(seconds_since_heartbeat)
        return found

    async def unregister_worker(self, worker_id: int) -> None:
        """Delete a worker that ends, or leave that to one that begins."""
        with unless_locked():
            await super().unregister_worker(worker_id)
