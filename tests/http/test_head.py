"""The head of a reply, however it is cut into pieces."""

from __future__ import annotations

import pytest

from meeting_async._http.head import ReplyHead

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = b"HTTP/1.0 103 Early Hints\nLink: </x>\n\n"


@pytest.mark.parametrize(
    ("data", "status", "interim", "size"),
    [
        (b"", 0, 0, None),
        (b"HTTP/1.1 41", 0, 0, None),
        (b"HTTP/1.1 413", 413, 0, None),
        (b"HTTP/1.1 413 Too large\r\nX: y\r\n", 413, 0, None),
        (OK, 200, 0, len(OK)),
        (OK + b"{}" + OK, 200, 0, len(OK)),
        (CONTINUE, 0, 1, None),
        (CONTINUE + HINTS + OK + b"{}", 200, 2, len(CONTINUE + HINTS + OK)),
        (CONTINUE * 101, 0, 101, None),
        (b"HTTP/1.1 100 Continue\r\nX: y\r\n", 0, 0, None),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + b"x" * 100, 0, 1, None),
        (b"\x15\x03\x01garbage\r\n\r\n" + OK, 0, 0, None),
        (b"HTTP/1.1 099 x\r\n\r\n", 0, 0, None),
    ],
)
def test_what_is_known(data: bytes, status: int, interim: int, size: int | None) -> None:
    """Status, interim replies and size are the same wherever the data is cut in two."""
    for cut in range(0, len(data) + 1, 1 + len(data) // 100):
        head = ReplyHead()
        head.feed(data[:cut])
        head.feed(data[cut:])
        assert (head.status, head.interim, head.size) == (status, interim, size)


def test_byte_by_byte() -> None:
    """A long head that drips is searched once, not again with every byte."""
    head = ReplyHead()
    data = b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"x" * 60_000 + b"\r\n\r\n"
    for byte in data:
        head.feed(bytes([byte]))
    assert (head.status, head.size) == (200, len(data))
