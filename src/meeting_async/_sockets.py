"""Byte streams on raw non-blocking sockets, as httpcore wants them: no answer is ever lost.

A server or proxy may answer, refusing, while the body is still going out, and then close. The
streams of asyncio stop reading while they write, and drop what they hold when a write fails, so
that the caller sees a broken connection instead of the refusal; and httpcore looks for an answer
only when the whole body is out. Here every write first takes in what has arrived. When that is an
answer that makes the rest of the body pointless, or when the line breaks, the write fails with
``WriteError``, and httpcore, by design, goes on to read: first what was taken in, which a reset
cannot take away any more.

Short writes wait for what follows, so that a small request leaves as one packet, and wakes the
server once: the next write takes them along, or reading begins. No task and no transport stands
between the body and the socket.
"""

from __future__ import annotations

import math
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import anyio
import anyio.lowlevel

from meeting_async._dialing import dial
from meeting_async._early import answer_class, refuses
from meeting_async._stack import Core
from meeting_async._tls import PIECE_BYTES, TLSLayer

_BLOCKED = (BlockingIOError, InterruptedError)

_RECEIVE_BYTES = 64 * 1024
_OPENING_BYTES = 64 * 1024

_SHORT_BYTES = 16 * 1024
"""Writes up to so many bytes are gathered. A longer one goes out at once with what was gathered,
after a moment for other tasks, even if the socket would never make anybody wait."""

_FIRST_GLANCE_SECONDS = 0.05
"""How long a write waits for the socket before it looks whether the peer said why it does not
read; each further glance after twice the time."""

_ABORT = struct.pack("ii", 1, 0)
"""``SO_LINGER`` on, for 0 s: closing resets the connection and drops what was not sent yet."""


class SocketStream:
    """One connection, in clear or, after :meth:`start_tls`, encrypted."""

    def __init__(self, core: Core, sock: socket.socket, on_cut: Callable[[], None]) -> None:
        self.closed = False
        self.arrived = 0
        """Bytes that have arrived since the last write."""
        self.opening = bytearray()
        """The first of them: at least the head of a reply."""
        self._core = core
        self._socket = sock
        self._on_cut = on_cut
        self._inbound = bytearray()
        self._outbound = bytearray()
        self._patience: float | None = None
        self._layers: list[TLSLayer] = []
        """From the outermost, which the socket carries, to the one that carries the data."""
        self._ended = False

    # --- what httpcore calls ---------------------------------------------------------------------

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return what has arrived, ``b""`` at the end."""
        with suppress(self._core.WriteError):  # the answer may be there all the same
            await self._flush()
        try:
            with nullcontext() if timeout is None else anyio.fail_after(timeout):
                await self._until_inbound()
        except TimeoutError as error:
            raise self._core.ReadTimeout from error
        except (OSError, anyio.ClosedResourceError) as error:
            raise self._core.ReadError(str(error)) from error
        data = bytes(self._inbound[:max_bytes])
        del self._inbound[:max_bytes]
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Hand everything to the operating system, unless the peer has refused or gone.

        ``timeout`` is for a socket that takes nothing at all, not for the whole of the buffer.
        """
        self._patience = timeout
        self._expect_reply()
        if len(self._outbound) + len(buffer) <= _SHORT_BYTES:
            self._outbound += buffer
            return
        await anyio.lowlevel.checkpoint()
        await self._send(self._gathered() + buffer if self._outbound else buffer)

    async def aclose(self) -> None:
        """Close the socket; see :meth:`close`."""
        self.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> SocketStream:
        """Encrypt from here on, within what is encrypted already."""
        try:
            with nullcontext() if timeout is None else anyio.fail_after(timeout):
                await self._shake_hands(TLSLayer(ssl_context, server_hostname))
        except TimeoutError as error:
            raise self._core.ConnectTimeout from error
        except (OSError, self._core.WriteError, anyio.ClosedResourceError) as error:
            raise self._core.ConnectError(str(error)) from error  # ssl.SSLError is an OSError
        return self

    def get_extra_info(self, info: str) -> Any:
        """Return what httpcore asks for."""
        if info == "ssl_object":
            return self._layers[-1].ssl_object if self._layers else None
        if info == "is_readable":
            return not self.is_quiet()
        return self._socket if info == "socket" else None

    # --- what our own connections call -----------------------------------------------------------

    def is_quiet(self) -> bool:
        """Tell whether the connection is open and nothing has come that was not read."""
        if self.closed:
            return False
        try:
            self._take_in()
        except OSError:
            return False
        return not (self._inbound or self._ended)

    async def hear(self, seconds: float) -> None:
        """Wait until the peer says something, at most so many seconds."""
        await self._flush()
        with anyio.move_on_after(seconds):
            await self._until_inbound()

    def close(self) -> None:
        """Close the socket at once; a task that waits for it gets an error."""
        if not self.closed:
            self.closed = True
            anyio.notify_closing(self._socket)
            self._socket.close()

    # --- sockets ---------------------------------------------------------------------------------

    def _take_in(self) -> bool:
        """Read without waiting; tell whether anything came, be it the end."""
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except _BLOCKED:
            return False
        self._ended = not data
        for layer in self._layers:
            data = layer.decrypt(data)
            self._ended = self._ended or layer.has_ended
        self._deliver(data)
        return True

    async def _until_inbound(self) -> None:
        """Wait for data, or for the end of it."""
        while not (self._inbound or self._ended):
            if not self._take_in():
                await anyio.wait_readable(self._socket)

    def _expect_reply(self) -> None:
        self.arrived = 0
        self.opening.clear()

    def _deliver(self, data: bytes) -> None:
        self._inbound += data
        if self.arrived < _OPENING_BYTES:
            self.opening += data
        self.arrived += len(data)

    async def _flush(self) -> None:
        if self._outbound:
            await self._send(self._gathered())

    def _gathered(self) -> bytearray:
        gathered, self._outbound = self._outbound, bytearray()
        return gathered

    async def _send(self, data: bytes | bytearray) -> None:
        try:
            for piece in self._encrypted(memoryview(data)):
                await self._send_all(piece)
        except (OSError, anyio.ClosedResourceError) as error:
            self._cut()
            raise self._core.WriteError(str(error)) from error
        except BaseException:
            self._cut()
            raise

    def _encrypted(self, data: memoryview) -> Iterator[memoryview]:
        if not self._layers:
            yield data
            return
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            for layer in reversed(self._layers):
                piece = memoryview(layer.encrypt(piece))
            yield piece

    async def _send_all(self, rest: memoryview) -> None:
        while rest:
            self._stop_if_pointless()
            try:
                sent = self._socket.send(rest)
            except _BLOCKED:
                sent = 0
            if not sent:
                await self._until_writable()
            rest = rest[sent:]

    def _stop_if_pointless(self) -> None:
        while not self._ended and len(self._inbound) < _RECEIVE_BYTES and self._take_in():
            pass  # it may come in dribbles
        if self._ended or refuses(self._inbound):  # be it that it came earlier, and was heard
            raise self._core.WriteError("the peer answered, or left, amid the request")

    async def _until_writable(self) -> None:
        waited, glance = 0.0, _FIRST_GLANCE_SECONDS
        patience = math.inf if self._patience is None else self._patience
        while waited < patience:
            glance = min(glance, patience - waited)
            with anyio.move_on_after(glance):
                await anyio.wait_writable(self._socket)
                return
            self._stop_if_pointless()
            waited, glance = waited + glance, glance * 2
        if answer_class(self._inbound):
            raise self._core.WriteError("the peer answered and stopped reading")
        raise self._core.WriteTimeout

    def _cut(self) -> None:
        """Do not burden the line with the rest of a request that will stay a fragment."""
        with suppress(OSError):  # it may be closed, or reset by the peer
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self._on_cut()

    async def _shake_hands(self, layer: TLSLayer) -> None:
        if self._inbound:  # in clear, from whoever sits on the way: never to be read as encrypted
            raise self._core.ConnectError("the peer spoke before the handshake")
        received = b""
        try:
            while not layer.shake_hands(received):
                await self._send(layer.to_send())
                received = await self._received()
        except ssl.SSLError:
            with suppress(OSError):
                self._socket.send(layer.to_send())  # the server's log should say why, too
            raise
        await self._send(layer.to_send())
        self._layers.append(layer)
        self._expect_reply()
        self._deliver(layer.decrypt(b""))

    async def _received(self) -> bytes:
        """Return what comes during a handshake."""
        await self._until_inbound()
        if self._ended and not self._inbound:
            raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "the peer hung up during the handshake")
        received = bytes(self._inbound)
        self._inbound.clear()
        return received


class SocketBackend:
    """Opens the socket of one connection and keeps it in sight, whatever becomes of httpcore's."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.stream: SocketStream | None = None
        self.on_cut: Callable[[], None] = _nothing
        """Called when a request cannot be sent to its end."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> SocketStream:
        """Connect to a host."""
        try:
            with anyio.fail_after(timeout):
                sock = await dial(host, port)
        except TimeoutError as error:
            raise self._core.ConnectTimeout from error
        except OSError as error:
            raise self._core.ConnectError(str(error)) from error
        self.stream = SocketStream(self._core, sock, self._cut)
        return self.stream

    def _cut(self) -> None:
        self.on_cut()


def _nothing() -> None:
    pass
