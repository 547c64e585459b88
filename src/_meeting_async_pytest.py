"""The pytest plugin: a meeting server, a client that speaks to it, virtual time.

pytest imports this file in every run of every project that has the package installed, and before
coverage is measured. So it stands outside the package, and imports the package, its extra
``testing`` and trio only when a test asks for a fixture.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    import httpx

    from meeting_async import MeetingClient, Reply, Request
    from meeting_async.testing import MeetingServer

T = TypeVar("T")

MARKER = (
    "meeting_server(*, rooms=('room01',), in_process=False, **settings): the ids of the active "
    "rooms of the meeting_server fixture; whether it runs in the test's own event loop instead of "
    "on a socket; and arguments of meeting_async.testing.MeetingServer. "
    "What is said closer to the test wins."
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
    try:
        from meeting_async.testing import MeetingServer  # noqa: PLC0415 - see above
    except ImportError as error:
        pytest.fail(str(error), pytrace=False)
    settings = _marked(request)
    rooms = settings.pop("rooms", ("room01",))
    in_process = settings.pop("in_process", "in_virtual_time" in request.fixturenames)
    try:
        server = MeetingServer(**settings)
        for room_id in rooms:
            server.add_room(room_id)
    except (TypeError, ValueError) as error:
        pytest.fail(f"@pytest.mark.meeting_server: {error}", pytrace=False)
    with contextlib.nullcontext() if in_process else server.run():
        yield server


@pytest.fixture
def meeting_client(meeting_server: MeetingServer) -> Iterator[MeetingClient]:
    """Make a client of ``meeting_server``, closed after the test, for asyncio and trio.

    It has a turnstile of its own, so that no room is shut that an earlier test of the same event
    loop left with an unknown outcome.
    """
    from meeting_async import MeetingClient, Turnstile  # noqa: PLC0415 - see above

    base_url, transport = _way_to(meeting_server)
    client = MeetingClient(
        base_url,
        api_key=meeting_server.api_key,
        api_secret=meeting_server.api_secret,
        transport=transport,
        room_gate=Turnstile(),
    )
    yield client
    # The test's event loop has ended or stands still; `_Transport` never waits for anything here.
    with contextlib.suppress(StopIteration):
        client.aclose().send(None)


@pytest.fixture
def in_virtual_time() -> Callable[..., Any]:
    """Run a coroutine function with its arguments on a clock that jumps to what happens next.

    Everything must happen on that one event loop, trio's: documents are bytes, and the server is
    in process. What waits for a thread or a socket takes no time on such a clock.
    """
    try:
        import trio.testing  # noqa: PLC0415 - see above
    except ImportError:
        pytest.fail("in_virtual_time needs trio: pip install trio", pytrace=False)

    def run(function: Callable[..., Awaitable[T]], *args: Any) -> T:
        return trio.run(function, *args, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the arguments of the markers of a test, its class and its module."""
    settings: dict[str, Any] = {}
    for marker in request.node.iter_markers("meeting_server"):  # the closest comes first
        if marker.args:
            problem = f"takes keyword arguments only, not {marker.args!r}"
            pytest.fail(f"@pytest.mark.meeting_server: {problem}", pytrace=False)
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
        from meeting_async import HttpxTransport  # noqa: PLC0415 - see above

        transport = HttpxTransport(self._borrowed)
        try:
            return await transport.send(request)
        finally:
            await transport.aclose()

    async def aclose(self) -> None:
        """Nothing is open."""
