"""Every error that this library raises, as one tree.

The branches tell where to look: at the caller's input, at the server's answer, or at the network::

    MeetingError
    ├── InvalidInput (ValueError)               an argument of yours; nothing was sent
    │   └── ConfigurationError                  a setting or an environment variable of yours
    ├── DocumentError                           your document; nothing reached the room
    │   ├── DocumentEmpty (ValueError)
    │   ├── DocumentTooLarge (ValueError)
    │   ├── DocumentTypeRefused (ValueError)
    │   ├── DocumentUnreadable (OSError)
    │   ├── DocumentChanged
    │   └── LinkRefused (ValueError)            check_link=True: the link cannot be downloaded
    ├── ReplyError                              the server answered, and not with success
    │   ├── RequestRefused                      the same request would be refused again
    │   │   ├── AuthenticationFailed
    │   │   ├── RoomNotFound
    │   │   ├── RoomNotActive
    │   │   └── DocumentRefused
    │   ├── Throttled                           the server kept rate-limiting us
    │   ├── ServerFailed                        5xx with the server's own record
    │   │   └── ProcessingFailed                the same for an upload: the conversion failed
    │   └── UnexpectedReply                     the reply is not from a meeting server
    ├── RoomBusy (TimeoutError)                 the room stayed taken for longer than max_wait
    ├── DeadlineExceeded (TimeoutError)         your timeout ended it; nothing reached the room
    ├── RoomLocksUnavailable (ConnectionError)  the room locks do not answer; nothing was sent
    ├── TransportError (ConnectionError)        the network failed; nothing reached the room
    │   ├── ConnectFailed                       no connection; nothing was sent
    │   │   └── ResourceExhausted               this machine has no descriptor left
    │   ├── ConnectionLost
    │   ├── TransferTimeout (TimeoutError)
    │   └── UploadInterrupted                   cut off before its end, several times in a row
    ├── UploadOutcomeUnknown                    the document may or may not reach the room
    ├── JournalError (OSError)                  the journal of a batch cannot be used
    │   └── JournalInUse                        another batch is writing it
    ├── BatchStopped                            the batch ended before this job did
    └── BatchFailed                             some documents of a batch are not in their rooms

:class:`UploadOutcomeUnknown` is deliberately not a ``TransportError``: a generic ``except
TransportError: retry()`` must not show a class the same document twice.

Facts are attributes; the text of an error is for people. Every error can be pickled and copied and
holds no secret. Errors of a call name it in ``operation``, ``room_id`` and ``document``, and tell
in ``attempts`` what was tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from meeting_async._models import Attempt


class MeetingError(Exception):
    """The root of the tree."""

    operation: str | None = None
    """Method path of the call, for example ``room/uploadWhiteboardFile``."""
    room_id: str | None = None
    """The room that the call names."""
    document: str | None = None
    """Name of the document as the room shows it, or the link without its query."""
    attempts: tuple[Attempt, ...] = ()
    """What was tried before this was raised, oldest first."""

    def __str__(self) -> str:
        """One line, whatever a server or an operating system put into a fact."""
        return _one_line(self._text())

    def _text(self) -> str:
        return super().__str__()

    def _call(self) -> str:
        """Name the call in the words of a person."""
        room = f" room {self.room_id!r}" if self.room_id is not None else ""
        if self.document is not None:
            return (
                f"upload of {self.document!r} to{room}" if room else f"upload of {self.document!r}"
            )
        what = self.operation or "the call"
        return f"{what} for{room}" if room else what


# --- input ---------------------------------------------------------------------------------------


@attrs.define(slots=False)
class InvalidInput(MeetingError, ValueError):
    """An argument cannot be used; found before anything was sent."""

    field: str
    """Name of the argument or environment variable."""
    value: str
    """What was given, as text, shortened; never a secret."""
    problem: str
    """What is wrong with it."""
    fix: str
    """What to do."""

    def _text(self) -> str:
        return f"{self.field} {self.problem} (got {self.value}): {self.fix}"


class ConfigurationError(InvalidInput):
    """A setting of the client, or an environment variable, cannot be used."""


# --- documents -----------------------------------------------------------------------------------


class DocumentError(MeetingError):
    """The document cannot be uploaded as it is; nothing reached the room."""


@attrs.define(slots=False)
class DocumentEmpty(DocumentError, ValueError):
    """The document has no bytes."""

    document: str  # pyright: ignore[reportIncompatibleVariableOverride]  # never None here
    """Name of the document."""

    def _text(self) -> str:
        return f"{self.document!r} is empty: there is nothing to show in a room"


@attrs.define(slots=False)
class DocumentTooLarge(DocumentError, ValueError):
    """The document exceeds ``max_size_whiteboard_file`` (``docs/interface.md``, Limits)."""

    document: str  # pyright: ignore[reportIncompatibleVariableOverride]  # never None here
    """Name of the document."""
    size: int
    """Its size in bytes."""
    limit: int
    """The configured ``max_size_whiteboard_file`` in bytes; a document of this size fits."""

    def _text(self) -> str:
        over = self.size - self.limit
        return (
            f"{self.document!r} has {self.size:,} bytes, {over:,} more than "
            f"max_size_whiteboard_file allows ({self.limit:,})"
        )


@attrs.define(slots=False)
class DocumentTypeRefused(DocumentError, ValueError):
    """The document is an image, which the server rejects (``docs/interface.md``, Upload)."""

    document: str  # pyright: ignore[reportIncompatibleVariableOverride]  # never None here
    """Name of the document."""
    kind: str
    """What it was recognised as, for example ``"PNG image"``."""

    def _text(self) -> str:
        return (
            f"{self.document!r} is a {self.kind}: whiteboard files are office documents and "
            "presentations; put it into a PDF, or pass allow_images=True if your server takes it"
        )


@attrs.define(slots=False)
class DocumentUnreadable(DocumentError, OSError):
    """The document cannot be opened or read; the reason is also the ``__cause__``."""

    document: str  # pyright: ignore[reportIncompatibleVariableOverride]  # never None here
    """Path or name of the document."""
    reason: str
    """What the operating system or the source said."""

    def _text(self) -> str:
        return f"{self.document!r} cannot be read: {self.reason}"


@attrs.define(slots=False)
class DocumentChanged(DocumentError):
    """The document is no longer the one that was measured when the upload began.

    Raised before the closing boundary goes out, so the server has received no valid form.
    """

    document: str  # pyright: ignore[reportIncompatibleVariableOverride]  # never None here
    """Path or name of the document."""
    change: str
    """What differs."""

    def _text(self) -> str:
        return f"{self.document!r} changed during the upload: {self.change}"


@attrs.define(slots=False)
class LinkRefused(DocumentError, ValueError):
    """The link was asked itself (``check_link=True``), and a server could not download it."""

    document: str  # pyright: ignore[reportIncompatibleVariableOverride]  # never None here
    """The link without its query."""
    reason: str
    """What was seen."""

    def _text(self) -> str:
        return f"{self.document!r} cannot be downloaded by a server: {self.reason}"


# --- the server's answer -------------------------------------------------------------------------


@attrs.define(slots=False)
class ReplyError(MeetingError):
    """The server answered, and the answer is not success."""

    status: int
    """HTTP status."""
    status_code: str | None
    """The server's own code, a name such as ``ROOM_NOT_ACTIVE``."""
    msg: str
    """The server's own message (at most 500 characters), or a description of the reply."""
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    """Headers of the reply, names in lower case; a request id of a proxy is among them."""
    body: bytes = attrs.field(default=b"", repr=False)
    """The first 1,024 bytes of the reply's content."""
    hint: str | None = None
    """What this usually means to the person who has to fix it."""

    def _text(self) -> str:
        code = f" {self.status_code}" if self.status_code else ""
        hint = f". {self.hint}" if self.hint else ""
        return f"{self._call()}: {self._what()} (HTTP {self.status}{code}: {self.msg}){hint}"

    def _what(self) -> str:
        return "the server did not accept the request"


class RequestRefused(ReplyError):
    """The server refused, and would refuse the same request again."""

    def _what(self) -> str:
        return "refused"


class AuthenticationFailed(RequestRefused):
    """Key, signature or their headers were not accepted; ``status_code`` says which."""

    def _what(self) -> str:
        return "authentication failed"


class RoomNotFound(RequestRefused):
    """The server knows no such room."""

    def _what(self) -> str:
        return "the server knows no such room"


class RoomNotActive(RequestRefused):
    """The room exists, but no session is running in it."""

    def _what(self) -> str:
        return "no session is running"


class DocumentRefused(RequestRefused):
    """The server, or a proxy in front of it, found the document too large (HTTP 413)."""

    def _what(self) -> str:
        return "the document is larger than the server accepts"


@attrs.define(slots=False)
class Throttled(ReplyError):
    """The server kept rate-limiting us (429, or 503 with Retry-After)."""

    retry_after: float | None = None
    """Seconds that the server last asked to wait, if it said so."""

    def _what(self) -> str:
        return "the server asks for fewer requests"


class ServerFailed(ReplyError):
    """The server itself reports a failure (5xx with its own record)."""

    def _what(self) -> str:
        return "the server failed"


class ProcessingFailed(ServerFailed):
    """The server received the document but could not convert it."""

    def _what(self) -> str:
        return "the server could not process the document"


class UnexpectedReply(ReplyError):
    """The reply is not from a meeting server (a proxy?), and the request was not accepted."""

    def _what(self) -> str:
        return "the reply is not from a meeting server; check the base URL and any proxy"


# --- time ----------------------------------------------------------------------------------------


@attrs.define(slots=False)
class RoomBusy(MeetingError, TimeoutError):
    """The room was taken for longer than the upload may wait (``max_wait``); nothing was stored."""

    waited: float
    """Seconds that the upload waited for the room."""
    held_by: str
    """``"another client"``, ``"another upload from here"`` or
    ``"an upload of unknown outcome"``."""
    free_in: float | None
    """Seconds from now after which the room's lock must have ended; ``None`` if nobody can say."""
    reason: str = ""
    """What the server answered, if it was asked."""

    def _text(self) -> str:
        said = f" (HTTP 409: {self.reason})" if self.reason else ""
        free = "" if self.free_in is None else f"; it must be free in {self.free_in:.0f} s"
        return (
            f"room {self.room_id!r} is busy: {self.held_by} has it{said}, "
            f"after {self.waited:.1f} s of waiting{free}"
        )


@attrs.define(slots=False)
class DeadlineExceeded(MeetingError, TimeoutError):
    """The caller's ``timeout`` ended the call.

    A document had not been sent completely (else it is :class:`UploadOutcomeUnknown`). A JSON call
    may have reached the server; repeat it only if it is idempotent.
    """

    seconds: float
    """The timeout that was given."""
    phase: str
    """What was going on at that moment."""

    def _text(self) -> str:
        return f"{self._call()}: the timeout of {self.seconds:g} s ended it while {self.phase}"


@attrs.define(slots=False)
class RoomLocksUnavailable(MeetingError, ConnectionError):
    """The locks that several processes share do not answer; nothing was sent."""

    reason: str
    """What happened, in one line."""

    def _text(self) -> str:
        return f"the lock of room {self.room_id!r} cannot be taken, nothing was sent: {self.reason}"


# --- the network ---------------------------------------------------------------------------------


@attrs.define(slots=False)
class TransportError(MeetingError, ConnectionError):
    """The network failed; for an upload: before the closing boundary, so nothing was delivered."""

    reason: str
    """What happened, in one line."""
    host: str = ""
    """Host and port of the server, for example ``meet.example.com:443``."""

    def _text(self) -> str:
        return f"{self.host}: {self.reason}" if self.host else self.reason


class ConnectFailed(TransportError):
    """No connection could be made; not one byte of the request was sent."""


class ResourceExhausted(ConnectFailed):
    """The caller's machine has no descriptor left for a file or a connection; nothing was sent."""


class ConnectionLost(TransportError):
    """The connection broke, or the peer violated HTTP."""


class TransferTimeout(TransportError, TimeoutError):
    """No progress for longer than :class:`meeting_async.Timeouts` allows."""


@attrs.define(slots=False)
class UploadInterrupted(TransportError):
    """The upload was cut off repeatedly, each time before its closing boundary."""

    bytes_sent: int = 0
    """Bytes of the document that the last attempt handed to the operating system."""

    def _text(self) -> str:
        return f"{self._call()} was cut off after {self.bytes_sent:,} bytes: {super()._text()}"


@attrs.define(slots=False)
class UploadOutcomeUnknown(MeetingError):
    """The whole document was sent and no valid answer came back.

    The server may be converting it still and show it in the room. Sending it again can show it
    twice; the interface has no way to ask.
    """

    reason: str
    """What was seen instead of an answer."""
    size: int | None
    """Size of the document in bytes; ``None`` for a link."""
    bytes_sent: int | None
    """Bytes of the document that were handed to the operating system; ``None`` for a link."""
    lock_free_in: float
    """Seconds from now after which the room's lock must be free."""

    def _text(self) -> str:
        return (
            f"{self.document!r} was sent to room {self.room_id!r}, but whether it arrived is "
            f"unknown: {self.reason}; look into the room before sending it again"
        )


# --- batches -------------------------------------------------------------------------------------


@attrs.define(slots=False)
class JournalError(MeetingError, OSError):
    """The journal of a batch cannot be read or written; nothing is sent without it."""

    journal: str
    """Path of the journal."""
    reason: str
    """What is wrong, and what to do."""

    def _text(self) -> str:
        return f"the journal {self.journal!r} {self.reason}"


class JournalInUse(JournalError):
    """Another batch is writing this journal."""


@attrs.define(slots=False)
class BatchStopped(MeetingError):
    """The batch was stopped, or its block left, before this document was in its room."""

    how_far: str
    """How far it had come."""

    def _text(self) -> str:
        return f"the batch was stopped {self.how_far}"


@attrs.define(slots=False)
class BatchFailed(MeetingError):
    """Not every document of a batch is in its room, as far as is known."""

    total: int
    """Jobs that have an outcome."""
    refused: int
    """Refused by the server or by a local check. Fix the cause before retrying."""
    failed: int
    """Did not reach the room."""
    unknown: int
    """May or may not have reached the room."""
    skipped: int
    """Not tried."""
    first: str
    """The first of them, with its error."""

    def _text(self) -> str:
        counts = {
            "refused": self.refused,
            "failed": self.failed,
            "of unknown outcome": self.unknown,
            "skipped": self.skipped,
        }
        listed = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
        bad = sum(counts.values())
        if not bad:
            return f"the batch ended early, after {self.total:,} documents: {self.first}"
        first = f"; first: {self.first}" if self.first else ""
        documents = f"{bad:,} of {self.total:,} documents"
        return f"{documents} are not known to be in their rooms: {listed}{first}"


def _one_line(text: str) -> str:
    """Escape every character that cannot be printed, line breaks included."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
