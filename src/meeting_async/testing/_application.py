"""The ASGI application: from the bytes of a request to its answer."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

import attrs

from meeting_async.testing._calls import CALLS, answer_call, parse, room_id_of
from meeting_async.testing._faults import (
    WIRE,
    BodyFault,
    Channel,
    ReplyFault,
    send_whole,
)
from meeting_async.testing._files import BrokenForm, Form, FormReceiver
from meeting_async.testing._links import HOSTED_PATH
from meeting_async.testing._messages import (
    BASE_PATH,
    UPLOAD_PATH,
    Receive,
    Refused,
    Reply,
    Request,
    Scope,
    Send,
    authenticate,
    method_path,
)
from meeting_async.testing._settings import Settings
from meeting_async.testing._state import Entry, State
from meeting_async.testing._uploads import answer_upload

MAX_HEAD_BYTES = 4096
"""Longer request lines and headers are refused with 431."""


class Disconnected(Exception):
    """The client has gone before its body was complete, so there is nothing to answer."""


async def application(state: State, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve ``state`` (ASGI 3)."""
    if scope["type"] != "http":
        await _other_protocol(scope, receive, send)
        return
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    entry = state.log.open(scope["method"], path, state.clock.now())
    wire = (scope.get("extensions") or {}).get(WIRE)
    channel = Channel(send=send, wire=wire, note=entry.answer, method=entry.method)
    try:
        with contextlib.suppress(Disconnected):
            await _respond(state, scope, receive, entry, channel)
    finally:
        state.log.close(entry, state.clock.now())


async def _other_protocol(scope: Scope, receive: Receive, send: Send) -> None:
    """Close a websocket; confirm the start and the stop that an ASGI host announces."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    while (message := await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": f"{message['type']}.complete"})


def _first_values(scope: Scope) -> dict[bytes, bytes]:
    """Blanks around a value are not part of it (RFC 9110 section 5.5)."""
    return {name.lower(): value.strip(b" \t") for name, value in reversed(scope["headers"])}


async def _respond(
    state: State, scope: Scope, receive: Receive, entry: Entry, channel: Channel
) -> None:
    """Read a request, then play what is scripted or else answer."""
    headers = _first_values(scope)
    entry.room_id = headers.get(b"room-id", b"").decode(errors="backslashreplace") or None
    fault = state.faults.take(entry.path, is_body_read=False)
    if isinstance(fault, ReplyFault):
        await fault.play(entry.path, None, channel)
        return
    interruption = fault if isinstance(fault, BodyFault) else None
    try:
        _check_sizes(state.settings, scope, headers)
        body = await _Incoming(state.settings, receive, entry, interruption).read(headers)
    except Refused as refused:
        await send_whole(refused.reply, channel)
        return
    if isinstance(body, bytes) and not entry.room_id:
        entry.room_id = room_id_of(parse(body) or {})
    fault = state.faults.take(entry.path, is_body_read=True)
    own = None
    if not fault or fault.when == "afterwards":
        own = await _treated(state, Request(entry.method, entry.path, headers, body))
    if isinstance(fault, ReplyFault):
        await fault.play(entry.path, own, channel)
    elif own:
        await send_whole(own, channel)


def _check_sizes(settings: Settings, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
    """Refuse a head that is too long, and a body that is declared too long."""
    head = len(scope["method"] + scope["path"]) + len("  HTTP/1.1\r\n\r\n")
    head += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if head > MAX_HEAD_BYTES:
        raise Refused(Reply.plain(431, close=True))
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > settings.max_body_size:
        raise _too_large()


def _too_large() -> Refused:
    return Refused(Reply.plain(413, close=True))


@attrs.define(eq=False)
class _Incoming:
    """The body of a request while it arrives."""

    settings: Settings
    receive: Receive
    entry: Entry
    interruption: BodyFault | None

    async def read(self, headers: Mapping[bytes, bytes]) -> bytes | Form:
        """Read the whole body; a multipart one is a form."""
        content_type = headers.get(b"content-type", b"")
        if not content_type.lower().startswith(b"multipart/form-data"):
            return b"".join([chunk async for chunk in self._chunks()])
        receiver = FormReceiver(content_type, keep_content=self.settings.keep_content)
        async for chunk in self._chunks():
            receiver.write(chunk)
        try:
            return receiver.finish()
        except BrokenForm:
            raise Refused(Reply.plain(400, close=True)) from None

    async def _chunks(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self.receive()
            if message["type"] != "http.request":
                raise Disconnected
            chunk, more = message.get("body", b""), message.get("more_body", False)
            self.entry.body_bytes += len(chunk)
            if self.entry.body_bytes > self.settings.max_body_size:
                raise _too_large()
            await self._interrupt(is_complete=not more)
            yield chunk

    async def _interrupt(self, *, is_complete: bool) -> None:
        fault = self.interruption
        if fault and fault.is_due(self.entry.body_bytes, is_complete=is_complete):
            self.interruption = None
            await fault.strike()


async def _treated(state: State, request: Request) -> Reply:
    try:
        return await _answer(state, request)
    except Refused as refused:
        return refused.reply


async def _answer(state: State, request: Request) -> Reply:
    if request.path.startswith(HOSTED_PATH):
        return state.hosted.answer(request.method, request.path)
    path, settings = method_path(request.path), state.settings
    is_ours = request.path.lower().startswith(BASE_PATH + "/")
    is_upload = path == method_path(UPLOAD_PATH)
    if not is_ours or request.method != "POST" or not (is_upload or path in CALLS):
        return Reply.plain(404)
    authenticate(request, settings.api_key, settings.api_secret)
    if is_upload:
        return await answer_upload(state, request)
    return answer_call(state, path, request.body)
