"""One layer of TLS, from bytes to bytes; sans-I/O but for the standard library's ``ssl``.

In memory rather than on the socket: there each record of 16 KiB would be a system call of its own,
and an ``https`` server behind an ``https`` proxy needs one layer within another.
"""

from __future__ import annotations

import ssl

PIECE_BYTES = 256 * 1024
"""Encrypted at a time: small enough for the processor's cache, large enough for few sends."""


class TLSLayer:
    """The client's end of an encrypted stream."""

    def __init__(self, context: ssl.SSLContext, hostname: str | None) -> None:
        self.has_ended = False
        """Whether the peer said that it sends no more."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl_object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=hostname)

    def shake_hands(self, received: bytes) -> bool:
        """Go on with the handshake; tell whether it is done.

        Raises:
            ssl.SSLError: The peer speaks no TLS, or cannot prove who it is.

        """
        self._incoming.write(received)
        try:
            self.ssl_object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def to_send(self) -> bytes:
        """Return what the layer itself wants to send: a part of the handshake, or an alert."""
        return self._outgoing.read()

    def encrypt(self, data: memoryview) -> bytes:
        """Return what to send for up to :data:`PIECE_BYTES` of data."""
        self.ssl_object.write(data)
        return self._outgoing.read()

    def decrypt(self, received: bytes) -> bytes:
        """Return the data that is complete by now, which may be none."""
        self._incoming.write(received)
        data = bytearray()
        try:
            while piece := self.ssl_object.read(PIECE_BYTES):
                data += piece
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        return bytes(data)
