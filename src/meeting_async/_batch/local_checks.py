"""What can be checked of a job without a server, before its batch begins. It blocks."""

from __future__ import annotations

import os
import stat
from functools import lru_cache

from meeting_async._documents.checks import HEAD_BYTES, check_size, check_type
from meeting_async._documents.source import unreadable
from meeting_async._protocol.requests import room_id_bytes


@lru_cache(maxsize=1000)  # a room gets many documents
def check_room_id(room_id: str) -> None:
    """Refuse a room id that cannot be sent.

    Raises:
        InvalidInput: It cannot stand in a header.

    """
    room_id_bytes(room_id)


def check_file(path: str, name: str, max_size: int | None) -> int:
    """Make the checks that the upload of a file begins with, and return its size in bytes.

    Raises:
        DocumentError: It cannot be read, or must not be uploaded.
        ResourceExhausted: This machine has no descriptor left to open it.

    """
    try:
        descriptor = os.open(path, _FLAGS)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is not a regular file")
            head = os.read(descriptor, HEAD_BYTES)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise unreadable(path, error) from error
    check_size(name, status.st_size, max_size)
    check_type(name, head)
    return status.st_size


_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
"""Opening must not wait for the other end of a named pipe."""
