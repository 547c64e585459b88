"""Faults of the answer: the whole body has arrived when they are asked for it."""

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

import anyio
import attrs
from attrs.validators import ge
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ._faults import UPLOAD_PATH, Cut, Fault, method_path
from ._replies import Refusal

HeaderPairs: TypeAlias = Mapping[str, str] | list[tuple[str, str]] | tuple[tuple[str, str], ...]
Treat: TypeAlias = Callable[[], Awaitable[Response]]

#: The server's own refusals by ``status_code``: their HTTP status in the answer to an upload.
REFUSALS: Mapping[str, int] = MappingProxyType(
    {
        "CONFLICT": 409,
        "INTERNAL_SERVER_ERROR": 500,
        "INVALID_API_KEY": 401,
        "INVALID_PARAMETERS": 400,
        "INVALID_TOKEN_OR_SIGNATURE": 401,
        "MISSING_REQUIRED_PARAMETER": 400,
        "ROOM_NOT_ACTIVE": 400,
        "ROOM_NOT_FOUND": 400,
        "USER_NOT_ACTIVE": 400,
    }
)
#: JSON calls answer these with 200 (see `_calls.py`).
_POLITE = frozenset({"ROOM_NOT_ACTIVE", "ROOM_NOT_FOUND"})


@attrs.frozen(kw_only=True)
class AnswerFault(Fault):
    """Decides what a request gets, with or without its normal treatment."""

    async def answer(self, path: str, treat: Treat) -> Response:
        """Return the answer to a request to ``path``; ``treat`` does what is normal."""
        raise NotImplementedError


@attrs.frozen(kw_only=True)
class ScriptedReply(AnswerFault):
    """A reply instead of the treatment, ``delay`` seconds late."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]
    delay: float = attrs.field(validator=ge(0))

    async def answer(self, path: str, treat: Treat) -> Response:
        """Wait for the delay and return the reply."""
        await anyio.sleep(self.delay)
        response = Response(self.body, self.status)
        for name, value in self.headers:
            response.raw_headers.append((name.lower().encode("latin-1"), value.encode("latin-1")))
        return response


@attrs.frozen(kw_only=True)
class ScriptedRefusal(AnswerFault):
    """One of the server's own `REFUSALS`, instead of the treatment."""

    status_code: str = attrs.field(validator=attrs.validators.in_(tuple(REFUSALS)))
    msg: str

    async def answer(self, path: str, treat: Treat) -> Response:
        """Refuse with the HTTP status that the path gives this refusal."""
        is_polite = self.status_code in _POLITE and method_path(path) != UPLOAD_PATH
        raise Refusal(200 if is_polite else REFUSALS[self.status_code], self.status_code, self.msg)


@attrs.frozen(kw_only=True)
class LostReply(AnswerFault):
    """The normal treatment, whose outcome nobody is told."""

    async def answer(self, path: str, treat: Treat) -> Response:
        """Do it, and cut the connection where the answer would go out."""
        with contextlib.suppress(Refusal, HTTPException):
            await treat()
        raise Cut


@attrs.frozen(kw_only=True)
class LateReply(AnswerFault):
    """The normal treatment, answered ``seconds`` late."""

    seconds: float = attrs.field(validator=ge(0))

    async def answer(self, path: str, treat: Treat) -> Response:
        """Do it, wait, and pass on what came of it."""
        try:
            return await treat()
        finally:
            await anyio.sleep(self.seconds)


def scripted_reply(
    status: int,
    *,
    body: bytes,
    json_value: object,
    headers: HeaderPairs,
    path: str | None,
    times: int,
    delay: float,
) -> ScriptedReply:
    """Build a `ScriptedReply` from the arguments of `Script.reply_next`."""
    pairs = tuple(headers if isinstance(headers, (list, tuple)) else headers.items())
    if json_value is not ...:
        if body:
            raise TypeError("a scripted reply has either a body or json")
        body = json.dumps(json_value, ensure_ascii=False).encode()
        pairs = (("content-type", "application/json"), *pairs)
    return ScriptedReply(
        status=status, body=body, headers=pairs, path=path, times=times, delay=delay
    )
