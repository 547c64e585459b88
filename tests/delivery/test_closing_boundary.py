"""The closing boundary: once a byte of its line is out, a server may have the whole form."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest

from meeting_async import Verdict
from meeting_async.errors import ConnectionLost, TransferTimeout, UploadOutcomeUnknown
from meeting_async.transports import Reply, Request
from support.fake_rooms import FakeRooms
from support.fakes import LARGE, PDF, EventRecorder, client_of

Run = Callable[..., Any]

pytestmark = pytest.mark.both_loops


def closing_of(request: Request) -> bytes:
    """Return the end of a form, as its content type announces it."""
    (content_type,) = [value for name, value in request.headers if name.lower() == b"content-type"]
    found = re.search(rb'boundary="?([^";]+)', bytes(content_type))
    assert found
    return b"\r\n--" + found[1] + b"--\r\n"


@attrs.define(eq=False)
class CutShort:
    """A transport that knows that all but the last bytes of the first form were sent.

    Then it does something, which raises; further forms are accepted.
    """

    missing: int
    """How many bytes; a negative number counts from the closing boundary on backwards."""
    then: Callable[[], Any]
    closing: int = 0
    """Length of the closing boundary."""
    uploads: int = 0
    rooms: FakeRooms = attrs.field(factory=FakeRooms)

    async def send(self, request: Request, /) -> Reply:
        """Send."""
        body = request.body
        if not isinstance(body, bytes):
            self.uploads += 1
            if self.uploads == 1:
                await self._send_short(request)
        return await self.rooms.send(request)

    async def _send_short(self, request: Request) -> None:
        body = request.body
        assert not isinstance(body, bytes)
        form = b"".join([chunk async for chunk in body])
        end = closing_of(request)
        assert form.endswith(end)
        self.closing = len(end)
        body.sent = body.length - (self.missing if self.missing > 0 else len(end) - self.missing)
        await self.then()

    async def aclose(self) -> None:
        """Hold nothing."""


def raising(error: Exception) -> Callable[[], Any]:
    """Make a function that raises."""

    async def fail() -> None:
        raise error

    return fail


LOST = raising(ConnectionLost("reset"))
ENDS: dict[str, Callable[[], Any]] = {
    "lost": LOST,
    "late": raising(TransferTimeout("no reply")),
    "a bug": raising(KeyError("bug")),
}


async def put(transport: Any, data: bytes = PDF, **how: Any) -> Any:
    """Upload a document."""
    async with client_of(transport, preflight=False) as client:
        return await client.upload_whiteboard_file("room01", data, filename="deck.pdf", **how)


@pytest.mark.parametrize("data", [PDF, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("then", ENDS.values(), ids=ENDS)
def test_any_byte_of_the_closing_boundary_counts(
    run: Run, then: Callable[[], Any], data: bytes
) -> None:
    """When all but 1, 2, 3 … bytes of its line were sent, the outcome is unknown: sent once."""

    async def main(missing: int) -> int:
        transport, recorder = CutShort(missing, then), EventRecorder()
        with pytest.raises(UploadOutcomeUnknown) as caught:
            await put(transport, data, on_event=recorder)
        assert [attempt.verdict for attempt in caught.value.attempts] == [Verdict.UNKNOWN]
        assert recorder.finished.verdict is Verdict.UNKNOWN
        assert transport.uploads == 1
        return transport.closing

    closing = run(main, 1)
    for missing in range(2, closing):
        assert run(main, missing) == closing


@pytest.mark.parametrize("data", [PDF, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("before", [0, -1])
def test_a_form_without_its_closing_boundary_is_partial(run: Run, before: int, data: bytes) -> None:
    """When none of its bytes was sent, no server can have the form: it is sent again."""

    async def main() -> None:
        transport = CutShort(before, LOST)
        receipt = await put(transport, data)
        verdicts = [attempt.verdict for attempt in receipt.attempts]
        assert verdicts == [Verdict.PARTIAL, Verdict.ACCEPTED]
        assert transport.uploads == 2

    run(main)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_time_limit_amid_the_closing_boundary(run: Run, missing: int) -> None:
    """It ends with what is known: unknown, not *not delivered*."""

    async def main() -> None:
        transport = CutShort(missing, anyio.sleep_forever)
        with pytest.raises(UploadOutcomeUnknown):
            await put(transport, timeout=5)
        assert transport.uploads == 1

    run(main)


def test_a_cancellation_amid_the_closing_boundary(run: Run) -> None:
    """The last event says unknown, and the next upload asks before it sends."""

    async def main() -> None:
        transport, recorder = CutShort(1, anyio.sleep_forever), EventRecorder()
        async with client_of(transport, preflight=False) as client:  # type: ignore[arg-type]
            with anyio.move_on_after(5):
                await client.upload_whiteboard_file(
                    "room01", PDF, filename="deck.pdf", on_event=recorder
                )
            assert recorder.finished.verdict is Verdict.UNKNOWN
            await client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")
        assert [visit.kind for visit in transport.rooms.visits] == ["probe", "upload"]

    run(main)
