"""Finding and connecting: several addresses, hesitation, failure, cancellation."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from _peer import (
    Connection,
    Peer,
    deaf,
    descriptors,
    reply,
)
from _transports import (
    call,
    cancelled,
    closed_port,
    never_connects,
    upload,
)
from meeting_async import (
    HttpxTransport,
)

pytestmark = pytest.mark.anyio


async def test_keep_alive_probes_are_on(transport: HttpxTransport) -> None:
    """A conversion is minutes of silence, and address translators forget silent connections."""
    found = []

    def look(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        found.append(keep_alive_of(connection.sock.getpeername()))
        connection.send(reply())

    with Peer(look) as peer:
        await transport.send(upload(peer.url)[0])
    assert found == [1]


def keep_alive_of(address: object) -> int | None:
    """Find the socket of this process that has the address, and look at its option."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(entry.stat().st_mode):
                with socket.socket(fileno=os.dup(int(entry.name))) as sock:
                    if sock.getsockname() == address:
                        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    return None


@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "a" * 64 + ".invalid", "a..invalid", "a" * 300 + ".invalid"]
)
async def test_a_name_that_does_not_resolve(transport: HttpxTransport, host: str) -> None:
    """Unknown names and names that are none."""
    await never_connects(transport, f"http://{host}", seconds=6, connect=5)


async def test_a_port_nobody_listens_on(transport: HttpxTransport) -> None:
    """Refused, also on all addresses of a name."""
    await never_connects(transport, f"http://127.0.0.1:{closed_port()}")
    await never_connects(transport, f"http://localhost:{closed_port()}")


async def test_a_host_that_does_not_answer(transport: HttpxTransport, unanswering: str) -> None:
    """Given up after the connect timeout."""
    error = await never_connects(transport, f"http://{unanswering}")
    assert "in time" in error.reason


async def test_connecting_is_limited_as_a_whole(
    transport: HttpxTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name lookup, TCP and TLS together may take as long as ``Timeouts.connect`` says."""
    lookup = socket.getaddrinfo

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.2)
        return lookup(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with Peer(deaf) as peer:
        await never_connects(transport, f"https://localhost:{peer.port}", seconds=0.65, connect=0.5)


async def test_cancelled_while_connecting(transport: HttpxTransport, unanswering: str) -> None:
    """Ten connections that are not answered: none stays open."""
    await cancelled(transport, call(f"http://{unanswering}"), 0.02)
    before = descriptors()
    for number in range(10):
        await cancelled(transport, call(f"http://{unanswering}"), 0.002 * number + 0.001)
        await cancelled(transport, upload(f"http://{unanswering}")[0], 0.002 * number + 0.001)
    await anyio.sleep(0.05)
    assert descriptors() == before
