"""Uploads that outlive their requests: the browser may leave, and the server may be stopped.

The outermost layer of an application, as only that sees all that ends a request: a browser that
leaves ends the handlers of Quart and Django, and a server that stops ends all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any

from meeting_async.errors import DocumentUnreadable, UploadOutcomeUnknown
from meeting_async.web import HttpAnswer, http_answer

SHUTDOWN_SECONDS = 360.0
"""Longest wait at shutdown: 20 s for a room, 330 s for the reply (``Timeouts.upload_reply``)."""

SILENCE_SECONDS = 30.0
"""Longest time without a byte in the middle of a request; no server or framework limits that."""

UNKNOWN = http_answer(UploadOutcomeUnknown("shutdown", None, None, lock_free_in=SHUTDOWN_SECONDS))
SILENT = http_answer(DocumentUnreadable("", "silence"))
RESTART = {"delivered": False, "error": "Restart", "detail": "the application restarts: send again"}
NOT_SENT = HttpAnswer(503, RESTART, {"Retry-After": "10"})

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Uploads:
    """Runs requests in tasks of the application, and waits for these tasks at shutdown."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        """Set when shutdown begins."""
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncGenerator[None, None]:
        """Wait for uploads when the block ends: before the client is closed, in the lifespan."""
        loop = asyncio.get_running_loop()
        servers_own: Any = signal.getsignal(signal.SIGTERM)

        def stop(*args: Any) -> None:
            servers_own(*args)
            loop.call_soon_threadsafe(self.stopping.set)

        self.stopping = asyncio.Event()  # a test may run the lifespan again
        if callable(servers_own):
            with contextlib.suppress(ValueError):  # a test client runs this in another thread
                signal.signal(signal.SIGTERM, stop)
        yield
        self.stopping.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SHUTDOWN_SECONDS)

    def around(self, site: Any, prefix: str = "/rooms/") -> Any:
        """Return the application to serve. Its paths with this prefix upload."""

        async def app(scope: Message, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"].startswith(prefix):
                await self._finish(site, scope, receive, send)
            else:
                await site(scope, receive, send)

        return app

    async def _finish(self, site: Any, scope: Message, receive: Receive, send: Send) -> None:
        has_arrived = is_answered = is_cut = False

        async def read() -> Message:
            nonlocal has_arrived
            if has_arrived:
                await asyncio.Future()  # nobody is told that the browser has left
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    message = await receive()
            except TimeoutError:
                await cut(SILENT)
                return {"type": "http.disconnect"}
            if is_cut:
                return {"type": "http.disconnect"}
            has_arrived = message["type"] == "http.request" and not message.get("more_body")
            return message

        async def answer(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            if not is_cut:
                await send(message)

        async def cut(reason: HttpAnswer) -> None:
            nonlocal is_cut
            if not (is_answered or is_cut):
                is_cut = True
                await send_answer(reason, send)

        task = asyncio.create_task(site(scope, read, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:  # the server's graceful timeout has passed
            if task.done() or is_answered:
                raise
            await cut(UNKNOWN if has_arrived else NOT_SENT)


async def send_answer(answer: HttpAnswer, send: Send) -> None:
    """Send an answer without a framework."""
    content = json.dumps(answer.body).encode()
    headers = {"Content-Type": "application/json", **answer.headers}
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    pairs.append((b"content-length", str(len(content)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": pairs})
    await send({"type": "http.response.body", "body": content})
