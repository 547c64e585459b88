"""Scripted replies: what the next requests get instead of the normal treatment."""

import json
import threading
from collections.abc import Mapping
from typing import TypeAlias

import anyio
import attrs
from attrs.validators import ge
from starlette.responses import Response

BASE_PATH = "/auth"

HeaderPairs: TypeAlias = Mapping[str, str] | list[tuple[str, str]] | tuple[tuple[str, str], ...]


@attrs.frozen
class ScriptedReply:
    """A reply for the next ``times`` requests to ``path`` (None: any), ``delay`` seconds late."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]
    path: str | None
    times: int = attrs.field(validator=ge(1))
    delay: float = attrs.field(validator=ge(0))

    def again(self, times: int) -> "ScriptedReply":
        """Return the same reply for another number of requests."""
        return attrs.evolve(self, times=times)

    async def play(self) -> Response:
        """Wait for the delay and return the reply."""
        await anyio.sleep(self.delay)
        response = Response(self.body, self.status)
        for name, value in self.headers:
            response.raw_headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))
        return response


@attrs.define(eq=False)
class Faults:
    """The queue of scripted replies, first come first served; usable from any thread."""

    _queue: list[ScriptedReply] = attrs.field(factory=list, init=False)
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def add(self, reply: ScriptedReply) -> None:
        """Append ``reply`` to the queue."""
        with self._guard:
            self._queue.append(reply)

    def take(self, path: str) -> ScriptedReply | None:
        """Return the reply that the next request to ``path`` gets, if one was scripted."""
        with self._guard:
            for index, reply in enumerate(self._queue):
                if reply.path in {None, method_path(path)}:
                    left = reply.times - 1
                    self._queue[index : index + 1] = [reply.again(left)] if left else []
                    return reply
        return None


def method_path(path: str) -> str:
    """Return ``path`` as the interface writes method paths: ``/room/…``, without ``/auth``."""
    return "/" + path.strip("/").removeprefix(BASE_PATH.strip("/") + "/")


def scripted_reply(
    status: int,
    *,
    body: bytes,
    json_value: object,
    headers: HeaderPairs,
    path: str | None,
    times: int,
    delay: float,
) -> ScriptedReply:
    """Build a `ScriptedReply` from the arguments of `MeetingServer.reply_next`."""
    pairs = tuple(headers if isinstance(headers, (list, tuple)) else headers.items())
    if json_value is not ...:
        if body:
            raise TypeError("a scripted reply has either a body or json")
        body = json.dumps(json_value, ensure_ascii=False).encode()
        pairs = (("content-type", "application/json"), *pairs)
    wanted = None if path is None else method_path(path)
    return ScriptedReply(status, body, pairs, wanted, times, delay)
