"""TLS within TLS: an ``https`` server behind a proxy that is itself reached by ``https``.

The standard library encrypts a socket, or bytes in memory; only the latter can be stacked. It is a
rare way to go, so it is kept simple: an early answer is seen when the body is out.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from meeting_async._stack import Core

T = TypeVar("T")

_PIECE_BYTES = 64 * 1024


class Outer(Protocol):
    """The stream that carries another one."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return what has arrived, ``b""`` at the end."""
        ...

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send everything."""
        ...

    async def aclose(self) -> None:
        """Close it."""
        ...

    def get_extra_info(self, info: str) -> Any:
        """Return what httpcore asks for."""
        ...


class NestedTLS:
    """An encrypted stream through another stream, as httpcore wants it."""

    def __init__(
        self, core: Core, outer: Outer, context: ssl.SSLContext, hostname: str | None
    ) -> None:
        self._core = core
        self._outer = outer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=hostname)

    async def shake_hands(self) -> None:
        """Complete the handshake."""
        await self._converse(self._tls.do_handshake, None)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return what has arrived, ``b""`` at the end."""
        try:
            return await self._converse(lambda: self._tls.read(max_bytes), timeout)
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""
        except ssl.SSLError as error:
            raise self._core.ReadError(str(error)) from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Encrypt and send everything."""
        rest = memoryview(buffer)
        while rest:
            piece = rest[:_PIECE_BYTES]
            try:
                sent = await self._converse(functools.partial(self._tls.write, piece), timeout)
            except ssl.SSLError as error:
                raise self._core.WriteError(str(error)) from error
            rest = rest[sent:]

    async def aclose(self) -> None:
        """Close the outer stream."""
        await self._outer.aclose()

    def get_extra_info(self, info: str) -> Any:
        """Return what httpcore asks for."""
        return self._tls if info == "ssl_object" else self._outer.get_extra_info(info)

    async def _converse(self, step: Callable[[], T], timeout: float | None) -> T:
        """Repeat a step of TLS until it has what it needs from the peer."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._flush(timeout)
                data = await self._outer.read(_PIECE_BYTES, timeout)
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            else:
                await self._flush(timeout)
                return result

    async def _flush(self, timeout: float | None) -> None:
        if self._outgoing.pending:
            await self._outer.write(self._outgoing.read(), timeout)
