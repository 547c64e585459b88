"""Who goes along with an upload: asked before each attempt, told of each wait and of the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest

from _batches import PDF, Town, client_of
from _courses import OWN_500, cut_off, lost, refused
from _fakes import Act, accepted, busy, failing, reply
from meeting_async import Document, LockPolicy, RetryPolicy
from meeting_async._calls import Upload
from meeting_async.errors import (
    ConnectionLost,
    JournalError,
    MeetingError,
    RoomBusy,
    UploadInterrupted,
    UploadOutcomeUnknown,
)

pytestmark = pytest.mark.anyio

InVirtualTime = Callable[..., Any]
ATTEMPT, END, WAIT, LATE_WAIT = "attempt", "end", "wait", "wait, may have arrived"


@attrs.define
class Diary:
    """A companion that writes down what it hears, and objects when it is told to."""

    entries: list[str] = attrs.field(factory=list)
    objects_to: str = ""
    error: Exception = attrs.field(factory=lambda: KeyError("objection"))

    async def before_attempt(self) -> None:
        """Write it down."""
        self._note(ATTEMPT)

    async def before_end(self) -> None:
        """Write it down."""
        self._note(END)

    async def before_wait(self, *, may_have_arrived: bool) -> None:
        """Write it down."""
        self._note(LATE_WAIT if may_have_arrived else WAIT)

    def _note(self, entry: str) -> None:
        self.entries.append(entry)
        if entry == self.objects_to:
            raise self.error


async def gone_along(
    diary: Diary, town: Town, *, max_wait: float | None = None, **options: Any
) -> tuple[Upload, Exception | None]:
    """Upload a document in company; return the upload and what it raised."""
    document = Document.from_bytes(PDF, "deck.pdf")
    async with client_of(town, **options) as client:
        upload = client._calls.upload(
            "room01", document, max_wait=max_wait, deadline=None, companion=diary
        )
        try:
            await upload.run()
        except Exception as error:  # noqa: BLE001 - examined by the test
            return upload, error
    return upload, None


def scripted(*acts: Act) -> Town:
    """Make a town that plays a script."""
    left = list(acts)
    return Town(lambda _: left.pop(0))


@pytest.mark.parametrize(
    ("script", "entries"),
    [
        ([accepted()], [ATTEMPT, END]),
        ([busy(), accepted()], [ATTEMPT, END, WAIT, ATTEMPT, END]),
        ([refused(), accepted()], [ATTEMPT, WAIT, ATTEMPT, END]),
        ([cut_off(), accepted()], [ATTEMPT, WAIT, ATTEMPT, END]),
        ([lost()], [ATTEMPT, END]),
        ([OWN_500], [ATTEMPT, END]),
        ([reply(429, b"", retry_after="3"), accepted()], [ATTEMPT, END, WAIT, ATTEMPT, END]),
    ],
)
def test_what_a_companion_hears(
    in_virtual_time: InVirtualTime, script: list[Act], entries: list[str]
) -> None:
    """Every attempt, every end that is about to leave, every wait."""
    diary = Diary()
    in_virtual_time(gone_along, diary, scripted(*script))
    assert diary.entries == entries


def test_what_may_have_arrived(in_virtual_time: InVirtualTime) -> None:
    """From the lost attempt on, for all that follows."""
    diary, town = Diary(), scripted(lost(), busy(), accepted())
    _, error = in_virtual_time(lambda: gone_along(diary, town, delivery="at_least_once"))
    assert error is None
    assert diary.entries == [ATTEMPT, END, LATE_WAIT, ATTEMPT, END, LATE_WAIT, ATTEMPT, END]


def test_standing_in_line_does_not_count_as_waiting_for_the_room(
    in_virtual_time: InVirtualTime,
) -> None:
    """A companion that lets it wait for longer than the lock may take costs no patience."""

    class Slow(Diary):
        async def before_attempt(self) -> None:
            await super().before_attempt()
            await anyio.sleep(1000)

    diary, town = Slow(), scripted(busy(), busy(), busy(), accepted())
    upload, error = in_virtual_time(lambda: gone_along(diary, town, max_wait=20))
    assert error is None
    assert len(upload.attempts) == 4
    diary, town = Slow(), Town(lambda _: busy())
    _, error = in_virtual_time(lambda: gone_along(diary, town, max_wait=20))
    assert isinstance(error, RoomBusy)
    assert error.waited == pytest.approx(20)


def test_waiting_for_a_turn(in_virtual_time: InVirtualTime) -> None:
    """It is a wait like any other, and comes before the first attempt."""

    async def main() -> list[str]:
        diary, town = Diary(), Town(seconds=5)
        async with client_of(town) as client, anyio.create_task_group() as group:
            document = Document.from_bytes(PDF, "deck.pdf")
            group.start_soon(client.upload_whiteboard_file, "room01", document)
            await anyio.sleep(1)
            upload = client._calls.upload(
                "room01", document, max_wait=None, deadline=None, companion=diary
            )
            await upload.run()
        return diary.entries

    assert in_virtual_time(main) == [WAIT, ATTEMPT, END]


def test_who_does_not_queue_is_not_told_to_wait(in_virtual_time: InVirtualTime) -> None:
    """With ``max_wait=0``."""

    async def main() -> tuple[list[str], Exception | None]:
        diary, town = Diary(), Town(seconds=5)
        async with client_of(town) as client, anyio.create_task_group() as group:
            document = Document.from_bytes(PDF, "deck.pdf")
            group.start_soon(client.upload_whiteboard_file, "room01", document)
            await anyio.sleep(1)
            upload = client._calls.upload(
                "room01", document, max_wait=0, deadline=None, companion=diary
            )
            with pytest.raises(RoomBusy) as caught:
                await upload.run()
        return diary.entries, caught.value

    entries, _ = in_virtual_time(main)
    assert entries == []


def test_a_probe_is_part_of_an_attempt(in_virtual_time: InVirtualTime) -> None:
    """It connects, so it comes after the question; a locked room then means a wait."""
    asked: list[int] = []
    diary = Diary()

    def answer(visit: Any) -> Act:
        asked.append(visit.number)
        assert diary.entries[-1] == ATTEMPT
        return busy() if visit.number == 1 else accepted()

    town = Town(answer)
    lock = LockPolicy(probe=True, jitter=0)
    in_virtual_time(lambda: gone_along(diary, town, lock=lock))
    assert diary.entries == [ATTEMPT, WAIT, ATTEMPT, END]
    assert asked == [1, 2, 3]


@pytest.mark.parametrize("moment", [ATTEMPT, WAIT, END])
@pytest.mark.parametrize("error", [KeyError("x"), JournalError("j.db", "is full")], ids=type)
def test_what_a_companion_raises_ends_the_upload(
    in_virtual_time: InVirtualTime, moment: str, error: Exception
) -> None:
    """Before the closing boundary, so that nothing arrived and nothing is unknown."""
    diary = Diary(objects_to=moment, error=error)
    town = scripted(refused() if moment == WAIT else accepted())
    upload, raised = in_virtual_time(lambda: gone_along(diary, town))
    assert raised is error
    assert diary.entries[-1] == moment
    assert not any(visit.exchange.complete for visit in town.visits)
    assert upload.loss is None
    assert upload.receipt is None


@pytest.mark.parametrize("moment", [ATTEMPT, LATE_WAIT, END])
def test_an_objection_after_a_loss(in_virtual_time: InVirtualTime, moment: str) -> None:
    """Does not make a no of a maybe."""

    class Late(Diary):
        def _note(self, entry: str) -> None:
            self.entries.append(entry)
            if entry == moment and LATE_WAIT in self.entries:
                raise KeyError("late")

    town = scripted(lost(), accepted())
    upload, raised = in_virtual_time(lambda: gone_along(Late(), town, delivery="at_least_once"))
    assert isinstance(raised, UploadOutcomeUnknown)
    assert isinstance(raised.__cause__, KeyError)
    assert upload.attempts[0].verdict == "unknown"


# --- when the document of an attempt was out -----------------------------------------------------


def test_how_long_the_document_took(in_virtual_time: InVirtualTime) -> None:
    """Of each attempt by itself: sending is over there, and processing begins."""
    town = scripted(
        busy(sending=4, replying=1),
        failing(ConnectionLost("reset"), take=5, sending=4),
        accepted(connecting=2, sending=4, replying=3),
    )
    upload, error = in_virtual_time(lambda: gone_along(Diary(), town))
    assert error is None
    held, torn, done = upload.attempts
    assert held.body_seconds == pytest.approx(4, rel=0.5)
    assert held.seconds == pytest.approx(5)
    assert torn.body_seconds is None
    assert done.body_seconds == pytest.approx(6, rel=0.5)
    assert 2 < done.body_seconds < done.seconds - 3
    assert done.seconds == pytest.approx(9)


@pytest.mark.parametrize("acts", [[refused()] * 2, [cut_off(5)] * 2])
def test_a_document_that_was_never_out(in_virtual_time: InVirtualTime, acts: list[Act]) -> None:
    """There is no such moment."""
    retry = RetryPolicy(max_attempts=2)
    upload, error = in_virtual_time(lambda: gone_along(Diary(), scripted(*acts), retry=retry))
    assert isinstance(error, MeetingError | UploadInterrupted)
    assert [attempt.body_seconds for attempt in upload.attempts] == [None, None]
