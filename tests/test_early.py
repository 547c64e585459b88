"""Whether an answer has begun, and whether it refuses."""

from __future__ import annotations

import pytest

from meeting_async._early import answer_class, refuses


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        (b"", False),
        (b"H", False),
        (b"HTTP/1.1 4", False),
        (b"HTTP/1.1 40", False),
        (b"HTTP/1.1 409", True),
        (b"HTTP/1.1 409 Conflict\r\nContent-Le", True),
        (b"HTTP/1.0 503 x\r\n\r\n", True),
        (b"HTTP/1.1 300 x\r\n\r\n", True),
        (b"HTTP/1.1 299 x\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 409 x\r\n\r\n", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n", False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 2", False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200", False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 413", True),
        (b"HTTP/1.1 103 x\r\nLink: </x>\r\n\r\nHTTP/1.1 103 x\r\n\r\nHTTP/1.1 401 x", True),
        (b"HTTP/1.1 103 x\r\nX: HTTP/1.1 409 x\r\n", False),
        (b"HTTP/1.1 103 x\r\nX: HTTP/1.1 409 x\r\n\r", False),
        (b"\r\nHTTP/1.1 409 x\r\n\r\n", False),
        (b"HTTP/2 409 x\r\n\r\n", False),
        (b"HTTP/1.2 409 x\r\n\r\n", False),
        (b"HTTP/1.1 4O9 x\r\n\r\n", False),
        (b"HTTP/1.1 099 x\r\n\r\n", False),
        (b"HTTP/1.1  409 x\r\n\r\n", False),
        (b"HTTP/1.1 999 x\r\n\r\n", True),
        (b"http/1.1 409 x\r\n\r\n", False),
        (b"SSH-2.0-OpenSSH_9.6\r\n", False),
        (b"\0" * 100, False),
    ],
)
def test_what_refuses(received: bytes, expected: bool) -> None:
    """A final status of 300 or more, as soon as it can be read; never an interim one."""
    assert refuses(received) is expected
    assert refuses(bytearray(received)) is expected


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        (b"", 0),
        (b"HTTP/1.1 ", 0),
        (b"HTTP/1.1 200 OK", 2),
        (b"HTTP/1.0 413 ", 4),
        (b"HTTP/1.1 100 Continue\r\n\r\n", 0),
        (b"HTTP/1.1 103 Early\r\nLink: <a>\r\n\r\nHTTP/1.1 503 x", 5),
        (b"HTTP/2 200", 0),
        (b"\x17\x03\x03", 0),
    ],
)
def test_the_class_of_an_answer(received: bytes, expected: int) -> None:
    """The first digit of the final status, as soon as it can be read; 0 for everything else."""
    assert answer_class(received) == expected
