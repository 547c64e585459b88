"""One run of a queued upload: from its claim to its outcome, or until it is put back.

It decides like a job of a batch, with its row in the place of the journal's entry. It never waits:
before every wait it ends, and the queue starts the next run when the time has come.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn, TypeVar

import anyio
import attrs

from meeting_async._batch.job import RunningJob, is_stray
from meeting_async._batch.journal import State
from meeting_async._batch.results import UploadOutcome
from meeting_async._delivery.decide import Reason
from meeting_async._delivery.history import Step, loaded, stored
from meeting_async._delivery.upload import UploadHooks
from meeting_async._documents.document import Document
from meeting_async._documents.prepared import Prepared
from meeting_async._log import logger
from meeting_async._models import Attempt, Verdict
from meeting_async.errors import JournalError, MeetingError, UploadOutcomeUnknown, UploadPutBack
from meeting_async.procrastinate._brake import DocumentNotFound, decide
from meeting_async.procrastinate._table import Row, Table, packed, unusable

T = TypeVar("T")


NEIGHBOUR_SECONDS = 1.0
"""Pause if another upload of this process has the room."""

JOURNAL_SECONDS = 5.0
"""Pause if the table could not be written before the document was complete."""

RECORD_SECONDS = 300.0
"""For so long an outcome is kept and tried again while the database does not answer."""

CLAIM_SECONDS = 30.0
"""The same for the beginning of a run, and for its end without an outcome."""


class TakenOver(JournalError):
    """Another worker runs this upload, because this one was taken for dead."""


async def persistently(ask: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Ask the database again and again while it does not answer, for so many seconds at most."""
    ends_at = anyio.current_time() + seconds
    while True:
        try:
            return await ask()
        except JournalError:
            if anyio.current_time() > ends_at:
                raise
            await anyio.sleep(1)


@attrs.define(eq=False)
class QueuedRun(UploadHooks):
    """A claimed upload. Await :meth:`run` once."""

    upload: RunningJob
    row: Row
    table: Table
    find_document: Callable[[Row], Awaitable[Document]]
    must_end: Callable[[], bool]
    """Whether a cancellation means that the job is to be given up."""
    max_outage: float
    """Seconds for which an upload is put back while the server is away."""
    error: Exception | None = attrs.field(default=None, init=False)
    """What ended the run."""
    _put_back: UploadPutBack | None = attrs.field(default=None, init=False)
    """Why the run ends without an outcome."""
    _is_away: bool | None = attrs.field(default=None, init=False)
    """Whether the server was not reached; ``None``: it was not tried."""
    _starts_over: bool = attrs.field(default=False, init=False)
    """Whether the next run has all attempts of the retry policy again."""
    _unreadable: int = attrs.field(init=False)
    """How often the document was put back because it could not be read."""

    def __attrs_post_init__(self) -> None:
        history, row = self.upload.history, self.row
        retry = row.retry or {}
        self._unreadable = int(retry.get("unreadable") or 0)
        history.attempts.extend(row.attempts)
        history.steps.extend(loaded(retry.get("steps") or (), anyio.current_time()))
        history.was_sent = row.state in {"sent", "unknown"}

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts of this run."""
        return self.upload.history.attempts[len(self.row.attempts) :]

    async def run(self) -> UploadOutcome | None:
        """Upload, and record the outcome; ``None``: another worker has taken over.

        Raises:
            UploadPutBack: There is no outcome yet, and that is recorded.
            JournalError: The database did not answer.

        """
        interruption: BaseException | None = None
        try:
            document = await self._document()
            outcome = self.upload.delivered(await self.upload.deliver(document, self))
        except TakenOver:
            return None
        except Exception as error:  # noqa: BLE001 - it is recorded
            outcome = self._failed(error)
        except BaseException as error:  # noqa: BLE001 - raised again
            if is_stray(error):
                stray = RuntimeError("it was cancelled, though nobody cancelled the job")
                outcome = self._failed(stray)
            else:
                outcome, interruption = self._cut_off(), error
        is_ours = await (self._release() if self._put_back else self._finish(outcome))
        if is_ours and self._put_back is not None:
            raise self._put_back from None
        if interruption is not None and self._put_back is None:
            raise interruption
        return outcome if is_ours else None

    async def _document(self) -> Document:
        try:
            return await self.find_document(self.row)
        except (UploadPutBack, JournalError):
            raise
        except Exception as error:
            raise DocumentNotFound(told(error)) from error

    def _failed(self, error: Exception) -> UploadOutcome:
        history = self.upload.history
        self.error = last_error(error, history.steps)
        resends = self.upload.common.options.delivery == "at_least_once"
        if isinstance(error, UploadPutBack):
            self._put_back = error
        elif self._put_back is None and history.answer is None:  # else the wait counts
            is_certain = history.unknown_since is None
            self._put_back = self._later(self.error) if is_certain or resends else None
        if isinstance(error, DocumentNotFound) and isinstance(error.__cause__, Exception):
            error = error.__cause__
        return self.upload.failed(error)

    def _later(self, error: Exception) -> UploadPutBack | None:
        """Return for how long the upload is put back; ``None``: the error is its outcome."""
        if isinstance(error, JournalError):
            return UploadPutBack(JOURNAL_SECONDS, str(error))
        later = decide(
            error,
            away_for=self.row.troubled_ago or 0.0,
            unreadable=self._unreadable,
            max_outage=self.max_outage,
        )
        if later is None:
            return None
        self._is_away = later.is_away or None
        self._starts_over = later.is_away
        self._unreadable += later.is_unreadable
        return UploadPutBack(later.seconds, later.reason)

    def _cut_off(self) -> UploadOutcome:
        """Put the upload back, unless it may have arrived or is given up."""
        history = self.upload.history
        if history.unknown_since is None and history.answer is None and not self.must_end():
            self._put_back = UploadPutBack(0.0, "its worker was stopped")
        return self.upload.cut_off()

    # --- around an attempt -----------------------------------------------------------------------

    def waiting(self, reason: Reason, seconds: float | None) -> NoReturn:
        """End the run instead of waiting."""
        call, last = self.upload.call, self.upload.history.attempts[-1:]
        if reason != "queue":
            away = {Verdict.NEVER_SENT, Verdict.THROTTLED}
            self._is_away = reason == "retry" and any(one.verdict in away for one in last)
        pause = NEIGHBOUR_SECONDS if seconds is None else seconds
        self._put_back = UploadPutBack(pause, call.phase if call else "")
        raise self._put_back

    async def may_arrive(self, document: Prepared) -> None:
        """Record durably that the closing boundary is about to be sent."""
        if not await self.table.mark_sending(self.row, *document.version):
            raise unusable("says that another worker has taken over", TakenOver)

    # --- the record of the job -------------------------------------------------------------------

    async def _finish(self, outcome: UploadOutcome) -> bool:
        """Record the outcome; ``False``: another worker has taken over."""
        error = outcome.error
        reason = told(error) if error else None
        if isinstance(error, UploadOutcomeUnknown):
            reason = error.reason  # the report makes the same error of it
        finish = partial(
            self.table.finish,
            self.row,
            # Nobody runs a job again that was given up before its first attempt.
            state="failed" if outcome.status == "skipped" else outcome.status,
            error=type(error).__name__ if error else None,
            reason=reason,
            size=outcome.size,
            attempts=packed(outcome.attempts),
        )
        return await _until_recorded(finish, RECORD_SECONDS)

    async def _release(self) -> bool:
        """Record that the run has no outcome; ``False``: another worker has taken over."""
        history, row = self.upload.history, self.row
        if history.unknown_since is not None:
            state: State = "sent"
        else:
            state = row.state if row.state in {"sent", "unknown"} else "ready"
        pause = self._put_back.seconds if self._put_back else 0.0
        steps = history.steps
        if self._starts_over:  # with all attempts of the retry policy; its room's lock still counts
            steps = [step for step in steps if step.verdict in {None, Verdict.BUSY}]
        kept = stored(steps, anyio.current_time() + pause)
        retry = {"unreadable": self._unreadable, "steps": kept}
        release = partial(
            self.table.release,
            row,
            state=state,
            is_away=self._is_away,
            reason=self._put_back.reason if self._put_back else None,
            attempts=packed(history.attempts),
            retry=json.dumps(retry),
        )
        return await _until_recorded(release, CLAIM_SECONDS)


def last_error(error: Exception, steps: Sequence[Step]) -> Exception:
    """Return what went wrong last, also a question after a document of unknown outcome."""
    verdicts = [step.verdict for step in steps if step.verdict is not None]
    is_known = bool(verdicts) and verdicts[-1] is not Verdict.UNKNOWN
    if isinstance(error, UploadOutcomeUnknown) and isinstance(error.__cause__, Exception):
        return error.__cause__ if is_known else error
    return error


def told(error: Exception) -> str:
    """Return the text of an error; that of an error of other code begins with its type."""
    return str(error) if isinstance(error, MeetingError) else f"{type(error).__name__}: {error}"


async def _until_recorded(write: Callable[[], Awaitable[bool]], seconds: float) -> bool:
    """Write to its end also if procrastinate cancels the job meanwhile."""
    writing = asyncio.ensure_future(persistently(write, seconds))
    with anyio.CancelScope(shield=True):
        while not writing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([writing])
    return writing.result()


async def leave(table: Table, upload_id: int) -> str:
    """Leave an upload to the worker that has taken it over, and let it end first.

    Otherwise this job would set the status of the other one.
    """
    logger.warning("upload %d was taken over by another worker", upload_id)
    find = partial(table.find, upload_id)
    found = await persistently(find, RECORD_SECONDS)
    while found is not None and found["is_running"]:
        await anyio.sleep(1)
        found = await persistently(find, RECORD_SECONDS)
    if found is not None and found["state"] == "ready":
        raise UploadPutBack(0.0, "another worker has put it back")
    return "taken over"
