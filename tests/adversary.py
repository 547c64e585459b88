"""A server and everything in front of it, in process: it may lie as real proxies do.

It accepts a document when its whole form arrives, a session runs in its room, and the room is not
locked. What it says then is up to the schedule: the truth, or what a proxy or a broken line can
make of it. Refusals of documents are always true: nothing was stored. Whether it has a document, it
may refuse to tell, but it never denies one that it has; what a session has goes with it. Answers to
the two questions, the *check* (`getActiveRoomInfo`) and the empty *form*, may be wrong. Restarts
show in nothing: a new instance that was not asked about a room puts its documents into the room of
the form before. Two replies to one request are not here: they are a matter of connections.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from email.utils import formatdate
from typing import Any
from urllib.parse import unquote

import anyio
import attrs

from meeting_async import errors
from meeting_async.transports import Body, Reply, Request

WHO: ContextVar[str] = ContextVar("WHO")
"""The name of the document that the running task uploads."""

RETRY_AFTER = 5.0
"""Seconds, wherever somebody asks to come back later after a question."""
MOST_SENDS = 200
"""Of one document: in an hour at most, whatever the server says."""
LONGEST = 86_400.0
"""Seconds after which nobody should be here any more."""
QUIET = 0.2
"""Seconds without a request in which a restart can go unseen. The steps of an attempt follow each
other at once, and attempts are 0.25 s apart."""

# --- what can be said ----------------------------------------------------------------------------

LATER = (b"Retry-After", b"%d" % RETRY_AFTER)


def _page(status: int, *headers: tuple[bytes, bytes]) -> Reply:
    return Reply(status, ((b"Content-Type", b"text/html"), *headers), b"<html>sorry</html>")


def _own(status: int, code: str, *headers: tuple[bytes, bytes]) -> Reply:
    record = {"status": code == "SUCCESS", "msg": "as scheduled", "status_code": code}
    content = json.dumps(record).encode()
    return Reply(status, ((b"Content-Type", b"application/json"), *headers), content)


SIGHTS = ["503", "307", "longer", "older", "newer", "no time", "silence", "closed", "slow"]
"""What is said instead of showing a document that is there, and, but for five, of one that is not:
never 404. "slow": the truth, which is old when it comes."""
KINDS = ["check", "form", "document", "sight"]
"""What a session can end before."""
LATE = 60.0
"""Seconds for which a proxy keeps the form that is "kept"."""
EPOCH = 1_700_000_000
"""Unix time at 0 s of the virtual clock."""


def _date(seconds: float) -> bytes:
    return formatdate(EPOCH + seconds, usegmt=True).encode()


def room_of(people: int) -> bytes:
    """Write the server's reply about an active room; a participant has 780 bytes there."""
    one = json.dumps({"sid": "PA", "identity": "i", "name": "n", "metadata": "m" * 720}).encode()
    head = b'{"status":true,"msg":"success","room":{"room_info":{},"participants_info":['
    return head + b",".join([one.ljust(779)] * people) + b"]}}"


ROOMS = {people: room_of(people) for people in (0, 3000)}
ACCEPTED, BUSY = _own(200, "SUCCESS"), _own(409, "CONFLICT")
FREE, ABSENT = _own(400, "INVALID_PARAMETERS"), _own(400, "ROOM_NOT_ACTIVE")

SAID = {
    **{f"{status} HTML": _page(status) for status in (200, 401, 404, 500)},
    **{f"{status}": _page(status) for status in (408, 502, 504)},
    "302": _page(302, (b"Location", b"https://login.example.com/")),
    "503 with Retry-After": _page(503, LATER),
    "429": _page(429, LATER),
    "429 of its own": _own(429, "CONFLICT", LATER),
    "500 of its own": _own(500, "INTERNAL_SERVER_ERROR"),
    "500 with true": _own(500, "SUCCESS"),
    "200 empty": Reply(200),
    "throttle": Reply(429, ((b"Retry-After", b"1"),)),
    "503 before": _page(503, (b"Retry-After", b"0")),
    "413 early": _page(413),
    **{f"{reply.status} cut": attrs.evolve(reply, content=reply.content[:9])
       for reply in (_page(413), BUSY, FREE)},
    "refuse": FREE, "fail": _own(500, "INTERNAL_SERVER_ERROR"), "409": BUSY,
}  # fmt: skip
BREAKS: dict[str, type[errors.TransportError]] = {
    "no connection": errors.ConnectFailed, "silence": errors.TransferTimeout,
    "cut": errors.ConnectionLost, "reset": errors.ConnectionLost, "closed": errors.ConnectionLost,
    "reset in the boundary": errors.ConnectionLost, "truncated": errors.ConnectionLost,
    "kept": errors.ConnectionLost,
}  # fmt: skip
""""closed": the server has closed a kept connection silently, after its last answer."""

TRUTH, OPPOSITE, OWN_THROTTLE, FAILS = "truth", "opposite", "429 of its own", "500 of its own"
OPPOSITES = {"active": "denied", "denied": "active", "free": "locked", "locked": "free"}
MIDWAY = ["cut", "throttle", "503 before", "413 early", "413 cut", "409 cut", "400 cut"]
"""What is said to a part of the form; of the last three only the head comes completely."""
BEFORE = ["no connection", *MIDWAY, "refuse", "401 HTML", "fail", "409"]
"""What happens instead of an acceptance; nothing is stored. "409": another client was faster."""
LIES = ["503 with Retry-After", "502", "504", "408", "500 HTML", "500 with true", "200 HTML",
        "200 empty", "reset", "reset in the boundary", "silence", "truncated", "kept"]  # fmt: skip
"""What is said after the document was stored; "kept": before, as a proxy delivers it later."""
EARLY = ["early, cut", "early, in the boundary", "early, stored", "early, dropped"]
"""Successes whose head comes before the last byte of the form. In the first two the transport
stops: midway, or two bytes before the end, which is enough for the server."""
FAULTS = [*BEFORE, *LIES, *EARLY]

NO_ANSWERS = ["no connection", "reset", "closed", "silence", "502", "503 with Retry-After", "504",
              "500 HTML", "429", FAILS, "500 with true"]  # fmt: skip
NO_SERVER = ["200 HTML", "302", "404 HTML", "401 HTML"]
"""The same, and it would look like a wrong address."""
QUESTION_FAULTS = [*NO_ANSWERS, *NO_SERVER, OWN_THROTTLE, OPPOSITE]


# --- what happened -------------------------------------------------------------------------------


@attrs.frozen
class Arrival:
    """A document that was stored."""

    room: str
    name: str
    content: bytes
    at: float = 0.0
    session: str = ""


@attrs.frozen
class Step:
    """Something that happened, in the order in which it did."""

    at: float
    what: str
    """``"check"``, ``"form"`` (empty) and ``"document"`` (its first bytes) when they come; with
    `` answer`` when something is said to them; ``"connect"`` without a connection."""
    who: str
    """The name of the document that is to be uploaded."""
    says: str = ""
    """To a question: ``"active"``, ``"denied"``, ``"free"`` or ``"locked"``. To a document:
    ``"accepted"``, ``"refused"``, ``"locked"``, ``"failed"`` (5xx of its own) or ``"doubt"``.
    ``""``: no answer of the server itself."""
    is_true: bool = True
    """Whether it is what the state of the room makes of it."""
    come_back: float = -math.inf
    """When the server itself wants to be asked again."""
    was_asked: bool = True
    """Whether this instance had been asked about the room."""


@attrs.define(eq=False, kw_only=True)
class Adversary:
    """Implements `Transport`."""

    faults: Sequence[str] = ()
    """One for each form that arrives; then the truth."""
    is_endless: bool = False
    """Whether every further document gets 409, whatever questions are answered."""
    checks: Sequence[str] = ()
    """The same as ``faults`` for each check of a room."""
    answers: Sequence[str] = ()
    """The same for each empty form."""
    absent: Sequence[str] = ()
    """Rooms in which no session runs."""
    dead: tuple[float, float] = (0.0, 0.0)
    """From when until when nobody gets a connection."""
    processing: float = 1.0
    """Seconds for which a room is locked after an acceptance."""
    cut_at: float = 0.5
    locked_at: dict[str, list[tuple[float, float]]] = attrs.field(factory=dict)
    """Per room when other clients begin to hold it, and for how long."""
    answers_questions: bool = True
    """Whether an empty form gets 409 while the room is locked."""
    seconds_per_byte: float = 0.0
    restarts: list[float] = attrs.field(factory=list)
    """When a new instance takes over, or as soon afterwards as nobody sees it."""
    sights: Sequence[str] = ()
    """The same as ``faults`` for each question whether a document is there."""
    ends: Sequence[tuple[str, int]] = ()
    """When all sessions end, and others begin: right before the n-th of one of `KINDS`, counted
    from the end before. Before a ``"document"``: before its last bytes."""
    people: int = 0
    """In each room: a key of `ROOMS`."""
    stored: list[Arrival] = attrs.field(factory=list)
    steps: list[Step] = attrs.field(factory=list)
    early: set[str] = attrs.field(factory=set)
    """Documents that were called accepted too early."""
    made: float = attrs.field(factory=anyio.current_time)
    _faults: dict[str, Iterator[str]] = attrs.field(init=False)
    _locked_until: dict[str, float] = attrs.field(factory=lambda: defaultdict(float))
    _sends: Counter[tuple[str, int]] = attrs.field(factory=Counter)
    _asked: set[str] = attrs.field(factory=set)
    _last_room: str = ""
    ended: int = 0
    """How often the sessions have ended."""
    _running: int = 0
    _since_end: Counter[str] = attrs.field(factory=Counter)
    _quiet_since: float = -math.inf
    _kept: list[tuple[str, Arrival]] = attrs.field(factory=list)
    """Forms that a proxy delivers later, and their rooms."""

    def __attrs_post_init__(self) -> None:
        later = itertools.repeat("409" if self.is_endless else TRUTH)
        self._faults = {
            "document": itertools.chain(self.faults, later),
            "check": itertools.chain(self.checks, itertools.repeat(TRUTH)),
            "form": itertools.chain(self.answers, itertools.repeat(TRUTH)),
            "sight": itertools.chain(self.sights, itertools.repeat(TRUTH)),
        }

    async def aclose(self) -> None:
        """Nothing is held."""

    async def send(self, request: Request, /) -> Reply:
        """Answer a request."""
        now = anyio.current_time()
        assert now - self.made < LONGEST, "it does not end"
        if self.dead[0] <= now - self.made < self.dead[1]:
            self._note("connect")
            raise errors.ConnectFailed("nobody listens")
        due = [at for at in self.restarts if at <= now - self.made]
        if due and not self._running and now - self._quiet_since >= QUIET:
            self._asked, self._last_room = set(), ""
            self.restarts = [at for at in self.restarts if at not in due]
        self._running += 1
        try:
            await anyio.sleep(0.001)
            self.deliver_kept()
            if request.method == "HEAD":
                return await self._show(request)
            if isinstance(request.body, bytes):
                return await self._answer_question(request, request.body)
            room = dict(request.headers)[b"Room-Id"].decode()
            return await self._receive(request, request.body, room)
        finally:
            self._running -= 1
            self._quiet_since = anyio.current_time()

    def _may_end(self, what: str) -> None:
        """End the sessions, if it is time for that; what they have shown goes with them."""
        self._since_end[what] += 1
        if self.ended < len(self.ends):
            kind, number = self.ends[self.ended]
            if kind == what and self._since_end[what] >= number:
                self.ended += 1
                self._since_end.clear()

    def session_in(self, room: str) -> str:
        """Return the session that runs in a room."""
        return f"{room}-{self.ended}"

    def _note(self, what: str, says: str = "", **facts: Any) -> None:
        self.steps.append(Step(anyio.current_time(), what, WHO.get(""), says, **facts))

    def _contact(self, what: str, room: str) -> str:
        """Note a request with ``Room-Id``, and return the room in which a document would land."""
        was_asked = room in self._asked
        self._note(what, was_asked=was_asked)
        last, self._last_room = self._last_room, room
        return room if was_asked or not last else last

    def deliver_kept(self) -> None:
        """Take the forms that a proxy has kept until now."""
        now = anyio.current_time()
        due = [(room, arrival) for room, arrival in self._kept if arrival.at <= now]
        self._kept = [one for one in self._kept if one not in due]
        for room, arrival in due:
            if self._locked_until[room] <= arrival.at:
                self._store(room, arrival)

    def _store(self, room: str, arrival: Arrival) -> None:
        self.stored.append(attrs.evolve(arrival, session=self.session_in(arrival.room)))
        self._locked_until[room] = arrival.at + self.processing

    async def _show(self, request: Request) -> Reply:
        """Answer whether a document is there."""
        self._may_end("sight")
        session, name = map(unquote, request.url.partition("?")[0].split("/")[-2:])
        there = [one for one in self.stored if (one.session, one.name) == (session, name)]
        if there and self.session_in(there[-1].room) != session:
            return Reply(404)
        fault = next(self._faults["sight"])
        if fault in BREAKS or fault in {"503", "307"}:
            return await self._said(fault, request) if fault in BREAKS else Reply(int(fault))
        if fault == "slow":
            await anyio.sleep(0.9 * request.reply_timeout)
        if not there:
            return Reply(404)
        size = len(there[-1].content) + (fault == "longer")
        headers = [(b"Content-Length", b"%d" % size), (b"Date", _date(anyio.current_time()))]
        if fault != "no time":
            at = there[-1].at + {"older": -3600, "newer": 3600}.get(fault, 0)
            headers.append((b"Last-Modified", _date(at)))
        return Reply(200, tuple(headers))

    # --- questions -------------------------------------------------------------------------------

    async def _answer_question(self, request: Request, body: bytes) -> Reply:
        if request.url.endswith("getActiveRoomInfo"):
            what, room = "check", json.loads(body)["room_id"]
            self._may_end(what)
            self._note(what)
        else:
            what, room = "form", dict(request.headers)[b"Room-Id"].decode()
            self._may_end(what)
            self._contact(what, room)
        fault = next(self._faults[what])
        if fault not in {TRUTH, OPPOSITE}:
            come_back = anyio.current_time() + RETRY_AFTER if fault == OWN_THROTTLE else -math.inf
            try:
                return await self._said(fault, request)
            finally:
                self._note(f"{what} answer", come_back=come_back)
        says = self._truth(what, room)
        if fault == OPPOSITE:
            says = OPPOSITES[says]
        self._note(f"{what} answer", says, is_true=fault == TRUTH)
        if says == "active":
            sid = b'"room_info":{"sid":"%s"' % self.session_in(room).encode()
            content = ROOMS[self.people].replace(b'"room_info":{', sid, 1)
            return _fitting(content, request, _date(anyio.current_time()))
        if says == "denied" and what == "check":
            return attrs.evolve(ABSENT, status=200)
        return {"locked": BUSY, "free": FREE, "denied": ABSENT}[says]

    def _truth(self, what: str, room: str) -> str:
        if what == "check":
            self._asked.add(room)
            return "denied" if room in self.absent else "active"
        is_locked = self.answers_questions and self._is_locked(room)
        return "denied" if room in self.absent else "locked" if is_locked else "free"

    def _is_locked(self, room: str) -> bool:
        now = anyio.current_time()
        held = [(begin, begin + seconds) for begin, seconds in self.locked_at.get(room, ())]
        return now < self._locked_until[room] or any(begin <= now < end for begin, end in held)

    # --- documents -------------------------------------------------------------------------------

    async def _receive(self, request: Request, body: Body, room: str) -> Reply:
        fault, form, lands_in = next(self._faults["document"]), bytearray(), room
        if fault == "no connection":
            return await self._said(fault, request)
        limit = int(body.length * self.cut_at) if fault in {*MIDWAY, "early, cut"} else math.inf
        async for chunk in body:
            if not form:
                lands_in = self._contact("document", room)
                hour = WHO.get(), int((anyio.current_time() - self.made) // 3600)
                self._sends[hour] += 1
                assert self._sends[hour] <= MOST_SENDS, "a document is sent again and again"
            form += chunk
            await anyio.sleep(len(chunk) * self.seconds_per_byte)
            if len(form) >= limit:
                return await self._midway(fault, request, min(len(form), body.length - 1))
        return await self._answer(fault, request, bytes(form), room, lands_in)

    async def _midway(self, fault: str, request: Request, sent: int) -> Reply:
        says = {"cut": "", "409 cut": "locked", "early, cut": "doubt"}.get(fault, "refused")
        self._note("document answer", says, is_true=says != "locked")
        if fault == "early, cut":
            self.early.add(WHO.get())
        return await self._said(fault, request, sent)

    async def _answer(
        self, fault: str, request: Request, form: bytes, room: str, lands_in: str
    ) -> Reply:
        self._may_end("document")
        if room in self.absent:
            self._note("document answer", "refused")
            return ABSENT
        if self._is_locked(room) or fault == "409":
            self._note("document answer", "locked", is_true=fault != "409")
            return BUSY
        if fault in BEFORE:
            self._note("document answer", "failed" if fault == "fail" else "refused")
            return SAID[fault]
        if fault != "early, dropped":
            name = re.search(rb'filename="([^"]*)"', form)
            content = form[form.index(b"\r\n\r\n") + 4 : form.rindex(b"\r\n--" + form[2:34])]
            at = anyio.current_time() + LATE * (fault == "kept")
            arrival = Arrival(lands_in, name[1].decode() if name else "", content, at)
            if fault == "kept":
                self._kept.append((room, arrival))
            else:
                self._store(room, arrival)
        if fault in EARLY:
            self.early.add(WHO.get())
        self._note("document answer", "doubt" if fault in FAULTS else "accepted")
        sent = len(form) - 2 * fault.endswith("boundary")
        if fault in LIES:
            return await self._said(fault, request, sent)
        is_early = fault in {"early, stored", "early, dropped"}
        return attrs.evolve(ACCEPTED, early=is_early, sent=sent)

    async def _said(self, fault: str, request: Request, sent: int | None = None) -> Reply:
        if fault == "silence":
            await anyio.sleep(request.reply_timeout)
        if fault not in BREAKS:
            return attrs.evolve(SAID.get(fault, ACCEPTED), sent=sent)
        error = BREAKS[fault](fault)
        error.sent = sent  # None: all that was taken
        raise error


def _fitting(content: bytes, request: Request, date: bytes) -> Reply:
    """Return a reply as a transport does: within the limit, cut to it, or not at all."""
    limit = request.max_reply_bytes
    if len(content) > limit and not request.cut_reply:
        raise errors.ReplyTooLarge(f"more than {limit} bytes")
    headers = (*ACCEPTED.headers, (b"Date", date))
    return Reply(200, headers, content[:limit], is_cut=len(content) > limit)
