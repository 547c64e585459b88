"""A schedule played in virtual time: what each caller got, and what the server knows of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import anyio
import attrs
import trio
import trio.testing

from _fakes import EventRecorder
from _model import KEY, SECRET, WINDOW, Contact, ModelServer, calling
from _schedules import ROOMS, Job, Schedule
from meeting_async import (
    Document,
    Finished,
    LockPolicy,
    MeetingClient,
    RetryPolicy,
    UploadReceipt,
)
from meeting_async.errors import MeetingError

LONG_ENOUGH = 24 * 3600.0
"""Seconds for a schedule; one that takes longer is stuck."""
LOCK = LockPolicy()


@attrs.define(eq=False)
class Call:
    """One upload, what the caller got, and what the server knows of it."""

    number: int
    job: Job
    retry: RetryPolicy
    contacts: list[Contact] = attrs.field(factory=list)
    recorder: EventRecorder = attrs.field(factory=EventRecorder)
    outcome: UploadReceipt | MeetingError | None = None
    """``None`` when it was cancelled."""
    began: float = 0.0
    ended: float = 0.0

    @property
    def name(self) -> str:
        """Name of the document, of which there is one per call."""
        return f"deck{self.number}.pdf"

    @property
    def content(self) -> bytes:
        """The document: full of what might be taken for a boundary."""
        return (b"%%PDF-%d\r\n--\r\n\r\n" % self.number * self.job.size)[: self.job.size]

    def document(self) -> Document:
        """Return the document as it is given."""
        if not self.job.comes_once:
            return Document.from_bytes(self.content, self.name)
        stream, size = _stream(self.content), self.job.size
        return Document.from_stream(stream, self.name, size=size, replayable=False)

    @property
    def max_wait(self) -> float:
        """Seconds to wait for the room's lock."""
        return LOCK.max_wait if self.job.max_wait is None else self.job.max_wait

    @property
    def accepted(self) -> list[Contact]:
        """The attempts that put the document into the room."""
        return [contact for contact in self.contacts if contact.form]

    @property
    def unsettled(self) -> list[Contact]:
        """The attempts of which the client cannot know whether they did."""
        return [contact for contact in self.contacts if not contact.settled]

    @property
    def verdict(self) -> str:
        """The verdict of the last event, which comes once, if the call came to life."""
        finished = self.recorder.of(Finished)
        assert [event.call for event in finished] == [event.call for event in finished[:1]]
        return finished[0].verdict if finished else "cancelled"


@attrs.define(eq=False)
class Run:
    """A schedule that was played."""

    schedule: Schedule
    server: ModelServer
    calls: list[Call] = attrs.field(factory=list)


def played(schedule: Schedule) -> Run:
    """Play a schedule in virtual time, then upload to every room once more."""
    holds = dict(zip(ROOMS, schedule.holds, strict=True))
    run = Run(schedule, ModelServer([job.faults for job in schedule.jobs], holds))
    trio.run(partial(_play, run), clock=trio.testing.MockClock(autojump_threshold=0))
    return run


async def _stream(content: bytes) -> AsyncIterator[bytes]:
    half = len(content) // 2
    for part in (content[:half], b"", content[half:]):
        yield part
        await anyio.sleep(0.01)


async def _play(run: Run) -> None:
    client = MeetingClient(
        "https://meet.test",
        api_key=KEY,
        api_secret=SECRET,
        transport=run.server,
        lock=LOCK,
        retry=run.schedule.retry,
    )
    async with client:
        with anyio.fail_after(LONG_ENOUGH):
            await _together(run, client, run.schedule.jobs)
            await anyio.sleep(3 * WINDOW)  # by then everybody's lock is gone, and our own
            await _together(run, client, [Job(room=room) for room in ROOMS])


async def _together(run: Run, client: MeetingClient, jobs: tuple[Job, ...] | list[Job]) -> None:
    async with anyio.create_task_group() as group:
        for job in jobs:
            call = Call(len(run.calls), job, run.schedule.retry)
            run.calls.append(call)
            group.start_soon(_upload, run, client, call)
    for call in run.calls:
        call.contacts = run.server.of(call.number)


async def _upload(run: Run, client: MeetingClient, call: Call) -> None:
    job = call.job
    await anyio.sleep(job.delay)
    calling.set(call.number)
    call.began = anyio.current_time()
    own = client.with_options(delivery=job.delivery, on_event=call.recorder)
    with anyio.move_on_after(job.cancelled_after):
        try:
            call.outcome = await own.upload_whiteboard_file(
                job.room,
                call.document(),
                max_wait=job.max_wait,
                deadline=job.deadline,
            )
        except MeetingError as error:
            call.outcome = error
    call.ended = anyio.current_time()
