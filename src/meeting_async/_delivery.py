"""One call until its verdict is final: attempt, verdict, wait, again.

The one retry loop of the library. Decisions are made by the pure functions of ``_verdicts`` and
``_policies``; this file acts on them. While it waits it holds no connection, no file and no bytes.
All timing is the event loop's, so that hours pass in an instant under a virtual clock.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol

import anyio
import attrs
from tenacity import AsyncRetrying, RetryCallState, retry_if_result

from meeting_async import _events, errors
from meeting_async._budget import RetryBudget
from meeting_async._ledger import Ledger, Seen
from meeting_async._multipart import MultipartBody
from meeting_async._observer import Observer
from meeting_async._operations import Operation
from meeting_async._outage import Outage
from meeting_async._policies import LockPolicy, RetryPolicy
from meeting_async._rooms import Door
from meeting_async._transport import Transport
from meeting_async._verdicts import Sent, Step, Verdict, judge, next_step
from meeting_async._wire import Answer, decipher

_call_numbers = itertools.count(1)


@attrs.frozen
class _Wait:
    """A decision: not over yet, try again at a moment; what an observer takes is part of it."""

    until: float
    """On the event loop's clock."""

    @property
    def seconds(self) -> float:
        return max(0.0, self.until - anyio.current_time())


def _is_wait(result: object) -> bool:
    return isinstance(result, _Wait)


def _seconds(state: RetryCallState) -> float:
    return state.outcome.result().seconds if state.outcome else 0.0


class Companion(Protocol):
    """Who goes along with an upload, such as a batch. What it raises ends the upload."""

    async def before_attempt(self) -> None:
        """Let it connect, read and send."""
        ...

    async def before_end(self) -> None:
        """Let the closing boundary follow the document, which is out."""
        ...

    async def before_wait(self, *, may_have_arrived: bool) -> None:
        """Hear that it waits, for its turn or its next attempt, and holds nothing meanwhile."""
        ...


_READ_ONCE = "It was not tried again: the stream could not be read a second time."
_OVERDRAWN = "Not tried again: too many calls of this client had to be, of late."

MOST_VAIN_BODIES = 2
"""After so many in a row that a probe had called welcome, a server is believed no more."""


@attrs.define
class Delivery:
    """A call on its way. Make one for each call and await :meth:`run`."""

    operation: Operation
    transport: Transport
    door: Door | None
    """The gate of the room; ``None`` for what needs no turn."""
    retry: RetryPolicy
    lock: LockPolicy
    observer: Observer
    random: Callable[[], float]
    deadline: float | None = None
    """Seconds for everything: queue, waits, attempts."""
    budget: RetryBudget = attrs.field(factory=RetryBudget)
    outage: Outage = attrs.field(factory=Outage)
    began: float = attrs.field(factory=anyio.current_time)
    """When the call began, on the event loop's clock."""
    companion: Companion | None = None

    ledger: Ledger = attrs.field(init=False)
    """What is known of it, while it goes on and afterwards."""
    _number: int = attrs.field(factory=lambda: next(_call_numbers), init=False)
    _attempt_began: float = attrs.field(default=0.0, init=False)
    _body: MultipartBody | None = attrs.field(default=None, init=False)
    _is_prepared: bool = attrs.field(default=False, init=False)
    """Whether the current attempt got as far as a signed request."""
    _busy_since: float | None = attrs.field(default=None, init=False)
    _failures: int = attrs.field(default=0, init=False)
    _interruptions: int = attrs.field(default=0, init=False)
    _body_took: float | None = attrs.field(default=None, init=False)
    """Seconds until the document of the current attempt was out."""
    _send_seconds: float = attrs.field(default=0.0, init=False)
    """How long the last refused body took; 0 if none went out yet."""
    _vain_bodies: int = attrs.field(default=0, init=False)
    """Bodies in a row that were refused although a probe had found the room free."""
    _outage_since: float | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.ledger = Ledger(self.operation, self.began, self.lock.window)

    @property
    def elapsed(self) -> float:
        """Seconds since the call began."""
        return anyio.current_time() - self.began

    async def run(self) -> Answer:
        """Return the answer that accepts the call, or raise what ended it."""
        try:
            answer = await self._within_deadline()
        except BaseException as error:
            await self._finish(error)
            raise
        await self._finish(None)
        return answer

    # --- around the attempts: deadline, turn, end ------------------------------------------------

    async def _within_deadline(self) -> Answer:
        if self.deadline is None:
            return await self._in_turn()
        with anyio.move_on_after(self.deadline - self.elapsed):
            return await self._in_turn()
        if self.ledger.lost_at is not None:
            reason = f"the deadline of {self.deadline:g} s struck while {self.ledger.phase}"
            raise self.ledger.unknown(self.ledger.after_loss(reason))
        raise errors.DeadlineExceeded(self.operation.path, self.deadline, self.ledger.phase)

    async def _in_turn(self) -> Answer:
        async with self._turn():
            try:
                answer = await self._repeated()
            except BaseException as error:
                if self.ledger.lost_at is not None:
                    await self._shut_room(error)
                raise
            return answer

    async def _repeated(self) -> Answer:
        """Attempt until there is an answer. Most calls need no loop, and it costs to set it up."""
        outcome = await self._attempt()
        if isinstance(outcome, _Wait):
            await self._pause(outcome.seconds)
            retrying = AsyncRetrying(
                sleep=self._pause, retry=retry_if_result(_is_wait), wait=_seconds
            )
            answer: Answer = await retrying(self._attempt)
            return answer
        return outcome

    async def _shut_room(self, error: BaseException) -> None:
        """Keep siblings off a lock that may be our own, and never call a maybe a no."""
        if self.door is not None:
            await self.door.shut(self.ledger.lock_free_in())
        if isinstance(error, Exception) and not isinstance(error, errors.UploadOutcomeUnknown):
            raise self.ledger.unknown(self.ledger.after_loss(str(error))) from error

    def _turn(self) -> AbstractAsyncContextManager[Any]:
        return nullcontext() if self.door is None else self.door.turn(self._queued)

    async def _queued(self, shut_for: float) -> None:
        if self.lock.max_wait == 0:
            reason = "another upload from here is in progress or of unknown outcome"
            raise errors.RoomBusy(self.operation.room_id or "", 0.0, reason)
        await self._let_go()
        self.ledger.phase = "waiting for its turn behind another upload from here"
        await self._tell(_events.Queued, shut_for=shut_for)

    async def _finish(self, error: BaseException | None) -> None:
        ours = error if isinstance(error, errors.MeetingError) else None
        if ours is not None:
            ours.attempts = tuple(self.ledger.attempts)
        with anyio.CancelScope(shield=True):  # an observer has a time limit of its own
            await self._tell(
                _events.Finished,
                verdict=self.ledger.final_verdict(error),
                attempts=len(self.ledger.attempts),
                seconds=self.elapsed,
                error=ours,
            )

    async def _let_go(self) -> None:
        if self.companion is not None:
            await self.companion.before_wait(may_have_arrived=self.ledger.lost_at is not None)

    async def _pause(self, seconds: float) -> None:
        if self._outage_since is None:
            await anyio.sleep(seconds)
        else:
            await self.outage.wait(seconds)

    # --- one attempt -----------------------------------------------------------------------------

    async def _attempt(self) -> Answer | _Wait:
        if self.companion is not None:
            await self._admitted_by(self.companion)
        outcome = await self._attempted()
        if isinstance(outcome, _Wait):
            await self._let_go()
        return outcome

    async def _admitted_by(self, companion: Companion) -> None:
        asked = anyio.current_time()
        await companion.before_attempt()
        if self._busy_since is not None:  # to stand in line here is not to wait for the room
            self._busy_since += anyio.current_time() - asked

    async def _attempted(self) -> Answer | _Wait:
        if self._is_probing and (refusal := await self._probe()):
            return await self._wait_for_room(refusal)
        self._body, self._body_took, self._is_prepared = None, None, False
        self.ledger.phase = "sending" if self.operation.upload else "waiting for the reply"
        await self._tell(_events.AttemptStarted, attempt=len(self.ledger.attempts) + 1)
        self._attempt_began = anyio.current_time()
        try:
            seen = await self._exchange()
        except BaseException as error:
            self._judge(Seen(error=error))
            raise
        verdict = self._judge(seen)
        return await self._act(verdict, seen)

    @property
    def _is_probing(self) -> bool:
        return self.operation.upload and self.lock.probe and self._vain_bodies < MOST_VAIN_BODIES

    async def _probe(self) -> Seen | None:
        """Ask with a form that carries nothing; return the refusal if the room is locked.

        The interface leaves open what a free room answers, so anything else means: try it.
        """
        self.ledger.phase = "waiting for the room's lock"
        try:
            reply = await self.transport.send(await self.operation.probe())
        except errors.TransportError:
            return None  # the upload itself finds out what is wrong
        self._note_way(reached=True)
        seen = Seen(decipher(reply, now=time.time()))
        if judge(seen.answer, Sent.ALL, upload=True) is not Verdict.BUSY:
            return None
        self._vain_bodies = 0
        return seen

    async def _exchange(self) -> Seen:
        async with self.operation.prepared(self._progress) as request:
            self._is_prepared = True
            self._body = request.body if isinstance(request.body, MultipartBody) else None
            try:
                reply = await self.transport.send(request)
            except errors.TransportError as error:
                return Seen(error=error)
        return Seen(decipher(reply, now=time.time()))

    async def _progress(self, sent: int) -> None:
        total = self.operation.size
        if sent == total:
            self.ledger.phase = "waiting for the reply"
            self._body_took = anyio.current_time() - self._attempt_began
        attempt = len(self.ledger.attempts) + 1
        if self.observer.wants_progress(done=sent == total):
            await self._tell(_events.BytesSent, attempt=attempt, sent=sent, total=total)

    def _judge(self, seen: Seen) -> Verdict:
        if seen.answer is not None or isinstance(seen.error, errors.TransportError):
            self._note_way(reached=not isinstance(seen.error, errors.ConnectFailed))
        verdict = judge(seen.answer, self._sent(seen), upload=self.operation.upload)
        if verdict is Verdict.UNKNOWN and self.operation.upload:
            self._busy_since = None  # what follows is our own lock, not somebody else's
        self.ledger.record(
            seen,
            verdict,
            began=self._attempt_began,
            bytes_sent=self._body.document_sent if self._body else 0,
            body_seconds=self._body_took,
        )
        self._body = None  # which knows us, and its document: not until somebody collects garbage
        return verdict

    def _note_way(self, *, reached: bool) -> None:
        """Tell all calls of the client whether there is a way to the server."""
        self.outage.note(reached=reached)
        if reached:
            self._outage_since = None

    def _sent(self, seen: Seen) -> Sent:
        """Say how much was out; the boundary counts more than what a transport calls its error."""
        if self._body and self._body.complete:
            return Sent.ALL
        if isinstance(seen.error, errors.ConnectFailed):
            return Sent.NOTHING
        if not self.operation.upload:
            return Sent.ALL if self._is_prepared else Sent.NOTHING
        return Sent.PART if self._body and self._body.handed_over else Sent.NOTHING

    # --- what follows ----------------------------------------------------------------------------

    async def _act(self, verdict: Verdict, seen: Seen) -> Answer | _Wait:
        if verdict is not Verdict.PARTIAL:
            self._interruptions = 0
        step = next_step(verdict, self.operation.repeatability)
        if step is Step.DONE and seen.answer is not None:
            self.budget.refund(repeated=self._failures > 0)
            return seen.answer
        if self.operation.is_spent and step is not Step.STOP:
            raise self.ledger.error(verdict, seen, _READ_ONCE)
        if step is Step.WAIT_FOR_ROOM:
            return await self._body_refused(seen)
        if step is Step.RETRY and self._sits_out(verdict):
            return await self._wait(verdict, seen, self.outage.patience(self.random()))
        if step is Step.STOP or self._exhausted(verdict):
            raise self.ledger.error(verdict, seen)
        if step is Step.WAIT_OUT_LOCK:
            return await self._wait(verdict, seen, self.lock.window)
        if not self.budget.take():
            raise self.ledger.error(verdict, seen, _OVERDRAWN)
        seconds = self.retry.backoff(failures=self._failures, hint=seen.hint, random=self.random())
        return await self._wait(verdict, seen, seconds)

    def _sits_out(self, verdict: Verdict) -> bool:
        """Tell whether to wait with all others until somebody gets through to the server."""
        if not (verdict is Verdict.NEVER_SENT and self.operation.upload and self.outage.is_on):
            self._outage_since = None  # or news of others would cut the backoff short
            return False
        now = anyio.current_time()
        self._outage_since = now if self._outage_since is None else self._outage_since
        return now - self._outage_since < self.retry.max_outage

    async def _body_refused(self, seen: Seen) -> _Wait:
        took = anyio.current_time() - self._attempt_began
        self._send_seconds = took if self._body_took is None else self._body_took
        self._vain_bodies += self._is_probing
        return await self._wait_for_room(seen)

    def _exhausted(self, verdict: Verdict) -> bool:
        self._failures += 1
        self._interruptions += verdict is Verdict.PARTIAL
        at_most_once = self.operation.repeatability.value == "at_most_once"
        return self._failures >= self.retry.max_attempts or (
            at_most_once and self._interruptions > self.retry.max_interruptions
        )

    async def _wait_for_room(self, seen: Seen) -> _Wait:
        now = anyio.current_time()
        self._busy_since = now if self._busy_since is None else self._busy_since
        waited = now - self._busy_since
        seconds = self.lock.delay(
            waited=waited,
            send_seconds=self._send_seconds,
            hint=seen.hint,
            random=self.random(),
            probing=self._is_probing,
        )
        if seconds is None:
            raise errors.RoomBusy(self.operation.room_id or "", waited, seen.reason)
        self.ledger.phase = "waiting for the room's lock"
        await self._tell(
            _events.WaitingForRoom,
            attempt=len(self.ledger.attempts),
            retry_in=seconds,
            waited=waited,
            max_wait=self.lock.max_wait,
        )
        return _Wait(now + seconds)

    async def _wait(self, verdict: Verdict, seen: Seen, seconds: float) -> _Wait:
        now = anyio.current_time()
        if self._busy_since is not None:  # the budget of the wait for the room holds on
            seconds = min(seconds, max(0.0, self._busy_since + self.lock.max_wait - now))
        self.ledger.phase = f"waiting to try again after {seen.reason}"
        await self._tell(
            _events.RetryScheduled,
            attempt=len(self.ledger.attempts),
            retry_in=seconds,
            verdict=verdict.value,
            reason=seen.reason,
        )
        return _Wait(now + seconds)

    async def _tell(self, kind: type[_events.Event], **facts: Any) -> None:
        if self.observer.ignores(kind):
            return
        operation = self.operation
        await self.observer.tell(
            kind(
                call=self._number,
                operation=operation.path,
                room_id=operation.room_id,
                document=operation.label,
                **facts,
            )
        )
