"""A transport that plays a script, request by request, and an observer that keeps all events.

transport = Scripted(busy(), lost(), accepted())
...
assert transport.kinds == ["upload", "probe", "upload"]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import attrs

from meeting_async import Document, Event, Finished, LockPolicy, MeetingClient, UploadReceipt
from meeting_async.errors import MeetingError
from support.fake_rooms import Act, FakeRooms, Visit, accepted, busy, free
from support.raw_http import sign

E = TypeVar("E", bound=Event)

KEY, SECRET = "key-0f-the-app", "secret-0f-the-app"
PDF = b"%PDF-1.7".ljust(1000, b"\n")
"""A document of 1,000 bytes: its own question."""
ASKED = b"%PDF-1.7".ljust(64 * 1024 + 1, b"\n")
"""The smallest document that is preceded by a question once its room was locked."""
LARGE = b"%PDF-1.7".ljust(256 * 1024 + 1, b"\n")
"""A document that takes several chunks."""
IN_DOCUMENT = 500
"""To be taken of a form with `PDF`: all but the closing boundary."""
ACTIVE = accepted()
"""The usual answer to a check."""


class Scripted(FakeRooms):
    """Plays an act for each request; after the script, what ``then`` makes of it.

    With ``checks`` the check before each attempt is answered so, and is no part of the script.
    """

    def __init__(
        self, *script: Act, then: Callable[[Visit], Act] | None = None, checks: Act | None = None
    ) -> None:
        super().__init__(self._next, ask=self._next)
        self.closed = 0
        self._script, self._then, self._checks = deque(script), then, checks

    def _next(self, visit: Visit) -> Act:
        if self._checks is not None and visit.request.cut_reply:
            return self._checks
        if self._script:
            return self._script.popleft()
        if self._then is None:
            raise AssertionError(f"request {len(self.visits)} is not in the script: {visit}")
        return self._then(visit)

    async def aclose(self) -> None:
        """Count."""
        self.closed += 1

    @property
    def kinds(self) -> list[str]:
        """What each request was: upload, probe (an empty form) or question (a JSON call).

        Without the checks, if they are no part of the script.
        """
        is_check = self._checks is not None
        return [v.kind for v in self.visits if not (is_check and v.request.cut_reply)]


def locked_until(end: float) -> Callable[[Visit], Act]:
    """Answer as a room whose lock is held by somebody else until that moment."""

    def then(visit: Visit) -> Act:
        if anyio.current_time() < end and visit.kind != "question":
            return busy()
        return free() if visit.kind == "probe" else accepted()

    return then


def letters(rooms: FakeRooms) -> str:
    """Show what was asked and sent: ``c`` check, ``f`` form, ``d`` document."""
    return "".join({"question": "c", "probe": "f", "upload": "d"}[v.kind] for v in rooms.visits)


def headers_of(visit: Visit) -> dict[str, str]:
    """Return a request's headers by their lower-case names."""
    return {name.decode().lower(): bytes(value).decode() for name, value in visit.request.headers}


def is_out(visit: Visit) -> bool:
    """Tell whether the closing boundary was handed over."""
    body = visit.request.body
    return not isinstance(body, bytes) and len(visit.sent) == body.length


def signature(message: bytes) -> str:
    """Sign as the interface says."""
    return sign(message, SECRET.encode())


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


def client_of(transport: FakeRooms, **settings: Any) -> MeetingClient:
    """Make a client of a fake transport; the client locks rooms with the rest of its loop.

    It does not check rooms, unless a test is about that: ``preflight=True``.
    """
    settings = {"preflight": False, **settings}
    if "signer" not in settings:
        settings = {"api_key": KEY, "api_secret": SECRET, **settings}
    waits = {name: settings.pop(name) for name in ("probe", "window") if name in settings}
    return MeetingClient(
        "https://meet.test", transport=transport, lock=LockPolicy(**waits), **settings
    )


async def upload(
    client: MeetingClient, data: Any = PDF, room: str = "room01", **how: Any
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
    data: Any = PDF,
    checks: Act | None = ACTIVE,
    then: Callable[[Visit], Act] | None = None,
    **settings: Any,
) -> Course:
    """Upload along a script to a room that is active, with settings of client and call."""
    recorder, transport = EventRecorder(), Scripted(*script, checks=checks, then=then)
    how = {name: settings.pop(name) for name in ("max_wait", "timeout") if name in settings}
    settings = {"preflight": True, **settings}
    async with client_of(transport, on_event=recorder, **settings) as client:
        try:
            outcome: Any = await upload(client, data, **how)
        except MeetingError as error:
            outcome = error
            assert recorder.finished.error is error  # noqa: PT017 - the very object
    return Course(outcome, transport, recorder, anyio.current_time())
