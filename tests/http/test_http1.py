"""Heads of requests, and replies in pieces of every size, by the rules of RFC 9112."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meeting_async._http.http1 import (
    MAX_HEAD_BYTES,
    ReplyParser,
    declared_length,
    request_head,
)
from meeting_async._models import Secret
from meeting_async.errors import ConnectionLost

# --- replies that are understood -----------------------------------------------------------------


@attrs.frozen
class Written:
    """A reply as it is written, and how a client has to read it."""

    interim: tuple[bytes, ...]
    head: bytes
    body: bytes
    """Content as it stands on the wire."""
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    content: bytes
    method: str = "POST"
    until_end: bool = False
    """Whether its content goes on until the connection ends."""
    may_follow: bool = True

    @property
    def data(self) -> bytes:
        """All of it."""
        return b"".join(self.interim) + self.head + self.body


def lines(status: bytes, fields: list[bytes], end: bytes = b"\r\n") -> bytes:
    """Write a head."""
    return end.join([status, *fields, b"", b""])


INTERIM = [
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nLink: </y>\r\n\r\n",
    # No interim reply has content, whatever it says (section 6.3, rule 1).
    b"HTTP/1.1 104 \r\nContent-Length: 7\r\n\r\n",
    b"HTTP/1.1 199 x\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 102\n\n",
]
FIELDS: list[tuple[bytes, tuple[bytes, bytes]]] = [
    (b"Server: x", (b"Server", b"x")),
    (b"x:y:z", (b"x", b"y:z")),
    (b"X-Empty:", (b"X-Empty", b"")),
    (b"X-Blank: \t ", (b"X-Blank", b"")),
    (b"A: \t b  c \t", (b"A", b"b  c")),  # section 5.1
    (b"Obs: \xe4\xff", (b"Obs", b"\xe4\xff")),
    (b"!#$%&'*+-.^_`|~9: 1", (b"!#$%&'*+-.^_`|~9", b"1")),
    (b"Fold: a\r\n\t b\r\n c", (b"Fold", b"a b c")),  # section 5.2
    (b"Odd: a\x01\x1b\x7fb", (b"Odd", b"a???b")),  # RFC 9110 section 5.5
    (b"Upgrade: h2c", (b"Upgrade", b"h2c")),
    (b"Connection: Upgrade", (b"Connection", b"Upgrade")),
]
STATUS_LINES = [
    (b"HTTP/1.1 %d OK", True),
    (b"HTTP/1.1 %d", True),
    (b"HTTP/1.1 %d ", True),
    (b"HTTP/1.1 %d \xe4 b", True),
    (b"HTTP/1.0 %d OK", False),
    (b"HTTP/1.2 %d OK", False),  # RFC 9110 section 2.5
    (b"HTTP/2.0 %d OK", False),
]
CLOSING = [b"Connection: close", b"connection: x, Close", b"CONNECTION: close\t, x"]
CHUNK_LINES = [b"%x", b"%X", b"00%x", b"%x ", b"%x \t", b"%x;a", b"%x;a=b;c", b'%x;a="; \xe4\\"\t"']
TRAILERS = [b"", b"X: y\r\n", b"Content-Length: 3\r\nSet-Cookie: a\r\n"]

contents = st.binary(max_size=40)


@st.composite
def framed(draw: st.DrawFn, content: bytes) -> tuple[list[bytes], bytes, bool, bool]:
    """Draw fields, wire bytes, whether it ends with the connection, whether a reply may follow."""
    size = b"%d" % len(content)
    length = draw(st.sampled_from([b"Content-Length: %b", b"content-length:\t0%b "])) % size
    kind = draw(st.sampled_from(["length", "twice", "list", "chunks", "both", "end"]))
    if kind == "length":
        return [length], content, False, True
    if kind == "twice":  # section 6.3, rule 5
        return [b"Content-Length: %b" % size] * 2, content, False, True
    if kind == "list":
        return [b"Content-Length: %b, %b" % (size, size)], content, False, True
    if kind == "end":
        return [], content, True, False
    pieces, rest = [], content
    while rest:
        count = draw(st.integers(1, len(rest)))
        line = draw(st.sampled_from(CHUNK_LINES)) % count
        pieces.append(line + b"\r\n" + rest[:count] + b"\r\n")
        rest = rest[count:]
    last = draw(st.sampled_from([b"0", b"000", b"0;x"])) + b"\r\n"
    body = b"".join(pieces) + last + draw(st.sampled_from(TRAILERS)) + b"\r\n"
    coding = draw(st.sampled_from([b"Transfer-Encoding: chunked", b"transfer-encoding:CHUNKED "]))
    if kind == "both":  # section 6.3, rule 3: only chunks count; section 6.1: nothing follows
        return draw(st.permutations([coding, length])), body, False, False
    return [coding], body, False, True


@st.composite
def replies(draw: st.DrawFn) -> Written:
    """Draw a reply that a client has to understand, or that it may."""
    status = draw(st.sampled_from([200, 201, 204, 304, 400, 409, 500, 999]))
    method = draw(st.sampled_from(["POST", "POST", "HEAD"]))
    content = draw(contents)
    framing, body, until_end, may_follow = draw(framed(content))
    if status in {204, 304} or method == "HEAD":  # section 6.3, rule 1
        content = body = b""
        may_follow, until_end = True, False
    line, is_known = draw(st.sampled_from(STATUS_LINES))
    others = draw(st.lists(st.sampled_from(FIELDS), max_size=4))
    closing = draw(st.lists(st.sampled_from(CLOSING), max_size=1))
    written = draw(st.permutations([*framing, *closing, *(one for one, _ in others)]))
    meaning = dict(FIELDS)
    head = lines(line % status, written, draw(st.sampled_from([b"\r\n", b"\r\n", b"\n"])))
    headers = [meaning.get(field) or _plain(field) for field in written]
    return Written(
        tuple(draw(st.lists(st.sampled_from(INTERIM), max_size=3))),
        head,
        body,
        status,
        tuple(headers),
        content,
        method,
        until_end,
        may_follow and is_known and not closing,
    )


def _plain(field: bytes) -> tuple[bytes, bytes]:
    name, _, value = field.partition(b":")
    return name, value.strip(b" \t")


def pieces_of(data: bytes) -> Iterator[list[bytes]]:
    """Yield all of it at once, in two pieces of every size, and byte by byte."""
    yield [data]
    yield from ([data[:at], data[at:]] for at in range(1, len(data)))
    yield [data[at : at + 1] for at in range(len(data))]


def read(method: str, pieces: list[bytes]) -> ReplyParser:
    """Read a reply."""
    parser = ReplyParser(method)
    for piece in pieces:
        parser.feed(piece)
    return parser


def other_headers(headers: tuple[tuple[bytes, bytes], ...]) -> list[tuple[bytes, bytes]]:
    """Leave lengths out: if several are the same, or chunks count, they are told once or not."""
    return [pair for pair in headers if pair[0].lower() != b"content-length"]


ODD = (b"X-Empty:", b"Fold: a\r\n\t b\r\n c", b"Content-Length: 2", b"Content-Length: 2")


@given(replies())
@example(
    Written(
        (INTERIM[0],),
        lines(b"HTTP/1.1 200 OK", [*ODD]),
        b"ab",
        200,
        ((b"X-Empty", b""), (b"Fold", b"a b c"), (b"Content-Length", b"2")),
        b"ab",
    )
)
def test_a_reply_in_pieces(reply: Written) -> None:
    """Cut at any place it is read as the rules say, and never taken for whole before its end."""
    for pieces in pieces_of(reply.data):
        parser = read(reply.method, pieces)
        assert parser.problem is None
        assert (parser.status, parser.interim) == (reply.status, len(reply.interim))
        assert other_headers(parser.headers) == other_headers(reply.headers)
        assert parser.content == reply.content
        assert parser.is_complete is not reply.until_end
        assert parser.may_follow is reply.may_follow
        parser.end()
        assert (parser.is_complete, parser.problem) == (True, None)


@given(replies())
def test_the_beginning_of_a_reply(reply: Written) -> None:
    """Without its last bytes it is not whole, except if only the end of the connection tells."""
    before = len(b"".join(reply.interim))
    for count in range(1, len(reply.data)):
        parser = read(reply.method, [reply.data[:count]])
        has_head = count >= before + len(reply.head)
        assert parser.status == (reply.status if has_head else None)
        assert parser.has_begun is (count > before) or not has_head
        assert parser.has_begun or any(
            count == len(b"".join(reply.interim[:n])) for n in range(len(reply.interim) + 1)
        )
        assert not parser.is_complete
        assert not parser.may_follow
        parser.end()
        assert parser.is_complete is (has_head and reply.until_end)
        assert (parser.problem is None) is parser.is_complete


SURPLUS = {
    "line end": b"\r\n",
    "byte": b"x",
    "chunk": b"0\r\n\r\n",
    "reply": b"HTTP/1.1 200 OK\r\n\r\n",
    "much": bytes(2 * MAX_HEAD_BYTES),
}


@given(replies().filter(lambda reply: not reply.until_end), st.sampled_from([*SURPLUS]))
def test_what_follows_a_reply(reply: Written, kind: str) -> None:
    """It changes nothing, and is noticed: nothing else follows on this connection."""
    end, surplus = len(reply.data), SURPLUS[kind]
    data = reply.data + surplus
    for cut in {1, end - 1, end, end + 1, end + len(surplus) // 2, len(data)}:
        parser = read(reply.method, [data[:cut], data[cut:]])
        parser.end()
        assert (parser.status, bytes(parser.content)) == (reply.status, reply.content)
        assert (parser.is_complete, parser.problem) == (True, None)
        assert parser.has_surplus
        assert not parser.may_follow


# --- what is no reply ----------------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
BROKEN = {
    "a broken interim reply, then a whole one": (
        b"HTTP/1.1 104 \r\nContent-Length:\x01 7\r\n\r\n"
        b"HTTP/1.1 199 x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    ),
    "no status": b"HTTP/1.1\r\n\r\n",
    "two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "a status below 100": b"HTTP/1.1 099 OK\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Yes\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "101 alone": b"HTTP/1.1 101 Yes\r\n\r\n",
    "ICE": b"HTTP/1.1 100 x\r\n\r\nICE/1.0 200 OK\r\n\r\n",
    "a blank line": b"HTTP/1.1 100 x\r\n\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    "two blanks": b"HTTP/1.1  200 OK\r\n\r\n",
    "no colon": OK + b"Server\r\n\r\n",
    "no name": OK + b": x\r\n\r\n",
    "a blank in a name": OK + b"Ser ver: x\r\n\r\n",
    "a blank behind a name": OK + b"Content-Length : 2\r\n\r\nab",
    "NUL in the reason": b"HTTP/1.1 200 O\0K\r\n\r\n",
    "a control character for a blank": b"HTTP/1.1 200\x01OK\r\n\r\n",
    "a fold of the status line": b"HTTP/1.1 200 OK\r\n X: y\r\n\r\n",
    "NUL": OK + b"Server: a\0b\r\n\r\n",
    "a CR": OK + b"Server: a\rb\r\n\r\n",
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nab",
    "two lengths in one": OK + b"Content-Length: 2, 3\r\n\r\nab",
    "no length": OK + b"Content-Length:\r\n\r\n",
    "a negative length": OK + b"Content-Length: -2\r\n\r\nab",
    "a signed length": OK + b"Content-Length: +2\r\n\r\nab",
    "a control character in a length": OK + b"Content-Length: \x012\r\n\r\nab",
    "a control character in a coding": OK + b"Transfer-Encoding: \x01chunked\r\n\r\n",
    "a length in words": OK + b"Content-Length: two\r\n\r\nab",
    "a length with a unit": OK + b"Content-Length: 2 b\r\n\r\nab",
    "a length of 10**30": OK + b"Content-Length: 1%b\r\n\r\nab" % (b"0" * 30),
    "gzip": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "not chunked in the end": OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunked twice": OK + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n",
    "xchunked": OK + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked in a fold": OK + b"Transfer-Encoding: gzip,\r\n chunked\r\n\r\n0\r\n\r\n",
    "no size": CHUNKED + b"\r\n\r\n",
    "a size that is none": CHUNKED + b"no\r\n\r\n",
    "0x": CHUNKED + b"0x2\r\nab\r\n0\r\n\r\n",
    "a negative size": CHUNKED + b"-2\r\nab\r\n0\r\n\r\n",
    "a size of 2**80": CHUNKED + b"1" + b"0" * 20 + b"\r\nab",
    "a long chunk": CHUNKED + b"1\r\nab\r\n0\r\n\r\n",
    "no line end behind a chunk": CHUNKED + b"2\r\nabxx0\r\n\r\n",
    "a trailer that is none": CHUNKED + b"0\r\nServer\r\n\r\n",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_what_is_no_reply(data: bytes) -> None:
    """It is told, however it is cut, and never taken for a whole reply."""
    for pieces in pieces_of(data):
        parser = read("POST", pieces)
        parser.end()
        assert parser.problem
        assert not parser.is_complete


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 40), replies())
def test_any_bytes(noise: bytes, at: int, gone: int, reply: Written) -> None:
    """Whatever comes, nothing but a problem is told, and the reading does not hang on the cuts."""
    data = reply.data[:at] + noise + reply.data[at + gone :]
    found = set()
    for pieces in ([data], [data[:at], data[at:]], [data[n : n + 1] for n in range(len(data))]):
        parser = read(reply.method, pieces)
        parser.end()
        is_read = parser.problem is None
        found.add((is_read, parser.status, bytes(parser.content) if is_read else b""))
        assert is_read is parser.is_complete
    assert len(found) == 1


LONG = {
    "a head": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 1000),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 100),
    "interim replies": (b"", b"HTTP/1.1 100 x\r\n\r\n"),
    "an extension": (CHUNKED + b"1;a=", b"x" * 1000),
    "a trailer": (CHUNKED + b"0\r\nX: ", b"x" * 1000),
    "trailers": (CHUNKED + b"0\r\n", b"X: y\r\n" * 100),
    "a size": (CHUNKED, b"0" * 1000),
}


@pytest.mark.parametrize(("start", "more"), LONG.values(), ids=LONG)
def test_what_has_no_end(start: bytes, more: bytes) -> None:
    """It is given up after 64 KiB, or 100 interim replies."""
    parser = ReplyParser("POST")
    parser.feed(start)
    fed = 0
    while not parser.problem and fed < 150:
        parser.feed(more)
        fed += 1
    assert 60 < fed < 150


# --- requests ------------------------------------------------------------------------------------

HOST = (b"Host", b"x:80")


def test_the_head_of_a_request() -> None:
    """Each header as it was given; what shows in no frame."""
    headers = (HOST, (b"API-KEY", Secret(b"k")), (b"X", b""), (b"Room-Id", "Büro 1".encode()))
    head = request_head(b"POST", b"/auth?x=1", headers)
    expected = "POST /auth?x=1 HTTP/1.1", "Host: x:80", "API-KEY: k", "X: ", "Room-Id: Büro 1"
    assert bytes(head) == "\r\n".join([*expected, "", ""]).encode()
    assert repr(head) == "(hidden)"


BAD_HEADERS = {
    "a line break": ((HOST, (b"X", b"a\r\nY: b")), b"/"),
    "LF": ((HOST, (b"X", b"a\nb")), b"/"),
    "CR": ((HOST, (b"X", b"a\rb")), b"/"),
    "NUL": ((HOST, (b"X", b"a\0b")), b"/"),
    "a blank at the end": ((HOST, (b"X", b"a ")), b"/"),
    "a blank at the beginning": ((HOST, (b"X", b" a")), b"/"),
    "a name with a colon": ((HOST, (b"X:", b"a")), b"/"),
    "no name": ((HOST, (b"", b"a")), b"/"),
    "an end of the head": ((HOST, (b"X", b"a\r\n\r\nGET / HTTP/1.1")), b"/"),
    "no host": (((b"X", b"a"),), b"/"),
    "two hosts": ((HOST, HOST), b"/"),
    "chunks": ((HOST, (b"Transfer-encoding", b"chunked")), b"/"),
    "a target with a blank": ((HOST,), b"/a b"),
    "no target": ((HOST,), b""),
}


@pytest.mark.parametrize(("headers", "target"), BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_head_that_cannot_be_sent(
    headers: tuple[tuple[bytes, bytes], ...], target: bytes
) -> None:
    """It is refused: a value never makes a header of its own."""
    with pytest.raises(ConnectionLost, match="cannot be sent"):
        request_head(b"POST", target, headers)


@pytest.mark.parametrize("values", [[b"x"], [b""], [b"-1"], [b"1", b"1"], [b"1 "]])
def test_a_length_that_is_none(values: list[bytes]) -> None:
    """A request with a body has one length."""
    with pytest.raises(ConnectionLost, match="Content-Length"):
        declared_length(tuple((b"content-Length", value) for value in values))
    assert declared_length((HOST, (b"CONTENT-LENGTH", b"12"))) == 12
    assert declared_length((HOST,)) == 0
