"""Tables of parameters that are crossed: each value is tested, and every night all pairs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest


def crossed(**tables: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrise a test with all combinations; all but the fewest with each value are nightly.

    A table of loops is called ``anyio_backend``.
    """
    longest = max(map(len, tables.values()))
    keys = [list(table) for table in tables.values()]
    covering = {
        tuple(column[(number + turn) % len(column)] for turn, column in enumerate(keys))
        for number in range(longest)
    }
    rows = [
        pytest.param(
            *(table[key] for table, key in zip(tables.values(), combination, strict=True)),
            id="-".join(combination),
            marks=() if combination in covering else pytest.mark.nightly,
        )
        for combination in itertools.product(*keys)
    ]
    indirect = ["anyio_backend"] if "anyio_backend" in tables else False
    return pytest.mark.parametrize(tuple(tables), rows, indirect=indirect)


LOOPS = {"asyncio": "asyncio", "trio": "trio"}
