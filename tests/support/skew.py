"""A process whose wall clock is wrong: ``python -m support.skew SECONDS MODULE ARGUMENT...``."""

from __future__ import annotations

import datetime as dt
import runpy
import sys
import time
from typing import Any


def apply(seconds: float) -> None:
    """Make the wall clock wrong by so much, for modules that are imported from now on."""
    really, as_date = time.time, dt.datetime
    delta = dt.timedelta(seconds=seconds)

    class Skewed(as_date):  # type: ignore[valid-type, misc]
        """A date whose class tells the wrong time."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return as_date.now(tz) + delta

        @classmethod
        def utcnow(cls) -> Any:
            return as_date.now(dt.UTC).replace(tzinfo=None) + delta

    time.time = lambda: really() + seconds
    vars(dt)["datetime"] = Skewed


if __name__ == "__main__":
    apply(float(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
