"""The client: one short method per endpoint."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import anyio
import attrs

from meeting_async import _wire, errors
from meeting_async._batch import Batch
from meeting_async._calls import Calls, Shared, checked_seconds
from meeting_async._documents import Document
from meeting_async._environment import settings_from
from meeting_async._events import OnEvent
from meeting_async._intake import Jobs
from meeting_async._limits import parse_size
from meeting_async._policies import Delivery as DeliveryMode
from meeting_async._policies import LockPolicy, Options, RetryPolicy, Timeouts
from meeting_async._recognition import Uploadable
from meeting_async._records import ActiveRoom, UploadReceipt
from meeting_async._rooms import RoomGate
from meeting_async._signing import HmacSigner, Signer, hidden
from meeting_async._terms import OnUnknown, Terms
from meeting_async._transport import HttpxTransport, Transport
from meeting_async._verdicts import Repeatability

ACTIVE_POLL_SECONDS = 2.0
"""Between two looks of ``wait_until_active``: a person who starts a session will not notice."""


class MeetingClient:
    """An async client for the signed HTTP API of a web-meeting server.

    Use it as an async context manager, or call :meth:`aclose`. One client serves any number of
    concurrent calls within one event loop (asyncio or trio).

    Args:
        base_url: Address of the server; ``/auth`` is added. Plain ``http`` is for loopback only,
            unless ``allow_plaintext``: the signature of an upload is a lasting credential.
        api_key: The server's API key.
        api_secret: Its secret; never sent. Key and secret make an :class:`HmacSigner`.
        signer: A signer of yours, instead of key and secret.
        transport: A transport of yours; the client closes it.
        max_size_whiteboard_file: The server's setting of that name: bytes, or text such as
            ``"30MiB"``. Larger documents are refused before anything is sent. ``None``: unchecked.
        allow_images: Do not refuse images (interface section 4.2 rule 5 says servers do).
        allow_plaintext: Allow plain ``http`` to hosts other than this machine.
        delivery: ``"at_most_once"``: an upload of unknown outcome raises
            :class:`~meeting_async.errors.UploadOutcomeUnknown`. ``"at_least_once"``: it is sent
            again when the room's lock must be free; the room may see the document twice.
        lock: How to wait for a room that another upload holds.
        retry: How often to repeat what may be repeated.
        timeouts: Limits on a single attempt.
        on_event: Called with every :class:`~meeting_async.Event`; a function or a coroutine
            function. What it raises is logged and changes nothing; a coroutine is cut off after
            1 s.
        room_gate: What lets uploads to one room take turns. By default one :class:`Turnstile` for
            all clients of this event loop; to coordinate processes, a
            :class:`~meeting_async.redis.RedisRoomGate` or one of yours.

    Raises:
        ConfigurationError: A setting cannot be used; it is named.

    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        api_secret: str | bytes | None = None,
        signer: Signer | None = None,
        transport: Transport | None = None,
        max_size_whiteboard_file: int | str | None = None,
        allow_images: bool = False,
        allow_plaintext: bool = False,
        delivery: DeliveryMode = "at_most_once",
        lock: LockPolicy | None = None,
        retry: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
        on_event: OnEvent | None = None,
        room_gate: RoomGate | None = None,
    ) -> None:
        api_secret = hidden(api_secret)  # also from tracebacks with locals
        signer = _signer(api_key, api_secret, signer)
        base = _wire.auth_base(base_url, allow_plaintext=allow_plaintext)
        options = Options(
            max_size_whiteboard_file=_size(max_size_whiteboard_file),
            allow_images=allow_images,
            delivery=delivery,
            lock=LockPolicy() if lock is None else lock,
            retry=RetryPolicy() if retry is None else retry,
            timeouts=Timeouts() if timeouts is None else timeouts,
            on_event=on_event,
        )
        transport = HttpxTransport() if transport is None else transport
        self._calls = Calls(Shared(base, signer, transport, room_gate), options)
        self._is_derived = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **settings: Any) -> Self:
        """Make a client from ``MEETING_*`` variables; ``settings`` are the constructor's and win.

        ``MEETING_BASE_URL``, ``MEETING_API_KEY``, ``MEETING_API_SECRET`` or
        ``MEETING_API_SECRET_FILE``, ``MEETING_MAX_SIZE_WHITEBOARD_FILE`` (bytes or ``30MiB``),
        ``MEETING_ALLOW_PLAINTEXT`` (``1`` or ``0``).

        Raises:
            ConfigurationError: A variable is missing or unusable; it is named.

        """
        merged = {**settings_from(os.environ if environ is None else environ), **settings}
        needed = ["base_url", "api_key", "api_secret"]
        if settings.get("signer") is not None:
            for name in (needed.pop(), needed.pop()):
                merged[name] = settings.get(name)
        for name in needed:
            if merged.get(name) is None:
                variable = f"MEETING_{name.upper()}"
                raise errors.ConfigurationError(variable, "nothing", "is not set", "export it")
        return cls(**merged)

    def with_options(self, **changes: Any) -> Self:
        """Return a client with other options that shares connections and the queue per room.

        ``changes`` are any of ``max_size_whiteboard_file``, ``allow_images``, ``delivery``,
        ``lock``, ``retry``, ``timeouts`` and ``on_event``. Close the original, not the result.
        """
        if "max_size_whiteboard_file" in changes:
            changes["max_size_whiteboard_file"] = _size(changes["max_size_whiteboard_file"])
        derived = copy.copy(self)
        options = attrs.evolve(self._calls.options, **changes)
        derived._calls = Calls(self._calls.shared, options)  # noqa: SLF001 - our own kind
        derived._is_derived = True  # noqa: SLF001 - our own kind
        return derived

    # --- endpoints -------------------------------------------------------------------------------

    async def get_active_room_info(
        self, room_id: str, *, deadline: float | None = None
    ) -> ActiveRoom:
        """Ask for a room that is active (interface section 4.1). Repeated freely on trouble.

        Args:
            room_id: The room.
            deadline: Seconds for everything, retries included.

        Raises:
            InvalidInput: The room id cannot be sent.
            RoomNotFound, RoomNotActive, AuthenticationFailed: As the server says.
            TransportError, Throttled, UnexpectedReply: Every attempt failed.
            DeadlineExceeded: The deadline struck.

        """
        return await self._calls.active_room(room_id, deadline)

    async def wait_until_active(
        self,
        room_id: str,
        timeout: float,  # noqa: ASYNC109 - the established name; it works like any deadline here
    ) -> ActiveRoom:
        """Ask every 2 s until the room is active, for at most ``timeout`` seconds.

        Raises:
            DeadlineExceeded: It did not become active in time.
            MeetingError: As :meth:`get_active_room_info`, but for a room that is not there yet.

        """
        seconds = checked_seconds(timeout, "timeout")
        with anyio.move_on_after(seconds):
            while True:
                with contextlib.suppress(errors.RoomNotFound, errors.RoomNotActive):
                    return await self.get_active_room_info(room_id)
                await anyio.sleep(ACTIVE_POLL_SECONDS)
        phase = f"waiting for room {room_id!r} to become active"
        raise errors.DeadlineExceeded(_wire.ACTIVE_ROOM_INFO, seconds or 0.0, phase)

    async def upload_whiteboard_file(
        self,
        room_id: str,
        document: Document | Uploadable,
        *,
        filename: str | None = None,
        content_type: str | None = None,
        max_wait: float | None = None,
        deadline: float | None = None,
    ) -> UploadReceipt:
        """Put a document into the whiteboard files of an active room (interface section 4.2).

        Waits its turn behind other uploads from here to the room, and while somebody else's upload
        holds the room's lock. Success means accepted: the server may still be converting.

        Args:
            room_id: An active room with a presenter in it.
            document: A path, bytes, an open binary file, an upload of a web framework, an async
                iterable of bytes, or a :class:`Document`; a link is ``Document.from_link(url)``.
            filename: What the room sees instead of the document's own name; needed for what has
                none.
            content_type: Media type, instead of its own or the one guessed from the name.
            max_wait: Seconds to wait for the room's lock from the first refusal, instead of
                ``LockPolicy.max_wait``; 0 raises :class:`RoomBusy` at once. The queue at the room's
                gate does not count, except that 0 does not queue either.
            deadline: Seconds for everything: queue, waits, attempts.

        Raises:
            InvalidInput, DocumentError, TypeError: Found before anything was sent (or, for a
                document that changes meanwhile, before it was complete).
            RequestRefused, ProcessingFailed: The server's answer.
            RoomBusy: The lock outlasted ``max_wait``.
            TransportError, Throttled: It never went out completely.
            DeadlineExceeded: The deadline struck before it was out.
            UploadOutcomeUnknown: It went out and no valid answer came back.

        """
        document = Document.of(document, filename=filename, content_type=content_type)
        upload = self._calls.upload(room_id, document, max_wait=max_wait, deadline=deadline)
        return await upload.run()

    def upload_many(
        self,
        jobs: Jobs,
        *,
        concurrency: int = 32,
        journal: str | os.PathLike[str] | None = None,
        on_unknown: OnUnknown = "report",
        wait_active: float | None = None,
        max_wait: float | None = None,
        deadline: float | None = None,
        window: int = 10_000,
        keep_outcomes: bool = True,
    ) -> Batch:
        """Upload many documents to many rooms: ``async with client.upload_many(jobs) as batch``.

        The documents of a room go there one after another, in the order of the input; rooms go
        side by side. Iterate over the batch for outcomes in the order in which they come, or
        ``await batch.wait()``; ``batch.report`` accounts for every job. A job that fails never
        raises and disturbs no other. What dooms all, such as a wrong key, is found out before
        anything large is sent, and the rest is skipped; so are the further documents for a room
        that is not there or not active.

        Args:
            jobs: An iterable or async iterable of :class:`UploadJob`, read as need be.
            concurrency: Uploads in flight at the same time. One that waits for its room does not
                count, and holds no connection, no open file and no bytes.
            journal: Path of a file (SQLite) that makes the batch resumable. That a document is
                about to arrive is written there before it can. Run the same jobs again: what was
                accepted is skipped, what was not sent is sent, what is unknown is reported.
            on_unknown: ``"report"``, or ``"resend"``: send again what may have arrived, when the
                room's lock must be free; the room may see it twice.
            wait_active: Seconds to wait for a room that is not there or not active yet, instead of
                skipping its documents.
            max_wait: Seconds for which a job waits for its room's lock; see
                :meth:`upload_whiteboard_file`.
            deadline: Seconds for a single job, from when its turn has come.
            window: Jobs that are read ahead, at most: those whose outcome you have not taken yet.
            keep_outcomes: ``False``: ``batch.report`` has totals only, and a batch of any length
                needs the same memory.

        Raises:
            InvalidInput: An argument cannot be used.
            JournalInUse, JournalError: On entering the block, with a journal that cannot be used.

        """
        terms = Terms(
            concurrency=concurrency,
            journal=journal,
            on_unknown=on_unknown,
            wait_active=wait_active,
            max_wait=max_wait,
            deadline=deadline,
            window=window,
            keep_outcomes=keep_outcomes,
        )
        return Batch(self._calls, jobs, terms)

    async def call(
        self,
        path: str,
        payload: Mapping[str, Any] | None = None,
        *,
        idempotent: bool = False,
        deadline: float | None = None,
    ) -> dict[str, Any]:
        """Make any other signed JSON call and return the reply's object.

        Args:
            path: Method path below ``{base_url}/auth``, such as ``"room/create"``.
            payload: Body, of JSON's types.
            idempotent: The call may be repeated when its outcome is unknown. Otherwise only calls
                that were never sent or were throttled are.
            deadline: Seconds for everything, retries included.

        Raises:
            MeetingError: As :meth:`get_active_room_info`; ``status: false`` always raises.

        """
        kind = Repeatability.IDEMPOTENT if idempotent else Repeatability.ONCE
        path, payload = _wire.method_path(path), {} if payload is None else payload
        answer = await self._calls.ask(path, payload, kind, deadline)
        return dict(answer.payload or {})

    # --- lifetime --------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the connections; a client made by :meth:`with_options` leaves it to its origin."""
        if not self._is_derived:
            await self._calls.shared.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        calls = getattr(self, "_calls", None)  # not there yet while a setting is refused
        if calls is None:
            return "<MeetingClient, not made>"
        shared = calls.shared
        return f"<MeetingClient for {shared.base}{', closed' if shared.closed else ''}>"


def _signer(api_key: str | None, api_secret: str | bytes | None, signer: Signer | None) -> Signer:
    if signer is not None:
        if api_key is not None or api_secret is not None:
            raise errors.ConfigurationError(
                "signer", "(hidden)", "is given beside api_key or api_secret", "give one of them"
            )
        return signer
    if api_key is None or api_secret is None:
        missing = "api_key" if api_key is None else "api_secret"
        raise errors.ConfigurationError(
            missing, "None", "is missing", "give api_key and api_secret, or a signer"
        )
    return HmacSigner(api_key, api_secret)


def _size(value: int | str | None) -> int | None:
    return None if value is None else parse_size(value, field="max_size_whiteboard_file")
