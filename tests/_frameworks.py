"""One web application per framework: each hands the file of a form on to a meeting's room.

Real frameworks parse a real form, so that what reaches our client are the objects a user has in
hand. ``deliver`` is what the handler does with them.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable
from typing import Any

from django.conf import settings as django_settings  # type: ignore[import-untyped]

Deliver = Callable[[Any], Awaitable[object]]
Application = Callable[..., Awaitable[None]]


def starlette(deliver: Deliver) -> Any:
    """Take the form's file from the request."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def upload(request: Request) -> Response:
        async with request.form() as form:
            await deliver(form["document"])
        return Response("done")

    return Starlette(routes=[Route("/", upload, methods=["POST"])])


def fastapi(deliver: Deliver) -> Any:
    """Take the form's file as a parameter."""
    from fastapi import FastAPI, UploadFile

    async def upload(document: UploadFile) -> str:
        await deliver(document)
        return "done"

    upload.__annotations__ = {"document": UploadFile, "return": str}
    application = FastAPI()
    application.post("/")(upload)
    return application


def fastapi_later(deliver: Deliver) -> Any:
    """Hand the file on when the request is over, as a background task that was told too late."""
    from fastapi import FastAPI, UploadFile

    kept: list[UploadFile] = []

    async def upload(document: UploadFile) -> str:
        kept.append(document)
        return "done"

    async def after() -> str:
        await deliver(kept[0])
        return "done"

    upload.__annotations__ = {"document": UploadFile, "return": str}
    application = FastAPI()
    application.post("/")(upload)
    application.post("/after")(after)
    return application


def litestar(deliver: Deliver) -> Any:
    """Take the form's file as the body."""
    from litestar import Litestar, post
    from litestar.datastructures import UploadFile
    from litestar.enums import RequestEncodingType
    from litestar.params import Body

    async def upload(data: Any) -> str:
        await deliver(data["document"])
        return "done"

    body = Body(media_type=RequestEncodingType.MULTI_PART)
    from typing import Annotated

    upload.__annotations__ = {"data": Annotated[dict[str, UploadFile], body], "return": str}
    return Litestar([post("/", status_code=200)(upload)])


def quart(deliver: Deliver) -> Any:
    """Take the form's file from the request."""
    from quart import Quart, request

    application = Quart(__name__)

    @application.post("/")
    async def upload() -> str:
        await deliver((await request.files)["document"])
        return "done"

    return application


def django(deliver: Deliver) -> Any:
    """Take the form's file from the request, in an asynchronous view."""
    if not django_settings.configured:
        django_settings.configure(DEFAULT_CHARSET="utf-8")
    from django.apps import apps  # type: ignore[import-untyped]
    from django.core.handlers.asgi import ASGIHandler  # type: ignore[import-untyped]
    from django.http import HttpRequest, HttpResponse  # type: ignore[import-untyped]
    from django.test.utils import override_settings  # type: ignore[import-untyped]
    from django.urls import path  # type: ignore[import-untyped]

    apps.populate([])

    async def upload(request: HttpRequest) -> HttpResponse:
        await deliver(request.FILES["document"])
        return HttpResponse("done")

    urls: Any = types.ModuleType("urls")
    urls.urlpatterns = [path("", upload)]

    async def application(*args: Any) -> None:
        overridden: Any = override_settings(
            ROOT_URLCONF=urls,
            ALLOWED_HOSTS=["*"],
            FILE_UPLOAD_MAX_MEMORY_SIZE=100_000,
            MIDDLEWARE=[],
            INSTALLED_APPS=[],
        )
        with overridden:
            await ASGIHandler()(*args)

    return application
