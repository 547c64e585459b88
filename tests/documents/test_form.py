"""The form of an upload: exact to the byte, readable for everybody, complete only at its end."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from documents.sources import form_of, pieces, prepared_document
from meeting_async import Document
from meeting_async.errors import DocumentChanged, InvalidInput
from meeting_async.transports import Body
from support.parsers import PARSERS, Part

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\r\nslides\r\n%%EOF\r\n"
KIB = 1024


async def _stream(data: bytes, step: int) -> AsyncIterator[bytes]:
    for piece in pieces(data, step):
        yield piece


def in_steps(data: bytes, step: int, name: str = "deck.pdf", size: int | None = None) -> Document:
    """Make a document whose bytes come ``step`` by ``step``."""
    size = len(data) if size is None else size
    return Document.from_stream(_stream(data, step), name, size=size, replayable=False)


async def part(document: Document) -> Part:
    """Read the form of a document as servers do; a literal ``%22`` is an escaped quote."""
    async with prepared_document(document) as prepared, form_of(prepared) as body:
        form = b"".join([chunk async for chunk in body])
        assert len(form) == body.length
    assert form.partition(b"\r\n\r\n")[0].count(b"\r\n") <= 2
    parts: dict[str, Part] = {}
    for parse in PARSERS:
        ((field, name, kind, content),) = parse(body.content_type, form)
        shown = name.replace("%22", '"') if name else name
        parts[parse.__name__] = field, shown, kind, content
    assert len(set(parts.values())) == 1, parts
    return parts["by_werkzeug"]


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


ANOTHER = b"5f0ab7c3d19e46b28a4c6e1f90d2b375"
NEAR = [
    *(b"-", b"--", b"\r", b"\n", b"\r\n", b"\r\n-", b"\r\n--", b"\r\n--\r\n", b"\r\n----\r\n"),
    *(b"\r\n--" + ANOTHER, b"\r\n--" + ANOTHER + b"--\r\n", ANOTHER + b"--\r\n"),
    b"\r\nContent-Disposition: form-data; name=document_link\r\n\r\nhttps://evil.example",
]
"""What looks like a boundary."""
LINKS = ["https://files.example.com/deck.pdf", "http://[::1]:8/a?b=c&d=%20;e#f", "http://h/"]


async def test_what_is_nasty_is_read_back() -> None:
    """Every parser sees one part, its content to the byte, and the name that the receipt has."""
    for name in NAMES:
        document = Document.from_bytes(PDF, name, content_type="a/b")
        shown = document.filename.replace("%22", '"')
        assert await part(document) == ("document", shown, "a/b", PDF)
    for near in NEAR:  # at the start, in the middle and at the end of the document
        for data, step in ((near, 1), (near + PDF, 7), (PDF + near + PDF, 1), (near * 50, 7)):
            assert (await part(in_steps(data, step)))[-1] == data
    for link in LINKS:
        found = await part(Document.from_link(link))
        assert found == ("document_link", None, "", link.encode())


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(name=st.text(max_size=40), data=st.binary(min_size=1, max_size=200), step=st.integers(1, 50))
async def test_any_name_and_content_are_read_back(name: str, data: bytes, step: int) -> None:
    """Whatever a file is called and holds, however its bytes come; or its name is refused."""
    try:
        document = in_steps(data, step, name)
    except InvalidInput:
        return
    _, shown, _, content = await part(document)
    assert (shown, content) == (document.filename.replace("%22", '"'), data)


async def test_a_boundary_cannot_be_guessed() -> None:
    """Each attempt has a new one of 128 random bits, so that no document contains it."""
    async with prepared_document(Document.from_bytes(PDF, "a.pdf")) as prepared:
        kinds = {prepared.form().content_type for _ in range(100)}
    assert len(kinds) == 100
    for kind in kinds:
        head, _, boundary = kind.partition(b"boundary=")
        assert head == b"multipart/form-data; "
        assert len(bytes.fromhex(boundary.decode())) == 16


# --- how much of it was sent ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [1, 17, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 192 * KIB + 5, 256 * KIB + 1]
)
async def test_every_byte_is_counted(size: int) -> None:
    """The length is known before the document is opened; the last chunk is the boundary."""
    data = b"x" * size
    async with prepared_document(Document.from_bytes(data, "a.pdf")) as prepared:
        async with form_of(prepared) as body:
            assert isinstance(body, Body)
            length, form, chunks = body.length, b"", []
            assert body.taken == 0
            async for chunk in body:
                chunks.append(chunk)
                form += chunk
                assert body.taken == len(form)
        assert len(form) == length
        head, end = chunks[0], chunks[-1]
        assert form == head + data + end
        assert repr(body) == f"<MultipartBody, {length} of {length} bytes taken>"
        for sent in {0, 1, *range(len(head) - 2, len(head) + 3), *range(length - 60, length + 1)}:
            document = len(form[len(head) : min(sent, length - len(end))])
            assert body.document_bytes(sent) == document
            assert body.is_complete(sent) is (sent > length - len(end))


QUICK, USUAL, SLOW = 0.0, 0.05, 1.0


@pytest.mark.parametrize(
    ("seconds", "sizes"),
    [
        ([QUICK] * 5, [64, 128, 256, 512, 512, 512]),
        ([SLOW] * 5, [64] * 6),
        ([USUAL] * 5, [64] * 6),
        ([QUICK, QUICK, QUICK, USUAL, SLOW, SLOW], [64, 128, 256, 512, 512, 256, 128]),
    ],
)
async def test_chunks_suit_the_line(seconds: list[float], sizes: list[int]) -> None:
    """They grow while the transport takes them quickly, and shrink when it does not."""
    clock, found = 1000.0, []
    async with prepared_document(Document.from_bytes(bytes(4096 * KIB), "a.pdf")) as prepared:
        body = prepared.form(now=lambda: clock)
        await anext(body)
        for wait in [*seconds, 0.0]:
            found.append(len(await anext(body)) // KIB)
            clock += wait
        body.close()
    assert found == sizes


# --- what is told on the way ---------------------------------------------------------------------


async def test_progress_is_told_when_a_chunk_was_taken() -> None:
    """Called with the bytes of the document so far, up to its size and not beyond."""
    told: list[int] = []
    before = []
    async with prepared_document(in_steps(b"x" * 10, 4)) as prepared:
        body = prepared.form(told.append)
        for _ in range(5):
            await anext(body)
            before.append(list(told))
    assert before == [[], [], [4], [4, 8], [4, 8, 10]]


@pytest.mark.parametrize("raises", ["progress", "the end", "nothing"])
async def test_what_a_hook_raises_ends_the_form(raises: str) -> None:
    """Each is called in time; before the closing boundary, so nothing was delivered."""
    told: list[str] = []

    def hook(name: str) -> None:
        told.append(name)
        if raises == name:
            raise ZeroDivisionError

    async def before_end() -> None:
        hook("the end")

    async with prepared_document(Document.from_bytes(PDF, "a.pdf")) as prepared:
        body = prepared.form(lambda _sent: hook("progress"), before_end)
        with contextlib.suppress(ZeroDivisionError):
            await _read(body)
            told.append("nothing")
        assert body.is_complete(body.taken) is (raises == "nothing")
        assert body.document_bytes(body.taken) == len(PDF)
        body.close()
    assert told == ["progress", "the end", "nothing"][: len(told)]
    assert told[-1] == raises


@pytest.mark.parametrize("there", [0, 1, len(PDF) - 1, len(PDF) + 1])
async def test_a_document_of_another_size_is_never_complete(there: int) -> None:
    """The closing boundary is not yielded, and the hook not called, also when asked again."""
    called: list[bool] = []

    async def before_end() -> None:
        called.append(True)

    document = in_steps((PDF + b"more")[:there], 1, size=len(PDF))
    async with prepared_document(document) as prepared:
        body = prepared.form(None, before_end)
        with pytest.raises(DocumentChanged, match=r"declared 25 bytes") as caught:
            await _read(body)
        assert caught.value.document == "deck.pdf"
        with contextlib.suppress(DocumentChanged):  # asked again, as a careless transport does
            await _read(body)
        assert body.document_bytes(body.taken) == min(there, len(PDF))
        assert not body.is_complete(body.taken)
    assert called == []


async def _read(body: Any) -> None:
    async for _ in body:
        pass
