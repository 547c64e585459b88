"""The meeting server for tests and development."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
import attrs
from anyio.from_thread import start_blocking_portal

from meeting_async.testing._application import RecordedRequest, State, respond_in_process
from meeting_async.testing._faults import Script
from meeting_async.testing._files import media_type_of
from meeting_async.testing._messages import Reply
from meeting_async.testing._rooms import Room, Rooms
from meeting_async.testing._settings import Settings
from meeting_async.testing._sockets import listen, serve, url_of

LOOK_SECONDS = 0.5
"""Seconds after which a server on Windows notices Ctrl-Break; Ctrl-C ends a sleep there, too."""


class Running(contextlib.AbstractContextManager[str], contextlib.AbstractAsyncContextManager[str]):
    """A server that runs during a ``with`` or an ``async with`` block, whose value is its URL."""

    def __init__(self, running: contextlib.AbstractContextManager[str]) -> None:
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


@attrs.define(eq=False, repr=False, kw_only=True)
class MeetingServer(Settings, Script):
    """A web-meeting server for development and tests, with rooms, locks and a whiteboard.

    It is an ASGI application. In process it runs in the caller's event loop, asyncio or trio, with
    that loop's clock, virtual time included. :meth:`run` serves it on a real socket, in its own
    thread; from then on it uses the monotonic clock.

    All arguments are also attributes, and all except ``on_request`` may be set at any time.

    Args:
        api_key: The key that clients send.
        api_secret: The secret that clients sign with.
        max_size_whiteboard_file: Largest document that is accepted, in bytes.
        max_body_size: Largest body of a request in bytes. For a larger one the answer is a plain
            413 before the body is read, and the connection is closed.
        lock_seconds: Longest time for which an upload locks its room.
        processing_seconds: Duration of a conversion; it fails if it takes longer than the lock.
        reply_after: Answer 200 this many seconds after the document has arrived, while the
            conversion goes on. ``None``: at the end of the conversion.
        presenter_required: Refuse uploads to rooms without a presenter, as the interface asks for
            one (``docs/interface.md``, Upload). plugNmeet-server 2.4 does not look for one.
        strict_room_ids: Refuse uploads to rooms whose ids have characters other than letters,
            digits, ``-`` and ``_``, as plugNmeet-server does.
        accepted_kinds: Kinds of files that are converted, detected from the content. Others are
            refused, or their conversion fails, as on plugNmeet-server.
        strict_pdf: Fail PDFs without any object, too, as on plugNmeet-server. By default
            ``b"%PDF-1.7"`` is a document.
        office_documents_clash: Fail an office document if another one is in conversion at the same
            moment, in any room, as on plugNmeet-server. With ``processing_seconds=0`` none is.
        mixes_up_rooms: List an upload in the room of the form before it, with the answer 200,
            unless ``getActiveRoomInfo`` was asked for its own room since the start.
            plugNmeet-server 2.4 may do so after a restart. Each address of :meth:`run` is an
            instance with its own start.
        stored_files: What ``/download/uploadedFile/{sid}/{name}`` finds. ``"shared"``: each
            document that was received whole. ``"separate"``: those that this instance has received
            since its start. ``"absent"``: none. ``"redirected"``: a redirect (307).
        stored_files_after: Seconds after which a document is found there.
        stored_files_clock: Seconds by which the clock of ``Last-Modified`` is ahead of ``Date``.
        holds_forms: Seconds for which a proxy keeps a whole form with a document before the server
            gets it, even if the client has disconnected.
        keep_content: Keep the bytes of documents.
        on_request: Called with each request when it has ended, in the server's thread or event
            loop; ``on_request=print`` prints one line per request.

    """

    on_request: Callable[[RecordedRequest], object] | None = None
    _state: State = attrs.field(init=False)
    _url: str | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._state = State(Rooms(self), self._faults, self.on_request or (lambda _: None))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request (ASGI 3)."""
        await respond_in_process(self._state, scope, receive, send)

    def __repr__(self) -> str:
        return f"<MeetingServer {self._url or 'in process'}, {len(self.rooms)} rooms>"

    @property
    def url(self) -> str:
        """The base URL while the server is on a socket; `RuntimeError` otherwise."""
        if self._url is None:
            raise RuntimeError("the server has no URL: it is not running on a socket")
        return self._url

    @property
    def rooms(self) -> Mapping[str, Room]:
        """All rooms by their id."""
        return self._state.rooms.by_id

    @property
    def requests(self) -> list[RecordedRequest]:
        """All requests so far in order of arrival, also those for hosted files."""
        return [*self._state.requests]

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

        ``participants`` are the names of other users in it; the title defaults to the id. A room
        that has ended gets a new session.
        """
        room = self.rooms.get(room_id)
        if room and not room.has_ended():
            raise ValueError(f"there is already a room {room_id!r}")
        room = room or self._state.rooms.get(room_id)
        room.open(room_id)
        room.active, room.presenter, room.participants = active, presenter, tuple(participants)
        room.title = room_id if title is None else title
        return room

    def host_file(
        self, name: str, data: bytes, *, content_type: str | None = None, head: bool = True
    ) -> str:
        """Make ``data`` available for download and return its URL.

        The content type is guessed from the name by default; ``""`` sends none. With ``head``
        false only GET is allowed and HEAD gets 403. Needs a socket (:meth:`run`) for the URL.
        """
        kind = media_type_of(name) if content_type is None else content_type
        reply = Reply(200, data, (("content-type", kind),) if kind else ())
        path, files = f"/files/{len(self._state.files)}/{name}", self._state.files
        url = self.url + quote(path)
        files["GET", path], files["HEAD", path] = reply, reply if head else Reply.plain(403)
        return url

    def run(self, host: str | Sequence[str] = "127.0.0.1", port: int = 0) -> Running:
        """Serve on a real socket: ``with server.run() as url``, or ``async with``.

        The server runs in its own thread. Port 0 means a free port; an address in use raises
        `OSError`. At the end waiting requests get 503, and open connections are reset.

        Several hosts are instances of one server, as behind a balancer: they share rooms and locks,
        and have the same port. The value is the URL of the first.
        """
        return Running(self._running([host] if isinstance(host, str) else list(host), port))

    def serve_forever(
        self, host: str, port: int, on_ready: Callable[[str], object] = lambda _: None
    ) -> None:
        """Serve until Ctrl-C; ``on_ready`` is called with the base URL."""
        with contextlib.suppress(KeyboardInterrupt), self.run(host, port) as url:
            on_ready(url)
            while True:  # Ctrl-C is raised here, not in an event loop
                time.sleep(LOOK_SECONDS)

    @contextlib.contextmanager
    def _running(self, hosts: Sequence[str], port: int) -> Iterator[str]:
        if self._url is not None:
            raise RuntimeError(f"the server is already running on {self._url}")
        with contextlib.ExitStack() as stack:
            listeners: list[socket.socket] = []
            for host in hosts:
                listeners.append(stack.enter_context(listen(host, port)))
                port = listeners[0].getsockname()[1]
            portal = stack.enter_context(start_blocking_portal())
            portal.call(_name_thread)
            self._state.rooms.clock.is_threaded = True
            serving = [
                portal.start_task_soon(serve, self._state.instance(), one) for one in listeners
            ]
            self._url = url_of(listeners[0])
            try:
                yield self._url
            finally:
                self._url = None
                for one in serving:
                    one.cancel()


def _name_thread() -> None:
    threading.current_thread().name = "meeting-server"
