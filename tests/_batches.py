"""Many rooms behind a transport, for the tests of batches: a script per room, and what is counted.

A :class:`Town` answers every request at once, or as functions say that are asked with each
:class:`Visit`: one about uploads, one about questions whether a room is active. Nothing is on the
network; time is virtual wherever it matters.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import attrs

from _fakes import Act, Exchange, accepted, record, reply
from meeting_async import LockPolicy, MeetingClient, Reply, Request, Turnstile, UploadJob
from meeting_async._multipart import MultipartBody

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
ABSENT = reply(200, record("ROOM_NOT_ACTIVE"))
"""How a server answers for a room without a session."""


@attrs.define(eq=False)
class Visit:
    """A request as the town saw it."""

    exchange: Exchange = attrs.field(repr=False)
    is_upload: bool
    room: str
    number: int
    """1 for the first of its kind in its room."""
    answered: bool = False
    """Whether the client got an answer."""
    accepted: bool = False
    """Whether the room has the document."""
    status: int = 0
    """Of the answer."""

    @property
    def is_out(self) -> bool:
        """Whether the form's end was handed over, be it that nobody saw it arrive."""
        body = self.exchange.request.body
        return isinstance(body, MultipartBody) and body.complete

    @property
    def name(self) -> str:
        """Name of the document, as far as the form was taken."""
        found = re.search(rb'filename="([^"]*)"', bytes(self.exchange.sent))
        return found[1].decode() if found else ""


Answer = Callable[[Visit], Act]


class Town:
    """A transport that counts; ``seconds`` is how long each upload takes."""

    def __init__(
        self, answer: Answer | None = None, *, ask: Answer | None = None, seconds: float = 0.0
    ) -> None:
        self.visits: list[Visit] = []
        self.running = 0
        """Requests in flight."""
        self.peak = 0
        """Most requests in flight at the same moment."""
        self.collisions: list[str] = []
        """Rooms that were sent an upload during another one."""
        self.sent = 0
        """Bytes of all bodies together."""
        self._answer = answer or (lambda _visit: accepted(replying=seconds))
        self._ask = ask or (lambda _visit: accepted())
        self._uploading: Counter[str] = Counter()
        self._numbers: Counter[tuple[str, bool]] = Counter()

    async def send(self, request: Request, /) -> Reply:
        """Answer."""
        visit = self._visit(request)
        self.running += 1
        self.peak = max(self.peak, self.running)
        if visit.is_upload and self._uploading[visit.room]:
            self.collisions.append(visit.room)
        self._uploading[visit.room] += visit.is_upload
        try:
            act = self._answer(visit) if visit.is_upload else self._ask(visit)
            got = await act.play(visit.exchange)
            visit.answered, visit.status = True, got.status
            visit.accepted = visit.exchange.complete and b'"SUCCESS"' in got.content
            return got
        finally:
            self.running -= 1
            self._uploading[visit.room] -= visit.is_upload
            visit.exchange.ended = anyio.current_time()
            self.sent += len(visit.exchange.sent)

    async def aclose(self) -> None:
        """Hold nothing."""

    def _visit(self, request: Request) -> Visit:
        exchange = Exchange(request, anyio.current_time())
        room = exchange.headers.get("room-id")
        is_upload = room is not None
        if room is None:
            assert isinstance(request.body, bytes)
            room = json.loads(request.body)["room_id"]
        self._numbers[room, is_upload] += 1
        visit = Visit(exchange, is_upload, room, self._numbers[room, is_upload])
        self.visits.append(visit)
        return visit

    @property
    def uploads(self) -> list[Visit]:
        """The uploads among the requests, in the order in which they began."""
        return [visit for visit in self.visits if visit.is_upload]

    @property
    def questions(self) -> list[Visit]:
        """The other ones, whether a room is active."""
        return [visit for visit in self.visits if not visit.is_upload]

    def names(self, room: str) -> list[str]:
        """Return what a room has, in the order in which it came."""
        return [visit.name for visit in self.uploads if visit.room == room and visit.accepted]


def client_of(town: Any, **settings: Any) -> MeetingClient:
    """Make a client with a turnstile of its own whose lock waits are exact."""
    usual = {"lock": LockPolicy(jitter=0), "room_gate": Turnstile(), "signer": None, **settings}
    if usual["signer"] is None:
        usual |= {"api_key": "key", "api_secret": "secret"}
    return MeetingClient("https://meet.test", transport=town, **usual)


def job(room: str, number: int = 0, document: Any = PDF, **facts: Any) -> UploadJob:
    """Make a job whose document has a name of its own."""
    return UploadJob(room, document, filename=f"{room}-{number}.pdf", **facts)


def jobs_for(rooms: int, each: int) -> list[UploadJob]:
    """Make jobs for so many rooms in turn."""
    return [job(f"room{room:02}", number) for number in range(each) for room in range(rooms)]
