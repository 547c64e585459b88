"""JSON calls: what of them is repeated, and what their deadline does."""

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from _courses import (
    OWN_500,
    InVirtualTime,
    connected,
    lost,
    refused,
)
from _fakes import (
    Act,
    FakeTransport,
    accepted,
    failing,
    hanging,
    record,
    reply,
)
from meeting_async import (
    Request,
)
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    MeetingError,
    RequestRefused,
    RoomNotActive,
    ServerFailed,
    Throttled,
    TransferTimeout,
    UnexpectedReply,
)

pytestmark = pytest.mark.anyio


async def ask(
    *script: Act, method: str = "info", then: Callable[[Request], Act] | None = None, **how: Any
) -> tuple[Any, FakeTransport, float]:
    """Make a JSON call along a script; return result or error, transport and seconds."""
    transport = FakeTransport(*script, then=then)
    async with connected(transport) as client:
        calls: dict[str, Callable[..., Any]] = {
            "info": partial(client.get_active_room_info, "room01"),
            "once": partial(client.call, "room/create", {"room_id": "room01"}),
            "idempotent": partial(
                client.call, "room/create", {"room_id": "room01"}, idempotent=True
            ),
        }
        began = anyio.current_time()
        try:
            outcome = await calls[method](**how)
        except Exception as error:  # noqa: BLE001 - examined by the test
            outcome = error
        return outcome, transport, anyio.current_time() - began


@pytest.mark.parametrize(
    ("act", "repeated", "error"),
    [
        (refused(), {"info", "idempotent", "once"}, ConnectFailed),
        (reply(429, b"", retry_after="1"), {"info", "idempotent", "once"}, Throttled),
        (reply(503, b"", retry_after="1"), {"info", "idempotent", "once"}, Throttled),
        (lost(), {"info", "idempotent"}, ConnectionLost),
        (failing(TransferTimeout("silence")), {"info", "idempotent"}, TransferTimeout),
        (reply(502, b"<h1>"), {"info", "idempotent"}, UnexpectedReply),
        (reply(408, b"<h1>"), {"info", "idempotent"}, UnexpectedReply),
        (reply(200, b"<h1>"), {"info", "idempotent"}, UnexpectedReply),
        (reply(200, {"status": "true"}), {"info", "idempotent"}, UnexpectedReply),
        (reply(409, record("CONFLICT")), set(), RequestRefused),
        (reply(400, record("X")), set(), RequestRefused),
        (reply(301, b""), set(), RequestRefused),
        (reply(200, record("ROOM_NOT_ACTIVE")), set(), RoomNotActive),
        (OWN_500, set(), ServerFailed),
        (failing(RuntimeError("foreign")), set(), RuntimeError),
    ],
)
@pytest.mark.parametrize("method", ["info", "once", "idempotent"])
def test_what_is_repeated_of_a_json_call(
    in_virtual_time: InVirtualTime,
    act: Act,
    repeated: set[str],
    error: type[Exception],
    method: str,
) -> None:
    """By kind of call: asking is free; anything else only what was never sent or throttled."""
    outcome, transport, _ = in_virtual_time(partial(ask, method=method, then=lambda _: act))
    assert type(outcome) is error
    assert len(transport.exchanges) == (5 if method in repeated else 1)
    if isinstance(outcome, MeetingError):
        assert len(outcome.attempts) == len(transport.exchanges)


def test_a_json_call_recovers(in_virtual_time: InVirtualTime) -> None:
    """After a lost reply the second one counts; each attempt carries the same bytes."""
    outcome, transport, seconds = in_virtual_time(ask, lost(), accepted())
    assert outcome.room_id == "room01"
    assert [bytes(e.sent) for e in transport.exchanges] == [b'{"room_id":"room01"}'] * 2
    assert 0.25 <= seconds <= 0.5


@pytest.mark.parametrize("method", ["info", "once"])
@pytest.mark.parametrize("act", [hanging(), reply(429, b"", retry_after="50")])
def test_the_deadline_of_a_json_call(in_virtual_time: InVirtualTime, method: str, act: Act) -> None:
    """It strikes in the exchange and in the backoff."""
    outcome, _, seconds = in_virtual_time(partial(ask, act, method=method, deadline=7))
    assert type(outcome) is DeadlineExceeded
    assert ("reply" if act.result is None else "try again") in outcome.phase
    assert seconds == 7
    assert len(outcome.attempts) == 1
