"""What the applications of ``docs/frameworks`` share: answers, disconnects, progress."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from meeting_async import MeetingClient, errors
from meeting_async.testing import MeetingServer
from support.sites import shared

answers, batches, disconnects = shared("answers"), shared("batches"), shared("disconnects")

# --- what they share: answers --------------------------------------------------------------------

REPLY = (500, "NAME", "as 10.0.0.5 says of /srv/deck.pdf")
FILE = "/srv/deck.pdf"
ERRORS = [
    (errors.InvalidInput("room_id", FILE, "is empty", "x"), 422),
    (errors.ConfigurationError("f", "10.0.0.5", "p", "x"), 500),
    (errors.DocumentEmpty(FILE), 422),
    (errors.DocumentTooLarge(FILE, 2, 1), 413),
    (errors.DocumentTypeRefused(FILE, "PNG image"), 415),
    (errors.DocumentUnreadable(FILE, "the browser disconnected"), 400),
    (errors.DocumentChanged(FILE, "it ended early"), 400),
    (errors.LinkRefused("https://10.0.0.5/", "10.0.0.5 says no"), 422),
    (errors.RequestRefused(*REPLY), 422),
    (errors.AuthenticationFailed(*REPLY), 500),
    (errors.RoomNotFound(*REPLY), 404),
    (errors.RoomNotActive(*REPLY), 409),
    (errors.DocumentRefused(*REPLY), 413),
    (errors.Throttled(*REPLY, retry_after=2.5), 503),
    (errors.ServerFailed(*REPLY), 502),
    (errors.ProcessingFailed(*REPLY), 422),
    (errors.UnexpectedReply(*REPLY), 502),
    (errors.RoomBusy(20.0, "another client", 280.0, "as 10.0.0.5 says"), 503),
    (errors.DeadlineExceeded(1.0, "sending"), 504),
    (errors.RoomLocksUnavailable("10.0.0.5 is silent"), 503),
    (errors.ConnectFailed("refused", "10.0.0.5:443"), 502),
    (errors.UploadInterrupted("reset", "10.0.0.5:443", 5), 502),
    (errors.UploadOutcomeUnknown("10.0.0.5 is silent", 9, 9, 299.5), 202),
    (errors.JournalInUse("/srv/term.db", "is in use"), 500),
]


@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda value: type(value).__name__)
def test_each_error_has_its_status(
    error: errors.MeetingError, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A browser gets a status and a sentence without paths and hosts; the log gets the rest."""
    with caplog.at_level(logging.INFO):
        answer = answers.failed(error)
    assert (answer.status, answer.body["error"]) == (status, type(error).__name__)
    assert answer.body["delivered"] is (None if status == 202 else False)
    assert "10.0.0.5" not in str(answer) + str(answers.explain(error))
    assert "/srv" not in str(answer)
    assert str(error) in caplog.text


def test_every_error_that_a_route_can_raise_is_listed() -> None:
    """Only errors of journals and batches, which end no route, are answered by the root."""
    listed = tuple(kind for kind, *_ in answers.ANSWERS if kind is not errors.MeetingError)
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    ours = {kind for kind in kinds if issubclass(kind, errors.MeetingError)}
    assert {kind.__name__ for kind in ours if not issubclass(kind, listed)} == {
        *("MeetingError", "ReplyError", "JournalError", "JournalInUse", "BatchFailed")
    }


def test_numbers_that_tell_when_to_come_back() -> None:
    """Retry-After is whole seconds (RFC 9110, section 10.2.3); so is ``settled_in``."""
    by_name = {type(error).__name__: answers.failed(error) for error, _ in ERRORS}
    assert by_name["RoomBusy"].headers == {"Retry-After": "10"}
    assert by_name["Throttled"].headers == {"Retry-After": "3"}
    assert by_name["UploadOutcomeUnknown"].body["settled_in"] == 300


# --- what they share: disconnects ----------------------------------------------------------------


@pytest.mark.anyio
async def test_silence_is_limited() -> None:
    """A browser that sends nothing more is given up, one that is slow is not."""

    async def chunks(*, end: bool) -> AsyncGenerator[bytes, None]:
        for _ in range(5):
            await anyio.sleep(0.05)
            yield b"x"
        if not end:
            await anyio.sleep_forever()

    slow = [chunk async for chunk in disconnects.limit_silence(chunks(end=True), 2)]
    assert slow == [b"x"] * 5
    with pytest.raises(TimeoutError, match="nothing for 1 s"):
        _ = [chunk async for chunk in disconnects.limit_silence(chunks(end=False), 1)]


def browser_until(gone: anyio.Event) -> Callable[[], Awaitable[dict[str, Any]]]:
    """Make an ASGI ``receive`` of a browser that disconnects."""

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


@pytest.mark.anyio
async def test_unless_gone() -> None:
    """Work is cancelled with its browser; else its result or its error comes out as it is."""
    gone = anyio.Event()

    async def endless() -> None:
        gone.set()
        await anyio.sleep_forever()

    async def done() -> str:
        return "done"

    async def failing() -> None:
        raise errors.DocumentEmpty("deck.pdf")

    with anyio.fail_after(5):
        assert await disconnects.unless_gone(browser_until(gone), endless) is None
        assert await disconnects.unless_gone(browser_until(anyio.Event()), done) == "done"
        with pytest.raises(errors.DocumentEmpty):
            await disconnects.unless_gone(browser_until(anyio.Event()), failing)


@pytest.mark.anyio
async def test_work_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on without its caller; its error ends no other work; the end waits, not for ever."""
    ends = []

    async def work() -> str:
        await anyio.sleep(0.2)
        ends.append("done")
        return "result"

    async def failing() -> None:
        raise ValueError("failed")

    with anyio.fail_after(5):
        async with disconnects.Background.open() as background:
            with anyio.move_on_after(0.05) as caller:
                await background.finish(work)
            assert (caller.cancelled_caught, ends) == (True, [])
            with pytest.raises(ValueError, match="failed"):
                await background.finish(failing)
        assert ends == ["done"]
        monkeypatch.setattr(disconnects, "STOP_SECONDS", 0.05)
        async with disconnects.Background.open() as background:
            with anyio.move_on_after(0.01):
                await background.finish(anyio.sleep_forever)


# --- what they share: progress -------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_silent_stream_has_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    """They keep proxies from closing it."""
    monkeypatch.setattr(batches, "HEARTBEAT_SECONDS", 0.01)
    listener = batches.Progress().listen()
    assert [await anext(listener) for _ in range(2)] == [": still here\n\n"] * 2


@pytest.mark.anyio
async def test_a_finished_batch_is_reported_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart its report is there; an order that cannot be read stops no application."""
    monkeypatch.setenv("BATCHES_FOLDER", str(tmp_path / "batches"))
    monkeypatch.setenv("DOCUMENTS_FOLDER", str(tmp_path))
    monkeypatch.setattr(batches, "KEPT", 1)
    (tmp_path / "deck.pdf").write_bytes(b"%PDF-1.7")
    order = b'{"jobs": [{"room_id": "room01", "path": "deck.pdf"}]}'
    meeting = MeetingServer()
    room = meeting.add_room("room01")
    with meeting.run():
        keys: dict[str, Any] = {"api_key": meeting.api_key, "api_secret": meeting.api_secret}
        async with (
            MeetingClient(meeting.url, **keys) as client,
            batches.Batches.open(client) as site,
        ):
            first = await site.begin(order)
            told = [text async for text in await site.listen(first)]
            second = await site.begin(order)
            told_next = [text async for text in await site.listen(second)]
            forgotten = [text async for text in await site.listen(first)]
        (tmp_path / "batches" / f"{'0' * 32}.json").write_bytes(b"{}")
        async with (
            MeetingClient(meeting.url, **keys) as client,
            batches.Batches.open(client) as site,
        ):
            again = [text async for text in await site.listen(first)]
    assert [len(texts) for texts in (told, told_next, forgotten, again)] == [2, 2, 1, 1]
    assert data(told[-1]) == data(forgotten[0]) == data(again[0])
    assert len(room.received) == 2


def data(event: str) -> Any:
    """Return what an event says."""
    return json.loads(event.partition("data: ")[2])
