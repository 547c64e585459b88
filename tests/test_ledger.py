"""The account of a call: attempts, what may have arrived, and the errors that say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest

from meeting_async import errors
from meeting_async._attempts import Attempt
from meeting_async._ledger import Ledger, Seen
from meeting_async._verdicts import Repeatability, Verdict
from meeting_async._wire import Answer

pytestmark = pytest.mark.anyio


@attrs.frozen
class Call:
    """A call of which only the facts are needed."""

    upload: bool = True
    path: str = "room/uploadWhiteboardFile"
    room_id: str | None = "room01"
    label: str | None = "deck.pdf"
    size: int = 1000
    repeatability: Repeatability = Repeatability.AT_MOST_ONCE
    is_spent: bool = False

    def prepared(self, progress: object) -> object:
        """Unused."""
        raise NotImplementedError

    async def probe(self) -> object:
        """Unused."""
        raise NotImplementedError


def ledger(call: Call | None = None, window: float = 300.0) -> Ledger:
    """Open an account for a call that begins now."""
    return Ledger(call or Call(), anyio.current_time(), window)  # type: ignore[arg-type]  # it has what is needed


def noted(account: Ledger, verdict: Verdict, seen: Seen | None = None, sent: int = 1000) -> None:
    """Note an attempt that began with the call."""
    seen = seen or Seen(error=errors.ConnectionLost("reset"))
    account.record(seen, verdict, began=account.began, bytes_sent=sent, body_seconds=None)


async def test_attempts_are_remembered() -> None:
    """With their number, their times since the call began, and what was seen."""
    account = ledger()
    account.record(
        Seen(Answer(409, description="busy")),
        Verdict.BUSY,
        began=account.began + 2.0,
        bytes_sent=7,
        body_seconds=0.25,
    )
    noted(account, Verdict.PARTIAL)
    first, second = account.attempts
    assert first == Attempt(
        number=1,
        started=2.0,
        seconds=first.seconds,
        verdict="busy",
        status=409,
        reason="HTTP 409 (busy)",
        bytes_sent=7,
        body_seconds=0.25,
    )
    assert -2.0 <= first.seconds < 0
    assert (second.number, second.status, second.reason) == (2, None, "reset")


@pytest.mark.parametrize(
    ("verdict", "upload", "is_lost"),
    [
        (Verdict.UNKNOWN, True, True),
        (Verdict.UNKNOWN, False, False),
        (Verdict.PARTIAL, True, False),
        (Verdict.BUSY, True, False),
    ],
)
async def test_only_an_upload_can_be_lost(verdict: Verdict, upload: bool, is_lost: bool) -> None:
    """And only one whose form was complete."""
    account = ledger(Call(upload=upload))
    noted(account, verdict)
    assert (account.lost_at is not None) is is_lost
    assert (account.cut_off() is not None) is is_lost


def test_the_lock_of_a_lost_attempt_is_free_after_its_window(
    in_virtual_time: Callable[..., Any],
) -> None:
    """Counted from the end of the attempt, and never below zero."""

    async def run() -> list[float]:
        account = ledger(window=300.0)
        await anyio.sleep(10)
        noted(account, Verdict.UNKNOWN)
        seen = [account.lock_free_in()]
        for seconds in (100, 300):
            await anyio.sleep(seconds)
            seen.append(account.lock_free_in())
        return seen

    assert in_virtual_time(run) == [300.0, 200.0, 0.0]


@pytest.mark.parametrize(
    ("verdicts", "error", "final"),
    [
        ([Verdict.ACCEPTED], None, "accepted"),
        ([Verdict.UNKNOWN, Verdict.BUSY], errors.RoomBusy("r", 1.0, ""), "unknown"),
        ([Verdict.BUSY], errors.RoomBusy("r", 1.0, ""), "busy"),
        ([Verdict.PARTIAL], KeyboardInterrupt(), "cancelled"),
        ([Verdict.REFUSED], errors.ConnectionLost(""), "refused"),
        ([], errors.ConnectionLost(""), "never sent"),
    ],
)
async def test_the_verdict_on_the_whole(
    verdicts: list[Verdict], error: BaseException | None, final: str
) -> None:
    """A maybe outweighs everything but success."""
    account = ledger()
    for verdict in verdicts:
        noted(account, verdict)
    assert account.final_verdict(error) == final


@pytest.mark.parametrize(
    ("verdict", "seen", "upload", "kind"),
    [
        (Verdict.UNKNOWN, Seen(Answer(502, description="?")), True, errors.UploadOutcomeUnknown),
        (Verdict.UNKNOWN, Seen(Answer(502, description="?")), False, errors.UnexpectedReply),
        (Verdict.PARTIAL, Seen(error=errors.ConnectionLost("x")), True, errors.UploadInterrupted),
        (Verdict.NEVER_SENT, Seen(error=errors.ConnectFailed("x")), True, errors.ConnectFailed),
        (Verdict.BUSY, Seen(Answer(409, description="busy")), True, errors.RoomBusy),
        (Verdict.REFUSED, Seen(Answer(413, description="large")), True, errors.DocumentRefused),
    ],
)
async def test_what_is_raised(
    verdict: Verdict, seen: Seen, upload: bool, kind: type[errors.MeetingError]
) -> None:
    """The error of the verdict; what was seen is its cause, unless it is that itself."""
    account = ledger(Call(upload=upload))
    noted(account, verdict, seen)
    error = account.error(verdict, seen, "Not tried again.")
    assert type(error) is kind
    assert error.__cause__ is (None if error is seen.error else seen.error)
    assert error.__notes__[-1] == "Not tried again."


async def test_an_answer_brings_its_advice() -> None:
    """A hint of the verdict table is a note."""
    account, seen = ledger(), Seen(Answer(308, description="moved"))
    noted(account, Verdict.REFUSED, seen)
    assert len(getattr(account.error(Verdict.REFUSED, seen), "__notes__", [])) == 1


async def test_what_is_unknown_is_told_completely() -> None:
    """Room, document, size, the most that was sent, why, and until when the lock may last."""
    account = ledger(window=300.0)
    noted(account, Verdict.UNKNOWN, sent=1000)
    noted(account, Verdict.PARTIAL, sent=400)
    error = account.unknown("silence")
    assert (error.room_id, error.document, error.size) == ("room01", "deck.pdf", 1000)
    assert (error.bytes_sent, error.reason) == (1000, "silence")
    assert 299 < error.lock_free_in <= 300


async def test_what_a_cancellation_leaves_behind() -> None:
    """Whether it was the attempt that was cut off, or an earlier one that was lost."""
    account = ledger()
    assert account.cut_off() is None
    noted(account, Verdict.UNKNOWN)
    account.phase = "waiting for the reply"
    error = account.cut_off()
    assert error is not None
    assert error.reason == "it was cut off while waiting for the reply"
    assert error.attempts == tuple(account.attempts)
    noted(account, Verdict.BUSY)
    error = account.cut_off()
    assert error is not None
    assert error.reason.startswith("an earlier attempt was lost, then: it was cut off")


def test_what_was_seen_in_words() -> None:
    """An answer, an error, or the kind of an error that has nothing to say."""
    assert Seen(Answer(404, description="no")).reason == "HTTP 404 (no)"
    assert Seen(error=ValueError("bad")).reason == "bad"
    assert Seen(error=KeyboardInterrupt()).reason == "KeyboardInterrupt"
    assert Seen(Answer(429, retry_after=3.0)).hint == 3.0
    assert Seen(error=ValueError()).hint is None
