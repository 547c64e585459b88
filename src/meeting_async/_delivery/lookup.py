"""What became of a document: looking for it on the server, once. ``decide`` says when and why."""

from __future__ import annotations

from typing import Any

import attrs

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
"""Message of a receipt without an answer."""

_VERDICTS = {
    Answer.FOUND: Verdict.FOUND,
    Answer.NOT_FOUND: Verdict.NOT_FOUND,
    Answer.UNTOLD: Verdict.UNKNOWN,
}


async def finding(call: Call, document: Accepted) -> Finding:
    """Ask once whether a document is in its session; one that is found is remembered."""
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


@attrs.frozen
class Lookup:
    """Looks for the document of an upload."""

    attempts: Attempts
    hooks: UploadHooks

    async def ask(self, sent: Step, *, is_free: bool = False) -> Step:
        """Ask whether a document is in the session to which it was sent.

        ``is_free``: a probe has just said that the room is free.
        """
        call, began = self.attempts.call, self.attempts.call.now()
        call.phase = "looking for the document on the server"
        name, since = call.document or "", sent.since or 0
        document = Accepted(call.room_id, name, sent.sent, sent.session, since)
        found = await finding(call, document)
        verdict, reason, answer, proves = _VERDICTS[found.answer], found.reason, None, False
        server = call.session.server
        if verdict is Verdict.FOUND:
            answer = ParsedReply(200, {"msg": FOUND})
        elif verdict is Verdict.NOT_FOUND:
            await self._believe(sent)
            proves = proves_loss(sent, server, self.attempts.limits, call.now(), is_free=is_free)
            reason += "" if server.shows_files else ", and this server has shown no document so far"
        facts: Any = {"reason": reason, "proves": proves, "session": sent.session}
        return step("evidence", began, call.now(), verdict, answer, **facts)

    async def _believe(self, sent: Step) -> None:
        """Find out whether the server shows documents at all, before *not found* means anything."""
        call = self.attempts.call
        server = call.session.server
        for document in tuple(self.hooks.accepted_before()):  # more may be read meanwhile
            if server.shows_files:
                return
            await finding(call, document)
        is_late = call.now() - sent.ended >= CONFIRM_SECONDS
        if server.shows_files is None and sent.verdict is Verdict.ACCEPTED and is_late:
            server.shows_files = False
            logger.warning(
                "%s shows no stored files: delivery='exactly_once' finds out nothing there",
                call.session.host,
                extra={"action": "Evidence", "server_host": call.session.host},
            )
