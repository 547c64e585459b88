"""What a row keeps of a document that may have arrived, so that any worker can settle that."""

from __future__ import annotations

import json

from meeting_async._batch.results import UploadOutcome
from meeting_async._delivery.history import Step, left_behind
from meeting_async.procrastinate._table import Row


def marked(row: Row, name: str | None, session: str, since: int | None) -> str:
    """Return the history of a row whose document is about to be complete."""
    return json.dumps({**row.history, **_sent(name, session, since)})


def settled(outcome: UploadOutcome, document: Step | None) -> str | None:
    """Return the history of a row with an outcome: if it was accepted, the server may show it."""
    if document is None:
        return None
    session = outcome.session if outcome.delivered else document.session
    return json.dumps(_sent(outcome.document, session, document.since)) if session else None


def _sent(name: str | None, session: str, since: int | None) -> dict[str, object]:
    return {"sent": {"name": name, "session": session, "since": since}}


def is_left(row: Row) -> bool:
    """Return whether the run that has marked the document did not come to say what followed."""
    return row.state == "sent" and "sent" in row.history


def left_by(row: Row, now: float, settle_after: float) -> Step:
    """Return the document that a lost worker has left; it was marked when it was complete."""
    reason = "its worker was lost after the document may have been complete"
    sent = row.history.get("sent") or {}
    facts = {"session": sent.get("session", ""), "since": sent.get("since")}
    return left_behind(reason, now, row.sent_ago or 0.0, settle_after, sent=row.size or 0, **facts)
