"""Calls in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from meeting_async.testing import run_in_virtual_time


@pytest.fixture
def run(anyio_backend_name: str) -> Callable[..., Any]:
    """Run a coroutine function on a clock that jumps."""

    def run(function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        return run_in_virtual_time(function, *args, backend=anyio_backend_name)

    return run
