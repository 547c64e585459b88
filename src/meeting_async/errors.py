"""Everything this library raises, as one tree.

Branches tell whose move it is: the caller's, the server's, or the network's::

    MeetingError
    ├── InvalidInput (ValueError)               yours: an argument; nothing was sent
    │   └── ConfigurationError                  yours: a setting or an environment variable
    ├── DocumentError                           yours: the document; nothing reached the room
    │   ├── DocumentEmpty (ValueError)
    │   ├── DocumentTooLarge (ValueError)
    │   ├── DocumentTypeRefused (ValueError)
    │   ├── DocumentUnreadable (OSError)
    │   └── DocumentChanged
    ├── ReplyError                              the server's: it answered, and not with success
    │   ├── RequestRefused                      any refusal that a repetition cannot change
    │   │   ├── AuthenticationFailed
    │   │   ├── RoomNotFound
    │   │   ├── RoomNotActive
    │   │   └── DocumentRefused
    │   ├── Throttled                           it kept asking for patience
    │   ├── ServerFailed                        5xx with the server's own record
    │   │   └── ProcessingFailed                … for an upload: the conversion failed
    │   └── UnexpectedReply                     not an answer of this server
    ├── RoomBusy (TimeoutError)                 the room's lock outlasted the waiting budget
    ├── DeadlineExceeded (TimeoutError)         your deadline struck; nothing reached the room
    ├── RoomGateUnavailable (ConnectionError)   yours: the gate of the room; nothing was sent
    ├── TransportError (ConnectionError)        the network's; nothing reached the room
    │   ├── ConnectFailed                       nothing was sent
    │   ├── ConnectionLost
    │   ├── TransferTimeout (TimeoutError)
    │   └── UploadInterrupted                   cut off before the closing boundary, repeatedly
    ├── UploadOutcomeUnknown                    the document may or may not reach the room
    ├── JournalError (OSError)                  yours: the journal of a batch cannot be used
    │   └── JournalInUse                        another batch is writing it
    ├── BatchStopped                            yours: the batch ended before this job did
    └── BatchFailed                             some documents of a batch are not in their rooms

:class:`UploadOutcomeUnknown` is deliberately no ``TransportError``: a generic ``except
TransportError: retry()`` must not show a class the same document twice.

Facts are attributes; the text of an error is for people. Every error pickles and copies, holds no
secret, and carries in :attr:`MeetingError.attempts` what was tried.
"""

from __future__ import annotations

import attrs

from meeting_async._attempts import Attempt


class MeetingError(Exception):
    """The root of the tree."""

    attempts: tuple[Attempt, ...] = ()
    """What was tried before this was raised, oldest first."""

    def __str__(self) -> str:
        """One line, whatever a server or an operating system put into a fact."""
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in self._text())

    def _text(self) -> str:
        return super().__str__()


# --- the caller's move ---------------------------------------------------------------------------


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


class DocumentError(MeetingError):
    """The document cannot be uploaded as it is; nothing reached the room."""


@attrs.define(slots=False)
class DocumentEmpty(DocumentError, ValueError):
    """The document has no bytes."""

    document: str
    """Name of the document."""

    def _text(self) -> str:
        return f"{self.document!r} is empty: there is nothing to show in a room"


@attrs.define(slots=False)
class DocumentTooLarge(DocumentError, ValueError):
    """The document exceeds ``max_size_whiteboard_file`` (interface section 4.2 rule 6)."""

    document: str
    """Name of the document."""
    size: int
    """Its size in bytes."""
    limit: int
    """The configured ``max_size_whiteboard_file`` in bytes; a document of just this size fits."""

    def _text(self) -> str:
        over = self.size - self.limit
        return (
            f"{self.document!r} has {self.size:,} bytes, {over:,} more than "
            f"max_size_whiteboard_file allows ({self.limit:,})"
        )


@attrs.define(slots=False)
class DocumentTypeRefused(DocumentError, ValueError):
    """The document is an image, which the server rejects (interface section 4.2 rule 5)."""

    document: str
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

    document: str
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

    document: str
    """Path or name of the document."""
    change: str
    """What differs."""

    def _text(self) -> str:
        return f"{self.document!r} changed during the upload: {self.change}"


# --- the server's answer -------------------------------------------------------------------------


@attrs.define(slots=False)
class ReplyError(MeetingError):
    """The server answered, and the answer is not success."""

    operation: str
    """The method path, for example ``room/uploadWhiteboardFile``."""
    room_id: str | None
    """The room the request was about, where it names one."""
    status: int
    """HTTP status."""
    status_code: str | None
    """The server's own code (interface section 2), a name such as ``ROOM_NOT_ACTIVE``."""
    msg: str
    """The server's own message, or a description of the reply when it brought none."""

    def _text(self) -> str:
        where = f" for room {self.room_id!r}" if self.room_id is not None else ""
        code = f" {self.status_code}" if self.status_code else ""
        return f"{self.operation}{where}: {self._what()} (HTTP {self.status}{code}: {self.msg})"

    def _what(self) -> str:
        return "the server did not accept the request"


class RequestRefused(ReplyError):
    """The server refused, and would refuse again."""

    def _what(self) -> str:
        return "refused"


class AuthenticationFailed(RequestRefused):
    """Key, signature or their headers were not accepted; ``status_code`` says which."""

    def _what(self) -> str:
        return "authentication failed"


class RoomNotFound(RequestRefused):
    """The server knows no such room."""

    def _what(self) -> str:
        return "there is no such room"


class RoomNotActive(RequestRefused):
    """The room exists, but no session is running in it (interface section 4.2 rule 4)."""

    def _what(self) -> str:
        return "the room is not active"


class DocumentRefused(RequestRefused):
    """The server, or a proxy in front of it, found the document too large (HTTP 413)."""

    def _what(self) -> str:
        return "the document is larger than the server accepts"


@attrs.define(slots=False)
class Throttled(ReplyError):
    """The server asked for patience more often than the retry policy allows."""

    retry_after: float | None
    """Seconds the server last asked to wait, if it said so."""

    def _what(self) -> str:
        return "the server asks for fewer requests"


class ServerFailed(ReplyError):
    """The server itself reports a failure (5xx with its own record)."""

    def _what(self) -> str:
        return "the server failed"


class ProcessingFailed(ServerFailed):
    """The server took the document but could not convert it."""

    def _what(self) -> str:
        return "the server could not process the document"


class UnexpectedReply(ReplyError):
    """Something answered that does not speak this interface, or not completely."""

    def _what(self) -> str:
        return "the reply is not one of a meeting server; check the base URL and what stands before"


# --- time ----------------------------------------------------------------------------------------


@attrs.define(slots=False)
class RoomBusy(MeetingError, TimeoutError):
    """Another upload held the room for longer than this one was willing to wait."""

    room_id: str
    """The room."""
    waited: float
    """Seconds from the first refusal to the last."""
    reason: str
    """Who holds it, as far as is known."""

    def _text(self) -> str:
        return f"room {self.room_id!r} is busy after {self.waited:.1f} s of waiting: {self.reason}"


@attrs.define(slots=False)
class DeadlineExceeded(MeetingError, TimeoutError):
    """The caller's deadline struck.

    A document had not been sent completely (else it is :class:`UploadOutcomeUnknown`). A JSON call
    may have reached the server; repeat it only if it is idempotent.
    """

    operation: str
    """The method path."""
    seconds: float
    """The deadline that was given."""
    phase: str
    """What was going on when it struck."""

    def _text(self) -> str:
        return f"{self.operation}: the deadline of {self.seconds:g} s struck while {self.phase}"


# --- the gate of a room --------------------------------------------------------------------------


@attrs.define(slots=False)
class RoomGateUnavailable(MeetingError, ConnectionError):
    """What lets the uploads of several processes take turns does not answer; nothing was sent."""

    room: str
    """The server and the room, as the gate knows them."""
    reason: str
    """What happened, in one line."""

    def _text(self) -> str:
        return f"the gate of room {self.room!r} cannot be asked, nothing was sent: {self.reason}"


# --- the network ---------------------------------------------------------------------------------


@attrs.define(slots=False)
class TransportError(MeetingError, ConnectionError):
    """The network failed; for an upload: before the closing boundary, so nothing was delivered."""

    reason: str
    """What happened, in one line."""

    def _text(self) -> str:
        return self.reason


class ConnectFailed(TransportError):
    """No connection could be made; not one byte of the request was sent."""


class ConnectionLost(TransportError):
    """The connection broke, or the peer violated HTTP."""


class TransferTimeout(TransportError, TimeoutError):
    """No progress for longer than :class:`meeting_async.Timeouts` allows."""


@attrs.define(slots=False)
class UploadInterrupted(TransportError):
    """The upload was cut off repeatedly, each time before its closing boundary."""

    room_id: str
    """The room."""
    document: str
    """Name of the document."""
    bytes_sent: int
    """Bytes of the document that the last attempt handed to the network."""

    def _text(self) -> str:
        return (
            f"upload of {self.document!r} to room {self.room_id!r} was cut off "
            f"after {self.bytes_sent:,} bytes: {self.reason}"
        )


@attrs.define(slots=False)
class UploadOutcomeUnknown(MeetingError):
    """The whole document went out and no valid answer came back.

    The server may be converting it still and show it in the room. Sending it again can show it
    twice; the interface has no way to ask.
    """

    room_id: str
    """The room."""
    document: str
    """Name of the document."""
    size: int
    """Size of the document in bytes."""
    bytes_sent: int
    """Bytes of the document that were handed to the network."""
    reason: str
    """What was seen instead of an answer."""
    lock_free_in: float
    """Seconds from now after which the room's lock must be free (interface section 3)."""

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
    """Jobs that were accounted for."""
    refused: int
    """Refused by the server or a check; would be again."""
    failed: int
    """Did not reach the room."""
    unknown: int
    """May or may not have reached the room."""
    skipped: int
    """Were not tried, as an earlier failure dooms them too."""
    first: str
    """The first of them, with its reason; if there is none, why the batch ended early."""

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
