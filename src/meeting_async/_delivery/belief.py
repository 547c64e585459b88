"""Asking a server for documents, and whether its *not found* can be believed at all."""

from __future__ import annotations

from collections.abc import Iterable

from meeting_async._delivery.call import Call
from meeting_async._delivery.decide import NO_SESSION
from meeting_async._delivery.evidence import Accepted, Answer, Finding, Sought, finding_of


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


async def believe(call: Call, candidates: Iterable[Accepted]) -> None:
    """Ask for documents that were accepted, until the server shows one: it shows files, then."""
    for document in tuple(candidates):  # more may be read meanwhile
        if call.session.server.shows_files:
            return
        await finding(call, document)
