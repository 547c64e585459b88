"""Asking a locked room with a form that carries nothing, instead of the document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import httpx
import pytest

from _courses import MIB, PDF, connected, refused, virtually
from _fakes import Act, FakeTransport, accepted, busy, record, reply
from meeting_async import HttpxTransport, LockPolicy, MeetingClient, Request
from meeting_async.errors import RoomBusy
from meeting_async.testing import MeetingServer

PROBING = LockPolicy(jitter=0, probe=True)
REFUSED_400 = reply(400, record("INVALID_PARAMETERS", "no file"))


def is_probe(request: Request) -> bool:
    """Tell a probe from a document by its body."""
    return isinstance(request.body, bytes)


def room(*, locked_until: float, says: bool = True) -> Callable[[Request], Act]:
    """Be a room that is locked until then; ``says`` whether probes are told the truth."""
    began = anyio.current_time()

    def answer(request: Request) -> Act:
        locked = anyio.current_time() - began < locked_until
        if is_probe(request):
            return busy() if locked and says else REFUSED_400
        return busy(sending=0.1) if locked else accepted(sending=0.1)

    return answer


def sizes(course: Any) -> tuple[int, int]:
    """Count probes and documents."""
    probes = [is_probe(exchange.request) for exchange in course.transport.exchanges]
    return probes.count(True), probes.count(False)


def lazily(**how: Any) -> Callable[[Request], Act]:
    """Make the room when the first request comes, on the clock that runs then."""
    made: list[Callable[[Request], Act]] = []

    def answer(request: Request) -> Act:
        if not made:
            made.append(room(**how))
        return made[0](request)

    return answer


def test_a_free_room_costs_one_probe() -> None:
    """Then the document, once."""
    course = virtually(then=lazily(locked_until=0), lock=PROBING, document=MIB)
    assert course.accepted
    assert sizes(course) == (1, 1)
    assert course.verdicts == ["accepted"]


@pytest.mark.parametrize("seconds", [1, 12, 120, 299])
def test_a_locked_room_gets_the_document_once(seconds: float) -> None:
    """However long it is locked; it begins within two seconds of the release."""
    course = virtually(then=lazily(locked_until=seconds), lock=PROBING, document=MIB)
    assert course.accepted
    probes, documents = sizes(course)
    assert documents == 1
    assert seconds <= course.seconds - 0.1 <= seconds + 2
    small = [e for e in course.transport.exchanges if is_probe(e.request)]
    assert all(len(exchange.sent) < 300 for exchange in small)
    assert all(b'name="document' not in exchange.sent for exchange in small)
    assert probes >= seconds / 2


def test_a_probe_is_signed_like_an_upload() -> None:
    """It is the same call: the room id is what is signed."""
    course = virtually(then=lazily(locked_until=0), lock=PROBING)
    probe, upload = course.transport.exchanges
    for header in ("api-key", "hash-signature", "room-id", "accept"):
        assert probe.headers[header] == upload.headers[header]
    assert probe.request.url == upload.request.url
    assert int(probe.headers["content-length"]) == len(probe.sent)


def test_a_probe_that_lies_is_believed_twice() -> None:
    """Then the documents themselves ask, as without probes."""
    course = virtually(then=lazily(locked_until=20, says=False), lock=PROBING)
    assert course.accepted
    probes, documents = sizes(course)
    assert probes == 2
    assert documents > 3
    assert [is_probe(e.request) for e in course.transport.exchanges[:4]] == [True, False] * 2


def test_a_probe_that_fails_decides_nothing() -> None:
    """The upload itself finds out what is wrong."""
    course = virtually(refused(), accepted(), lock=PROBING)
    assert course.accepted
    assert sizes(course) == (1, 1)


def test_a_room_that_stays_locked() -> None:
    """``RoomBusy`` when the budget is spent, without one document; the last probe on its end."""
    course = virtually(then=lazily(locked_until=10_000), lock=PROBING, document=MIB)
    assert isinstance(course.error, RoomBusy)
    assert course.seconds == pytest.approx(330, abs=0.01)
    assert sizes(course)[1] == 0
    assert course.error.attempts == ()


def test_no_wait_at_all() -> None:
    """``max_wait=0`` with probes costs one of them."""
    course = virtually(then=lazily(locked_until=10), lock=PROBING, max_wait=0)
    assert isinstance(course.error, RoomBusy)
    assert sizes(course) == (1, 0)


def test_without_being_told_so_nobody_probes() -> None:
    """The interface leaves open what a form without a file gets."""
    course = virtually(then=lazily(locked_until=30))
    assert course.accepted
    assert sizes(course)[0] == 0


def test_with_a_server_that_speaks_the_interface(in_virtual_time: Callable[..., Any]) -> None:
    """The development server refuses the form as any other without a file; nothing arrives."""

    async def main() -> tuple[float, int]:
        server = MeetingServer()
        room01 = server.add_room("room01")
        room01.lock(100)
        transport = HttpxTransport(httpx.AsyncClient(transport=httpx.ASGITransport(app=server)))
        async with MeetingClient(
            "http://localhost",
            api_key=server.api_key,
            api_secret=server.api_secret,
            transport=transport,
            lock=PROBING,
        ) as client:
            receipt = await client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")
        assert [attempt.verdict for attempt in receipt.attempts] == ["accepted"]
        return receipt.seconds, len(room01.received)

    seconds, received = in_virtual_time(main)
    assert 100 <= seconds <= 103
    assert received == 1


def test_other_calls_have_no_probe(in_virtual_time: Callable[..., Any]) -> None:
    """Only uploads wait for rooms."""

    async def main() -> int:
        transport = FakeTransport(then=lambda _request: accepted())
        async with connected(transport, lock=PROBING) as client:
            await client.call("room/x", {}, idempotent=True)
        return len(transport.exchanges)

    assert in_virtual_time(main) == 1
