"""When connections keep failing, and when too much is repeated: what a client's calls share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import anyio
import pytest

from _courses import PDF, connected, lost, refused
from _fakes import Act, FakeTransport, accepted, reply
from meeting_async import MeetingClient, Request, RetryPolicy, UploadReceipt
from meeting_async.errors import ConnectFailed, MeetingError, Throttled

InVirtualTime = Callable[..., Any]


async def upload(client: MeetingClient, room: int) -> UploadReceipt | MeetingError:
    """Upload to a room of its own; return what came of it."""
    try:
        return await client.upload_whiteboard_file(f"room{room}", PDF, filename="deck.pdf")
    except MeetingError as error:
        return error


async def uploads(client: MeetingClient, count: int) -> list[UploadReceipt | MeetingError]:
    """Upload to so many rooms at once."""
    ends: list[UploadReceipt | MeetingError] = []

    async def run(room: int) -> None:
        ends.append(await upload(client, room))

    async with anyio.create_task_group() as group:
        for room in range(count):
            group.start_soon(run, room)
    return ends


def away_until(moment: float) -> Callable[[Request], Act]:
    """Refuse connections until then."""
    began: list[float] = []

    def answer(_request: Request) -> Act:
        now = anyio.current_time()
        began.append(now)
        return refused() if now - began[0] < moment else accepted()

    return answer


def test_an_outage_is_sat_out(in_virtual_time: InVirtualTime) -> None:
    """A restart of 40 s: all of 20 uploads arrive, with few attempts meanwhile."""

    async def main() -> tuple[list[Any], int, float]:
        transport = FakeTransport(then=away_until(40))
        async with connected(transport) as client:
            began = anyio.current_time()
            ends = await uploads(client, 20)
            seconds = anyio.current_time() - began
        return ends, len(transport.exchanges), seconds

    ends, sends, seconds = in_virtual_time(main)
    assert all(isinstance(end, UploadReceipt) for end in ends)
    assert 20 + 20 <= sends <= 20 + 20 + 40
    assert 40 <= seconds <= 50


def test_an_outage_has_an_end(in_virtual_time: InVirtualTime) -> None:
    """After ``max_outage`` each upload says why it gave up."""

    async def main() -> tuple[list[Any], float]:
        transport = FakeTransport(then=away_until(1e9))
        async with connected(transport, retry=RetryPolicy(max_outage=30)) as client:
            began = anyio.current_time()
            ends = await uploads(client, 12)
            return ends, anyio.current_time() - began

    ends, seconds = in_virtual_time(main)
    assert [type(end) for end in ends] == [ConnectFailed] * 12
    assert 30 <= seconds <= 30 + 3 * 12 * 2 + 20


def test_one_upload_by_itself_makes_no_outage(in_virtual_time: InVirtualTime) -> None:
    """It fails after its attempts, in seconds."""

    async def main() -> tuple[Any, int, float]:
        transport = FakeTransport(then=away_until(1e9))
        async with connected(transport) as client:
            began = anyio.current_time()
            end = await upload(client, 1)
            return end, len(transport.exchanges), anyio.current_time() - began

    end, sends, seconds = in_virtual_time(main)
    assert isinstance(end, ConnectFailed)
    assert sends == 5
    assert seconds < 10


def test_calls_do_not_wait_for_an_outage(in_virtual_time: InVirtualTime) -> None:
    """Somebody may be waiting for their answer."""

    async def main() -> float:
        transport = FakeTransport(then=away_until(1e9))
        async with connected(transport, retry=RetryPolicy(max_outage=0)) as client:
            await uploads(client, 5)
            slow = client.with_options(retry=RetryPolicy(max_outage=600))
            began = anyio.current_time()
            with pytest.raises(ConnectFailed):
                await slow.get_active_room_info("room01")
            return anyio.current_time() - began

    assert in_virtual_time(main) < 10


def test_an_answer_of_whatever_kind_ends_an_outage(in_virtual_time: InVirtualTime) -> None:
    """The way is there again; each goes on under its own rules."""

    async def main() -> list[Any]:
        script = [refused() for _ in range(12)]
        busy_or_fine = iter([reply(503, retry_after="1")] * 3)

        def then(_request: Request) -> Act:
            answer = next(busy_or_fine, None)
            return accepted() if answer is None else answer

        async with connected(FakeTransport(*script, then=then)) as client:
            return await uploads(client, 12)

    assert all(isinstance(end, UploadReceipt) for end in in_virtual_time(main))


def test_behind_an_outage_backoff_is_as_ever(in_virtual_time: InVirtualTime) -> None:
    """One room's calls still fail while all others get through: their news does not hurry it."""

    async def main() -> list[float]:
        began: list[float] = []

        def then(request: Request) -> Act:
            if dict(request.headers).get(b"Room-Id") != b"room0":
                return accepted() if anyio.current_time() - start >= 5 else refused()
            began.append(anyio.current_time())
            return refused()

        start = anyio.current_time()
        async with (
            connected(FakeTransport(then=then)) as client,
            anyio.create_task_group() as group,
        ):

            async def others() -> None:
                while True:
                    await anyio.sleep(0.01)
                    await upload(client, 1)

            for room in range(12):
                group.start_soon(upload, client, room + 100)
            group.start_soon(others)
            await upload(client, 0)
            group.cancel_scope.cancel()
        return began

    began = in_virtual_time(main)
    behind = [moment for moment in began if moment - began[0] > 5]
    waits = [later - earlier for earlier, later in pairwise(behind)]
    assert len(waits) >= 2
    assert min(waits) >= 0.25


def test_repetitions_have_a_budget(in_virtual_time: InVirtualTime) -> None:
    """Against a server that throttles everybody, 100 repetitions are made, and then no more."""

    async def main() -> tuple[list[Any], int]:
        answer = reply(429, retry_after="1")
        transport = FakeTransport(then=lambda _request: answer)
        async with connected(transport) as client:
            return await uploads(client, 60), len(transport.exchanges)

    ends, sends = in_virtual_time(main)
    assert [type(end) for end in ends] == [Throttled] * 60
    assert sends == 60 + 100
    notes = [note for end in ends for note in getattr(end, "__notes__", [])]
    assert any("too many calls of this client" in note for note in notes)


def test_what_goes_well_keeps_the_budget_full(in_virtual_time: InVirtualTime) -> None:
    """A call in three that needs a second attempt, for as long as one likes."""

    async def main() -> tuple[list[Any], int]:
        counter = iter(range(10**6))

        def then(_request: Request) -> Act:
            return refused() if next(counter) % 4 == 0 else accepted()

        transport = FakeTransport(then=then)
        async with connected(transport) as client:
            ends = [await upload(client, 1) for _ in range(600)]
            return ends, len(transport.exchanges)

    ends, sends = in_virtual_time(main)
    assert all(isinstance(end, UploadReceipt) for end in ends)
    assert sends == 800


def test_waiting_for_a_room_costs_no_budget(in_virtual_time: InVirtualTime) -> None:
    """It is no failure, and the delays are long."""

    async def main() -> float:
        transport = FakeTransport(lost(), then=lambda _request: accepted())
        async with connected(transport, delivery="at_least_once") as client:
            receipt = await upload(client, 1)
            assert isinstance(receipt, UploadReceipt)
            return client._calls.shared.budget.tokens

    assert in_virtual_time(main) == 500
