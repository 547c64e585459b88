"""Hundreds of short connections with faults through one client, and how connections are reused."""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import json
import logging
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from _peer import Connection, Peer, delivered, descriptors, reply
from _wires import KIB, MIB, living_tasks, meeting, nothing_left, on_each_wire, until
from meeting_async import LockPolicy, MeetingClient, RetryPolicy
from meeting_async.errors import (
    ConnectionLost,
    DocumentRefused,
    MeetingError,
    UploadOutcomeUnknown,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

CONTENT = b"%PDF-1.7\n" + bytes(range(256)) * 1200
LARGE = CONTENT + bytes(6 * MIB)
"""More than the kernel takes off an application's hands."""
CALLS, UPLOADS = 240, 120
"""Of each churn."""
WORKERS = 6
MEMORY_LIMIT = 8 * MIB
"""By which the process may grow from one churn to the next."""
OBJECTS_LIMIT = (CALLS + UPLOADS) // 10
"""Objects that may stay behind: if every call left one, there would be ten times as many."""
SMUGGLED = reply(content=b'{"status":true,"msg":"smuggled","number":-1}')


logger = logging.getLogger("meeting_async")


# --- a peer that answers each call with its own number --------------------------------------------


def number_in(connection: Connection) -> int:
    """Read the body of a call, and the number in it."""
    connection.read_body()
    return int(json.loads(bytes(connection.request.body))["number"])


def answer_to(number: int) -> bytes:
    """Answer a call with its own number, so that a mistaken answer shows."""
    return reply(content=b'{"status":true,"msg":"","number":%d}' % number)


def path_of(connection: Connection) -> str:
    """Return the last part of the request's path: the name of a call's fault."""
    line = connection.request.head.split(b"\r\n", 1)[0]
    return line.split()[1].rpartition(b"/")[2].decode()


Fault = Callable[[Connection, bytes], bool]
"""Does what it is for instead of answering, and says whether the connection goes on."""


def _answer_and(surplus: bytes = b"", before: bytes = b"", *, go_on: bool = True) -> Fault:
    # In one piece: what comes later may meet the next call, and then nobody can tell.
    def fault(connection: Connection, answer: bytes) -> bool:
        connection.send(before + answer + surplus)
        return go_on

    return fault


def _close(_connection: Connection, _answer: bytes) -> bool:
    return False


def _rubbish(connection: Connection, _: bytes) -> bool:
    connection.send(b"SSH-2.0-OpenSSH_9.6\r\n")
    return False


def _reset(connection: Connection, _: bytes) -> bool:
    connection.reset()
    return False


def _answer_and_reset(connection: Connection, answer: bytes) -> bool:
    connection.send(answer)
    connection.reset()
    return False


def _truncate(connection: Connection, answer: bytes) -> bool:
    connection.send(answer[:-5])
    return False


def _silence(connection: Connection, _: bytes) -> bool:
    connection.drain()
    return False


def _chunked(connection: Connection, answer: bytes) -> bool:
    content = answer.partition(b"\r\n\r\n")[2]
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
    connection.send(reply(content=chunks, length=False, headers=[b"Transfer-Encoding: chunked"]))
    return True


CALL_FAULTS: dict[str, Fault] = {
    "none": _answer_and(),
    "chunked": _chunked,
    "interim": _answer_and(before=b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "smuggled": _answer_and(SMUGGLED),
    "garbage": _answer_and(b"garbage\r\n\r\n"),
    "closes-behind": _answer_and(go_on=False),
    "resets-behind": _answer_and_reset,
    "closes": _close,
    "resets": _reset,
    "truncates": _truncate,
    "rubbish": _rubbish,
    "silent": _silence,
}
UPLOAD_FAULTS = ["none", "cut-off", "early-413", "early-409", "garbage", "lost", "silent"]


@attrs.define
class Churn:
    """A script that commits the fault that a request names, the first time it comes."""

    served: collections.Counter[str] = attrs.field(factory=collections.Counter)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def __call__(self, connection: Connection) -> None:
        """Serve one connection until it ends."""
        while connection.read_head():
            if room := connection.request.values(b"Room-Id"):
                self._upload(connection, room[0].decode())
                return
            if not self._call(connection):
                return

    def _first(self, name: str) -> bool:
        with self._lock:
            self.served[name] += 1
            return self.served[name] == 1

    def _call(self, connection: Connection) -> bool:
        number, fault = number_in(connection), path_of(connection)
        if not self._first(f"call {number}"):
            fault = "none"
        return CALL_FAULTS[fault](connection, answer_to(number))

    def _upload(self, connection: Connection, room: str) -> None:
        fault = re.sub(r"-\d+$", "", room) if self._first(room) else "none"
        if fault == "cut-off":
            connection.read_body(10 * KIB, keep=False)
            connection.reset()
            return
        if fault.startswith("early"):
            connection.read_body(10 * KIB, keep=False)
            connection.send(reply(int(fault[-3:]), b"<html>", [b"Connection: close"]))
            return
        connection.read_body(connection.request.length, keep=False)
        if fault == "silent":
            connection.drain()
        elif fault == "lost":
            connection.reset()
        else:
            connection.send(reply() + (b"garbage" if fault == "garbage" else b""))


# --- the churn -----------------------------------------------------------------------------------


async def make_call(client: MeetingClient, fault: str, number: int) -> None:
    """Make a call and assert that the answer is its own."""
    with anyio.move_on_after(0.02 if fault == "silent" else 10) as scope:
        answer = await client.call(f"room/{fault}", {"number": number}, idempotent=True)
        assert answer["number"] == number, f"{fault}: {answer} is the answer to another call"
    assert scope.cancelled_caught is (fault == "silent"), f"call {number} ({fault})"


UPLOAD_ENDS: dict[str, type[MeetingError]] = {
    "early-413": DocumentRefused,
    "lost": UploadOutcomeUnknown,
}


async def make_upload(client: MeetingClient, fault: str, number: int) -> None:
    """Make an upload, and assert that it ends as its fault demands."""
    expected = UPLOAD_ENDS.get(fault)
    room, error = f"{fault}-{number}", None
    content = LARGE if fault == "cut-off" else CONTENT
    with anyio.move_on_after(0.05 if fault == "silent" else 10) as scope:
        try:
            receipt = await client.upload_whiteboard_file(room, content, filename="deck.pdf")
        except MeetingError as caught:
            error = caught
        else:
            attempts = 2 if fault in {"cut-off", "early-409"} else 1
            assert len(receipt.attempts) == attempts, (fault, receipt.attempts)
    assert scope.cancelled_caught is (fault == "silent"), f"upload {number} ({fault})"
    assert type(error) is (expected or type(None)), f"{room}: {error!r}"


def jobs(seed: int) -> Iterator[tuple[Any, str, int]]:
    """Yield calls and uploads with their faults in an order that looks random."""
    numbers = itertools.count(seed * 10_000)
    calls = itertools.islice(itertools.cycle(CALL_FAULTS), CALLS)
    uploads = itertools.islice(itertools.cycle(UPLOAD_FAULTS), UPLOADS)
    mixed = [(make_call, fault) for fault in calls] + [(make_upload, fault) for fault in uploads]
    random.Random(seed).shuffle(mixed)
    for make, fault in mixed:
        yield make, fault, next(numbers)


async def churn(client: MeetingClient, seed: int) -> None:
    """Work through all jobs with some workers."""
    pending = jobs(seed)

    async def work() -> None:
        for make, fault, number in pending:
            await make(client, fault, number)

    async with anyio.create_task_group() as group:
        for _ in range(WORKERS):
            group.start_soon(work)


async def settle(client: MeetingClient, peer: Peer, script: Churn) -> None:
    """Leave one idle connection, and drop what the peer remembers: it is in this process, too."""
    await until(lambda: peer.open <= WORKERS, lambda: f"{peer.open} connections are open")
    await restart(peer)
    await make_call(client, "none", 0)
    assert peer.open == 1
    peer.requests.clear()
    script.served.clear()
    peer._threads[:] = [thread for thread in peer._threads if thread.is_alive()]
    gc.collect()


async def restart(peer: Peer) -> None:
    """Close every connection that is open, and give the client's kernel time to notice."""
    for sock in list(peer._open):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
    await until(peer.idle, "the peer did not close")
    await anyio.sleep(0.01)


LIBRARIES = {"meeting_async", "httpcore", "httpx", "h11", "tenacity", "anyio", "asyncio"} | {
    *("ssl", "_ssl", "socket", "_socket"),
}


def living_objects() -> collections.Counter[str]:
    """Count objects by class: those of the libraries in use, and what runs or waits.

    Not those of trio: it keeps a thousand deadlines that are over before it clears them.
    """
    found: collections.Counter[str] = collections.Counter()
    for kind in map(type, gc.get_objects()):
        if kind.__module__.partition(".")[0] in LIBRARIES or kind.__name__ in {
            *("coroutine", "generator", "async_generator", "frame", "traceback"),
        }:
            found[kind.__qualname__] += 1
    return found


def resident() -> int:
    """Return the bytes of memory that this process occupies."""
    text = Path("/proc/self/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert match
    return int(match[1]) * 1024


PATIENT = {
    "retry": RetryPolicy(max_attempts=8, initial_delay=0.001, max_delay=0.01),
    "lock": LockPolicy(max_wait=5, min_delay=0.001),
}


@on_each_wire
async def test_churn(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets its own answer, once; then all works, and nothing has accumulated."""
    monkeypatch.setattr(logger, "disabled", True)  # pytest would keep every record
    script = Churn()
    async with meeting(wire, script, **PATIENT) as (client, peer):
        await churn(client, seed=1)
        await settle(client, peer, script)
        objects, memory = living_objects(), resident()
        await churn(client, seed=2)
        for room, times in script.served.items():
            twice = room.startswith(("cut-off", "early-409"))
            assert room.startswith("call") or times == 1 + twice, (room, times)
        await settle(client, peer, script)
        more, grown = living_objects() - objects, resident() - memory
        assert more.total() < OBJECTS_LIMIT, f"more than before: {more}"
        assert grown < MEMORY_LIMIT, f"{grown:,} bytes more than before"
        for number in range(10):
            await make_call(client, "none", number)
            await make_upload(client, "none", number)


# --- what stands behind a reply ------------------------------------------------------------------


SURPLUS = {
    "a reply": SMUGGLED,
    "a refusal": reply(401),
    "an interim reply": b"HTTP/1.1 100 Continue\r\n\r\n",
    "half a reply": SMUGGLED[:30],
    "a line": b"\r\n",
    "garbage": b"garbage",
    "one byte": b"H",
    "much": b"x" * 100_000,
}


@on_each_wire
@pytest.mark.parametrize("name", SURPLUS)
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
async def test_a_surplus_is_not_the_next_answer(wire: str, name: str, later: bool) -> None:
    """Behind a reply, or on an idle connection: the next call has its own, and is made once."""
    served: list[int] = []
    sent = threading.Semaphore(0)

    def script(connection: Connection) -> None:
        while connection.read_head():
            served.append(number := number_in(connection))
            if later:
                connection.send(answer_to(number))
                time.sleep(0.01)
                connection.send(SURPLUS[name])
            else:
                connection.send(answer_to(number) + SURPLUS[name])
            sent.release()

    async with meeting(wire, script) as (client, _):
        for number in range(4):
            answer = await client.call("room/x", {"number": number})
            assert answer["number"] == number, f"call {number} was answered with {answer}"
            if later:
                await until(lambda: sent.acquire(blocking=False), "the surplus was not sent")
                await anyio.sleep(0.005)
    assert served == list(range(4))


# --- idle connections ----------------------------------------------------------------------------


def _shut(connection: Connection) -> None:
    """Close by FIN; over TLS without saying so."""
    socket.socket.shutdown(connection.sock, socket.SHUT_WR)


def _notify(connection: Connection) -> None:
    """Close as TLS wants it, by close_notify; over TCP there is no such thing."""
    if not isinstance(connection.sock, ssl.SSLSocket):
        _shut(connection)
        return
    with contextlib.suppress(OSError):
        connection.sock.settimeout(0.01)
        connection.sock.unwrap()


ENDS: dict[str, Callable[[Connection], None]] = {
    "closes": lambda _: None,
    "resets": Connection.reset,
    "half-closes": _shut,
    "says goodbye": _notify,
}


@on_each_wire
@pytest.mark.parametrize("end", ENDS)
async def test_an_idle_connection_that_the_server_closed(wire: str, end: str) -> None:
    """The next call works, though it must not be repeated, and the server sees it once."""
    served: list[int] = []
    ended = threading.Semaphore(0)

    def script(connection: Connection) -> None:
        if not connection.read_head():
            return
        served.append(number := number_in(connection))
        connection.send(answer_to(number))
        delivered(connection, 0.05)
        ENDS[end](connection)
        ended.release()
        if end == "half-closes":
            with contextlib.suppress(OSError):
                connection.drain()

    async with meeting(wire, script) as (client, peer):
        for number in range(5):
            answer = await client.call("room/x", {"number": number})
            assert answer["number"] == number
            await until(lambda: ended.acquire(blocking=False), "the peer did not close")
            await anyio.sleep(0.01)
    assert served == list(range(5))
    assert peer.connected == 5


@on_each_wire
async def test_all_idle_connections_are_closed_by_the_server(wire: str) -> None:
    """A restart of the server: none of the idle ones is mistaken for a live one."""
    generation = 0
    barrier = threading.Barrier(5)

    def script(connection: Connection) -> None:
        mine = generation
        while connection.read_head():
            number = number_in(connection)
            if mine == 0:
                barrier.wait(5)
            connection.send(answer_to(number))

    async with meeting(wire, script) as (client, peer):
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(make_call, client, "none", number)
        generation = 1
        await restart(peer)
        for number in range(5, 8):
            answer = await client.call("room/x", {"number": number})
            assert answer["number"] == number
    assert peer.connected == 6


@attrs.define
class Numbered:
    """A script that notes which connection serves which call, and answers when it is told to."""

    served: dict[int, int] = attrs.field(factory=dict)
    """Number of the connection by number of the call."""
    uploads: list[int] = attrs.field(factory=list)
    """Number of the connection of each upload."""
    held: dict[int, threading.Event] = attrs.field(factory=dict)
    """Calls that are answered only when their event is set."""
    _numbers: Iterator[int] = attrs.field(factory=itertools.count)

    def __call__(self, connection: Connection) -> None:
        """Serve one connection."""
        mine = next(self._numbers)
        while connection.read_head():
            if connection.request.values(b"Room-Id"):
                self.uploads.append(mine)
                connection.read_body()
                connection.send(reply())
                continue
            number = number_in(connection)
            self.served[number] = mine
            if number in self.held:
                self.held[number].wait(5)
            connection.send(answer_to(number))


async def burst(client: MeetingClient, script: Numbered, order: list[int]) -> None:
    """Begin calls by their number, all at the same time, and end them in the given order."""
    script.held.update({number: threading.Event() for number in order})
    ended: list[int] = []

    async def run(number: int) -> None:
        await make_call(client, "none", number)
        ended.append(number)

    async with anyio.create_task_group() as group:
        for number in sorted(order):
            group.start_soon(run, number)
            await until(partial(script.served.__contains__, number), "a call is not made")
        for number in order:
            script.held[number].set()
            await until(partial(ended.__contains__, number), "a call does not end")


@on_each_wire
async def test_idle_connections_are_used_newest_first(wire: str) -> None:
    """What was used last is used next: the rest can grow old and be closed."""
    script = Numbered()
    async with meeting(wire, script) as (client, peer):
        await burst(client, script, [2, 0, 3, 1])
        assert peer.connected == 4
        for number in range(10, 15):
            await make_call(client, "none", number)
        served = script.served
        assert {served[number] for number in range(10, 15)} == {served[1]}
        await burst(client, script, [20, 21])
        assert {served[20], served[21]} == {served[1], served[3]}
        await make_call(client, "none", 30)
        assert served[30] == served[21]
        await burst(client, script, [40, 41, 42])
        assert {served[40], served[41], served[42]} == {served[1], served[3], served[0]}
    assert peer.connected == 4


@on_each_wire
async def test_uploads_and_calls_never_share_a_connection(wire: str) -> None:
    """Whatever is idle, an upload connects; and what an upload used serves nobody else."""
    script = Numbered()
    async with meeting(wire, script) as (client, peer):
        for number in range(5):
            await make_call(client, "none", number)
            await client.upload_whiteboard_file(f"room-{number}", CONTENT, filename="deck.pdf")
        async with anyio.create_task_group() as group:
            for number in range(5, 10):
                group.start_soon(make_call, client, "none", number)
                room = f"room-{number}"
                upload = partial(client.upload_whiteboard_file, filename="deck.pdf")
                group.start_soon(upload, room, CONTENT)
        await until(lambda: peer.open <= 5, lambda: f"{peer.open} connections are open")
    assert len(script.uploads) == len(set(script.uploads)) == 10
    assert set(script.uploads) & set(script.served.values()) == set()


@on_each_wire
async def test_a_connection_of_a_failed_call_is_not_kept(wire: str) -> None:
    """A call that broke takes its connection with it; the next one has a new one."""

    def script(connection: Connection) -> None:
        while connection.read_head():
            number = number_in(connection)
            if number % 2:
                connection.send(answer_to(number)[:-5])
                return
            connection.send(answer_to(number))

    async with meeting(wire, script) as (client, peer):
        before, tasks = descriptors(peer), living_tasks()
        for number in range(0, 20, 2):
            await make_call(client, "none", number)
            with pytest.raises(ConnectionLost):
                await client.call("room/x", {"number": number + 1})
            await nothing_left(peer, before, tasks, f" by call {number + 1}")
    assert peer.connected == 10


@on_each_wire
async def test_not_every_connection_of_a_burst_is_kept(wire: str) -> None:
    """After a burst of fifty calls, not fifty connections stay open for ever."""
    together, ended = 50, []
    barrier = threading.Barrier(together)

    def script(connection: Connection) -> None:
        while connection.read_head():
            number = number_in(connection)
            if number < together:
                barrier.wait(5)
            connection.send(answer_to(number))

    async with meeting(wire, script) as (client, peer):

        async def run(number: int) -> None:
            await make_call(client, "none", number)
            ended.append(number)

        async with anyio.create_task_group() as group:
            for number in range(together):
                group.start_soon(run, number)
        assert len(ended) == peer.connected == together
        await until(lambda: peer.open < together, "all fifty connections are kept")
        await make_call(client, "none", together)
        assert peer.connected == together
