"""Documents made for the demonstration: small, valid, and the same bytes each time."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from collections.abc import Sequence
from xml.sax.saxutils import escape

_PAGE = (
    b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] "
    b"/Resources << /Font << /F1 4 0 R >> >> /Contents 5 0 R >>"
)


def pdf(lines: Sequence[str], *, size: int | None = None) -> bytes:
    """Make a PDF of one A4 page (ISO 32000-1), if asked of exactly ``size`` bytes.

    What is missing to ``size`` is the content of a stream that no page shows.
    """
    if size is None:
        return _pdf(lines, None)
    filler = size
    for _ in range(3):  # the numbers in the file get shorter with its filler
        made = _pdf(lines, filler)
        if len(made) == size:
            return made
        filler -= len(made) - size
    raise ValueError(f"no PDF of these lines has just {size} bytes")


def _pdf(lines: Sequence[str], filler: int | None) -> bytes:
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        _PAGE,
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        _stream(_page_content(lines)),
    ]
    if filler is not None:
        # Noise, so that no two chunks are alike and none can be lost unnoticed.
        objects.append(_stream(hashlib.shake_256(b"noise").digest(max(filler, 0))))
    parts, offsets, at = [b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n"], [], 15
    for number, content in enumerate(objects, start=1):
        offsets.append(at)
        parts.append(b"%d 0 obj\n%b\nendobj\n" % (number, content))
        at += len(parts[-1])
    return b"".join((*parts, _cross_references(offsets, at)))


def _page_content(lines: Sequence[str]) -> bytes:
    shown = [
        line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)").encode("latin-1")
        for line in lines
    ]
    return b"BT /F1 24 Tf 32 TL 72 740 Td " + b" ".join(b"(%b) '" % line for line in shown) + b" ET"


def _stream(content: bytes) -> bytes:
    return b"<< /Length %d >>\nstream\n%b\nendstream" % (len(content), content)


def _cross_references(offsets: Sequence[int], at: int) -> bytes:
    """Make the end of the file: entries of just 20 bytes (ISO 32000-1 section 7.5.4), trailer."""
    entries = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    count = len(offsets) + 1
    return b"xref\n0 %d\n0000000000 65535 f \n%b" % (
        count,
        entries,
    ) + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (count, at)


_CONTENT_TYPES = """<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
<Default Extension="rels"
 ContentType="application/vnd.openxmlformats-package.relationships+xml"/>
<Override PartName="/word/document.xml"
 ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/>
</Types>
"""
_RELATIONSHIPS = """<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">
<Relationship Id="rId1" Target="word/document.xml"
 Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"/>
</Relationships>
"""
_WORD = """<?xml version="1.0" encoding="UTF-8" standalone="yes"?>
<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">
<w:body>{paragraphs}</w:body>
</w:document>
"""


def docx(lines: Sequence[str]) -> bytes:
    """Make a Word document with a paragraph for each line: the three parts it cannot do without."""
    paragraphs = "".join(f"<w:p><w:r><w:t>{escape(line)}</w:t></w:r></w:p>" for line in lines)
    parts = {
        "[Content_Types].xml": _CONTENT_TYPES,
        "_rels/.rels": _RELATIONSHIPS,
        "word/document.xml": _WORD.format(paragraphs=paragraphs),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as package:
        for name, text in parts.items():  # a ZipInfo of its own has no date of today
            package.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def png(side: int = 64) -> bytes:
    """Make an image: a grey square of ``side`` pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    pixels = zlib.compress((b"\0" + b"\x80" * side) * side)
    chunks = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
