"""The form of an upload: exact to the byte, readable for everybody, complete only at its end.

The bodies need no event loop here: nothing in this module waits by itself.
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import anyio
import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from _parsers import PARSERS, Part
from _properties import fuzz
from meeting_async._multipart import (
    MultipartBody,
    MultipartPlan,
    escaped,
    file_name,
    media_type,
    plan_document,
    plan_link,
)
from meeting_async._pace import SMALLEST_CHUNK
from meeting_async._records import Body
from meeting_async.errors import DocumentChanged, DocumentUnreadable, InvalidInput

T = TypeVar("T")

BOUNDARY = "5f0ab7c3d19e46b28a4c6e1f90d2b375"
PDF = b"%PDF-1.7\r\nslides\r\n%%EOF\r\n"


@attrs.define
class Memory:
    """A reader of bytes that yields at most ``step`` of them at a time."""

    data: bytes
    step: int = 1 << 40
    error: BaseException | None = None
    """Raised at the end."""
    asked: list[int] = attrs.field(factory=list)
    finished: bool = False

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


def now(awaitable: Awaitable[T]) -> T:
    """Run what does not wait."""
    steps = awaitable.__await__()
    try:
        next(steps)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waits")


def taken(chunks: AsyncIterator[bytes]) -> list[bytes]:
    """Take all chunks."""
    found: list[bytes] = []
    while True:
        try:
            found.append(now(anext(chunks)))
        except StopAsyncIteration:
            return found


def document(size: int, name: str = "deck.pdf", kind: str = "application/pdf") -> MultipartPlan:
    """Plan the form of a document."""
    return plan_document(name, kind, size, boundary=BOUNDARY)


def form(data: bytes, name: str = "deck.pdf", **reader: Any) -> bytes:
    """Make the whole form of a document."""
    return b"".join(taken(aiter(MultipartBody(document(len(data), name), Memory(data, **reader)))))


# --- the format ----------------------------------------------------------------------------------


def test_form_of_a_document_to_the_byte() -> None:
    """RFC 7578: one part named ``document``, with file name and type."""
    assert form(PDF, "Übung 1.pdf") == (
        b"--5f0ab7c3d19e46b28a4c6e1f90d2b375\r\n"
        b'Content-Disposition: form-data; name="document"; filename="\xc3\x9cbung 1.pdf"\r\n'
        b"Content-Type: application/pdf\r\n"
        b"\r\n"
        b"%PDF-1.7\r\nslides\r\n%%EOF\r\n"
        b"\r\n--5f0ab7c3d19e46b28a4c6e1f90d2b375--\r\n"
    )


def test_form_of_a_link_to_the_byte() -> None:
    """One part named ``document_link``: a plain field, so without file name and type."""
    link = "https://files.example.com/deck.pdf?token=hush"
    plan = plan_link(link, boundary=BOUNDARY)
    body = MultipartBody(plan, Memory(link.encode()))
    assert b"".join(taken(aiter(body))) == (
        b"--5f0ab7c3d19e46b28a4c6e1f90d2b375\r\n"
        b'Content-Disposition: form-data; name="document_link"\r\n'
        b"\r\n"
        b"https://files.example.com/deck.pdf?token=hush"
        b"\r\n--5f0ab7c3d19e46b28a4c6e1f90d2b375--\r\n"
    )
    assert plan.size == len(link)
    assert plan.name == "https://files.example.com/deck.pdf?…"
    assert body.complete


def test_content_type_of_the_request() -> None:
    """It names the boundary, which needs no quotes."""
    assert document(1).content_type == (
        b"multipart/form-data; boundary=5f0ab7c3d19e46b28a4c6e1f90d2b375"
    )


@pytest.mark.parametrize(
    "size",
    [0, 1, 17, SMALLEST_CHUNK - 1, SMALLEST_CHUNK, SMALLEST_CHUNK + 1, 3 * SMALLEST_CHUNK + 5],
)
def test_length_is_exact(size: int) -> None:
    """Content-Length is known before the first byte is read."""
    plan = document(size)
    body = MultipartBody(plan, Memory(b"x" * size))
    assert body.length == plan.length
    assert len(b"".join(taken(aiter(body)))) == plan.length
    assert body.handed_over == plan.length
    assert body.document_sent == size


def test_length_of_a_huge_document_needs_no_document() -> None:
    """Arithmetic only: 10 TiB are planned in an instant."""
    overhead = document(0).length
    assert document(10 * 1024**4).length == overhead + 10 * 1024**4


def test_chunks() -> None:
    """Head, the document in chunks of bounded size, and the closing boundary by itself."""
    small, large = SMALLEST_CHUNK, 2 * SMALLEST_CHUNK
    data = bytes(range(256)) * ((small + large) // 256) + b"rest"
    reader = Memory(data)
    plan = document(len(data))
    chunks = taken(aiter(MultipartBody(plan, reader)))
    assert chunks[0] == plan.head
    assert [len(chunk) for chunk in chunks[1:-1]] == [small, large, 4]
    assert b"".join(chunks[1:-1]) == data
    assert chunks[-1] == b"\r\n--5f0ab7c3d19e46b28a4c6e1f90d2b375--\r\n" == plan.tail
    assert reader.asked == [small, large, 4]
    assert reader.finished


def test_chunks_stay_small_on_a_slow_line() -> None:
    """The time a chunk takes counts from when it is handed over until the next one is asked for."""
    times = iter(range(1000))
    body = MultipartBody(
        document(5 * SMALLEST_CHUNK), Memory(bytes(5 * SMALLEST_CHUNK)), clock=lambda: next(times)
    )
    assert [len(chunk) for chunk in taken(aiter(body))][1:-1] == [SMALLEST_CHUNK] * 5


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


def understood(parts: list[Part]) -> list[Part]:
    """Undo what some parsers undo by themselves: the browsers' way to escape a quote."""
    return [
        (field, name.replace("%22", '"') if name else name, kind, content)
        for field, name, kind, content in parts
    ]


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:30])
def test_nasty_names_are_read_back(parse: Callable[[bytes, bytes], list[Part]], name: str) -> None:
    """Every parser sees one part, its content to the byte, and the name as browsers send it."""
    clean = file_name(name)
    body = form(PDF, clean)
    expected: list[Part] = [("document", escaped(clean), "application/pdf", PDF)]
    assert understood(parse(document(1).content_type, body)) == understood(expected)
    head = body.partition(b"\r\n\r\n")[0]
    assert head.count(b"\r\n") == 2


@pytest.mark.parametrize("parse", PARSERS)
@fuzz
@given(name=st.text(max_size=40), data=st.binary(max_size=200), step=st.integers(1, 50))
@example(name="a", data=b"", step=1)
@example(name="a", data=b"\r\n", step=1)
@example(name="a", data=b"\n--" + BOUNDARY.encode()[:-1], step=3)
def test_any_name_and_content_are_read_back(
    parse: Callable[[bytes, bytes], list[Part]], name: str, data: bytes, step: int
) -> None:
    """Whatever a file is called and holds, however its bytes come; or its name is refused."""
    try:
        clean = file_name(name)
    except InvalidInput:
        return
    body = form(data, clean, step=step)
    expected: list[Part] = [("document", escaped(clean), "application/pdf", data)]
    assert understood(parse(document(1).content_type, body)) == understood(expected)


NEARBY = [
    b"",
    b"-",
    b"--",
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n-",
    b"\r\n--",
    b"\r\n--\r\n",
    b"\r\n----\r\n",
    b"\r\n--" + BOUNDARY[:-1].encode(),
    b"\r\n--" + BOUNDARY[:-1].encode() + b"--\r\n",
    b"\r\n--" + BOUNDARY.upper().encode() + b"--\r\n",
    b"\r\n-" + BOUNDARY.encode() + b"--\r\n",
    BOUNDARY.encode(),
    BOUNDARY.encode() + b"--\r\n",
    b"\r\n" + BOUNDARY.encode() + b"\r\n",
    b"\r\nContent-Disposition: form-data; name=document_link\r\n\r\nhttps://evil.example",
]


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("near", NEARBY, ids=lambda data: ascii(data)[:40])
def test_almost_the_boundary_in_the_data(
    parse: Callable[[bytes, bytes], list[Part]], near: bytes
) -> None:
    """All but the boundary itself, at the start, in the middle and at the end of the document."""
    for data in (near, near + PDF, PDF + near, PDF + near + PDF, near * 50):
        for step in (1, 7, SMALLEST_CHUNK):
            parts = parse(document(1).content_type, form(data, step=step))
            assert parts == [("document", "deck.pdf", "application/pdf", data)]


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "link", ["https://files.example.com/deck.pdf", "http://[::1]:8/a?b=c&d=%20;e#f", "h" * 8192]
)
def test_links_are_read_back(parse: Callable[[bytes, bytes], list[Part]], link: str) -> None:
    """As a plain field, to the byte."""
    plan = plan_link(link, boundary=BOUNDARY)
    body = b"".join(taken(aiter(MultipartBody(plan, Memory(link.encode())))))
    assert parse(plan.content_type, body) == [("document_link", None, "", link.encode())]
    assert len(body) == plan.length


@pytest.mark.parametrize("parse", PARSERS)
def test_a_media_type_with_a_parameter_is_read_back(
    parse: Callable[[bytes, bytes], list[Part]],
) -> None:
    """The part's own content type stays with the part."""
    plan = plan_document("a.txt", "text/plain; charset=utf-8", 3, boundary=BOUNDARY)
    body = b"".join(taken(aiter(MultipartBody(plan, Memory(b"abc")))))
    assert parse(plan.content_type, body) == [
        ("document", "a.txt", "text/plain; charset=utf-8", b"abc")
    ]


# --- the closing boundary ------------------------------------------------------------------------


def test_complete_tells_when_the_closing_boundary_was_handed_over() -> None:
    """False at every chunk but the last, true from it on: the bit that everything hangs on."""
    body = MultipartBody(document(len(PDF)), Memory(PDF, step=4))
    assert not body.complete
    chunks = aiter(body)
    seen: list[tuple[bytes, bool]] = []
    for _ in range(1 + -(-len(PDF) // 4) + 1):
        chunk = now(anext(chunks))
        seen.append((chunk, body.complete))
    assert [complete for _, complete in seen] == [False] * (len(seen) - 1) + [True]
    assert seen[-1][0] == document(1).tail
    assert all(BOUNDARY.encode() + b"--" not in chunk for chunk, _ in seen[:-1])
    with pytest.raises(StopAsyncIteration):
        now(anext(chunks))
    assert body.complete


def test_what_was_handed_over_and_what_was_taken() -> None:
    """A chunk counts as handed over at once, and as taken when the transport comes for more."""
    plan = document(6)
    body = MultipartBody(plan, Memory(b"abcdef", step=3))
    chunks = aiter(body)
    seen = []
    for _ in range(4):
        now(anext(chunks))
        seen.append((body.handed_over - len(plan.head), body.document_sent))
    assert seen == [(0, 0), (3, 0), (6, 3), (6 + len(plan.tail), 6)]


def test_progress_is_told_after_each_chunk() -> None:
    """Bytes of the document that were taken, up to its size and not beyond."""
    told: list[int] = []

    async def progress(sent: int) -> None:
        told.append(sent)

    taken(aiter(MultipartBody(document(10), Memory(b"x" * 10, step=4), progress)))
    assert told == [4, 8, 10]


def test_progress_that_raises_ends_the_body() -> None:
    """Before the closing boundary, so nothing was delivered."""

    async def progress(sent: int) -> None:
        raise RuntimeError(f"after {sent}")

    body = MultipartBody(document(10), Memory(b"x" * 10), progress)
    with pytest.raises(RuntimeError, match="after 10"):
        taken(aiter(body))
    assert not body.complete


def test_the_end_waits_for_whoever_wants_to_know() -> None:
    """Told once, when the document is out and checked, and before its end is handed over."""
    told: list[tuple[int, bool, bool]] = []
    reader = Memory(PDF, step=4)

    async def before_end() -> None:
        told.append((body.document_sent, reader.finished, body.complete))

    body = MultipartBody(document(len(PDF)), reader, before_end=before_end)
    chunks = taken(aiter(body))
    assert told == [(len(PDF), True, False)]
    assert b"".join(chunks) == form(PDF)


def test_who_does_not_want_it_to_end() -> None:
    """What is raised then ends the body, and no server can have parsed it."""

    async def before_end() -> None:
        raise RuntimeError("not now")

    body = MultipartBody(document(3), Memory(b"abc"), before_end=before_end)
    with pytest.raises(RuntimeError, match="not now"):
        taken(aiter(body))
    assert (body.document_sent, body.complete) == (3, False)
    assert body.handed_over == body.length - len(document(3).tail)


def test_a_document_that_changed_is_not_announced() -> None:
    """Its end will not be handed over."""
    told: list[bool] = []

    async def before_end() -> None:
        told.append(True)

    body = MultipartBody(document(5), Memory(b"abc"), before_end=before_end)
    with pytest.raises(DocumentChanged):
        taken(aiter(body))
    assert told == []


# --- documents that are not what they were -------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 3, 24, 25, 26, 1000])
def test_short_reads_are_no_fault(step: int) -> None:
    """A reader may bring less than it was asked for; it is asked for the rest."""
    assert form(PDF, step=step) == form(PDF)


@pytest.mark.parametrize("there", [0, 1, len(PDF) - 1])
def test_a_document_that_ends_early(there: int) -> None:
    """It shrank: the closing boundary stays back, whatever was sent before it."""
    body = MultipartBody(document(len(PDF)), Memory(PDF[:there]))
    with pytest.raises(DocumentChanged) as caught:
        taken(aiter(body))
    assert caught.value.document == "deck.pdf"
    assert f"at byte {there} of {len(PDF)}" in caught.value.change
    assert not body.complete
    assert body.handed_over == len(document(1).head) + there
    assert taken(aiter(body)) == []


class TooMuch(Memory):
    """A reader that ignores the limit."""

    async def read(self, limit: int, /) -> bytes:
        """Return one byte too many."""
        return b"x" * (limit + 1)


@pytest.mark.parametrize("what", [None, "text", 7, bytearray(b"x"), [b"x"]])
def test_a_read_that_brings_no_bytes(what: Any) -> None:
    """One clear error, and the form is not completed."""

    class Wrong(Memory):
        async def read(self, limit: int, /) -> bytes:
            result: bytes = what
            return result

    body = MultipartBody(document(10), Wrong(b""))
    chunks = aiter(body)
    now(anext(chunks))
    with pytest.raises(DocumentUnreadable, match="instead of bytes") as caught:
        now(anext(chunks))
    assert caught.value.document == "deck.pdf"
    assert not body.complete


def test_a_read_that_brings_too_much() -> None:
    """Not a byte beyond the declared length is handed over."""
    body = MultipartBody(document(10), TooMuch(b""))
    chunks = aiter(body)
    now(anext(chunks))
    with pytest.raises(DocumentChanged, match="brought 11 bytes"):
        now(anext(chunks))
    assert not body.complete
    assert body.handed_over == len(document(1).head)


def test_a_document_that_goes_on_is_not_read_on() -> None:
    """It grew: whether that matters is the reader's to say at the end."""
    reader = Memory(b"x" * 20)
    body = MultipartBody(document(10), reader)
    assert len(b"".join(taken(aiter(body)))) == body.length
    assert reader.data == b"x" * 10
    assert reader.finished


@pytest.mark.parametrize("size", [0, 10])
@pytest.mark.parametrize("error", [DocumentChanged("deck.pdf", "it is gone"), OSError("no disk")])
def test_a_reader_that_objects_at_the_end(size: int, error: Exception) -> None:
    """All bytes are out, yet the form stays open: no server can have parsed it."""
    body = MultipartBody(document(size), Memory(b"x" * size, error=error))
    chunks = aiter(body)
    found = [now(anext(chunks)) for _ in range(2 if size else 1)]
    with pytest.raises(type(error)) as caught:
        now(anext(chunks))
    assert caught.value is error
    assert b"".join(found) == document(size).head + b"x" * size
    assert not body.complete
    assert body.handed_over == body.length - len(document(size).tail)
    assert taken(aiter(body)) == []


class Broken(Memory):
    """A reader whose disk fails half-way."""

    async def read(self, limit: int, /) -> bytes:
        """Fail after five bytes."""
        if self.asked:
            raise OSError("no disk")
        return await super().read(min(limit, 5))


def test_a_reader_that_fails_half_way() -> None:
    """Its error is passed on as it is."""
    body = MultipartBody(document(10), Broken(b"x" * 10))
    with pytest.raises(OSError, match="no disk"):
        taken(aiter(body))
    assert not body.complete
    assert body.document_sent == 5


# --- given up ------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks_taken", range(6))
def test_closing_at_any_point(chunks_taken: int) -> None:
    """What was not read stays unread, and ``complete`` stays what it was."""
    reader = Memory(b"x" * 9, step=3)
    body = MultipartBody(document(9), reader)
    chunks = aiter(body)
    for _ in range(min(chunks_taken, 5)):
        now(anext(chunks))
    if chunks_taken == 5:
        assert taken(chunks) == []
    handed_over = body.handed_over
    for _ in range(2):
        now(body.aclose())
    assert taken(chunks) == []
    assert taken(aiter(body)) == []
    assert body.complete is (chunks_taken >= 5)
    assert body.handed_over == handed_over
    assert len(reader.asked) == max(0, min(chunks_taken - 1, 3))


def test_a_body_serves_one_attempt() -> None:
    """A second iteration goes on with the first; it never starts the document anew."""
    body = MultipartBody(document(6), Memory(b"abcdef", step=3))
    now(anext(aiter(body)))
    rest = taken(aiter(body))
    assert rest == [b"abc", b"def", document(6).tail]
    assert taken(aiter(body)) == []
    assert body.handed_over == body.length


class Stuck(Memory):
    """A reader whose disk never answers."""

    async def read(self, limit: int, /) -> bytes:
        """Wait for ever."""
        await anyio.sleep_forever()
        return await super().read(limit)


class StuckAtTheEnd(Memory):
    """A reader that never finishes."""

    async def finish(self) -> None:
        """Wait for ever."""
        await anyio.sleep_forever()


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Stuck, StuckAtTheEnd])
async def test_cancelled_while_the_reader_is_busy(kind: type[Memory]) -> None:
    """On both event loops: the form stays open and is over."""
    body = MultipartBody(document(10), kind(b"x" * 10))
    with anyio.move_on_after(0.01) as scope:
        async for _ in body:
            pass
    assert scope.cancelled_caught
    assert not body.complete
    assert [chunk async for chunk in body] == []
    await body.aclose()


def test_a_body_tells_numbers_and_no_content() -> None:
    """It is what error reporters show of an upload."""
    body = MultipartBody(document(4), Memory(b"hush"))
    taken(aiter(body))
    assert repr(body) == f"<MultipartBody {body.length} of {body.length} bytes handed over>"
    assert isinstance(body, Body)
    plan = plan_link("https://files.example.com/a?hush", boundary=BOUNDARY)
    assert "hush" not in repr(plan)


# --- names and types -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deck.pdf", "deck.pdf"),
        ("/srv/files/deck.pdf", "deck.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\anna\\deck.pdf", "deck.pdf"),
        ("\\\\server\\share\\deck.pdf", "deck.pdf"),
        ("a/b\\c/deck.pdf", "deck.pdf"),
        ("./deck.pdf", "deck.pdf"),
        (".hidden", ".hidden"),
        ("deck.", "deck."),
        (" deck.pdf ", " deck.pdf "),
        ("u\u0308bung.pdf", "übung.pdf"),
        ("\u212b.pdf", "Å.pdf"),
        ("ﬁ.pdf", "ﬁ.pdf"),
        ("😀.pdf", "😀.pdf"),
        ("\u202efdp.exe", "\u202efdp.exe"),
        ("x" * 300, "x" * 300),
    ],
)
def test_file_names(name: str, expected: str) -> None:
    """The last component, composed (NFC), and otherwise as it is."""
    assert file_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "...", " ", " . ", "/", "\\", "dir/", "dir\\", "C:\\", "a/..", "a/ "),
        *("a\0b.pdf", "\0", "a\ud800.pdf", "\udcff.pdf", "\udcff" * 1000),
    ],
    ids=lambda name: ascii(name)[:20],
)
def test_unusable_file_names(name: str) -> None:
    """No name at all, or one that cannot be written; the error says what to pass."""
    with pytest.raises(InvalidInput) as caught:
        file_name(name)
    assert caught.value.field == "filename"
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", [None, 7, b"deck.pdf", ["deck.pdf"]])
def test_a_file_name_is_text(name: object) -> None:
    """Temporary files have an ``int`` for a name."""
    with pytest.raises(TypeError, match="filename must be a str"):
        file_name(name)


@fuzz
@given(st.text())
def test_a_file_name_is_harmless(name: str) -> None:
    """Whatever goes in: no path, no control characters on the wire, one way to spell it."""
    try:
        clean = file_name(name)
    except InvalidInput:
        return
    assert "/" not in clean
    assert "\\" not in clean
    assert clean not in {"", ".", ".."}
    assert unicodedata.is_normalized("NFC", clean)
    assert file_name(clean) == clean
    wire = escaped(clean).encode()
    assert not any(byte < 0x20 or byte in b'\x7f"' for byte in wire)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deck.pdf", "deck.pdf"),
        ('a"b', "a%22b"),
        ("a\r\nb", "a%0D%0Ab"),
        ("a\0b\x1f\x7f", "a%00b%1F%7F"),
        ("a%22b", "a%22b"),
        ("ü 會 😀 ; ' =", "ü 會 😀 ; ' ="),
    ],
)
def test_escaping_is_that_of_browsers(name: str, expected: str) -> None:
    """Quotes and control characters as %XX, all else raw (RFC 7578 section 4.2)."""
    assert escaped(name) == expected


@pytest.mark.parametrize(
    "kind",
    [
        "application/pdf",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "image/svg+xml",
        "text/plain; charset=utf-8",
        "text/plain;charset=utf-8",
        'text/plain ; charset="utf-8"; format=flowed',
        "x-a/b_c!#$&^",
    ],
)
def test_media_types(kind: str) -> None:
    """A type, a subtype, and parameters if need be."""
    assert media_type(kind) == kind


@pytest.mark.parametrize(
    "kind",
    [
        *(
            "",
            "pdf",
            "application",
            "application/",
            "/pdf",
            "application/pdf/x",
            " application/pdf",
        ),
        *("application/pdf ", "application/p df", "application/pdf, text/html", "app(x)/pdf"),
        *("application/pdf\r\nX-Evil: 1", "application/pdf\n", "application/pdf; a=\r\nX-Evil: 1"),
        *("application/pdf; a=\0", "application/pdf; a=ü", "applicatiön/pdf", "a/b\tc", "*/*"),
    ],
)
def test_unusable_media_types(kind: str) -> None:
    """What could open another header, or is no type."""
    with pytest.raises(InvalidInput) as caught:
        media_type(kind)
    assert caught.value.field == "content_type"


@pytest.mark.parametrize("kind", [None, 7, b"application/pdf"])
def test_a_media_type_is_text(kind: object) -> None:
    """The type is named."""
    with pytest.raises(TypeError, match="content_type must be a str"):
        media_type(kind)
