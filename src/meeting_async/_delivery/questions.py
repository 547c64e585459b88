"""The two questions about a room: each is built, sent and read here.

The *check* (``getActiveRoomInfo``) asks whether the room is active, and whether the server knows
the key. The *probe*, an empty form, asks whether the room is free (``docs/interface.md``, Upload).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import anyio
import attrs

from meeting_async._clock import Clock
from meeting_async._delivery.history import Step, step
from meeting_async._delivery.session import Session, check_room
from meeting_async._models import UNREACHED, Request, SignedHeaders
from meeting_async._policies import Timeouts
from meeting_async._protocol import requests
from meeting_async._protocol.multipart import empty_form
from meeting_async._protocol.replies import ParsedReply
from meeting_async._protocol.verdicts import Asked, Sent, read
from meeting_async.errors import ConnectFailed, TransportError

CHECK_BYTES = 64 * 1024
"""Most bytes of the answer to a check; the rest, a list of everybody in the room, is cut off."""

UNUSED_ROOM = requests.room_of("meeting-async-check")
"""Room for a check that is only about the key; it need not exist."""


@attrs.frozen
class Questions:
    """Asks about one room."""

    session: Session
    room: requests.Room
    send: Callable[[Request], Awaitable[ParsedReply]]
    """Sends a request: ``session.send``, or a wrapper around it."""
    now: Clock = anyio.current_time

    async def check(self, timeouts: Timeouts, *, on_kept_connection: bool = True) -> Step:
        """Ask whether the room is active; ``on_kept_connection``: see `Request.idempotent`."""
        request = await self.session.json_request(
            requests.ACTIVE_ROOM_INFO,
            requests.active_room_body(self.room),
            timeouts,
            idempotent=on_kept_connection,
            max_reply_bytes=CHECK_BYTES,
            cut_reply=True,
            room=self.room,
        )
        return await self._ask("check", request)

    async def probe(
        self,
        signed: SignedHeaders,
        timeouts: Timeouts,
        peer: object = None,
        *,
        on_kept_connection: bool = True,
    ) -> Step:
        """Ask whether the room is free; ``peer``: see `Request.peer`."""
        form = empty_form(boundary=os.urandom(16).hex())
        request = self.session.upload_request(
            self.room, form, signed, timeouts, peer, idempotent=on_kept_connection
        )
        return await self._ask("probe", request)

    async def _ask(self, asked: Asked, request: Request) -> Step:
        began, answer, error = self.now(), None, None
        try:
            answer = await self.send(request)
            if asked == "check":
                check_room(answer, self.room.id, self.session.host)
        except TransportError as failure:
            answer, error = None, failure
        sent = Sent.NOTHING if isinstance(error, ConnectFailed) else Sent.ALL
        verdict = read(answer, sent, asked)
        if verdict not in UNREACHED:
            self.session.server.mark_reached(self.now())
        return step(asked, began, self.now(), verdict, answer, error)
