"""Async client for a web-meeting server's signed HTTP API.

Every document reaches its room once, or you are told exactly what is known.

    async with MeetingClient("https://meet.example.com", api_key=..., api_secret=...) as client:
        receipt = await client.upload_whiteboard_file("room01", "deck.pdf")

Without ``async``: :mod:`meeting_async.sync`. All errors of :mod:`meeting_async.errors` are here,
too. To write your own transport, signer, room locks or journal, see
:mod:`meeting_async.transports`, :mod:`meeting_async.signers`, :mod:`meeting_async.rooms` and
:mod:`meeting_async.journals`. A server
for development and tests is in :mod:`meeting_async.testing`.
"""

from typing import TYPE_CHECKING, Any

from meeting_async import errors
from meeting_async._client import MeetingClient
from meeting_async._documents.detect import Uploadable
from meeting_async._documents.document import Document
from meeting_async._documents.junk import is_junk_file
from meeting_async._events import (
    AttemptStarted,
    BytesSent,
    Event,
    Finished,
    OnEvent,
    Queued,
    RetryScheduled,
    Started,
    WaitingForRoom,
    WaitingUntilActive,
)
from meeting_async._models import ActiveRoom, Attempt, Participant, UploadReceipt, Verdict
from meeting_async._policies import LockPolicy, RetryPolicy, Timeouts
from meeting_async.errors import (
    AuthenticationFailed,
    BatchFailed,
    BatchStopped,
    ConfigurationError,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    DocumentChanged,
    DocumentEmpty,
    DocumentError,
    DocumentMisplaced,
    DocumentRefused,
    DocumentTooLarge,
    DocumentTypeRefused,
    DocumentUnreadable,
    InvalidInput,
    JournalError,
    JournalInUse,
    LinkRefused,
    MeetingError,
    ProcessingFailed,
    ReplyError,
    ReplyTooLarge,
    RequestRefused,
    ResourceExhausted,
    RoomBusy,
    RoomLocksUnavailable,
    RoomNotActive,
    RoomNotFound,
    ServerFailed,
    Throttled,
    TransferTimeout,
    TransportError,
    UnexpectedReply,
    UploadFailed,
    UploadInterrupted,
    UploadOutcomeUnknown,
    UploadPutBack,
)

__all__ = [
    "ActiveRoom",
    "Attempt",
    "AttemptStarted",
    "AuthenticationFailed",
    "Batch",
    "BatchFailed",
    "BatchReport",
    "BatchStopped",
    "BytesSent",
    "CheckResult",
    "ConfigurationError",
    "ConnectFailed",
    "ConnectionLost",
    "DeadlineExceeded",
    "Document",
    "DocumentChanged",
    "DocumentEmpty",
    "DocumentError",
    "DocumentMisplaced",
    "DocumentRefused",
    "DocumentTooLarge",
    "DocumentTypeRefused",
    "DocumentUnreadable",
    "Event",
    "Finished",
    "InvalidInput",
    "JournalError",
    "JournalInUse",
    "LinkRefused",
    "LockPolicy",
    "MeetingClient",
    "MeetingError",
    "OnEvent",
    "Participant",
    "ProcessingFailed",
    "Queued",
    "ReplyError",
    "ReplyTooLarge",
    "RequestRefused",
    "ResourceExhausted",
    "RetryPolicy",
    "RetryScheduled",
    "RoomBusy",
    "RoomLocksUnavailable",
    "RoomNotActive",
    "RoomNotFound",
    "ServerCheck",
    "ServerFailed",
    "Started",
    "Throttled",
    "Timeouts",
    "TransferTimeout",
    "TransportError",
    "UnexpectedReply",
    "UploadFailed",
    "UploadInterrupted",
    "UploadJob",
    "UploadOutcome",
    "UploadOutcomeUnknown",
    "UploadPutBack",
    "UploadReceipt",
    "Uploadable",
    "Verdict",
    "WaitingForRoom",
    "WaitingUntilActive",
    "__version__",
    "errors",
    "is_junk_file",
]

if TYPE_CHECKING:
    from meeting_async._batch.batch import Batch
    from meeting_async._batch.results import BatchReport, UploadJob, UploadOutcome
    from meeting_async._delivery.server_check import CheckResult, ServerCheck

    __version__: str

_LATE = {
    **dict.fromkeys(("Batch", "BatchReport", "UploadJob", "UploadOutcome"), "_batch.batch"),
    **dict.fromkeys(("CheckResult", "ServerCheck"), "_delivery.server_check"),
}
"""Modules of what is loaded on first use."""


def __getattr__(name: str) -> Any:
    """Load on first use what takes time and what many programs do not need."""
    import importlib.metadata  # noqa: PLC0415 - as above

    if name in _LATE:
        return getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
    if name == "__version__":
        return importlib.metadata.version("meeting-async")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Also list what is loaded on first use."""
    return sorted({*globals(), *__all__})
