"""The harness: two event loops, no blocking calls, virtual time."""

from __future__ import annotations

import contextlib
import gc
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import hypothesis  # noqa: F401 - when imported, it asks for referrers: none is found once frozen
import pytest
import trio
import trio.testing
from blockbuster import blockbuster_ctx

from _alone import (
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_configure_node,
    pytest_runtest_protocol,
)
from _peer import server_context
from _transports import finish
from meeting_async import HttpxTransport

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_runtest_protocol",
]
"""The hooks that are made elsewhere."""

T = TypeVar("T")


def pytest_collection_finish() -> None:
    """Keep the imports and all test items out of the garbage collections that tests ask for.

    With 400,000 objects of theirs each would take half a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run each asynchronous test on both event loops."""
    return request.param, {}


@pytest.fixture(autouse=True)
def _no_blocking_calls() -> Iterator[None]:
    """Fail a test in which the library blocks a running asyncio loop."""
    with blockbuster_ctx("meeting_async") as blockbuster:
        # Threads are handed their work through locks, held for microseconds; coverage has one, too.
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
def in_virtual_time() -> Callable[..., Any]:
    """Run a coroutine function on a clock that jumps to the next thing to happen.

    Everything must happen on this one loop: work in threads and on real sockets takes no time on
    such a clock. Documents are bytes, and the server is called in process.
    """

    def run(function: Callable[..., Awaitable[T]], *args: Any) -> T:
        return trio.run(function, *args, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


# --- for the tests of the transport and of what it is made of ------------------------------------


@pytest.fixture
def transport_class() -> type[HttpxTransport]:
    """Say which transport is tested."""
    return HttpxTransport


@pytest.fixture
async def transport(transport_class: type[HttpxTransport]) -> AsyncIterator[HttpxTransport]:
    """Provide a transport."""
    transport = transport_class()
    yield transport
    await finish(transport)


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make the server's and the client's side of one certificate."""
    server, path = server_context(tmp_path_factory.mktemp("tls"))
    return server, ssl.create_default_context(cafile=path)


@pytest.fixture(params=["tcp", "tls"])
def wire(request: pytest.FixtureRequest) -> tuple[ssl.SSLContext | None, ssl.SSLContext | bool]:
    """Run a test in clear and encrypted: what ``Peer`` and ``HttpxTransport`` need for it."""
    if request.param == "tcp":
        return None, True
    server, client = request.getfixturevalue("tls")
    return server, client


@pytest.fixture
def unanswering() -> Iterator[str]:
    """Provide an address whose queue of connections is full, so that no attempt is answered."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"
