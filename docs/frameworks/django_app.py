"""Django: a form's file, a streamed body and batches go on to rooms.

``uvicorn --app-dir docs/frameworks --timeout-graceful-shutdown 30 django_app:app``

In your own project ``settings`` are a module, and ``app`` stands in ``asgi.py``.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.utils.decorators import async_only_middleware

from batches import EVENT_STREAM, Batches
from meeting_async import Document, MeetingClient
from meeting_async.errors import MeetingError
from meeting_async.web import HttpAnswer, Uploads, http_answer

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_WAIT = 20.0
"""Seconds to wait for a locked room: proxies time out after a minute."""

settings.configure(
    SECRET_KEY=os.environ.get("DJANGO_SECRET_KEY", "for development only"),
    ALLOWED_HOSTS=os.environ.get("DJANGO_ALLOWED_HOSTS", "localhost,127.0.0.1").split(","),
    ROOT_URLCONF=__name__,
    MIDDLEWARE=[f"{__name__}.refusals"],  # and yours; for browsers, CsrfViewMiddleware too
    FILE_UPLOAD_HANDLERS=["django.core.files.uploadhandler.TemporaryFileUploadHandler"],
)


# --- views ---------------------------------------------------------------------------------------


async def upload(request: HttpRequest, room_id: str) -> HttpResponse:
    """Pass the file of a form on to a room. Django parses it into a temporary file."""
    files = await sync_to_async(lambda: request.FILES)()  # reads, parses, writes: not on the loop
    document = files.get("document")
    if not isinstance(document, UploadedFile):
        return HttpResponse("the form has no file named document", status=422)
    client: MeetingClient = of(request, "client")
    receipt = await client.upload_whiteboard_file(room_id, document, max_wait=MAX_WAIT)
    return respond(http_answer(receipt))


async def begin(request: HttpRequest) -> HttpResponse:
    """Begin a batch in the background."""
    batches: Batches = of(request, "batches")
    batch_id = await batches.begin(request.body)
    return JsonResponse({"batch": batch_id, "events": f"/batches/{batch_id}/events"}, status=202)


async def events(request: HttpRequest, batch_id: str) -> HttpResponse | StreamingHttpResponse:
    """Send the events of a batch so far, then new ones as they come."""
    batches: Batches = of(request, "batches")
    told = await batches.listen(batch_id, request.headers.get("Last-Event-ID"))
    if told is None:
        return HttpResponse(status=404)
    return StreamingHttpResponse(told, headers=EVENT_STREAM)


urlpatterns = [
    path("rooms/<room_id>/documents", upload),
    path("batches", begin),
    path("batches/<batch_id>/events", events),
]


def of(request: HttpRequest, name: str) -> Any:
    """Return something of the application: its lifespan's state comes with every request."""
    return request.scope["state"][name]


def respond(answer: HttpAnswer) -> HttpResponse:
    """Make a response of an answer."""
    return JsonResponse(answer.body, status=answer.status, headers=answer.headers)


@async_only_middleware
def refusals(get_response: Callable[[HttpRequest], Awaitable[HttpResponse]]) -> Any:
    """Make a middleware that turns what the client raises into statuses, for all views at once."""

    async def middleware(request: HttpRequest) -> HttpResponse:
        return await get_response(request)

    def process_exception(_request: HttpRequest, error: Exception) -> HttpResponse | None:
        return respond(http_answer(error)) if isinstance(error, MeetingError) else None

    middleware.process_exception = process_exception  # type: ignore[attr-defined]
    return middleware


# --- beside Django -------------------------------------------------------------------------------


async def lifespan(scope: Message, receive: Receive, send: Send) -> None:
    """One client for the application; its settings come from ``MEETING_*`` variables."""
    await receive()  # lifespan.startup
    phase = "startup"
    try:
        async with MeetingClient.from_env() as client, Batches.open(client) as batches:
            scope["state"].update(client=client, batches=batches)
            await send({"type": "lifespan.startup.complete"})
            phase = "shutdown"
            await receive()  # lifespan.shutdown
        await send({"type": "lifespan.shutdown.complete"})
    except Exception as error:  # noqa: BLE001 - or uvicorn would serve without a lifespan
        await send({"type": f"lifespan.{phase}.failed", "message": repr(error)})


async def stream(scope: Message, receive: Receive) -> HttpAnswer:
    """Pass the body on as it comes, through no file and no memory.

    Django writes a body to disk before any view begins, so this stands beside it, in plain ASGI:
    without your middleware, so check here who is asking.
    """
    _, _, room_id, _, filename = scope["path"].split("/")
    size = dict(scope["headers"]).get(b"content-length", b"")
    if not size.isdigit():
        return HttpAnswer(411, {"delivered": False, "detail": "Length Required"}, {})
    client: MeetingClient = scope["state"]["client"]
    document = Document.from_stream(
        body(receive),
        filename,
        size=int(size),
        replayable=False,  # so there is one attempt
    )
    receipt = await client.upload_whiteboard_file(room_id, document, max_wait=MAX_WAIT)
    return http_answer(receipt)


async def body(receive: Receive) -> AsyncGenerator[bytes, None]:
    """Yield a request's body."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the browser went away")
        more = message.get("more_body", False)
        yield message.get("body", b"")


django = get_asgi_application()
STREAMED = re.compile(r"/rooms/[^/]+/documents/[^/]+")


async def site(scope: Message, receive: Receive, send: Send) -> None:
    """Put a lifespan and a streaming route beside Django, which has neither."""
    if scope["type"] == "lifespan":
        await lifespan(scope, receive, send)
    elif scope.get("method") == "PUT" and STREAMED.fullmatch(scope["path"]):
        answer = await stream(scope, receive)
        await answer(scope, receive, send)
    else:
        await django(scope, receive, send)


app = Uploads(site, prefix="/rooms/")
