"""Asking for evidence of a document once. ``decide`` says when."""

from __future__ import annotations

from typing import Any

from meeting_async._delivery.attempts import Attempts
from meeting_async._delivery.call import Call
from meeting_async._delivery.decide import CONFIRM_SECONDS, NO_SESSION, proves_loss
from meeting_async._delivery.evidence import Accepted, Answer, Finding, Sought, finding_of
from meeting_async._delivery.history import Step, step
from meeting_async._delivery.sending import UploadHooks
from meeting_async._log import logger
from meeting_async._models import Verdict
from meeting_async._protocol.replies import ParsedReply

FOUND = "no answer came, but the server shows the document"
"""``msg`` of a receipt, if the server gave no answer."""

_VERDICTS = {
    Answer.FOUND: Verdict.FOUND,
    Answer.NOT_FOUND: Verdict.NOT_FOUND,
    Answer.UNTOLD: Verdict.UNKNOWN,
}


async def finding(call: Call, document: Accepted) -> Finding:
    """Ask once whether a document is in its session. If it is, this server shows files."""
    if not document.session:
        return Finding(Answer.UNTOLD, NO_SESSION)
    session = call.session
    sought = Sought(
        base_url=session.base.removesuffix("/auth"),
        room_id=document.room_id,
        session=document.session,
        name=document.name,
        size=document.size,
        since=document.since,
        headers=((b"Room-Id", document.room_id.encode()), *session.default_headers),
        reply_timeout=call.options.timeouts.reply,
    )
    found = await finding_of(call.options.evidence, sought, session.transmit)
    if found.answer is Answer.FOUND:
        session.server.shows_files = True
    return found


async def evidence_of(
    attempts: Attempts, hooks: UploadHooks, sent: Step, *, is_free: bool = False
) -> Step:
    """Ask whether the document of an upload is in ``sent.session``.

    ``is_free``: a probe has just shown that the room is free.
    """
    call, began = attempts.call, attempts.call.now()
    call.phase = "looking for the document on the server"
    name, since = call.document or "", sent.since or 0
    document = Accepted(call.room_id, name, sent.sent, sent.session, since)
    found = await finding(call, document)
    verdict, reason, answer, proves = _VERDICTS[found.answer], found.reason, None, False
    server = call.session.server
    if verdict is Verdict.FOUND:
        answer = ParsedReply(200, {"msg": FOUND})
    elif verdict is Verdict.NOT_FOUND:
        await _believe(call, hooks, sent, began)
        proves = proves_loss(sent, server, attempts.limits, began, is_free=is_free)
        reason += "" if server.shows_files else ", and this server has shown no document so far"
    facts: Any = {"reason": reason, "proves": proves, "session": sent.session}
    return step("evidence", began, call.now(), verdict, answer, **facts)


async def _believe(call: Call, hooks: UploadHooks, sent: Step, asked_at: float) -> None:
    """Find out whether the server shows files at all: otherwise *not found* means nothing.

    If it does not show a document that it accepted ``CONFIRM_SECONDS`` before it was asked, it
    shows none.
    """
    server = call.session.server
    for document in tuple(hooks.accepted_before()):  # may grow meanwhile
        if server.shows_files:
            return
        await finding(call, document)
    is_late = asked_at - sent.ended >= CONFIRM_SECONDS
    if server.shows_files is None and sent.verdict is Verdict.ACCEPTED and is_late:
        server.shows_files = False
        logger.warning(
            "%s shows no stored files: delivery='exactly_once' finds out nothing there",
            call.session.host,
            extra={"action": "Evidence", "server_host": call.session.host},
        )
