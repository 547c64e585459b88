"""Tables of parameters: each value is tested each time, all pairs are nightly."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from support.systems import is_wine


def crossed(**given: Mapping[str, Any] | Iterable[object]) -> pytest.MarkDecorator:
    """Parametrise a test with all combinations; all but the fewest with each value are nightly.

    A table of loops is called ``anyio_backend``.
    """
    tables = {
        name: table if isinstance(table, Mapping) else {str(value): value for value in table}
        for name, table in given.items()
    }
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


BACKENDS = ("asyncio", "trio")

LOOPS = ("asyncio", "selector" if is_wine() else "trio")
"""Values of ``anyio_backend``. In the place of trio, Wine runs the other loop of asyncio."""


def in_turn(
    name: str, values: Iterable[Any], *, loop: str = "anyio_backend", nightly: Sequence[Any] = ()
) -> pytest.MarkDecorator:
    """Run each value on one loop, and nightly on the other; some values nightly, on one loop.

    A value that is not text comes as a pair with its name.
    """
    pairs, late = (
        [value if isinstance(value, tuple) else (value, value) for value in each]
        for each in (values, nightly)
    )
    rows = []
    for number, (label, given) in enumerate([*pairs, *late]):
        is_late = number >= len(pairs)
        for turn, backend in enumerate(LOOPS if loop == "anyio_backend" else BACKENDS):
            is_other = (number + turn) % 2
            if is_late and is_other:
                continue
            marks = [pytest.mark.nightly] if is_late or is_other else []
            rows.append(pytest.param(backend, given, id=f"{label}-{backend}", marks=marks))
    indirect = [loop] if loop == "anyio_backend" else []
    return pytest.mark.parametrize((loop, name), rows, indirect=indirect)
