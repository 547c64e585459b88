"""Serving the application on a real socket, in a thread of its own or in the caller's."""

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator

import anyio
import attrs
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ._faults import Cut

#: Connections that are still open so long (seconds) after the stop are cut.
GRACE_SECONDS = 0.5
#: More than any test opens at once; the kernel may cap it.
_BACKLOG = 2048


@contextlib.contextmanager
def serve_in_thread(app: ASGIApp, host: str, port: int) -> Iterator[str]:
    """Serve until the block ends and yield the URL; `OSError` if the address cannot be had.

    The socket listens before the thread starts, so there is no moment of refused connections.
    """
    with _listen(host, port) as listener:
        server = _Server(_Gate(app))
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listener])),
            name="meeting-server",
            daemon=True,  # a test that hangs must not keep the interpreter from ending
        )
        thread.start()
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            thread.join()


def serve_here(app: ASGIApp, host: str, port: int, on_ready: Callable[[str], object]) -> None:
    """Serve in this thread until Ctrl-C, which ends it normally; `on_ready` gets the URL."""
    with _listen(host, port) as listener:
        on_ready(url_of(listener))
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_Server(_Gate(app)).serve(sockets=[listener]))


def url_of(listener: socket.socket) -> str:
    """Return the base URL of a listening socket; for a wildcard address the loopback's."""
    address, port = listener.getsockname()[:2]
    ip = ipaddress.ip_address(address)
    if ip.is_unspecified:
        ip = ipaddress.ip_address("127.0.0.1" if ip.version == 4 else "::1")
    return f"http://{ip}:{port}" if ip.version == 4 else f"http://[{ip}]:{port}"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    created = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    # asyncio sets TCP_NODELAY only on connections that say they are TCP, and without it each reply
    # on a kept connection waits some 40 ms for the peer's delayed acknowledgement.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, created.detach())


@attrs.define(eq=False)
class _Gate:
    """Passes requests to the application until it shuts; then those inside are sent home.

    A request that waits for a conversion would otherwise keep the server from stopping. What a
    proxy answers for a server that restarts is 503 without the server's own record. A request that
    ends in `Cut` has its connection aborted.
    """

    app: ASGIApp
    abort: Callable[[Scope], None] = lambda _: None
    _inside: set[anyio.CancelScope] = attrs.field(factory=set, init=False)
    _is_shut: bool = attrs.field(default=False, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answered = False

        async def noting(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        with anyio.CancelScope() as inside:
            self._inside.add(inside)
            if self._is_shut:
                inside.cancel()
            try:
                await self.app(scope, receive, noting)
            except Cut:
                self.abort(scope)
                await _gone(receive)
            finally:
                self._inside.discard(inside)
        if inside.cancelled_caught and not answered:
            closing = PlainTextResponse("Service Unavailable", 503, {"connection": "close"})
            await closing(scope, receive, send)

    def shut(self) -> None:
        """Cancel the requests inside, and those that are about to come in."""
        self._is_shut = True
        for inside in tuple(self._inside):
            inside.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _Server(uvicorn.Server):
    """A uvicorn server that stops within `GRACE_SECONDS` and a little, whatever its peers do."""

    def __init__(self, gate: _Gate) -> None:
        config = uvicorn.Config(
            gate,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,  # logging belongs to the program that uses the server
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        config.load()  # imports, which have no place in an event loop
        super().__init__(config)
        self._gate = gate
        gate.abort = self._abort

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Send the waiting requests home, then cut what is left of the connections."""
        self._gate.shut()
        cut = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._cut)
        try:
            await super().shutdown(sockets)
        finally:
            cut.cancel()

    def _cut(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()

    def _abort(self, scope: Scope) -> None:
        for connection in tuple(self.server_state.connections):
            if getattr(connection, "client", None) == scope["client"]:
                connection.transport.abort()
