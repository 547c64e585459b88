"""Documents that tests upload; those of one package stand in its own tests."""

from __future__ import annotations

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)
"""An image, which is refused."""
DOCX = (
    b"PK\x03\x04".ljust(30, b"\0")
    + b"[Content_Types].xml"
    + b"PK\x03\x04".ljust(30, b"\0")
    + b"word/"
)
"""The beginning of an office document, which is enough to detect its kind."""

SMALL = b"%PDF-1.7".ljust(1000, b"\n")
"""1,000 bytes: no form is sent before it."""
ASKED = b"%PDF-1.7".ljust(64 * 1024 + 1, b"\n")
"""The smallest document that is preceded by a form."""
LARGE = b"%PDF-1.7".ljust(256 * 1024 + 1, b"\n")
"""A document that takes several chunks."""
