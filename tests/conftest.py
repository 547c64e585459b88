"""The harness: event loops, no blocking calls, a clock that jumps."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import ssl
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Generator, Iterator
from typing import Any, TextIO

import hypothesis  # early: when imported, it asks for referrers, and none is found once frozen
import pytest
from blockbuster import blockbuster_ctx

from support import systems
from support.certificates import make_certificate
from support.interpreter import Interpreter, interpreter
from support.tables import LOOPS, in_turn

# Else each of the many programs that tests start is compiled anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What a person may have set, and what programs of the tests would heed.
_PERSONAL = r"\w+_proxy|no_color|force_color|meeting_\w+|ssl\w+|pg\w+"
for _name in [name for name in os.environ if re.fullmatch(_PERSONAL, name, re.IGNORECASE)]:
    del os.environ[_name]

# A busy machine is no bug; pytest's own timeout ends what hangs.
hypothesis.settings.register_profile(
    "default", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)

SECONDS_TO_DUMP = 160.0
"""Below the ``timeout`` and ``faulthandler_timeout`` of pyproject.toml."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test that hangs show what its event loop waits for: that is in no thread's stack."""
    output = sys.__stderr__ or sys.stderr
    timer = threading.Timer(SECONDS_TO_DUMP, dump_tasks, [item.nodeid, output])
    timer.daemon = True
    timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()


def dump_tasks(name: str, file: TextIO) -> None:
    """Show the stack of every suspended coroutine that nothing else awaits.

    Only old objects: another thread may be building a young tuple, and CPython fails then.
    """
    suspended = [
        found
        for found in gc.get_objects(generation=2)
        if isinstance(found, types.CoroutineType) and found.cr_frame and not found.cr_running
    ]
    awaited = {id(found.cr_await) for found in suspended}
    file.write(f"\n{name} is late; suspended coroutines:\n")
    for coroutine in suspended:
        if id(coroutine) not in awaited:
            file.write("".join(traceback.format_list(_stack(coroutine))) + "\n")
    file.flush()


def _stack(coroutine: Any) -> list[traceback.FrameSummary]:
    stack = []
    link: Any = coroutine
    while link is not None:
        frame = getattr(link, "cr_frame", None) or getattr(link, "gi_frame", None)
        frame = frame or getattr(link, "ag_frame", None)
        if frame is not None:
            code = frame.f_code
            stack.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name))
        link = getattr(link, "cr_await", None) or getattr(link, "gi_yieldfrom", None)
    return stack


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what may take longest: or the end of a run would be a few tests in a row."""
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if is_whole and not config.getoption("lf", default=False):
        systems.check_table(items)
    if systems.IS_WINDOWS:
        systems.let_event_loops_look()
        systems.let_ports_come_free()
        systems.skip_what_cannot_run(items)

    def longest(item: pytest.Item) -> tuple[float, bool]:
        marker = item.get_closest_marker("timeout")
        # Workers of a queue and servers that do not answer: they wait, while others compute.
        return marker.args[0] if marker else 0.0, item.path.parent.name == "extras"

    items.sort(key=longest, reverse=True)


def pytest_collection_finish() -> None:
    """Keep imports and test items out of the garbage collections that tests ask for."""
    gc.collect()
    gc.freeze()


CROSSED = {
    "wire": ["tcp", "tls"],
    "library": ["httpx", "httpx2"],
    "document_bytes": ["large", "small"],
}
"""Fixtures that a fault does not need together with a certain event loop."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests marked ``both_loops`` on asyncio and trio.

    With one of the fixtures above, its values take turns on the loops; the other pairs are nightly.
    """
    names = metafunc.fixturenames
    crossed = next((name for name in CROSSED if name in names), None)
    is_both = "anyio_backend" in names and metafunc.definition.get_closest_marker("both_loops")
    if is_both and crossed:
        metafunc.parametrize(*in_turn(crossed, CROSSED[crossed]).args, indirect=True)
    elif is_both:
        metafunc.parametrize("anyio_backend", LOOPS, indirect=True)
    elif crossed:
        metafunc.parametrize(crossed, CROSSED[crossed], indirect=True)


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run asynchronous tests on asyncio, or on what the parameter says."""
    name = getattr(request, "param", "asyncio")
    if name == "selector":
        return "asyncio", {"loop_factory": asyncio.SelectorEventLoop}
    return name, {}


@pytest.fixture(autouse=True, scope="session")
def _no_blocking_calls() -> Iterator[None]:
    """Fail tests in which the library blocks a running asyncio loop."""
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


@pytest.fixture
def log_is_not_kept() -> Iterator[None]:
    """Else pytest keeps every record of a test, and what the errors in it hold."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="session")
def python() -> Iterator[Interpreter]:
    """Start what runs programs quickly."""
    with interpreter("anyio._backends._asyncio", "anyio._backends._trio", "httptools") as python:
        yield python


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make the server's and the client's side of one certificate."""
    key, cert = make_certificate(tmp_path_factory.mktemp("tls"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=str(cert))


# --- PostgreSQL ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres_of_session() -> Iterator[Any]:
    """Run one PostgreSQL for all tests that need one."""
    from support.postgres import postgres_running

    with postgres_running() as server:
        yield server


@pytest.fixture
def postgres(postgres_of_session: Any) -> Iterator[Any]:
    """Provide it; afterwards it runs, whatever a test did to it."""
    yield postgres_of_session
    if postgres_of_session.process is None:
        postgres_of_session.start()


@pytest.fixture(scope="session")
def _dsn_of_session(postgres_of_session: Any) -> str:
    """Make a database with the queue's tables."""
    from support.queue_worker import Order

    dsn: str = postgres_of_session.new_database()

    async def apply() -> None:
        app, client, uploads = Order(dsn=dsn, url="http://127.0.0.1:1").open()
        async with app.open_async(), client:
            await app.schema_manager.apply_schema_async()
            await uploads.apply_schema()

    asyncio.run(apply())
    return dsn


@pytest.fixture
def dsn(postgres: Any, _dsn_of_session: str) -> str:
    """Provide a database with the queue's tables, and no row in them."""
    postgres.empty(_dsn_of_session)
    return _dsn_of_session
