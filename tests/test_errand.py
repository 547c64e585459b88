"""One job of a batch: from its turn to its outcome, whatever comes in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from _batches import PDF, Town, client_of, job
from _courses import cut_off, lost
from _fakes import Act, accepted, busy, failing, hanging
from meeting_async import Document, MeetingClient, UploadJob, UploadOutcome
from meeting_async._documents import HeldDocument
from meeting_async._errand import Errand, label_of
from meeting_async._presence import Presence
from meeting_async._slots import Slot, Slots
from meeting_async._terms import Terms
from meeting_async.errors import BatchStopped, UploadOutcomeUnknown

pytestmark = pytest.mark.anyio

InVirtualTime = Callable[..., Any]
OPENED: list[MeetingClient] = []


@pytest.fixture(autouse=True)
def _nothing_to_close() -> Iterator[None]:
    """Let no client complain that nobody closed it: its transport holds nothing."""
    yield
    for client in OPENED:
        client._calls.shared.used = False
    OPENED.clear()


def errand_of(one: UploadJob, town: Town, **terms: Any) -> Errand:
    """Make an errand that has a slot, without a journal."""
    client = client_of(town)
    OPENED.append(client)
    slots = Slots(0, lambda: 0, lambda: None)
    return Errand(
        index=7,
        job=one,
        calls=client._calls,
        terms=Terms(**terms),
        presence=Presence(client._calls, None, lambda: None),
        journal=None,
        slot=Slot(slots, lambda: 1),
        batch_began=anyio.current_time() - 10,
        claim=None,
        when_over=lambda _outcome: None,
    )


def outcome_of(errand: Errand) -> UploadOutcome:
    """Return the outcome; there must be one."""
    assert errand.outcome is not None
    return errand.outcome


async def test_a_job_that_goes_well() -> None:
    """The outcome says whose it is, when it was, and what the server said."""
    errand = errand_of(job("room01", 0, key="row 5"), Town())
    assert errand.outcome is None
    await errand.run()
    outcome = outcome_of(errand)
    assert (outcome.index, outcome.room_id, outcome.document) == (7, "room01", "room01-0.pdf")
    assert (outcome.status, outcome.size, outcome.key) == ("accepted", len(PDF), "row 5")
    assert outcome.receipt is not None
    assert (outcome.receipt.status_code, outcome.error) == ("SUCCESS", None)
    assert outcome.started == pytest.approx(10, abs=0.5)
    assert len(outcome.attempts) == 1
    assert errand.journal_error is None


async def test_nothing_is_raised() -> None:
    """Whatever a job does; the error is in the outcome as it is."""
    error = KeyError("x")
    errand = errand_of(job("room01"), Town(lambda _: failing(error, take=5)))
    await errand.run()
    assert (outcome_of(errand).status, outcome_of(errand).error) == ("failed", error)


def test_times_count_from_the_beginning_of_the_job(in_virtual_time: InVirtualTime) -> None:
    """Those of attempts too, though the room was asked for first; the waits are the rest."""

    async def main() -> UploadOutcome:
        acts = [busy(replying=2), accepted(replying=3)]
        town = Town(lambda _: acts.pop(0), ask=lambda _: accepted(replying=5))
        errand = errand_of(job("room01"), town)
        await errand.run()
        return outcome_of(errand)

    outcome = in_virtual_time(main)
    assert [attempt.started for attempt in outcome.attempts] == pytest.approx([5, 7.5])
    assert outcome.seconds == pytest.approx(10.5)
    assert outcome.waited == pytest.approx(5.5)
    assert (outcome.conflicts, outcome.bytes_resent) == (1, len(PDF))


# --- cut off -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "status", "how_far"),
    [
        (hanging(), "unknown", None),
        (hanging(take=5), "failed", "on its way"),
        (busy(), "failed", "on its way"),
    ],
)
def test_a_job_that_is_cut_off(
    in_virtual_time: InVirtualTime, act: Act, status: str, how_far: str | None
) -> None:
    """While its answer is awaited, while it is sent, while it waits for the room."""

    async def main() -> Errand:
        errand = errand_of(job("room01"), Town(lambda _: act))
        with anyio.move_on_after(10.1) as scope:
            await errand.run()
        assert scope.cancelled_caught
        return errand

    outcome = outcome_of(in_virtual_time(main))
    assert outcome.status == status
    assert outcome.attempts
    if how_far is None:
        assert isinstance(outcome.error, UploadOutcomeUnknown)
        assert outcome.error.attempts
    else:
        assert isinstance(outcome.error, BatchStopped)
        assert how_far in str(outcome.error)


def test_a_job_that_is_cut_off_before_it_was_sent(in_virtual_time: InVirtualTime) -> None:
    """It was not tried."""

    async def main() -> UploadOutcome:
        errand = errand_of(job("room01"), Town(ask=lambda _: hanging()))
        with anyio.move_on_after(1):
            await errand.run()
        return outcome_of(errand)

    outcome = in_virtual_time(main)
    assert (outcome.status, outcome.attempts) == ("skipped", ())
    assert isinstance(outcome.error, BatchStopped)


@attrs.frozen
class Untidy(Document):
    """A document that takes long to tidy up, or cannot."""

    error: Exception | None = None

    @contextlib.asynccontextmanager
    async def held(self, **how: Any) -> AsyncGenerator[HeldDocument, None]:
        """Hold it."""
        async with Document.held(self, **how) as held:
            yield held
            if self.error is not None:
                raise self.error
            await anyio.sleep_forever()


@pytest.mark.parametrize("error", [None, OSError("disk")])
def test_what_was_accepted_stays_accepted(
    in_virtual_time: InVirtualTime, error: Exception | None
) -> None:
    """Though it is cut off while it tidies up, or that fails."""

    async def main() -> UploadOutcome:
        plain = Document.from_bytes(PDF, "deck.pdf")
        untidy = Untidy(plain.source, None, "deck.pdf", plain.content_type, error)
        errand = errand_of(UploadJob("room01", untidy), Town())
        with anyio.move_on_after(5) as scope:
            await errand.run()
        assert scope.cancelled_caught is (error is None)
        return outcome_of(errand)

    outcome = in_virtual_time(main)
    assert (outcome.status, outcome.error) == ("accepted", None)
    assert outcome.receipt is not None


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("take", "status"), [({"take": 5}, "failed"), ({}, "unknown")])
async def test_a_stray_cancellation(anyio_backend: str, take: dict[str, int], status: str) -> None:
    """An ordinary error, with the truth about the document."""
    stray = asyncio.CancelledError()
    errand = errand_of(job("room01"), Town(lambda _: failing(stray, **take)))
    await errand.run()
    outcome = outcome_of(errand)
    assert outcome.status == status
    assert isinstance(outcome.error, RuntimeError if take else UploadOutcomeUnknown)


async def test_the_end_of_the_program_passes() -> None:
    """Once it is said what it left behind."""
    errand = errand_of(job("room01"), Town(lambda _: failing(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        await errand.run()
    assert outcome_of(errand).status == "unknown"


# --- slots ---------------------------------------------------------------------------------------


def test_a_slot_is_held_while_there_is_something_to_do(in_virtual_time: InVirtualTime) -> None:
    """Given back for waits, claimed again for attempts; and given back at the end."""

    async def main() -> None:
        held: list[bool] = []
        errands: list[Errand] = []

        def answer(_visit: object) -> Act:
            held.append(errands[0].slot.is_held)
            return busy() if len(held) < 3 else cut_off() if len(held) < 4 else accepted()

        errands.append(errand := errand_of(job("room01"), Town(answer)))
        async with anyio.create_task_group() as group:
            group.start_soon(errand.run)
            await anyio.sleep(0.2)
            assert not errand.slot.is_held
            assert errand.slot.slots.free == 1
        assert held == [True] * 4
        assert not errand.slot.is_held
        assert outcome_of(errand).status == "accepted"

    in_virtual_time(main)


def test_the_terms_reach_the_upload(in_virtual_time: InVirtualTime) -> None:
    """How long to wait for the room, and for everything."""

    async def seconds(**terms: Any) -> float:
        errand = errand_of(job("room01"), Town(lambda _: busy()), **terms)
        await errand.run()
        assert outcome_of(errand).status == "failed"
        return outcome_of(errand).seconds

    assert in_virtual_time(lambda: seconds(max_wait=50)) == pytest.approx(50)
    assert in_virtual_time(lambda: seconds(deadline=20)) == pytest.approx(20)


async def test_an_unknown_outcome_is_reported() -> None:
    """With what is known about the lock."""
    errand = errand_of(job("room01"), Town(lambda _: lost()))
    await errand.run()
    error = outcome_of(errand).error
    assert isinstance(error, UploadOutcomeUnknown)
    assert error.lock_free_in > 299


# --- names ---------------------------------------------------------------------------------------


class Strange:
    """A path that cannot be asked for."""

    def __fspath__(self) -> str:
        raise KeyError("strange")


@pytest.mark.parametrize(
    ("document", "filename", "label"),
    [
        (PDF, "week 1/deck.pdf", "deck.pdf"),
        ("/slides/deck.pdf", None, "deck.pdf"),
        (Path("/slides/deck.pdf"), "other.pdf", "other.pdf"),
        (Document.from_link("https://host/deck.pdf?token=geheim"), None, "https://host/deck.pdf?…"),
        (Document.from_bytes(PDF, "own.pdf"), None, "own.pdf"),
        ("https://host/deck.pdf?token=geheim", None, ""),
        (PDF, None, ""),
        (None, None, ""),
        (PDF, "", ""),
        (Strange(), None, ""),
    ],
)
def test_labels(document: Any, filename: str | None, label: str) -> None:
    """As well as can be without looking at the document; never a secret, never an error."""
    assert label_of(UploadJob("room01", document, filename=filename)) == label
