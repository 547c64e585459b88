"""What a batch finds out before it sends documents: the server, the key, the room."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from _batches import ABSENT, Town, client_of
from _fakes import Act, EventRecorder, accepted, failing, record, reply
from meeting_async import MeetingClient, WaitingUntilActive, errors
from meeting_async._presence import (
    ASK_ABOVE,
    LONGEST_PAUSE,
    SHORTEST_PAUSE,
    Presence,
    dooms_batch,
    dooms_room,
)
from meeting_async._slots import Slot, Slots

pytestmark = pytest.mark.anyio

InVirtualTime = Callable[..., Any]
REPLY = ("room/getActiveRoomInfo", "room01", 404, None, "no")


OPENED: list[MeetingClient] = []


@pytest.fixture(autouse=True)
def _nothing_to_close() -> Iterator[None]:
    """Let no client complain that nobody closed it: its transport holds nothing."""
    yield
    for client in OPENED:
        client._calls.shared.used = False
    OPENED.clear()


class Stage:
    """A presence, its slot, and what happened."""

    def __init__(self, answer: Callable[[Any], Act], wait_active: float | None = None) -> None:
        self.town = Town(ask=answer)
        self.recorder = EventRecorder()
        self.met = 0
        self.client = client_of(self.town, on_event=self.recorder)
        self.presence = Presence(self.client._calls, wait_active, self._meet)
        self.slots = Slots(0, lambda: 0, lambda: None)
        self.slot = Slot(self.slots, lambda: 1)
        OPENED.append(self.client)

    def _meet(self) -> None:
        self.met += 1

    async def ask(self, room: str = "room01", since: float | None = None) -> None:
        """Ask for a room."""
        await self.presence.ask(room, "deck.pdf", self.slot, since)


# --- meeting the server --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "error", "is_met"),
    [
        (accepted(), None, True),
        (reply(200, record("ROOM_NOT_ACTIVE")), errors.RoomNotActive, True),
        (reply(200, record("ROOM_NOT_FOUND")), errors.RoomNotFound, True),
        (reply(200, record("SOMETHING_ELSE")), errors.RequestRefused, True),
        (reply(401, record("INVALID_API_KEY")), errors.AuthenticationFailed, False),
        (reply(401, record("INVALID_TOKEN_OR_SIGNATURE")), errors.AuthenticationFailed, False),
        (reply(404, b"<html>not here</html>"), errors.RequestRefused, False),
        (reply(301, b""), errors.RequestRefused, False),
        (failing(KeyError("signer"), take=0), KeyError, False),
    ],
)
async def test_who_has_been_met(act: Act, error: type[Exception] | None, is_met: bool) -> None:
    """A server of this kind that knows us, whatever it thinks of the room."""
    stage = Stage(lambda _: act)
    if error is None:
        await stage.ask()
    else:
        with pytest.raises(error):
            await stage.ask()
    assert (stage.presence.is_met, stage.met) == (is_met, int(is_met))
    assert stage.slot.is_held


async def test_it_is_met_once() -> None:
    """Further rooms are news of the rooms only."""
    stage = Stage(lambda _: accepted())
    await stage.ask("a")
    await stage.ask("b")
    assert (stage.met, len(stage.town.questions)) == (1, 2)


# --- when to ask ---------------------------------------------------------------------------------


async def test_a_room_is_asked_for_once_until_it_is_forgotten() -> None:
    """An active room is believed to stay so."""
    stage = Stage(lambda _: accepted())
    for _ in range(3):
        await stage.ask()
    assert len(stage.town.questions) == 1
    stage.presence.forget("room01")
    stage.presence.forget("never seen")
    await stage.ask()
    assert len(stage.town.questions) == 2


@pytest.mark.parametrize("wait_active", [None, 5.0])
async def test_the_first_question(wait_active: float | None) -> None:
    """Asked until the server was met; for every room if there is a wait for rooms."""
    stage = Stage(lambda _: accepted(), wait_active)
    await stage.presence.ask_first("a", "deck.pdf", stage.slot)
    await stage.presence.ask_first("b", "deck.pdf", stage.slot)
    assert len(stage.town.questions) == (1 if wait_active is None else 2)


async def test_before_a_large_document() -> None:
    """Above a size the question is cheaper than the document in vain."""
    stage = Stage(lambda _: accepted())
    await stage.presence.ask_for(ASK_ABOVE, "a", "deck.pdf", stage.slot)
    assert stage.town.questions == []
    await stage.presence.ask_for(ASK_ABOVE + 1, "a", "deck.pdf", stage.slot)
    assert len(stage.town.questions) == 1


# --- waiting -------------------------------------------------------------------------------------


def test_waiting_for_a_room(in_virtual_time: InVirtualTime) -> None:
    """Without the slot, asking more and more seldom, and telling so, until it is active."""

    async def main() -> list[float]:
        def answer(_visit: object) -> Act:
            return ABSENT if anyio.current_time() < 1000 else accepted()

        stage = Stage(answer, wait_active=3600)
        async with anyio.create_task_group() as group:
            group.start_soon(stage.ask)
            await anyio.sleep(1)
            assert (stage.slots.free, stage.slot.is_held) == (1, False)
        assert (stage.slots.free, stage.slot.is_held) == (0, True)
        told = stage.recorder.of(WaitingUntilActive)
        asked = [visit.exchange.began for visit in stage.town.questions]
        assert [event.retry_in for event in told] == pytest.approx(
            [later - earlier for earlier, later in itertools.pairwise(asked)]
        )
        assert {(e.room_id, e.document, e.max_wait) for e in told} == {("room01", "deck.pdf", 3600)}
        assert [event.waited for event in told] == pytest.approx(asked[:-1])
        return [event.retry_in for event in told]

    pauses = in_virtual_time(main)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (SHORTEST_PAUSE, LONGEST_PAUSE)
    assert len(pauses) < 70


@pytest.mark.parametrize("seconds", [0.5, 10.0, 100.0])
def test_a_wait_ends_in_time(in_virtual_time: InVirtualTime, seconds: float) -> None:
    """With the server's last word on the room; the last question falls on the end."""

    async def main() -> float:
        stage = Stage(lambda _: ABSENT, wait_active=seconds)
        with pytest.raises(errors.RoomNotActive):
            await stage.ask()
        assert stage.slot.is_held
        return anyio.current_time()

    assert in_virtual_time(main) == pytest.approx(seconds)


def test_an_older_wait_goes_on(in_virtual_time: InVirtualTime) -> None:
    """What was waited before counts."""

    async def main() -> float:
        stage = Stage(lambda _: ABSENT, wait_active=100)
        await anyio.sleep(60)
        with pytest.raises(errors.RoomNotActive):
            await stage.ask(since=0.0)
        assert not await stage.presence.pause("room01", "deck.pdf", stage.slot, 0.0)
        return anyio.current_time()

    assert in_virtual_time(main) == pytest.approx(100)


async def test_no_wait() -> None:
    """Unless there is one, the answer is final."""
    stage = Stage(lambda _: ABSENT)
    with pytest.raises(errors.RoomNotActive):
        await stage.ask()
    assert len(stage.town.questions) == 1


def test_a_wait_that_is_cancelled(in_virtual_time: InVirtualTime) -> None:
    """The slot stays with whoever has it now."""

    async def main() -> None:
        stage = Stage(lambda _: ABSENT, wait_active=100)
        with anyio.move_on_after(5):
            await stage.ask()
        assert (stage.slots.free, stage.slot.is_held) == (1, False)

    in_virtual_time(main)


# --- what dooms ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "met", "unmet", "outage"),
    [
        (errors.AuthenticationFailed(*REPLY), True, True, True),
        (errors.JournalError("j.db", "is full"), True, True, True),
        (errors.ConnectFailed("refused"), False, True, True),
        (errors.TransferTimeout("silence"), False, True, False),
        (errors.UnexpectedReply(*REPLY), False, True, False),
        (errors.RequestRefused(*REPLY), False, True, False),
        (errors.Throttled(*REPLY, None), False, True, False),
        (errors.RoomBusy("r", 330.0, "409"), False, False, False),
        (errors.DocumentEmpty("d"), False, False, False),
        (errors.UploadOutcomeUnknown("r", "d", 1, 1, "reset", 1.0), False, False, False),
        (KeyError("signer"), False, False, False),
        (None, False, False, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_what_dooms_the_batch(
    error: Exception | None, met: bool, unmet: bool, outage: bool
) -> None:
    """What every other document would meet as well."""
    assert dooms_batch(error, is_met=True, is_outage=False) is met
    assert dooms_batch(error, is_met=False, is_outage=False) is unmet
    assert dooms_batch(error, is_met=True, is_outage=True) is outage


def test_what_dooms_a_room() -> None:
    """That it is not there, or not active."""
    assert dooms_room(errors.RoomNotFound(*REPLY))
    assert dooms_room(errors.RoomNotActive(*REPLY))
    assert not dooms_room(errors.RequestRefused(*REPLY))
    assert not dooms_room(None)
