"""The closing boundary: once a byte of its line is out, a server may have the whole form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meeting_async import UploadReceipt, Verdict
from meeting_async.errors import ConnectionLost, MeetingError, TransferTimeout, UploadOutcomeUnknown
from support.fake_rooms import Act, accepted, busy, failing, refused
from support.fakes import LARGE, PDF, EventRecorder, Scripted, client_of, headers_of

Run = Callable[..., Any]

pytestmark = pytest.mark.both_loops


async def put(data: bytes, *script: Act) -> tuple[Any, Scripted, EventRecorder]:
    """Upload a document; return what came of it, what was seen, and the events."""
    transport, recorder = Scripted(*script), EventRecorder()
    async with client_of(transport, on_event=recorder) as client:
        try:
            made: Any = await client.upload_whiteboard_file("room01", data, filename="deck.pdf")
        except MeetingError as error:
            made = error
    return made, transport, recorder


def closing_of(transport: Scripted) -> int:
    """Return the length of a form's end, as its content type announces it."""
    boundary = headers_of(transport.visits[0])["content-type"].partition("boundary=")[2].strip('"')
    end = f"\r\n--{boundary}--\r\n".encode()
    assert transport.visits[0].sent.endswith(end)
    return len(end)


@pytest.mark.parametrize("data", [PDF, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("error", [ConnectionLost, TransferTimeout])
def test_any_byte_of_the_closing_boundary_counts(run: Run, error: Any, data: bytes) -> None:
    """When all but 0, 1, 2 … bytes of its line were sent, the outcome is unknown: sent once.

    When none of them was, no server can have the form: it is sent again.
    """

    def main(missing: int) -> list[Verdict]:
        script = [failing(error("gone"), missing=missing), accepted()]
        made, transport, recorder = run(put, data, *script)
        verdicts = [attempt.verdict for attempt in made.attempts]
        assert len(transport.visits) == len(verdicts)
        assert recorder.finished.verdict is verdicts[-1]
        assert isinstance(made, UploadReceipt if len(verdicts) == 2 else UploadOutcomeUnknown)
        return verdicts

    closing = closing_of(run(put, data, accepted())[1])
    assert [main(missing) for missing in range(closing)] == [[Verdict.UNKNOWN]] * closing
    again = [Verdict.PARTIAL, Verdict.ACCEPTED]
    assert [main(missing) for missing in (closing, closing + 1)] == [again] * 2


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (accepted(missing=0), Verdict.ACCEPTED),
        (accepted(missing=1), Verdict.UNKNOWN),
        (accepted(missing=500), Verdict.UNKNOWN),
        (refused(missing=500), Verdict.REFUSED),
        (busy(missing=500), Verdict.BUSY),
    ],
)
def test_a_reply_that_came_early(run: Run, act: Act, expected: Verdict) -> None:
    """A success before the last byte of the form is none; a refusal counts."""
    made, _, _ = run(put, PDF, act, accepted())
    assert made.attempts[0].verdict is expected
