"""Looking up and connecting: several addresses, slow ones, failures, cancellation."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest

from meeting_async import errors
from meeting_async.transports import HttpTransport, Reply
from support.leaks import descriptors
from support.peer import Peer, answering, deaf, reply
from support.ports import free_port
from support.sending import call, closing, upload, within

pytestmark = [pytest.mark.anyio]

both_loops = pytest.mark.both_loops

Happening = Callable[[socket.socket, int], None]


@attrs.define(eq=False)
class Network:
    """Resolves every name to the same addresses, and notes which of them are tried."""

    addresses: list[Any] = attrs.field(factory=list)
    ports: list[int] = attrs.field(factory=list)
    sockets: list[socket.socket] = attrs.field(factory=list)
    happening: Happening = lambda _sock, _port: None
    """Called when a connection is begun, with its socket and port."""

    def resolve(self, *addresses: str) -> None:
        """Let names stand for ``host:port``, several times."""
        for address in addresses:
            host, _, port = address.rpartition(":")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            where = (host.strip("[]"), int(port))
            self.addresses.append((family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where))

    @property
    def left(self) -> int:
        """Sockets that are still open."""
        return sum(sock.fileno() >= 0 for sock in self.sockets)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    """Put a network in the place of the resolver; its sockets are real ones."""
    network = Network()

    class Noting(socket.socket):
        def connect(self, where: Any) -> None:
            network.sockets.append(self)
            network.ports.append(where[1])
            network.happening(self, where[1])
            super().connect(where)

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **_options: network.addresses)
    monkeypatch.setattr(socket, "socket", Noting)
    return network


async def send(url: str = "http://meet.invalid", **settings: Any) -> Reply:
    """Send a call by a transport of its own."""
    transport = HttpTransport()
    async with closing(transport):
        return await transport.send(call(url, **settings))


async def test_names_and_paths_that_are_not_ascii(network: Network) -> None:
    """Container networks have names with an underscore; others are sent in ASCII."""
    with Peer(answering(reply())) as peer:
        network.resolve(f"127.0.0.1:{peer.port}")
        for host in ("meet_server", "bücher.example"):
            assert (await send(f"http://{host}:{peer.port}/prüfung")).status == 200
    hosts = [received.values(b"Host")[0].partition(b":")[0] for received in peer.requests]
    assert hosts == [b"meet_server", b"xn--bcher-kva.example"]
    assert b"POST /pr%C3%BCfung/auth/room/call HTTP/1.1" in peer.requests[0].head


async def test_an_ipv6_literal_is_not_looked_up(network: Network) -> None:
    """Its family follows from the address."""
    with pytest.raises(errors.ConnectFailed):
        await send(f"http://[::1]:{free_port()}")
    assert [sock.family for sock in network.sockets] == [socket.AF_INET6]


@both_loops
@pytest.mark.parametrize(
    ("kinds", "least"), [("r" * 60 + "g", 0), ("fgr", 0.24), ("6" * 60 + "g", 0)]
)
async def test_the_next_address_is_tried(
    network: Network, full: str, kinds: str, least: float
) -> None:
    """At once after a refusal, or where IPv6 is missing; a quarter of a second after a slow one.

    Sixty waits would take 15 seconds.
    """

    def no_ipv6(sock: socket.socket, _port: int) -> None:
        if sock.family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")

    network.happening = no_ipv6
    with Peer(answering(reply())) as peer:
        good, refused = f"127.0.0.1:{peer.port}", f"127.0.0.1:{free_port()}"
        which = {"g": good, "r": refused, "f": full, "6": "[::1]:1"}
        network.resolve(*[which[kind] for kind in kinds])
        started = anyio.current_time()
        assert (await send()).status == 200
    assert least <= anyio.current_time() - started < 6
    assert network.left == 0


@pytest.mark.parametrize(
    ("codes", "kind", "errno"),
    [
        ((101, 111, 113), errors.ConnectFailed, 101),
        ((101, 24, 113), errors.ResourceExhausted, 24),
        ((0, 0, 0), errors.ConnectFailed, 111),
    ],
)
async def test_all_addresses_fail(
    network: Network, codes: tuple[int, ...], kind: type[Exception], errno: int
) -> None:
    """The error is that of the first; but a lack of descriptors explains more."""
    network.resolve(*[f"127.0.0.1:{free_port()}"] * 3)
    rest = iter(codes)

    def fail(_sock: socket.socket, _port: int) -> None:
        if code := next(rest):
            raise OSError(code, "no")

    network.happening = fail
    with pytest.raises(errors.ConnectFailed) as caught:
        await send()
    assert type(caught.value) is kind
    assert getattr(caught.value.__cause__, "errno", None) == errno
    assert (len(network.sockets), network.left) == (3, 0)


@pytest.mark.parametrize(
    ("addresses", "expected"), [("4466", "1324"), ("644444", "123456"), ("66644", "14253")]
)
async def test_the_families_take_turns(network: Network, addresses: str, expected: str) -> None:
    """The resolver's first choice begins; the order within stays (RFC 8305 section 4)."""
    hosts = {"6": "[::1]", "4": "127.0.0.1"}
    network.resolve(*[f"{hosts[one]}:{number}" for number, one in enumerate(addresses, 1)])
    with pytest.raises(errors.ConnectFailed):
        await send()
    assert "".join(map(str, network.ports)) == expected


async def test_an_error_that_is_no_os_error(network: Network) -> None:
    """It leaves the race as it is, not as an ``ExceptionGroup``."""
    network.resolve("127.0.0.1:70000", "127.0.0.1:70001")
    with pytest.raises(OverflowError):
        await send()


@both_loops
@pytest.mark.parametrize("after", [0.01, 0.4])
async def test_cancelled_amid_the_race(network: Network, full: str, after: float) -> None:
    """During the first attempt and during both: no descriptor stays."""
    network.resolve(full, full)
    before = descriptors()
    with anyio.move_on_after(after) as scope:
        await send()
    assert scope.cancelled_caught
    assert network.left == 0
    assert descriptors() == before


@both_loops
async def test_cancelled_when_one_has_just_answered(network: Network) -> None:
    """A connection that nobody takes is closed."""
    with Peer(deaf) as peer, anyio.CancelScope() as scope:
        network.resolve(*[f"127.0.0.1:{peer.port}"] * 2)

        def at_once(sock: socket.socket, _port: int) -> None:
            scope.cancel()
            sock.setblocking(True)  # so that it is connected when `connect` returns

        network.happening = at_once
        await send()
    assert scope.cancelled_caught
    assert network.sockets
    assert network.left == 0


@both_loops
@pytest.mark.parametrize("what", ["TCP", "TLS", "lookup"])
async def test_connecting_is_limited(what: str, full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is not looked up, TCP that is not answered, and a handshake that is not."""
    asked, has_ended = list[float](), threading.Event()

    def slow(*_: object, **_options: object) -> Any:
        asked.append(time.monotonic())
        has_ended.wait(10)
        raise socket.gaierror(socket.EAI_NONAME, "late")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with Peer(deaf) as peer, contextlib.ExitStack() as stack:
        urls = {"TCP": f"http://{full}", "TLS": f"https://127.0.0.1:{peer.port}"}
        url = urls.get(what, "http://meet.invalid:80")
        transport = HttpTransport(verify=False)
        async with closing(transport):
            started = anyio.current_time()
            stack.callback(has_ended.set)
            stack.enter_context(within(8))  # the thread is abandoned
            with pytest.raises(errors.ConnectFailed, match="in time") as caught:
                await transport.send(upload(url, connect_timeout=0.3))
            assert anyio.current_time() - started > 0.29
    assert caught.value.host == url.partition("//")[2]
    assert len(asked) == (what == "lookup")
