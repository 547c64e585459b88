"""Messages of HTTP/1.1 (RFC 9112), without I/O: heads of requests out, replies in.

llhttp, the parser of Node.js, reads heads and chunks. It does not know the request's method, nor
when the connection has ended, and it refuses some heads that a client may accept. So the end of a
reply is found here, and a head that llhttp refuses is normalised and parsed once more.
"""

from __future__ import annotations

import re

import httptools

from meeting_async._models import HeaderPairs, Secret
from meeting_async.errors import ConnectionLost

# --- requests ------------------------------------------------------------------------------------

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_VALUE = rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?"
_REQUEST_HEAD = re.compile(
    rb"%b [!-~]+ HTTP/1\.1\r\nHost: [!-~]+\r\n"
    rb"(?:(?!(?i:host|transfer-encoding):)%b: %b\r\n)*\r\n" % (_TOKEN, _TOKEN, _VALUE)
)
"""``Host`` first, and no ``Transfer-Encoding``: a body always has a ``Content-Length``."""


def request_head(method: bytes, target: bytes, headers: HeaderPairs) -> Secret:
    """Return the head of a request, whose first header is ``Host``.

    Raises:
        ConnectionLost: Something in it cannot be sent. No frame of the traceback shows it.

    """
    lines = [b"%b: %b\r\n" % pair for pair in headers]
    head = Secret(b"%b %b HTTP/1.1\r\n%b\r\n" % (method, target, b"".join(lines)))
    del lines
    # A line break in a value would begin another header.
    if not _REQUEST_HEAD.fullmatch(head) or head.count(b"\n") != len(headers) + 2:
        raise ConnectionLost("the request has a header that cannot be sent")
    return head


def declared_length(headers: HeaderPairs) -> int:
    """Return the ``Content-Length`` of a request; 0 without one.

    Raises:
        ConnectionLost: There are several, or it is not a number.

    """
    found = [value for name, value in headers if name.lower() == b"content-length"]
    if len(found) > 1 or not all(value.isdigit() for value in found):
        raise ConnectionLost("the request has no usable Content-Length")
    return int(found[0]) if found else 0


# --- replies -------------------------------------------------------------------------------------

MAX_HEAD_BYTES = 64 * 1024
"""Longest head of a reply, and most bytes in a row that are not content, such as trailers."""

MAX_INTERIM_REPLIES = 100
"""Most interim replies; known servers send one or two."""

LONG_HEAD = f"the head of the reply is longer than {MAX_HEAD_BYTES:,} bytes"

BAD_STATUS = "the reply has status 101, or one below 100"

_BLANK_LINE = re.compile(rb"\n\r?\n")

NO_CONTENT = {204, 304}
"""Statuses of replies without content, whatever their headers say (RFC 9112 section 6.3)."""


class ReplyParser:
    """The reply to one request: interim replies, head, content.

    An error is not raised, but described by ``problem``: frames of this class hold what the peer
    has sent, and it may repeat the request.
    """

    def __init__(self, method: str) -> None:
        self.problem: str | None = None
        self.status: int | None = None
        """Status of the final reply, once its head is complete."""
        self.headers: HeaderPairs = ()
        self.content = bytearray()
        self.is_complete = self.has_surplus = False
        """Whether all of it was received; whether more than that was received."""
        self.interim = 0
        """Number of interim replies (1xx) so far."""
        self._has_content = method != "HEAD"
        self._head = bytearray()
        self._left: int | None = None
        """Bytes of content that are missing; ``None``: all until the connection ends."""
        self._chunks: httptools.HttpResponseParser | None = None
        self._body = _Events()
        self._overhead = 0
        """Bytes since the last content."""
        self._may_follow = False

    @property
    def has_begun(self) -> bool:
        """Whether some of the final reply may have been received, not only interim replies."""
        return self.status is not None or bool(self._head)

    @property
    def may_follow(self) -> bool:
        """Whether the connection can be used again after this reply."""
        return self.is_complete and self._may_follow and not self.has_surplus

    def feed(self, data: bytes) -> None:
        """Parse received bytes; what follows a problem is ignored."""
        if self.is_complete:
            self.has_surplus = True
        if self.is_complete or self.problem is not None:
            return
        try:
            if self.status is None:
                data = self._read_heads(data)
            if self.status is not None:
                self._read_content(data)
        except _Broken as error:
            self.problem = str(error)

    def end(self) -> None:
        """Called when the connection has ended."""
        if self.status is not None and self._left is None and self._chunks is None:
            self.is_complete = True
        elif not self.is_complete:
            self.problem = self.problem or "the peer closed the connection amid its reply"

    # --- heads -----------------------------------------------------------------------------------

    def _read_heads(self, data: bytes) -> bytes:
        """Read up to the end of the final head; return what follows it."""
        searched = max(0, len(self._head) - 3)  # linear time, also byte by byte
        self._head += data
        while self.status is None and (end := _BLANK_LINE.search(self._head, searched)):
            self._read_head(bytes(self._head[: end.end()]))
            del self._head[: end.end()]
            searched = 0
        if self.status is None:
            _check_start(self._head)
            if len(self._head) > MAX_HEAD_BYTES:
                raise _Broken(LONG_HEAD)
            return b""
        rest, self._head = bytes(self._head), bytearray()
        return rest

    def _read_head(self, head: bytes) -> None:
        _check_start(head)
        events = _Events()
        parser = _parsed(head, events)
        status = parser.get_status_code()
        if status < 100 or status == 101:  # no request asks for another protocol
            raise _Broken(BAD_STATUS)
        if status < 200:
            self.interim += 1
            if self.interim > MAX_INTERIM_REPLIES:
                raise _Broken(f"more than {MAX_INTERIM_REPLIES} interim replies")
            return
        codings, lengths = events.framing[b"transfer-encoding"], events.framing[b"content-length"]
        self._has_content = self._has_content and status not in NO_CONTENT
        if not self._has_content:
            self._left = 0
        elif codings == [b"chunked"]:
            self._chunks, self._body = parser, events
            # Old servers pad sizes with blanks; a trailer may have any name.
            parser.set_dangerous_leniencies(
                lenient_spaces_after_chunk_size=True, lenient_chunked_length=True
            )
        elif codings:  # requests have no TE header
            raise _Broken("an unknown Transfer-Encoding")
        elif lengths:
            self._left = int(lengths[0])
        is_clear = self._left is not None
        if self._chunks is not None:  # with a length, too: perhaps smuggling (RFC 9112 section 6.1)
            is_clear = not _LENGTH.search(head)
        is_kept = head.startswith(b"HTTP/1.1") and b"close" not in events.framing[b"connection"]
        self._may_follow = is_clear and is_kept
        self.headers, self.status = tuple(events.headers), status

    # --- content ---------------------------------------------------------------------------------

    def _read_content(self, data: bytes) -> None:
        if self._chunks is not None:
            self._read_chunks(self._chunks, data)
        elif self._left is None:
            self.content += data
        else:
            self.content += data[: self._left]
            self._left -= len(data)
            self.is_complete = self._left <= 0
            self.has_surplus = self._left < 0

    def _read_chunks(self, chunks: httptools.HttpResponseParser, data: bytes) -> None:
        """Read chunks, the last byte by itself: llhttp does not tell where a reply ends."""
        body = self._body
        for part in (memoryview(data)[:-1], data[-1:]) if data else ():
            if body.is_complete:
                self.has_surplus = True
                break
            try:
                chunks.feed_data(part)
            except httptools.HttpParserError as error:
                if not body.is_complete:  # else it is about what follows
                    raise _Broken(str(error)) from None
        self._overhead = 0 if body.content else self._overhead + len(data)
        self.content += body.content
        body.content.clear()
        self.is_complete = body.is_complete
        if self._overhead > MAX_HEAD_BYTES and not self.is_complete:
            raise _Broken("too much within the reply that is no content")


class _Broken(Exception):
    """The peer violates HTTP/1.1."""


class _Events:
    """Callbacks of llhttp for one reply. Separate: as a part of `ReplyParser` it would leak."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.framing: dict[bytes, list[bytes]] = {name: [] for name in _FRAMING}
        """Items of the headers about framing, in lower case."""
        self.content = bytearray()
        self.is_complete = False

    def clear(self) -> None:
        """Begin anew."""
        self.headers.clear()
        for values in self.framing.values():
            values.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, or a trailer, which is not used."""
        self.headers.append((name, value := value.rstrip(b" \t")))
        if len(name) in _FRAMING_LENGTHS and (found := self.framing.get(name.lower())) is not None:
            found += [item for item in _items(value.lower()) if item]

    def on_body(self, body: bytes) -> None:
        """Keep content of this reply, not of one that follows."""
        if not self.is_complete:
            self.content += body

    def on_message_complete(self) -> None:
        """Note the end."""
        self.is_complete = True


_FRAMING = (b"transfer-encoding", b"content-length", b"connection")
_FRAMING_LENGTHS = {len(name) for name in _FRAMING}


def _items(value: bytes) -> list[bytes]:
    return [item.strip(b" \t") for item in value.split(b",")]


def _check_start(head: bytes | bytearray) -> None:
    """Refuse at once what is not HTTP; llhttp accepts other protocols, and NUL in a reason."""
    if not b"HTTP/".startswith(head[:5]) or b"\0" in head:
        raise _Broken("it is no HTTP")


def _parsed(head: bytes, events: _Events) -> httptools.HttpResponseParser:
    parser = httptools.HttpResponseParser(events)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as refused:
        parser = httptools.HttpResponseParser(events)
        parser.set_dangerous_leniencies(lenient_version=True)
        events.clear()
        try:
            parser.feed_data(_in_plain_form(head))
        except httptools.HttpParserError:
            raise _Broken(str(refused)) from None
    return parser


_LINE_END = re.compile(rb"\r?\n")
_FOLD = re.compile(rb"\r\n[ \t]+")
_CONTROL = re.compile(rb"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]")
_CODING = re.compile(rb"\n(?i:transfer-encoding):")
_LENGTH = re.compile(rb"\r?\n(?i:content-length):([^\r\n]*)")


def _in_plain_form(head: bytes) -> bytes:
    """Return a head without what must not be sent, but may be accepted.

    A single LF at the end of a line (RFC 9112 section 2.2), folded lines (5.2), the same length
    several times or besides chunks (6.3), control characters in values (RFC 9110 section 5.5).
    """
    status_line, end, fields = _LINE_END.sub(b"\r\n", head).partition(b"\r\n")
    head = status_line + end + _CONTROL.sub(b"?", _FOLD.sub(b" ", fields))
    lengths = {item for value in _LENGTH.findall(head) for item in _items(value)}
    if _CODING.search(head):
        head = _LENGTH.sub(b"", head)
    elif len(lengths) == 1:
        once = b"\r\nContent-Length: %b\r\n" % lengths.pop()
        head = _LENGTH.sub(b"", head).replace(b"\r\n", once, 1)
    return head
