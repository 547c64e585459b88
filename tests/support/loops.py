"""Parameters that take turns on the event loops, for tests of which every second run is enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

LOOPS = ["asyncio", "trio"]


def in_turn(
    name: str, values: Iterable[Any], *, loop: str = "anyio_backend", nightly: Sequence[Any] = ()
) -> pytest.MarkDecorator:
    """Run each value on one loop, and nightly on the other; some values nightly only.

    A value that is not text comes as a pair with its name.
    """
    rows = []
    for number, value in enumerate([*values, *nightly]):
        label, given = value if isinstance(value, tuple) else (value, value)
        for turn, backend in enumerate(LOOPS):
            is_late = (number + turn) % 2 or value in nightly
            marks = [pytest.mark.nightly] if is_late else []
            rows.append(pytest.param(backend, given, id=f"{label}-{backend}", marks=marks))
    indirect = [loop] if loop == "anyio_backend" else []
    return pytest.mark.parametrize((loop, name), rows, indirect=indirect)
