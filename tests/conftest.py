"""The harness: event loops, no blocking calls, a clock that jumps."""

from __future__ import annotations

import gc
import ssl
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

import hypothesis  # early: when imported, it asks for referrers, and none is found once frozen
import pytest
from blockbuster import blockbuster_ctx

from support.certificates import make_contexts
from support.watchdog import Watchdog

_watchdog = Watchdog()

# A busy machine is no bug; pytest's own timeout ends what hangs.
hypothesis.settings.register_profile(
    "default", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test that hangs show what it waits for."""
    _watchdog.begin(item.nodeid)
    try:
        return (yield)
    finally:
        _watchdog.end()


def pytest_collection_finish() -> None:
    """Keep imports and test items out of the garbage collections that tests ask for."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked ``both_loops`` on asyncio and trio."""
    if "anyio_backend" in metafunc.fixturenames and metafunc.definition.get_closest_marker(
        "both_loops"
    ):
        metafunc.parametrize("anyio_backend", ["asyncio", "trio"], indirect=True)


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run asynchronous tests on asyncio, or on what the parameter says."""
    return getattr(request, "param", "asyncio"), {}


@pytest.fixture(autouse=True)
def _no_blocking_calls() -> Iterator[None]:
    """Fail a test in which the library blocks a running asyncio loop."""
    with blockbuster_ctx("meeting_async") as blockbuster:
        # Threads get their work through locks, held for microseconds.
        for lock in ("threading.Lock.acquire", "threading.Lock.acquire_lock"):
            blockbuster.functions[lock].deactivate()
        yield


@pytest.fixture(autouse=True, scope="session")
def _own_temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give this process a folder for temporary files, as tests look for what is left behind."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))
        yield


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make the server's and the client's side of one certificate."""
    return make_contexts(tmp_path_factory.mktemp("tls"))
