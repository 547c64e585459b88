"""Quart: a form's file, a streamed body and batches go on to rooms.

``uvicorn --app-dir docs/frameworks --timeout-graceful-shutdown 30 quart_app:app``
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any

from quart import Quart, Response, abort, current_app, jsonify, request
from quart.asgi import ASGIHTTPConnection
from quart.wrappers import Request
from quart.wrappers.request import Body

from batches import EVENT_STREAM, Batches
from meeting_async import Document, MeetingClient
from meeting_async.errors import MeetingError
from meeting_async.web import HttpAnswer, Uploads, http_answer

MAX_WAIT = 20.0
"""Seconds to wait for a locked room: proxies time out after a minute."""

# --- one chunk at a time -------------------------------------------------------------------------


class SteppedBody(Body):
    """A body that takes the next chunk when the last was read: Quart's own piles them up."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.wants_more = asyncio.Event()
        self.wants_more.set()
        self._is_wanted_whole = False

    def append(self, data: bytes) -> None:
        """Take a chunk."""
        if data and not self._is_wanted_whole:
            self.wants_more.clear()
        super().append(data)

    async def __anext__(self) -> bytes:
        data = await super().__anext__()
        self.wants_more.set()
        return data

    def __await__(self) -> Generator[Any, None, Any]:
        self._is_wanted_whole = True
        self.wants_more.set()
        return super().__await__()


class SteppedRequest(Request):
    """A request with such a body."""

    body_class: type[Body] = SteppedBody


class SteppedConnection(ASGIHTTPConnection):
    """A connection that is read no faster than its request's body is."""

    async def handle_messages(self, request: Request, receive: Any) -> None:
        """Hold back every message until it is wanted."""

        async def when_wanted() -> Any:
            if isinstance(request.body, SteppedBody):
                await request.body.wants_more.wait()
            return await receive()

        await super().handle_messages(request, when_wanted)


# --- the application -----------------------------------------------------------------------------


site = Quart(__name__)
app = Uploads(site, prefix="/rooms/")
site.request_class = SteppedRequest
site.asgi_http_class = SteppedConnection
site.config.update(
    MAX_CONTENT_LENGTH=128 * 1024**2,  # bytes; Quart's own limit is 16 MiB
    BODY_TIMEOUT=None,  # seconds for the whole body; `stall_timeout` of Uploads is better
    RESPONSE_TIMEOUT=None,  # a stream of events lasts as long as its batch
)


@site.while_serving
async def lifespan() -> AsyncGenerator[None, None]:
    """One client for the application; its settings come from ``MEETING_*`` variables."""
    async with MeetingClient.from_env() as client, Batches.open(client) as batches:
        site.extensions.update(client=client, batches=batches)
        yield


def client() -> MeetingClient:
    """Return the application's client."""
    found: MeetingClient = current_app.extensions["client"]
    return found


@site.post("/rooms/<room_id>/documents")
async def upload(room_id: str) -> Response:
    """Pass the file of a form on to a room. Quart parses it into a temporary file."""
    document = (await request.files).get("document")
    if document is None:
        abort(422, "the form has no file named document")
    receipt = await client().upload_whiteboard_file(room_id, document, max_wait=MAX_WAIT)
    return respond(http_answer(receipt))


@site.put("/rooms/<room_id>/documents/<filename>")
async def stream(room_id: str, filename: str) -> Response:
    """Pass the body on as it comes, through no file and no memory."""
    if request.content_length is None:
        abort(411)
    document = Document.from_stream(
        request.body,
        filename,
        size=request.content_length,
        replayable=False,  # so there is one attempt
    )
    receipt = await client().upload_whiteboard_file(room_id, document, max_wait=MAX_WAIT)
    return respond(http_answer(receipt))


@site.post("/batches")
async def begin() -> tuple[Response, int]:
    """Begin a batch in the background."""
    batches: Batches = current_app.extensions["batches"]
    batch_id = await batches.begin(await request.body)
    return jsonify(batch=batch_id, events=f"/batches/{batch_id}/events"), 202


@site.get("/batches/<batch_id>/events")
async def events(batch_id: str) -> Response:
    """Send the events of a batch so far, then new ones as they come."""
    batches: Batches = current_app.extensions["batches"]
    told = await batches.listen(batch_id, request.headers.get("Last-Event-ID"))
    if told is None:
        abort(404)
    return Response(told, headers=EVENT_STREAM)


@site.errorhandler(MeetingError)
async def refuse(error: MeetingError) -> Response:
    """Turn errors of the client into statuses, for all routes at once."""
    return respond(http_answer(error))


def respond(answer: HttpAnswer) -> Response:
    """Make a response of an answer."""
    response = jsonify(answer.body)
    response.status_code = answer.status
    response.headers.update(answer.headers)
    return response
