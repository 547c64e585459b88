"""One upload along a script, and an observer that keeps all events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import attrs

from meeting_async import Document, Event, Finished, MeetingClient, UploadReceipt
from meeting_async.errors import MeetingError
from support.documents import SMALL
from support.fake_rooms import ACTIVE, Act, Scripted, Visit, client_without_checks

E = TypeVar("E", bound=Event)


@attrs.define(eq=False)
class EventRecorder:
    """An observer that keeps every event and the moment it came."""

    events: list[Event] = attrs.field(factory=list)
    times: list[float] = attrs.field(factory=list)

    def __call__(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)
        self.times.append(anyio.current_time())

    @property
    def kinds(self) -> list[str]:
        """Names of the events' classes in order."""
        return [type(event).__name__ for event in self.events]

    def of(self, kind: type[E]) -> list[E]:
        """All events of one class."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def finished(self) -> Finished:
        """The last event; there is exactly one of its kind."""
        (found,) = self.of(Finished)
        assert self.events[-1] is found
        return found


async def upload(
    client: MeetingClient, data: Any = SMALL, room: str = "room01", **how: Any
) -> UploadReceipt:
    """Upload under the name deck.pdf."""
    named: Any = {} if isinstance(data, Document) else {"filename": "deck.pdf"}
    return await client.upload_whiteboard_file(room, data, **named, **how)


@attrs.frozen
class Course:
    """How an upload went."""

    outcome: Any
    """The receipt, or the error."""
    transport: Scripted
    recorder: EventRecorder
    seconds: float


async def course(
    *script: Act,
    data: Any = SMALL,
    checks: Act | None = ACTIVE,
    then: Callable[[Visit], Act] | None = None,
    **settings: Any,
) -> Course:
    """Upload along a script to a room that is active, with settings of client and call."""
    recorder, transport = EventRecorder(), Scripted(*script, checks=checks, then=then)
    how = {name: settings.pop(name) for name in ("max_wait", "timeout") if name in settings}
    settings = {"preflight": True, **settings}
    async with client_without_checks(transport, on_event=recorder, **settings) as client:
        try:
            outcome: Any = await upload(client, data, **how)
        except MeetingError as error:
            outcome = error
            assert recorder.finished.error is error  # noqa: PT017 - the very object
    return Course(outcome, transport, recorder, anyio.current_time())
