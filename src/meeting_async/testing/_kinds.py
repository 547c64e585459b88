"""What kind of file it is, told by its content and never by its name.

The interface's list is "PDF, DOC, DOCX, PPT, PPTX and similar" without images (section 4.2 rule
5). This server takes PDF, every ZIP (the office formats since 2007 and OpenDocument are ZIPs, and
which of them it is stands too deep in the file to look), OLE2 compound files (the older office
formats), RTF and plain UTF-8 text.
"""

import codecs

#: So many leading bytes decide; text is judged by them too.
HEAD_BYTES = 4096

_SIGNATURES = (
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
    (b"{\\rtf", "application/rtf"),
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
)
_CONTROLS = frozenset(map(chr, [*range(32), 127])) - frozenset("\t\n\f\r")
_DOCUMENT_TYPES = {
    "application/msword",
    "application/pdf",
    "application/rtf",
    "application/x-ole-storage",
    "application/zip",
    "text/plain",
    "text/rtf",
}
_DOCUMENT_FAMILIES = (
    "application/vnd.ms-",
    "application/vnd.oasis.opendocument.",
    "application/vnd.openxmlformats-officedocument.",
)


def media_type(head: bytes) -> str:
    """Return the media type that a file's first `HEAD_BYTES` show; ``""`` when unknown."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    return _text_type(head)


def is_document(kind: str) -> bool:
    """Whether a media type (without parameters, lower case) can go on a whiteboard."""
    return kind in _DOCUMENT_TYPES or kind.startswith(_DOCUMENT_FAMILIES)


def _text_type(head: bytes) -> str:
    try:
        # The head may end inside a character: final=False allows that.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head, final=False)
    except UnicodeDecodeError:
        return ""
    if not text or any(c in _CONTROLS for c in text):
        return ""
    return "image/svg+xml" if "<svg" in text else "text/plain"
