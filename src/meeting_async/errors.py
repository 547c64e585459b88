"""Every error that this library raises, as one tree.

The branches say where the cause is: in the caller's input, the server's answer, or the network::

    MeetingError
    ├── InvalidInput (ValueError)               your argument; nothing was sent
    │   └── ConfigurationError                  your setting or environment variable
    ├── DocumentError                           your document; nothing reached the room
    │   ├── DocumentEmpty (ValueError)
    │   ├── DocumentTooLarge (ValueError)
    │   ├── DocumentTypeRefused (ValueError)
    │   ├── DocumentUnreadable (OSError)
    │   ├── DocumentChanged
    │   └── LinkRefused (ValueError)            with check_link: the link cannot be downloaded
    ├── ReplyError                              the server answered with an error
    │   ├── RequestRefused                      the same request would be refused again
    │   │   ├── AuthenticationFailed
    │   │   ├── RoomNotFound
    │   │   ├── RoomNotActive
    │   │   └── DocumentRefused
    │   ├── Throttled                           the server kept rate-limiting
    │   ├── ServerFailed                        5xx, with the server's own record
    │   │   └── ProcessingFailed                such a 5xx for an upload: the conversion failed
    │   └── UnexpectedReply                     the reply is not from a meeting server
    ├── RoomBusy (TimeoutError)                 the room was locked for longer than your limit
    ├── DeadlineExceeded (TimeoutError)         your timeout ended it; nothing reached the room
    ├── RoomLocksUnavailable (ConnectionError)  the shared locks do not answer; nothing was sent
    ├── TransportError (ConnectionError)        the network failed; nothing reached the room
    │   ├── ConnectFailed                       no connection; nothing was sent
    │   │   └── ResourceExhausted               this machine has no descriptor, thread or space left
    │   ├── ConnectionLost
    │   │   └── ReplyTooLarge                   a reply of more than max_reply_bytes
    │   ├── TransferTimeout (TimeoutError)
    │   └── UploadInterrupted                   cut off several times in a row
    ├── UploadOutcomeUnknown                    the document may or may not reach the room
    │   └── DocumentMisplaced                   accepted, but not in this room
    ├── JournalError (OSError)                  a batch's journal or a queue's table fails
    │   └── JournalInUse                        somebody else uses it
    ├── UploadPutBack                           a queue continues the upload later
    ├── UploadFailed                            a queue: your own code failed, or you cancelled
    ├── BatchStopped                            the batch was stopped before this job ended
    └── BatchFailed                             some documents of a batch are not in their rooms

:class:`UploadOutcomeUnknown` is deliberately not a ``TransportError``: a generic ``except
TransportError: retry()`` must not show a class the same document twice.

Facts are attributes; the text of an error is for people. Every error can be pickled and copied, and
contains no secret. An error of a call has ``operation``, ``room_id``, ``document`` and
``attempts``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import attrs

from meeting_async._text import one_line, path_repr, short_repr

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from attrs import define as _error

    from meeting_async._models import Attempt
else:

    def _error(*, slots: bool) -> Callable[[type], type]:
        """Define the facts of an error as its fields; ``args`` rebuilds it, call included."""

        def define(kind: type) -> type:
            kind = attrs.define(kind, slots=slots, repr=False)
            kind.__init__ = _taking_call(kind.__init__)
            return kind

        return define


MAX_TEXT_CHARACTERS = 3000
"""Longest text of an error, so that a line of a log has less than 4,096, where some tools cut it.
Those of this library have some hundred characters."""

MAX_FACT_CHARACTERS = 300
"""Longest text of a fact in a ``repr``."""

_OF_CALL = ("operation", "room_id", "document", "tried", "permanent")
"""Facts that a call adds to its error; the last one of ``args`` is a mapping of them."""


def _taking_call(init: Callable[..., None]) -> Callable[..., None]:
    """Let an initialiser take what ``args`` of an error of a call ends with."""

    @functools.wraps(init)
    def initialise(self: MeetingError, *args: Any, **facts: Any) -> None:
        of_call: dict[str, Any] = {}
        if args and isinstance(args[-1], dict) and args[-1].keys() <= set(_OF_CALL):
            *args, of_call = args  # type: ignore[assignment]  # a list will do
        init(self, *args, **facts)
        vars(self).update(of_call)

    return initialise


def _fields(error: MeetingError) -> tuple[attrs.Attribute[Any], ...]:
    kind: type = type(error)
    return attrs.fields(kind) if attrs.has(kind) else ()


class MeetingError(Exception):
    """Base class of all errors of this library."""

    operation: str | None = None
    """Method path of the call, for example ``room/uploadWhiteboardFile``."""
    room_id: str | None = None
    """The room that the call names."""
    document: str | None = None
    """Name of the document as the room shows it, or the link without its query."""
    attempts: tuple[Attempt, ...] = ()
    """All attempts of the call, oldest first."""
    session: str = ""
    """Id of the session in which the document was sent (``ActiveRoom.sid``), if it is known."""
    tried: str = ""
    """How often and how long the server was tried, if the call ended because it was away."""

    if not TYPE_CHECKING:  # where both are those of any exception
        __init__ = _taking_call(Exception.__init__)

        @property
        def args(self) -> tuple[Any, ...]:
            """The facts in the order of the constructor, and those of the call as a mapping.

            So ``type(error)(*error.args)`` is the same error, as queues of tasks rebuild it.
            """
            facts = {field.name: getattr(self, field.name) for field in _fields(self)}
            own = tuple(facts.values()) or super().args
            of_call = {name: vars(self).get(name) for name in _OF_CALL if name not in facts}
            of_call = {name: value for name, value in of_call.items() if value}
            return (*own, of_call) if of_call else own

    def __repr__(self) -> str:
        names = [field.name for field in _fields(self) if field.repr]
        facts = [f"{name}={short_repr(getattr(self, name), MAX_FACT_CHARACTERS)}" for name in names]
        return f"{type(self).__name__}({', '.join(facts or map(short_repr, self.args))})"

    def __str__(self) -> str:
        """Return the message as one line, even if a server's text has line breaks."""
        tried = f"; {self.tried}" if self.tried else ""
        return one_line(self._text() + tried, MAX_TEXT_CHARACTERS)

    def _text(self) -> str:
        return super().__str__()

    def _call(self) -> str:
        """Describe the call for people."""
        room = f" room {self.room_id!r}" if self.room_id is not None else ""
        if self.document is not None:
            return (
                f"upload of {self.document!r} to{room}" if room else f"upload of {self.document!r}"
            )
        what = self.operation or "the call"
        return f"{what} for{room}" if room else what


# --- input ---------------------------------------------------------------------------------------


@_error(slots=False)
class InvalidInput(MeetingError, ValueError):
    """An argument cannot be used; found before anything was sent."""

    field: str
    """Name of the argument or environment variable."""
    value: str
    """The given value as text, shortened, never a secret; ``""`` if nothing was given."""
    problem: str
    """What is wrong with it."""
    fix: str
    """What to do."""

    def _text(self) -> str:
        got = f" (got {self.value})" if self.value else ""
        return f"{self.field} {self.problem}{got}: {self.fix}"


class ConfigurationError(InvalidInput):
    """A setting of the client, or an environment variable, cannot be used."""


# --- documents -----------------------------------------------------------------------------------


class DocumentError(MeetingError):
    """The document cannot be uploaded as it is; nothing reached the room."""


@_error(slots=False)
class DocumentEmpty(DocumentError, ValueError):
    """The document has no bytes."""

    document: str  # pyright: ignore[reportIncompatibleVariableOverride]  # never None here
    """Name of the document."""

    def _text(self) -> str:
        return f"{self.document!r} is empty: there is nothing to show in a room"


@_error(slots=False)
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


@_error(slots=False)
class DocumentTypeRefused(DocumentError, ValueError):
    """The document is an image, which servers refuse (``docs/interface.md``, Upload)."""

    document: str  # pyright: ignore[reportIncompatibleVariableOverride]  # never None here
    """Name of the document."""
    kind: str
    """What was detected, for example ``"PNG image"``."""

    def _text(self) -> str:
        return (
            f"{self.document!r} is a {self.kind}: whiteboard files are office documents and "
            "presentations; put it into a PDF, or pass allow_images=True if your server takes it"
        )


@_error(slots=False)
class DocumentUnreadable(DocumentError, OSError):
    """The document cannot be opened or read; the reason is also the ``__cause__``.

    With ``check_link=True`` also: the host of a link cannot be asked now.
    """

    document: str  # pyright: ignore[reportIncompatibleVariableOverride]  # never None here
    """Path or name of the document."""
    reason: str
    """What the operating system or the source said."""

    def _text(self) -> str:
        return f"{path_repr(self.document)} cannot be read: {self.reason}"


@_error(slots=False)
class DocumentChanged(DocumentError):
    """The document changed after the upload began, or after an earlier run of its batch sent it.

    Raised before the closing boundary is sent, so the server has not received this version.
    """

    document: str  # pyright: ignore[reportIncompatibleVariableOverride]  # never None here
    """Path or name of the document."""
    change: str
    """What differs."""

    def _text(self) -> str:
        return f"{self.document!r} has changed: {self.change}"


@_error(slots=False)
class LinkRefused(DocumentError, ValueError):
    """A server could not download the link, as a check with HEAD showed (``check_link=True``)."""

    document: str  # pyright: ignore[reportIncompatibleVariableOverride]  # never None here
    """The link without its query."""
    reason: str
    """What was seen."""

    def _text(self) -> str:
        return f"{self.document!r} cannot be downloaded by a server: {self.reason}"


# --- the server's answer -------------------------------------------------------------------------


@_error(slots=False)
class ReplyError(MeetingError):
    """The server answered, but not with success."""

    status: int
    """HTTP status."""
    status_code: str | None
    """The server's own code, a name such as ``ROOM_NOT_ACTIVE``."""
    msg: str
    """The server's own message (at most 1,000 characters), or a description of the reply."""
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    """Headers of the reply, names in lower case; a request id of a proxy is among them."""
    body: bytes = attrs.field(default=b"", repr=False)
    """The first 1,024 bytes of the reply's content."""
    hint: str | None = None
    """How to fix it, if that is known."""

    def _text(self) -> str:
        code = f" {self.status_code}" if self.status_code else ""
        hint = f". {self.hint}" if self.hint else ""
        return f"{self._call()}: {self._what()} (HTTP {self.status}{code}: {self.msg}){hint}"

    def _what(self) -> str:
        return "the server did not accept the request"


_NO_PATH_STATUSES = frozenset({404, 405})
_NO_PATH = "no such path on a meeting server"


class RequestRefused(ReplyError):
    """The server refused the request, and would refuse it again."""

    def _what(self) -> str:
        return _NO_PATH if self.status in _NO_PATH_STATUSES else "refused"


class AuthenticationFailed(RequestRefused):
    """The server refused the key or the signature; ``status_code`` says which."""

    def _what(self) -> str:
        return "authentication failed"


class RoomNotFound(RequestRefused):
    """The room does not exist on the server."""

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


@_error(slots=False)
class Throttled(ReplyError):
    """The server kept rate-limiting us (429, or 503 with Retry-After)."""

    retry_after: float | None = None
    """The last Retry-After in seconds, if there was one."""

    def _what(self) -> str:
        return "the server asks for fewer requests"


class ServerFailed(ReplyError):
    """The server reports a failure (5xx with the server's own record)."""

    def _what(self) -> str:
        return "the server failed"


class ProcessingFailed(ServerFailed):
    """The server received the document but could not convert it.

    plugNmeet-server cannot convert two office documents at the same moment, in any rooms: the
    ``hint`` says so of an office document.
    """

    def _what(self) -> str:
        return "the server could not process the document"


class UnexpectedReply(ReplyError):
    """The reply is not from a meeting server (a proxy?), and the request was not accepted."""

    def _what(self) -> str:
        if self.status in {502, 503, 504}:
            return "a proxy answers, because it cannot reach the server"
        if self.status in _NO_PATH_STATUSES:
            return f"{_NO_PATH}; check the base URL and any proxy"
        return "the reply is not from a meeting server; check the base URL and any proxy"


# --- time ----------------------------------------------------------------------------------------


@_error(slots=False)
class RoomBusy(MeetingError, TimeoutError):
    """The room was locked for longer than ``limit`` allows; nothing was stored."""

    waited: float
    """Seconds that the upload waited for the room."""
    held_by: str
    """``"another client"``, or ``"another upload of this application"``, which shares the room
    locks."""
    free_in: float | None
    """Seconds from now until the room must be free; ``None`` if that is not known."""
    reason: str = ""
    """What the server answered, if there was an answer."""
    limit: str = ""
    """What the next wait does not fit into: ``"max_wait"``, ``"timeout"``, or ``"window"`` if no
    ``max_wait`` is set (then the limit is :attr:`meeting_async.LockPolicy.window` plus 30 s)."""
    place_waited: float = 0.0
    """Seconds that it waited for a place in a batch, or for one of the transport's connections.
    ``max_wait`` does not count them."""

    def _text(self) -> str:
        said = f" (HTTP 409: {self.reason})" if self.reason else ""
        place = f" for it, and {self.place_waited:.1f} s for a place"
        place = place if self.place_waited >= 0.05 else ""
        return (
            f"room {self.room_id!r} is busy: {self.held_by} has locked it{said}; "
            f"waited {self.waited:.1f} s{place}{_LIMITS.get(self.limit, '')}{self._free()}"
        )

    def _free(self) -> str:
        if self.free_in is None:
            return ""
        seconds = round(self.free_in)
        return f"; it must be free in {seconds} s" if seconds else "; it should be free by now"


_LIMITS = {
    "timeout": ", and timeout allows no more",
    "window": ", the longest without max_wait",
}
"""What ended the wait of a :class:`RoomBusy`, in words; ``max_wait`` needs none."""


@_error(slots=False)
class DeadlineExceeded(MeetingError, TimeoutError):
    """The caller's ``timeout`` ended the call.

    An upload was not sent completely (otherwise the error is :class:`UploadOutcomeUnknown`). A JSON
    call may have reached the server; repeat it only if it is idempotent.
    """

    seconds: float
    """The timeout that was given."""
    phase: str
    """What the call was doing at that moment."""

    def _text(self) -> str:
        return f"{self._call()}: the timeout of {self.seconds:g} s ended it while {self.phase}"


@_error(slots=False)
class RoomLocksUnavailable(MeetingError, ConnectionError):
    """The room locks of several processes do not answer; nothing was sent."""

    reason: str
    """What happened, in one line."""

    def _text(self) -> str:
        return f"room {self.room_id!r} cannot be locked, nothing was sent: {self.reason}"


# --- the network ---------------------------------------------------------------------------------


@_error(slots=False)
class TransportError(MeetingError, ConnectionError):
    """The network failed. An upload was not sent completely, so nothing was delivered."""

    permanent = False  # without an annotation, which would make it an argument
    """Whether it would fail again, for example because of a certificate or a name. Then it is not
    retried, and ``reason`` says how to fix it."""
    sent = None  # type: int | None
    """Bytes of the request's body that may have been sent; ``None``: all that were taken of it."""
    stale = False
    """Whether the server has closed the connection on which it was asked about the room: it may
    have restarted since."""
    reason: str
    """What happened, in one line."""
    host: str = ""
    """Host and port of the server, for example ``meet.example.com:443``."""

    def _text(self) -> str:
        return f"{self.host}: {self.reason}" if self.host else self.reason


class ConnectFailed(TransportError):
    """No connection could be made; not one byte of the request was sent."""


class ResourceExhausted(ConnectFailed):
    """No file descriptor, thread or space for temporary files is left here; nothing was sent."""


class ConnectionLost(TransportError):
    """The connection broke, or the peer violated HTTP."""


class ReplyTooLarge(ConnectionLost):
    """The reply has more than ``max_reply_bytes``; nothing of it was used."""


class TransferTimeout(TransportError, TimeoutError):
    """No progress for longer than :class:`meeting_async.Timeouts` allows."""


@_error(slots=False)
class UploadInterrupted(TransportError):
    """The upload was cut off several times in a row, each time before its closing boundary.

    With ``delivery="exactly_once"`` also: it was lost, and the server shows that it is not there.
    """

    bytes_sent: int = 0
    """Bytes of the document that the last attempt handed to the operating system."""

    def _text(self) -> str:
        return f"{self._call()} was cut off after {self.bytes_sent:,} bytes: {super()._text()}"


@_error(slots=False)
class UploadOutcomeUnknown(MeetingError):
    """The whole document was sent and no valid answer came back.

    The document may still appear in the room. If it is sent again, the room may show it twice. With
    ``delivery="exactly_once"``, the ``reason`` also says why the server's files do not tell it.
    """

    reason: str
    """What was seen instead of an answer."""
    size: int | None
    """Size of the document in bytes; ``None`` for a link."""
    bytes_sent: int | None
    """Bytes of the document that were handed to the operating system; ``None`` for a link."""
    lock_free_in: float
    """Seconds from now until the room must be free."""

    def _text(self) -> str:
        return (
            f"{self.document!r} was sent to room {self.room_id!r}, but whether it arrived is "
            f"unknown: {self.reason}; look into the room before sending it again"
        )


class DocumentMisplaced(UploadOutcomeUnknown):
    """The server accepted the document, but shows no such file in the room's session.

    It may be in another room (``docs/operations.md``, Several instances). Only with
    ``delivery="exactly_once"``.
    """

    def _text(self) -> str:
        return (
            f"{self.document!r} was accepted for room {self.room_id!r}, but is not in this room: "
            f"perhaps in another one; does the balancer choose by room? ({self.reason})"
        )


# --- batches -------------------------------------------------------------------------------------


@_error(slots=False)
class JournalError(MeetingError, OSError):
    """The journal of a batch or the table of a queue fails; nothing is sent without it."""

    journal: str
    """Path of the journal, or name of the table."""
    reason: str
    """What is wrong, and what to do."""
    kind: str = "journal"
    """``journal`` or ``queue's table``."""

    def _text(self) -> str:
        return f"the {self.kind} {self.journal!r} {self.reason}"


class JournalInUse(JournalError):
    """Another batch uses this journal, or another program has locked rows of a queue's table."""


@_error(slots=False)
class UploadPutBack(MeetingError):
    """An upload of a queue would have to wait, so it was put back into the queue.

    Events of a worker have it.
    """

    seconds: float
    """Seconds after which it goes on."""
    reason: str
    """What it would have waited for."""

    def _text(self) -> str:
        return f"put back for {self.seconds:.1f} s: {self.reason}"


@_error(slots=False)
class UploadFailed(MeetingError):
    """An upload of a queue was cancelled, or an error of your own code ended it in the worker.

    It is in outcomes of :meth:`meeting_async.procrastinate.WhiteboardUploads.report`, where errors
    of this library are as they were.
    """

    kind: str
    """Class of the worker's error, for example ``"FileNotFoundError"``; ``"UploadCancelled"``."""
    reason: str
    """Its text."""

    def _text(self) -> str:
        return f"{self.kind}: {self.reason}"


@_error(slots=False)
class BatchStopped(MeetingError):
    """The batch was stopped, or its block was left, before this document was delivered."""

    how_far: str
    """How far the job had come."""

    def _text(self) -> str:
        return f"the batch was stopped {self.how_far}"


@_error(slots=False)
class BatchFailed(MeetingError):
    """At least one document of a batch is not known to be in its room."""

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
    """The first of these jobs, with its error."""

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
