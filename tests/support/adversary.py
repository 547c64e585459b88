"""A server and everything in front of it, in process: it may lie as real proxies do.

It accepts a document when its whole form arrives, a session runs in its room, and the room is not
locked. What it says then is up to the schedule: the truth, or what a proxy, a cache or a broken
line can make of it. Refusals of documents (409, 429 and other 4xx, 500 with the server's own
record) are always true: nothing was stored. Two kinds of questions can be answered by a proxy or
wrongly: the check of a room (`getActiveRoomInfo`), and the empty form that asks whether the room
is locked. Two replies to one request are not here: they are a matter of connections.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import anyio
import attrs

from meeting_async.errors import ConnectFailed, ConnectionLost, TransferTimeout, TransportError
from meeting_async.transports import Body, Reply, Request

WHO: ContextVar[str] = ContextVar("WHO")
"""The name of the document that the running task uploads."""

TRUTH = "truth"
BEFORE = ["no connection", "cut", "refuse", "fail", "throttle", "503 before", "413 early", "409"]
"""What happens instead of an acceptance; nothing is stored. "409": another client was faster."""
LIES = [
    "503 with Retry-After",
    "502",
    "504",
    "408",
    "500 HTML",
    "200 HTML",
    "200 empty",
    "reset",
    "reset in the boundary",
    "silence",
    "truncated",
]
"""What is said after the document was stored."""
EARLY = ["early, cut", "early, in the boundary", "early, stored", "early, dropped"]
"""Successes whose head comes before the last byte of the form.

In the first two the transport stops: after a part of the form, of which nothing can be stored, or
two bytes before its end, which was enough for the server. In the others it sends the rest, too, and
says in its reply that the head came early.
"""
FAULTS = [*BEFORE, *LIES, *EARLY]

NO_ANSWERS = [
    "no connection",
    "reset",
    "silence",
    "502",
    "503 with Retry-After",
    "504",
    "500 HTML",
    "429",
]
"""What can be made of the answer to a question, other than an answer."""
NO_SERVER = ["200 HTML", "302", "404 HTML"]
"""The same, and it would look like a wrong address."""
OWN_THROTTLE, OPPOSITE = "429 of its own", "opposite"
"""The server's own record asks to come back later; it says the opposite of what is true."""
QUESTION_FAULTS = [*NO_ANSWERS, *NO_SERVER, OWN_THROTTLE, OPPOSITE]

RETRY_AFTER = 5.0
"""Seconds, wherever somebody asks to come back later after a question."""

MOST_SENDS = 300
"""Of one document: "a few hundred in hours at most, whatever the server says"."""

LONGEST = 86_400.0
"""Seconds after which nobody should be here any more."""

HTML = ((b"Content-Type", b"text/html"),)
RECORD = {"status": True, "msg": "file uploaded successfully", "status_code": "SUCCESS"}
ROOM = {"status": True, "msg": "ok", "room": {}}
BUSY = {"status": False, "msg": "busy", "status_code": "CONFLICT"}


@attrs.frozen
class Arrival:
    """A document that was stored."""

    at: float
    room: str
    name: str
    content: bytes


@attrs.frozen
class Step:
    """Something that happened, in the order in which it did."""

    at: float
    what: str
    """``"check"`` and ``"question"`` (asked), ``"check answer"`` and ``"question answer"``,
    ``"document"`` (its first bytes came), ``"409"`` (to it), ``"success"``, or ``"doubt"``
    (anything else was said although it was stored, or a success came early)."""
    room: str
    who: str
    """The name of the document that is to be uploaded."""
    status: int = 0
    """Of an answer that the server itself gives, if it does not ask to come back later."""
    is_true: bool = True
    """Whether the answer, or the refusal, is what the state of the room makes of it."""
    come_back: float = -math.inf
    """When the server itself wants to be asked again."""


@attrs.define(eq=False, slots=False)
class Adversary:
    """Implements `Transport`."""

    faults: Iterator[str]
    """One for each form that arrives; then the truth."""
    checks: Iterator[str] = attrs.field(factory=lambda: iter(()))
    """The same for each check of a room."""
    answers: Iterator[str] = attrs.field(factory=lambda: iter(()))
    """The same for each empty form."""
    absent: frozenset[str] = frozenset()
    """Rooms in which no session runs."""
    processing: float = 1.0
    """Seconds for which a room is locked after an acceptance."""
    cut_at: float = 0.5
    """Where a request is cut, as a share of its form."""
    locked_until: dict[str, float] = attrs.field(factory=lambda: defaultdict(float))
    locked_at: dict[str, list[tuple[float, float]]] = attrs.field(factory=dict)
    """Per room when other clients begin to hold it, and for how long."""
    answers_questions: bool = True
    """Whether an empty form gets 409 while the room is locked, as the running server does."""
    stored: list[Arrival] = attrs.field(factory=list)
    forms: list[tuple[float, str]] = attrs.field(factory=list)
    """When a request with a document began, and the document's name."""
    refusals: list[tuple[float, str]] = attrs.field(factory=list)
    """When a document got 409, and its name."""
    early: set[str] = attrs.field(factory=set)
    """Documents that were called accepted too early."""
    steps: list[Step] = attrs.field(factory=list)
    seconds_per_byte: float = 0.0
    made: float = attrs.field(factory=anyio.current_time)
    sends: Counter[str] = attrs.field(factory=Counter)

    async def aclose(self) -> None:
        """Nothing is held."""

    async def send(self, request: Request, /) -> Reply:
        """Answer a request."""
        assert anyio.current_time() - self.made < LONGEST, "it does not end"
        await anyio.sleep(0.001)
        if isinstance(request.body, bytes):
            return await self._answer_question(request, request.body)
        room = dict(request.headers)[b"Room-Id"].decode()
        return await self._receive(request, request.body, room)

    def _note(self, what: str, room: str, **facts: Any) -> None:
        self.steps.append(Step(anyio.current_time(), what, room, WHO.get(""), **facts))

    # --- questions -------------------------------------------------------------------------------

    async def _answer_question(self, request: Request, body: bytes) -> Reply:
        if request.url.endswith("getActiveRoomInfo"):
            what, room, fault = "check", json.loads(body)["room_id"], next(self.checks, TRUTH)
        else:
            room, fault = dict(request.headers)[b"Room-Id"].decode(), next(self.answers, TRUTH)
            what = "question"
        self._note(what, room)
        try:
            reply = await self._said_to_question(fault, request, what, room)
        except TransportError:  # not where the caller's own limit ends it
            self._note(f"{what} answer", room)
            raise
        is_own = reply.status if fault in {TRUTH, OPPOSITE} else 0
        come_back = anyio.current_time() + RETRY_AFTER if fault == OWN_THROTTLE else -math.inf
        facts = {"status": is_own, "is_true": fault != OPPOSITE, "come_back": come_back}
        self._note(f"{what} answer", room, **facts)
        return reply

    async def _said_to_question(self, fault: str, request: Request, what: str, room: str) -> Reply:
        if fault == OWN_THROTTLE:
            return _record(429, BUSY, (b"Retry-After", b"%d" % RETRY_AFTER))
        if fault not in {TRUTH, OPPOSITE}:
            return await self._said(fault, request)
        truth = self._check(room) if what == "check" else self._question(room)
        if fault == TRUTH:
            return truth
        if what == "check":
            return _record(200, ROOM if room in self.absent else _absence("ROOM_NOT_FOUND"))
        return _nothing_in_it() if truth.status == 409 else _record(409, BUSY)

    def _check(self, room: str) -> Reply:
        if room in self.absent:
            return _record(200, _absence("ROOM_NOT_ACTIVE"))
        return _record(200, ROOM)

    def _question(self, room: str) -> Reply:
        if room in self.absent:
            return _record(400, _absence("ROOM_NOT_ACTIVE"))
        if self.answers_questions and self._is_locked(room):
            return _record(409, BUSY)
        return _nothing_in_it()

    def _is_locked(self, room: str) -> bool:
        now = anyio.current_time()
        others = self.locked_at.get(room, ())
        return now < self.locked_until[room] or any(
            begin <= now < begin + seconds for begin, seconds in others
        )

    # --- documents -------------------------------------------------------------------------------

    async def _receive(self, request: Request, body: Body, room: str) -> Reply:
        fault, name = next(self.faults, TRUTH), WHO.get()
        success = _record(200, RECORD)
        if fault in {"early, stored", "early, dropped"}:
            success = attrs.evolve(success, early=True)
        began = anyio.current_time()
        if fault == "no connection":
            raise ConnectFailed("nobody listens")
        form, limit = bytearray(), math.inf
        if fault in {"cut", "throttle", "503 before", "413 early", "early, cut"}:
            limit = int(body.length * self.cut_at)
        async for chunk in body:
            if not form:
                self._begin(began, room, name)
            form += chunk
            await anyio.sleep(len(chunk) * self.seconds_per_byte)
            if len(form) >= limit:
                body.sent = min(len(form), body.length - 1)
                return self._before_the_end(fault, room, success)
        if fault in {"early, in the boundary", "reset in the boundary"}:
            body.sent = body.length - 2
        return await self._answer(fault, request, bytes(form), room, success)

    def _begin(self, began: float, room: str, name: str) -> None:
        self.forms.append((began, name))
        self._note("document", room)
        self.sends[name] += 1
        assert self.sends[name] <= MOST_SENDS, "a document is sent again and again"

    def _before_the_end(self, fault: str, room: str, success: Reply) -> Reply:
        if fault == "cut":
            raise ConnectionLost("reset")
        if fault == "throttle":
            return Reply(429, ((b"Retry-After", b"1"),))
        if fault == "503 before":
            return Reply(503, ((b"Retry-After", b"0"), *HTML), b"<html>")
        if fault == "early, cut":
            self.early.add(WHO.get())
            self._note("doubt", room)
            return success
        return Reply(413, HTML, b"<html>too large")

    async def _answer(
        self, fault: str, request: Request, form: bytes, room: str, success: Reply
    ) -> Reply:
        name = WHO.get()
        if room in self.absent:
            return _record(400, _absence("ROOM_NOT_ACTIVE"))
        if self._is_locked(room) or fault == "409":
            self.refusals.append((anyio.current_time(), name))
            self._note("409", room, is_true=fault != "409")
            return _record(409, BUSY)
        if fault == "refuse":
            return _record(400, {"status": False, "msg": "no", "status_code": "INVALID_PARAMETERS"})
        if fault == "fail":
            record = {"status": False, "msg": "no", "status_code": "INTERNAL_SERVER_ERROR"}
            return _record(500, record)
        if fault != "early, dropped":
            found = re.search(rb'filename="([^"]*)"', form)
            stored_as = found[1].decode() if found else ""
            self.stored.append(Arrival(anyio.current_time(), room, stored_as, _content(form)))
            self.locked_until[room] = anyio.current_time() + self.processing
        if fault in EARLY:
            self.early.add(name)
        self._note("doubt" if fault in FAULTS else "success", room)
        return await self._said(fault, request) if fault in LIES else success

    async def _said(self, fault: str, request: Request) -> Reply:
        if fault == "no connection":
            raise ConnectFailed("nobody listens")
        if fault == "silence":
            await anyio.sleep(request.reply_timeout)
            raise TransferTimeout("no complete reply")
        if fault in {"reset", "reset in the boundary", "truncated"}:
            raise ConnectionLost(fault)
        if fault in {"503 with Retry-After", "429"}:
            headers = ((b"Retry-After", b"%d" % RETRY_AFTER), *HTML)
            return Reply(int(fault[:3]), headers, b"<html>try again</html>")
        if fault == "302":
            return Reply(302, ((b"Location", b"https://login.example.com/"), *HTML), b"<html>")
        if fault == "200 empty":
            return Reply(200, (), b"")
        return Reply(int(fault[:3]), HTML, b"<html>sorry</html>")


def _absence(code: str) -> dict[str, object]:
    return {"status": False, "msg": "no session", "status_code": code}


def _nothing_in_it() -> Reply:
    return _record(400, {"status": False, "msg": "no file", "status_code": "INVALID_PARAMETERS"})


def _record(status: int, record: dict[str, object], *headers: tuple[bytes, bytes]) -> Reply:
    content = json.dumps(record).encode()
    return Reply(status, ((b"Content-Type", b"application/json"), *headers), content)


def _content(form: bytes) -> bytes:
    boundary = form[2 : form.index(b"\r\n")]
    head_end = form.index(b"\r\n\r\n") + 4
    return form[head_end : form.rindex(b"\r\n--" + boundary)]
