"""Histories for tables of decisions."""

from __future__ import annotations

from typing import Any

import attrs

from meeting_async import LockPolicy, RetryPolicy, Verdict
from meeting_async._delivery.decide import (
    Done,
    Limits,
    RetrySafety,
    Stop,
    Wait,
    asks_first,
    decide,
    error_of,
)
from meeting_async._delivery.history import History, Step, step
from meeting_async._delivery.room_wait import RoomWait
from meeting_async._delivery.server import Server
from meeting_async._models import UNREACHED
from meeting_async._protocol.replies import ParsedReply
from meeting_async.errors import ConnectFailed, ConnectionLost, MeetingError

NEVER, _, _, BUSY, REFUSED, THROTTLED, FAILED, _, ACCEPTED, _, _ = Verdict

LARGE, SMALL = 30 * 1024**2, 1000
RANDOMS = (0.0, 0.5, 0.999)
STATUS = {BUSY: 409, REFUSED: 400, THROTTLED: 429, FAILED: 500, ACCEPTED: 200}


def record_of(code: str) -> dict[str, Any]:
    """Make the server's own record of a failure."""
    return {"status": False, "msg": "in use", "status_code": code}


def seen(
    kind: Any,
    verdict: Verdict,
    began: float = 0.0,
    took: float = 0.0,
    *,
    answer: ParsedReply | None = None,
    error: BaseException | None = None,
    hint: float | None = None,
    **facts: Any,
) -> Step:
    """Make a step with the reply or the error that belongs to it."""
    if answer is None and error is None and verdict in STATUS:
        answer = ParsedReply(STATUS[verdict], record_of("CONFLICT"))
    elif answer is None and error is None:
        error = (ConnectFailed if verdict is NEVER else ConnectionLost)("no line", "meet.test:443")
    if answer is not None and hint is not None:
        answer = attrs.evolve(answer, retry_after=hint)
    return step(kind, began, began + took, verdict, answer, error, **facts)


@attrs.define(kw_only=True)
class Story:
    """An upload or a call, told step by step, with what ``_delivery/call.py`` does after each."""

    limits: Limits
    server: Server = attrs.field(factory=Server)
    history: History = attrs.field(factory=History)
    now: float = 0.0

    @property
    def asks(self) -> bool:
        """Whether an empty form comes before the document."""
        return asks_first(self.history, self.limits, self.server)

    @property
    def room(self) -> RoomWait:
        """How long the upload has waited for its room."""
        return self.limits.waiting(self.history)

    def after(
        self,
        verdict: Verdict,
        kind: str | None = None,
        at: float | None = None,
        *,
        took: float = 0.0,
        random: float = 0.5,
        **facts: Any,
    ) -> Any:
        """Take in a step that begins now, and say what follows."""
        began = self.now if at is None else at
        usual = "document" if self.limits.is_upload else "call"
        self.history.add(seen(kind or usual, verdict, began, took, **facts), call_began=0.0)
        self.now, last = began + took, self.history.last
        self.server.learn(last, was_retried=False)
        decision = decide(self.history, self.limits, self.server, self.now, random)
        if verdict in UNREACHED:
            error = error_of(self.history, self.limits, self.server, self.now)
            self.server.mark_away(began, error)
        if isinstance(decision, Wait) and decision.kind == "retry":
            self.server.spend_retry()
        return decision

    def waits(self, decision: Done | Stop | Wait) -> bool:
        """Let the time of a wait pass; tell whether it is one."""
        if isinstance(decision, Wait):
            self.now += decision.seconds
        return isinstance(decision, Wait)

    def paused(self, seconds: float, kind: Any = "place") -> None:
        """Wait for a place, or behind another upload."""
        waited = Step(kind=kind, began=self.now, ended=self.now + seconds)
        self.history.add(waited, call_began=0.0)
        self.now += seconds


def story(
    safety: RetrySafety = RetrySafety.AT_MOST_ONCE, *, server: Server | None = None, **settings: Any
) -> Story:
    """Begin the story of an upload of 30 MiB, unless told otherwise."""
    size = LARGE if Limits(safety=safety).is_upload else None
    facts: dict[str, Any] = {"size": size, "began": 0.0}
    kinds: dict[str, type] = {"lock": LockPolicy, "retry": RetryPolicy}
    for name, kind in kinds.items():
        fields = attrs.fields_dict(kind).keys() & settings.keys()
        facts[name] = kind(**{field: settings.pop(field) for field in fields})
    return Story(limits=Limits(safety=safety, **facts | settings), server=server or Server())


def seconds_of(decision: object) -> float:
    """Return for how long is waited."""
    assert isinstance(decision, Wait), decision
    return decision.seconds


def stopped(decision: object) -> MeetingError:
    """Take the error out of a decision to stop."""
    assert isinstance(decision, Stop), decision
    return decision.error
