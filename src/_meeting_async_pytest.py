"""The pytest plugin: a meeting server, a client that speaks to it, virtual time.

pytest imports this file in every run of every project that has the package installed, and before
coverage is measured. So it stands outside the package, and imports the package, its extra
``testing`` and trio only when a test asks for a fixture.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    import httpx

    from meeting_async import MeetingClient
    from meeting_async.testing import MeetingServer
    from meeting_async.transports import Reply, Request

MARKER = (
    "meeting_server(*, rooms=('room01',), in_process=False, **settings): the ids of the active "
    "rooms of the meeting_server fixture; whether it runs in the test's own event loop instead of "
    "on a socket; and arguments of meeting_async.testing.MeetingServer. "
    "The marker closest to the test wins."
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture
def meeting_server(request: pytest.FixtureRequest) -> Iterator[MeetingServer]:
    """Run a meeting server for this test, on a loopback socket, with the active room "room01".

    ``@pytest.mark.meeting_server(...)`` changes that. In process, and so without a URL, it also
    runs for a test that uses ``in_virtual_time``: it then follows the event loop's clock.
    """
    testing = _testing()
    settings = _marked(request)
    rooms = settings.pop("rooms", ("room01",))
    in_process = settings.pop("in_process", "in_virtual_time" in request.fixturenames)
    try:
        server: MeetingServer = testing.MeetingServer(**settings)
        for room_id in rooms:
            server.add_room(room_id)
    except (TypeError, ValueError) as error:
        _fail(f"@pytest.mark.meeting_server: {error}")
    with contextlib.nullcontext() if in_process else server.run():
        yield server


@pytest.fixture
def meeting_client(meeting_server: MeetingServer) -> Iterator[MeetingClient]:
    """Make a client of ``meeting_server``, closed after the test, for asyncio and trio.

    It has room locks of its own, so that other clients of the event loop do not affect it.
    """
    from meeting_async import MeetingClient  # noqa: PLC0415 - see above
    from meeting_async.rooms import LocalRoomLocks  # noqa: PLC0415 - see above

    base_url, transport = _way_to(meeting_server)
    client = MeetingClient(
        base_url,
        api_key=meeting_server.api_key,
        api_secret=meeting_server.api_secret,
        transport=transport,
        room_locks=LocalRoomLocks(),
    )
    yield client
    # The test's event loop has ended or stands still; `_Transport` never waits for anything here.
    with contextlib.suppress(StopIteration):
        client.aclose().send(None)


@pytest.fixture
def in_virtual_time(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Run a coroutine function with its arguments on a clock that jumps to what happens next.

    On asyncio, or on the backend of the test's ``anyio_backend``. Everything must happen on that
    one event loop: documents are bytes, and the server is in process. What waits for a thread or a
    socket takes no time on such a clock.
    """
    run = _testing().run_in_virtual_time
    backend = "asyncio"
    if "anyio_backend" in request.fixturenames:
        backend = request.getfixturevalue("anyio_backend_name")
    if backend == "trio":
        try:
            import trio.testing  # noqa: F401, PLC0415 - see above
        except ImportError:
            _fail("in_virtual_time on trio needs trio: pip install trio")
    return partial(run, backend=backend)


def _fail(problem: str) -> NoReturn:
    """Fail the test with this text alone, without the error that led to it."""
    raise pytest.fail.Exception(problem, pytrace=False) from None


def _testing() -> Any:
    """Import the extra, or fail with what to install."""
    try:
        return importlib.import_module("meeting_async.testing")
    except ImportError as error:
        _fail(str(error))


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the arguments of the markers of a test, its class and its module."""
    settings: dict[str, Any] = {}
    for marker in request.node.iter_markers("meeting_server"):  # the closest comes first
        if marker.args:
            problem = f"takes keyword arguments only, not {marker.args!r}"
            _fail(f"@pytest.mark.meeting_server: {problem}")
        settings = {**marker.kwargs, **settings}
    return settings


def _way_to(server: MeetingServer) -> tuple[str, _Transport]:
    """Return base URL and transport; in process there is no URL, and one name is as good as any."""
    with contextlib.suppress(RuntimeError):
        return server.url, _Transport(None)
    import httpx  # noqa: PLC0415 - see above

    return "http://localhost", _Transport(httpx.AsyncClient(transport=httpx.ASGITransport(server)))


class _Transport:
    """Opens a connection per request, so that none is left behind by the test's event loop.

    A fixture without a loop of its own can then make a client and close it, for every plugin that
    runs asynchronous tests and for tests that run a loop themselves.
    """

    def __init__(self, borrowed: httpx.AsyncClient | None) -> None:
        self._borrowed = borrowed

    async def send(self, request: Request, /) -> Reply:
        from meeting_async import transports  # noqa: PLC0415 - see above

        borrowed = self._borrowed
        transport = transports.HttpxTransport(borrowed) if borrowed else transports.HttpTransport()
        try:
            return await transport.send(request)
        finally:
            await transport.aclose()

    async def aclose(self) -> None:
        """Nothing is open."""
