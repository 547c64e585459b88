"""Finding and connecting: several addresses, hesitation, failure, cancellation."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
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
    within,
)
from meeting_async import (
    HttpxTransport,
    _dialing,
)
from meeting_async._dialing import dial

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


# --- several addresses ---------------------------------------------------------------------------


@pytest.fixture
def resolves(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Let every name stand for the given addresses; an IPv6 one is made up from its family."""

    def resolve(*addresses: str) -> None:
        async def lookup(host: str, port: int, **_options: Any) -> list[_dialing.Address]:
            await anyio.lowlevel.checkpoint()
            return [row(address) for address in addresses]

        monkeypatch.setattr(anyio, "getaddrinfo", lookup)

    return resolve


Resolve = Callable[..., None]


def row(address: str) -> _dialing.Address:
    """Make one row of ``getaddrinfo``."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host.strip("[]"), int(port))


def refused() -> str:
    """Return an address that refuses."""
    return f"127.0.0.1:{closed_port()}"


@contextlib.contextmanager
def listening() -> Iterator[str]:
    """Provide an address that answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def port_of(address: str) -> int:
    """Return the port of an address."""
    return int(address.rpartition(":")[2])


async def test_the_only_address_is_taken() -> None:
    """Connected, not blocking, and with the options that every event loop and we set."""
    with listening() as good, await dial("127.0.0.1", port_of(good)) as sock:
        assert sock.getpeername()[1] == port_of(good)
        assert sock.getblocking() is False
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 30


async def test_a_name_with_one_address_needs_no_race(resolves: Resolve) -> None:
    """And its error is the system's own."""
    with listening() as good:
        resolves(good)
        with await dial("meet.invalid", 80) as sock:
            assert sock.getpeername()[1] == port_of(good)
    resolves(refused())
    with pytest.raises(ConnectionRefusedError):
        await dial("meet.invalid", 80)


async def test_an_ipv6_literal_is_not_looked_up(resolves: Resolve) -> None:
    """Its family follows from the address."""
    resolves("127.0.0.1:1")
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with listener, await dial("::1", listener.getsockname()[1]) as sock:
        assert sock.family == socket.AF_INET6


@pytest.mark.alone
@pytest.mark.parametrize("count", [1, 3])
async def test_a_refused_address_costs_no_hesitation(resolves: Resolve, count: int) -> None:
    """The next one is tried at once."""
    with listening() as good:
        resolves(*[refused() for _ in range(count)], good)
        with within(0.24), await dial("meet.invalid", 80) as sock:
            assert sock.getpeername()[1] == port_of(good)


@pytest.mark.alone
async def test_a_hesitating_address_costs_one_hesitation(
    resolves: Resolve, unanswering: str
) -> None:
    """A quarter of a second later the next one is tried, too, and the first is given up."""
    with listening() as good:
        resolves(unanswering, good, refused())
        before = descriptors()
        started = anyio.current_time()
        with within(0.49), await dial("meet.invalid", 80) as sock:
            assert sock.getpeername()[1] == port_of(good)
            assert anyio.current_time() - started >= 0.24
    assert descriptors().total() == before.total() - 1  # the listener is gone


async def test_a_late_answer_of_the_first_address_still_counts(
    resolves: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt does not end the first one."""
    monkeypatch.setattr(_dialing, "HESITATION_SECONDS", 0.01)
    begun: list[object] = []

    async def connected(address: _dialing.Address) -> socket.socket:
        begun.append(address[4])
        await anyio.sleep(0.05 if len(begun) == 1 else 60)
        return socket.socket()

    monkeypatch.setattr(_dialing, "_connected", connected)
    resolves("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    with within(1):
        (await dial("meet.invalid", 80)).close()
    assert begun == [("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 3)]


@pytest.mark.alone
async def test_all_addresses_fail(resolves: Resolve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of the first address, a plain ``OSError``; no descriptor is left."""
    refusing = [refused() for _ in range(3)]
    resolves(*refusing)
    before = descriptors()
    with within(0.24), pytest.raises(ConnectionRefusedError):
        await dial("meet.invalid", 80)
    codes = iter((101, 111, 113))

    async def failing(_address: object) -> socket.socket:
        raise OSError(next(codes), "no")

    monkeypatch.setattr(_dialing, "_connected", failing)
    with pytest.raises(OSError, match="no") as caught:
        await dial("meet.invalid", 80)
    assert caught.value.errno == 101
    assert descriptors() == before


async def test_two_addresses_answer_at_once(
    resolves: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One socket is used, the other is closed."""
    monkeypatch.setattr(_dialing, "HESITATION_SECONDS", 0.01)
    made: list[socket.socket] = []
    both = anyio.Event()

    async def connected(_address: object) -> socket.socket:
        sock = socket.socket()
        made.append(sock)
        if len(made) == 2:
            both.set()
        with anyio.CancelScope(shield=True):
            await both.wait()
        return sock

    monkeypatch.setattr(_dialing, "_connected", connected)
    resolves("127.0.0.1:1", "127.0.0.1:2")
    with await dial("meet.invalid", 80) as sock:
        assert [one for one in made if one.fileno() >= 0] == [sock]


@pytest.mark.parametrize("after", [0, 0.01, 0.26])
async def test_cancelled_in_the_middle(resolves: Resolve, unanswering: str, after: float) -> None:
    """During the first attempt and during both: no descriptor stays."""
    resolves(unanswering, unanswering)
    before = descriptors()
    with anyio.move_on_after(after) as scope:
        await dial("meet.invalid", 80)
    assert scope.cancelled_caught
    assert descriptors() == before


async def test_cancelled_when_one_has_just_answered(
    resolves: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that nobody takes is closed."""
    scope = anyio.CancelScope()
    made: list[socket.socket] = []

    async def connected(_address: object) -> socket.socket:
        scope.cancel()
        made.append(socket.socket())
        return made[-1]

    monkeypatch.setattr(_dialing, "_connected", connected)
    resolves("127.0.0.1:1", "127.0.0.1:2")
    with scope, await dial("meet.invalid", 80):
        pass
    assert [sock.fileno() for sock in made] == [-1] * len(made)
    assert made


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ("6666", "6666"),
        ("6644", "6464"),
        ("4466", "4646"),
        ("4", "4"),
        ("64444", "64444"),
        ("446", "464"),
    ],
)
def test_the_families_take_turns(addresses: str, expected: str) -> None:
    """The resolver's first choice begins (RFC 8305 section 4); the order within stays."""
    families = {"4": socket.AF_INET, "6": socket.AF_INET6}
    rows = [(families[one], 1, 6, "", number) for number, one in enumerate(addresses)]
    mixed = _dialing._interleaved(rows)
    assert [one[0] for one in mixed] == [families[one] for one in expected]
    assert sorted(one[4] for one in mixed) == list(range(len(rows)))
    for family in set(families.values()):
        numbers = [one[4] for one in mixed if one[0] == family]
        assert numbers == sorted(numbers)


@pytest.mark.alone
async def test_an_address_that_the_system_has_no_family_for(
    resolves: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host without IPv6 fails to make the socket; the next address is tried."""
    make = socket.socket

    def only_ipv4(family: int = -1, *args: Any, **kwargs: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return make(family, *args, **kwargs)

    monkeypatch.setattr(socket, "socket", only_ipv4)
    with listening() as good:
        resolves("[::1]:1", good)
        with within(0.24), await dial("meet.invalid", 80) as sock:
            assert sock.getpeername()[1] == port_of(good)
