"""A running call: what comes after the server's answer."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from meeting_async import Finished, Verdict
from meeting_async._delivery.call import new_call, running
from meeting_async._delivery.retry import AttemptResult
from meeting_async._protocol.replies import ParsedReply
from meeting_async.errors import DeadlineExceeded
from support.fakes import EventRecorder, Scripted, client_of

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

ACCEPTED = AttemptResult(verdict=Verdict.ACCEPTED, began=0, ended=0, answer=ParsedReply(200))


def fail(error: Exception) -> None:
    """Fail in a way that a type checker does not see."""
    raise error


@pytest.mark.parametrize("error", [DeadlineExceeded(1, "cleaning up"), KeyError("x")])
async def test_an_error_after_the_answer_is_logged(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The block just ends, and the call is accepted."""
    recorder = EventRecorder()
    caplog.set_level(logging.WARNING, "meeting_async")
    async with client_of(Scripted()) as client:
        call = new_call(client._session, client._options, "x", "room01", on_event=recorder)
        async with running(call, None):
            call.record(ACCEPTED, is_upload=True)
            fail(error)
    assert recorder.finished.verdict is Verdict.ACCEPTED
    assert recorder.finished.error is None
    assert "was accepted; what came after that has failed" in caplog.text


async def test_a_cancellation_after_the_answer_is_a_cancellation() -> None:
    """But the last event says accepted."""
    recorder = EventRecorder()
    async with client_of(Scripted()) as client:
        call = new_call(client._session, client._options, "x", "room01", on_event=recorder)
        with anyio.CancelScope() as scope:
            async with running(call, None):
                call.record(ACCEPTED, is_upload=True)
                scope.cancel()
                await anyio.sleep(1)
    assert scope.cancelled_caught
    (finished,) = recorder.of(Finished)
    facts: Any = (finished.verdict, finished.error)
    assert facts == (Verdict.ACCEPTED, None)
