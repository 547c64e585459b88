"""Litestar: a form's file, a streamed body and batches go on to rooms.

``uvicorn --app-dir docs/frameworks --timeout-graceful-shutdown 30 litestar_app:app``
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from litestar import Litestar, Request, Response, get, post, put
from litestar.datastructures import State, UploadFile
from litestar.enums import RequestEncodingType
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import Body, FromPath
from litestar.response import Stream

from batches import EVENT_STREAM, Batches
from meeting_async import Document, MeetingClient
from meeting_async.errors import MeetingError
from meeting_async.web import HttpAnswer, Uploads, http_answer

MAX_WAIT = 20.0
"""Seconds to wait for a locked room: proxies time out after a minute."""

MAX_BODY = 128 * 1024**2
"""Bytes of a request; Litestar's own limit of 10 MB is below that of most meeting servers."""

Form = Annotated[dict[str, UploadFile], Body(media_type=RequestEncodingType.MULTI_PART)]


@asynccontextmanager
async def lifespan(site: Litestar) -> AsyncIterator[None]:
    """One client for the application; its settings come from ``MEETING_*`` variables."""
    async with MeetingClient.from_env() as client, Batches.open(client) as batches:
        site.state.client, site.state.batches = client, batches
        yield


@post("/rooms/{room_id:str}/documents", request_max_body_size=MAX_BODY)
async def upload(state: State, room_id: FromPath[str], data: Form) -> Response[Any]:
    """Pass the file of a form on to a room. Litestar has put it into a temporary file by now."""
    client: MeetingClient = state.client
    if "document" not in data:
        raise HTTPException("the form has no file named document", status_code=422)
    receipt = await client.upload_whiteboard_file(room_id, data["document"], max_wait=MAX_WAIT)
    return respond(http_answer(receipt))


@put("/rooms/{room_id:str}/documents/{filename:str}", request_max_body_size=MAX_BODY)
async def stream(
    request: Request[Any, Any, State], state: State, room_id: FromPath[str], filename: FromPath[str]
) -> Response[Any]:
    """Pass the body on as it comes, through no file and no memory."""
    if not request.headers.get("content-length", "").isdecimal():
        raise HTTPException(status_code=411)
    client: MeetingClient = state.client
    document = Document.from_stream(
        request.stream(),
        filename,
        size=int(request.headers["content-length"]),
        replayable=False,  # so there is one attempt
    )
    receipt = await client.upload_whiteboard_file(room_id, document, max_wait=MAX_WAIT)
    return respond(http_answer(receipt))


@post("/batches", status_code=202)
async def begin(request: Request[Any, Any, State], state: State) -> dict[str, str]:
    """Begin a batch in the background."""
    batch_id = await state.batches.begin(await request.body())
    return {"batch": batch_id, "events": f"/batches/{batch_id}/events"}


@get("/batches/{batch_id:str}/events")
async def events(
    request: Request[Any, Any, State], state: State, batch_id: FromPath[str]
) -> Stream:
    """Send the events of a batch so far, then new ones as they come."""
    told = await state.batches.listen(batch_id, request.headers.get("last-event-id"))
    if told is None:
        raise NotFoundException
    media_type = EVENT_STREAM["Content-Type"]
    rest = {name: value for name, value in EVENT_STREAM.items() if name != "Content-Type"}
    return Stream(told, media_type=media_type, headers=rest)


def refuse(_request: Request[Any, Any, State], error: MeetingError) -> Response[Any]:
    """Turn errors of the client into statuses, for all routes at once."""
    return respond(http_answer(error))


def respond(answer: HttpAnswer) -> Response[Any]:
    """Make a response of an answer."""
    return Response(answer.body, status_code=answer.status, headers=answer.headers)


site = Litestar(
    [upload, stream, begin, events],
    lifespan=[lifespan],
    exception_handlers={MeetingError: refuse},
    openapi_config=None,
)
app = Uploads(site, prefix="/rooms/")
