"""An upload along a script, and what came of it: the stage for the tests of the delivery loop.

The network and the server are a script (``_fakes``); time is virtual wherever it matters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import trio
import trio.testing

from _fakes import (
    Act,
    EventRecorder,
    FakeTransport,
    Take,
    failing,
    record,
    reply,
)
from meeting_async import (
    Finished,
    LockPolicy,
    MeetingClient,
    Request,
    UploadReceipt,
)
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    MeetingError,
)

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
MIB = b"%PDF" + bytes(1024**2 - 4)
OWN_500 = reply(500, record("INTERNAL_SERVER_ERROR", "conversion failed"))
"""The server took the document and could not convert it."""

BOTH = ["at_most_once", "at_least_once"]
"""The delivery modes."""

InVirtualTime = Callable[..., Any]


@attrs.frozen
class Course:
    """What an upload came to."""

    outcome: UploadReceipt | Exception
    seconds: float
    transport: FakeTransport
    recorder: EventRecorder

    @property
    def error(self) -> Any:
        """The error; there must be one."""
        assert isinstance(self.outcome, Exception), self.outcome
        return self.outcome

    @property
    def accepted(self) -> bool:
        """Whether there is a receipt."""
        return isinstance(self.outcome, UploadReceipt)

    @property
    def sends(self) -> int:
        """How many requests went out."""
        return len(self.transport.exchanges)

    @property
    def began(self) -> list[float]:
        """When each of them did."""
        return [exchange.began for exchange in self.transport.exchanges]

    @property
    def verdicts(self) -> list[str]:
        """The verdict on each attempt, as receipt or error tell it."""
        assert isinstance(self.outcome, UploadReceipt | MeetingError), self.outcome
        return [attempt.verdict for attempt in self.outcome.attempts]

    @property
    def waits(self) -> list[float]:
        """Seconds from the end of each exchange to the beginning of the next."""
        return [
            later.began - (earlier.ended or 0)
            for earlier, later in pairwise(self.transport.exchanges)
        ]

    @property
    def verdict(self) -> str:
        """The verdict of the last event, which comes once."""
        (finished,) = self.recorder.of(Finished)
        assert self.recorder.events[-1] is finished
        return finished.verdict


def connected(transport: FakeTransport, **settings: Any) -> MeetingClient:
    """Make a client of the scripted transport whose lock waits are exact."""
    settings = {"lock": LockPolicy(jitter=0), **settings}
    if "signer" not in settings:
        settings |= {"api_key": "key", "api_secret": "secret"}
    return MeetingClient("https://meet.test", transport=transport, **settings)


async def deliver(
    *script: Act,
    then: Callable[[Request], Act] | None = None,
    document: Any = PDF,
    max_wait: float | None = None,
    deadline: float | None = None,
    delay: float = 0.0,
    **settings: Any,
) -> Course:
    """Upload to room01 along a script, after a delay, and return what came of it and when."""
    await anyio.sleep(delay)
    transport, recorder = FakeTransport(*script, then=then), EventRecorder()
    settings.setdefault("on_event", recorder)
    name = "deck.pdf" if isinstance(document, bytes) else None
    began = anyio.current_time()
    outcome: UploadReceipt | Exception
    async with connected(transport, **settings) as client:
        try:
            outcome = await client.upload_whiteboard_file(
                "room01", document, filename=name, max_wait=max_wait, deadline=deadline
            )
        except Exception as error:  # noqa: BLE001 - examined by the test
            outcome = error
        return Course(outcome, anyio.current_time() - began, transport, recorder)


def refused() -> Act:
    """Fail to connect."""
    return failing(ConnectFailed("refused"), take=Take.NOTHING)


def cut_off(take: Take | int = Take.DOCUMENT, **how: Any) -> Act:
    """Break the connection before the closing boundary, with bytes sent."""
    return failing(ConnectionLost("reset"), take=take, **how)


def lost(**how: Any) -> Act:
    """Break the connection after the closing boundary."""
    return failing(ConnectionLost("reset"), take=Take.EVERYTHING, **how)


def virtually(*script: Act, **how: Any) -> Course:
    """Run :func:`deliver` on a clock that jumps to the next thing to happen."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(partial(deliver, *script, **how), clock=clock)
