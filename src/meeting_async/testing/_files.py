"""Files that a room received, and the intake that counts and hashes them as they arrive."""

import hashlib
from typing import TYPE_CHECKING, Literal

import attrs

from ._kinds import HEAD_BYTES

if TYPE_CHECKING:
    from hashlib import _Hash

#: File names are cut to so many bytes, the limit of common file systems.
MAX_NAME_BYTES = 255


@attrs.frozen(kw_only=True)
class ReceivedFile:
    """One file that a room accepted.

    ``name`` is the sender's, exactly as the form carried it (raw UTF-8, RFC 7578 section 4.2), and
    ``stored_name`` the safe basename of at most 255 bytes that the server would use. ``size`` is
    in bytes, ``sha256`` in lowercase hex. ``content_type`` is what the sender declared (``""`` if
    nothing), ``media_type`` what the content shows. ``at`` is when the upload was accepted, in
    seconds of the server's clock. ``content`` is kept only by ``MeetingServer(keep_content=True)``.
    """

    name: str
    stored_name: str
    size: int
    sha256: str
    content_type: str
    media_type: str
    via: Literal["document", "document_link"]
    at: float
    content: bytes | None = attrs.field(default=None, repr=False)


@attrs.define(eq=False)
class Intake:
    """Takes in a file of any size in constant memory: count, hash and the first bytes."""

    keep_content: bool = False
    size: int = 0
    head: bytes = b""
    _hash: "_Hash" = attrs.field(factory=hashlib.sha256, init=False)
    _chunks: list[bytes] = attrs.field(factory=list, init=False)

    def write(self, data: memoryview) -> None:
        """Take in the next bytes."""
        self.size += len(data)
        self._hash.update(data)
        if len(self.head) < HEAD_BYTES:
            self.head += bytes(data[: HEAD_BYTES - len(self.head)])
        if self.keep_content:
            self._chunks.append(bytes(data))

    @property
    def sha256(self) -> str:
        """The SHA-256 of what came so far, in lowercase hex."""
        return self._hash.hexdigest()

    @property
    def content(self) -> bytes | None:
        """All bytes if they were to be kept."""
        return b"".join(self._chunks) if self.keep_content else None


def safe_name(name: str) -> str:
    """Reduce a sender's file name to a basename of at most `MAX_NAME_BYTES` bytes of UTF-8."""
    basename = name.replace("\\", "/").rpartition("/")[2]
    printable = "".join(c if c.isprintable() else "_" for c in basename).strip(" .")
    if len(printable.encode()) <= MAX_NAME_BYTES:
        return printable or "document"
    stem, dot, suffix = printable.rpartition(".")
    ending = (dot + suffix).encode() if stem else b""
    ending = ending if len(ending) < MAX_NAME_BYTES else b""
    kept = printable.encode()[: MAX_NAME_BYTES - len(ending)] + ending
    return kept.decode(errors="ignore")
