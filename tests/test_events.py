"""Events: small frozen values that say which call they belong to and hold no secret."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import Any, cast

import attrs
import pytest

from meeting_async import _events, errors
from meeting_async._events import Event, Finished

COMMON: dict[str, Any] = {
    "call": 7,
    "operation": "room/uploadWhiteboardFile",
    "room_id": "room01",
    "document": "deck.pdf",
}
EXAMPLES: dict[type[Event], dict[str, Any]] = {
    Event: {},
    _events.Queued: {"shut_for": 12.5},
    _events.AttemptStarted: {"attempt": 1},
    _events.BytesSent: {"attempt": 1, "sent": 100, "total": 250},
    _events.WaitingForRoom: {"attempt": 1, "retry_in": 0.5, "waited": 0.0, "max_wait": 330.0},
    _events.WaitingUntilActive: {"retry_in": 2.0, "waited": 0.0, "max_wait": 3600.0},
    _events.RetryScheduled: {
        "attempt": 1,
        "retry_in": 0.5,
        "verdict": "partial",
        "reason": "the connection broke",
    },
    Finished: {"verdict": "accepted", "attempts": 2, "seconds": 1.5},
}

each_kind = pytest.mark.parametrize(
    ("kind", "own"), EXAMPLES.items(), ids=[kind.__name__ for kind in EXAMPLES]
)


def test_every_kind_of_event_has_an_example() -> None:
    """The list above is complete."""
    kinds = {
        kind for kind in vars(_events).values() if inspect.isclass(kind) and issubclass(kind, Event)
    }
    assert kinds == set(EXAMPLES)


@each_kind
def test_events_are_values(kind: type[Event], own: dict[str, Any]) -> None:
    """Equal when equal, hashable, with every fact that was given and no other."""
    event = kind(**COMMON, **own)
    assert event == kind(**COMMON, **own)
    assert hash(event) == hash(kind(**COMMON, **own))
    assert event != kind(**COMMON | {"call": 8}, **own)
    given = attrs.asdict(event)
    given.pop("error", None)
    assert given == COMMON | own


@each_kind
def test_events_are_frozen(kind: type[Event], own: dict[str, Any]) -> None:
    """An observer cannot change what the next one sees."""
    event = kind(**COMMON, **own)
    for name in COMMON | own:
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(event, name, None)


@each_kind
def test_events_take_names_only(kind: type[Event], own: dict[str, Any]) -> None:
    """Facts have names at every call, so that a new one breaks nobody."""
    with pytest.raises(TypeError):
        cast("Any", kind)(*COMMON.values(), *own.values())


def test_json_calls_have_neither_room_nor_document() -> None:
    """Both may be unknown."""
    event = Event(call=1, operation="room/fetchPastRooms", room_id=None, document=None)
    assert (event.room_id, event.document) == (None, None)


def test_finished_carries_the_error_beside_its_value() -> None:
    """Two ends are compared by what happened, not by the identity of an exception."""
    error = errors.RoomBusy("room01", 3.0, "HTTP 409")
    facts: dict[str, Any] = {"verdict": "busy", "attempts": 2, "seconds": 1.5}
    event = Finished(**COMMON, **facts, error=error)
    assert event.error is error
    assert event == Finished(**COMMON, **facts)
    assert Finished(**COMMON, **facts).error is None


def test_public_callback_type() -> None:
    """The type of a callback takes plain and coroutine functions."""
    seen: list[Event] = []

    async def coroutine(event: Event) -> None:
        seen.append(event)

    callbacks: list[_events.OnEvent] = [seen.append, coroutine]
    event = Event(**COMMON)
    assert callbacks[0](event) is None
    awaitable = callbacks[1](event)
    assert isinstance(awaitable, Coroutine)
    with pytest.raises(StopIteration):
        awaitable.send(None)
    assert seen == [event, event]
