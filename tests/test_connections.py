"""Connections: which are kept, for how long, and which are used again."""

from __future__ import annotations

import contextlib
import gc
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import httpcore
import httpx
import pytest

from _peer import (
    RECORD,
    Peer,
    answering,
    answering_once,
    early,
    reply,
)
from _peer import Connection as Peers
from _transports import (
    KIB,
    MIB,
    REPLIES,
    Interrupted,
    Wire,
    call,
    close_bodies,
    either,
    over,
    until,
    upload,
    within,
)
from meeting_async import (
    HttpxTransport,
    _connections,
)
from meeting_async._connections import Connection, Connections, Route

pytestmark = pytest.mark.anyio


async def test_json_calls_share_a_connection(transport: HttpxTransport) -> None:
    """One after the other over one connection; uploads do not take it."""
    with Peer(answering(reply())) as peer:
        for _ in range(3):
            await transport.send(call(peer.url))
        assert peer.connected == 1
        await transport.send(upload(peer.url)[0])
        assert peer.connected == 2


async def test_uploads_never_share_a_connection(transport: HttpxTransport) -> None:
    """Each has a connection of its own, one after the other and at the same time."""
    with Peer(answering(reply())) as peer:
        await transport.send(upload(peer.url)[0])
        await until(peer.idle)
        await transport.send(upload(peer.url)[0])
        await until(peer.idle)
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(transport.send, upload(peer.url)[0])
        await until(peer.idle)
        assert peer.connected == len(peer.requests) == 7


@pytest.mark.parametrize("with_reset", [True, False])
async def test_an_idle_connection_that_was_closed_is_not_used(
    transport: HttpxTransport, with_reset: bool
) -> None:
    """A proxy drops idle connections; the next call takes a new one."""

    def once(connection: Peers) -> None:
        answering_once(reply())(connection)
        if with_reset:
            connection.reset()

    with Peer(once) as peer:
        for _ in range(3):
            assert (await transport.send(call(peer.url))).status == 200
            await until(peer.idle)
            await anyio.sleep(0.01)
    assert peer.connected == 3


async def test_the_rest_of_a_reply_is_not_the_next_reply(transport: HttpxTransport) -> None:
    """What stands behind a reply must never answer the next call on that connection."""
    smuggled = reply(content=b'{"status":true,"room":"somebody else\'s"}')
    with Peer(answering(reply() + smuggled)) as peer:
        for _ in range(3):
            answer = await transport.send(call(peer.url))
            assert answer.content == RECORD


async def test_garbage_behind_a_reply_does_not_spoil_the_next_call(
    transport: HttpxTransport,
) -> None:
    """The connection is dropped; the next call takes a new one."""
    with Peer(answering(reply() + b"garbage")) as peer:
        for _ in range(3):
            assert (await transport.send(call(peer.url))).status == 200


async def test_a_reset_behind_a_complete_reply_changes_nothing(wire: Wire) -> None:
    """What has arrived has arrived."""

    def script(connection: Peers) -> None:
        answering_once(reply())(connection)
        connection.closed_within(0.05)
        connection.reset()

    async with over(wire, script) as (transport, peer):
        for kind in ("upload", "json", "upload", "json"):
            assert (await transport.send(either(kind, peer.url))).content == RECORD
            await until(peer.idle)


async def test_cancelled_connections_are_forgotten(wire: Wire) -> None:
    """Wherever uploads are cancelled, no list of connections grows."""
    async with over(wire, answering(reply())) as (transport, peer):
        for number in range(1, 20):
            run = Interrupted(transport.send(upload(peer.url)[0]), number)
            with run.scope:
                await run
        await close_bodies()
        gc.collect()
        kinds = map(type, gc.get_objects())  # to ask an object itself may wake a lazy one up
        assert not any(issubclass(kind, httpcore.AsyncHTTPConnection) for kind in kinds)


# --- by themselves -------------------------------------------------------------------------------


def route_to(url: str, **more: Any) -> Route:
    """Make a way to a server in clear."""
    parsed = httpx.URL(url)
    origin = httpcore.Origin(b"http", parsed.raw_host, parsed.port or 80)
    return Route(httpcore, origin, ((b"Host", parsed.netloc),), **more)


async def used(connection: Connection, content: bytes = RECORD) -> bool:
    """Send one call over a connection; tell whether its reply is all that came."""
    url = connection.route.origin
    request = httpcore.Request(
        "POST",
        httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=b"/"),
        headers=[*connection.route.headers, (b"Content-Length", b"2")],
        content=b"{}",
        extensions={"timeout": {"read": 5, "write": 5}},
    )
    response = await connection.handle(request, lambda: None)
    assert await response.aread() == content
    await response.aclose()
    return connection.brought_only(response, len(content))


@contextlib.contextmanager
def stack_of(route: Route) -> Iterator[Connections]:
    """Provide connections, which are closed in the end."""
    connections = Connections()
    yield connections
    connections.close()


async def idle(connections: Connections, route: Route, count: int) -> list[Connection]:
    """Make so many idle connections."""
    made = [connections.take(route, fresh=True) for _ in range(count)]
    for connection in made:
        assert await used(connection)
    for connection in made:
        connections.keep(connection)
    return made


async def test_the_newest_is_used_first() -> None:
    """So that those of a rush run out of time."""
    with Peer(answering(reply())) as peer, stack_of(route := route_to(peer.url)) as connections:
        made = await idle(connections, route, 3)
        taken = [connections.take(route, fresh=False) for _ in range(4)]
        assert taken[:3] == made[::-1]
        assert taken[3] not in made
        assert len(connections) == 4


async def test_a_fresh_one_was_never_used() -> None:
    """Whatever lies idle."""
    with Peer(answering(reply())) as peer, stack_of(route := route_to(peer.url)) as connections:
        (made,) = await idle(connections, route, 1)
        fresh = connections.take(route, fresh=True)
        assert fresh is not made
        assert not fresh.is_quiet()  # not connected yet
        assert len(connections) == 2
        assert connections.take(route, fresh=False) is made


async def test_another_way_is_another_connection() -> None:
    """Even to the same server: a route is known by what it is, not by what it says."""
    with Peer(answering(reply())) as peer, stack_of(route := route_to(peer.url)) as connections:
        made = await idle(connections, route, 2)
        other = connections.take(route_to(peer.url), fresh=False)
        assert other not in made
        assert connections.take(route, fresh=False) is made[1]
        assert made[1].is_quiet()


async def test_no_more_than_twenty_lie_idle() -> None:
    """The oldest is closed."""
    assert _connections.IDLE_CONNECTIONS == 20
    with Peer(answering(reply())) as peer, stack_of(route := route_to(peer.url)) as connections:
        made = await idle(connections, route, 22)
        assert len(connections) == 20
        assert [one.is_quiet() for one in made] == [False] * 2 + [True] * 20
        await until(lambda: peer.open == 20)


async def test_they_are_kept_for_four_seconds() -> None:
    """Neither shorter nor longer, each for itself; a use begins the time again."""
    with Peer(answering(reply())) as peer, stack_of(route := route_to(peer.url)) as connections:
        old, new = await idle(connections, route, 2)
        for one in (old, new):
            assert 3.9 < one.idle_until - anyio.current_time() <= 4
        old.idle_until = anyio.current_time()
        assert connections.take(route, fresh=False) is new
        assert len(connections) == 1
        assert not old.is_quiet()
        connections.keep(new)
        assert 3.9 < new.idle_until - anyio.current_time() <= 4


async def test_expiry_in_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sees them end when another call comes, whichever way that goes."""
    monkeypatch.setattr(_connections, "IDLE_SECONDS", 0.05)
    with Peer(answering(reply())) as peer, stack_of(route := route_to(peer.url)) as connections:
        made = await idle(connections, route, 2)
        await anyio.sleep(0.06)
        assert connections.take(route_to("http://other.invalid"), fresh=False) not in made
        assert [one.is_quiet() for one in made] == [False, False]
        assert len(connections) == 1


@pytest.mark.parametrize("noise", ["data", "end", "reset"])
async def test_an_idle_one_that_is_not_quiet_is_closed(noise: str) -> None:
    """The next quiet one is taken instead."""
    go = threading.Event()

    def noisy(connection: Peers) -> None:
        answering_then_waiting(connection)
        go.wait(5)
        if noise == "data":
            connection.send(reply())
            connection.drain()
        elif noise == "reset":
            connection.reset()

    with (
        Peer(answering(reply()), noisy) as peer,
        stack_of(route := route_to(peer.url)) as connections,
    ):
        made = await idle(connections, route, 2)
        go.set()
        await until(lambda: not made[1].is_quiet())
        assert connections.take(route, fresh=False) is made[0]
        assert len(connections) == 1


def answering_then_waiting(connection: Peers) -> None:
    """Answer one request and keep the connection."""
    connection.read_head()
    connection.read_body()
    connection.send(reply())


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (reply(), True),
        (reply(content=b""), True),
        (reply(headers=[b"X-Long: " + b"x" * 50_000]), True),
        (reply(500), True),
        (REPLIES["chunked"], False),
        (REPLIES["after 100"], False),
        (REPLIES["after 103"], False),
        (reply() + b"x", False),
        (reply() + reply(), False),
        (reply(headers=[b"Content-Length: %d" % len(RECORD)]), True),  # merged by h11
        (reply(length=False, headers=[b"Content-Length: 0%d" % len(RECORD)]), False),
    ],
    ids=[
        *("plain", "empty", "long head", "refusal", "chunked", "after 100", "after 103"),
        *("a byte behind", "a reply behind", "length twice", "odd length"),
    ],
)
async def test_which_reply_leaves_a_clean_connection(data: bytes, kept: bool) -> None:
    """Its length is declared once and plainly, and nothing stands before or behind it."""
    content = b"" if data == reply(content=b"") else RECORD
    with Peer(answering(data)) as peer:
        connection = Connection(route_to(peer.url))
        with contextlib.closing(connection):
            for _ in range(2 if kept else 1):
                assert await used(connection, content) is kept


@pytest.mark.parametrize(
    ("data", "shared"),
    [
        (reply(), True),
        (REPLIES["chunked"], False),
        (reply(headers=[b"Connection: close"]), False),
        (reply(version=b"1.0"), False),
        (reply(version=b"1.0", headers=[b"Connection: keep-alive"]), False),
    ],
    ids=["plain", "chunked", "close", "1.0", "1.0 keep-alive"],
)
async def test_which_connection_is_used_again(
    transport: HttpxTransport, data: bytes, shared: bool
) -> None:
    """Only one that both sides mean to keep."""
    with Peer(answering(data)) as peer:
        for _ in range(3):
            assert (await transport.send(call(peer.url))).content == RECORD
        assert peer.connected == (1 if shared else 3)


async def test_surplus_that_comes_later(transport: HttpxTransport) -> None:
    """Bytes that follow a reply some time after it never answer the next call."""
    smuggled = reply(content=b'{"room":"somebody else\'s"}')

    def script(connection: Peers) -> None:
        answering_then_waiting(connection)
        connection.closed_within(0.02)
        connection.send(smuggled)
        connection.drain()

    with Peer(script) as peer:
        for number in range(3):
            assert (await transport.send(call(peer.url))).content == RECORD
            assert peer.connected == number + 1
            await anyio.sleep(0.06)


async def test_closing_ends_all() -> None:
    """Those in use and those that lie idle; it can be used again."""
    with Peer(answering(reply())) as peer, stack_of(route := route_to(peer.url)) as connections:
        made = await idle(connections, route, 2)
        busy = connections.take(route, fresh=False)
        assert busy is made[1]
        connections.take(route, fresh=True)  # never connected
        connections.close()
        assert len(connections) == 0
        await until(peer.idle)
        (again,) = await idle(connections, route, 1)
        assert connections.take(route, fresh=False) is again


async def test_a_dropped_one_is_closed_and_forgotten() -> None:
    """Whether it was ever connected or not."""
    with Peer(answering(reply())) as peer, stack_of(route := route_to(peer.url)) as connections:
        first, second = (connections.take(route, fresh=True) for _ in range(2))
        assert await used(first)
        connections.drop(first)
        connections.drop(second)
        assert len(connections) == 0
        await until(peer.idle)


@pytest.mark.alone
async def test_nothing_to_hear_before_there_is_a_line() -> None:
    """And nothing is known of a reply."""
    connection = Connection(route_to("http://meet.invalid"))
    with within(0.1):
        await connection.hear(5)
    assert not connection.is_quiet()
    assert not connection.brought_only(httpcore.Response(200), 0)
    connection.close()


@pytest.mark.alone
@pytest.mark.parametrize(("data", "heard"), [(b"HTTP/1.1 100 x\r\n\r\n", True), (b"", False)])
async def test_hearing_ends_with_the_first_word(data: bytes, heard: bool) -> None:
    """Or after so many seconds."""

    def script(connection: Peers) -> None:
        connection.read_head()
        connection.send(data)
        connection.drain()

    waited: list[float] = []

    class Body:
        async def __aiter__(self) -> AsyncIterator[bytes]:
            started = anyio.current_time()
            await connection.hear(0.3)
            waited.append(anyio.current_time() - started)
            yield b"{}"

    with Peer(script) as peer:
        connection = Connection(route_to(peer.url))
        request = httpcore.Request(
            "POST", f"{peer.url}/", headers={"Host": "x", "Content-Length": "2"}, content=Body()
        )
        with anyio.move_on_after(0.5):
            await connection.handle(request, lambda: None)
        connection.close()
    assert (waited[0] < 0.29) is heard


async def test_who_sends_is_told_of_a_cut() -> None:
    """The time of the reply begins then, not with the end of the body that never comes."""
    told: list[str] = []
    with (
        Peer(early(reply(413), lambda connection: connection.drain())) as peer,
        contextlib.closing(Connection(route_to(peer.url))) as connection,
    ):
        request = httpcore.Request(
            "POST",
            f"{peer.url}/",
            headers={"Host": "x", "Content-Length": str(8 * MIB)},
            content=endless_chunks(),
        )
        response = await connection.handle(request, lambda: told.append("cut"))
        assert response.status == 413
        await response.aclose()
    assert told == ["cut"]


class endless_chunks:  # noqa: N801 - reads as the function it stands for
    """Supply a body that ends only when nobody wants it."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        await anyio.sleep(0.005)
        return bytes(64 * KIB)


async def test_a_proxy_in_clear_shares_connections(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """Calls through it go over one connection, as they would without."""
    with Peer(answering(reply())) as proxy:
        transport = HttpxTransport(proxy=proxy.url, verify=tls[1])
        for _ in range(3):
            assert (await transport.send(call("http://meet.invalid"))).status == 200
        await transport.aclose()
        assert proxy.connected == 1
