"""Which requests ``Uploads`` sees: paths as Starlette reads them, and warnings at the start."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from meeting_async.web._answers import Message

METHODS = frozenset({"POST", "PUT", "PATCH"})
"""Of requests that may upload."""


def is_upload(scope: Message, prefixes: tuple[str, ...]) -> bool:
    """Return whether a request may upload, below one of these prefixes.

    The root path is cut off only before a ``/``, as Starlette does it.
    """
    if scope["type"] != "http" or scope["method"] not in METHODS:
        return False
    path = str(scope["path"])
    rest = path.removeprefix(scope.get("root_path", ""))
    return (rest if rest[:1] in {"", "/"} else path).startswith(prefixes)


async def stand_in(
    receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Answer a server's lifespan for an application that knows none, such as Django."""
    is_over = False
    while not is_over:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        is_over = message["type"] == "lifespan.shutdown"


def warn_of_prefixes(app: Any, prefixes: tuple[str, ...]) -> None:
    """Warn of a prefix that no route has, if the application shows its routes."""
    heads = tuple(_heads(getattr(app, "routes", None)))
    for prefix in prefixes:
        if heads and not any(_is_below(prefix, *head) for head in heads):
            text = f"no route for POST, PUT or PATCH begins with prefix {prefix!r}"
            fix = "give how the path of the routes begins, without the root_path"
            warnings.warn(f"{text}, so Uploads does nothing; {fix}", RuntimeWarning, stacklevel=1)


def _is_below(prefix: str, head: str, is_whole: bool) -> bool:
    return head.startswith(prefix) or (not is_whole and prefix.startswith(head))


def _heads(routes: Iterable[Any] | None, mount: str = "") -> Iterator[tuple[str, bool]]:
    """Yield how each route begins that may upload, and whether that is its whole path.

    Starlette and Litestar have such routes; FastAPI keeps those of a router apart.
    """
    for route in routes or ():
        head, brace, _ = (mount + (getattr(route, "path", None) or "")).partition("{")
        kept_apart = tuple(getattr(route, "effective_route_contexts", tuple)())
        inner = kept_apart or (None if brace else getattr(route, "routes", None))
        methods = getattr(route, "methods", None)
        if inner:
            yield from _heads(inner, head)
        elif methods is None or METHODS & set(methods):
            yield head, not brace and methods is not None


def warn_of_order(starlette: Any, uploads: str) -> None:
    """Warn of Starlette's middlewares outside of ours that run us in a task group.

    If a request is cancelled, they end without a look at what we answer.
    """
    outside: list[str] = []
    for middleware in getattr(starlette, "user_middleware", ()):  # the outermost one is the first
        kinds = [kind.__name__ for kind in getattr(middleware.cls, "__mro__", ())]
        if uploads in kinds:
            break
        outside += kinds[:1] if "BaseHTTPMiddleware" in kinds else []
    else:
        return
    for name in outside:
        text = f"{name} is outside of Uploads and swallows its answers: add Uploads after it"
        warnings.warn(text, RuntimeWarning, stacklevel=1)
