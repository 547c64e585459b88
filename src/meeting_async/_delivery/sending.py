"""Sending the document of one attempt: its form, its progress, and how much of it was sent."""

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
    """Whether a wait for ``"alone"`` lasts until no other upload of the batch runs."""

    @property
    def follows_sessions(self) -> bool:
        """Whether a document that may have gone with its session is sent to the next one."""
        return True

    def sending(self) -> None:
        """Called before each time the document is sent, after the questions."""

    def waiting(self, kind: WaitKind, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """Return a context manager for a wait; ``seconds`` is ``None`` if not known.

        It releases the permit, and acquires it again at its end.
        """
        return nullcontext()

    async def may_arrive(self, document: Prepared, session: str, since: int | None) -> None:
        """Called after the document's last byte, before the closing boundary.

        Also when evidence shows it in another session than it was sent to. ``session`` and
        ``since``: see :class:`~meeting_async._delivery.history.Step`.
        """

    def accepted_before(self) -> Iterable[Accepted]:
        """Return documents that were accepted before; the server may show them."""
        return ()


@attrs.frozen
class Asked:
    """The answers to the questions of an attempt."""

    refusal: Step | None = None
    """The step that ends the attempt; ``None``: the document may be sent."""
    is_free: bool = False
    """Whether a probe was answered *free*."""
    session: str = ""
    """Id of the session in the room; ``""``: the server did not name it."""
    date: int | None = None
    """When the check was answered: Unix time by the server's clock. ``None``: not told, or of no
    use, as another document of that name may still arrive."""
    peer: object = None
    """``Reply.peer`` of the check."""


@attrs.define(eq=False)
class Sending:
    """The document of one attempt."""

    call: Call
    document: Prepared
    hooks: UploadHooks
    body: MultipartBody = attrs.field(init=False)
    began: float = math.inf
    """When sending began, on the event loop's clock; ``inf``: not yet."""
    asked: Asked = attrs.field(factory=Asked)
    body_seconds: float | None = None
    """Seconds until the whole document was sent; ``None`` if it was not."""

    def __attrs_post_init__(self) -> None:
        self.body = self.document.form(self.progress, self._may_arrive, self.call.now)

    async def _may_arrive(self) -> None:
        await self.hooks.may_arrive(self.document, self.asked.session, self.asked.date)

    def begin(self, asked: Asked) -> None:
        """Called after the questions, when sending begins."""
        self.began, self.asked = self.call.now(), asked

    def progress(self, sent: int) -> None:
        """Called with the bytes of the document sent so far."""
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
        """Return the step of this attempt, from its answer or its error."""
        count = self._count(answer, error)
        # The caller's own transport may not tell that an answer was early.
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

        ``ConnectFailed`` means none. It is not believed if the transport took the whole form.
        """
        told = answer.sent if answer else getattr(error, "sent", None)
        count = self.body.taken if told is None else int(told)
        is_local = isinstance(error, ResourceExhausted)  # perhaps in the middle of the document
        is_failed = isinstance(error, ConnectFailed) and not is_local
        is_certain = is_failed and not self.body.is_complete(count)
        return 0 if is_certain else count

    def _sent(self, count: int) -> Sent:
        if count == 0:
            return Sent.NOTHING
        return Sent.ALL if self.body.is_complete(count) else Sent.PART
