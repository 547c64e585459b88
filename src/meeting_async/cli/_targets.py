"""What can be named on the command line or in a manifest as a document: a path or a link."""

from __future__ import annotations

import re

from meeting_async import Document

_LINK = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_link(target: str) -> bool:
    """Tell links from paths."""
    return _LINK.match(target) is not None


def document_at(target: str, filename: str | None) -> Document:
    """Make a document of a path or a link; ``filename`` is what the room sees of a file."""
    if is_link(target):
        return Document.from_link(target).renamed(filename, None)
    return Document.from_path(target, filename=filename)
