"""One run of a queued upload: from its claim to its outcome, or until it is put back.

It decides like a job of a batch, with its row in the place of the journal's entry. It never waits:
before every wait it ends, and the queue starts the next run when the time has come.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import TypeVar

import anyio
import attrs

from meeting_async._batch.job import RunningJob, is_stray
from meeting_async._batch.results import UploadOutcome
from meeting_async._delivery.decide import WaitKind, untellable
from meeting_async._delivery.evidence import Accepted
from meeting_async._delivery.history import Step, loaded, stored
from meeting_async._delivery.sending import UploadHooks
from meeting_async._documents.document import Document
from meeting_async._documents.prepared import Prepared
from meeting_async._log import logger
from meeting_async._models import UNREACHED, Attempt, Verdict, count_of
from meeting_async._text import one_line
from meeting_async.errors import (
    DocumentError,
    JournalError,
    JournalInUse,
    MeetingError,
    UploadOutcomeUnknown,
    UploadPutBack,
)
from meeting_async.procrastinate import _stored
from meeting_async.procrastinate._brake import (
    UNREADABLE,
    DocumentNotFound,
    decide,
    has_answered,
    is_foreign,
)
from meeting_async.procrastinate._doubt import is_left, left_by, marked, settled
from meeting_async.procrastinate._table import Row, Table, packed

T = TypeVar("T")

NEIGHBOUR_SECONDS = 1.0
"""Pause if another upload of this process has the room."""

RECORD_SECONDS = 300.0
"""For so long an outcome is kept and tried again while the database does not answer."""

CLAIM_SECONDS = 30.0
"""The same for the beginning of a run, and for its end without an outcome."""

MARK_SECONDS = 10.0
"""The same for the mark, while the server waits for the end of a document."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Limits in seconds of a pause until the database is asked again; each is twice as long."""

_OF_DOUBTS = {Verdict.UNKNOWN, Verdict.FOUND, Verdict.NOT_FOUND}
"""Verdicts on documents of unknown outcome, and of evidence about them."""

_OF_THIS_WORKER = (JournalError, DocumentError, UploadPutBack)
"""Errors that end an attempt although server and connection are well."""


async def persistently(ask: Callable[[], Awaitable[T]], seconds: float, turn: anyio.Lock) -> T:
    """Ask the database again and again while it does not answer, for so many seconds at most.

    While something is locked, those with the same ``turn`` ask one after the other: each that waits
    holds a connection, and the beats need one.
    """
    ends_at, pause, is_told, is_locked = anyio.current_time() + seconds, FIRST_PAUSE, False, False
    while True:
        try:
            async with turn if is_locked else nullcontext():
                return await ask()
        except JournalError as error:
            if anyio.current_time() > ends_at:
                raise
            is_locked = isinstance(error, JournalInUse)
            if not is_told and (pause == LONGEST_PAUSE or not is_locked):
                logger.warning("trying again: %s", error, extra={"action": "queue"})
                is_told = True
        await anyio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


@attrs.define(eq=False)
class QueuedRun(UploadHooks):
    """A claimed upload. Await :meth:`run` once."""

    upload: RunningJob
    row: Row
    table: Table
    find_document: Callable[[Row], Awaitable[Document]]
    report_answer: Callable[[bool | None], None]
    """Called with whether the server has answered."""
    max_outage: float
    """Seconds for which an upload is put back while the server is away."""
    stalled_after: float
    """Seconds after which another worker takes over."""
    turn: anyio.Lock = attrs.field(factory=anyio.Lock)
    """Held by the run of a worker that asks the database again."""
    error: Exception | None = None
    """What ended the run."""
    _put_back: UploadPutBack | None = None
    """Why the run ends without an outcome."""
    _is_away: bool | None = None
    """Whether the server was not reached; ``None``: it was not tried."""
    _accepted: Sequence[Accepted] = ()
    """What the server may be asked for before its *not found* counts."""
    _is_marked: bool = False
    """Whether the table says that the document may have arrived."""
    _is_cut_off: bool = False
    """Whether the run ended for a reason of this worker, not of the connection or the server."""
    _scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        history, row = self.upload.history, self.row
        history.attempts.extend(row.attempts)
        history.steps.extend(loaded(row.history.get("steps") or (), anyio.current_time()))
        history.was_sent = row.state == "sent"
        if history.was_sent and self._settles:
            self._take_up()

    def _take_up(self) -> None:
        """Go on with a document that may have arrived: find out, if that can be told."""
        history, row = self.upload.history, self.row
        if history.unknown_since is None or is_left(row):
            # The earlier ones are over, and lost workers do not count as interruptions.
            history.steps[:] = [one for one in history.steps if one.verdict not in _OF_DOUBTS]
            settle_after = self.upload.common.options.retry.settle_after
            history.steps.append(left_by(row, anyio.current_time(), settle_after))
        doubt = history.in_doubt  # None: it is to be sent to the session that runs now
        if doubt is None or not untellable(doubt, self.upload.common.session.server):
            history.was_sent, self.upload.entry = False, None  # the steps say it

    @property
    def _settles(self) -> bool:
        return self.upload.common.options.delivery == "exactly_once"

    def lose(self, *, is_cancelled: bool) -> None:
        """End the run: its row was cancelled, or another worker has it.

        In the second case the answer to a complete document is still awaited.
        """
        if is_cancelled or not self._is_marked:
            self._scope.cancel()

    async def run(self) -> None:
        """Upload, and record the outcome, or that there is none yet.

        Raises:
            JournalError: The database did not answer.

        """
        interruption: BaseException | None = None
        try:
            outcome = await self._deliver()
        except Exception as error:  # noqa: BLE001 - it is recorded
            outcome = self._failed(error)
        except BaseException as error:  # noqa: BLE001 - raised again
            if is_stray(error):
                stray = RuntimeError("it was cancelled, though nobody cancelled the upload")
                outcome = self._failed(stray)
            else:
                outcome, interruption = self._cut_off(), error
        answered = None if self._is_cut_off else has_answered(self._attempts, self.error)
        self.report_answer(answered)
        await self._record(outcome)
        if interruption is not None:
            raise interruption

    @property
    def _attempts(self) -> list[Attempt]:
        """The attempts of this run."""
        earlier = count_of(self.row.attempts)
        return [one for one in self.upload.history.attempts if one.number > earlier]

    @property
    def _unreadable(self) -> int:
        """How often earlier runs have put the document back because it could not be read."""
        return int(self.row.history.get("unreadable", 0))

    @property
    def _was_interrupted(self) -> bool:
        """Whether the document was cut off in this run."""
        return any(one.verdict is Verdict.PARTIAL for one in self._attempts)

    async def _deliver(self) -> UploadOutcome:
        with self._scope:
            await self._find_accepted()
            document = await self._document()
            return self.upload.delivered(await self.upload.deliver(document, self))
        self._is_cut_off = True  # the row is lost
        return self.upload.cut_off()

    async def _find_accepted(self) -> None:
        """Look up what a server that has shown nothing to this worker may be asked for."""
        doubt, session = self.upload.history.in_doubt, self.upload.common.session
        if self._settles and doubt is not None and not session.server.shows_files:
            self._accepted = await self.table.accepted_before(self.row, doubt.session)

    async def _document(self) -> Document:
        try:
            return await self.find_document(self.row)
        except UploadPutBack:
            raise
        except BaseException as error:
            if isinstance(error, Exception) or is_stray(error):
                raise DocumentNotFound(_stored.told(error)) from error
            raise

    def _failed(self, error: Exception) -> UploadOutcome:
        history = self.upload.history
        self.error = last_error(error, history.steps)
        self._is_cut_off = self._put_back is None and isinstance(error, _OF_THIS_WORKER)
        if isinstance(error, UploadPutBack):
            self._put_back = error
        elif is_foreign(self.error) and self._was_interrupted:
            pass  # it would send a part of the document again and again
        elif self._may_run_again:
            later = decide(
                self.error,
                away_for=self.row.away_for or 0.0,
                unreadable=self._unreadable,
                max_outage=self.max_outage,
            )
            if later is not None:
                self._is_away = later.is_away or None
                self._put_back = UploadPutBack(later.seconds, _stored.told(self.error))
        if isinstance(error, DocumentNotFound) and isinstance(error.__cause__, Exception):
            error = error.__cause__
        return self.upload.failed(error)

    @property
    def _may_run_again(self) -> bool:
        """Whether the document has not arrived, or may be settled or sent again nevertheless."""
        resends = self.upload.common.options.delivery != "at_most_once"
        return resends or self.upload.history.unknown_since is None

    def _cut_off(self) -> UploadOutcome:
        """Put the upload back, if it may run again."""
        self._is_cut_off = self._put_back is None
        if self._may_run_again:
            options = self.upload.common.options
            asks = options.preflight and options.lock.probe
            is_safe = asks or self.upload.history.unknown_since is None
            pause = 0.0 if is_safe else options.lock.window  # it may still be converted
            self._put_back = UploadPutBack(pause, "its worker was stopped")
        return self.upload.failed(MeetingError("its worker was stopped before an answer came"))

    # --- around an attempt -----------------------------------------------------------------------

    def waiting(self, kind: WaitKind, seconds: float | None) -> AbstractAsyncContextManager[object]:
        """End the run instead of waiting, unless an accepted document is looked for a bit later."""
        call = self.upload.call
        if self.upload.history.answer is not None:
            return nullcontext()
        if kind != "queue":
            away = {*UNREACHED, Verdict.THROTTLED}
            self._is_away = any(one.verdict in away for one in self._attempts)
        pause = NEIGHBOUR_SECONDS if seconds is None else seconds
        phase = call.phase if call and kind != "evidence" else "evidence of what became of it"
        self._put_back = UploadPutBack(pause, phase)
        raise self._put_back

    def accepted_before(self) -> Sequence[Accepted]:
        """Return what the table says was accepted."""
        return self._accepted

    async def may_arrive(self, document: Prepared, session: str, since: int | None) -> None:
        """Record durably that the closing boundary is about to be sent.

        Again if that took so long that another worker may have taken over since.
        """
        took = self.stalled_after
        history = marked(self.row, self.upload.document, session, since)
        while took >= self.stalled_after:
            began = anyio.current_time()
            mark = partial(self.table.mark_sending, self.row, *document.version, history)
            if not await persistently(mark, MARK_SECONDS, self.turn):
                raise UploadPutBack(0.0, "it was cancelled, or another worker has taken over")
            took = anyio.current_time() - began
        self._is_marked = True

    # --- the row ---------------------------------------------------------------------------------

    async def _record(self, outcome: UploadOutcome) -> None:
        """Record how the run has ended."""
        is_over = self._put_back is None or self.upload.history.answer is not None
        facts = self._ended(outcome) if is_over else self._progress()
        end = partial(self.table.end, self.row, **facts, attempts=packed(outcome.attempts))
        is_ours = await self._until_recorded(end, RECORD_SECONDS if is_over else CLAIM_SECONDS)
        if not is_ours:
            text = "upload %d was cancelled, or taken over by another worker"
            logger.warning(text, self.row.id, extra={"action": "queue"})
        elif is_over and outcome.error is not None:
            logger.warning(
                "upload %d, %s: %s",
                self.row.id,
                outcome.status,
                _stored.told(outcome.error),
                extra={"action": "queue"},
            )

    async def _until_recorded(self, write: Callable[[], Awaitable[bool]], seconds: float) -> bool:
        """Write to its end also if procrastinate cancels the job meanwhile."""
        writing = asyncio.ensure_future(persistently(write, seconds, self.turn))
        while not writing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([writing])
        return writing.result()

    def _ended(self, outcome: UploadOutcome) -> dict[str, object]:
        """Return what the row keeps of an outcome."""
        error = _stored.stored(outcome.error) if outcome.error else None
        history = settled(outcome, self.upload.history.document)
        kept = {"error": error, "reason": None, "size": outcome.size, "history": history}
        # Nobody runs an upload again that was given up before its first attempt.
        state = "failed" if outcome.status == "skipped" else outcome.status
        return {"state": state, "pause": None, "is_away": None, **kept}

    def _progress(self) -> dict[str, object]:
        """Return what the row keeps of a run without an outcome."""
        history, back = self.upload.history, self._put_back
        assert back is not None  # noqa: S101 - else it is over
        steps = history.steps
        if self._is_cut_off and self._was_interrupted:
            steps = steps[:-1]  # no connection was broken
        if self._is_away and self.error is not back:
            # The next run has all attempts of the retry policy again; its room's lock still counts.
            doubt = history.in_doubt if self._settles else None
            steps = [one for one in steps if one.verdict in {None, Verdict.BUSY} or one is doubt]
        kept = stored(steps, anyio.current_time() + back.seconds)
        unreadable = self._unreadable + isinstance(self.error, UNREADABLE)
        facts = json.dumps({"unreadable": unreadable, "steps": kept})
        return {
            "state": "sent" if history.may_have_arrived else "ready",
            "pause": back.seconds,
            "is_away": self._is_away,
            "error": None,
            "reason": one_line(back.reason),
            "size": None,
            "history": facts,
        }


def last_error(error: Exception, steps: Sequence[Step]) -> Exception:
    """Return what went wrong last, also a question after a document of unknown outcome."""
    verdicts = [step.verdict for step in steps if step.verdict is not None]
    is_known = bool(verdicts) and verdicts[-1] is not Verdict.UNKNOWN
    if isinstance(error, UploadOutcomeUnknown) and isinstance(error.__cause__, Exception):
        return error.__cause__ if is_known else error
    return error
