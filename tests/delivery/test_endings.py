"""Timeouts, cancellations and event loops: whatever ends a call, it leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from meeting_async import Document, MeetingClient, Verdict
from meeting_async.errors import DeadlineExceeded, MeetingError, RoomNotActive, UploadOutcomeUnknown
from meeting_async.testing import MeetingServer, run_in_virtual_time
from support.fake_rooms import Act, FakeRooms, absent, accepted, busy, cut_off, free, hanging, lost
from support.fakes import (
    ASKED,
    IN_DOCUMENT,
    KEY,
    LARGE,
    PDF,
    SECRET,
    EventRecorder,
    Scripted,
    client_of,
    is_out,
    locked_until,
    upload,
)
from support.interruptions import cancelled_by_scope, cancelled_natively
from support.sending import living_tasks

Run = Callable[..., Any]


class HangingSigner:
    """Waits for a vault that does not answer."""

    async def sign(self, message: bytes, /) -> Any:
        """Wait for ever."""
        await anyio.sleep_forever()


async def endless(first: bytes = b"%PDF") -> AsyncIterator[bytes]:
    """Bring some bytes, and then nothing."""
    yield first
    await anyio.sleep_forever()


LINK = Document.from_link("https://files.test/deck.pdf")

# What the requests meet, what is uploaded, settings; which error, in which words.
PHASES: dict[str, tuple[list[Act], Any, dict[str, Any], type[MeetingError], str]] = {
    "reading": ([], "stream", {}, DeadlineExceeded, "reading the document"),
    "checking": ([], PDF, {"checks": hanging()}, DeadlineExceeded, "checking the room"),
    "signing": ([], PDF, {"signer": HangingSigner()}, DeadlineExceeded, ""),
    "connecting": ([hanging(take=0)], PDF, {}, DeadlineExceeded, "sending"),
    "sending": ([hanging(take=1)], PDF, {}, DeadlineExceeded, "sending"),
    "before the boundary": ([hanging(take=IN_DOCUMENT)], PDF, {}, DeadlineExceeded, ""),
    "slow line": ([free(), accepted(sending=1000)], LARGE, {}, DeadlineExceeded, "sending"),
    "asking": ([hanging()], ASKED, {}, DeadlineExceeded, "asking whether the room is free"),
    "waiting": ([busy(), busy(), hanging()], ASKED, {}, DeadlineExceeded, "asking"),
    "stream as it comes": ([accepted()], "declared", {}, DeadlineExceeded, ""),
    "the reply": ([hanging()], PDF, {}, UploadOutcomeUnknown, "waiting for the reply"),
    "the reply to a link": ([hanging()], LINK, {}, UploadOutcomeUnknown, "waiting for the reply"),
    "after a lost one": (
        [lost(), hanging()], PDF, {"delivery": "at_least_once"}, UploadOutcomeUnknown, "asking"
    ),
}  # fmt: skip


@pytest.mark.both_loops
@pytest.mark.parametrize(
    ("script", "document", "how", "kind", "words"), PHASES.values(), ids=PHASES
)
def test_a_timeout_ends_every_phase(
    run: Run, script: list[Act], document: Any, how: dict[str, Any], kind: type, words: str
) -> None:
    """Exactly in time; unknown if the closing boundary was out, and never otherwise."""

    async def main() -> None:
        data = document
        if document == "stream":
            data = Document.from_stream(endless(), "deck.pdf")
        if document == "declared":
            data = Document.from_stream(endless(), "deck.pdf", size=100, replayable=False)
        named: Any = {} if isinstance(data, Document) else {"filename": "deck.pdf"}
        settings = {"preflight": True, **how}
        checks, recorder = settings.pop("checks", accepted()), EventRecorder()
        transport = Scripted(*script, checks=checks)
        async with client_of(transport, on_event=recorder, **settings) as client:
            with pytest.raises(kind) as caught:
                await client.upload_whiteboard_file("room01", data, timeout=5, **named)
        assert anyio.current_time() == pytest.approx(5)
        assert type(caught.value) is kind
        assert words in str(caught.value)
        assert "5 s" in str(caught.value)
        assert caught.value.room_id == "room01"  # type: ignore[attr-defined]
        assert recorder.finished.error is caught.value
        assert (recorder.finished.verdict is Verdict.UNKNOWN) is (kind is UploadOutcomeUnknown)
        assert transport.running == 0
        if isinstance(caught.value, UploadOutcomeUnknown):
            assert (caught.value.bytes_sent is None) is (document is LINK)
            ago = 5 if len(script) == 2 else 0  # since the document was lost
            assert caught.value.lock_free_in == pytest.approx(300 - ago)

    run(main)


class Drive:
    """A file on a network drive that does not answer any more; reads block their threads."""

    name = "deck.pdf"

    def __init__(self) -> None:
        self.back, self.reading = threading.Event(), 0

    def read(self, _size: int = -1) -> bytes:
        self.reading += 1
        self.back.wait(30)
        return b""

    def seek(self, *_args: int) -> int:
        return 0

    def tell(self) -> int:
        return 0


@pytest.mark.anyio
@pytest.mark.both_loops
@pytest.mark.parametrize("kind", ["raw", "stream"])
async def test_a_dead_network_drive_is_given_up(kind: str) -> None:
    """With the call, in real time; and forty of them take no thread from a healthy document."""
    drive: Any = Drive()
    async with client_of(FakeRooms()) as client:

        async def one() -> None:
            document = drive if kind == "raw" else Document.from_stream(drive, "deck.pdf")
            with pytest.raises(DeadlineExceeded):
                await client.upload_whiteboard_file("room01", document, timeout=0.3)

        try:
            with anyio.fail_after(20):
                async with anyio.create_task_group() as group:
                    for _ in range(40):
                        group.start_soon(one)
                assert drive.reading
                assert (await client.upload_whiteboard_file("room02", __file__)).size
        finally:
            drive.back.set()


def test_a_timeout_ends_the_queue(run: Run) -> None:
    """Behind another upload of this application."""

    async def main() -> None:
        transport = Scripted(accepted(replying=100))
        async with client_of(transport) as client, anyio.create_task_group() as group:
            group.start_soon(upload, client)
            await anyio.sleep(1)
            with pytest.raises(DeadlineExceeded, match="behind another upload of this"):
                await upload(client, timeout=5)
            assert anyio.current_time() == pytest.approx(6)
            assert len(transport.visits) == 1

    run(main)


# --- cancellation --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act", [accepted(), busy(), cut_off(), lost()], ids=["accepted", "busy", "cut off", "lost"]
)
@pytest.mark.parametrize(
    ("document", "backend"),
    [("bytes", "asyncio"), ("stream", "asyncio"), ("large", "asyncio"), ("bytes", "trio")],
)
def test_cancelled_at_every_wait(act: Act, document: str, backend: str) -> None:
    """By ``task.cancel()``, or a scope of trio: no task, lock, request or spool is left."""
    cancelled = cancelled_natively if backend == "asyncio" else cancelled_by_scope

    def make_document() -> Any:
        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, 1000, 250):
                await anyio.lowlevel.checkpoint()
                yield PDF[start : start + 250]

        if document == "stream":
            return Document.from_stream(chunks(), "deck.pdf")
        return Document.from_bytes(LARGE if document == "large" else PDF, "deck.pdf")

    async def one(step: int) -> bool:
        tasks, recorder = living_tasks(), EventRecorder()
        transport = FakeRooms(
            lambda visit: act if visit.number == 1 else accepted(),
            ask=lambda visit: free() if visit.kind == "probe" else accepted(),
        )
        settings: dict[str, Any] = {"preflight": True, "delivery": "at_least_once"}
        async with client_of(transport, on_event=recorder, **settings) as client:
            ended: list[str] = []

            async def run() -> None:
                try:
                    await client.upload_whiteboard_file("room01", make_document())
                except anyio.get_cancelled_exc_class():
                    ended.append("cancelled")
                    raise

            struck = await cancelled(run(), step)
            assert ended == ["cancelled"] * struck
            assert transport.running == 0
            assert living_tasks() == tasks
            if recorder.events:
                is_lost = any(is_out(visit) and not visit.status for visit in transport.uploads)
                is_accepted = any(visit.is_accepted for visit in transport.uploads)
                is_unknown = recorder.finished.verdict is Verdict.UNKNOWN
                assert is_unknown is (is_lost and not is_accepted)
            await client.upload_whiteboard_file("room01", PDF, filename="next.pdf")
        return struck

    steps = 1
    while run_in_virtual_time(one, steps, backend=backend):
        steps += 1
    assert steps > 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_the_end_of_the_program_passes(error: type[BaseException]) -> None:
    """What a transport raises that is none of ours is neither retried nor swallowed."""

    async def main() -> None:
        transport = Scripted(Act(result=error("stop"), take=1))
        async with client_of(transport) as client:
            await upload(client)

    with pytest.raises(error):
        run_in_virtual_time(main, backend="trio")


def test_a_client_that_is_closed_amid_a_wait(run: Run) -> None:
    """``aclose()`` with uploads that wait for their room: one clear error, nothing sent."""

    async def main() -> None:
        transport = Scripted(then=locked_until(100), checks=accepted())
        client = client_of(transport, preflight=True)
        async with anyio.create_task_group() as group:

            async def one() -> None:
                with pytest.raises(RuntimeError, match="closed"):
                    await upload(client, ASKED)

            group.start_soon(one)
            await anyio.sleep(10)
            await client.aclose()
            await client.aclose()
        assert anyio.current_time() < 13
        assert transport.closed == 1
        with pytest.raises(RuntimeError, match="closed"):
            await client.get_active_room_info("room01")

    run(main)


# --- several event loops -------------------------------------------------------------------------


def test_six_threads_with_a_loop_each_and_one_client() -> None:
    """Each call succeeds, or raises one RuntimeError that says what to do; none stalls."""
    server = MeetingServer(api_key=KEY, api_secret=SECRET)
    rooms = [server.add_room(f"room{number}").room_id for number in range(6)]
    outcomes: list[object] = []

    def work(room: str) -> None:
        for _ in range(10):
            try:
                outcomes.append(asyncio.run(one(room)))
            except Exception as error:  # noqa: BLE001 - looked at below
                outcomes.append(error)

    async def one(room: str) -> object:
        await client.get_active_room_info(room)
        return await client.upload_whiteboard_file(room, b"%PDF-1.7\n%%EOF\n", filename="deck.pdf")

    with server.run() as url:
        client = MeetingClient(url, api_key=KEY, api_secret=SECRET)
        threads = [threading.Thread(target=work, args=[room], daemon=True) for room in rooms]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        seconds = time.monotonic() - began
        assert asyncio.run(one(rooms[0]))  # once the others have ended
        asyncio.run(client.aclose())
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert len(outcomes) == 60
    assert {type(error) for error in errors} <= {RuntimeError}
    assert all("one client for each event loop" in str(error) for error in errors)
    assert seconds < 40  # nobody waits for a time limit: those are 10 s and more per call


def test_an_inactive_room_is_waited_for(run: Run) -> None:
    """Every 2 s at first, every 30 s in the end; given up when no further wait fits."""

    async def main() -> None:
        recorder = EventRecorder()
        transport = Scripted(*[absent()] * 5, accepted())
        async with client_of(transport, on_event=recorder) as client:
            assert (await client.wait_until_active("room01", 60)).room_id == "room01"
            assert anyio.current_time() == pytest.approx(10)
            waits = [event for event in recorder.events if "WaitingUntilActive" in repr(event)]
            assert len(waits) == 5
            assert len({event.call for event in recorder.events}) == 1
            assert recorder.finished.call == waits[0].call > 0
        late = Scripted(then=lambda _: absent())
        async with client_of(late) as client:
            with pytest.raises(DeadlineExceeded, match="active") as caught:
                await client.wait_until_active("room01", 2)
            assert anyio.current_time() == pytest.approx(10)  # no wait fits
            assert isinstance(caught.value.__cause__, RoomNotActive)
            late.visits.clear()
            with pytest.raises(DeadlineExceeded, match="active"):
                await client.wait_until_active("room01", 2000)
            assert len(late.visits) < 130
            gaps = [b.began - a.began for a, b in zip(late.visits, late.visits[1:], strict=False)]
            assert 2 <= min(gaps) <= max(gaps) <= 30.001

    run(main)
