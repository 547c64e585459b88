"""Scripted faults for the next requests, in one line each."""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias

import anyio
import attrs
from attrs.validators import ge, in_

from meeting_async.testing._messages import (
    REFUSALS,
    STORED_FILE,
    UPLOAD,
    Cut,
    Refused,
    Reply,
    method_path,
)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

QUESTIONS = frozenset({"/room/getactiveroominfo", STORED_FILE})
"""Paths that a client asks before and after an upload, as `method_path` returns them."""

When: TypeAlias = Literal["before_body", "instead", "afterwards"]
"""Before the body is read; after that, instead of processing the request; or after processing it,
like a proxy that times out while the server goes on."""

Headers: TypeAlias = Mapping[str, str] | list[tuple[str, str]] | tuple[tuple[str, str], ...]
Write: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Sends bytes as they are."""


# --- how a reply goes out ------------------------------------------------------------------------


async def whole(reply: Reply, _fault: Fault, write: Write) -> None:
    """Send a reply as usual."""
    await write(reply.head() + reply.body)


async def cut(_reply: Reply, _fault: Fault, _write: Write) -> None:
    """Reset the connection instead of sending a reply."""
    raise Cut


async def beginning(reply: Reply, fault: Fault, write: Write) -> None:
    """Send the head and some bytes of the body, then close the connection."""
    await write(reply.head() + reply.body[: fault.after])
    raise Cut(reset=False)


async def twice(reply: Reply, fault: Fault, write: Write) -> None:
    """Send a reply twice."""
    await whole(reply, fault, write)
    await whole(reply, fault, write)


async def endless(reply: Reply, fault: Fault, write: Write) -> None:
    """Send a reply whose body never ends, as fast as possible or slowly."""
    await write(reply.head(with_length=False) + reply.body)
    await _repeat(b" ", fault, write)


async def endless_interim(_reply: Reply, fault: Fault, write: Write) -> None:
    """Send ``100 Continue`` again and again, but no reply."""
    await _repeat(CONTINUE, fault, write)


async def _repeat(piece: bytes, fault: Fault, write: Write) -> None:
    while True:
        await write(piece if fault.every else piece * 2**14)
        await anyio.sleep(fault.every)


# --- faults --------------------------------------------------------------------------------------


@attrs.define(kw_only=True, on_setattr=[])
class Fault:
    """A fault for the next ``times`` requests to ``path`` (None: to any but `QUESTIONS`).

    ``make_reply(path)`` replaces the server's own reply. ``send`` sends the reply, ``delay``
    seconds late.

    With ``in_body`` the fault applies once ``after`` bytes of the body have arrived, and not to a
    shorter one: the connection is cut, or nothing more is read for ``delay`` seconds.
    """

    path: str | None = attrs.field(default=None, converter=attrs.converters.optional(method_path))
    times: int = attrs.field(default=1, validator=ge(1))
    when: When = attrs.field(
        default="afterwards", validator=in_(("before_body", "instead", "afterwards"))
    )
    make_reply: Callable[[str], Reply] | None = None
    send: Callable[[Reply, Fault, Write], Awaitable[None]] = whole
    delay: float = attrs.field(default=0.0, validator=ge(0))
    every: float = attrs.field(default=0.0, validator=ge(0))
    after: int = attrs.field(default=0, validator=ge(0))
    in_body: Literal["", "cut", "stall"] = ""
    arrives_after: float = attrs.field(default=0.0, validator=ge(0))
    """Seconds after which the server gets the request, although ``send`` was done before."""

    async def strike(self) -> None:
        """Cut the connection or stop reading, in the middle of the body."""
        if self.in_body == "cut":
            raise Cut
        await anyio.sleep(self.delay)


@attrs.define(eq=False)
class Faults:
    """The queue of scripted faults; it may be used from any thread."""

    _queue: list[Fault] = attrs.field(factory=list, init=False)
    _guard: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def add(self, fault: Fault) -> None:
        """Append ``fault`` to the queue."""
        with self._guard:
            self._queue.append(fault)

    def take(self, path: str, *, is_body_read: bool, length: int = 0) -> Fault | None:
        """Return the next fault for a request to ``path``, if it applies now.

        ``length``: bytes of its body, as announced.
        """
        with self._guard:
            for index, fault in enumerate(self._queue):
                called = method_path(path)
                if fault.in_body and not is_body_read and length < fault.after:
                    continue
                if fault.path == called or (fault.path is None and called not in QUESTIONS):
                    if (fault.when != "before_body") is not is_body_read:
                        return None
                    fault.times -= 1
                    if not fault.times:
                        del self._queue[index]
                    return fault
        return None


@attrs.define(eq=False, slots=False)
class Script:
    """Scripts faults for the next requests; every method may be called from any thread.

    Faults apply in the order in which they were scripted. A fault with a ``path``, such as
    ``/room/create``, applies only to requests to that path; one without a path to any request but
    ``/room/getActiveRoomInfo``, which a client makes before an upload, and the questions about
    stored files, which are all hit by ``/download/uploadedFile``. ``times`` is the number of
    requests that it applies to.

    On a socket a cut connection is reset. In process the caller of the application, such as
    ``httpx.ASGITransport``, gets a `ConnectionResetError` instead.
    """

    _faults: Faults = attrs.field(factory=Faults, init=False)

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
        """Reply with anything, ``delay`` seconds late; headers and body are sent unchanged.

        ``when``: ``"instead"`` of processing the request, after its body was read;
        ``"before_body"``: before its body is read; ``"afterwards"``: after the server has processed
        the request, like a proxy that times out while the server goes on.
        """
        if json is not ... and body:
            raise TypeError("a scripted reply has either a body or json")
        pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
        reply = Reply(status, body, pairs)
        if json is not ...:
            reply = Reply.from_json(status, json, pairs)
        reply.head()  # raises here, not in the server, if the reply cannot be written
        self._add(path, times, when, make_reply=lambda _: reply, delay=delay)

    def refuse_next(
        self,
        status_code: str,
        *,
        msg: str = "scripted refusal",
        path: str | None = None,
        times: int = 1,
    ) -> None:
        """Refuse with the server's own record, instead of processing the request.

        ``status_code`` is the name of a refusal, such as ``"ROOM_NOT_ACTIVE"``. The HTTP status is
        the one that belongs to this refusal.
        """
        if status_code not in REFUSALS:
            raise ValueError(f"status_code must be one of {', '.join(REFUSALS)}")
        self._add(path, times, "instead", make_reply=Refused(status_code, msg).reply)

    def lose_next_reply(
        self,
        *,
        path: str | None = None,
        times: int = 1,
        when: When = "afterwards",
        arrives_after: float = 0.0,
    ) -> None:
        """Process a request as usual, but reset the connection instead of answering.

        ``arrives_after``: seconds between the reset and the processing, as if a proxy kept the
        request.
        """
        if arrives_after and when != "afterwards":
            raise ValueError('with arrives_after, when must be "afterwards"')
        self._add(path, times, when, send=cut, arrives_after=arrives_after)

    def cut_next_reply(self, *, after: int = 0, path: str | None = None, times: int = 1) -> None:
        """Process a request as usual, but end the answer after ``after`` bytes of its body."""
        self._add(path, times, send=beginning, after=after)

    def double_next_reply(self, *, path: str | None = None, times: int = 1) -> None:
        """Process a request as usual and answer it twice; in process only once."""
        self._add(path, times, send=twice)

    def flood_next_reply(
        self,
        *,
        every: float = 0.0,
        interim: bool = False,
        path: str | None = None,
        times: int = 1,
        when: When = "afterwards",
    ) -> None:
        """Send a reply that never ends; with ``interim`` endless ``100 Continue`` and no reply.

        It is sent as fast as the peer reads, or one small piece every ``every`` seconds. In process
        there are no interim replies, and a reply ends after 32 MiB with a `ConnectionResetError`.
        """
        self._add(path, times, when, send=endless_interim if interim else endless, every=every)

    def delay_next_reply(self, seconds: float, *, path: str | None = None, times: int = 1) -> None:
        """Process a request as usual and answer it ``seconds`` late."""
        self._add(path, times, delay=seconds)

    def cut_next_upload(self, *, after: int = 0, times: int = 1) -> None:
        """Reset the connection once ``after`` bytes of an upload's body have arrived.

        A shorter form, such as one that asks whether the room is free, is not affected. On a socket
        the kernel buffers some megabytes, so a smaller document may have been sent completely by
        then.
        """
        self._add(UPLOAD, times, "before_body", in_body="cut", after=after)

    def stall_next_upload(
        self, seconds: float = math.inf, *, after: int = 0, times: int = 1
    ) -> None:
        """Stop reading for ``seconds`` once ``after`` bytes of an upload's body have arrived.

        A shorter form is not affected. The kernel still buffers some megabytes.
        """
        self._add(UPLOAD, times, "before_body", in_body="stall", after=after, delay=seconds)

    def _add(self, path: str | None, times: int, when: When = "afterwards", **how: Any) -> None:
        self._faults.add(Fault(path=path, times=times, when=when, **how))
