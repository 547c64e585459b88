"""What the applications of ``docs/frameworks`` share: answers, disconnects, progress."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from _sites import shared
from meeting_async import MeetingClient, errors
from meeting_async.testing import MeetingServer

answers, batches, disconnects = shared("answers"), shared("batches"), shared("disconnects")

REPLY = ("room/uploadWhiteboardFile", "room01", 500, "NAME", "as 10.0.0.5 says")
ANSWERS = [
    (errors.InvalidInput("f", "v", "p", "x"), 422),
    (errors.ConfigurationError("f", "v", "p", "x"), 500),
    (errors.DocumentEmpty("deck.pdf"), 422),
    (errors.DocumentTooLarge("deck.pdf", 2, 1), 413),
    (errors.DocumentTypeRefused("deck.png", "PNG image"), 415),
    (errors.DocumentUnreadable("deck.pdf", "the browser went away"), 400),
    (errors.DocumentChanged("deck.pdf", "it ended early"), 400),
    (errors.RequestRefused(*REPLY), 422),
    (errors.AuthenticationFailed(*REPLY), 500),
    (errors.RoomNotFound(*REPLY), 404),
    (errors.RoomNotActive(*REPLY), 409),
    (errors.DocumentRefused(*REPLY), 413),
    (errors.Throttled(*REPLY, 2.5), 503),
    (errors.ServerFailed(*REPLY), 502),
    (errors.ProcessingFailed(*REPLY), 422),
    (errors.UnexpectedReply(*REPLY), 502),
    (errors.RoomBusy("room01", 20.0, "locked"), 503),
    (errors.DeadlineExceeded("path", 1.0, "sending"), 504),
    (errors.RoomGateUnavailable("room01", "10.0.0.5 is silent"), 503),
    (errors.ConnectFailed("10.0.0.5 refused"), 502),
    (errors.UploadInterrupted("reset by 10.0.0.5", "room01", "deck.pdf", 5), 502),
    (errors.UploadOutcomeUnknown("room01", "deck.pdf", 9, 9, "silence", 299.5), 202),
    (errors.JournalInUse("term.db", "is in use"), 500),
]


@pytest.mark.parametrize(("error", "status"), ANSWERS, ids=lambda x: type(x).__name__)
def test_each_error_has_its_status(error: errors.MeetingError, status: int) -> None:
    """A browser learns whose move it is, and never that a maybe is a no."""
    answer = answers.failed(error)
    assert (answer.status, answer.body["error"]) == (status, type(error).__name__)
    assert answer.body["delivered"] is (None if status == 202 else False)


@pytest.mark.parametrize(("error", "status"), ANSWERS, ids=lambda x: type(x).__name__)
def test_addresses_of_our_network_are_for_the_log(
    error: errors.MeetingError, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What a browser cannot mend is not explained to it."""
    with caplog.at_level(logging.ERROR):
        detail = answers.failed(error).body["detail"]
    hidden = status >= 500 and status != 503
    assert (str(error) in caplog.text, detail == str(error)) == (hidden, not hidden)


def test_every_error_that_a_route_can_raise_is_known() -> None:
    """Errors of journals and batches end no route; whatever comes anew must be thought about."""
    listed = tuple(kind for kind, _ in answers.STATUSES)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    ours = {kind for kind in kinds if issubclass(kind, errors.MeetingError)}
    assert {kind.__name__ for kind in ours if not issubclass(kind, listed)} == {
        *("MeetingError", "ReplyError"),  # never raised themselves
        *("JournalError", "JournalInUse", "BatchFailed", "BatchStopped"),
    }


def test_a_busy_room_says_when_to_come_back() -> None:
    """Retry-After is whole seconds (RFC 9110, section 10.2.3), rounded up."""
    busy, throttled = errors.RoomBusy("room01", 20.0, "locked"), errors.Throttled(*REPLY, 2.5)
    assert answers.failed(busy).headers == {"Retry-After": "10"}
    assert answers.failed(throttled).headers == {"Retry-After": "3"}


def test_an_unknown_outcome_says_when_it_is_settled() -> None:
    """By then the file is there, or will not come."""
    error = errors.UploadOutcomeUnknown("room01", "deck.pdf", 9, 9, "silence", 299.5)
    assert answers.failed(error).body["settled_in"] == 300


# --- disconnects ---------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_silent_browser_is_given_up() -> None:
    """However much it sent before."""

    async def silent() -> AsyncGenerator[bytes, None]:
        yield b"some"
        await anyio.sleep_forever()

    stream = disconnects.patiently(silent(), 0.05)
    assert await anext(stream) == b"some"
    with pytest.raises(TimeoutError, match=r"nothing for 0\.05 s"):
        await anext(stream)


@pytest.mark.anyio
async def test_a_slow_browser_is_not_silent() -> None:
    """The limit is on each silence, not on their sum."""

    async def slow() -> AsyncGenerator[bytes, None]:
        for _ in range(5):
            await anyio.sleep(0.1)
            yield b"x"

    assert [chunk async for chunk in disconnects.patiently(slow(), 0.3)] == [b"x"] * 5


def browser(gone: anyio.Event) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Make an ASGI ``receive`` whose browser leaves at some time."""

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


@pytest.mark.anyio
async def test_work_is_cancelled_when_the_browser_goes() -> None:
    """And the handler gets no result."""
    gone, ends = anyio.Event(), []

    async def work() -> str:
        gone.set()
        try:
            await anyio.sleep_forever()
        finally:
            ends.append("cancelled")
        return "never"

    with anyio.fail_after(5):
        assert await disconnects.unless_gone(browser(gone), work) is None
    assert ends == ["cancelled"]


@pytest.mark.anyio
async def test_work_that_is_quicker_brings_its_result() -> None:
    """Or its error, as it is."""

    async def work() -> str:
        return "done"

    async def failing() -> str:
        raise errors.DocumentEmpty("deck.pdf")

    with anyio.fail_after(5):
        assert await disconnects.unless_gone(browser(anyio.Event()), work) == "done"
        with pytest.raises(errors.DocumentEmpty):
            await disconnects.unless_gone(browser(anyio.Event()), failing)


@pytest.mark.anyio
async def test_an_errand_outlives_its_caller() -> None:
    """Cancelled is who waits for it; closing the errands waits for its end."""
    ends = []

    async def work() -> None:
        await anyio.sleep(0.2)
        ends.append("done")

    async with disconnects.Errands.open() as errands:
        with anyio.move_on_after(0.05) as caller:
            await errands.finish(work)
        assert (caller.cancelled_caught, ends) == (True, [])
    assert ends == ["done"]


@pytest.mark.anyio
async def test_a_failing_errand_disturbs_no_other() -> None:
    """Its error is its caller's."""
    ends = []

    async def failing() -> None:
        raise errors.DocumentEmpty("deck.pdf")

    async def work() -> str:
        await anyio.sleep(0.05)
        ends.append("done")
        return "result"

    async with disconnects.Errands.open() as errands, anyio.create_task_group() as group:
        group.start_soon(errands.finish, work)
        with pytest.raises(errors.DocumentEmpty):
            await errands.finish(failing)
        assert await errands.finish(work) == "result"
    assert ends == ["done", "done"]


@pytest.mark.anyio
async def test_errands_do_not_hold_up_the_end_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion may take minutes, and a supervisor has no such patience."""
    monkeypatch.setattr(disconnects, "STOP_SECONDS", 0.05)
    with anyio.fail_after(5):
        async with disconnects.Errands.open() as errands:
            with anyio.move_on_after(0.01):
                await errands.finish(anyio.sleep_forever)


# --- progress ------------------------------------------------------------------------------------


def test_a_silent_stream_has_heartbeats(in_virtual_time: Callable[..., Any]) -> None:
    """A comment every 15 s, which browsers do not show and proxies do not cut."""

    async def listening() -> list[str]:
        progress, heard = batches.Progress(), []
        async with anyio.create_task_group() as group:

            async def telling() -> None:
                await anyio.sleep(40)
                progress.tell("report", {}, last=True)

            group.start_soon(telling)
            async for text in progress.listen():
                heard.append(text)  # noqa: PERF401 - a list of what came, in time
        return heard

    heard = in_virtual_time(listening)
    assert heard[:-1] == [": still here\n\n"] * 2
    assert heard[-1].endswith("event: report\ndata: {}\n\n")


@pytest.fixture
def meeting() -> Iterator[MeetingServer]:
    """Run a meeting server."""
    server = MeetingServer()
    with server.run():
        yield server


@pytest.mark.anyio
async def test_a_finished_batch_is_reported_and_not_done_anew(
    meeting: MeetingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart there is its report; and an application of many batches keeps few."""
    monkeypatch.setenv("BATCHES_FOLDER", str(tmp_path / "batches"))
    monkeypatch.setenv("DOCUMENTS_FOLDER", str(tmp_path))
    monkeypatch.setattr(batches, "KEPT", 1)
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7")
    order = b'{"jobs": [{"room_id": "room01", "path": "deck.pdf"}]}'
    room = meeting.add_room("room01")
    keys: dict[str, Any] = {"api_key": meeting.api_key, "api_secret": meeting.api_secret}
    async with MeetingClient(meeting.url, **keys) as client, batches.Batches.open(client) as site:
        first = await site.begin(order)
        told = [text async for text in await site.listen(first)]
        second = await site.begin(order)
        told_next = [text async for text in await site.listen(second)]
        forgotten = [text async for text in await site.listen(first)]
    async with MeetingClient(meeting.url, **keys) as client, batches.Batches.open(client) as site:
        again = [text async for text in await site.listen(first)]
    assert [len(texts) for texts in (told, told_next, forgotten, again)] == [2, 2, 1, 1]
    assert data(told[-1]) == data(forgotten[0]) == data(again[0])
    assert len(room.received) == 2


def data(event: str) -> Any:
    """Return what an event says."""
    return json.loads(event.partition("data: ")[2])
