"""The two kinds of call, each of which can be prepared afresh for every attempt."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Protocol

import anyio
import attrs

from meeting_async import _wire
from meeting_async._documents import HeldDocument
from meeting_async._multipart import (
    MultipartBody,
    MultipartPlan,
    plan_document,
    plan_link,
    probe_form,
)
from meeting_async._policies import Timeouts
from meeting_async._records import Request, SignedHeaders
from meeting_async._signing import Signer
from meeting_async._verdicts import Repeatability

Progress = Callable[[int], Awaitable[None]]
"""Called with the bytes of the document that the transport has taken so far."""

BeforeEnd = Callable[[], Awaitable[None]]
"""Called when the document is out and its closing boundary is not."""


class Operation(Protocol):
    """A call, without its attempts."""

    @property
    def path(self) -> str:
        """The method path."""
        ...

    @property
    def room_id(self) -> str | None:
        """The room it is about."""
        ...

    @property
    def label(self) -> str | None:
        """Name of the document."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the document."""
        ...

    @property
    def repeatability(self) -> Repeatability:
        """What may be repeated."""
        ...

    @property
    def upload(self) -> bool:
        """Whether a document goes to a room."""
        ...

    @property
    def is_spent(self) -> bool:
        """Whether there can be no other attempt, as the document came once and is gone."""
        ...

    def prepared(self, progress: Progress) -> AbstractAsyncContextManager[Request]:
        """Sign and open for one attempt; nothing stays open when the block ends."""
        ...

    async def probe(self) -> Request:
        """Return a small request that a locked room refuses like a large one."""
        ...


@attrs.frozen
class JsonOperation:
    """A JSON call: the body's bytes are made once, and are what is signed."""

    path: str
    url: str
    body: bytes = attrs.field(repr=False)
    room_id: str | None
    repeatability: Repeatability
    signer: Signer
    timeouts: Timeouts
    label: None = None
    size: int = 0
    upload: bool = False
    is_spent: bool = False

    @asynccontextmanager
    async def prepared(self, progress: Progress) -> AsyncGenerator[Request, None]:
        """Sign the body."""
        signed = await _signed(self.signer, self.body)
        headers = _wire.json_headers(signed, self.body)
        yield Request("POST", self.url, headers, self.body, self.timeouts, self.timeouts.reply)

    async def probe(self) -> Request:
        """There are no rooms to wait for."""
        raise NotImplementedError


@attrs.frozen
class UploadOperation:
    """An upload: the room's bytes are made once, and are what is signed and sent."""

    path: str
    url: str
    room_id: str
    room: bytes = attrs.field(repr=False)
    held: HeldDocument
    repeatability: Repeatability
    signer: Signer
    timeouts: Timeouts
    before_end: BeforeEnd | None = None
    upload: bool = True

    @property
    def label(self) -> str:
        """Name of the document."""
        return self.held.document.filename

    @property
    def size(self) -> int:
        """Bytes of the document, or of the link."""
        return self.held.measure.size

    @property
    def is_spent(self) -> bool:
        """Whether the document was a stream that is sent as it comes, and has begun to."""
        return self.held.is_spent

    @asynccontextmanager
    async def prepared(self, progress: Progress) -> AsyncGenerator[Request, None]:
        """Sign the room, open the document and plan the form around it."""
        signed = await _signed(self.signer, self.room)
        async with self.held.open() as reader:
            plan = self._plan()
            body = MultipartBody(plan, reader, progress, anyio.current_time, self.before_end)
            async with aclosing(body):
                yield self._request(signed, plan, body)

    async def probe(self) -> Request:
        """Make an upload of neither document nor link: some 300 bytes that put nothing anywhere.

        Interface section 4.2 rule 2 leaves the answer open; a locked room's is 409 (section 3).
        """
        signed = await _signed(self.signer, self.room)
        content_type, body = probe_form(boundary=secrets.token_hex(16))
        headers = _wire.upload_headers(
            signed, self.room, content_type=content_type, length=len(body)
        )
        return Request("POST", self.url, headers, body, self.timeouts, self.timeouts.reply)

    def _request(self, signed: SignedHeaders, plan: MultipartPlan, body: MultipartBody) -> Request:
        """Make the request in a frame of its own, whose locals no cancelled attempt shows."""
        headers = _wire.upload_headers(
            signed, self.room, content_type=plan.content_type, length=plan.length
        )
        reply_timeout = self.timeouts.upload_reply
        return Request("POST", self.url, headers, body, self.timeouts, reply_timeout)

    def _plan(self) -> MultipartPlan:
        # Fresh and unguessable for each attempt, so no document can be made to contain it.
        boundary = secrets.token_hex(16)
        document = self.held.document
        if document.link is not None:
            return plan_link(document.link, boundary=boundary)
        kind = document.content_type or "application/octet-stream"
        return plan_document(document.filename, kind, self.size, boundary=boundary)


async def _signed(signer: Signer, message: bytes) -> SignedHeaders:
    signed = signer.sign(message)
    if inspect.isawaitable(signed):
        signed = await signed
    if not isinstance(signed, SignedHeaders):
        raise TypeError(f"a signer must return SignedHeaders, not {type(signed).__name__}")
    return signed
