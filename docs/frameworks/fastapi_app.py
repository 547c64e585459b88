"""FastAPI: a form's file, a streamed body and batches go on to rooms.

``uvicorn --app-dir docs/frameworks --timeout-graceful-shutdown 30 fastapi_app:app``
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Header, HTTPException, Request, Response, UploadFile
from fastapi.responses import JSONResponse, StreamingResponse

from batches import EVENT_STREAM, Batches
from meeting_async import Document, MeetingClient
from meeting_async.errors import MeetingError
from meeting_async.web import HttpAnswer, Uploads, http_answer

MAX_WAIT = 20.0
"""Seconds to wait for a locked room: proxies time out after a minute."""


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """One client for the application; its settings come from ``MEETING_*`` variables."""
    async with MeetingClient.from_env() as client, Batches.open(client) as batches:
        yield {"client": client, "batches": batches}


app = FastAPI(lifespan=lifespan)
app.add_middleware(Uploads, prefix="/rooms/")


@app.post("/rooms/{room_id}/documents")
async def upload(request: Request, room_id: str, document: UploadFile) -> Response:
    """Pass the file of a form on to a room. FastAPI has put it into a temporary file by now."""
    client: MeetingClient = request.state.client
    receipt = await client.upload_whiteboard_file(room_id, document, max_wait=MAX_WAIT)
    return respond(http_answer(receipt))


@app.put("/rooms/{room_id}/documents/{filename}")
async def stream(request: Request, room_id: str, filename: str) -> Response:
    """Pass the body on as it comes, through no file and no memory."""
    if not request.headers.get("content-length", "").isdecimal():
        raise HTTPException(411)
    client: MeetingClient = request.state.client
    document = Document.from_stream(
        request.stream(),
        filename,
        size=int(request.headers["content-length"]),
        replayable=False,  # so there is one attempt
    )
    receipt = await client.upload_whiteboard_file(room_id, document, max_wait=MAX_WAIT)
    return respond(http_answer(receipt))


@app.post("/batches")
async def begin(request: Request) -> Response:
    """Begin a batch in the background."""
    batch_id = await request.state.batches.begin(await request.body())
    return JSONResponse({"batch": batch_id, "events": f"/batches/{batch_id}/events"}, 202)


@app.get("/batches/{batch_id}/events")
async def events(
    request: Request, batch_id: str, last_event_id: str | None = Header(None)
) -> Response:
    """Send the events of a batch so far, then new ones as they come."""
    told = await request.state.batches.listen(batch_id, last_event_id)
    if told is None:
        raise HTTPException(404)
    return StreamingResponse(told, headers=EVENT_STREAM)


@app.exception_handler(MeetingError)
async def refuse(_request: Request, error: Any) -> Response:
    """Turn errors of the client into statuses, for all routes at once."""
    return respond(http_answer(error))


def respond(answer: HttpAnswer) -> Response:
    """Make a response of an answer."""
    return JSONResponse(answer.body, answer.status, answer.headers)
