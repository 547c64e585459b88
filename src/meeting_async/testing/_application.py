"""The ASGI application: routes, the door that counts every body, and exception handlers."""

import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ._answers import AnswerFault
from ._calls import CALLS, answer_call, parse
from ._faults import BASE_PATH, UPLOAD_PATH
from ._forms import Form, receive_form
from ._hosting import HOSTED_PATH
from ._interruptions import Interruption
from ._replies import Refusal, failure
from ._requests import Entry
from ._state import State
from ._uploads import answer_upload

_ENTRY = "meeting_async.entry"

T = TypeVar("T")


def application(state: State) -> ASGIApp:
    """Build the application that serves ``state``."""
    routes = [
        Route(BASE_PATH + UPLOAD_PATH, _upload_endpoint(state), methods=["POST"]),
        *(Route(BASE_PATH + path, _call_endpoint(state, path), methods=["POST"]) for path in CALLS),
        Route(HOSTED_PATH + "/{path:path}", state.hosted.answer, methods=["GET"]),
    ]
    router = Router(routes, redirect_slashes=False, default=_unknown_path(state))
    return Door(state, ExceptionMiddleware(router, handlers={Refusal: _refuse}))


@attrs.frozen(eq=False)
class Door:
    """What every request passes: the log, and the limit of the whole body."""

    state: State
    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let an HTTP request in; anything else gets a router without routes."""
        if scope["type"] != "http":
            await Router()(scope, receive, send)
            return
        entry = self.state.log.open(scope, self.state.clock.now())
        scope[_ENTRY] = entry
        # After a disconnect the body will never be complete and nobody waits for an answer.
        with contextlib.suppress(ClientDisconnect):
            await self.app(scope, self._counting(scope, receive, entry), _noting(send, entry))

    def _counting(self, scope: Scope, receive: Receive, entry: Entry) -> Receive:
        limit = self.state.settings.max_body_size
        declared = Request(scope).headers.get("content-length", "")
        interruption = self.state.faults.take(entry.path, Interruption)

        async def counting() -> Message:
            nonlocal interruption
            if declared.isdecimal() and int(declared) > limit:
                raise _too_large()  # before anything is read
            message = await receive()
            entry.body_bytes += len(message.get("body", b""))
            if entry.body_bytes > limit:
                raise _too_large()
            if interruption and interruption.is_due(message, entry.body_bytes):
                due, interruption = interruption, None
                await due.strike()
            return message

        return counting


def _noting(send: Send, entry: Entry) -> Send:
    async def noting(message: Message) -> None:
        if message["type"] == "http.response.start":
            entry.status = message["status"]
        await send(message)

    return noting


def _too_large() -> HTTPException:
    return HTTPException(413, "Request Entity Too Large", headers={"connection": "close"})


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)  # noqa: S101 - narrows what Starlette cannot type
    return failure(error.http_status, error.status_code, error.msg)


def _endpoint(
    state: State,
    read: Callable[[Request], Awaitable[T]],
    answer: Callable[[Request, T], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Read the whole body, then play what is scripted or else answer."""

    async def endpoint(request: Request) -> Response:
        received = await read(request)
        path = request.scope[_ENTRY].path
        fault = state.faults.take(path, AnswerFault)
        treat = functools.partial(answer, request, received)
        return await (fault.answer(path, treat) if fault else treat())

    return endpoint


def _upload_endpoint(state: State) -> Callable[[Request], Awaitable[Response]]:
    async def read(request: Request) -> Form:
        request.scope[_ENTRY].room_id = request.headers.get("room-id")
        return await receive_form(request, keep_content=state.settings.keep_content)

    return _endpoint(state, read, functools.partial(answer_upload, state))


def _call_endpoint(state: State, path: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request, body: bytes) -> Response:
        return answer_call(state, request, body, CALLS[path])

    return _endpoint(state, _read_call, answer)


async def _read_call(request: Request) -> bytes:
    body = await request.body()
    room_id = (parse(body) or {}).get("room_id")
    request.scope[_ENTRY].room_id = room_id if isinstance(room_id, str) else None
    return body


def _unknown_path(state: State) -> ASGIApp:
    async def answer(_: Request, __: bytes) -> Response:
        raise HTTPException(404)

    endpoint = _endpoint(state, _read_call, answer)

    async def unknown(scope: Scope, receive: Receive, send: Send) -> None:
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)

    return unknown
