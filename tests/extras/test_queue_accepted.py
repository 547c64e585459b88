"""Uploads of a queue that the server has accepted: they stay so, whatever their locks do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from meeting_async.testing import MeetingServer
from support.leaving_locks import LeavingLocks
from support.postgres import needs_postgres
from support.queues import application, pdf, working

pytestmark = [pytest.mark.anyio, needs_postgres, pytest.mark.nightly]

MARGIN = 3.0
"""Seconds for a worker that looks for its work now and then, and for a database."""


@pytest.mark.parametrize("how", [{}, {"shutdown_graceful_timeout": 0}], ids=["usual", "at once"])
async def test_a_lock_that_is_never_released(
    dsn: str, server: MeetingServer, tmp_path: Path, how: dict[str, Any]
) -> None:
    """Its upload is accepted at the latest 3 s later, and a worker that is stopped amid it stops.

    Also one that cancels its jobs at once: the next worker does not send the document again. The
    lock is released after ages, so that a test that fails ends.
    """
    is_leaving, loop = asyncio.Event(), asyncio.get_running_loop()

    async def leave() -> None:
        is_leaving.set()
        await asyncio.sleep(12)

    async with application(dsn, server.url, room_locks=LeavingLocks(leave)) as made:
        await made.uploads.defer("room0", pdf(tmp_path))
        async with working(made, **how):
            await asyncio.wait_for(is_leaving.wait(), 20)
            started = loop.time()
        assert loop.time() - started < 3 + MARGIN
        if not how:
            report = await made.uploads.report("default")
            assert (report.accepted, report.total) == (1, 1)
            is_leaving.clear()
            await made.uploads.defer("room0", pdf(tmp_path))
        async with working(made):
            if not how:
                await asyncio.wait_for(is_leaving.wait(), 20)
            report = await made.finished(seconds=3 + MARGIN)
    count = 1 if how else 2
    assert (report.accepted, report.total) == (count, count)
    assert len(server.rooms["room0"].received) == count
