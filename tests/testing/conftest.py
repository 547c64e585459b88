"""Worlds for golden requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.raw_http import World, opened_world


@pytest.fixture(params=["socket", "in process"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Provide a world, on a real socket and in process."""
    with opened_world(in_process=request.param == "in process") as world:
        yield world
