"""The sink's end of a connection: what it reads, and what it drops."""

from __future__ import annotations

import socket
import ssl
import sys
from typing import Protocol

_BUFFER_BYTES = 1024**2

# On Linux the kernel drops what is received without copying it out (tcp(7)).
# Elsewhere MSG_TRUNC means something else.
_DISCARD_FLAGS = socket.MSG_TRUNC | socket.MSG_WAITALL if sys.platform == "linux" else 0


class Connection(Protocol):
    """What the sink does with a connection."""

    sees_the_end: bool
    """Whether something can be read after something was dropped."""

    def read(self) -> bytes:
        """Return the next bytes; none at the end."""
        ...

    def drop(self, count: int) -> None:
        """Drop exactly so many bytes."""
        ...

    def send(self, data: bytes) -> None:
        """Send all of it."""
        ...

    def is_over(self) -> bool:
        """Wait; tell whether nothing followed."""
        ...


class Plain:
    """TCP."""

    sees_the_end = True

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def read(self) -> bytes:
        """Return the next bytes; none at the end."""
        return self._connection.recv(16 * 1024)

    def drop(self, count: int) -> None:
        """Drop exactly so many bytes."""
        _discard(self._connection, count)

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._connection.sendall(data)

    def is_over(self) -> bool:
        """Wait; tell whether nothing followed."""
        return not self._connection.recv(1)


# --- TLS -----------------------------------------------------------------------------------------

_HEADER_BYTES = 5
"""Of a record: type, version, and two bytes of length (RFC 8446 section 5.1)."""

_AROUND_BYTES = 17
"""What a record has beside its content: the inner type and the tag (RFC 8446 section 5.2)."""

_GOODBYE_BYTES = _HEADER_BYTES + 2 + _AROUND_BYTES
"""A ``close_notify``."""


class Secured:
    """TLS 1.3 that decrypts no more than the beginning.

    Decrypting costs a server more than encrypting costs a good client, so that the server would be
    measured. What is dropped is counted from the lengths of its records; nothing can be read
    afterwards. The reply uses other keys and still works.
    """

    sees_the_end = False

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshake()

    def _handshake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._incoming.write(self._record())
            else:
                self._flush()
                return

    def _flush(self) -> None:
        self._connection.sendall(self._outgoing.read())

    def _record(self) -> bytes:
        """Take the next record, and nothing behind it."""
        self._fill(_HEADER_BYTES)
        size = _HEADER_BYTES + int.from_bytes(self._buffer[3:5])
        self._fill(size)
        record = bytes(self._buffer[:size])
        del self._buffer[:size]
        return record

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            data = self._connection.recv(16 * 1024)
            if not data:
                raise ValueError("the connection ended within a record")
            self._buffer += data

    def read(self) -> bytes:
        """Decrypt the next record."""
        while True:
            self._incoming.write(self._record())
            try:
                return self._tls.read(16 * 1024)
            except ssl.SSLWantReadError:
                continue  # a record without data

    def drop(self, count: int) -> None:
        """Drop exactly so many bytes, in whole records."""
        records = memoryview(bytearray(_BUFFER_BYTES))
        at, filled = 0, len(self._buffer)
        records[:filled] = self._buffer
        self._buffer.clear()
        while count > 0:
            while filled - at < _HEADER_BYTES:
                records[: filled - at] = records[at:filled]
                at, filled = 0, filled - at
                received = self._connection.recv_into(records[filled:])
                if not received:
                    raise ValueError(f"the connection ended {count:,} bytes too early")
                filled += received
            size = int.from_bytes(records[at + 3 : at + 5])
            count -= size - _AROUND_BYTES
            at += _HEADER_BYTES + size
            if at > filled:
                _discard(self._connection, at - filled)
                at = filled
        self._buffer += records[at:filled]
        if count:
            raise ValueError(f"the last record is {-count:,} bytes too long")

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._tls.write(data)
        self._flush()

    def is_over(self) -> bool:
        """Wait; tell whether nothing but a goodbye followed, after which some wait for ours."""
        follows = bytes(self._buffer)
        while len(follows) < _GOODBYE_BYTES and (data := self._connection.recv(1024)):
            follows += data
        return len(follows) in {0, _GOODBYE_BYTES}


def _discard(connection: socket.socket, count: int) -> None:
    buffer = bytearray(min(count, _BUFFER_BYTES))
    while count > 0:
        received = connection.recv_into(buffer, min(count, _BUFFER_BYTES), _DISCARD_FLAGS)
        if not received:
            raise ValueError(f"the connection ended {count:,} bytes too early")
        count -= received
