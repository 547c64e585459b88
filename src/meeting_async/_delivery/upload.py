"""One upload: check, probe, send, wait, until the document is accepted or the call fails.

Every attempt has the same steps: the check (unless ``preflight=False``), a probe if
``decide.asks_first`` says so, the document. So no form for a room reaches a server before a check
(``docs/interface.md``, Seen on a running server: a document can get into another room).
While it waits, an upload holds no connection, no open file and no permit of a batch; a spooled
stream keeps its spool.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing

import anyio
import attrs

from meeting_async import _events
from meeting_async._clock import CLEANUP_SECONDS
from meeting_async._delivery.attempts import Attempts, attempts_of, retry_loop
from meeting_async._delivery.call import Call, running
from meeting_async._delivery.decide import (
    NO_SESSION,
    SESSION_ENDED,
    RetrySafety,
    Wait,
    untellable,
)
from meeting_async._delivery.history import Step
from meeting_async._delivery.lookup import evidence_of
from meeting_async._delivery.questions import Questions
from meeting_async._delivery.room_locks import Place
from meeting_async._delivery.room_wait import MIN_WAIT
from meeting_async._delivery.sending import Asked, Sending, UploadHooks
from meeting_async._documents.detect import Uploadable
from meeting_async._documents.document import Document, found_document
from meeting_async._documents.prepared import Prepared, prepare
from meeting_async._log import logger
from meeting_async._models import SignedHeaders, UploadReceipt, Verdict
from meeting_async._protocol import requests
from meeting_async._protocol.replies import ParsedReply
from meeting_async._protocol.verdicts import denies_room, overrules_denial
from meeting_async.errors import MeetingError, RoomBusy, TransportError

RESTART_PAUSES = (0.0, 0.0, 0.005, 0.01, 0.02, *(0.04,) * 11)
"""Seconds before each time an attempt asks its questions, while the server closes their connection
each time. A server that is stopping may answer for a while, and a new one may start at once."""

CLOSES_SECONDS = 60.0
"""Seconds during which, after all these pauses, the server counts as one that closes each
connection after its answer."""


async def upload_document(
    call: Call,
    room_id: str,
    document: Document | Uploadable,
    *,
    filename: str | None = None,
    content_type: str | None = None,
    max_wait: float | None = None,
    hooks: UploadHooks | None = None,
) -> UploadReceipt:
    """Upload a document to a room."""
    options = call.options
    async with running(call):
        room = requests.room_of(room_id)
        _warn_of_unusual(room_id)
        lock = options.lock if max_wait is None else attrs.evolve(options.lock, max_wait=max_wait)
        # Before the document is prepared, which may take long: first come, first served.
        with call.session.line_up(room_id) as place:
            call.phase = "reading the document"
            names = {"filename": filename, "content_type": content_type}
            made = await found_document(document, **names)
            call.document = made.filename
            async with prepare(
                made, max_size=options.max_size_whiteboard_file, allow_images=options.allow_images
            ) as prepared:
                call.size, hooks = prepared.size, hooks or UploadHooks()
                attempts = attempts_of(
                    call,
                    RetrySafety(options.delivery),
                    lock,
                    size=prepared.size,
                    is_office=prepared.is_office,
                    can_be_alone=hooks.can_be_alone,
                    follows_sessions=hooks.follows_sessions,
                )
                if options.check_link and made.link is not None:
                    from meeting_async._delivery.link_check import check_target  # noqa: PLC0415

                    call.phase = "checking the link"
                    await check_target(call.session, made.link, options)
                await _Upload(attempts, room, prepared, hooks).run(place)
    return receipt_of(call)


def receipt_of(call: Call) -> UploadReceipt:
    """Return the receipt of an upload that was accepted."""
    history, answer = call.history, call.history.answer
    assert answer is not None  # noqa: S101 - else there was an exception
    is_sought = call.options.delivery == "exactly_once"
    return UploadReceipt(
        room_id=call.room_id,
        document=call.document or "",
        size=call.size,
        msg=answer.msg,
        status_code=answer.status_code or "",
        seconds=call.now() - call.began,
        attempts=tuple(call.history.attempts),
        headers=answer.headers,
        raw=answer.payload or {},
        session=history.session,
        found=any(one.verdict is Verdict.FOUND for one in history.steps) if is_sought else None,
    )


_warned: set[str] = set()


def _warn_of_unusual(room_id: str) -> None:
    """Warn once about a room id that known servers refuse; the interface allows it."""
    if requests.PLAIN_ROOM_ID.fullmatch(room_id) or room_id in _warned or len(_warned) > 1000:
        return
    _warned.add(room_id)
    logger.warning(
        "room id %r has characters other than letters, digits, - and _: known servers refuse it",
        room_id,
        extra={"action": "UnusualRoom", "room_id": room_id},
    )


@attrs.define(eq=False)
class _Upload:
    """A running upload."""

    attempts: Attempts
    room: requests.Room
    document: Prepared
    hooks: UploadHooks
    _questions: Questions = attrs.field(init=False)
    _wait: Wait | None = None
    """What the last attempt has to wait for."""
    _is_watching: bool = True
    """Whether the connection of the questions is kept open, to notice a restart after them."""

    def __attrs_post_init__(self) -> None:
        exchange, call = self.attempts.exchange, self.call
        self._questions = Questions(call.session, self.room, exchange, call.now)

    @property
    def call(self) -> Call:
        return self.attempts.call

    @property
    def _key(self) -> tuple[str, str]:
        return self.call.room_id, self.call.document or ""

    async def run(self, place: Place) -> None:
        """Acquire the room's lock, then attempt until the document is accepted."""
        async with self._room_lock(place):
            if self._asks_for_evidence:
                await self._tell_apart()
            try:
                await retry_loop(self._attempt, self._sleep)
            finally:
                self._mark_sent()

    async def _tell_apart(self) -> None:
        """Wait until ``Last-Modified`` can tell this document from the last one of its name."""
        call, server = self.call, self.call.session.server
        if seconds := server.seconds_to_tell_apart(*self._key, call.now()):
            call.phase = "waiting a second after another document of that name"
            async with self.hooks.waiting("queue", seconds):
                await anyio.sleep(seconds)

    def _mark_sent(self) -> None:
        """Remember when the document was sent, and if it may come late, for the next upload."""
        call, history, server = self.call, self.call.history, self.call.session.server
        if (sent := history.document) and sent.session:
            server.mark_sent(*self._key, sent.ended)
        if (since := history.unknown_since) is not None:
            # One that has reached the server has locked the room, or is stored already.
            is_there = history.last.verdict is Verdict.FOUND
            late = 0.0 if is_there else call.options.retry.settle_after
            server.mark_unsettled(*self._key, since + late, call.now())

    # --- the room's lock in this application -----------------------------------------------------

    @asynccontextmanager
    async def _room_lock(self, place: Place) -> AsyncGenerator[None, None]:
        """Hold the room's lock: first the one in this process, then the caller's own."""
        if not place.is_first:
            await self._queue(place.reach)
        held = await self._own_lock()
        error: BaseException | None = None
        try:
            yield
        except BaseException as failure:
            error = failure
            raise
        finally:
            if held is not None:
                await _released(held, error)

    async def _own_lock(self) -> AsyncExitStack | None:
        """Acquire the room's lock of the caller's own locks, if there are any."""
        session = self.call.session
        name, locks = session.lock_name(self.call.room_id), session.callers_locks
        if locks is None:
            return None
        self.call.phase = "waiting for the room's lock elsewhere"
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(locks.acquire(name, timeout=0))
            except TimeoutError:
                await self._queue(
                    lambda limit: held.enter_async_context(locks.acquire(name, timeout=limit))
                )
            return held.pop_all()

    async def _queue(self, enter: Callable[[float | None], Awaitable[object]]) -> None:
        """Wait behind other uploads of this application; ``enter`` gets a limit in seconds."""
        call, limit = self.call, self.attempts.waiting.queue_limit()
        if limit == 0:
            raise self._taken(call.now())
        call.phase = "waiting behind another upload of this application"
        call.emit(_events.Queued)
        async with self.hooks.waiting("queue", None):
            began = call.now()
            try:
                await enter(limit)
            except TimeoutError:
                raise self._taken(began) from None
            finally:
                call.record(Step(kind="queue", began=began, ended=call.now()))

    def _taken(self, since: float) -> MeetingError:
        """Return `RoomBusy`; if the server is away, the error that the other upload has, too."""
        call, now = self.call, self.call.now()
        busy = RoomBusy(now - since, "another upload of this application", None, limit="max_wait")
        return call.session.server.error_for_another(now, call.options.retry.max_outage) or busy

    async def _sleep(self, seconds: float) -> None:
        """Wait before the next attempt; waiting for a permit after that is a step of its own."""
        call, kind = self.call, self._wait.kind if self._wait else "retry"
        async with self.hooks.waiting(kind, seconds):
            await anyio.sleep(seconds)
            slept = call.now()
        if (now := call.now()) > slept:
            call.record(Step(kind="place", began=slept, ended=now))

    # --- one attempt -----------------------------------------------------------------------------

    async def _attempt(self) -> ParsedReply | Wait:
        place = await self.attempts.take_place()
        try:
            found = await self._attempt_in_place()
        finally:
            place.release()
        outcome = self.attempts.conclude(found)
        self._wait = outcome if isinstance(outcome, Wait) else None
        return outcome

    async def _attempt_in_place(self) -> Step:
        """Send the document, or ask for evidence of one that was sent before."""
        history = self.call.history
        if self._asks_for_evidence and (sent := history.in_doubt or history.unconfirmed):
            ask = self._settle if history.answer is None else self._confirmed
            return await ask(sent)
        found = await self._ask_and_send()
        server = self.call.session.server
        is_accepted = found.verdict is Verdict.ACCEPTED and not untellable(found, server)
        if self._asks_for_evidence and is_accepted:
            self.call.record(found)
            return await self._look(found)
        return found

    async def _ask_and_send(self) -> Step:
        """Prepare what may take time, then ask, then send: a server may restart in between.

        If it has closed the connection of the questions, ask again. A server that closes each
        connection after its answer cannot be told from one that restarts.
        """
        call, server = self.call, self.call.session.server
        signed = await self._signed()
        sending = Sending(call, self.document, self.hooks)
        with closing(sending.body):
            call.phase = "opening the document"
            await sending.body.open()
            self._is_watching = call.now() >= server.closes_until
            if self._is_watching:
                for seconds in RESTART_PAUSES:
                    if seconds:
                        await anyio.sleep(seconds)
                    found = await self._ask_then_send(sending, signed)
                    if not found.is_stale:
                        return found
                server.closes_until, self._is_watching = call.now() + CLOSES_SECONDS, False
            return await self._ask_then_send(sending, signed)

    async def _ask_then_send(self, sending: Sending, signed: SignedHeaders) -> Step:
        asked = await self._ask(signed)
        return asked.refusal or await self._send(sending, signed, asked)

    async def _signed(self) -> SignedHeaders:
        self.call.phase = "signing"
        return await self.call.session.sign(self.room.raw)

    async def _ask(self, signed: SignedHeaders) -> Asked:
        """Ask the questions that are to be asked."""
        check = await self._check()
        if check is None:
            return await self._probe(signed, Asked())
        answer, refusal = check.answer, None if check.verdict is Verdict.ACCEPTED else check
        if answer is None:
            return Asked(refusal)
        asked = Asked(refusal, session=answer.session, date=answer.date, peer=answer.peer)
        if refusal and not (check.verdict is Verdict.REFUSED and denies_room(answer)):
            return asked
        return await self._probe(signed, asked)

    async def _check(self) -> Step | None:
        """Ask whether the room is active; ``None`` with ``preflight=False``."""
        call = self.call
        if not call.options.preflight:
            return None
        call.phase = "checking the room"
        timeouts = self.attempts.timeouts
        return await self._questions.check(timeouts, on_kept_connection=self._is_watching)

    async def _probe(self, signed: SignedHeaders, asked: Asked) -> Asked:
        """Ask whether the room is free, if a probe is needed.

        A probe has the last word about a room that the check denies (``asked.refusal``).
        """
        call, denial, attempts = self.call, asked.refusal, self.attempts
        if not (attempts.must_probe or (denial and attempts.limits.lock.probe)):
            return asked
        call.phase = "asking whether the room is free"
        found = await self._questions.probe(
            signed, attempts.timeouts, asked.peer, on_kept_connection=self._is_watching
        )
        if found.verdict is not Verdict.ACCEPTED:
            return attrs.evolve(asked, refusal=found)
        if denial and not overrules_denial(found.answer):
            return asked
        call.session.server.fails_documents = False
        return attrs.evolve(asked, refusal=None, is_free=True)

    async def _send(self, sending: Sending, signed: SignedHeaders, asked: Asked) -> Step:
        """Send the document once. If the call is cancelled, the history gets a step, too."""
        call = self.call
        self.hooks.sending()
        call.phase = "sending"
        if sending.began == math.inf:
            call.emit(_events.AttemptStarted, attempt=call.history.attempted + 1)
        if call.now() < call.session.server.unsettled.get(self._key, 0.0):
            asked = attrs.evolve(asked, date=None)  # a file that is stored now may be that one
        sending.begin(asked)
        try:
            form = sending.body.content_type, sending.body
            timeouts = self.attempts.timeouts
            request = call.session.upload_request(self.room, form, signed, timeouts, asked.peer)
            answer = await self.attempts.exchange(request)
        except TransportError as error:
            return sending.step(error=error)
        except BaseException as error:
            call.record(sending.step(error=error))
            raise
        return sending.step(answer=answer)

    # --- evidence --------------------------------------------------------------------------------

    @property
    def _asks_for_evidence(self) -> bool:
        return self.attempts.limits.safety is RetrySafety.EXACTLY_ONCE

    async def _look(self, sent: Step, *, is_free: bool = False) -> Step:
        return await evidence_of(self.attempts, self.hooks, sent, is_free=is_free)

    async def _settle(self, sent: Step) -> Step:
        """Ask for evidence of a document of an earlier attempt, or of an earlier run.

        Before it counts as lost, the room must be free: the server may still be working on the
        form. Then its session must still run: the files of one that has ended are gone.
        """
        found = await self._look(sent)
        is_early = self.call.now() - sent.ended < self.attempts.limits.retry.settle_after
        if found.verdict is Verdict.FOUND or is_early:
            return found
        self._is_watching = False  # no document follows these questions
        asked = await self._ask(await self._signed())
        if asked.refusal is not None:
            return asked.refusal
        found, session = await self._look(sent, is_free=asked.is_free), asked.session
        if found.proves and session == sent.session:
            await anyio.sleep(MIN_WAIT)
            session = _session_in(await self._check())
        if found.verdict is Verdict.FOUND or session == sent.session:
            return found
        return await self._look_further(found, sent, session, is_free=asked.is_free)

    async def _look_further(self, found: Step, sent: Step, session: str, *, is_free: bool) -> Step:
        """Ask for evidence in the session that runs now: a late form is in that one."""
        if not session:
            return _proving_nothing(found, sent, session) if found.proves else found
        now = await self._look_in(session, sent, is_free=is_free)
        return attrs.evolve(now, reason=_why_not(sent, session)) if now.proves else now

    async def _confirmed(self, sent: Step) -> Step:
        """Ask for evidence of an accepted document, in the same way."""
        found = await self._look(sent)
        session = _session_in(await self._check()) if found.proves else sent.session
        if session == sent.session:
            return found
        now = await self._look_in(session, sent)
        return now if now.verdict is Verdict.FOUND else _proving_nothing(found, sent, session)

    async def _look_in(self, session: str, sent: Step, *, is_free: bool = False) -> Step:
        """Ask for evidence in another session; if the document is there, tell the hooks."""
        found = await self._look(attrs.evolve(sent, session=session), is_free=is_free)
        if found.verdict is Verdict.FOUND and session != sent.session:
            await self.hooks.may_arrive(self.document, session, sent.since)
        return found


def _session_in(check: Step | None) -> str:
    """Return the session that a check names; ``""``: none."""
    return check.answer.session if check and check.answer else ""


def _proving_nothing(found: Step, sent: Step, session: str) -> Step:
    """Return evidence of a document that is not in its session, which may have ended."""
    reason = _why_not(sent, session)
    return attrs.evolve(found, verdict=Verdict.UNKNOWN, proves=False, reason=reason)


def _why_not(sent: Step, session: str) -> str:
    return SESSION_ENDED if sent.session and session else NO_SESSION


async def _released(release: AsyncExitStack, error: BaseException | None) -> None:
    """Release the caller's own lock; failures are only logged, as the upload has its outcome."""
    problem = "did not end in time"
    try:
        with anyio.move_on_after(CLEANUP_SECONDS, shield=True):
            await release.__aexit__(type(error) if error else None, error, None)
            return
    except Exception as raised:  # noqa: BLE001 - a user's locks may raise anything
        if raised is error:
            return
        problem = f"raised {raised!r}"
    logger.warning(
        "releasing a room's lock %s; the outcome of the upload is not affected",
        problem,
        extra={"action": "room_locks"},
    )
