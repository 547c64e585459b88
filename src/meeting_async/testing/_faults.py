"""Scripted faults: what goes wrong with the next requests, in one line each."""

from __future__ import annotations

import json as json_
import math
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Literal, Protocol, Self, TypeAlias

import anyio
import attrs
from attrs.validators import ge, in_, optional

from meeting_async.testing._messages import (
    REFUSALS,
    UPLOAD_PATH,
    Cut,
    HeaderPairs,
    Message,
    Reply,
    Send,
    method_path,
    refusal_for,
)

WIRE = "meeting_async.wire"
"""The ASGI extension by which a fault can say on a socket what is not HTTP."""

IN_PROCESS_FLOOD_BYTES = 32 * 1024**2
"""In process a reply that never ends ends after this, as callers collect it before they look."""

When: TypeAlias = Literal["before_body", "instead", "afterwards"]
"""Before anything of the body is read; once it was read, instead of the normal treatment; or after
the normal treatment, as a proxy answers when the server has accepted."""

Headers: TypeAlias = Mapping[str, str] | list[tuple[str, str]] | tuple[tuple[str, str], ...]


class Wire(Protocol):
    """A connection, for faults."""

    async def write(self, data: bytes) -> None:
        """Send bytes as they are; raises `OSError` when the peer is gone."""


@attrs.frozen(kw_only=True)
class Channel:
    """Where the reply to a request goes: ASGI and, on a socket, the connection itself."""

    send: Send
    wire: Wire | None
    note: Callable[[Reply], None]
    """Called with each reply whose head goes out."""
    method: str = "POST"


Sender: TypeAlias = Callable[[Reply, Channel], Awaitable[None]]


# --- how a reply goes out ------------------------------------------------------------------------


async def send_whole(reply: Reply, channel: Channel) -> None:
    """Send a reply as HTTP wants it."""
    channel.note(reply)
    body = b"" if channel.method == "HEAD" else reply.body
    await channel.send(_start(reply))
    await channel.send({"type": "http.response.body", "body": body})


async def send_nothing(reply: Reply, channel: Channel) -> None:
    """Reset the connection instead."""
    raise Cut


async def send_part(reply: Reply, channel: Channel, *, after: int) -> None:
    """Send the head and ``after`` bytes of the body, then close the connection."""
    channel.note(reply)
    if channel.wire:
        await channel.wire.write(reply.head() + reply.body[:after])
        return
    await channel.send(_start(reply))
    await _send_more(channel, reply.body[:after])
    raise Cut


async def send_twice(reply: Reply, channel: Channel) -> None:
    """Send a reply, and the same again right behind it."""
    await send_whole(reply, channel)
    if channel.wire:
        await channel.wire.write(reply.head() + reply.body)


async def send_endlessly(reply: Reply, channel: Channel, *, every: float) -> None:
    """Send a reply whose body never ends: as fast as it goes, or a byte ``every`` few seconds."""
    channel.note(reply)
    chunk = b" " if every else b" " * 65536
    if channel.wire:
        await channel.wire.write(reply.head(with_length=False) + reply.body)
        await _repeat(partial(channel.wire.write, chunk), every)
    await channel.send(_start(reply, with_length=False))
    for _ in range(IN_PROCESS_FLOOD_BYTES // len(chunk)):
        await _send_more(channel, chunk)
        await anyio.sleep(every)
    raise Cut


async def continue_endlessly(reply: Reply, channel: Channel, *, every: float) -> None:
    """Say ``100 Continue`` again and again and never reply; in process there is only silence."""
    said = b"HTTP/1.1 100 Continue\r\n\r\n"
    if channel.wire is None:
        await anyio.sleep_forever()
    else:
        await _repeat(partial(channel.wire.write, said if every else said * 2048), every)


def _start(reply: Reply, *, with_length: bool = True) -> Message:
    pairs = reply.pairs(with_length=with_length)
    return {"type": "http.response.start", "status": reply.status, "headers": pairs}


async def _send_more(channel: Channel, data: bytes) -> None:
    await channel.send({"type": "http.response.body", "body": data, "more_body": True})


async def _repeat(write: Callable[[], Awaitable[None]], every: float) -> None:
    while True:
        await write()
        await anyio.sleep(every)


# --- faults --------------------------------------------------------------------------------------


def _method_path_or_none(path: str | None) -> str | None:
    return None if path is None else method_path(path)


@attrs.frozen(kw_only=True)
class Fault:
    """What happens to the next ``times`` requests to ``path`` (None: to any)."""

    path: str | None = attrs.field(default=None, converter=_method_path_or_none)
    times: int = attrs.field(default=1, validator=ge(1))
    when: When = attrs.field(
        default="afterwards", validator=in_(("before_body", "instead", "afterwards"))
    )

    def once_less(self) -> list[Self]:
        """Return what is left of it when one request has met it."""
        return [attrs.evolve(self, times=self.times - 1)] if self.times > 1 else []


@attrs.frozen(kw_only=True)
class ReplyFault(Fault):
    """Replies with ``make_reply(path)`` or the server's own reply, late, and in its own way."""

    make_reply: Callable[[str], Reply] | None = None
    send: Sender = send_whole
    delay: float = attrs.field(default=0.0, validator=ge(0))

    async def play(self, path: str, own: Reply | None, channel: Channel) -> None:
        """Answer a request to ``path``; ``own`` is the server's reply if it treated the request."""
        await anyio.sleep(self.delay)
        reply = self.make_reply(path) if self.make_reply else own or Reply(200)
        await self.send(reply, channel)


@attrs.frozen(kw_only=True)
class BodyFault(Fault):
    """Strikes once ``after`` bytes of the body have arrived, or all of a shorter one.

    For ``stall`` seconds nothing more is read, then the rest; without it the connection is cut.
    """

    when: When = "before_body"
    after: int = attrs.field(validator=ge(0))
    stall: float | None = attrs.field(default=None, validator=optional(ge(0)))

    def is_due(self, arrived: int, *, is_complete: bool) -> bool:
        """Whether it strikes when so many bytes have arrived."""
        return is_complete or arrived >= self.after

    async def strike(self) -> None:
        """Hold the request up, or end it with `Cut`."""
        if self.stall is None:
            raise Cut
        await anyio.sleep(self.stall)


@attrs.define(eq=False)
class Faults:
    """The queue of scripted faults, first come first served; usable from any thread."""

    _queue: list[Fault] = attrs.field(factory=list, init=False)
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def add(self, fault: Fault) -> None:
        """Append ``fault`` to the queue."""
        with self._guard:
            self._queue.append(fault)

    def take(self, path: str, *, is_body_read: bool) -> Fault | None:
        """Return the fault that comes next for a request to ``path``, if it is due by now."""
        with self._guard:
            for index, fault in enumerate(self._queue):
                if fault.path in {None, method_path(path)}:
                    if (fault.when != "before_body") is not is_body_read:
                        return None
                    self._queue[index : index + 1] = fault.once_less()
                    return fault
        return None


class Script:
    """What happens to the next requests; every method may be called from any thread.

    Requests take the faults in the order in which they were scripted, each the first that is meant
    for it: a fault with a ``path``, a method path such as ``/room/create``, is for requests to
    that path only. ``times`` is the number of requests that it happens to.

    On a socket a cut connection is reset. In process there is none: the caller of the application,
    such as ``httpx.ASGITransport``, gets a `ConnectionResetError`.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def reply_next(
        self,
        status: int,
        *,
        body: bytes = b"",
        json: object = ...,
        headers: Headers = (),
        path: str | None = None,
        times: int = 1,
        delay: float = 0.0,
        when: When = "instead",
    ) -> None:
        """Reply with anything, ``delay`` seconds late.

        ``when``: ``"instead"`` of the normal treatment, once the body was read; ``"before_body"``,
        before anything of it is read; or ``"afterwards"``, as a proxy does that times out while
        the server goes on: the server has treated the request as usual.
        """
        if json is not ... and body:
            raise TypeError("a scripted reply has either a body or json")
        pairs: HeaderPairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
        if json is not ...:
            body = json_.dumps(json, ensure_ascii=False).encode()
            pairs = (("content-type", "application/json"), *pairs)
        reply = Reply(status, body, pairs)
        self._script(ReplyFault, path, times, when, make_reply=lambda _: reply, delay=delay)

    def refuse_next(
        self,
        status_code: str,
        *,
        msg: str = "as the script says",
        path: str | None = None,
        times: int = 1,
    ) -> None:
        """Refuse with the server's own record, instead of the normal treatment.

        ``status_code`` is the name of a refusal, such as ``"ROOM_NOT_ACTIVE"``; the HTTP status is
        the one that this server gives it.
        """
        if status_code not in REFUSALS:
            raise ValueError(f"status_code must be one of {', '.join(REFUSALS)}")
        make_reply = partial(refusal_for, status_code, msg)
        self._script(ReplyFault, path, times, "instead", make_reply=make_reply)

    def lose_next_reply(
        self, *, path: str | None = None, times: int = 1, when: When = "afterwards"
    ) -> None:
        """Treat a request as usual, but reset the connection when its answer is due."""
        self._script(ReplyFault, path, times, when, send=send_nothing)

    def cut_next_reply(self, *, after: int = 0, path: str | None = None, times: int = 1) -> None:
        """Treat a request as usual; the answer ends ``after`` bytes of its body."""
        _check("after", after)
        self._script(ReplyFault, path, times, "afterwards", send=partial(send_part, after=after))

    def double_next_reply(self, *, path: str | None = None, times: int = 1) -> None:
        """Treat a request as usual and answer it twice; in process only once."""
        self._script(ReplyFault, path, times, "afterwards", send=send_twice)

    def flood_next_reply(
        self,
        *,
        every: float = 0.0,
        interim: bool = False,
        path: str | None = None,
        times: int = 1,
        when: When = "afterwards",
    ) -> None:
        """Send a reply that never ends, or with ``interim`` endless ``100 Continue`` before it.

        As fast as the peer reads, or in small pieces ``every`` few seconds. In process there are
        no interim replies, and a reply ends after 32 MiB in a `ConnectionResetError`.
        """
        _check("every", every)
        send = partial(continue_endlessly if interim else send_endlessly, every=every)
        self._script(ReplyFault, path, times, when, send=send)

    def delay_next_reply(self, seconds: float, *, path: str | None = None, times: int = 1) -> None:
        """Treat a request as usual and answer it ``seconds`` late."""
        self._script(ReplyFault, path, times, "afterwards", delay=seconds)

    def cut_next_upload(self, *, after: int = 0, times: int = 1) -> None:
        """Reset the connection once ``after`` bytes of an upload's body have arrived.

        On a socket some megabytes more may be on their way by then; a document that is smaller
        than what the kernel buffers may be out completely.
        """
        self._script(BodyFault, UPLOAD_PATH, times, "before_body", after=after)

    def stall_next_upload(
        self, seconds: float = math.inf, *, after: int = 0, times: int = 1
    ) -> None:
        """Read nothing more for so long once ``after`` bytes of an upload's body have arrived.

        The kernel's buffers take some megabytes nevertheless.
        """
        self._script(BodyFault, UPLOAD_PATH, times, "before_body", after=after, stall=seconds)

    def _script(
        self, kind: Callable[..., Fault], path: str | None, times: int, when: When, **how: object
    ) -> None:
        self._faults.add(kind(path=path, times=times, when=when, **how))


def _check(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} must be at least 0, not {value}")
