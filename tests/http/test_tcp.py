"""Looking up and connecting: several addresses, slow ones, failures, cancellation."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from meeting_async import errors
from meeting_async._http import tcp
from meeting_async._http.tcp import connect_tcp
from meeting_async.transports import HttpTransport
from support.peer import Connection, Peer, deaf, descriptors, reply
from support.sending import call, closed_port, closing, upload, within

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

Resolve = Callable[..., None]


@pytest.fixture
def resolves(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Let every name stand for the given addresses."""

    def resolve(*addresses: str) -> None:
        def lookup(host: str, port: int, **_options: Any) -> list[tcp.Address]:
            return [row(address) for address in addresses]

        monkeypatch.setattr(socket, "getaddrinfo", lookup)

    return resolve


def row(address: str) -> tcp.Address:
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


@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "a" * 64 + ".invalid", "a..invalid", "a" * 300 + ".invalid"]
)
async def test_a_name_that_does_not_resolve(host: str) -> None:
    """Unknown names, and names that are none."""
    transport = HttpTransport(verify=False)
    async with closing(transport):
        for request in (call(f"http://{host}"), upload(f"https://{host}")):
            with pytest.raises(errors.ConnectFailed, match="no connection") as caught:
                await transport.send(request)
    assert caught.value.host == f"{host}:443"


async def test_a_name_with_an_underscore_and_an_international_one(resolves: Resolve) -> None:
    """Container networks have the former; the latter goes out in ASCII."""

    def script(connection: Connection) -> None:
        while connection.read_head():
            connection.read_body()
            connection.send(reply())

    with Peer(script) as peer:
        resolves(f"127.0.0.1:{peer.port}")
        transport = HttpTransport()
        async with closing(transport):
            for host in ("meet_server", "bücher.example"):
                assert (await transport.send(call(f"http://{host}:{peer.port}/prüfung"))).status
    hosts = [received.values(b"Host")[0] for received in peer.requests]
    assert hosts[:2] == [
        b"meet_server:%d" % peer.port,
        b"xn--bcher-kva.example:%d" % peer.port,
    ]
    assert b"POST /pr%C3%BCfung/auth/room/call HTTP/1.1" in peer.requests[0].head


async def test_an_ipv6_literal_is_not_looked_up(resolves: Resolve) -> None:
    """Its family follows from the address; in ``Host`` it has brackets."""
    resolves("127.0.0.1:1")
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with listener, await connect_tcp("::1", listener.getsockname()[1]) as sock:
        assert sock.family == socket.AF_INET6


@pytest.mark.parametrize("bad", [0, 1, 3])
async def test_a_refused_address_costs_nothing(
    resolves: Resolve, bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is tried at once."""
    monkeypatch.setattr(tcp, "NEXT_ADDRESS_SECONDS", 100)  # the test would take too long
    with listening() as good:
        resolves(*[refused() for _ in range(bad)], good)
        with await connect_tcp("meet.invalid", 80) as sock:
            assert sock.getpeername()[1] == port_of(good)


async def test_a_slow_address_delays_the_next_one_a_little(resolves: Resolve, full: str) -> None:
    """A quarter of a second later the next one is tried, too, and the first is given up."""
    with listening() as good:
        resolves(full, good, refused())
        before = descriptors()
        started = anyio.current_time()
        with await connect_tcp("meet.invalid", 80) as sock:
            assert sock.getpeername()[1] == port_of(good)
            assert 0.24 <= anyio.current_time() - started < 5
        assert descriptors() == before


async def test_all_addresses_fail(resolves: Resolve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of the first address; no descriptor is left."""
    resolves(*[refused() for _ in range(3)])
    before = descriptors()
    with pytest.raises(ConnectionRefusedError):
        await connect_tcp("meet.invalid", 80)
    assert descriptors() == before

    async def fail(_address: object) -> socket.socket:
        raise OSError(next(codes), "no")

    monkeypatch.setattr(tcp, "_connect", fail)
    for numbers, expected in (((101, 111, 113), 101), ((101, 24, 113), 24)):
        codes = iter(numbers)
        with pytest.raises(OSError, match="no") as caught:
            await connect_tcp("meet.invalid", 80)
        assert caught.value.errno == expected  # a lack of descriptors explains more


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ("6666", "1234"),
        ("6644", "1324"),
        ("4466", "1324"),
        ("644444", "123456"),
        ("66644", "14253"),
    ],
)
async def test_the_families_take_turns(
    resolves: Resolve, monkeypatch: pytest.MonkeyPatch, addresses: str, expected: str
) -> None:
    """The resolver's first choice begins; the order within stays (RFC 8305 section 4)."""
    tried: list[int] = []

    async def fail(address: tcp.Address) -> socket.socket:
        tried.append(address[4][1])
        raise ConnectionRefusedError

    monkeypatch.setattr(tcp, "_connect", fail)
    hosts = {"6": "[::1]", "4": "127.0.0.1"}
    resolves(*[f"{hosts[one]}:{number}" for number, one in enumerate(addresses, 1)])
    with pytest.raises(ConnectionRefusedError):
        await connect_tcp("meet.invalid", 80)
    assert "".join(map(str, tried)) == expected


async def test_an_error_that_is_no_os_error(
    resolves: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the race as it is, not as an ``ExceptionGroup``."""

    async def fail(_address: object) -> socket.socket:
        raise OverflowError("port must be 0-65535")

    monkeypatch.setattr(tcp, "_connect", fail)
    resolves("127.0.0.1:1", "127.0.0.1:2")
    with pytest.raises(OverflowError):
        await connect_tcp("meet.invalid", 80)


async def test_two_addresses_answer_at_once(
    resolves: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One socket is used, the other is closed."""
    monkeypatch.setattr(tcp, "NEXT_ADDRESS_SECONDS", 0.01)
    made: list[socket.socket] = []
    both = anyio.Event()

    async def connect(_address: object) -> socket.socket:
        made.append(socket.socket())
        mine = made[-1]
        if len(made) == 2:
            both.set()
        with anyio.CancelScope(shield=True):
            await both.wait()
        return mine

    monkeypatch.setattr(tcp, "_connect", connect)
    resolves("127.0.0.1:1", "127.0.0.1:2")
    with await connect_tcp("meet.invalid", 80) as sock:
        assert [one for one in made if one.fileno() >= 0] == [sock]
    assert len(made) == 2


@pytest.mark.parametrize("after", [0, 0.01, 0.4])
async def test_cancelled_amid_the_race(resolves: Resolve, full: str, after: float) -> None:
    """During the first attempt and during both: no descriptor stays."""
    resolves(full, full)
    before = descriptors()
    with anyio.move_on_after(after) as scope:
        await connect_tcp("meet.invalid", 80)
    assert scope.cancelled_caught
    assert descriptors() == before


async def test_cancelled_when_one_has_just_answered(
    resolves: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that nobody takes is closed."""
    scope = anyio.CancelScope()
    made: list[socket.socket] = []

    async def connect(_address: object) -> socket.socket:
        scope.cancel()
        made.append(socket.socket())
        return made[-1]

    monkeypatch.setattr(tcp, "_connect", connect)
    resolves("127.0.0.1:1", "127.0.0.1:2")
    with scope, await connect_tcp("meet.invalid", 80):
        pass
    assert [sock.fileno() for sock in made] == [-1] * len(made)
    assert made


@pytest.mark.parametrize("exhausted", [True, False])
async def test_a_lookup_without_descriptors(
    exhausted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resolvers then say that the name is unknown, which it is not."""

    def unknown(*_args: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    def no_socket(*_args: object) -> socket.socket:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    if exhausted:
        monkeypatch.setattr(socket, "socket", no_socket)
    transport = HttpTransport()
    with pytest.raises(errors.ConnectFailed) as caught:
        await transport.send(call("http://meet.invalid"))
    assert type(caught.value) is (errors.ResourceExhausted if exhausted else errors.ConnectFailed)


async def test_a_machine_without_a_family(
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
        with await connect_tcp("meet.invalid", 80) as sock:
            assert sock.getpeername()[1] == port_of(good)


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_connecting_is_limited(scheme: str, full: str) -> None:
    """TCP that is not answered, and a TLS handshake that is not."""
    with Peer(deaf) as peer:
        host = full if scheme == "http" else f"127.0.0.1:{peer.port}"
        transport = HttpTransport(verify=False)
        async with closing(transport):
            started = anyio.current_time()
            request = upload(f"{scheme}://{host}", connect_timeout=0.3)
            with pytest.raises(errors.ConnectFailed, match="in time") as caught:
                await transport.send(request)
            assert 0.29 < anyio.current_time() - started < 2  # on a busy machine
    assert caught.value.host == host


async def test_a_lookup_that_hangs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the resolver is abandoned."""
    asked: list[float] = []

    def slow(*_: object, **_options: object) -> Any:
        asked.append(time.monotonic())
        time.sleep(1)
        raise socket.gaierror(socket.EAI_NONAME, "late")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    transport = HttpTransport()
    async with closing(transport):
        with within(0.9), pytest.raises(errors.ConnectFailed, match="in time"):
            await transport.send(call("http://meet.invalid", connect_timeout=0.2))
    assert len(asked) == 1
