"""Worlds for golden requests, and a pytest inside a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.inner import inner_pytest
from support.worlds import World, opened_world

__all__ = ["inner_pytest", "world"]


@pytest.fixture(params=["socket", "in process"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Provide a world, on a real socket and in process."""
    with opened_world(in_process=request.param == "in process") as world:
        yield world
