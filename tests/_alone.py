"""Tests side by side (pytest-xdist): one that is marked ``alone`` runs without neighbours.

The marker is for tests that measure the machine: for how long a loop stands still, what a process
takes of the processor, how promptly something happens. They come last, and the workers of a run
share the locks of one file: every test shares the floor with others, one that is ``alone`` has it
to itself. Without pytest-xdist, and where there is no ``fcntl``, nothing is moved and no test
waits for another.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

try:
    import fcntl
except ImportError:  # Windows
    HAS_LOCKS = False
else:
    HAS_LOCKS = True

GATE, FLOOR = 0, 1
"""The bytes of the file that are locked: record locks, as no process that a test forks has them."""


@attrs.define
class Turns:
    """The locks, as one worker holds them."""

    descriptor: int

    @contextlib.contextmanager
    def turn(self, *, alone: bool) -> Iterator[None]:
        """Wait for the floor and hold it during the block."""
        with self._held(GATE, fcntl.LOCK_EX):  # so that nobody overtakes who waits to be alone
            self._lock(FLOOR, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        try:
            yield
        finally:
            self._lock(FLOOR, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def _held(self, byte: int, how: int) -> Iterator[None]:
        self._lock(byte, how)
        try:
            yield
        finally:
            self._lock(byte, fcntl.LOCK_UN)

    def _lock(self, byte: int, how: int) -> None:
        fcntl.lockf(self.descriptor, how, 1, byte)


FILE = pytest.StashKey[str]()
TURNS = pytest.StashKey[Turns]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker which file it shares with the others; make it for the first of them."""
    if FILE not in node.config.stash:
        descriptor, path = tempfile.mkstemp(prefix="alone-")
        os.close(descriptor)
        node.config.add_cleanup(lambda: Path(path).unlink())
        node.config.stash[FILE] = path
    node.workerinput["alone"] = node.config.stash[FILE]


def pytest_configure(config: pytest.Config) -> None:
    """Open the file in a worker."""
    path = getattr(config, "workerinput", {}).get("alone")
    if path and HAS_LOCKS:
        descriptor = os.open(path, os.O_RDWR)
        config.add_cleanup(lambda: os.close(descriptor))
        config.stash[TURNS] = Turns(descriptor)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put those last for whom the other workers would have to stop."""
    if TURNS in config.stash:
        items.sort(key=is_alone)


def is_alone(item: pytest.Item) -> bool:
    """Tell whether a test is marked."""
    return item.get_closest_marker("alone") is not None


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of the limit of time for each test
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test begin when it is its turn."""
    turns = item.config.stash.get(TURNS, None)
    if turns is None:
        return (yield)
    with turns.turn(alone=is_alone(item)):
        return (yield)
