"""The harness: two event loops, no blocking calls, virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
import trio
import trio.testing
from blockbuster import blockbuster_ctx

T = TypeVar("T")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run each asynchronous test on both event loops."""
    return request.param, {}


@pytest.fixture(autouse=True)
def _no_blocking_calls() -> Iterator[None]:
    """Fail a test in which the library blocks a running asyncio loop."""
    with blockbuster_ctx("meeting_async"):
        yield


@pytest.fixture
def in_virtual_time() -> Callable[..., Any]:
    """Run a coroutine function on a clock that jumps to the next thing to happen.

    Everything must happen on this one loop: work in threads and on real sockets takes no time on
    such a clock. Documents are bytes, and the server is called in process.
    """

    def run(function: Callable[..., Awaitable[T]], *args: Any) -> T:
        return trio.run(function, *args, clock=trio.testing.MockClock(autojump_threshold=0))

    return run
