"""Calls in virtual time, on asyncio and on trio."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from support import virtual_time


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Any:
    """Run a coroutine function on a clock that jumps."""
    return partial(virtual_time.run, request.param)
