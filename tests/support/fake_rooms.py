"""Rooms behind a transport, in process: a script decides what each request meets.

A :class:`FakeRooms` is a transport. It answers every request at once, or as two functions say that
are called with each :class:`Visit`: ``answer`` for uploads, ``ask`` for questions whether a room is
active and for empty forms. Time is that of the event loop, so it may be virtual.

A :class:`Scripted` plays a script instead, request by request::

    transport = Scripted(busy(), lost(), accepted())
    ...
    assert transport.kinds == ["upload", "probe", "upload"]
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio
import attrs

from meeting_async import LockPolicy, MeetingClient
from meeting_async.errors import ConnectFailed, ConnectionLost, TransportError
from meeting_async.rooms import LocalRoomLocks
from meeting_async.transports import Reply, Request
from support.raw_http import sign

KEY, SECRET = "key-0f-the-app", "secret-0f-the-app"
IN_DOCUMENT = 500
"""To be taken of a form with `SMALL`: all but the closing boundary."""


@attrs.frozen(kw_only=True)
class Act:
    """What happens to one request."""

    result: Reply | BaseException | None = None
    """Returned, raised, or ``None``: nothing follows until somebody cancels."""
    take: int | None = None
    """Bytes of the body that are taken first, rounded up to whole chunks; ``None``: all."""
    sending: float = 0.0
    """Seconds for the body."""
    replying: float = 0.0
    """Seconds from the last byte taken to the result."""
    missing: int | None = None
    """So many bytes of the body were not sent, says the transport; ``None``: it does not say."""


def record(status_code: str, **fields: Any) -> Mapping[str, Any]:
    """Make the server's own record; success only for ``SUCCESS``."""
    return {
        "status": status_code == "SUCCESS",
        "msg": "scripted",
        "status_code": status_code,
    } | fields


def reply(status: int, content: object = b"", retry_after: str | None = None, **how: Any) -> Act:
    """Reply with bytes, or with an object as JSON; ``how`` is the rest of the :class:`Act`."""
    is_text = isinstance(content, bytes)
    headers = [(b"content-type", b"text/html" if is_text else b"application/json")]
    if retry_after is not None:
        headers.append((b"retry-after", retry_after.encode()))
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Act(result=Reply(status, tuple(headers), data), **how)


accepted = partial(reply, 200, record("SUCCESS"))
"""The document is taken, or the room is active."""
busy = partial(reply, 409, record("CONFLICT"))
"""Another upload holds the room."""
free = partial(reply, 400, record("INVALID_PARAMETERS"))
"""To an empty form: the room is not locked."""
refused = free
"""To a document: this one is not wanted."""
absent = partial(reply, 200, record("ROOM_NOT_ACTIVE"))
"""No session is running."""
conversion_failed = partial(reply, 500, record("INTERNAL_SERVER_ERROR"))
hanging = Act
"""Fall silent until somebody cancels."""
ACTIVE = accepted()
"""The usual answer to a check."""


def failing(error: BaseException, **how: Any) -> Act:
    """Raise ``error``."""
    return Act(result=error, **how)


def lost(**how: Any) -> Act:
    """Take the whole form, then lose the connection."""
    return failing(ConnectionLost("reset"), **how)


def cut_off(take: int = 1, **how: Any) -> Act:
    """Lose the connection before the document is out."""
    return failing(ConnectionLost("reset"), take=take, **how)


def unreachable() -> Act:
    """Get no connection."""
    return failing(ConnectFailed("refused", "meet.test:443"), take=0)


@attrs.define(eq=False)
class Visit:
    """A request as the rooms saw it."""

    request: Request = attrs.field(repr=False)
    began: float
    kind: str
    """``"upload"``, ``"question"`` (is the room active?) or ``"probe"`` (an empty form)."""
    room: str
    number: int
    """1 for the first of its kind in its room."""
    sent: bytearray = attrs.field(factory=bytearray, repr=False)
    """The bytes of the body that were taken."""
    is_complete: bool = False
    """Whether the body was taken to its end."""
    status: int = 0
    """Of the answer, if there was one."""
    is_accepted: bool = False
    """Whether the room has the document."""

    @property
    def name(self) -> str:
        """Name of the document, as far as the form was taken."""
        found = re.search(rb'filename="([^"]*)"', bytes(self.sent[:1000]))
        return found[1].decode() if found else ""


Answer = Callable[[Visit], Act]


class FakeRooms:
    """A transport that plays a script and counts; ``seconds`` is how long each upload takes."""

    def __init__(
        self,
        answer: Answer | None = None,
        *,
        ask: Answer | None = None,
        seconds: float = 0.0,
        at_end: Callable[[Visit], Any] | None = None,
    ) -> None:
        self.visits: list[Visit] = []
        self.running = 0
        """Requests in flight."""
        self.peak = 0
        """Most uploads in flight at the same moment."""
        self.collisions: list[str] = []
        """Rooms that were sent an upload during another one."""
        self._answer = answer or (lambda _visit: accepted(replying=seconds))
        self._ask = ask or (lambda _visit: accepted())
        self._at_end = at_end
        """Awaited when a document has been taken to its end."""
        self._uploading: Counter[str] = Counter()
        self._numbers: Counter[tuple[str, str]] = Counter()

    async def send(self, request: Request, /) -> Reply:
        """Answer."""
        visit = self._visit(request)
        is_upload = visit.kind == "upload"
        if is_upload and self._uploading[visit.room]:
            self.collisions.append(visit.room)
        self.running += 1
        self._uploading[visit.room] += is_upload
        self.peak = max(self.peak, self._uploading.total())
        try:
            act = self._answer(visit) if is_upload else self._ask(visit)
            found = await self._play(act, visit)
            visit.status = found.status
            visit.is_accepted = is_upload and visit.is_complete and b'"SUCCESS"' in found.content
            return found
        finally:
            self.running -= 1
            self._uploading[visit.room] -= is_upload

    async def aclose(self) -> None:
        """Hold nothing."""

    async def _play(self, act: Act, visit: Visit) -> Reply:
        body = visit.request.body
        if isinstance(body, bytes):
            visit.sent += body
        elif act.take != 0:
            async for chunk in body:
                visit.sent += chunk
                await anyio.sleep(act.sending * len(chunk) / body.length)
                if act.take is not None and len(visit.sent) >= act.take:
                    break
            else:
                visit.is_complete = True
                if self._at_end is not None:
                    await self._at_end(visit)
        await anyio.sleep(act.replying)
        if act.result is None:
            await anyio.sleep_forever()
        sent = None if act.missing is None else len(visit.sent) - act.missing
        if isinstance(act.result, Reply):
            return attrs.evolve(act.result, sent=sent)
        if isinstance(act.result, TransportError):
            act.result.sent = sent
        assert act.result is not None
        raise act.result

    def _visit(self, request: Request) -> Visit:
        headers = {name.decode().lower(): value.decode() for name, value in request.headers}
        room, kind = headers.get("room-id", ""), "upload"
        if isinstance(request.body, bytes):
            kind = "probe" if "multipart" in headers["content-type"] else "question"
            room = room or json.loads(request.body or b"{}").get("room_id", "")
        self._numbers[room, kind] += 1
        number = self._numbers[room, kind]
        visit = Visit(request, anyio.current_time(), kind, room, number)
        self.visits.append(visit)
        return visit

    def of(self, kind: str, room: str | None = None) -> list[Visit]:
        """Return the requests of a kind, in the order in which they began."""
        return [v for v in self.visits if v.kind == kind and room in {None, v.room}]

    @property
    def uploads(self) -> list[Visit]:
        """The uploads among the requests, in the order in which they began."""
        return self.of("upload")

    @property
    def questions(self) -> list[Visit]:
        """The questions whether a room is active."""
        return self.of("question")

    def names(self, room: str) -> list[str]:
        """Return what a room has, in the order in which it came."""
        return [visit.name for visit in self.of("upload", room) if visit.is_accepted]


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


def client_of(rooms: FakeRooms, **settings: Any) -> MeetingClient:
    """Make a client of these rooms, whose room locks nobody shares, as in a new process."""
    usual: dict[str, Any] = {"lock": LockPolicy(), "room_locks": LocalRoomLocks(), **settings}
    if "signer" not in usual:
        usual = {"api_key": KEY, "api_secret": SECRET, **usual}
    return MeetingClient("https://meet.test", transport=rooms, **usual)


def client_without_checks(rooms: FakeRooms, **settings: Any) -> MeetingClient:
    """Make a client that does not check rooms, unless a test is about that: ``preflight=True``.

    It locks rooms with the rest of its loop. ``probe`` and ``window`` are those of its
    ``LockPolicy``.
    """
    waits = {name: settings.pop(name) for name in ("probe", "window") if name in settings}
    usual: dict[str, Any] = {"preflight": False, "lock": LockPolicy(**waits), "room_locks": None}
    return client_of(rooms, **usual | settings)
