"""The form of an upload: exact to the byte, readable for everybody, complete only at its end.

The bodies wait for nothing here, so no event loop is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import attrs
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from meeting_async._documents.prepared import (
    LARGEST_CHUNK,
    QUICK_SECONDS,
    SMALLEST_CHUNK,
    MultipartBody,
    next_chunk_size,
)
from meeting_async._documents.source import Reader
from meeting_async._models import Body
from meeting_async._protocol.multipart import MultipartFraming, document_form, file_name, link_form
from meeting_async.errors import DocumentChanged, InvalidInput
from support.parsers import PARSERS, Part

T = TypeVar("T")
Parser = Callable[[bytes, bytes], list[Part]]

BOUNDARY = "5f0ab7c3d19e46b28a4c6e1f90d2b375"
PDF = b"%PDF-1.7\r\nslides\r\n%%EOF\r\n"

every_parser = pytest.mark.parametrize("parse", PARSERS)


@attrs.define
class Watch:
    """A clock that stands still until it is moved."""

    seconds: float = 0.0


@attrs.define
class Memory(Reader):
    """A reader of bytes that returns at most ``step`` of them at a time."""

    data: bytes
    step: int = 1 << 40
    error: BaseException | None = None
    """Raised at the end."""
    asked: list[int] = attrs.field(factory=list)
    finished: bool = False
    closed: bool = False

    async def read(self, limit: int, /) -> bytes:
        """Return the next bytes."""
        self.asked.append(limit)
        chunk, self.data = self.data[: min(limit, self.step)], self.data[min(limit, self.step) :]
        return chunk

    async def finish(self) -> None:
        """Raise the error."""
        self.finished = True
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Note it."""
        self.closed = True


def now(awaitable: Awaitable[T]) -> T:
    """Run what does not wait."""
    steps = awaitable.__await__()
    try:
        next(steps)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


def taken(body: MultipartBody) -> list[bytes]:
    """Take all chunks."""
    found: list[bytes] = []
    while True:
        try:
            found.append(now(anext(body)))
        except StopAsyncIteration:
            return found


def framing_of(
    size: int, name: str = "deck.pdf", kind: str = "application/pdf"
) -> MultipartFraming:
    """Plan the form of a document."""
    return document_form(name, kind, size, boundary=BOUNDARY)


def body_of(
    framing: MultipartFraming,
    reader: Memory,
    progress: Any = None,
    before_end: Any = None,
    watch: Watch | None = None,
) -> MultipartBody:
    """Make a body."""
    clock = watch or Watch()

    async def open_document() -> Memory:
        return reader

    return MultipartBody(
        framing, "deck.pdf", open_document, progress, before_end, lambda: clock.seconds
    )


def form_of(data: bytes, name: str = "deck.pdf", **reader: Any) -> bytes:
    """Make the whole form of a document."""
    return b"".join(taken(body_of(framing_of(len(data), name), Memory(data, **reader))))


# --- the format ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size",
    [1, 17, SMALLEST_CHUNK - 1, SMALLEST_CHUNK, SMALLEST_CHUNK + 1, 3 * SMALLEST_CHUNK + 5],
)
def test_the_length_is_exact(size: int) -> None:
    """Content-Length is known before the document is opened, and every byte is counted."""
    framing = framing_of(size)
    body = body_of(framing, Memory(b"x" * size))
    assert isinstance(body, Body)
    assert (body.length, body.taken, body.document_bytes(body.taken)) == (framing.length, 0, 0)
    assert len(b"".join(taken(body))) == framing.length == body.taken
    assert body.document_bytes(body.taken) == size
    assert repr(body) == f"<MultipartBody, {framing.length} of {framing.length} bytes taken>"


def test_chunks_suit_the_line() -> None:
    """They grow while the transport takes them quickly, and shrink when it does not."""
    size, largest = SMALLEST_CHUNK, LARGEST_CHUNK
    assert next_chunk_size(size, 0) == 2 * size
    assert next_chunk_size(largest, 0) == largest
    assert next_chunk_size(largest, 2 * QUICK_SECONDS) == largest
    assert next_chunk_size(largest, 5 * QUICK_SECONDS) == largest // 2
    assert next_chunk_size(size, 60) == size
    watch = Watch()
    body = body_of(framing_of(5 * size), Memory(bytes(5 * size)), watch=watch)
    sizes = []
    for _ in range(6):
        sizes.append(len(now(anext(body))))
        watch.seconds += 1
    assert sizes[1:] == [size] * 5


# --- read back by others -------------------------------------------------------------------------

NAMES = [
    *("deck.pdf", 'a"b.pdf', '"', '""', '"a', 'a"', "'a'.pdf", "a;b.pdf", "a,b", "a=b", "a%"),
    *("%22", "a%0Db", "a&b<c>&amp;.pdf", "a: b", "(a)", "<a@b>", "[a]", "?", "*"),
    *('a"; filename="evil.exe', "a; filename=evil.exe", "filename*=utf-8''x"),
    *("=?utf-8?b?ZXZpbA==?=", "a\r\nX-Evil: 1.pdf", "a\nb", "a\rb", "a\r\n\r\nb", "a\tb", "\n"),
    *("a\x0bb\x0cb", "a\x1cb\x1db\x1eb\x1fb", "a\x01", "a\x7f", "a\x85b", "a\u2028b\u2029c"),
    *("ü.pdf", "u\u0308.pdf", "會議 “Q”.pptx", "😀.pdf", "\u202efdp.exe", "שלום.pdf", "a\u200db"),
    *("a\u00a0b", "\ufeffa", "\ufffd", "é" * 150, "x" * 300, "ä" * 300, " a ", "a  b"),
    *("C:\\docs\\b.pdf", "../../etc/passwd", "/abs/c.pdf", "..\\..\\d.pdf", "a/b\\c/d.pdf"),
    *(".hidden", "a.", "-a", "--", "--boundary", "CON"),
]  # fmt: skip


def undone(parts: list[Part]) -> list[Part]:
    """Undo what some parsers undo: a literal ``%22`` is how browsers escape a quote."""
    return [
        (field, name.replace("%22", '"') if name else name, kind, content)
        for field, name, kind, content in parts
    ]


@every_parser
def test_nasty_names_are_read_back(parse: Parser) -> None:
    """Every parser sees one part, its content to the byte, and the name that the receipt has."""
    for name in NAMES:
        clean = file_name(name)
        whole = form_of(PDF, clean)
        expected: list[Part] = [("document", clean, "application/pdf", PDF)]
        assert undone(parse(framing_of(1).content_type, whole)) == undone(expected)
        assert whole.partition(b"\r\n\r\n")[0].count(b"\r\n") == 2


@every_parser
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(name=st.text(max_size=40), data=st.binary(min_size=1, max_size=200), step=st.integers(1, 50))
@example(name="a", data=b"\r\n", step=1)
@example(name="a", data=b"\n--" + BOUNDARY.encode()[:-1], step=3)
def test_any_name_and_content_are_read_back(
    parse: Parser, name: str, data: bytes, step: int
) -> None:
    """Whatever a file is called and holds, however its bytes come; or its name is refused."""
    try:
        clean = file_name(name)
    except InvalidInput:
        return
    expected: list[Part] = [("document", clean, "application/pdf", data)]
    whole = form_of(data, clean, step=step)
    assert undone(parse(framing_of(1).content_type, whole)) == undone(expected)


NEARBY = [
    *(b"-", b"--", b"\r", b"\n", b"\r\n", b"\r\n-", b"\r\n--", b"\r\n--\r\n", b"\r\n----\r\n"),
    b"\r\n--" + BOUNDARY[:-1].encode(),
    b"\r\n--" + BOUNDARY[:-1].encode() + b"--\r\n",
    b"\r\n--" + BOUNDARY.upper().encode() + b"--\r\n",
    b"\r\n-" + BOUNDARY.encode() + b"--\r\n",
    BOUNDARY.encode() + b"--\r\n",
    b"\r\n" + BOUNDARY.encode() + b"\r\n",
    b"\r\nContent-Disposition: form-data; name=document_link\r\n\r\nhttps://evil.example",
]


@every_parser
def test_almost_the_boundary_in_the_data(parse: Parser) -> None:
    """All but the boundary itself, at the start, in the middle and at the end of the document."""
    for near in NEARBY:
        for data, step in ((near, 1), (near + PDF, 7), (PDF + near + PDF, 1), (near * 50, 7)):
            parts = parse(framing_of(1).content_type, form_of(data, step=step))
            assert parts == [("document", "deck.pdf", "application/pdf", data)]


@every_parser
@pytest.mark.parametrize(
    "link", ["https://files.example.com/deck.pdf", "http://[::1]:8/a?b=c&d=%20;e#f", "h" * 8192]
)
def test_links_are_read_back(parse: Parser, link: str) -> None:
    """As a plain field, to the byte."""
    framing = link_form(link, boundary=BOUNDARY)
    whole = b"".join(taken(body_of(framing, Memory(link.encode()))))
    assert parse(framing.content_type, whole) == [("document_link", None, "", link.encode())]
    assert len(whole) == framing.length


# --- what is told on the way ---------------------------------------------------------------------


def test_what_was_sent() -> None:
    """A chunk counts when it is yielded; the transport may correct the number downward."""
    framing = framing_of(6)
    body = body_of(framing, Memory(b"abcdef", step=3))
    seen = []
    for _ in range(4):
        now(anext(body))
        seen.append((body.taken - len(framing.part_headers), body.document_bytes(body.taken)))
    assert seen == [(0, 0), (3, 3), (6, 6), (6 + len(framing.closing_boundary), 6)]
    assert body.document_bytes(len(framing.part_headers) + 2) == 2
    assert body.document_bytes(len(framing.part_headers) - 1) == 0


def test_progress_is_told_when_a_chunk_was_taken() -> None:
    """Called with the bytes of the document so far, up to its size and not beyond."""
    told: list[int] = []
    body = body_of(framing_of(10), Memory(b"x" * 10, step=4), told.append)
    before = []
    for _ in range(5):
        now(anext(body))
        before.append(list(told))
    assert before == [[], [], [4], [4, 8], [4, 8, 10]]


def test_progress_that_raises_ends_the_body() -> None:
    """Before the closing boundary, so nothing was delivered."""

    def progress(sent: int) -> None:
        raise RuntimeError(f"after {sent}")

    body = body_of(framing_of(10), Memory(b"x" * 10), progress)
    with pytest.raises(RuntimeError, match="after 10"):
        taken(body)
    assert body.taken == body.length - len(framing_of(10).closing_boundary)


@pytest.mark.parametrize("error", [None, RuntimeError("not now")])
def test_the_end_waits_for_its_hook(error: Exception | None) -> None:
    """Awaited once, after the document was sent and checked; what it raises ends the body."""
    told: list[tuple[int, bool]] = []
    reader, framing = Memory(PDF, step=4), framing_of(len(PDF))

    async def before_end() -> None:
        told.append((body.document_bytes(body.taken), reader.finished))
        if error is not None:
            raise error

    body = body_of(framing, reader, None, before_end)
    if error is None:
        assert b"".join(taken(body)) == form_of(PDF)
        assert body.taken == body.length
    else:
        with pytest.raises(RuntimeError, match="not now"):
            taken(body)
        assert body.taken == body.length - len(framing.closing_boundary)
    assert told == [(len(PDF), True)]


# --- documents that are not what they were -------------------------------------------------------


@pytest.mark.parametrize("there", [0, 1, len(PDF) - 1])
def test_a_document_that_ends_early_is_never_complete(there: int) -> None:
    """It shrank: the closing boundary is not yielded, and the hook not called."""
    called: list[bool] = []

    async def before_end() -> None:
        called.append(True)

    body = body_of(framing_of(len(PDF)), Memory(PDF[:there]), None, before_end)
    with pytest.raises(DocumentChanged, match=f"ended after {there} of {len(PDF)} bytes") as caught:
        taken(body)
    assert caught.value.document == "deck.pdf"
    assert body.taken == len(framing_of(1).part_headers) + there
    assert called == []


def test_a_document_that_is_longer_is_never_complete() -> None:
    """Whether a read returns too much or the check at the end fails."""

    class TooMuch(Memory):
        async def read(self, limit: int, /) -> bytes:
            return b"x" * (limit + 1)

    for reader in (TooMuch(b""), Memory(PDF, error=DocumentChanged("deck.pdf", "more than"))):
        body = body_of(framing_of(len(PDF)), reader)
        with pytest.raises(DocumentChanged, match="more than"):
            taken(body)
        assert body.taken < body.length
