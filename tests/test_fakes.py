"""The scripted transport itself: a fake that lies makes every other test worthless."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import attrs
import pytest

from _fakes import (
    Act,
    EventRecorder,
    FakeTransport,
    Take,
    accepted,
    busy,
    failing,
    hanging,
    record,
    reply,
)
from meeting_async import AttemptStarted, Finished, Reply, Request, Transport
from meeting_async.errors import ConnectionLost

pytestmark = pytest.mark.anyio

CHUNKS = (b"--b\r\nX: y\r\n\r\n", b"%PDF", b"-1.7", b"\r\n--b--\r\n")
HEADERS = (
    (b"Room-Id", b"room01"),
    (b"Content-Type", b"multipart/form-data; boundary=b"),
)


@attrs.define
class Chunks:
    """A body that counts how often it was asked for more."""

    asked: int = 0
    length: int = sum(map(len, CHUNKS))

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Begin."""
        return self

    async def __anext__(self) -> bytes:
        """Give the next chunk."""
        self.asked += 1
        if self.asked > len(CHUNKS):
            raise StopAsyncIteration
        return CHUNKS[self.asked - 1]


def form() -> Request:
    """Make an upload."""
    return Request("POST", "https://meet.test/auth/x", HEADERS, Chunks())


@pytest.mark.parametrize(
    ("take", "sent", "asked"),
    [
        (Take.NOTHING, b"", 0),
        (0, b"", 0),
        (Take.HEAD, CHUNKS[0], 1),
        (len(CHUNKS[0]), CHUNKS[0], 1),
        (len(CHUNKS[0]) + 1, b"".join(CHUNKS[:2]), 2),
        (Take.DOCUMENT, b"".join(CHUNKS[:3]), 3),
        (Take.EVERYTHING, b"".join(CHUNKS), 5),
    ],
)
async def test_it_takes_just_so_much_of_a_body(take: Take | int, sent: bytes, asked: int) -> None:
    """A body is asked for no chunk beyond the part that the script wants."""
    transport, request = FakeTransport(busy(take=take)), form()
    assert (await transport.send(request)).status == 409
    (exchange,) = transport.exchanges
    assert exchange.sent == sent
    assert exchange.complete is (take is Take.EVERYTHING)
    assert isinstance(request.body, Chunks)
    assert request.body.asked == asked


async def test_it_takes_the_body_of_a_json_call() -> None:
    """Bytes are taken at once, whole or in part."""
    request = Request("POST", "https://meet.test/auth/x", ((b"API-KEY", b"k"),), b'{"a":1}')
    transport = FakeTransport(accepted(), busy(take=Take.DOCUMENT), busy(take=3))
    for _ in range(3):
        await transport.send(request)
    assert [bytes(e.sent) for e in transport.exchanges] == [b'{"a":1}', b'{"a":1}', b'{"a']
    assert [e.complete for e in transport.exchanges] == [True, True, False]
    assert transport.exchanges[0].headers == {"api-key": "k"}


async def test_an_exchange_tells_the_document_from_the_form() -> None:
    """Boundary, closing and document are cut out of what was taken."""
    transport = FakeTransport(accepted(), accepted(take=Take.HEAD))
    await transport.send(form())
    await transport.send(form())
    whole, head = transport.exchanges
    assert (whole.boundary, whole.closing) == ("b", CHUNKS[-1])
    assert whole.document == b"%PDF-1.7"
    assert head.document == b""


async def test_replies_are_what_the_script_says() -> None:
    """Status, content, content type and Retry-After come out as given."""
    transport = FakeTransport(
        accepted(), reply(503, b"<h1>", retry_after="7"), reply(200, record("X", "no", extra=1))
    )
    replies = [await transport.send(form()) for _ in range(3)]
    assert [r.status for r in replies] == [200, 503, 200]
    assert b'"status": true' in replies[0].content
    assert (b"Content-Type", b"application/json") in replies[0].headers
    assert replies[1].content == b"<h1>"
    assert replies[1].headers == ((b"Content-Type", b"text/html"), (b"Retry-After", b"7"))
    assert b'"status": false' in replies[2].content
    assert b'"extra": 1' in replies[2].content


async def test_it_raises_the_very_error_of_the_script() -> None:
    """An exception comes out as the object that went in."""
    error = ConnectionLost("reset")
    transport = FakeTransport(failing(error, take=Take.HEAD))
    with pytest.raises(ConnectionLost) as caught:
        await transport.send(form())
    assert caught.value is error
    assert transport.running == 0


async def test_the_end_of_the_script() -> None:
    """After the script comes ``then``; without one, a request too many is a failed test."""
    transport = FakeTransport(busy(), then=lambda _: Act(result=Reply(200)))
    assert [(await transport.send(form())).status for _ in range(3)] == [409, 200, 200]
    with pytest.raises(AssertionError, match="request 1 is not in the script"):
        await FakeTransport().send(form())
    assert repr(transport) == "<FakeTransport, 3 requests, 0 acts left>"


def test_it_takes_its_time(in_virtual_time: Callable[..., Any]) -> None:
    """Connecting, sending and replying last as long as the script says, to the second."""

    async def main() -> tuple[float, float, float | None]:
        transport = FakeTransport(accepted(connecting=1, sending=20, replying=300))
        began = anyio.current_time()
        await transport.send(form())
        (exchange,) = transport.exchanges
        return anyio.current_time() - began, exchange.began - began, exchange.ended

    seconds, began, ended = in_virtual_time(main)
    assert seconds == pytest.approx(321)
    assert began == 0
    assert ended == pytest.approx(321)


async def test_silence_lasts_until_it_is_cancelled() -> None:
    """A hanging request counts as running, and collides with another one to its room."""
    transport = FakeTransport(hanging(), accepted())
    async with anyio.create_task_group() as group:
        group.start_soon(transport.send, form())
        await anyio.wait_all_tasks_blocked()
        assert transport.running == 1
        assert transport.exchanges[0].ended is None
        await transport.send(form())
        assert transport.collisions == ["room01"]
        group.cancel_scope.cancel()
    assert transport.running == 0
    await transport.aclose()
    assert transport.closed == 1
    assert isinstance(transport, Transport)


async def test_the_recorder_keeps_events_and_waits_for_them() -> None:
    """Events are kept in order with their times; a waiter wakes at the first of its kind."""
    common: dict[str, Any] = {"call": 1, "operation": "x", "room_id": None, "document": None}
    recorder = EventRecorder()
    started = AttemptStarted(attempt=1, **common)
    finished = Finished(verdict="accepted", attempts=1, seconds=0.0, **common)
    seen: list[Finished] = []

    async def wait() -> None:
        seen.append(await recorder.until(Finished))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        recorder(started)
        await anyio.wait_all_tasks_blocked()
        assert not seen
        recorder(finished)
    assert seen == [finished]
    assert recorder.kinds == ["AttemptStarted", "Finished"]
    assert recorder.of(AttemptStarted) == [started]
    assert recorder.times == sorted(recorder.times)
