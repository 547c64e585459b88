"""The meeting server: what a test or a developer holds in the hand."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import MappingProxyType

import anyio
import anyio.to_thread

from meeting_async.testing._application import application
from meeting_async.testing._faults import Script
from meeting_async.testing._files import ACCEPTED_KINDS
from meeting_async.testing._messages import Receive, Scope, Send
from meeting_async.testing._rooms import Room
from meeting_async.testing._settings import Settings
from meeting_async.testing._sockets import listen, serving_in_thread, url_of
from meeting_async.testing._state import RecordedRequest, RequestLog, State


class Running(AbstractContextManager[str], AbstractAsyncContextManager[str]):
    """A server that runs during a ``with`` or an ``async with`` block, whose value is its URL."""

    def __init__(self, running: AbstractContextManager[str]) -> None:
        self._running = running

    def __enter__(self) -> str:
        return self._running.__enter__()

    def __exit__(self, *_: object) -> None:
        self._running.__exit__(None, None, None)

    async def __aenter__(self) -> str:
        return self._running.__enter__()

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):  # it waits for the server's thread
            await anyio.to_thread.run_sync(self._running.__exit__, None, None, None)


class MeetingServer(Script):
    """A web-meeting server for development and tests, with rooms, locks and a whiteboard.

    It is an ASGI application: in process it runs in the caller's event loop, asyncio or trio, on
    that loop's clock, virtual time included. :meth:`run` puts it on a real socket in a thread of
    its own, on the monotonic clock; from then on all its times are that clock's.

    Args:
        api_key: The key that clients send.
        api_secret: The secret that clients sign with.
        max_size_whiteboard_file: Longest document in bytes; one of this size is taken.
        max_body_size: Longest body of a request in bytes. Above it the answer is a plain 413
            before the body was read, and the connection is closed.
        lock_seconds: Longest time for which an upload holds its room's lock.
        processing_seconds: How long a conversion takes; it times out with the lock.
        reply_after: After so many seconds an upload is answered 200 though its conversion goes on.
            ``None``: the answer waits for the end.
        presenter_required: Refuse uploads to rooms without a presenter, as the interface says
            (``docs/interface.md``, Upload). The server seen does not look for one.
        strict_room_ids: Refuse uploads to rooms whose ids have other characters than letters,
            digits, ``-`` and ``_``, as the server seen does.
        accepted_kinds: Kinds of files that are converted, told by content. Others are refused, or
            their conversion fails, as the server seen does.
        keep_content: Keep the bytes of what rooms receive.
        on_request: Called with each request when it is over, in the server's thread or event loop;
            ``on_request=print`` prints one line per request.

    """

    def __init__(
        self,
        *,
        api_key: str = "devkey",
        api_secret: str = "devsecret",  # noqa: S107 - a development default, no secret
        max_size_whiteboard_file: int = 30 * 1024**2,
        max_body_size: int = 50 * 1024**2,
        lock_seconds: float = 300.0,
        processing_seconds: float = 0.0,
        reply_after: float | None = None,
        presenter_required: bool = True,
        strict_room_ids: bool = True,
        accepted_kinds: Collection[str] = ACCEPTED_KINDS,
        keep_content: bool = False,
        on_request: Callable[[RecordedRequest], object] | None = None,
    ) -> None:
        settings = Settings(
            api_key=api_key,
            api_secret=api_secret,
            max_size_whiteboard_file=max_size_whiteboard_file,
            max_body_size=max_body_size,
            lock_seconds=lock_seconds,
            processing_seconds=processing_seconds,
            reply_after=reply_after,
            presenter_required=presenter_required,
            strict_room_ids=strict_room_ids,
            accepted_kinds=frozenset(accepted_kinds),
            keep_content=keep_content,
        )
        self._state = State(settings, RequestLog(on_request))
        super().__init__(self._state.faults)
        self._url: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI 3)."""
        await application(self._state, scope, receive, send)

    def __repr__(self) -> str:
        where = self._url or "in process"
        return f"<MeetingServer {where}, {len(self._state.rooms)} rooms>"

    @property
    def settings(self) -> Settings:
        """What the server was configured with."""
        return self._state.settings

    @property
    def api_key(self) -> str:
        """The key that clients send."""
        return self.settings.api_key

    @property
    def api_secret(self) -> str:
        """The secret that clients sign with."""
        return self.settings.api_secret

    @property
    def url(self) -> str:
        """The base URL while the server is on a socket; `RuntimeError` otherwise."""
        if self._url is None:
            raise RuntimeError("the server has no URL: it is not running on a socket")
        return self._url

    @property
    def rooms(self) -> Mapping[str, Room]:
        """All rooms by their id."""
        return MappingProxyType(self._state.rooms)

    @property
    def requests(self) -> list[RecordedRequest]:
        """All requests so far in the order of arrival, those for hosted files included."""
        return self._state.log.snapshot()

    def add_room(
        self,
        room_id: str,
        *,
        active: bool = True,
        presenter: bool = True,
        participants: Iterable[str] = (),
        title: str | None = None,
    ) -> Room:
        """Add a room, by default active with a presenter in it, and return it.

        ``participants`` are the names of further people there; the title defaults to the id.
        """
        if room_id in self._state.rooms:
            raise ValueError(f"there is already a room {room_id!r}")
        room = self._state.room(room_id)
        room.active, room.presenter, room.participants = active, presenter, tuple(participants)
        room.title = room_id if title is None else title
        return room

    def host_file(
        self, name: str, data: bytes, *, content_type: str | None = None, head: bool = True
    ) -> str:
        """Offer ``data`` for download by anybody and return its URL.

        The content type is guessed from the name by default; ``""`` sends none. With ``head``
        false only GET is allowed and HEAD gets 403. Needs a socket (:meth:`run`) for the URL.
        """
        return self.url + self._state.hosted.add(name, data, content_type, head=head)

    def run(self, host: str = "127.0.0.1", port: int = 0) -> Running:
        """Serve on a real socket: ``with server.run() as url``, or ``async with``.

        The server gets a thread of its own. Port 0 is a free one; an address that is in use raises
        `OSError`. At the end, requests that still wait are answered 503 and open connections are
        reset.
        """
        return Running(self._running(host, port))

    def serve_forever(
        self, host: str, port: int, on_ready: Callable[[str], object] = lambda _: None
    ) -> None:
        """Serve until Ctrl-C; ``on_ready`` is called with the base URL."""
        with contextlib.suppress(KeyboardInterrupt), self.run(host, port) as url:
            on_ready(url)
            threading.Event().wait()  # here, and not inside an event loop, signals strike

    @contextlib.contextmanager
    def _running(self, host: str, port: int) -> Iterator[str]:
        if self._url is not None:
            raise RuntimeError(f"the server is already running on {self._url}")
        with listen(host, port) as listener:
            self._state.clock.leave_the_loop()
            self._url = url_of(listener)
            try:
                with serving_in_thread(self, listener):
                    yield self._url
            finally:
                self._url = None
