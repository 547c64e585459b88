"""Each attempt is a new one: body, boundary, signature, open file; and it leaves nothing open."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from _courses import (
    MIB,
    PDF,
    connected,
    cut_off,
    deliver,
    refused,
)
from _fakes import (
    Act,
    EventRecorder,
    FakeTransport,
    Take,
    accepted,
    busy,
    hanging,
)
from meeting_async import (
    BytesSent,
    Document,
    Event,
    Finished,
    HmacSigner,
    LockPolicy,
    Queued,
    Request,
    RetryPolicy,
    RetryScheduled,
    SignedHeaders,
    UploadReceipt,
    WaitingForRoom,
)
from meeting_async.errors import (
    ConnectFailed,
    DocumentChanged,
    InvalidInput,
)

pytestmark = pytest.mark.anyio

# --- each attempt is a new one -------------------------------------------------------------------


async def test_each_attempt_has_a_fresh_body_and_boundary() -> None:
    """The document is complete each time; boundaries never repeat; no body is used twice."""
    script = [cut_off(300_000), busy(retry_after="0"), cut_off(), accepted()]
    course = await deliver(
        *script,
        document=MIB,
        retry=RetryPolicy(initial_delay=0.001),
        lock=LockPolicy(min_delay=0.001),
    )
    assert course.accepted
    exchanges = course.transport.exchanges
    assert len({exchange.boundary for exchange in exchanges}) == 4
    assert len({id(exchange.request.body) for exchange in exchanges}) == 4
    assert [exchange.document == MIB for exchange in exchanges] == [False, True, True, True]
    for exchange in (exchanges[1], exchanges[3]):
        assert exchange.headers["content-length"] == str(len(exchange.sent))
        assert exchange.sent.endswith(exchange.closing)


class CountingSigner:
    """Rotates the key with every signature."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.messages: list[bytes] = []
        self._errors = errors

    def sign(self, message: bytes, /) -> SignedHeaders:
        """Sign with the next key."""
        self.messages.append(message)
        number = len(self.messages)
        error = self._errors[number - 1] if number <= len(self._errors) else None
        if error is not None:
            raise error
        return HmacSigner(f"key{number}", b"secret").sign(message)


async def test_each_attempt_is_signed_anew() -> None:
    """The signer is asked once per attempt, with the bytes of the ``Room-Id`` header."""
    signer = CountingSigner()
    course = await deliver(
        busy(retry_after="0"), accepted(), signer=signer, lock=LockPolicy(min_delay=0.001)
    )
    assert signer.messages == [b"room01"] * 2
    keys = [exchange.headers["api-key"] for exchange in course.transport.exchanges]
    assert keys == ["key1", "key2"]
    assert {exchange.headers["room-id"] for exchange in course.transport.exchanges} == {"room01"}


@pytest.mark.parametrize("earlier", [[], [None]])
async def test_a_signer_that_raises_is_not_asked_again(earlier: list[None]) -> None:
    """What a signer raises ends the call and comes out as it is, at any attempt."""
    error = ConnectionError("the vault is sealed")
    signer = CountingSigner(*earlier, error)
    course = await deliver(
        *[busy(retry_after="0") for _ in earlier],
        signer=signer,
        lock=LockPolicy(min_delay=0.001),
    )
    assert course.error is error
    assert len(signer.messages) == len(earlier) + 1
    assert course.sends == len(earlier)
    assert course.recorder.kinds[-1] == "Finished"


async def test_a_signer_may_raise_one_of_our_own_errors() -> None:
    """Even a transport error of a signer is not the transport's, and is not repeated."""
    signer = CountingSigner(ConnectFailed("the vault is away"))
    course = await deliver(signer=signer)
    assert type(course.error) is ConnectFailed
    assert len(signer.messages) == 1


class AsyncSigner:
    """Fetches its key first."""

    async def sign(self, message: bytes, /) -> SignedHeaders:
        """Sign after a wait."""
        await anyio.sleep(0.001)
        return HmacSigner("fetched", b"secret").sign(message)


async def test_an_asynchronous_signer_is_awaited() -> None:
    """A coroutine function will do."""
    course = await deliver(accepted(), signer=AsyncSigner())
    assert course.accepted
    assert course.transport.exchanges[0].headers["api-key"] == "fetched"


@attrs.frozen
class JunkSigner:
    """Returns whatever it is given."""

    junk: object

    def sign(self, _: bytes, /) -> Any:
        """Return it."""
        return self.junk


@pytest.mark.parametrize(
    "junk",
    [None, "signature", ("key", "signature"), {"API-KEY": "key", "HASH-SIGNATURE": "x"}],
)
async def test_a_signer_that_returns_something_else(junk: object) -> None:
    """One clear error about the signer, before anything is sent; its value is not shown."""
    course = await deliver(signer=JunkSigner(junk))
    assert type(course.error) is TypeError
    assert "signer must return SignedHeaders" in str(course.error)
    assert "signature" not in str(course.error)
    assert course.sends == 0


@pytest.mark.parametrize("field", ["api_key", "signature"])
@pytest.mark.parametrize("value", ["", "a b", "sig\r\nX: y", "sig\n", "é", None, b"bytes", 1])
async def test_a_signer_whose_headers_cannot_be_sent(field: str, value: Any) -> None:
    """One clear error that names the header, before anything is sent."""
    signed = attrs.evolve(SignedHeaders("key", "signature"), **{field: value})
    course = await deliver(signer=JunkSigner(signed))
    assert isinstance(course.error, InvalidInput | TypeError)
    assert field in str(course.error)
    assert "signer" in str(course.error)
    assert course.sends == 0


# --- the document --------------------------------------------------------------------------------


def descriptors(path: Path) -> int:
    """Count the open descriptors of a file in this process."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += entry.readlink() == path
    return count


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that threads have a part in."""
    with anyio.fail_after(5):
        while not condition():  # noqa: ASYNC110 - no event tells of descriptors
            await anyio.sleep(0.002)


async def is_used_up(request: Request) -> bool:
    """Whether a body was closed: it has nothing more to give."""
    assert not isinstance(request.body, bytes)
    return [chunk async for chunk in request.body] == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("act", [busy(take=Take.HEAD), cut_off(300_000), refused(), busy()])
async def test_a_waiting_upload_holds_nothing(act: Act, tmp_path: Path) -> None:
    """While it waits there is no open file and no open body; while it sends there is one."""
    path = (tmp_path / "deck.pdf").resolve()
    path.write_bytes(MIB)
    transport, recorder = FakeTransport(act, hanging(take=Take.HEAD)), EventRecorder()
    policy = RetryPolicy(initial_delay=0.4, max_delay=0.4)
    client = connected(transport, on_event=recorder, retry=policy)
    async with client, anyio.create_task_group() as group:
        group.start_soon(client.upload_whiteboard_file, "room01", path)
        kind = WaitingForRoom if act.result and not isinstance(act.result, Exception) else None
        await recorder.until(kind or RetryScheduled)
        await anyio.wait_all_tasks_blocked()
        assert descriptors(path) == 0
        assert await is_used_up(transport.exchanges[0].request)
        assert transport.running == 0
        await until(lambda: transport.running == 1)
        assert descriptors(path) == 1
        group.cancel_scope.cancel()
    assert descriptors(path) == 0
    assert await is_used_up(transport.exchanges[1].request)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
async def test_a_queued_upload_holds_nothing(tmp_path: Path) -> None:
    """A hundred uploads in line have one file open among them."""
    path = (tmp_path / "deck.pdf").resolve()
    path.write_bytes(MIB)
    transport, recorder = FakeTransport(hanging(take=Take.HEAD)), EventRecorder()
    client = connected(transport, on_event=recorder)
    async with client, anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(client.upload_whiteboard_file, "room01", path)
        await until(lambda: len(recorder.of(Queued)) == 99 and transport.running == 1)
        await anyio.wait_all_tasks_blocked()
        assert descriptors(path) == 1
        group.cancel_scope.cancel()
    assert descriptors(path) == 0


@pytest.mark.parametrize("change", ["grow", "shrink", "rewrite", "replace", "remove"])
async def test_a_document_that_changes_between_attempts(change: str, tmp_path: Path) -> None:
    """It is noticed before a byte of it is sent, and ends the upload."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(PDF)
    recorder = EventRecorder()

    async def on_event(event: Event) -> None:
        recorder(event)
        if isinstance(event, WaitingForRoom):
            await anyio.to_thread.run_sync(alter, path, change)

    course = await deliver(
        busy(), document=path, on_event=on_event, lock=LockPolicy(min_delay=0.001)
    )
    assert type(course.error) is DocumentChanged
    assert course.sends == 1
    assert [attempt.verdict for attempt in course.error.attempts] == ["busy", "never sent"]
    finished = recorder.of(Finished)[0]
    assert finished.error is course.error


def alter(path: Path, change: str) -> None:
    """Change a file in one of five ways."""
    if change == "grow":
        path.write_bytes(PDF + b"more")
    elif change == "shrink":
        os.truncate(path, 5)
    elif change == "rewrite":
        path.write_bytes(PDF[::-1])
        os.utime(path, ns=(0, 0))
    elif change == "replace":
        other = path.with_suffix(".new")
        other.write_bytes(PDF)
        other.replace(path)
    else:
        path.unlink()


async def test_a_document_that_changes_while_it_is_sent(tmp_path: Path) -> None:
    """It never becomes complete: the closing boundary is held back."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(MIB)

    async def on_event(event: Event) -> None:
        if isinstance(event, BytesSent) and event.sent < event.total:
            await anyio.to_thread.run_sync(os.truncate, path, 700_000)

    course = await deliver(accepted(), document=path, on_event=on_event)
    assert type(course.error) is DocumentChanged
    assert course.sends == 1
    assert not course.transport.exchanges[0].complete
    assert [attempt.verdict for attempt in course.error.attempts] == ["partial"]


async def test_a_link_is_sent_as_a_link() -> None:
    """The form carries the URL and nothing else; the same rules decide what is repeated."""
    url = "https://files.example.com/deck.pdf?token=abc"
    course = await deliver(
        busy(retry_after="0"),
        accepted(),
        document=Document.from_link(url),
        lock=LockPolicy(min_delay=0.001),
    )
    receipt = course.outcome
    assert isinstance(receipt, UploadReceipt)
    assert (receipt.size, receipt.document) == (None, "https://files.example.com/deck.pdf?…")
    assert [e.document for e in course.transport.exchanges] == [url.encode()] * 2
    assert b'name="document_link"' in course.transport.exchanges[0].sent
