"""``meeting-async upload``: documents to one room, one after another."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence

import anyio
import attrs

from meeting_async import Document, Event, Finished, MeetingClient, _wire, errors
from meeting_async.cli._console import complain, console_on, say
from meeting_async.cli._outcomes import ExitCode, Outcome, combined, explained
from meeting_async.cli._progress import Display, display_on
from meeting_async.cli._targets import document_at

_HOPELESS = (errors.AuthenticationFailed, errors.RoomNotFound, errors.RoomNotActive)
"""Refusals that are not about the document: the next would get the same, after all its bytes."""


@attrs.frozen(kw_only=True)
class Options:
    """What the command line says about an upload; times are seconds."""

    filename: str | None = None
    max_wait: float | None = None
    deadline: float | None = None
    as_json: bool = False


def upload(room_id: str, targets: Sequence[str], options: Options) -> ExitCode:
    """Upload paths and links; nothing is sent unless all of them can be."""
    _wire.room_id_bytes(room_id)
    if options.filename is not None and len(targets) > 1:
        problem = "is given for several documents"
        raise errors.InvalidInput("--filename", options.filename, problem, "upload them singly")
    run = _Run(room_id, [document_at(target, options.filename) for target in targets], options)
    try:
        anyio.run(run.all, targets)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*run.interrupted) from None
    return combined(outcome.exit_code for outcome in run.outcomes)


@attrs.define
class _Run:
    """The uploads of one command."""

    room_id: str
    documents: Sequence[Document]
    options: Options
    outcomes: list[Outcome] = attrs.field(factory=list, init=False)
    interrupted: tuple[str, ...] = attrs.field(default=(), init=False)
    """What became of the upload that a Ctrl-C ended."""
    _finished: Finished | None = attrs.field(default=None, init=False)

    async def all(self, targets: Sequence[str]) -> None:
        """Upload everything, unless some of it cannot even be read."""
        async with MeetingClient.from_env() as client:
            pending = [
                await self._looked_at(*pair) for pair in zip(targets, self.documents, strict=True)
            ]
            if self.outcomes:
                return
            for before, document in zip(pending, self.documents, strict=True):
                if any(map(self._is_hopeless, self.outcomes)):
                    self._tell(attrs.evolve(before, outcome="skipped"))
                else:
                    self._tell(await self._one(client, before, document))

    async def _looked_at(self, target: str, document: Document) -> Outcome:
        """Measure a document; one that cannot be read is an outcome before anything is sent."""
        label = target if document.link is None else document.filename
        outcome = Outcome(room_id=self.room_id, document=label, outcome="cancelled")
        if document.source is None:
            return outcome
        try:
            async with document.source.held(document.filename, None) as content:
                size = (await content.measure()).size
        except errors.DocumentUnreadable as error:
            self._tell(outcome.failed(error, seconds=0.0))
            return outcome
        return attrs.evolve(outcome, size=size)

    async def _one(self, client: MeetingClient, before: Outcome, document: Document) -> Outcome:
        self._finished, started = None, anyio.current_time()
        try:
            with display_on(console_on(sys.stderr), stays=False) as display:
                shown = client.with_options(on_event=functools.partial(self._hear, display))
                receipt = await shown.upload_whiteboard_file(
                    self.room_id,
                    document,
                    max_wait=self.options.max_wait,
                    deadline=self.options.deadline,
                )
        except errors.MeetingError as error:
            return before.failed(error, seconds=anyio.current_time() - started)
        except anyio.get_cancelled_exc_class():
            self._note_interruption(before, anyio.current_time() - started)
            raise
        return before.accepted(receipt)

    def _hear(self, display: Display, event: Event) -> None:
        display(event)
        if isinstance(event, Finished):
            self._finished = event

    def _note_interruption(self, before: Outcome, seconds: float) -> None:
        fate, verdict = f"{before.document} did not reach {self.room_id}", "cancelled"
        if self._finished is not None and self._finished.verdict == "unknown":
            fate, verdict = f"{before.document} may or may not reach {self.room_id}", "unknown"
        self.interrupted = (fate,)
        if self.options.as_json:
            self._tell(attrs.evolve(before, outcome=verdict, seconds=seconds))

    def _is_hopeless(self, outcome: Outcome) -> bool:
        unwaited = isinstance(outcome.error, errors.RoomBusy) and self.options.max_wait == 0
        return unwaited or isinstance(outcome.error, _HOPELESS)

    def _tell(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if self.options.as_json:
            say(json.dumps(outcome.as_json()))
        elif outcome.outcome == "accepted":
            say(outcome.as_line())
        if outcome.error is not None:
            for line in explained(outcome.error):
                complain(f"{outcome.document}: {line}")
        elif outcome.outcome == "skipped":
            complain(f"{outcome.document}: skipped: the room would refuse it, too")
