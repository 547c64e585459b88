"""The attempts of a call: what limits them, what follows each, and the loop around them."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import attrs
from tenacity import AsyncRetrying, RetryCallState, retry_if_result

from meeting_async import _events
from meeting_async._delivery.call import Call
from meeting_async._delivery.decide import (
    Done,
    Limits,
    RetrySafety,
    Stop,
    Wait,
    asks_first,
    decide,
    error_of,
    outage_ends_at,
)
from meeting_async._delivery.history import History, Step
from meeting_async._delivery.room_wait import RoomWait
from meeting_async._delivery.server import Server
from meeting_async._models import UNREACHED, Request
from meeting_async._policies import LockPolicy, Timeouts
from meeting_async._protocol.replies import ParsedReply
from meeting_async.errors import DocumentMisplaced, TransferTimeout

SHORTEST_ATTEMPT = 1.0
"""Shortest connect and reply timeout in seconds, when ``max_outage`` is nearly over."""


@attrs.frozen(eq=False)
class Attempts:
    """The attempts of a call whose arguments are checked."""

    call: Call
    limits: Limits

    @property
    def history(self) -> History:
        """What has happened so far."""
        return self.call.history

    @property
    def _server(self) -> Server:
        return self.call.session.server

    @property
    def waiting(self) -> RoomWait:
        """How long the upload has waited for its room."""
        return self.limits.waiting(self.history)

    @property
    def must_probe(self) -> bool:
        """Whether to send a probe before the document."""
        return asks_first(self.history, self.limits, self._server)

    @property
    def timeouts(self) -> Timeouts:
        """Limits on the next attempt; in an outage, no longer than the rest of ``max_outage``."""
        ends_at = outage_ends_at(self.history, self.limits, self._server)
        timeouts = self.call.options.timeouts
        if ends_at == math.inf:
            return timeouts
        left = max(ends_at - self.call.now(), SHORTEST_ATTEMPT)
        shortened = {name: min(getattr(timeouts, name), left) for name in ("connect", "reply")}
        return attrs.evolve(timeouts, **shortened)

    async def take_place(self) -> anyio.Semaphore:
        """Take one of the session's ``max_connections`` places; the caller releases it.

        A wait for it is a step of its own, and counts for the call's ``timeout`` only.
        """
        call, places = self.call, self.call.session.loop_state.places
        try:
            places.acquire_nowait()
        except anyio.WouldBlock:
            began, call.phase = call.now(), "waiting for a connection"
            try:
                await places.acquire()
            finally:
                call.record(Step(kind="place", began=began, ended=call.now()))
        return places

    def conclude(self, step: Step) -> ParsedReply | Wait:
        """Record a step; return the answer or the wait before a retry, or raise the error."""
        self.call.record(step)
        server, now = self._server, self.call.now()
        decision = decide(self.history, self.limits, server, now, random.random())
        if step.verdict in UNREACHED:
            server.mark_away(step.began, error_of(self.history, self.limits, server, now))
        if isinstance(decision, Done):
            return decision.answer
        if isinstance(decision, Stop):
            if isinstance(decision.error, DocumentMisplaced):
                self.history.answer = None
            raise decision.error
        if decision.kind == "room":
            self._emit_waiting(decision)
        else:
            if decision.kind == "retry":
                server.spend_retry()
            self._emit_retry(decision, step)
        self.history.forget_reply()  # it refers to the connection of the answer
        return decision

    def _emit_waiting(self, wait: Wait) -> None:
        self.call.phase = "waiting for the room's lock"
        self.call.emit(
            _events.WaitingForRoom,
            attempt=self.history.attempted,
            retry_in=wait.seconds,
            waited=self.waiting.waited(self.call.now()),
            max_wait=self.limits.lock.max_wait,
        )

    def _emit_retry(self, wait: Wait, step: Step) -> None:
        self.call.phase = f"waiting to try again after {step.reason}"
        self.call.emit(
            _events.RetryScheduled,
            attempt=self.history.attempted,
            retry_in=wait.seconds,
            verdict=step.verdict,
            reason=step.reason,
            limit=wait.limit,
        )

    async def exchange(self, request: Request) -> ParsedReply:
        """Send a request; if the call's timeout ends it, the server counts as away."""
        call, began = self.call, self.call.now()
        try:
            return await call.session.send(request)
        except anyio.get_cancelled_exc_class():
            if call.now() >= call.ends_at:
                silence = TransferTimeout("no answer within the timeout", call.session.host)
                self._server.mark_away(began, silence)
            raise


def attempts_of(
    call: Call, safety: RetrySafety, lock: LockPolicy | None = None, **document: Any
) -> Attempts:
    """Return the attempts of a call; an upload gives its ``lock`` and more fields of `Limits`."""
    options = call.options
    limits = Limits(
        safety=safety,
        retry=options.retry,
        lock=lock or options.lock,
        may_ask=options.preflight,
        began=call.began,
        ends_at=call.ends_at,
        **document,
    )
    return Attempts(call, limits)


# --- the loop ------------------------------------------------------------------------------------


async def retry_loop(
    attempt: Callable[[], Awaitable[ParsedReply | Wait]],
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> ParsedReply:
    """Attempt until there is an answer.

    tenacity is used from the second attempt on: it costs 27 µs, 7 % of a small call.
    """
    outcome = await attempt()
    if not isinstance(outcome, Wait):
        return outcome
    await sleep(outcome.seconds)
    retrying = AsyncRetrying(sleep=sleep, retry=retry_if_result(_is_wait), wait=_seconds)
    try:
        answer: ParsedReply = await retrying(attempt)
        return answer
    finally:  # a reference cycle: it would keep the document that ``sleep`` refers to
        retrying.sleep = anyio.sleep  # type: ignore[assignment]  # may be async, too


def _is_wait(outcome: object) -> bool:
    return isinstance(outcome, Wait)


def _seconds(state: RetryCallState) -> float:
    outcome = state.outcome.result() if state.outcome else None
    return outcome.seconds if isinstance(outcome, Wait) else 0.0
