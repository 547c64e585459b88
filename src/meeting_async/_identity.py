"""How the journal of a batch recognises a job, and sees that its file is no longer the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from meeting_async._documents import Document
from meeting_async._files import PathSource
from meeting_async._sources import BytesSource, Measure


def identity_of(room_id: str, document: Document, key: str | None) -> str:
    """Name a job so that it is the same in the next run of its batch; the name holds no secret.

    Without a key: room, name and origin of the document. A path counts as it was written: one that
    means another file in another working directory is then a file that changed, and reported,
    rather than a new one that a room gets twice.
    """
    facts = [room_id, document.filename, *_origin(document)] if key is None else {"key": key}
    return json.dumps(facts)


def _origin(document: Document) -> tuple[str, str]:
    if document.link is not None:  # its query may be a credential
        return "link", hashlib.sha256(document.link.encode()).hexdigest()
    if isinstance(document.source, BytesSource):
        return "bytes", hashlib.sha256(document.source.data).hexdigest()
    if isinstance(document.source, PathSource):
        return "path", document.source.path
    return "stream", ""


def stamp_of_file(document: Document, measure: Measure) -> str | None:
    """Return the same of a document that was measured just now."""
    if not isinstance(document.source, PathSource):
        return None
    _, _, size, modified, *_ = measure.stamp
    return f"{size} bytes, {modified}"


def stamp_of(document: Document) -> str | None:
    """Return what changes when a file does: its size and modification time.

    ``None`` where there is no file to ask.
    """
    if not isinstance(document.source, PathSource):
        return None
    try:
        status = Path(document.source.path).stat()
    except (OSError, ValueError):
        return None
    return f"{status.st_size} bytes, {status.st_mtime_ns}"
