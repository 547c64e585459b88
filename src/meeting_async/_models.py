"""The values that cross the library's borders: requests, replies, attempts, receipts, rooms.

Frozen, comparable and free of secrets in their ``repr``. Fields that the server leaves out are
``None``; fields that this library does not know are kept in ``raw``.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import attrs

T = TypeVar("T")


class Secret(bytes):
    """Bytes that do not show in a ``repr`` or in a traceback with locals, and do not pickle."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(hidden)"

    __str__ = __repr__

    def __reduce_ex__(self, _protocol: object) -> tuple[object, ...]:
        raise TypeError("a Secret does not pickle")


def hidden(api_secret: T) -> T | Secret:
    """Turn a secret into a :class:`Secret`; return what is neither text nor bytes as it is."""
    if isinstance(api_secret, str):
        return hidden_text(api_secret)
    return Secret(api_secret) if isinstance(api_secret, bytes) else api_secret


def hidden_text(api_secret: str) -> Secret:
    """Encode a secret; halves of characters become NUL, which no signer accepts."""
    return Secret(re.sub("[\ud800-\udfff]", "\0", api_secret).encode())


HeaderPairs = tuple[tuple[bytes, bytes], ...]
"""Header fields in the order sent, exactly as bytes; a value that is a credential is a `Secret`."""


@runtime_checkable
class Body(Protocol):
    """A request body that is produced while it is sent. It serves one attempt only."""

    @property
    def length(self) -> int:
        """Exact number of bytes that it yields; also the ``Content-Length``."""
        ...

    sent: int
    """Bytes that may have left this process.

    The body counts what it yields. A transport that knows better corrects the number before
    :meth:`~meeting_async.transports.Transport.send` ends: bytes that were only gathered in a
    buffer of its own were not sent. Whether ``sent`` reached ``length`` decides if a document may
    have arrived.
    """

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body's bytes in order."""
        ...


@attrs.frozen(kw_only=True)
class Request:
    """One HTTP request, as a :class:`~meeting_async.transports.Transport` gets it."""

    method: str = "POST"
    url: str
    headers: HeaderPairs
    """All headers that the request needs, ``Content-Length`` included; credentials are hidden."""
    body: bytes | Body = attrs.field(
        repr=lambda body: f"{len(body) if isinstance(body, bytes) else body.length} bytes"
    )
    connect_timeout: float = 10.0
    """Seconds for name lookup, TCP and TLS together."""
    stall_timeout: float = 30.0
    """Longest time in seconds without progress while the body is sent."""
    reply_timeout: float = 15.0
    """Seconds from the end of the body to the end of the reply."""
    max_reply_bytes: int = 16 * 1024**2
    """Longest reply that is read; a longer one is an error at once."""
    idempotent: bool = False
    """Whether the request may be sent on an idle connection that the server may have dropped."""


@attrs.frozen
class Reply:
    """One HTTP reply: status, headers and the whole content."""

    status: int
    headers: HeaderPairs = attrs.field(default=(), repr=lambda pairs: f"({len(pairs)} headers)")
    content: bytes = attrs.field(default=b"", repr=lambda content: f"({len(content)} bytes)")


def _masked(value: object) -> str:
    return "(hidden)" if value else repr(value)


@attrs.frozen
class SignedHeaders:
    """The two headers that authenticate a call (``docs/interface.md``, Authentication)."""

    api_key: str = attrs.field(repr=_masked)
    """Value of ``API-KEY``."""
    signature: str = attrs.field(repr=_masked)
    """Value of ``HASH-SIGNATURE``: for an upload a lasting credential for its room."""

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("SignedHeaders hold a signature and do not pickle")


class Verdict(enum.StrEnum):
    """What an attempt came to: the rows of the table in ``docs/delivery.md``."""

    NEVER_SENT = "never sent"
    PARTIAL = "partial"
    BUSY = "busy"
    REFUSED = "refused"
    THROTTLED = "throttled"
    FAILED = "failed"
    UNKNOWN = "unknown"
    ACCEPTED = "accepted"


@attrs.frozen
class Attempt:
    """One attempt of a call, as receipts and errors remember it."""

    number: int
    """1 for the first."""
    started: float
    """Seconds after the call began."""
    seconds: float
    """How long the attempt took."""
    verdict: Verdict
    """What it came to."""
    status: int | None
    """HTTP status, when there was a reply."""
    reason: str
    """What was seen, in a few words."""
    bytes_sent: int = 0
    """Bytes of the document that were handed to the operating system."""
    body_seconds: float | None = None
    """How long it took until the whole document was out; ``None`` if it never was."""


@attrs.frozen(kw_only=True)
class UploadReceipt:
    """The server accepted a document; it may still be converting it for the room."""

    room_id: str
    document: str
    """Name that the room shows, or the link without its query."""
    size: int | None
    """Bytes of the document; ``None`` for a link."""
    msg: str
    """The server's message, at most 500 characters."""
    status_code: str
    """The server's code, for example ``SUCCESS``."""
    seconds: float
    """From the call to the answer, waiting included."""
    attempts: tuple[Attempt, ...]
    """Every attempt, the accepted one last."""
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    """Headers of the reply, names in lower case; a request id of a proxy is among them."""
    raw: Mapping[str, Any] = attrs.field(repr=False, hash=False)
    """The whole record that the server sent."""


@attrs.frozen
class Participant:
    """Somebody in a room."""

    identity: str | None
    name: str | None
    sid: str | None
    state: str | None
    joined_at: int | None
    """Unix time, as the server gives it."""
    metadata: Any = attrs.field(repr=False, hash=False)
    """Decoded from the JSON text the server sends; the text itself if it is no JSON."""
    raw: Mapping[str, Any] = attrs.field(repr=False, hash=False)

    @classmethod
    def from_reply(cls, record: Mapping[str, Any]) -> Self:
        """Read one entry of ``participants_info``; nothing in it is required."""
        return cls(
            identity=_text(record.get("identity")),
            name=_text(record.get("name")),
            sid=_text(record.get("sid")),
            state=_text(record.get("state")),
            joined_at=_integer(record.get("joined_at")),
            metadata=_decoded(record.get("metadata")),
            raw=record,
        )


@attrs.frozen
class ActiveRoom:
    """A room in which a session is running."""

    room_id: str
    title: str | None
    sid: str | None
    is_running: bool | None
    is_recording: bool | None
    is_active_rtmp: bool | None
    is_breakout_room: bool | None
    parent_room_id: str | None
    joined_participants: int | None
    """How many the server counts; ``participants`` lists them."""
    creation_time: int | None
    """Unix time, as the server gives it."""
    webhook_url: str | None = attrs.field(repr=False)
    metadata: Any = attrs.field(repr=False, hash=False)
    """Decoded from the JSON text the server sends; the text itself if it is no JSON."""
    participants: tuple[Participant, ...] = attrs.field(
        repr=lambda people: f"({len(people)} participants)"
    )
    raw: Mapping[str, Any] = attrs.field(repr=False, hash=False)
    """The whole reply, unknown fields included."""

    @classmethod
    def from_reply(cls, room_id: str, reply: Mapping[str, Any]) -> Self:
        """Read the reply of ``getActiveRoomInfo``; nothing in it is required."""
        room = _mapping(reply.get("room"))
        info = _mapping(room.get("room_info"))
        people = room.get("participants_info")
        return cls(
            room_id=_text(info.get("room_id")) or room_id,
            title=_text(info.get("room_title")),
            sid=_text(info.get("sid")),
            is_running=_flag(info.get("is_running")),
            is_recording=_flag(info.get("is_recording")),
            is_active_rtmp=_flag(info.get("is_active_rtmp")),
            is_breakout_room=_flag(info.get("is_breakout_room")),
            parent_room_id=_text(info.get("parent_room_id")),
            joined_participants=_integer(info.get("joined_participants")),
            creation_time=_integer(info.get("creation_time")),
            webhook_url=_text(info.get("webhook_url")),
            metadata=_decoded(info.get("metadata")),
            participants=tuple(
                Participant.from_reply(person)
                for person in (people if isinstance(people, list) else ())
                if isinstance(person, Mapping)
            ),
            raw=reply,
        )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: object) -> int | None:
    """64-bit integers arrive as JSON strings from servers that follow the protobuf mapping."""
    if isinstance(value, str):
        digits = value.removeprefix("-")
        return int(value) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    number = _integer(value)
    return None if number is None else number != 0


def _decoded(value: object) -> Any:
    """Metadata is a JSON text inside JSON; whatever it is, it never spoils the record."""
    if not isinstance(value, str) or not value:
        return value or None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
