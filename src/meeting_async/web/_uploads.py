"""An ASGI middleware: uploads outlive their requests, and shutdown waits for them.

Only a layer outside of the application sees all that ends a request. The server cancels it after
its graceful timeout, and then nobody inside can answer any more; Quart and Django cancel a handler
when the browser disconnects. Here whole handlers run in tasks of the application's lifespan: files
of a form stay open, and what a handler does after its upload is done, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import attrs
from anyio.abc import TaskGroup

from meeting_async._clock import CLEANUP_SECONDS, native
from meeting_async._log import logger
from meeting_async._text import short_repr
from meeting_async.errors import (
    ConfigurationError,
    DocumentUnreadable,
    MeetingError,
    UploadOutcomeUnknown,
)
from meeting_async.web import _routes as routes
from meeting_async.web._answers import RETRY_AFTER, HttpAnswer, Message, Receive, Send, http_answer

Application = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI 3.0 application; each framework has types of its own for scopes and messages."""

NOT_SENT = HttpAnswer(
    503,
    {"delivered": False, "error": "Restart", "detail": "the application restarts: send it again"},
    {"Retry-After": str(RETRY_AFTER)},
)
STALLED = http_answer(DocumentUnreadable("", "the browser has fallen silent"))

_WEB = {"action": "web"}


class Uploads:
    """ASGI middleware: an upload outlives its request, and shutdown waits for it.

    ``app.add_middleware(Uploads, prefix="/rooms/")`` in FastAPI,
    ``app = Uploads(site, prefix="/rooms/")`` in any framework. It must be outside of middlewares
    that run the application in a task group of their own, such as ``BaseHTTPMiddleware``.

    POST, PUT and PATCH requests below ``prefix`` run in tasks of the application's lifespan: whole
    handlers, with their open files and background tasks. If the browser disconnects after its
    request has arrived, or if the server cancels the request, the handler continues. A browser that
    can still be answered gets 202 and ``delivered: null``; if its request has not arrived
    completely, so that nothing can have been delivered, 503 and ``delivered: false``. At shutdown
    the lifespan, which closes the client, ends after these handlers.

    A :class:`~meeting_async.errors.MeetingError` that such a handler raises is answered by
    :func:`http_answer`. An exception that a handler raises after its request was cancelled is
    logged; one that would end the server, such as ``SystemExit``, becomes a ``RuntimeError``. If no
    lifespan is run, as in some test clients, requests run in the server's tasks.

    Args:
        app: The application.
        prefix: How the paths of the routes that upload begin, without the ``root_path``; one text
            or several. Other requests are passed on as they are.
        shutdown_timeout: Longest time in seconds that shutdown waits for handlers; then they are
            cancelled, and have 5 s to end. 360 s are 20 s for a locked room (``max_wait``), 330 s
            for the server's answer (``Timeouts.upload_reply``), and 10 s for all else.
        stall_timeout: Longest time in seconds without a byte of the body that a handler waits for.
            Then the browser gets 400, and the handler learns that the browser has disconnected.

    Raises:
        ConfigurationError: ``prefix`` is not the beginning of a path.

    """

    def __init__(
        self,
        app: Application,
        *,
        prefix: str | tuple[str, ...],
        shutdown_timeout: float = 360.0,
        stall_timeout: float = 30.0,
    ) -> None:
        self._prefixes = (prefix,) if isinstance(prefix, str) else tuple(prefix)
        if not self._prefixes or not all(one.startswith("/") for one in self._prefixes):
            problem, fix = "is not the beginning of a path", 'give one such as "/rooms/"'
            raise ConfigurationError("prefix", short_repr(prefix), problem, fix)
        self._app = app
        self._shutdown_timeout = shutdown_timeout
        self._stall_timeout = stall_timeout
        unknown = UploadOutcomeUnknown("", None, None, lock_free_in=shutdown_timeout)
        self._unknown = http_answer(unknown)
        self._lifespans: dict[Any, Lifespan] = {}  # of event loops, as a test may run two
        self._has_warned = False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a request, or run the lifespan."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif routes.is_upload(scope, self._prefixes):
            await self._serve(Request(scope, receive, send, self._stall_timeout))
        else:
            await self._app(scope, receive, send)

    async def _live(self, scope: Message, receive: Receive, send: Send) -> None:
        """Run the lifespan in a task group, which also runs the requests that upload."""

        async def receive_in_order() -> Message:
            begun.append(message := await receive())
            if message["type"] == "lifespan.shutdown":
                await lifespan.finish(self._shutdown_timeout)
            return message

        async def send_in_order(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                routes.warn_of_prefixes(scope.get("app", self._app), self._prefixes)
            is_last = message["type"].startswith("lifespan.shutdown.")
            if is_last and not lifespan.requests:
                last.append(message)  # until the group has ended: a server cancels what is left
            else:
                await send(message)

        loop = _running_loop()
        last, begun = list[Message](), list[Message]()
        error: BaseException | None = None
        routes.warn_of_order(scope.get("app"), Uploads.__name__)
        async with anyio.create_task_group() as group:
            lifespan = self._lifespans[loop] = Lifespan(group, loop)
            try:
                await self._app(scope, receive_in_order, send_in_order)
            except BaseException as raised:  # noqa: BLE001 - the group would wrap it
                if begun or not isinstance(raised, Exception):
                    error = raised
                else:  # Django, for example, knows no lifespans
                    await routes.stand_in(receive_in_order, send_in_order)
            finally:
                self._lifespans.pop(loop, None)
            lifespan.cancel()  # there is nothing left to upload with
            await lifespan.no_request_runs()
        for message in last:
            await send(message)
        if error is not None:
            raise error

    async def _serve(self, request: Request) -> None:
        """Let a request run in a task of the application, and wait for it in the server's."""
        lifespan = self._lifespans.get(_running_loop())
        if lifespan is None:
            self._warn_once()
            await request.run(self._app)
        elif lifespan.is_stopping:
            await request.cut(NOT_SENT)
        else:
            lifespan.start(request, self._app)
            await self._wait(request)

    async def _wait(self, request: Request) -> None:
        try:
            await request.ended.wait()
        except anyio.get_cancelled_exc_class():
            if not request.ended.is_set():
                if not await self._cut(request):
                    raise
                return  # with an answer the request has ended: there is nothing to cancel
        if request.was_cancelled:
            await self._cut(request)
        request.raise_error()

    async def _cut(self, request: Request) -> bool:
        return await request.cut(NOT_SENT if request.lacks_body else self._unknown)

    def _warn_once(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("no lifespan is run: uploads end with their requests", extra=_WEB)


def _running_loop() -> Any:
    return native(anyio.lowlevel.current_token())


@attrs.define(eq=False)
class Lifespan:
    """The requests that upload, in tasks that end with the application's lifespan."""

    _group: TaskGroup
    _loop: Any
    _tasks: set[asyncio.Task[None]] = attrs.field(factory=set, init=False)
    requests: set[Request] = attrs.field(factory=set, init=False)
    is_stopping: bool = attrs.field(default=False, init=False)
    """Shutdown has begun: nothing new begins."""

    def start(self, request: Request, app: Application) -> None:
        """Run a request in a task of its own.

        On asyncio it is not in the group, which would be cancelled by a handler that cancels its
        task, or that leaves a cancel scope open.
        """
        self.requests.add(request)
        if isinstance(self._loop, asyncio.AbstractEventLoop):
            task = self._loop.create_task(self._run(request, app))
            self._tasks.add(task)  # asyncio keeps weak references
            task.add_done_callback(self._tasks.discard)
        else:
            self._group.start_soon(self._run, request, app)

    async def _run(self, request: Request, app: Application) -> None:
        """Run a request. An exception that left this task would end all others, or the server."""
        try:
            await request.run(app)
        except BaseException as error:  # noqa: BLE001 - SystemExit of one handler is its own, too
            request.fail(error)
        finally:
            self.requests.discard(request)
            request.ended.set()

    async def finish(self, timeout: float) -> None:
        """Wait until no request runs; cancel those that take too long."""
        self.is_stopping = True
        if self.requests:
            text = "shutdown waits for %d uploading requests, at most %.0f s"
            logger.info(text, len(self.requests), timeout, extra=_WEB)
        with anyio.move_on_after(timeout):
            await self.no_request_runs()
        if self.requests:
            text = "shutdown cancels %d uploading requests, after %.0f s"
            logger.warning(text, len(self.requests), timeout, extra=_WEB)
        self.cancel()
        with anyio.move_on_after(CLEANUP_SECONDS):
            await self.no_request_runs()

    async def no_request_runs(self) -> None:
        """Wait until all that run now have ended."""
        for request in tuple(self.requests):
            await request.ended.wait()

    def cancel(self) -> None:
        """Cancel all requests."""
        for request in self.requests:
            request.task.cancel()


@attrs.define(eq=False)
class Request:
    """A request, between the server's task and the one in which the application handles it."""

    _scope: Message
    _receive: Receive
    _send: Send
    _stall_timeout: float
    task: anyio.CancelScope = attrs.field(factory=anyio.CancelScope, init=False)
    """Of the application's task."""
    ended: anyio.Event = attrs.field(factory=anyio.Event, init=False)
    was_cancelled: bool = attrs.field(default=False, init=False)
    """Not by the application itself."""
    lacks_body: bool = attrs.field(default=False, init=False)
    """The application has begun to read the body, and has not got all of it."""
    _has_body: bool = attrs.field(default=False, init=False)
    """It has got all of it, and its end."""
    _missing: float = attrs.field(init=False)
    """Bytes of the body that it has not got; infinite if no length was announced."""
    _reading: anyio.CancelScope | None = attrs.field(default=None, init=False)
    _is_answered: bool = attrs.field(default=False, init=False)
    """The answer has begun."""
    _has_answer: bool = attrs.field(default=False, init=False)
    """The answer is complete."""
    _is_cut: bool = attrs.field(default=False, init=False)
    """Between the application and the server nothing is passed on any more."""
    _error: Exception | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        length: bytes = dict(self._scope["headers"]).get(b"content-length", b"")
        self._missing = float(length) if length.isdigit() else math.inf  # any number of digits

    async def run(self, app: Application) -> None:
        """Let the application handle it, in the application's task."""
        with self.task:
            try:
                await app(self._scope, self.receive, self.send)
            except MeetingError as error:  # the client has logged it
                if self._is_answered:
                    raise
                await http_answer(error)(self._scope, self.receive, self.send)
        self.was_cancelled = self.task.cancelled_caught

    def fail(self, error: BaseException) -> None:
        """Keep what the application raised, unless it was cancelled from outside."""
        if isinstance(error, Exception):
            self._error = error
        elif anyio.current_effective_deadline() == -math.inf:
            self.was_cancelled = True
            return
        else:  # a server ends with some of these
            self._error = RuntimeError(f"the application raised {type(error).__name__}")
            self._error.__cause__ = error
        if self._is_cut:
            logger.error("a request failed after it was cut off", exc_info=error, extra=_WEB)

    def raise_error(self) -> None:
        """Raise what the application raised, in the server's task."""
        try:
            if self._error is not None:
                raise self._error
        finally:
            self._error = None  # its traceback has this frame

    async def receive(self) -> Message:
        """Receive for the application; that a browser disconnects after its body is hidden."""
        if self._has_body:
            await anyio.sleep_forever()
        self.lacks_body = True
        with anyio.move_on_after(self._stall_timeout) as self._reading:
            message = await self._receive()
            if not self._is_cut:
                self._has_body = message["type"] == "http.request" and not message.get("more_body")
                self._missing -= len(message.get("body", b""))
                self.lacks_body = self._missing > 0 and not self._has_body
                return message
        await self.cut(STALLED)  # unless it was cut before
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send for the application."""
        if not self._is_cut:
            self._is_answered = True
            await self._send(message)
            is_body = message["type"] == "http.response.body"
            self._has_answer = is_body and not message.get("more_body")

    async def cut(self, answer: HttpAnswer) -> bool:
        """Separate application and server; return whether the browser has a complete answer.

        If the application has not begun to answer, the browser gets this answer. The application
        gets nothing of the body that has not arrived by now.
        """
        is_free = not (self._is_answered or self._is_cut)
        self._is_cut = True
        if self._reading is not None:
            self._reading.cancel()
        if is_free:
            with anyio.move_on_after(CLEANUP_SECONDS, shield=True), contextlib.suppress(Exception):
                await answer(self._scope, self._receive, self._send)
                self._has_answer = True
        return self._has_answer
