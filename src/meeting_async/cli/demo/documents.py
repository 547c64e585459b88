"""Documents for the demo: valid files with the same bytes in each run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)
"""The beginning of an image, enough to detect its type."""

_PAGE = (
    b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] "
    b"/Resources << /Font << /F1 4 0 R >> >> /Contents 5 0 R >>"
)


def pdf(lines: Sequence[str], *, size: int | None = None) -> bytes:
    """Make a PDF of one A4 page (ISO 32000-1), padded to ``size`` bytes if given."""
    made = _pdf(lines, 0)
    return made if size is None else _pdf(lines, size - len(made))


def _pdf(lines: Sequence[str], filler: int) -> bytes:
    shown = b" ".join(b"(%b) '" % line.encode("ascii") for line in lines)
    content = b"BT /F1 24 Tf 32 TL 72 740 Td %b ET" % shown
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        _PAGE,
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(content), content),
    ]
    # The padding is random text: no two chunks are equal, so a lost chunk is detected.
    noise = hashlib.shake_256(b"noise").hexdigest(filler // 2 + 1)[:filler].encode("ascii")
    made, offsets = b"%PDF-1.4\n%" + noise + b"\n", []
    for number, text in enumerate(objects, start=1):
        offsets.append(len(made))
        made += b"%d 0 obj\n%b\nendobj\n" % (number, text)
    count = len(offsets) + 1
    # Entries have 20 bytes each (ISO 32000-1 section 7.5.4).
    entries = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    table = b"xref\n0 %d\n0000000000 65535 f \n%b" % (count, entries)
    end = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%010d\n%%%%EOF\n" % (count, len(made))
    return made + table + end
