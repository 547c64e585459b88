"""The meeting server: what a test or a developer holds in the hand."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from starlette.types import Receive, Scope, Send

from ._application import application
from ._requests import RecordedRequest
from ._rooms import Room
from ._script import Script
from ._serving import serve_here, serve_in_thread
from ._settings import Settings
from ._state import State


class MeetingServer(Script):
    """A web-meeting server for development and tests, with rooms, locks and a whiteboard.

    Sizes are bytes, times are seconds. ``max_size_whiteboard_file`` limits a document (equality is
    allowed), ``max_body_size`` the whole body of a request: above it the answer is a plain 413
    before the body was read, and the connection is closed. A room's lock is held for at most
    ``lock_seconds``; a conversion takes ``processing_seconds`` and times out with the lock. After
    ``reply_after`` seconds an upload is answered 200 though its conversion goes on (None: the
    answer waits for the end). ``keep_content`` keeps the bytes of what rooms receive.

    The server is an ASGI application: in process it runs in the caller's event loop, asyncio or
    trio, on that loop's clock, virtual time included. `run` puts it on a real socket in a thread
    of its own, on the monotonic clock; from then on all its times are that clock's.
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
        keep_content: bool = False,
    ) -> None:
        self._state = State(
            Settings(
                api_key=api_key,
                api_secret=api_secret,
                max_size_whiteboard_file=max_size_whiteboard_file,
                max_body_size=max_body_size,
                lock_seconds=lock_seconds,
                processing_seconds=processing_seconds,
                reply_after=reply_after,
                keep_content=keep_content,
            )
        )
        super().__init__(self._state.faults)
        self._app = application(self._state)
        self._url: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request (ASGI 3)."""
        await self._app(scope, receive, send)

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
        room = self._state.new_room(room_id, title=title)
        room.active, room.presenter, room.participants = active, presenter, tuple(participants)
        self._state.rooms[room_id] = room
        return room

    def host_file(
        self, name: str, data: bytes, *, content_type: str | None = None, head: bool = True
    ) -> str:
        """Offer ``data`` for download by anybody and return its URL.

        The content type is guessed from the name by default; ``""`` sends none. With ``head``
        false only GET is allowed and HEAD gets 403. Needs a socket (`run`) for the URL.
        """
        return self.url + self._state.hosted.add(name, data, content_type, head=head)

    @contextlib.contextmanager
    def run(self, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
        """Serve on a real socket while the block runs and yield the base URL.

        The server gets a thread of its own, so the caller may be sync, asyncio or trio code. Port
        0 is a free one; an address that is in use raises `OSError`. At the end, requests that
        still wait are answered 503 and open connections are cut.
        """
        with self._serving(), serve_in_thread(self, host, port) as url:
            self._url = url
            yield url

    def serve_forever(
        self, host: str, port: int, on_ready: Callable[[str], object] = lambda _: None
    ) -> None:
        """Serve in this thread until Ctrl-C; ``on_ready`` is called with the base URL."""

        def ready(url: str) -> None:
            self._url = url
            on_ready(url)

        with self._serving():
            serve_here(self, host, port, ready)

    @contextlib.contextmanager
    def _serving(self) -> Iterator[None]:
        if self._url is not None:
            raise RuntimeError(f"the server is already running on {self._url}")
        self._state.clock.leave_the_loop()
        try:
            yield
        finally:
            self._url = None
