"""Starlette: a form's file, a streamed body and batches go on to rooms.

``uvicorn --app-dir docs/frameworks --timeout-graceful-shutdown 30 starlette_app:app``
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from batches import EVENT_STREAM, Batches
from meeting_async import Document, MeetingClient
from meeting_async.errors import MeetingError
from meeting_async.web import HttpAnswer, Uploads, http_answer

MAX_WAIT = 20.0
"""Seconds to wait for a locked room: proxies time out after a minute."""


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[dict[str, Any]]:
    """One client for the application; its settings come from ``MEETING_*`` variables."""
    async with MeetingClient.from_env() as client, Batches.open(client) as batches:
        yield {"client": client, "batches": batches}


async def upload(request: Request) -> Response:
    """Pass the file of a form on to a room. Starlette parses it into a temporary file."""
    client: MeetingClient = request.state.client
    room_id: str = request.path_params["room_id"]
    async with request.form(max_files=1) as form:  # closes the file at the end
        document = form.get("document")
        if not isinstance(document, UploadFile):
            raise HTTPException(422, "the form has no file named document")
        receipt = await client.upload_whiteboard_file(room_id, document, max_wait=MAX_WAIT)
    return respond(http_answer(receipt))


async def stream(request: Request) -> Response:
    """Pass the body on as it comes, through no file and no memory."""
    if not request.headers.get("content-length", "").isdecimal():
        raise HTTPException(411)
    client: MeetingClient = request.state.client
    document = Document.from_stream(
        request.stream(),
        request.path_params["filename"],
        size=int(request.headers["content-length"]),
        replayable=False,  # so there is one attempt
    )
    receipt = await client.upload_whiteboard_file(
        request.path_params["room_id"], document, max_wait=MAX_WAIT
    )
    return respond(http_answer(receipt))


async def begin(request: Request) -> Response:
    """Begin a batch in the background."""
    batch_id = await request.state.batches.begin(await request.body())
    return JSONResponse({"batch": batch_id, "events": f"/batches/{batch_id}/events"}, 202)


async def events(request: Request) -> Response:
    """Send the events of a batch so far, then new ones as they come."""
    last_seen = request.headers.get("last-event-id")
    told = await request.state.batches.listen(request.path_params["batch_id"], last_seen)
    if told is None:
        raise HTTPException(404)
    return StreamingResponse(told, headers=EVENT_STREAM)


async def refuse(_request: Request, error: Any) -> Response:
    """Turn errors of the client into statuses, for all routes at once."""
    return respond(http_answer(error))


async def nobody_there(_request: Request, _error: Exception) -> Response:
    """End a request without a browser, and without a traceback in the log."""
    return Response(status_code=499)


def respond(answer: HttpAnswer) -> Response:
    """Make a response of an answer."""
    return JSONResponse(answer.body, answer.status, answer.headers)


app = Starlette(
    routes=[
        Route("/rooms/{room_id}/documents", upload, methods=["POST"]),
        Route("/rooms/{room_id}/documents/{filename}", stream, methods=["PUT"]),
        Route("/batches", begin, methods=["POST"]),
        Route("/batches/{batch_id}/events", events),
    ],
    exception_handlers={MeetingError: refuse, ClientDisconnect: nobody_there},
    middleware=[Middleware(Uploads, prefix="/rooms/")],
    lifespan=lifespan,
)
