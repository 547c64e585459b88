"""A server and everything in front of it, in process: it may lie as real proxies do.

It accepts a document when its whole form arrives and its room is not locked. What it says then is
up to the schedule: the truth, or what a proxy, a cache or a broken line can make of it. Refusals
(409, 429 and other 4xx, 500 with the server's own record) are always true: nothing was stored.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator

import anyio
import attrs

from meeting_async.errors import ConnectFailed, ConnectionLost, TransferTimeout
from meeting_async.transports import Body, Reply, Request

TRUTH = "truth"
BEFORE = ["no connection", "cut", "refuse", "fail", "throttle", "503 before", "413 early"]
"""What happens instead of an acceptance; nothing is stored."""
LIES = [
    "503 with Retry-After",
    "502",
    "504",
    "408",
    "500 HTML",
    "200 HTML",
    "200 empty",
    "reset",
    "silence",
    "truncated",
]
"""What is said after the document was stored."""
FAULTS = [*BEFORE, *LIES]

HTML = ((b"Content-Type", b"text/html"),)
RECORD = {"status": True, "msg": "file uploaded successfully", "status_code": "SUCCESS"}


@attrs.frozen
class Arrival:
    """A document that was stored."""

    at: float
    room: str
    name: str
    content: bytes


@attrs.define(eq=False, slots=False)
class Adversary:
    """Implements `Transport`."""

    faults: Iterator[str]
    """One for each form that arrives; then the truth."""
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
    questions: list[tuple[float, str]] = attrs.field(factory=list)
    """When an empty form came, and for which room."""
    refusals: list[tuple[float, str]] = attrs.field(factory=list)
    """When a document got 409, and its name."""
    seconds_per_byte: float = 0.0
    made: float = attrs.field(factory=anyio.current_time)

    async def aclose(self) -> None:
        """Nothing is held."""

    async def send(self, request: Request, /) -> Reply:
        """Answer a request."""
        await anyio.sleep(0.001)
        if request.url.endswith("getActiveRoomInfo"):
            return _record(200, {"status": True, "msg": "ok", "room": {}})
        room = dict(request.headers)[b"Room-Id"].decode()
        if isinstance(request.body, bytes):
            return self._answer_question(room)
        return await self._receive(request, request.body, room)

    def _answer_question(self, room: str) -> Reply:
        self.questions.append((anyio.current_time(), room))
        if self.answers_questions and self._is_locked(room):
            return _record(409, {"status": False, "msg": "busy", "status_code": "CONFLICT"})
        return _record(
            400, {"status": False, "msg": "no file", "status_code": "INVALID_PARAMETERS"}
        )

    def _is_locked(self, room: str) -> bool:
        now = anyio.current_time()
        others = self.locked_at.get(room, ())
        return now < self.locked_until[room] or any(
            begin <= now < begin + seconds for begin, seconds in others
        )

    async def _receive(self, request: Request, body: Body, room: str) -> Reply:
        fault = next(self.faults, TRUTH)
        began = anyio.current_time()
        if fault == "no connection":
            raise ConnectFailed("nobody listens")
        form, limit = bytearray(), math.inf
        if fault in BEFORE and fault not in {"refuse", "fail"}:
            limit = int(body.length * self.cut_at)
        name = ""
        async for chunk in body:
            form += chunk
            if not name:
                found = re.search(rb'filename="([^"]*)"', form)
                name = found[1].decode() if found else ""
                self.forms.append((began, name))
            await anyio.sleep(len(chunk) * self.seconds_per_byte)
            if len(form) >= limit:
                body.sent = min(body.sent, body.length - 1)
                return self._before_the_end(fault)
        return await self._answer(fault, request, bytes(form), room, name)

    def _before_the_end(self, fault: str) -> Reply:
        if fault == "cut":
            raise ConnectionLost("reset")
        if fault == "throttle":
            return Reply(429, ((b"Retry-After", b"1"),))
        if fault == "503 before":
            return Reply(503, ((b"Retry-After", b"0"), *HTML), b"<html>")
        return Reply(413, HTML, b"<html>too large")

    async def _answer(
        self, fault: str, request: Request, form: bytes, room: str, name: str
    ) -> Reply:
        if self._is_locked(room):
            self.refusals.append((anyio.current_time(), name))
            return _record(409, {"status": False, "msg": "busy", "status_code": "CONFLICT"})
        if fault == "refuse":
            return _record(400, {"status": False, "msg": "no", "status_code": "INVALID_PARAMETERS"})
        if fault == "fail":
            record = {"status": False, "msg": "no", "status_code": "INTERNAL_SERVER_ERROR"}
            return _record(500, record)
        self.stored.append(Arrival(anyio.current_time(), room, name, _content(form)))
        self.locked_until[room] = anyio.current_time() + self.processing
        return await self._said(fault, request)

    async def _said(self, fault: str, request: Request) -> Reply:
        if fault == "silence":
            await anyio.sleep(request.reply_timeout)
            raise TransferTimeout("no complete reply")
        if fault in {"reset", "truncated"}:
            raise ConnectionLost(fault)
        if fault == "503 with Retry-After":
            return Reply(503, ((b"Retry-After", b"5"), *HTML), b"<html>try again</html>")
        if fault == "200 empty":
            return Reply(200, (), b"")
        if fault in LIES:
            return Reply(int(fault[:3]), HTML, b"<html>sorry</html>")
        return _record(200, RECORD)


def _record(status: int, record: dict[str, object]) -> Reply:
    return Reply(status, ((b"Content-Type", b"application/json"),), json.dumps(record).encode())


def _content(form: bytes) -> bytes:
    boundary = form[2 : form.index(b"\r\n")]
    head_end = form.index(b"\r\n\r\n") + 4
    return form[head_end : form.rindex(b"\r\n--" + boundary)]
