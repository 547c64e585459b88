"""Values that users and transports see: requests, replies, attempts, receipts, rooms.

They are frozen and comparable, and show no secret in their ``repr``. A field that the server leaves
out is ``None``. Other fields of the server are in ``raw``.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
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
    """Turn text or bytes into a :class:`Secret`; return any other value unchanged."""
    if isinstance(api_secret, str):
        return hidden_text(api_secret)
    return Secret(api_secret) if isinstance(api_secret, bytes) else api_secret


def hidden_text(api_secret: str) -> Secret:
    """Encode a secret; lone surrogates become NUL, which no signer accepts."""
    return Secret(re.sub("[\ud800-\udfff]", "\0", api_secret).encode())


HeaderPairs = tuple[tuple[bytes, bytes], ...]
"""Header fields as bytes, in the order sent; credentials are `Secret` values."""


MAX_REPLY_BYTES = 1024**2
"""Largest reply in bytes, unless the caller asks for more. Replies of known servers have a few
kilobytes."""


@runtime_checkable
class Body(Protocol):
    """A request body that is produced while it is sent, for one attempt only."""

    @property
    def length(self) -> int:
        """Exact number of bytes that it yields: the ``Content-Length``."""
        ...

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
    max_reply_bytes: int = MAX_REPLY_BYTES
    """Largest content of a reply in bytes; a larger one is an error at once."""
    cut_reply: bool = False
    """Whether a larger reply is cut to ``max_reply_bytes`` instead, with ``Reply.is_cut``. The rest
    is not read."""
    idempotent: bool = False
    """Whether an idle connection may be used; the server may have closed it."""
    is_check: bool = False
    """Whether it asks about a room to which a document may follow: keep the connection of the
    answer, for some seconds, for as long as somebody has ``Reply.peer``."""
    peer: Any = attrs.field(default=None, eq=False, repr=False)
    """``Reply.peer`` of the check before it. Send only to that address, and only while that
    connection was not closed. ``None``: it follows no check."""


class _Uncopied(tuple[tuple[bytes, bytes], ...]):
    """Headers that a copy or a pickle does not have."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(hidden)"

    def __reduce__(self) -> tuple[object, ...]:
        return (tuple, ())


class _Pairs(tuple[tuple[bytes, bytes], ...]):
    """Headers that need no look any more when a reply is copied."""

    __slots__ = ()


def _header_pairs(headers: Any) -> HeaderPairs:
    """Accept what HTTP libraries have: pairs or a mapping, of bytes or text."""
    if type(headers) is _Pairs:
        return headers
    try:
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        return _Pairs(
            [
                (
                    name if type(name) is bytes else _as_bytes(name),
                    value if type(value) is bytes else _as_bytes(value),
                )
                for name, value in pairs
            ]
        )
    except (TypeError, ValueError):
        kind = type(headers).__name__  # not the values: a server may repeat a secret
        problem = f"headers of a Reply are no pairs of bytes, but a {kind}"
        raise TypeError(f"{problem}: give ((b'Content-Type', b'application/json'),)") from None


def _content(content: Any) -> bytes:
    try:
        return content.encode() if isinstance(content, str) else _as_bytes(content)
    except TypeError:
        raise TypeError(f"content of a Reply is a {type(content).__name__}: give bytes") from None


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("latin-1", "replace")
    return value if isinstance(value, bytes) else bytes(memoryview(value))


@attrs.frozen
class Reply:
    """One HTTP reply: status, headers and the whole content. Text becomes bytes."""

    status: int
    headers: HeaderPairs = attrs.field(
        default=(), converter=_header_pairs, repr=lambda pairs: f"({len(pairs)} headers)"
    )
    content: bytes = attrs.field(
        default=b"", converter=_content, repr=lambda content: f"({len(content)} bytes)"
    )
    early: bool = False
    """Whether its head came before the last byte of the request was sent. Such a success is not
    about the whole document."""
    is_cut: bool = False
    """Whether the content goes on; see ``Request.cut_reply``."""
    sent: int | None = None
    """Bytes of the request's body that may have been sent; ``None``: all that were taken of it."""
    peer: Any = attrs.field(default=None, eq=False, repr=False)
    """Who has answered a check: address and connection; ``None`` if that is not known."""
    added: HeaderPairs = attrs.field(default=(), converter=_Uncopied, eq=False, repr=False)
    """Headers that the transport itself has added to the request. The client replaces credentials
    in them, too, where the reply repeats them. A deep copy or a pickle does not have them."""


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
    """Result of an attempt: the rows of the table in ``docs/delivery.md``, What is retried."""

    NEVER_SENT = "never sent"
    NO_ANSWER = "no answer"
    PARTIAL = "partial"
    BUSY = "busy"
    REFUSED = "refused"
    THROTTLED = "throttled"
    FAILED = "failed"
    UNKNOWN = "unknown"
    ACCEPTED = "accepted"
    FOUND = "found"
    """Evidence shows the document in its session."""
    NOT_FOUND = "not found"
    """Evidence does not show it there."""


UNREACHED = frozenset({Verdict.NEVER_SENT, Verdict.NO_ANSWER})
"""The server was not reached, or a question about the room got no valid answer."""


@attrs.frozen
class Attempt:
    """One attempt of a call, for receipts and errors."""

    number: int
    """1 for the first."""
    started: float
    """Seconds after the call began."""
    seconds: float
    """How long the attempt took."""
    verdict: Verdict
    """Its result."""
    status: int | None
    """HTTP status, if there was a reply."""
    reason: str
    """What was seen, in a few words."""
    bytes_sent: int = 0
    """Bytes of the document that were handed to the operating system."""
    body_seconds: float | None = None
    """Seconds until the whole document was sent; ``None`` if it was not."""
    session: str = attrs.field(default="", repr=False)
    """Id of the session that ran in the room (``ActiveRoom.sid``); ``""`` if it is not known."""


def count_of(attempts: Sequence[Attempt]) -> int:
    """Return how many there were; of a long outage not all are kept."""
    return attempts[-1].number if attempts else 0


def bytes_sent(attempts: Iterable[Attempt]) -> int:
    """Return the bytes of a document that were sent in all attempts together."""
    return sum(attempt.bytes_sent for attempt in attempts)


def bytes_resent(attempts: Collection[Attempt]) -> int:
    """Return the bytes of a document that were sent more than once."""
    return bytes_sent(attempts) - max((attempt.bytes_sent for attempt in attempts), default=0)


@attrs.frozen(kw_only=True)
class UploadReceipt:
    """The server accepted a document; it may still be converting it for the room."""

    room_id: str
    document: str
    """Name that the room shows, or the link without its query."""
    size: int | None
    """Bytes of the document; ``None`` for a link."""
    msg: str
    """The server's message, at most 1,000 characters."""
    status_code: str
    """The server's code, for example ``SUCCESS``; ``""`` if it gave no answer: see ``found``."""
    seconds: float
    """Seconds from the call to the answer, waits included."""
    attempts: tuple[Attempt, ...] = attrs.field(repr=lambda all_: f"({len(all_)} attempts)")
    """Every attempt, the accepted one last."""
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)
    """Headers of the reply, names in lower case; a request id of a proxy is among them."""
    raw: Mapping[str, Any] = attrs.field(repr=False, hash=False)
    """The whole record that the server sent."""
    session: str = attrs.field(default="", repr=False)
    """Id of the session that has it (``ActiveRoom.sid``): the one that ran when the room was
    checked, right before. ``""`` if it is not known. Treat it like a link: who knows it and the
    name can read the document."""
    found: bool | None = None
    """With ``delivery="exactly_once"``: whether the server showed the document in its session;
    ``False`` if that could not be told. If no answer came, ``status_code`` is ``""``: then it has
    arrived, but whether it was converted is not known."""


@attrs.frozen
class Participant:
    """A user in a room."""

    identity: str | None
    name: str | None
    sid: str | None
    state: str | None
    joined_at: int | None
    """Unix time, as the server gives it."""
    metadata: Any = attrs.field(repr=False, hash=False)
    """Decoded from JSON; the text itself if it is not JSON."""
    raw: Mapping[str, Any] = attrs.field(repr=False, hash=False)

    @classmethod
    def from_reply(cls, record: Mapping[str, Any]) -> Self:
        """Read one entry of ``participants_info``; no field is required."""
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
    """Number of participants, according to the server."""
    creation_time: int | None
    """Unix time, as the server gives it."""
    webhook_url: str | None = attrs.field(repr=False)
    metadata: Any = attrs.field(repr=False, hash=False)
    """Decoded from JSON; the text itself if it is not JSON."""
    participants: tuple[Participant, ...] = attrs.field(
        repr=lambda people: f"({len(people)} participants)"
    )
    raw: Mapping[str, Any] = attrs.field(repr=False, hash=False)
    """The whole reply, unknown fields included."""
    date: int | None = None
    """When the server said so: Unix time by its own clock (RFC 9110 section 6.6.1)."""

    @classmethod
    def from_reply(cls, room_id: str, reply: Mapping[str, Any], date: int | None = None) -> Self:
        """Read the reply of ``getActiveRoomInfo``; no field is required."""
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
            date=date,
        )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: object) -> int | None:
    """Read an integer; the protobuf mapping sends 64-bit integers as JSON strings."""
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
    """Decode metadata, which is JSON text inside JSON; return other values unchanged."""
    if not isinstance(value, str) or not value:
        return value or None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
