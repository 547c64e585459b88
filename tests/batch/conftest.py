"""The process that runs batches to a bad end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.limited_worker import LimitedWorker, limited_worker


@pytest.fixture(scope="session")
def worker() -> Iterator[LimitedWorker]:
    """Provide it."""
    with limited_worker() as worker:
        yield worker
