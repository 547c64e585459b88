"""The client: one short method per endpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypedDict, Unpack

import attrs

from meeting_async._config import (
    Environment,
    certificates,
    check_names,
    nearly_set,
    settings_from,
)
from meeting_async._delivery import json_call
from meeting_async._delivery.call import Call, new_call
from meeting_async._delivery.decide import RetrySafety
from meeting_async._delivery.evidence import Evidence
from meeting_async._delivery.room_locks import RoomLocks
from meeting_async._delivery.session import Options, Session
from meeting_async._delivery.upload import upload_document
from meeting_async._documents.detect import Uploadable
from meeting_async._documents.document import Document
from meeting_async._events import OnEvent
from meeting_async._http.transport import HttpTransport, Transport
from meeting_async._models import MAX_REPLY_BYTES, ActiveRoom, UploadReceipt, hidden
from meeting_async._policies import Delivery, LockPolicy, RetryPolicy, Timeouts
from meeting_async._protocol import requests
from meeting_async._protocol.signing import HmacSigner, Signer
from meeting_async._text import nearest, needs_async_with, short_repr
from meeting_async.errors import ConfigurationError

if TYPE_CHECKING:
    from meeting_async._batch.batch import Batch
    from meeting_async._batch.flow import Jobs
    from meeting_async._batch.journal import Journal
    from meeting_async._batch.options import OncePer
    from meeting_async._delivery.server_check import ServerCheck


class ClientOptions(TypedDict, total=False):
    """What :meth:`MeetingClient.with_options` changes; see :class:`MeetingClient`."""

    max_size_whiteboard_file: int | str | None
    allow_images: bool
    check_link: bool
    preflight: bool
    delivery: Delivery
    evidence: Evidence | None
    timeout: float | None
    lock: LockPolicy | None
    retry: RetryPolicy | None
    timeouts: Timeouts | None
    on_event: OnEvent | None


class ClientSettings(ClientOptions, total=False):
    """What :meth:`MeetingClient.from_env` takes besides the environment."""

    base_url: str
    api_key: str | None
    api_secret: str | bytes | None
    signer: Signer | None
    transport: Transport | None
    room_locks: RoomLocks | None
    default_headers: Mapping[str, str] | None
    max_connections: int
    allow_plaintext: bool


class MeetingClient:
    """An async client for the signed HTTP API of a web-meeting server.

    Use it as an async context manager, or call :meth:`aclose`. One client serves any number of
    concurrent calls of one event loop (asyncio or trio) at a time.

    Args:
        base_url: Address of the server; ``/auth`` is added. Plain ``http`` is for loopback only,
            unless ``allow_plaintext``: the signature of an upload is a lasting credential.
        api_key: The server's API key.
        api_secret: Its secret; never sent. Key and secret make an
            :class:`~meeting_async.signers.HmacSigner`.
        signer: Your own signer, instead of key and secret.
        transport: Your own transport, for example ``HttpxTransport(your_httpx_client)``; the
            client closes the transport.
        room_locks: Locks that allow one upload per room at a time. By default the clients of this
            event loop share locks. For several processes use
            :class:`~meeting_async.redis.RedisRoomLocks`, or your own.
        default_headers: Headers that are sent with every request to the server, such as a request
            id or the key of a gateway.
        max_connections: Attempts of uploads and calls at the same time, each with one connection;
            further ones wait in their order. An httpx client of your own needs as many.
        allow_plaintext: Allow plain ``http`` to other hosts than loopback.
        max_size_whiteboard_file: The server's setting of that name: bytes, or text such as
            ``"30MiB"``. Larger documents are refused before anything is sent. ``None``: unchecked.
        allow_images: Do not refuse images. Servers refuse them (``docs/interface.md``, Upload).
        check_link: Check a link with HEAD before it is passed to the server: it must be direct,
            public, a document and not too large. Then this machine fetches a URL that somebody
            else may have chosen, with a transport of its own (``docs/documents.md``, Links).
        preflight: Ask for the room with a small call before each attempt, and with an empty form
            before a document above 64 KiB or after a 409 (``docs/delivery.md``, Before a document
            is sent).
        delivery: ``"at_most_once"``: an upload of unknown outcome raises
            :class:`~meeting_async.errors.UploadOutcomeUnknown`. ``"at_least_once"``: it is sent
            again when the room is free; the room may show the document twice.
            ``"exactly_once"``: the server is asked whether it has the document
            (``docs/delivery.md``, Exactly once).
        evidence: How to ask that; by default :class:`~meeting_async.evidence.StoredFiles`.
        timeout: Seconds for each call and each job of a batch, everything included, unless it has
            a ``timeout`` of its own. ``None``: no limit.
        lock: How to wait for a locked room.
        retry: How often to retry.
        timeouts: Limits on a single attempt.
        on_event: A plain function that is called with every :class:`~meeting_async.Event`. If it
            raises, the exception is logged and the call goes on.

    Raises:
        ConfigurationError: A setting cannot be used; the error names it.

    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        api_secret: str | bytes | None = None,
        signer: Signer | None = None,
        transport: Transport | None = None,
        room_locks: RoomLocks | None = None,
        default_headers: Mapping[str, str] | None = None,
        max_connections: int = 100,
        allow_plaintext: bool = False,
        **options: Unpack[ClientOptions],
    ) -> None:
        api_secret = hidden(api_secret)  # also from tracebacks with locals
        signer = _signer(api_key, api_secret, signer)
        _refuse_unknown(options, ClientOptions)
        self._options = Options(**options)
        if room_locks is not None:
            fix = "give an object such as RedisRoomLocks(redis_client)"
            _check_object("room_locks", room_locks, "acquire", fix)
        self._session = Session(
            base=requests.auth_base(base_url, allow_plaintext=allow_plaintext),
            signer=signer,
            transport=_transport(transport),
            locks=room_locks,
            default_headers=requests.default_header_pairs(default_headers),
            max_connections=_count("max_connections", max_connections),
        )
        self._is_derived = False

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, **settings: Unpack[ClientSettings]
    ) -> Self:
        """Make a client from ``MEETING_*`` variables; ``settings`` override them.

        ``MEETING_BASE_URL``, ``MEETING_API_KEY``, ``MEETING_API_SECRET`` or
        ``MEETING_API_SECRET_FILE``, ``MEETING_MAX_SIZE_WHITEBOARD_FILE`` (bytes or ``30MiB``),
        ``MEETING_TIMEOUT`` (seconds), ``MEETING_DELIVERY``, ``MEETING_ALLOW_PLAINTEXT`` (``1`` or
        ``0``).
        ``MEETING_CA_FILE`` (a PEM file with the certificate of your authority),
        ``MEETING_CERT_FILE`` (one with your client certificate and its key) and ``MEETING_PROXY``
        (``http://host:port``) are ``verify``, ``cert`` and ``proxy`` of the default transport; your
        own ``transport`` replaces them.

        Raises:
            ConfigurationError: Variables are missing (the error names all of them) or unusable.

        """
        # Tracebacks with locals show neither the variables nor the secret among the settings.
        variables = Environment(os.environ if environ is None else environ)
        del environ
        if "api_secret" in settings:
            settings["api_secret"] = hidden(settings["api_secret"])
        _refuse_unknown(settings, ClientSettings)
        check_names(variables)
        signed = ("api_key", "api_secret") if settings.get("signer") is not None else ()
        merged = {**settings_from(variables, given={*settings, *signed}), **settings}
        if merged.get("transport") is None:
            merged["transport"] = _transport_from_env(variables)
        needed = ["base_url"] if merged.get("signer") else ["base_url", "api_key", "api_secret"]
        missing = [f"MEETING_{name.upper()}" for name in needed if merged.get(name) is None]
        if missing:
            names = ", ".join(missing)
            problem = "is not set" if len(missing) == 1 else "are not set"
            fix = f"export what is missing{nearly_set(variables, missing)}"
            raise ConfigurationError(names, "", problem, fix)
        return cls(**merged)

    def with_options(self, **changes: Unpack[ClientOptions]) -> Self:
        """Return a client with other options. Both share connections and retry budget.

        Close the original, not the result.

        Raises:
            ConfigurationError: An option cannot be used; the error names it.

        """
        _refuse_unknown(changes, ClientOptions)
        derived = type(self).__new__(type(self))
        derived.__dict__.update(self.__dict__)
        derived._options = attrs.evolve(self._options, **changes)
        derived._is_derived = True
        return derived

    # --- endpoints -------------------------------------------------------------------------------

    async def get_active_room_info(
        self,
        room_id: str,
        *,
        max_reply_bytes: int = json_call.MAX_ROOM_BYTES,
        timeout: float | EllipsisType | None = ...,
        on_event: OnEvent | None = None,
    ) -> ActiveRoom:
        """Return the information about an active room (``docs/interface.md``, Active room).

        Args:
            room_id: The room.
            max_reply_bytes: Largest reply in bytes, 16 MiB by default: a known server sends some
                780 bytes for each participant.
            timeout: Seconds for everything, retries included, instead of the client's ``timeout``;
                ``None``: no limit.
            on_event: Called with the events of this call, instead of the client's.

        Raises:
            InvalidInput: The room id cannot be sent.
            RoomNotFound, RoomNotActive, AuthenticationFailed, ServerFailed: The server's answer.
            UnexpectedReply: The reply is not from a meeting server.
            TransportError, Throttled: Every attempt failed.
            DeadlineExceeded: The timeout ended the call.

        """
        call = self._call(requests.ACTIVE_ROOM_INFO, room_id, on_event, timeout)
        return await json_call.active_room(call, room_id, max_reply_bytes=max_reply_bytes)

    async def wait_until_active(
        self,
        room_id: str,
        timeout: float | EllipsisType = ...,
        *,
        on_event: OnEvent | None = None,
    ) -> ActiveRoom:
        """Ask until the room is active: every 2 s at first, later every 30 s, faster at the end.

        Args:
            room_id: The room.
            timeout: Seconds for everything; needed, if the client has no ``timeout``.
            on_event: Called with the events of this call, instead of the client's.

        Raises:
            DeadlineExceeded: It did not become active in time.
            MeetingError: As :meth:`get_active_room_info`, except RoomNotFound and RoomNotActive.

        """
        call = self._call(requests.ACTIVE_ROOM_INFO, room_id, on_event, timeout)
        return await json_call.wait_until_active(call, room_id)

    async def upload_whiteboard_file(
        self,
        room_id: str,
        document: Document | Uploadable,
        *,
        filename: str | None = None,
        content_type: str | None = None,
        max_wait: float | None = None,
        timeout: float | EllipsisType | None = ...,
        on_event: OnEvent | None = None,
    ) -> UploadReceipt:
        """Put a document into the whiteboard files of an active room.

        Waits while the room is locked, by another upload of this application or by another
        client (``docs/interface.md``, Upload). Success means accepted: the server may still be
        converting.

        Args:
            room_id: An active room with a presenter in it.
            document: A path, bytes, an open binary file, an upload of a web framework, an iterator
                or async iterable of bytes, or a :class:`~meeting_async.Document`, also for a link
                (``Document.from_link(url)``).
            filename: Name that the room shows, instead of the document's own name; required if
                the document has none.
            content_type: Media type, instead of the document's own or the one guessed from the
                name.
            max_wait: Longest time in seconds that the upload waits because its room is locked,
                instead of ``LockPolicy.max_wait``; 0 never waits.
            timeout: Seconds for everything: queue, waits, reading the document, attempts; instead
                of the client's ``timeout``. ``None``: no limit.
            on_event: Called with the events of this call, instead of the client's.

        Raises:
            InvalidInput, DocumentError, TypeError: Found before anything was sent (or, for a
                document that changes meanwhile, before its form was complete).
            RequestRefused, ProcessingFailed: The server's answer.
            UnexpectedReply: The reply is not from a meeting server; nothing reached the room.
            RoomBusy: The room was locked for longer than ``max_wait``.
            RoomLocksUnavailable: The room locks of several processes do not answer.
            TransportError, Throttled: The document was never sent completely.
            DeadlineExceeded: The timeout ended the call before the document was sent completely.
            UploadOutcomeUnknown: The document was sent and no valid answer came back.

        """
        return await upload_document(
            self._call(requests.UPLOAD_WHITEBOARD_FILE, room_id, on_event, timeout),
            room_id,
            document,
            filename=filename,
            content_type=content_type,
            max_wait=max_wait,
        )

    def upload_many(
        self,
        jobs: Jobs,
        *,
        concurrency: int = 32,
        journal: str | os.PathLike[str] | Journal | None = None,
        delivery: Delivery | None = None,
        once_per: OncePer = "session",
        wait_active: float | None = None,
        max_wait: float | None = None,
        timeout: float | EllipsisType | None = ...,
        window: int = 10_000,
        keep_outcomes: bool = True,
        on_event: OnEvent | None = None,
    ) -> Batch:
        """Upload many documents to many rooms: ``async with client.upload_many(jobs) as batch``.

        The documents of a room are sent one after another, in the order of the input; several
        rooms are served at the same time. Iterate over the batch to get the outcomes as they come,
        or ``await batch.wait()``; ``batch.report`` has an outcome for every job that was read. A
        job that fails never raises and does not affect other jobs, with two exceptions. An error
        that every job would have, such as a wrong key, is found before a document is sent, and all
        other jobs are skipped. If a room does not exist or is not active, the rest of its
        jobs is skipped. Leaving the block waits for all jobs, unless there is an exception in it
        or :meth:`Batch.stop` was called.

        Args:
            jobs: An iterable or async iterable of :class:`~meeting_async.UploadJob`; it is read as
                needed.
            concurrency: Uploads in flight at the same time. An upload that waits for its room does
                not count, and holds no connection and no open file.
            journal: Path of an SQLite file that makes the batch resumable, or your own journal.
                Before a document's closing boundary is sent, the journal records on disk that the
                document may arrive. When the same jobs are run again, accepted documents are
                skipped, unsent ones are sent, unknown ones are reported.
            delivery: Instead of the client's ``delivery``. It also says what becomes of documents
                that an earlier run has left *unknown*.
            once_per: What the journal counts as delivered: ``"session"``: a document that was sent
                to another session of its room than runs there now is due again (one check for each
                such room); ``"room"``: it is not.
            wait_active: Seconds to wait for a room that does not exist or is not active yet,
                instead of skipping its documents.
            max_wait: Longest time in seconds that a job waits because its room is locked; see
                :meth:`upload_whiteboard_file`.
            timeout: Seconds for each job, from its start, instead of the client's ``timeout``;
                ``None``: no limit.
            window: Largest number of jobs that are read ahead, including those whose outcome you
                have not read yet.
            keep_outcomes: Keep all outcomes in ``batch.report.outcomes``.
            on_event: Called with the events of this batch, instead of the client's.

        Raises:
            InvalidInput: An argument cannot be used.
            TypeError: ``jobs`` is not iterable.

        """
        from meeting_async._batch.batch import Batch  # noqa: PLC0415 - sqlite3 loads when needed
        from meeting_async._batch.options import BatchOptions  # noqa: PLC0415 - as above

        options = self._options
        if on_event is not None:
            options = attrs.evolve(options, on_event=on_event)
        batch_options = BatchOptions(
            concurrency=concurrency,
            journal=journal,
            delivery=delivery,
            once_per=once_per,
            wait_active=wait_active,
            max_wait=max_wait,
            timeout=self._limit(timeout),
            window=window,
            keep_outcomes=keep_outcomes,
        )
        return Batch(self._session, options, jobs, batch_options)

    async def call(
        self,
        path: str,
        payload: Mapping[str, Any] | None = None,
        *,
        idempotent: bool = False,
        max_reply_bytes: int = MAX_REPLY_BYTES,
        timeout: float | EllipsisType | None = ...,
        on_event: OnEvent | None = None,
    ) -> dict[str, Any]:
        """Make any other signed JSON call, for example ``call("room/endRoom", {"room_id": …})``.

        ``docs/room-life.md`` shows how to create a room, let people join, and end it.

        Args:
            path: The method path below ``/auth``.
            payload: The JSON object to send.
            idempotent: Whether the call may be retried when its outcome is unknown. Otherwise it is
                retried only if it was never sent, or was rate-limited.
            max_reply_bytes: Largest reply in bytes, 1 MiB by default.
            timeout: Seconds for everything, retries included, instead of the client's ``timeout``;
                ``None``: no limit.
            on_event: Called with the events of this call, instead of the client's.

        Returns:
            The JSON object of the reply.

        Raises:
            MeetingError: As :meth:`get_active_room_info`. A reply with ``status: false`` raises.

        """
        kind = RetrySafety.IDEMPOTENT if idempotent else RetrySafety.NON_IDEMPOTENT
        call = self._call(str(path), json_call.room_in(payload), on_event, timeout)
        given = {} if payload is None else payload
        answer = await json_call.call_json(call, path, given, kind, max_reply_bytes=max_reply_bytes)
        return dict(answer.payload or {})

    async def check(
        self, room_id: str | None = None, *, timeout: float | EllipsisType | None = ...
    ) -> ServerCheck:
        """Check the way to the server, key and secret, and a room, for example for ``/healthz``.

        Each step is tried once, for at most 5 s, up to the first that fails. A network or a server
        that fails is a finding, not an exception.

        Args:
            room_id: A room to check, too: whether it is active and free. Write it exactly as it was
                created: a known server ends a room that is asked for in another case
                (``docs/interface.md``, Seen on a running server).
            timeout: Seconds for all steps, instead of the client's ``timeout``; ``None``: no limit
                but those of the steps. The step that it ends has failed.

        Raises:
            InvalidInput: The room id cannot be sent.
            ConfigurationError: Certificates cannot be loaded.

        """
        from meeting_async._delivery.server_check import check_server  # noqa: PLC0415 - used seldom

        return await check_server(self._session, room_id, timeout=self._limit(timeout))

    def _call(
        self,
        operation: str,
        room_id: object,
        on_event: OnEvent | None,
        timeout: float | EllipsisType | None,
    ) -> Call:
        return new_call(
            self._session,
            self._options,
            operation,
            room_id,
            on_event=on_event,
            timeout=self._limit(timeout),
        )

    def _limit(self, timeout: float | EllipsisType | None) -> float | None:
        """Return the limit of a call: its own, or that of the client."""
        return self._options.timeout if timeout is ... else timeout

    # --- lifetime --------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the connections. Does nothing for a client made by :meth:`with_options`."""
        if not self._is_derived:
            await self._session.aclose()

    def __enter__(self) -> NoReturn:
        needs_async_with(self)

    def __exit__(self, *_: object) -> NoReturn:
        needs_async_with(self)

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
        session = getattr(self, "_session", None)  # not there yet while a setting is refused
        if session is None:
            return "<MeetingClient, not made>"
        return f"<MeetingClient for {session.base}{', closed' if session.closed else ''}>"


def _signer(api_key: str | None, api_secret: str | bytes | None, signer: Signer | None) -> Signer:
    if signer is not None:
        if api_key is not None or api_secret is not None:
            problem = "is given together with api_key or api_secret"
            raise ConfigurationError("signer", "(hidden)", problem, "give one of them")
        _check_object("signer", signer, "sign", "give an object such as HmacSigner(key, secret)")
        return signer
    if api_key is None or api_secret is None:
        missing = "api_key" if api_key is None else "api_secret"
        raise ConfigurationError(
            missing, "None", "is missing", "give api_key and api_secret, or a signer"
        )
    return HmacSigner(api_key, api_secret)


def _check_object(field: str, value: object, method: str, fix: str) -> None:
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        value = value.__name__ if isinstance(value, type) else f"a {type(value).__name__}"
        raise ConfigurationError(field, value, f"has no method {method}()", fix)


def _count(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        problem = "is not an integer of at least 1"
        raise ConfigurationError(field, short_repr(value), problem, "give a number such as 100")
    return value


def _transport(transport: Transport | None) -> Transport:
    if transport is None:
        return HttpTransport()
    if hasattr(transport, "build_request") or not callable(getattr(transport, "aclose", None)):
        fix = "wrap an HTTP client: HttpxTransport(client), from meeting_async.transports"
        raise ConfigurationError(
            "transport", short_repr(transport), "is not a transport of this library", fix
        )
    return transport


def _transport_from_env(variables: Environment) -> HttpTransport:
    """Make the default transport; no traceback shows the proxy, which may have a password."""
    given = certificates(variables)
    try:
        return HttpTransport(**given, proxy=variables.get("MEETING_PROXY") or None)
    except ConfigurationError as error:
        failure = attrs.evolve(error, field="MEETING_PROXY")
    raise failure


def _refuse_unknown(given: Mapping[str, Any], known: type) -> None:
    names = sorted(known.__optional_keys__)  # type: ignore[attr-defined]  # a TypedDict has them
    for name in given:
        if name not in names:
            meant = nearest(name, names)
            fix = f"did you mean {meant}?" if meant else f"use one of {', '.join(names)}"
            is_secret = re.search("key|secret|api_", f"{name} {meant}")
            value = "(hidden)" if is_secret else short_repr(given[name])
            raise ConfigurationError(name, value, "is not a setting", fix)
