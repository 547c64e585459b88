"""The head of a reply, recognised while it arrives. Sans-I/O."""

from __future__ import annotations

import re

_STATUS_LINE = re.compile(rb"HTTP/\d\.\d ([1-9]\d\d)")
_END = re.compile(rb"\n\r?\n")
"""As lenient as h11, which parses the reply later."""


class ReplyHead:
    """What is known of a reply's head so far (RFC 9112 sections 4 and 9.3)."""

    def __init__(self) -> None:
        self.status = 0
        """Status of the final reply; 0 until its first line has arrived."""
        self.interim = 0
        """Interim replies (1xx) that came before it."""
        self.size: int | None = None
        """Bytes of everything up to the content, interim replies included, once it has arrived."""
        self._held = bytearray()
        self._searched = 0
        self._passed = 0

    def feed(self, data: bytes) -> None:
        """Take in what has arrived."""
        if self.size is not None:
            return
        self._held += data
        while match := _STATUS_LINE.match(self._held):
            is_interim = match[1].startswith(b"1")
            self.status = 0 if is_interim else int(match[1])
            end = _END.search(self._held, self._searched)
            if end is None:
                self._searched = max(0, len(self._held) - 2)
                return
            self._pass(end.end(), is_interim=is_interim)

    def _pass(self, count: int, *, is_interim: bool) -> None:
        self._passed += count
        self._searched = 0
        del self._held[:count]
        if is_interim:
            self.interim += 1
        else:
            self.size = self._passed
            self._held.clear()
