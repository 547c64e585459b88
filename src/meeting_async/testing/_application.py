"""Handling requests: reading the bytes, answering, and the ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import quote

import anyio
import attrs
import h11

from meeting_async.testing._background import outlive, start
from meeting_async.testing._calls import CALLS, answer_call, get, parse
from meeting_async.testing._downloads import answer_download
from meeting_async.testing._faults import CONTINUE, Fault, Faults, Write
from meeting_async.testing._files import FormReceiver, Part
from meeting_async.testing._messages import (
    STORED_FILE,
    UPLOAD,
    Cut,
    Refused,
    Reply,
    authenticate,
    method_path,
)
from meeting_async.testing._rooms import Contacts, Rooms
from meeting_async.testing._uploads import answer_upload

MAX_HEAD_BYTES = 4096
"""Longest request line and headers in bytes; longer ones get 431."""

HEALTH = "/healthcheck"
"""A path outside of /auth, which load balancers ask."""

MAX_IN_PROCESS_BYTES = 32 * 1024**2
"""In process an endless reply ends after this, because callers keep the reply in memory."""

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
Read: TypeAlias = Callable[[], Awaitable[tuple[bytes, bool]]]
"""Returns the next bytes of a body, and whether there are more."""


@attrs.define(kw_only=True)
class RecordedRequest:
    """What the server has seen of a request so far; ``str`` gives it as one line."""

    method: str
    path: str
    room_id: str | None = None
    """Room id from the header Room-Id or the JSON body."""
    document: str = ""
    """Name of the file in a form."""
    status: int | None = None
    """HTTP status of the answer, even if the client had disconnected; None without an answer."""
    status_code: str = ""
    """``status_code`` of the server's own record; ``""`` for other answers."""
    body_bytes: int = 0
    """Bytes of the body that have arrived."""
    at: float
    """When the request began, in seconds of the server's clock."""
    seconds: float | None = None
    """Duration; None while the request runs."""

    def __str__(self) -> str:
        answer = "no answer" if self.status is None else f"{self.status} {self.status_code}".strip()
        room = f" {self.room_id}" if self.room_id else ""
        room += f" {self.document!r}" if self.document else ""
        seconds = "" if self.seconds is None else f" {self.seconds:.2f} s"
        line = f"{self.method} {self.path}{room} {answer} {self.body_bytes:,} bytes{seconds}"
        return "".join(c if c.isprintable() else "?" for c in line)


@attrs.frozen(eq=False)
class State:
    """State of a server: rooms with settings and clock, faults, requests, files for download."""

    rooms: Rooms
    faults: Faults
    on_request: Callable[[RecordedRequest], object]
    requests: list[RecordedRequest] = attrs.field(factory=list)
    files: dict[tuple[str, str], Reply] = attrs.field(factory=dict)
    """Answers by method and path."""

    def instance(self) -> State:
        """Return the same state, with its own memory of the rooms that it has heard of."""
        return attrs.evolve(self, rooms=attrs.evolve(self.rooms, contacts=Contacts()))


@attrs.define(eq=False)
class Exchange:
    """A running request: its body is read, then the answer is written."""

    state: State
    record: RecordedRequest
    target: str
    """Path and query as they were sent, percent-encoded."""
    pairs: Headers
    read: Read
    write: Write

    async def run(self) -> None:
        """Apply a scripted fault, or answer."""
        record, clock = self.record, self.state.rooms.clock
        self.state.requests.append(record)
        try:
            await self._respond()
        finally:
            record.seconds = clock.now() - record.at
            self.state.on_request(record)

    async def _respond(self) -> None:
        # Blanks around a value are not part of it (RFC 9110 section 5.5).
        headers = {name.lower(): value.strip(b" \t") for name, value in reversed(self.pairs)}
        record, faults = self.record, self.state.faults
        room_id = headers.get(b"room-id", b"").decode(errors="backslashreplace")
        record.room_id = room_id or None
        length = headers.get(b"content-length", b"")
        size = int(length) if length.isdigit() else 0
        fault = faults.take(record.path, is_body_read=False, length=size)
        if fault and not fault.in_body:
            await self._send(fault, Reply(200).closing())
            return
        try:
            self._check_sizes(headers)
            body = await self._body(headers.get(b"content-type", b""), fault)
        except Refused as refused:
            await self._send(Fault(), refused.reply(record.path))
            return
        if isinstance(body, list):
            record.document = next((part.filename for part in body if part.filename), "")
        named = get(parse(body) or {}, "room_id")
        if isinstance(named, str):
            record.room_id = room_id or named or None
        fault = faults.take(record.path, is_body_read=True) or Fault()
        own = Reply(200)
        if fault.when == "afterwards":
            own = await self._pass_on(fault, partial(self._answer, headers, room_id, body))
        await self._send(fault, own)

    async def _pass_on(self, fault: Fault, answer: Callable[[], Awaitable[Reply]]) -> Reply:
        """Answer, perhaps after a proxy has kept the request, which then outlives its client."""
        held = self.state.rooms.settings.holds_forms if self.record.document else 0.0
        if fault.arrives_after:
            start(partial(_later, fault.arrives_after, answer))
            return Reply(200)
        return await outlive(partial(_later, held, answer)) if held else await answer()

    async def _send(self, fault: Fault, own: Reply) -> None:
        """Send the server's own reply, or the one of a fault."""
        await anyio.sleep(fault.delay)
        reply = fault.make_reply(self.record.path) if fault.make_reply else own
        asked = b"close" in b",".join(
            value.lower() for name, value in self.pairs if name.lower() == b"connection"
        )
        if asked or (fault.make_reply and fault.when == "before_body"):
            # A proxy would otherwise keep the connection for its next request (RFC 9112, 9.6).
            reply = reply.closing()
        reply = reply.dated(self.state.rooms.clock.date())

        async def write(data: bytes) -> None:
            if data.startswith(b"HTTP/1.1 %d " % reply.status):
                self.record.status, self.record.status_code = reply.status, reply.status_code
            if self.record.method == "HEAD":  # the answer has no body
                data = b"".join(data.partition(b"\r\n\r\n")[:2])
            await self.write(data)

        await fault.send(reply, fault, write)

    def _check_sizes(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a head that is too long, and a body that is declared too long."""
        head = len(f"{self.record.method} {self.target} HTTP/1.1\r\n\r\n")
        if head + sum(len(name) + len(value) + 4 for name, value in self.pairs) > MAX_HEAD_BYTES:
            raise Refused(status=431)
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self.state.rooms.settings.max_body_size:
            raise Refused(status=413)

    async def _body(self, content_type: bytes, fault: Fault | None) -> bytes | list[Part]:
        """Read the whole body; a multipart one is a form."""
        settings, raw = self.state.rooms.settings, bytearray()
        # In capitals it is not a form: it is signed over its body, and has no fields.
        is_form = content_type.startswith(b"multipart/form-data")
        form = FormReceiver(content_type, keep_content=settings.keep_content)
        more = True
        while more:
            try:
                chunk, more = await self.read()
            except Disconnected:
                if not (is_form and form.is_complete):
                    raise
                break
            self.record.body_bytes += len(chunk)
            if self.record.body_bytes > settings.max_body_size:
                raise Refused(status=413)
            if fault and (not more or self.record.body_bytes >= fault.after):
                await fault.strike()
                fault = None
            (form.write if is_form else raw.extend)(chunk)
        if not is_form:
            return bytes(raw)
        parts = form.finish() if self.record.body_bytes else []  # no body at all: no fields
        if parts is None:
            raise Refused(status=400)
        return parts

    async def _answer(
        self, headers: Mapping[bytes, bytes], room_id: str, body: bytes | list[Part]
    ) -> Reply:
        method, path = self.record.method, self.record.path
        call, rooms = method_path(path), self.state.rooms
        if not f"{path.lower()}/".startswith("/auth/"):
            if call == HEALTH:
                return Reply.text(200, "Healthy")
            if call == STORED_FILE and method in {"GET", "HEAD"}:
                file = self.target.partition("?")[0]
                return answer_download(rooms, file, with_content=method == "GET")
            return self.state.files.get((method, path)) or Reply.plain(404)
        try:
            authenticate(rooms.settings, headers, body)  # comes before methods and paths
            if method == "POST" and call == UPLOAD:
                return await answer_upload(rooms, room_id, body)
            if method == "POST" and call in CALLS:
                return answer_call(rooms, call, body)
        except Refused as refused:
            return refused.reply(path)
        return Reply.plain(404)


async def _later(seconds: float, answer: Callable[[], Awaitable[Reply]]) -> Reply:
    await anyio.sleep(seconds)
    return await answer()


# --- in process --------------------------------------------------------------------------------


class Disconnected(Exception):
    """The client disconnected before its body was complete."""


async def respond_in_process(state: State, scope: Any, receive: Any, send: Any) -> None:
    """Answer one request as an ASGI 3 application."""
    if scope["type"] != "http":
        raise NotImplementedError("a meeting server speaks HTTP only")
    peer = h11.Connection(h11.CLIENT)  # parses the answer
    peer.send(h11.Request(method=scope["method"], target="/", headers=[("host", "x")]))
    peer.send(h11.EndOfMessage())
    left = MAX_IN_PROCESS_BYTES

    async def read() -> tuple[bytes, bool]:
        message = await receive()
        if message["type"] != "http.request":
            raise Disconnected
        return message.get("body", b""), message.get("more_body", False)

    async def write(data: bytes) -> None:
        nonlocal left
        left -= len(data)
        if left < 0:
            raise Cut
        if data.startswith(CONTINUE):
            await anyio.sleep_forever()  # ASGI has no interim replies
        if peer.their_state is not h11.DONE:  # what follows an answer would be for the next request
            peer.receive_data(data)
            for event in iter(peer.next_event, h11.NEED_DATA):
                await send(_message(event))

    path = scope["path"].removeprefix(scope.get("root_path", ""))
    # raw_path is optional in ASGI; without it a + cannot be told from %2B.
    raw = scope.get("raw_path") or quote(path).encode()
    target = b"?".join(filter(None, [raw, scope.get("query_string")])).decode("latin-1")
    record = RecordedRequest(method=scope["method"], path=path, at=state.rooms.clock.now())
    with contextlib.suppress(Disconnected):
        await Exchange(state, record, target, scope["headers"], read, write).run()
        if peer.their_state is h11.SEND_BODY:
            raise Cut


def _message(event: object) -> dict[str, Any]:
    if isinstance(event, h11.Response):
        pairs = list(event.headers)
        return {"type": "http.response.start", "status": event.status_code, "headers": pairs}
    body, more = (bytes(event.data), True) if isinstance(event, h11.Data) else (b"", False)
    return {"type": "http.response.body", "body": body, "more_body": more}
