"""An answer that comes before the whole request is out: has one begun, and does it refuse? Pure."""

from __future__ import annotations

import re

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9])\d\d")


def refuses(received: bytes | bytearray) -> bool:
    """Tell whether a final answer of status 300 or more has begun.

    An early success is no reason to stop: only the end of the body makes it one.
    """
    return answer_class(received) >= 3


def answer_class(received: bytes | bytearray) -> int:
    """Return the first digit of the status of the final answer; interim ones do not count."""
    start = 0
    while match := _STATUS_LINE.match(received, start):
        if match[1] != b"1":
            return int(match[1])
        end = received.find(b"\r\n\r\n", start)
        if end < 0:
            break
        start = end + 4
    return 0
