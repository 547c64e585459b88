"""An application with one honest route, and with handlers that do what they should not.

It runs in a process of its own or in the test's. ``/rooms/<room>/documents`` uploads a document;
``/rooms/-/<misdeed>`` is a row of the table. ``WITHOUT_UPLOADS`` leaves the middleware away.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from meeting_async import MeetingClient
from meeting_async.web import Uploads, http_answer

Handler = Callable[[Any, Any], Awaitable[None]]
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
BODY = {"type": "http.response.body", "body": b"ok"}


class OwnBaseError(BaseException):
    """What some frameworks end a request with."""


async def answer(send: Any) -> None:
    """Answer completely."""
    await send(START)
    await send(BODY)


# --- cancellations that the handler causes itself ------------------------------------------------


async def await_a_cancelled_task(_receive: Any, _send: Any) -> None:
    """Somebody else has cancelled what it waits for."""
    task = asyncio.ensure_future(asyncio.sleep(60))
    asyncio.get_running_loop().call_later(0.01, task.cancel)
    await task


async def cancel_itself(_receive: Any, send: Any) -> None:
    """Cancel its own task, and notice at the next await."""
    _this_task().cancel()
    await anyio.sleep(1)
    await answer(send)


async def cancel_itself_at_the_end(_receive: Any, send: Any) -> None:
    """Cancel its own task and return, so that nothing raises."""
    await answer(send)
    _this_task().cancel()


async def be_cancelled_later(_receive: Any, send: Any) -> None:
    """A callback cancels it amid its work."""
    asyncio.get_running_loop().call_soon(_this_task().cancel)
    await anyio.sleep(1)
    await answer(send)


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def raise_a_kept_cancellation(_receive: Any, _send: Any) -> None:
    """Raise outside of a scope what its cancellation has raised inside."""
    kept: list[BaseException] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class() as error:
            kept.append(error)
    raise kept[0]


# --- scopes that it leaves open, messages that no server takes ------------------------------------


async def leave_a_scope_open(_receive: Any, send: Any) -> None:
    """As an async generator does that is not closed."""
    anyio.CancelScope().__enter__()
    await answer(send)


async def leave_a_cancelled_scope_open(_receive: Any, _send: Any) -> None:
    """The same, amid its cancellation."""
    scope = anyio.CancelScope()
    scope.__enter__()
    scope.cancel()
    await anyio.lowlevel.checkpoint()


async def leave_a_group_open(_receive: Any, send: Any) -> None:
    """A group with a task in it."""
    group = await anyio.create_task_group().__aenter__()
    group.start_soon(anyio.sleep, 0.05)
    await answer(send)


async def fail_in_a_group(_receive: Any, _send: Any) -> None:
    """One of its tasks fails, the others are cancelled."""
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        group.start_soon(_raise_own_base_error)


async def _raise_own_base_error() -> None:
    raise OwnBaseError


async def say_nothing(_receive: Any, _send: Any) -> None:
    """Return without an answer."""


async def answer_twice(_receive: Any, send: Any) -> None:
    """Begin a second answer after the first."""
    await answer(send)
    await answer(send)


async def send_what_is_no_message(_receive: Any, send: Any) -> None:
    """Send something else."""
    await send("200 OK")


async def send_an_unknown_message(_receive: Any, send: Any) -> None:
    """Send a message of another protocol."""
    await send({"type": "websocket.accept"})


async def receive_in_a_lost_task(receive: Any, send: Any) -> None:
    """Leave a task behind that reads the rest of the request."""
    task = asyncio.ensure_future(receive())
    await answer(send)
    await asyncio.sleep(0)
    task.cancel()


# --- the table -----------------------------------------------------------------------------------


def _raising(error: Callable[[], BaseException], *, answered: bool = False) -> Handler:
    async def handler(_receive: Any, send: Any) -> None:
        if answered:
            await answer(send)
        raise error()

    return handler


def _group(error: Callable[[], BaseException]) -> Callable[[], BaseException]:
    return lambda: BaseExceptionGroup("several", [error(), LookupError("as well")])


RAISED: dict[str, Callable[[], BaseException]] = {
    "an-error": LookupError,
    "cancelled": asyncio.CancelledError,
    "cancelled-in-a-group": _group(asyncio.CancelledError),
    "generator-exit": GeneratorExit,
    "system-exit": SystemExit,
    "system-exit-in-a-group": _group(SystemExit),
    "keyboard-interrupt": KeyboardInterrupt,
    "own-base-error": OwnBaseError,
    "stop-iteration": StopIteration,
    "stop-async-iteration": StopAsyncIteration,
}
MISDEEDS: dict[str, Handler] = {
    **{name: _raising(error) for name, error in RAISED.items()},
    **{f"{name}-after-the-answer": _raising(e, answered=True) for name, e in RAISED.items()},
    **{
        handler.__name__.replace("_", "-"): handler
        for handler in (
            raise_a_kept_cancellation,
            leave_a_scope_open,
            leave_a_cancelled_scope_open,
            fail_in_a_group,
            say_nothing,
            answer_twice,
            send_what_is_no_message,
            send_an_unknown_message,
        )
    },
}
OF_ASYNCIO: dict[str, Handler] = {
    handler.__name__.replace("_", "-"): handler
    for handler in (
        await_a_cancelled_task,
        cancel_itself,
        cancel_itself_at_the_end,
        leave_a_group_open,
        be_cancelled_later,
        receive_in_a_lost_task,
    )
}
"""Those that need a task of asyncio; a group that is left open ends trio itself."""


# --- the application -----------------------------------------------------------------------------


class Misdeed:
    """A route that calls its handler as it is: no part of Starlette is between."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        """Read the request, and do it."""
        await receive()
        await self._handler(receive, send)


@asynccontextmanager
async def lifespan(_app: Any) -> AsyncIterator[dict[str, Any]]:
    """Open one client for the application, and keep its hundreds of tracebacks out of a pipe."""
    logging.disable()
    async with MeetingClient.from_env() as client:
        yield {"client": client}


async def put_into_room(request: Request) -> JSONResponse:
    """Upload a form's document."""
    async with request.form() as form:
        room_id = request.path_params["room_id"]
        upload = request.state.client.upload_whiteboard_file
        receipt = await upload(room_id, form["document"])
        return JSONResponse(http_answer(receipt).body)


ALL = {**MISDEEDS, **OF_ASYNCIO}
app = Starlette(
    lifespan=lifespan,
    middleware=[] if "WITHOUT_UPLOADS" in os.environ else [Middleware(Uploads, prefix="/rooms/")],
    routes=[
        *(Route(f"/rooms/-/{name}", Misdeed(h), methods=["POST"]) for name, h in ALL.items()),
        Route("/rooms/{room_id}/documents", put_into_room, methods=["POST"]),
    ],
)
