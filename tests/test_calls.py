"""From settings and arguments to a call on its way."""

from __future__ import annotations

import gc
import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from _batches import PDF, Town, client_of
from _courses import lost
from _fakes import accepted, busy, hanging, record, reply
from meeting_async import Document, HmacSigner, LockPolicy, Turnstile, errors
from meeting_async._calls import Calls, Shared, checked_seconds
from meeting_async._policies import Options
from meeting_async._rooms import common_turnstile
from meeting_async._verdicts import Repeatability

pytestmark = pytest.mark.anyio

InVirtualTime = Callable[..., Any]
DECK = Document.from_bytes(PDF, "deck.pdf")


def shared_with(town: Any, gate: Any = None) -> Shared:
    """Make what clients share."""
    return Shared("https://meet.test/auth", HmacSigner("key", "secret"), town, gate)


def calls_to(town: Any, **options: Any) -> Calls:
    """Make calls with a turnstile of their own; nobody has to close them."""
    calls = Calls(shared_with(town, Turnstile()), Options(**options))
    calls.shared.closed = False
    return calls


class Closing(Town):
    """Counts how often it is closed."""

    closed = 0

    async def aclose(self) -> None:
        """Count."""
        self.closed += 1


# --- what is shared ------------------------------------------------------------------------------


async def test_closing_happens_once() -> None:
    """And then no call begins, nor goes on."""
    town = Closing()
    shared = shared_with(town)
    shared.check_open()
    await shared.aclose()
    await shared.aclose()
    assert town.closed == 1
    with pytest.raises(RuntimeError, match="closed"):
        shared.check_open()
    with pytest.raises(RuntimeError, match="closed"):
        await shared.send(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("used", "closed"), [(True, False), (True, True), (False, False)])
async def test_what_nobody_closed_warns(used: bool, closed: bool) -> None:
    """If it was used at all."""
    shared = shared_with(Town())
    if used:
        shared.check_open()
    if closed:
        await shared.aclose()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del shared
        gc.collect()
    mine = [w for w in caught if "unclosed MeetingClient for https://meet" in str(w.message)]
    assert len(mine) == (used and not closed)


async def test_the_way_into_a_room() -> None:
    """By the gate that was given, else by the common one; the room is named with its server."""
    gate = Turnstile()
    door = shared_with(Town(), gate).door("room01")
    assert door.gate is gate
    assert door.room == "https://meet.test:443/auth room01"
    assert shared_with(Town()).door("room01").gate is common_turnstile()


# --- JSON calls ----------------------------------------------------------------------------------


async def test_asking() -> None:
    """The answer that accepts the call, or its refusal."""
    town = Town(ask=lambda v: accepted() if v.room == "a" else reply(200, record("NOPE")))
    calls = calls_to(town)
    answer = await calls.ask("room/x", {"room_id": "a"}, Repeatability.IDEMPOTENT)
    assert answer.status_code == "SUCCESS"
    with pytest.raises(errors.RequestRefused) as caught:
        await calls.ask("room/x", {"room_id": "b"}, Repeatability.IDEMPOTENT)
    assert (caught.value.room_id, caught.value.operation) == ("b", "room/x")
    await calls.shared.aclose()


async def test_a_room_that_is_active() -> None:
    """Its record; an id that cannot be sent is refused first."""
    town = Town()
    calls = calls_to(town)
    assert (await calls.active_room("room01")).room_id == "room01"
    with pytest.raises(errors.InvalidInput, match="room_id"):
        await calls.active_room(" ")
    assert len(town.questions) == 1
    await calls.shared.aclose()


# --- uploads -------------------------------------------------------------------------------------


async def test_an_upload() -> None:
    """Before it runs nothing is known of it, afterwards everything."""
    calls = calls_to(Town())
    upload = calls.upload("room01", DECK, max_wait=None, deadline=None)
    assert (upload.size, upload.attempts, upload.loss, upload.receipt) == (None, (), None, None)
    receipt = await upload.run()
    assert upload.receipt is receipt
    assert (receipt.room_id, receipt.document, receipt.size) == ("room01", "deck.pdf", len(PDF))
    assert upload.attempts == receipt.attempts
    assert len(receipt.attempts) == 1
    assert (upload.size, upload.loss) == (len(PDF), None)
    assert upload.began > 0
    await calls.shared.aclose()


async def test_a_link_has_no_size() -> None:
    """The server downloads it."""
    calls = calls_to(Town())
    link = Document.from_link("https://host/deck.pdf")
    upload = calls.upload("room01", link, max_wait=None, deadline=None)
    assert (await upload.run()).size is None
    assert upload.size is None
    await calls.shared.aclose()


@pytest.mark.parametrize(
    ("room", "how", "field"),
    [
        ("", {}, "room_id"),
        ("a", {"max_wait": -1}, "max_wait"),
        ("a", {"deadline": 0}, "deadline"),
    ],
)
async def test_wrong_arguments(room: str, how: dict[str, Any], field: str) -> None:
    """They are found out before anything runs."""
    arguments: dict[str, Any] = {"max_wait": None, "deadline": None, **how}
    with pytest.raises(errors.InvalidInput) as caught:
        calls_to(Town()).upload(room, DECK, **arguments)
    assert caught.value.field == field


async def test_the_size_is_told_before_anything_is_sent() -> None:
    """What is raised then ends the upload."""
    town, sizes = Town(), []
    calls = calls_to(town)

    async def measured(size: int) -> None:
        sizes.append(size)
        assert town.visits == []
        raise KeyError("too much")

    upload = calls.upload("room01", DECK, max_wait=None, deadline=None)
    upload.when_measured = measured
    with pytest.raises(KeyError):
        await upload.run()
    assert (sizes, town.visits, upload.size) == ([len(PDF)], [], len(PDF))


async def test_options_are_obeyed() -> None:
    """Limits on documents."""
    calls = calls_to(Town(), max_size_whiteboard_file=5)
    with pytest.raises(errors.DocumentTooLarge):
        await calls.upload("room01", DECK, max_wait=None, deadline=None).run()


@pytest.mark.parametrize("max_wait", [None, 40.0])
def test_how_long_to_wait(in_virtual_time: InVirtualTime, max_wait: float | None) -> None:
    """As the options say, or this upload."""

    async def main() -> float:
        calls = calls_to(Town(lambda _: busy()), lock=LockPolicy(max_wait=100, jitter=0))
        with pytest.raises(errors.RoomBusy):
            await calls.upload("a", DECK, max_wait=max_wait, deadline=None).run()
        await calls.shared.aclose()
        return anyio.current_time()

    assert in_virtual_time(main) == pytest.approx(max_wait or 100)


def test_a_deadline_includes_reading(in_virtual_time: InVirtualTime) -> None:
    """A stream may take for ever."""

    async def endless() -> Any:
        await anyio.sleep_forever()
        yield PDF

    async def main() -> float:
        calls = calls_to(Town())
        stream = Document.from_stream(endless(), "deck.pdf")
        with pytest.raises(errors.DeadlineExceeded, match="reading the document"):
            await calls.upload("a", stream, max_wait=None, deadline=7).run()
        return anyio.current_time()

    assert in_virtual_time(main) == pytest.approx(7)


def test_what_an_upload_that_was_cut_off_left_behind(in_virtual_time: InVirtualTime) -> None:
    """A loss if its end was out."""

    async def main(**take: Any) -> errors.UploadOutcomeUnknown | None:
        calls = calls_to(Town(lambda _: hanging(**take)))
        upload = calls.upload("a", DECK, max_wait=None, deadline=None)
        with anyio.move_on_after(5):
            await upload.run()
        await calls.shared.aclose()
        return upload.loss

    assert in_virtual_time(lambda: main(take=5)) is None
    loss = in_virtual_time(main)
    assert loss.document == "deck.pdf"
    assert loss.lock_free_in == 300


async def test_a_lost_upload_has_no_receipt() -> None:
    """Nobody knows whether it was accepted."""
    calls = calls_to(Town(lambda _: lost()))
    upload = calls.upload("a", DECK, max_wait=None, deadline=None)
    with pytest.raises(errors.UploadOutcomeUnknown):
        await upload.run()
    assert (upload.receipt, len(upload.attempts)) == (None, 1)
    await calls.shared.aclose()


@pytest.mark.parametrize(("room", "is_unusual"), [("room_1-A", False), ("a.b", True)])
async def test_unusual_rooms_are_noted(
    caplog: pytest.LogCaptureFixture, room: str, is_unusual: bool
) -> None:
    """Known servers do not support them."""
    with caplog.at_level(logging.WARNING, "meeting_async"):
        calls_to(Town()).upload(room, DECK, max_wait=None, deadline=None)
    actions = [getattr(entry, "action", None) for entry in caplog.records]
    assert actions == (["UnusualRoom"] if is_unusual else [])


async def test_a_clients_calls() -> None:
    """Clients that are made of another share all but options."""
    async with client_of(Town()) as client:
        derived = client.with_options(allow_images=True)
        assert derived._calls.shared is client._calls.shared
        assert derived._calls.options.allow_images is not client._calls.options.allow_images


@pytest.mark.parametrize("value", [None, 1, 0.5, math.inf])
def test_seconds(value: float | None) -> None:
    """Positive, or none."""
    assert checked_seconds(value) == value


@pytest.mark.parametrize("value", [0, -1, math.nan, "5", True, object()])
def test_what_is_no_number_of_seconds(value: Any) -> None:
    """It is named."""
    with pytest.raises(errors.InvalidInput, match="patience") as caught:
        checked_seconds(value, "patience")
    assert caught.value.field == "patience"
