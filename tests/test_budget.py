"""What the calls of a client may spend on repeating themselves."""

from __future__ import annotations

from meeting_async._budget import CAPACITY, RetryBudget


def spent(budget: RetryBudget) -> int:
    """Repeat until nothing is left; return how often."""
    count = 0
    while budget.take():
        count += 1
    return count


def test_a_hundred_in_a_row() -> None:
    """Then no more, and asking costs nothing."""
    budget = RetryBudget()
    assert spent(budget) == 100
    assert [budget.take(), budget.take(), budget.tokens] == [False, False, 0]


def test_a_success_pays_for_its_own_repetition() -> None:
    """A call that gets through at the second attempt leaves the bucket as it was."""
    budget = RetryBudget()
    for _ in range(1000):
        assert budget.take()
        budget.refund(repeated=True)
    assert budget.tokens == CAPACITY


def test_five_successes_buy_a_repetition() -> None:
    """A bucket that is empty fills with what goes well at once."""
    budget = RetryBudget(tokens=0)
    for _ in range(4):
        budget.refund(repeated=False)
        assert not budget.take()
    budget.refund(repeated=False)
    assert spent(budget) == 1


def test_it_never_overflows() -> None:
    """A day of successes buys no storm."""
    budget = RetryBudget()
    for _ in range(10_000):
        budget.refund(repeated=False)
    assert spent(budget) == 100
