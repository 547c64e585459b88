"""Run a worker until it is told to stop, or its database or key fails: it ends, and says why."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import procrastinate
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool

from meeting_async._log import logger
from meeting_async.errors import ConfigurationError, JournalError
from meeting_async.procrastinate._table import Table, unusable
from meeting_async.procrastinate._worker import UploadWorker

CONNECTION: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "options": "-c idle_in_transaction_session_timeout=30s -c tcp_keepalives_idle=10"
    " -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=20s",
}
"""Settings of a connection to PostgreSQL: both sides notice soon that the other one is gone, and
what a worker that has vanished keeps locked is freed. ``options`` are for the server's side, which
else keeps the session of such a worker for two hours."""

CONNECTIONS = 4
"""Most connections of a process, besides the one on which a worker listens."""

POLL_SECONDS = 0.25
"""Interval at which an idle worker looks for uploads: nothing announces those put back."""

WATCH_SECONDS = 5.0
"""Interval of the questions whether the database answers; a worker ends after two without one."""

ENDING_SECONDS = 10.0
"""So long a worker that runs no upload any more may take to end."""


# --- connections ---------------------------------------------------------------------------------


def connector(dsn: str, *, max_size: int = CONNECTIONS) -> procrastinate.PsycopgConnector:
    """Return a connector for the ``App`` with settings for workers; those of the address win.

    Args:
        dsn: Address of the database, ``postgresql://user:password@host:5432/database``.
        max_size: Most connections, besides the one on which a worker listens.

    Raises:
        ConfigurationError: The address cannot be used. The text has no part of it.

    """
    try:
        given = conninfo_to_dict(dsn)
        options = f"{CONNECTION['options']} {given.get('options', '')}"  # the last one wins
        address = make_conninfo(**{**CONNECTION, **given, "options": options})
    except psycopg.ProgrammingError:  # its text has parts of the address
        problem, fix = "is not an address", "give postgresql://user:password@host:5432/database"
        raise ConfigurationError("dsn", "", problem, fix) from None
    return procrastinate.PsycopgConnector(
        conninfo=address,
        pool_factory=_pool,
        configure=_use_autocommit,
        min_size=1,
        max_size=max_size,
        timeout=CONNECTION["connect_timeout"],
    )


async def _use_autocommit(connection: psycopg.AsyncConnection[Any]) -> None:
    """Each statement is a transaction of its own, without two more statements around it."""
    await connection.set_autocommit(True)


def _pool(**settings: Any) -> AsyncConnectionPool:
    """Make a pool that checks a connection only if it was idle for a second."""
    used: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    async def check(connection: psycopg.AsyncConnection[Any]) -> None:
        now = time.monotonic()
        if now - used.get(connection, 0.0) > 1:
            await AsyncConnectionPool.check_connection(connection)
        used[connection] = now

    return AsyncConnectionPool(**{**settings, "check": check})


# --- a worker ------------------------------------------------------------------------------------


async def run_worker(
    app: procrastinate.App,
    worker: UploadWorker,
    *,
    concurrency: int,
    grace: float,
    signals: bool,
    options: dict[str, Any],
) -> None:
    """Run a worker; see :meth:`WhiteboardUploads.run_worker`."""
    table, stop = worker.table_of(app), asyncio.Event()
    options = {
        "fetch_job_polling_interval": POLL_SECONDS,
        "update_heartbeat_interval": worker.stalled_after / 3,
        "stalled_worker_timeout": worker.stalled_after,
        **options,
        "queues": [worker.queue],
        "concurrency": concurrency,
        "install_signal_handlers": False,
        "shutdown_graceful_timeout": grace,
    }
    with _signals_set(stop, is_wanted=signals):
        await table.check()
        running = asyncio.create_task(app.run_worker_async(**options), name="worker")
        watching = asyncio.create_task(_watch(table), name="database")
        asked = asyncio.create_task(stop.wait(), name="signals")
        try:
            await asyncio.wait([running, watching, asked], return_when="FIRST_COMPLETED")
            if watching.done() and worker.running:  # that may take minutes
                why, uploads = watching.exception(), worker.running
                logger.error("%s: the worker ends after its uploads (%d now)", why, uploads)
        finally:
            await _end(running, worker, grace)
            watching.cancel()
            asked.cancel()
    if worker.brake.stopped_by is not None:
        raise worker.brake.stopped_by
    has_ended_well = running.done() and not running.cancelled() and running.exception() is None
    if options.get("wait") is False and has_ended_well:
        return
    if not asked.done() or asked.cancelled():
        raise await _why(running, watching, table)


async def _end(running: asyncio.Task[None], worker: UploadWorker, grace: float) -> None:
    """Stop a worker: its uploads have ``grace`` seconds, and it has some more to end."""
    running.cancel()  # procrastinate stops gracefully
    idle_since = began = time.monotonic()
    while not running.done() and time.monotonic() < began + grace + ENDING_SECONDS:
        await asyncio.wait([running], timeout=0.2)
        if worker.running:
            idle_since = time.monotonic()
        elif time.monotonic() > idle_since + ENDING_SECONDS:
            break
    if not running.done():
        logger.error("the worker does not end by itself", extra={"action": "queue"})
        running.cancel()


async def _watch(table: Table) -> None:
    """Ask the database now and then; raise `JournalError` if it does not answer twice."""
    failures = 0
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        try:
            await table.later(0)
            failures = 0
        except JournalError:
            failures += 1
            if failures == 2:
                raise


async def _why(
    running: asyncio.Task[None], watching: asyncio.Task[None], table: Table
) -> JournalError:
    """Return why a worker has ended that nobody has told to."""
    for task in (watching, running):
        error = task.exception() if task.done() and not task.cancelled() else None
        if isinstance(error, JournalError):
            return error
        if error is not None:
            cause = error.__cause__ or error
            return unusable(f"cannot be used: {type(cause).__name__}: {cause}")
    try:
        await table.later(0)
    except JournalError as error:
        return error
    return unusable("cannot be used: a connection of the worker was lost")


@contextmanager
def _signals_set(stop: asyncio.Event, *, is_wanted: bool) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C set an event; the second one acts as it would without this."""
    loop, before = asyncio.get_running_loop(), dict[signal.Signals, Any]()

    def told(number: signal.Signals) -> None:
        stop.set()
        loop.remove_signal_handler(number)
        signal.signal(number, before[number])

    with suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
        for number in (signal.SIGTERM, signal.SIGINT) if is_wanted else ():
            before[number] = signal.getsignal(number)
            loop.add_signal_handler(number, told, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            if loop.remove_signal_handler(number):
                signal.signal(number, handler)
