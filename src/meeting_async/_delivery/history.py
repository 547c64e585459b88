"""What happened in an upload or a JSON call: a list of steps (sans-I/O).

Every decision is a function of this list; there are no counters. Times are seconds of the event
loop's clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

from meeting_async._models import UNREACHED, Attempt, Verdict, count_of
from meeting_async._protocol.replies import ParsedReply
from meeting_async._text import one_line
from meeting_async.errors import RequestRefused, RoomBusy, TransportError, UploadOutcomeUnknown

Kind = Literal["check", "probe", "document", "evidence", "call", "queue", "place", "session"]
"""A question, a document, evidence, or a JSON call; or a wait: behind another upload of this
application (``queue``), for a permit of the batch or one of ``max_connections`` places (``place``),
or until a session runs in the room (``session``)."""

PAUSES = {"place", "session"}
"""Waits that are not for the room's lock."""

MAX_ATTEMPTS = 100
"""Above this many, attempts that did not reach the server are dropped."""


@attrs.define(kw_only=True)
class Step:
    """One request or one wait. A question after which the upload goes on is not in a history.

    Only :meth:`forget` changes a step.
    """

    kind: Kind
    began: float
    ended: float
    verdict: Verdict | None = None
    """``None`` for a wait."""
    status: int | None = None
    """HTTP status, if there was a reply."""
    reason: str = ""
    """What was seen, in a few words."""
    sent: int = 0
    """Bytes of the document that may have been sent."""
    body_seconds: float | None = None
    """Seconds until the whole document was sent; ``None`` if it was not."""
    after_free: int = 0
    """How many documents were sent right after a probe that was answered *free*: 0 or 1, more only
    in a merged step."""
    session: str = ""
    """Id of the session that the check named, or of which evidence was asked for; ``""``: not
    known."""
    since: int | None = None
    """Unix time by the server's clock: a file of the document's name that was stored then, or
    later, is this document. ``None`` if that cannot be told."""
    count: int = 1
    """Number of steps merged into this one."""
    proves: bool = False
    """Whether evidence *not found* proves that the document is not there, and will not come."""
    is_consumed: bool = False
    """Whether the document is a stream that was read and cannot be read again."""
    answer: ParsedReply | None = None
    error: BaseException | None = None
    """The exception, if there is no answer. Only the last step of a running call has these two."""

    def forget(self) -> None:
        """Drop reply and exception: they may be large, and a traceback keeps the document."""
        self.answer = self.error = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began

    @property
    def is_stale(self) -> bool:
        """Whether the server may have restarted since the check."""
        return isinstance(self.error, TransportError) and self.error.stale

    @property
    def hint(self) -> float | None:
        """``Retry-After`` of the answer, in seconds."""
        return self.answer.retry_after if self.answer else None

    @property
    def is_attempt(self) -> bool:
        """Whether it is a document, a JSON call, or a question without a valid answer."""
        if self.kind == "evidence":
            return False
        if self.kind in {"check", "probe"}:
            return self.verdict in {*UNREACHED, Verdict.THROTTLED}
        return self.verdict is not None


def step(
    kind: Kind,
    began: float,
    ended: float,
    verdict: Verdict,
    answer: ParsedReply | None = None,
    error: BaseException | None = None,
    reason: str = "",
    **facts: Any,
) -> Step:
    """Make a step from what came back."""
    return Step(
        kind=kind,
        began=began,
        ended=ended,
        verdict=verdict,
        status=answer.status if answer else None,
        reason=reason or _reason(answer, error),
        answer=answer,
        error=error,
        **facts,
    )


def _reason(answer: ParsedReply | None, error: BaseException | None) -> str:
    if answer is not None:
        return f"HTTP {answer.status} ({answer.msg})"
    reason = getattr(error, "reason", None) or str(error)
    return one_line(str(reason)) or type(error).__name__


@attrs.define(eq=False)
class History:
    """The steps of a call, or of all calls of a job."""

    steps: list[Step] = attrs.field(factory=list)
    attempts: list[Attempt] = attrs.field(factory=list)
    """The attempts, as users see them; not all of a long outage (``MAX_ATTEMPTS``)."""
    was_sent: bool = False
    """Whether an earlier run of the job may have delivered the document."""
    answer: ParsedReply | None = None
    """The answer that accepted the document. What comes after it does not change the outcome."""

    def add(self, new: Step, *, call_began: float) -> None:
        """Add a step. When the room is locked or the server away, earlier steps are merged."""
        self.forget_reply()
        if new.is_attempt:
            self.attempts.append(_attempt(self.attempted + 1, new, call_began))
            self._drop_attempt()
        if new.verdict is Verdict.FOUND or (
            new.kind == "document" and new.verdict is Verdict.ACCEPTED
        ):
            self.answer = self.answer or new.answer
        if new.verdict is Verdict.BUSY:
            self._shorten()
        self.steps.append(new)
        if new.verdict in UNREACHED:
            self._shorten_outage()

    def forget_reply(self) -> None:
        """Drop what only decisions about the last step need."""
        if self.steps:
            self.steps[-1].forget()

    def _drop_attempt(self) -> None:
        """Drop an attempt that did not reach the server; a day of outage has thousands."""
        if len(self.attempts) > MAX_ATTEMPTS:
            middle = enumerate(self.attempts[1:-1], 1)
            idle = (at for at, one in middle if one.verdict in UNREACHED and not one.bytes_sent)
            for at in itertools.islice(idle, 1):
                del self.attempts[at]

    def _shorten_outage(self) -> None:
        """Merge the steps between the first and the last one of an outage."""
        first = next(at for at, one in enumerate(self.steps) if one is self.unreached[0])
        self.steps[first + 1 : -1] = _merged(self.steps[first + 1 : -1])

    def _shorten(self) -> None:
        """Merge steps of which only sums and the last one count: a wait of a day has thousands.

        The first 409 stays: the age of the lock counts from it. Steps up to the last failure are
        merged apart from later ones, because decisions ask what came in a row.
        """
        kept = (
            number for number in range(len(self.steps), 0, -1) if _is_kept(self.steps[number - 1])
        )
        start = next(kept, 0)
        some = self.steps[start:]
        locked = next((at for at, one in enumerate(some) if one.verdict is Verdict.BUSY), len(some))
        rest = some[locked + 1 :]
        failed = next((at for at in range(len(rest), 0, -1) if _is_failure(rest[at - 1])), 0)
        parts = some[:locked], rest[:failed], rest[failed:]
        before, between, after = map(_merged, parts)
        self.steps[start:] = [*before, *some[locked : locked + 1], *between, *after]

    @property
    def attempted(self) -> int:
        """How many attempts there were."""
        return count_of(self.attempts)

    @property
    def last(self) -> Step:
        """The last step that is not a wait."""
        return next(one for one in reversed(self.steps) if one.verdict is not None)

    def in_a_row(self, *verdicts: Verdict) -> list[Step]:
        """Return the steps with these verdicts at the end, oldest first.

        Waits in between do not count, nor do locked probes if ``PARTIAL`` is wanted.
        """
        found = []
        for one in reversed(self.steps):
            if one.verdict in verdicts:
                found.append(one)
            elif one.verdict is not None and not (Verdict.PARTIAL in verdicts and _is_locked(one)):
                break
        return found[::-1]

    @property
    def unreached(self) -> list[Step]:
        """The steps at the end that did not reach the server, oldest first."""
        return self.in_a_row(*UNREACHED)

    @property
    def failed_to_reach(self) -> int:
        """How many steps did not reach the server; some may be merged."""
        return sum(one.count for one in self.unreached)

    @property
    def in_doubt(self) -> Step | None:
        """The last document of unknown outcome, unless evidence proves that it is not there."""
        for one in reversed(self.steps):
            if one.proves:
                return None
            if is_unknown(one):
                return one
        return None

    @property
    def unknown_since(self) -> float | None:
        """When the last document that may have arrived was sent; ``None``: there is none."""
        doubt = self.in_doubt or self._gone
        return None if doubt is None else doubt.ended

    @property
    def _gone(self) -> Step | None:
        """A document of unknown outcome whose session has ended: it may have been there."""
        sent: Step | None = None
        for one in self.steps:
            if is_unknown(one):
                sent = one
            elif one.proves and sent is not None and one.session != sent.session:
                return sent
        return None

    @property
    def unconfirmed(self) -> Step | None:
        """The last document, if the server has accepted it."""
        return self.document if self.answer is not None else None

    @property
    def document(self) -> Step | None:
        """The last document that was sent, whatever the outcome."""
        return next((one for one in reversed(self.steps) if one.kind == "document"), None)

    @property
    def failed_conversions(self) -> int:
        """How often the server has failed to convert the document."""
        return sum(map(is_failed_conversion, self.steps))

    @property
    def session(self) -> str:
        """Id of the session of the last document or evidence; ``""``: not known."""
        sent = (one for one in reversed(self.steps) if one.kind in {"document", "evidence"})
        return next((one.session for one in sent), "")

    @property
    def may_have_arrived(self) -> bool:
        """Whether a document was accepted, or its outcome is unknown, also in an earlier run."""
        return self.was_sent or self.answer is not None or self.unknown_since is not None

    @property
    def is_room_taken(self) -> bool:
        """Whether the room was found locked, or the document may have locked it."""
        return any(map(takes_room, self.steps))

    # --- how it ended ----------------------------------------------------------------------------

    def verdict(self, error: BaseException | None) -> Verdict:
        """Return the verdict on the whole call, which ended with ``error``, if any."""
        if error is None or self.answer is not None:
            return Verdict.ACCEPTED
        if self.unknown_since is not None or isinstance(error, UploadOutcomeUnknown):
            return Verdict.UNKNOWN
        if isinstance(error, RoomBusy):
            return Verdict.BUSY
        if isinstance(error, RequestRefused):
            return Verdict.REFUSED
        verdicts = (one.verdict for one in reversed(self.steps) if one.verdict is not None)
        return next(verdicts, Verdict.NEVER_SENT)

    def unknown(
        self, reason: str, now: float, *, size: int | None, window: float
    ) -> UploadOutcomeUnknown:
        """Return the error for a document that may have arrived.

        ``size``: its bytes, ``None`` for a link; ``window``: seconds of the longest lock.
        """
        if self.attempts and self.attempts[-1].verdict is not Verdict.UNKNOWN:
            reason = f"an earlier attempt was lost, then: {reason}"
        sent = max((attempt.bytes_sent for attempt in self.attempts), default=0)
        elapsed = now - (self.unknown_since or 0.0)
        return UploadOutcomeUnknown(
            reason, size, sent if size is not None else None, max(0.0, window - elapsed)
        )


def _is_locked(one: Step) -> bool:
    return one.kind == "probe" and one.verdict is Verdict.BUSY


def _is_failure(one: Step) -> bool:
    """Return whether an attempt ended before its document: no connection or no valid answer."""
    is_late = one.verdict is Verdict.THROTTLED and one.kind in {"check", "probe"}
    return is_late or one.verdict in UNREACHED


def _is_kept(one: Step) -> bool:
    """Return whether a step is never merged."""
    return not (one.verdict in {None, Verdict.BUSY} or _is_failure(one))


def _merged(steps: Iterable[Step]) -> list[Step]:
    """Merge alike steps into one each, at the place of the last one, with the seconds of all.

    Documents that got 409 keep the seconds of the last one only; locked probes are dropped.
    """
    found: dict[object, Step] = {}
    for one in steps:
        if _is_locked(one):
            continue
        alike = one.kind, one.verdict, bool(one.after_free)
        if earlier := found.pop(alike, None):
            seconds = 0.0 if one.verdict is Verdict.BUSY else earlier.seconds
            count = one.after_free + earlier.after_free
            facts: Any = {"after_free": count, "count": one.count + earlier.count}
            one = attrs.evolve(one, began=one.began - seconds, **facts)  # noqa: PLW2901
        found[alike] = one
    return [*found.values()]


def is_unknown(one: Step) -> bool:
    """Return whether a step is a document of unknown outcome."""
    return one.kind == "document" and one.verdict is Verdict.UNKNOWN


def is_failed_conversion(one: Step) -> bool:
    """Return whether the server received the document, and failed to convert it."""
    return one.kind == "document" and one.verdict is Verdict.FAILED


def takes_room(one: Step) -> bool:
    """Return whether a step found the room locked, or may have locked it."""
    return one.verdict is Verdict.BUSY or is_unknown(one)


def _attempt(number: int, one: Step, call_began: float) -> Attempt:
    assert one.verdict is not None  # noqa: S101 - it is not a wait
    return Attempt(
        number=number,
        started=one.began - call_began,
        seconds=one.seconds,
        verdict=one.verdict,
        status=one.status,
        reason=one.reason,
        bytes_sent=one.sent,
        body_seconds=one.body_seconds,
        session=one.session,
    )


def left_behind(reason: str, now: float, ago: float, settle_after: float, **facts: Any) -> Step:
    """Return a step for a document that an earlier run sent ``ago`` seconds ago, outcome unknown.

    At most ``settle_after`` of these seconds count, so that evidence is asked for several times:
    meanwhile other documents may prove that the server shows files at all.
    """
    ended = now - min(ago, settle_after)
    unknown = Verdict.UNKNOWN
    return Step(kind="document", began=ended, ended=ended, verdict=unknown, reason=reason, **facts)


# --- a history that goes on in another process ---------------------------------------------------

_STORED = [field.name for field in attrs.fields(Step) if field.name not in {"answer", "error"}]


def stored(steps: Iterable[Step], now: float) -> list[dict[str, Any]]:
    """Return steps for JSON, with times relative to ``now``."""
    shifted = (attrs.evolve(one, began=one.began - now, ended=one.ended - now) for one in steps)
    return [{name: getattr(one, name) for name in _STORED} for one in shifted]


def loaded(rows: Iterable[Mapping[str, Any]], now: float) -> list[Step]:
    """Return the steps of :func:`stored`, as if no time had passed since."""
    found = []
    for row in rows:
        verdict = None if row["verdict"] is None else Verdict(row["verdict"])
        times = {"began": row["began"] + now, "ended": row["ended"] + now}
        found.append(Step(**{**row, **times, "verdict": verdict}))
    return found
