"""What tests on real sockets share: clients on TCP and TLS, waiting for threads, interruptions."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio
import attrs
import pytest
import trio

from _peer import Peer, Script, descriptors, server_context
from meeting_async import HttpxTransport, LockPolicy, MeetingClient, RetryPolicy

KIB, MIB = 1024, 1024**2
WIRES = ["tcp", "tls"]
RECEIVE_BUFFER = 64 * KIB
"""Of a peer, so that little is in flight."""

on_each_wire = pytest.mark.parametrize("wire", WIRES)

T = TypeVar("T")


@functools.cache
def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Make the server's and the client's side of one certificate."""
    with tempfile.TemporaryDirectory() as directory:
        server, path = server_context(Path(directory))
        return server, ssl.create_default_context(cafile=path)


def peer_on(wire: str, *scripts: Script) -> Peer:
    """Make a peer with a small receive buffer."""
    tls = tls_contexts()[0] if wire == "tls" else None
    return Peer(*scripts, tls=tls, receive_buffer=RECEIVE_BUFFER)


def client_of(peer: Peer, wire: str, **settings: Any) -> MeetingClient:
    """Make a client that repeats nothing and does not wait for rooms."""
    verify = tls_contexts()[1] if wire == "tls" else True
    usual = {
        "api_key": "key",
        "api_secret": "hunter2",
        "transport": HttpxTransport(verify=verify),
        "retry": RetryPolicy(max_attempts=1),
        "lock": LockPolicy(max_wait=0),
    }
    return MeetingClient(peer.url, **{**usual, **settings})


@contextlib.asynccontextmanager
async def meeting(
    wire: str, *scripts: Script, **settings: Any
) -> AsyncIterator[tuple[MeetingClient, Peer]]:
    """Open a peer and a client; at the end neither a descriptor nor a task is left."""
    with peer_on(wire, *scripts) as peer:
        before, tasks = descriptors(peer), living_tasks()
        async with client_of(peer, wire, **settings) as client:
            yield client, peer
        await nothing_left(peer, before, tasks)


async def nothing_left(
    peer: Peer, before: Counter[str], tasks: int, where: str = "", *, kept: int = 0
) -> None:
    """Wait until the process has no more descriptors and tasks than it had, but idle sockets."""

    def left() -> str:
        more = descriptors(peer) - before
        also = living_tasks() - tasks
        if more.total() <= kept and also <= 0:
            return ""
        return f"{more.total()} descriptors {list(more)} and {also} tasks are left{where}"

    await until(lambda: not left(), left)


async def until(
    condition: Callable[[], object], otherwise: str | Callable[[], str], seconds: float = 2
) -> None:
    """Wait until another thread has come so far; ``otherwise`` says what is wrong if it has not."""
    with anyio.move_on_after(seconds):
        while not condition():  # noqa: ASYNC110 - it happens in another thread
            await anyio.sleep(0.002)
        return
    text = otherwise if isinstance(otherwise, str) else otherwise()
    pytest.fail(f"{text}, after {seconds:g} s")


def living_tasks() -> int:
    """Count the tasks of the running loop."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return trio.lowlevel.current_statistics().tasks_living


# --- interruptions -------------------------------------------------------------------------------


@attrs.define
class Interrupted(Generic[T]):
    """Drives a coroutine and does something when it waits for the n-th time."""

    coroutine: Coroutine[Any, Any, T]
    number: int
    strike: Callable[[], object]
    waited: int = 0
    """How often it waited."""

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self.coroutine.__await__()
        step: Callable[[], Any] = steps.__next__
        while True:
            try:
                trap = step()
            except StopIteration as end:
                result: T = end.value
                return result
            self.waited += 1
            if self.waited == self.number:
                self.strike()
            try:
                value = yield trap
            except BaseException as error:  # noqa: BLE001 - it goes to the coroutine
                step = functools.partial(steps.throw, error)
            else:
                step = functools.partial(steps.send, value)


@attrs.frozen
class Struck:
    """What came of it."""

    waited: bool
    """Whether there was an n-th wait; if not, the coroutine has run its course."""
    cancelled: bool
    """Whether it ended by being cancelled; behind a shield it may end as if it had not been."""


async def cancelled_by_scope(coroutine: Coroutine[Any, Any, object], number: int) -> Struck:
    """Cancel around the n-th wait."""
    with anyio.CancelScope() as scope:
        run = Interrupted(coroutine, number, scope.cancel)
        await run
    return Struck(run.waited >= number, scope.cancelled_caught)


async def cancelled_natively(coroutine: Coroutine[Any, Any, object], number: int) -> Struck:
    """Cancel a task of asyncio around its n-th wait, once, as ``asyncio.wait_for`` does."""

    async def main() -> None:
        await run

    task: asyncio.Task[None]
    run = Interrupted(coroutine, number, lambda: task.cancel())  # noqa: PLW0108 - the task comes later
    task = asyncio.create_task(main())
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return Struck(run.waited >= number, task.cancelled())
