"""TLS over OpenSSL's memory buffers (``ssl.MemoryBIO``).

So a megabyte goes to the operating system at once, and the bytes it takes can be counted. A
wrapped socket sends each record of 16 KiB separately, and cannot read while one is half-way: it
fails if the peer requests a certificate then (RFC 8446 section 4.6.2).
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from meeting_async._http.waiting import wait_ready

PIECE_BYTES = 64 * 1024
"""Most bytes per read."""

# glibc returns large freed buffers to the system, and the next one costs a page fault per 4 KiB. It
# stops that once a larger one was freed (mallopt(3), M_MMAP_THRESHOLD), such as this one. It uses
# no memory, as it is never written to.
bytes(2 * 1024**2)


RESUMED_SECONDS = 600.0
"""Seconds during which a session is resumed, and its certificate is not verified again."""


class Resumption:
    """The last TLS session with a server (RFC 8446 section 2.2): a third of a handshake's CPU."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._session, self._until = now, cast("ssl.SSLSession | None", None), 0.0

    def session(self) -> ssl.SSLSession | None:
        """Return the session to resume; ``None`` if its certificate was verified too long ago."""
        return self._session if self._now() < self._until else None

    def keep(self, connection: ssl.SSLObject) -> None:
        """Keep the session of a connection; call it after something has arrived."""
        if not connection.session_reused:
            self._until = self._now() + RESUMED_SECONDS
        self._session = connection.session


class Tls:
    """The client's end of TLS on a non-blocking socket."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        host: str,
        resumption: Resumption | None = None,
    ) -> None:
        self._socket = sock
        self._received, self._records = ssl.MemoryBIO(), ssl.MemoryBIO()
        # A dot at the end is only for DNS (RFC 6066 section 3): no certificate has it. curl and
        # urllib3 drop it, too.
        name = host.rstrip(".")
        self._openssl = context.wrap_bio(
            self._received,
            self._records,
            server_hostname=name,
            session=resumption.session() if resumption else None,
        )
        self._resumption = resumption

    async def handshake(self) -> None:
        """Do the handshake.

        Raises:
            OSError: It failed; `ssl.SSLError` is one.

        """
        while not self._is_over():
            await self._send_records()
            await wait_ready(self._socket, to_write=False)
            self._take_in()
        await self._send_records()

    def certificate(self) -> dict[str, object]:
        """Return the server's certificate as ``ssl`` reads it; empty if it was not verified."""
        return dict(self._openssl.getpeercert() or {})

    def encrypt(self, data: memoryview) -> int:
        """Encrypt the beginning of ``data``; return its length.

        0: the peer renegotiates (TLS 1.2). Receive first, then pass the same bytes again.
        """
        try:
            return self._openssl.write(data)
        except ssl.SSLWantReadError:
            return 0

    def records(self) -> memoryview:
        """Return the records to send next, OpenSSL's own included."""
        return memoryview(self._records.read())

    def receive(self) -> bytes:
        """Return some of what has arrived, ``b""`` at the end, with ``close_notify`` or without.

        Raises:
            BlockingIOError: Nothing has arrived.
            OSError: The connection broke.

        """
        while True:
            try:
                return self._noted(self._openssl.read(PIECE_BYTES))
            except ssl.SSLWantReadError:
                self._take_in()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    def _noted(self, data: bytes) -> bytes:
        """Keep the session, which with TLS 1.3 arrives after the handshake."""
        if self._resumption is not None:
            self._resumption.keep(self._openssl)
            self._resumption = None
        return data

    def _is_over(self) -> bool:
        try:
            self._openssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError:
            with suppress(OSError):
                self._socket.send(self._records.read())  # an alert tells the peer why
            raise
        return True

    def _take_in(self) -> None:
        data = self._socket.recv(PIECE_BYTES)
        if data:
            self._received.write(data)
        else:
            self._received.write_eof()

    async def _send_records(self) -> None:
        records = self.records()
        while records:
            try:
                records = records[self._socket.send(records) :]
            except BlockingIOError:
                await wait_ready(self._socket, to_write=True)
