"""The multipart form of an upload: planned to the byte before the first one is sent.

RFC 7578 for the form, RFC 2046 section 5.1 for the framing. Sans-I/O: the document is read through
a :class:`Reader` that is handed in, and the random boundary comes from outside.

The closing boundary is a chunk of its own, and the body records when it hands it over. Until then
no server can have parsed the form; from then on one may have. This one bit decides what a failure
means.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Protocol

import attrs

from meeting_async._limits import link_label, shown
from meeting_async._pace import Pace
from meeting_async.errors import DocumentChanged, DocumentUnreadable, InvalidInput


class Reader(Protocol):
    """An open document, read from its beginning to its end once."""

    async def read(self, limit: int, /) -> bytes:
        """Return up to ``limit`` bytes, ``b""`` only at the end."""
        ...

    async def finish(self) -> None:
        """Raise :class:`DocumentChanged` unless the document ended where it was said to."""
        ...


@attrs.frozen
class MultipartPlan:
    """A form with one part: all of it but the content of the part."""

    boundary: str
    name: str
    """What the document is called in messages."""
    head: bytes = attrs.field(repr=False)
    size: int
    """Bytes of the part's content."""
    tail: bytes = attrs.field(repr=False)
    """The closing boundary."""

    @property
    def content_type(self) -> bytes:
        """Value of the request's ``Content-Type``."""
        return b"multipart/form-data; boundary=" + self.boundary.encode("ascii")

    @property
    def length(self) -> int:
        """Value of the request's ``Content-Length``."""
        return len(self.head) + self.size + len(self.tail)


def plan_document(name: str, content_type: str, size: int, *, boundary: str) -> MultipartPlan:
    """Plan the form that carries a file as ``document``; ``name`` is from :func:`file_name`."""
    disposition = f'form-data; name="document"; filename="{escaped(name)}"'
    return _plan(name, size, boundary, disposition, content_type)


def plan_link(link: str, *, boundary: str) -> MultipartPlan:
    """Plan the form that carries a URL as ``document_link``."""
    disposition = 'form-data; name="document_link"'
    return _plan(link_label(link), len(link), boundary, disposition, None)


def probe_form(*, boundary: str) -> tuple[bytes, bytes]:
    """Return content type and body of a form with neither field; some servers want one at least."""
    plan = _plan("probe", 1, boundary, 'form-data; name="probe"', None)
    return plan.content_type, plan.head + b"1" + plan.tail


def _plan(
    name: str, size: int, boundary: str, disposition: str, content_type: str | None
) -> MultipartPlan:
    lines = [f"--{boundary}", f"Content-Disposition: {disposition}"]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    head = "\r\n".join([*lines, "", ""]).encode("utf-8")
    return MultipartPlan(boundary, name, head, size, f"\r\n--{boundary}--\r\n".encode("ascii"))


def file_name(name: object) -> str:
    r"""Reduce a path to the name the room shall see: its last component, in NFC.

    Both ``/`` and ``\`` separate components, as browsers send either.
    """
    if not isinstance(name, str):
        raise TypeError(f"filename must be a str, not {type(name).__name__}")
    base = unicodedata.normalize("NFC", re.split(r"[/\\]", name)[-1])
    if base.strip(" .") == "":
        raise _bad_name(name, "has no name in it", "give one such as 'deck.pdf'")
    if "\0" in base or not _encodable(base):
        problem = "contains NUL or a character that is no Unicode text"
        raise _bad_name(name, problem, "pass filename= with a clean name")
    return base


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _bad_name(name: str, problem: str, fix: str) -> InvalidInput:
    return InvalidInput("filename", shown(name), problem, fix)


def escaped(name: str) -> str:
    """Escape a file name as browsers do: raw UTF-8, with quotes and control characters as ``%XX``.

    RFC 7578 section 4.2 and the HTML standard's multipart/form-data encoding algorithm, which
    names ``"``, CR and LF; other control characters go the same way, as no header may hold them.
    """
    return re.sub(r'[\x00-\x1f\x7f"]', lambda match: f"%{ord(match[0]):02X}", name)


def media_type(content_type: object) -> str:
    """Check a ``Content-Type`` for a part: ``type/subtype``, with parameters if need be."""
    if not isinstance(content_type, str):
        raise TypeError(f"content_type must be a str, not {type(content_type).__name__}")
    if not re.fullmatch(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+( *;[\x20-\x7e]*)?", content_type, re.ASCII):
        raise InvalidInput(
            "content_type", shown(content_type), "is no media type", "give one as 'application/pdf'"
        )
    return content_type


async def _no_progress(_sent: int) -> None:
    pass


class MultipartBody:
    """The body of one attempt: the plan around what a reader yields, in chunks that suit the line.

    The document is checked against the plan *before* the closing boundary is handed over: one
    that shrank, grew or was replaced raises :class:`DocumentChanged` and is never delivered.
    """

    def __init__(
        self,
        plan: MultipartPlan,
        reader: Reader,
        progress: Callable[[int], Awaitable[None]] = _no_progress,
        clock: Callable[[], float] = lambda: 0.0,
        before_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.length = plan.length
        self.handed_over = 0
        """Bytes of the form that were handed to the transport."""
        self.document_sent = 0
        """Bytes of the document that the transport took; it came back for more."""
        self.complete = False
        """Whether the closing boundary was handed over."""
        self._plan = plan
        self._reader = reader
        self._progress = progress
        self._before_end = before_end
        self._pace = Pace(clock)
        self._chunks = self._generate()

    def __repr__(self) -> str:
        return f"<MultipartBody {self.handed_over} of {self.length} bytes handed over>"

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def aclose(self) -> None:
        """Give up what was not read."""
        await self._chunks.aclose()

    async def _generate(self) -> AsyncGenerator[bytes, None]:
        yield self._hand_over(self._plan.head)
        while self.document_sent < self._plan.size:
            chunk = await self._read()
            self._pace.hand_over()
            yield self._hand_over(chunk)
            self._pace.taken()
            self.document_sent += len(chunk)
            await self._progress(self.document_sent)
        await self._reader.finish()
        if self._before_end is not None:
            await self._before_end()
        self.complete = True
        yield self._hand_over(self._plan.tail)

    async def _read(self) -> bytes:
        wanted = min(self._pace.chunk, self._plan.size - self.document_sent)
        chunk = _checked(self._plan.name, await self._reader.read(wanted))
        if not chunk or len(chunk) > wanted:
            change = (
                f"a read at byte {self.document_sent:,} of {self._plan.size:,} "
                f"brought {len(chunk):,} bytes"
            )
            raise DocumentChanged(self._plan.name, change)
        return chunk

    def _hand_over(self, chunk: bytes) -> bytes:
        self.handed_over += len(chunk)
        return chunk


def _checked(name: str, chunk: object) -> bytes:
    if not isinstance(chunk, bytes):  # a source may be anybody's
        raise DocumentUnreadable(name, f"a read brought {shown(chunk, 40)} instead of bytes")
    return chunk
