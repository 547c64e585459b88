"""The document of one attempt: its form, its progress, and how much of it was sent."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import ClassVar

import attrs

from meeting_async._delivery.call import Call
from meeting_async._delivery.decide import WaitKind
from meeting_async._delivery.evidence import Accepted
from meeting_async._delivery.history import Step, step
from meeting_async._documents.prepared import MultipartBody, Prepared
from meeting_async._protocol.replies import ParsedReply
from meeting_async._protocol.verdicts import Sent, read
from meeting_async.errors import ConnectFailed, ResourceExhausted


class UploadHooks:
    """What a batch or a queue does around the attempts of an upload.

    A hook that raises ends the upload.
    """

    can_be_alone: ClassVar[bool] = False
    """Whether a wait for ``"alone"`` ends when no other upload of the batch runs."""

    def sending(self) -> None:
        """Called when the questions are answered, before the document is sent."""

    def waiting(self, kind: WaitKind, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Return a context manager for a wait of so many seconds, if that is known.

        It gives back the permit, and acquires it again when the wait has ended.
        """
        return nullcontext()

    async def may_arrive(self, document: Prepared, session: str, since: int | None) -> None:
        """Called after the document's last byte, before the closing boundary.

        ``session`` and ``since``: see :class:`~meeting_async._delivery.history.Step`.
        """

    def accepted_before(self) -> Iterable[Accepted]:
        """Return documents that earlier runs say were accepted; the server may show them."""
        return ()


@attrs.frozen
class Asked:
    """What the questions of an attempt were answered."""

    refusal: Step | None = None
    """What ends the attempt; ``None``: the document may be sent."""
    is_free: bool = False
    """Whether a probe was answered *free*."""
    session: str = ""
    """The session that runs in the room, if the server has named it."""
    date: int | None = None
    """When the check was answered: Unix time by the server's clock."""
    peer: object = None
    """Who has answered the check."""


@attrs.define(eq=False)
class Sending:
    """The document of an attempt."""

    call: Call
    document: Prepared
    hooks: UploadHooks
    body: MultipartBody = attrs.field(init=False)
    began: float = math.inf
    """When its request was made."""
    asked: Asked = attrs.field(factory=Asked)
    body_seconds: float | None = None

    def __attrs_post_init__(self) -> None:
        self.body = self.document.form(self.progress, self._may_arrive, self.call.now)

    async def _may_arrive(self) -> None:
        await self.hooks.may_arrive(self.document, self.asked.session, self.asked.date)

    def begin(self, asked: Asked) -> None:
        """Say that the questions are answered."""
        self.began, self.asked = self.call.now(), asked

    def progress(self, sent: int) -> None:
        """Called with the bytes of the document sent so far; a link has none."""
        size = self.call.size
        if size is None:
            self.call.phase = "waiting for the reply"
            return
        if sent == size:
            self.call.phase = "waiting for the reply"
            self.body_seconds = self.call.now() - self.began
        self.call.emit_progress(sent, size)

    def step(
        self, *, answer: ParsedReply | None = None, error: BaseException | None = None
    ) -> Step:
        """Return what has happened."""
        count = self._count(answer, error)
        # A transport of the caller's may not tell that an answer was early.
        if answer is not None and count < self.body.length:
            answer = attrs.evolve(answer, early=True)
        return step(
            "document",
            self.began,
            self.call.now(),
            read(answer, self._sent(count), "document"),
            answer,
            error,
            sent=self.body.document_bytes(count) if self.call.size else 0,
            body_seconds=self.body_seconds,
            after_free=self.asked.is_free,
            session=self.asked.session,
            since=self.asked.date,
            is_consumed=self.document.is_consumed,
        )

    def _count(self, answer: ParsedReply | None, error: BaseException | None) -> int:
        """Bytes of the form that may have been sent: what the transport says, or all it took.

        Without a connection none were, unless the transport took the whole form before that: then
        it may be wrong about the connection, too.
        """
        told = answer.sent if answer else getattr(error, "sent", None)
        count = self.body.taken if told is None else int(told)
        is_local = isinstance(error, ResourceExhausted)  # perhaps amid the document
        is_failed = isinstance(error, ConnectFailed) and not is_local
        is_certain = is_failed and not self.body.is_complete(count)
        return 0 if is_certain else count

    def _sent(self, count: int) -> Sent:
        if count == 0:
            return Sent.NOTHING
        return Sent.ALL if self.body.is_complete(count) else Sent.PART
