"""A meeting server that is a model: one lock per room, and a fault at any point of any attempt.

It speaks the ``Transport`` protocol in process. It reads the forms it is sent with a parser of its
own, checks signatures with the standard library, and lets whoever holds a room's lock keep it for
as long as the schedule says, however its client fares meanwhile. What happens to an attempt is a
:class:`Fault`: how much of the form gets out, whether it reaches the server, what the client sees
and when. Every attempt is kept as a :class:`Contact`, with what truly came of it.

The assumption everything rests on: what was handed over is with the server, or never will be, by
the time the attempt ends. Answers may be late, lost, cut, contradictory or somebody else's, but a
refusal is not a lie: who says that a form was not taken (409, 429, other 4xx, 503 with Retry-After,
5xx with the server's own record) did not take it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar

import anyio
import attrs

from _faults import Fault, Hold, Seen, is_refusal, record_in
from meeting_async import Reply, Request
from meeting_async.errors import ConnectFailed, ConnectionLost, TransferTimeout

WINDOW = 300.0
"""Seconds for which the server locks a room at most; never renewed."""
CLOSING = 40
"""Bytes of a form after its document: the closing boundary."""
KEY, SECRET = "key", "secret"

calling: ContextVar[int] = ContextVar("calling")
"""Number of the job that the running task works on."""


@attrs.frozen
class Form:
    """What the server read in a complete form."""

    field: str
    filename: str
    content: bytes


@attrs.define(eq=False)
class Contact:
    """One attempt, and what truly came of it."""

    job: int
    room: str
    number: int
    """1 for the first of its job."""
    began: float
    fault: Fault
    request: Request = attrs.field(repr=False)
    ended: float | None = None
    taken: int = 0
    """Bytes of the form the client handed over."""
    complete: bool = False
    """Whether the closing boundary was among them."""
    reply: Reply | None = None
    """What the client saw; ``None`` for anything but a whole reply."""
    form: Form | None = attrs.field(default=None, repr=False)
    """What the server accepted; it will appear in the room."""

    def reached_document(self, size: int) -> bool:
        """Tell whether any byte of a document of so many bytes was taken."""
        assert not isinstance(self.request.body, bytes)
        return self.taken > self.request.body.length - size - CLOSING

    @property
    def settled(self) -> bool:
        """Whether the client can be sure what came of it."""
        if self.reply is None:
            return not self.complete
        if is_refusal(self.reply.status, self.reply.content, _hint(self.reply)):
            return True
        claims = self.reply.status < 300 and record_in(self.reply.content).get("status") is True
        if claims and self.reply.status == 200:
            return self.complete  # before the end of the form it contradicts itself
        return not self.complete and not claims


def _hint(reply: Reply) -> str | None:
    return next((value.decode() for name, value in reply.headers if name == b"Retry-After"), None)


@attrs.define(eq=False)
class _Room:
    """A lock, and those who wait for it outside of this process."""

    holds: list[Hold]
    locked_until: float = 0.0

    def is_locked(self, now: float) -> bool:
        while self.holds and self.holds[0].start <= now:
            hold = self.holds.pop(0)
            if hold.start >= self.locked_until:
                self.locked_until = hold.start + min(hold.seconds, WINDOW)
        return now < self.locked_until


class ModelServer:
    """The server, the network before it, and the log of both."""

    def __init__(
        self, faults: Sequence[Sequence[Fault]], holds: Mapping[str, Sequence[Hold]]
    ) -> None:
        self.contacts: list[Contact] = []
        """Every attempt of the client in the order they began."""
        self._faults = faults
        self._rooms = {
            room: _Room(sorted(rest, key=lambda hold: hold.start)) for room, rest in holds.items()
        }

    async def send(self, request: Request, /) -> Reply:
        """Do to the next attempt of a job what the schedule says."""
        contact = self._contact(request)
        self.contacts.append(contact)
        try:
            contact.reply = await self._play(contact)
        finally:
            contact.ended = anyio.current_time()
        return contact.reply

    async def aclose(self) -> None:
        """Hold nothing."""

    def of(self, job: int) -> list[Contact]:
        """Return the attempts of one job."""
        return [contact for contact in self.contacts if contact.job == job]

    def _contact(self, request: Request) -> Contact:
        job, headers = calling.get(), dict(request.headers)
        number = len(self.of(job)) + 1
        script = self._faults[job] if job < len(self._faults) else ()
        fault = script[number - 1] if number <= len(script) else Fault()
        room = headers[b"Room-Id"]
        signature = hmac.new(SECRET.encode(), room, hashlib.sha256).hexdigest()
        assert headers[b"HASH-SIGNATURE"] == signature.encode()
        return Contact(job, room.decode(), number, anyio.current_time(), fault, request)

    async def _play(self, contact: Contact) -> Reply:
        fault, limits = contact.fault, contact.request.timeouts
        await _pause(fault.connecting, limits.connect)
        if fault.seen is Seen.REFUSED:
            raise ConnectFailed("refused")
        received = await self._receive(contact)
        length = int(dict(contact.request.headers)[b"Content-Length"])
        limit = contact.request.reply_timeout if contact.complete else limits.send_stall
        own: tuple[Reply, float] | None = None
        if len(received) == length and (fault.forwarded or fault.seen is Seen.REPLY):
            own = self._serve(contact, received)
        if fault.seen is Seen.ANSWER:
            await _pause(fault.after, limit)
            return _reply(fault.status, fault.content.value, fault.retry_after)
        if fault.seen is Seen.RESET:
            await _pause(fault.after, limit)
            raise ConnectionLost("reset")
        if own is None or fault.seen is Seen.SILENCE:
            own = _reply(200, b"", None), float("inf")
        await _pause(own[1], limit)
        return own[0]

    async def _receive(self, contact: Contact) -> bytes:
        """Take the form's chunks as far as they get out; return what arrives of them."""
        body, fault, received = contact.request.body, contact.fault, b""
        assert not isinstance(body, bytes)
        limit = fault.point.within(body.length)
        chunks = aiter(body)
        while len(received) < limit:
            chunk = await anext(chunks)
            contact.taken += len(chunk)
            contact.complete = contact.taken == body.length
            await anyio.sleep(fault.sending * len(chunk) / body.length)
            received += chunk
        if len(received) == limit == body.length:
            assert [chunk async for chunk in chunks] == []
        return received[:limit]

    def _serve(self, contact: Contact, received: bytes) -> tuple[Reply, float]:
        """Be the server: look at the lock, then at the form; return the reply and its delay."""
        now, fault, room = anyio.current_time(), contact.fault, self._rooms[contact.room]
        form = parsed(dict(contact.request.headers)[b"Content-Type"], received)
        if room.is_locked(now):
            return _own(409, "CONFLICT", "another upload is in progress", fault.missing), 0.0
        room.locked_until = now + min(fault.processing + fault.lingering, WINDOW)
        if not fault.converts:
            reply = _own(500, "INTERNAL_SERVER_ERROR", "conversion failed", fault.missing)
            return reply, fault.processing
        contact.form = form
        return _own(200, "SUCCESS", "file uploaded", fault.missing), fault.processing


def parsed(content_type: bytes, body: bytes) -> Form:
    """Read a form of one part strictly (RFC 2046 section 5.1.1, RFC 7578 section 4)."""
    boundary = b"--" + content_type.removeprefix(b"multipart/form-data; boundary=")
    assert body.startswith(boundary + b"\r\n")
    assert body.endswith(b"\r\n" + boundary + b"--\r\n")
    inside = body[len(boundary) + 2 : -len(boundary) - 6]
    assert boundary not in inside
    head, blank, content = inside.partition(b"\r\n\r\n")
    assert blank
    names = re.search(rb'form-data; name="(\w+)"; filename="([^"]*)"', head)
    assert names is not None
    return Form(names[1].decode(), names[2].decode(), content)


async def _pause(seconds: float, limit: float) -> None:
    await anyio.sleep(min(seconds, limit))
    if seconds > limit:
        raise TransferTimeout(f"nothing for {limit:g} s")


def _own(status: int, code: str, msg: str, missing: int) -> Reply:
    record = {"status": status == 200, "msg": msg, "status_code": code}
    content = json.dumps(record).encode()
    return _reply(status, content[: len(content) - missing], None)


def _reply(status: int, content: bytes, retry_after: str | None) -> Reply:
    hint = ((b"Retry-After", retry_after.encode()),) if retry_after is not None else ()
    return Reply(status, ((b"Content-Type", b"application/json"), *hint), content)
