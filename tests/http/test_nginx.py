"""nginx in front of the meeting server: the table of docs/delivery.md, "Proxies in front".

Each test has the few lines of configuration that it is about. A failing test prints nginx's logs.
"""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest

from meeting_async import Event, LockPolicy, MeetingClient, RetryPolicy, RetryScheduled
from meeting_async.errors import (
    DocumentRefused,
    UploadOutcomeUnknown,
)
from meeting_async.testing import MeetingServer, Room
from meeting_async.transports import HttpTransport
from support.certificates import make_certificate
from support.nginx import Nginx, needs_nginx


@attrs.define
class ProxiedServer:
    """A meeting server that can be stopped and started again, and nginx in front of it."""

    directory: Path
    server: MeetingServer = attrs.field(factory=MeetingServer)
    nginx: Nginx | None = None
    _nginx: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack, init=False)
    _running: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack, init=False)
    port: int = 0

    def start(self) -> None:
        """Start the server, each time on the same port."""
        url = self._running.enter_context(self.server.run(port=self.port))
        self.port = int(url.rpartition(":")[2])

    def stop(self) -> None:
        """Stop the server and cut its connections."""
        self._running.close()

    def front(
        self,
        settings: str = "",
        *,
        location: str = "/",
        to: str = "",
        beside: str = "",
        **more: Any,
    ) -> Nginx:
        """Start nginx with ``settings`` in the location of the server.

        ``beside`` has further lines of the ``server`` block; the rest is for :class:`Nginx`.
        """
        upstream = to or f"http://127.0.0.1:{self.port}"
        block = f"location {location} {{ proxy_pass {upstream}; {settings} }}"
        server = f"{block} {beside}"
        self.nginx = self._nginx.enter_context(Nginx(self.directory, server, **more))
        return self.nginx

    def stop_nginx(self) -> None:
        """Stop nginx."""
        self._nginx.close()

    @property
    def room(self) -> Room:
        """The room of all tests."""
        return self.server.rooms["room01"]

    def requests(self, method: str = "uploadWhiteboardFile") -> list[str | None]:
        """Return the rooms of the requests that the server has seen, by method."""
        path = f"/auth/room/{method}"
        return [request.room_id for request in self.server.requests if request.path == path]


pytestmark = [needs_nginx, pytest.mark.anyio]

SMALL = b"%PDF-1.7\n".ljust(4096, b"%")
LARGE = SMALL.ljust(24 * 1024**2, b"%")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ProxiedServer]:
    """Provide a running server with a room; a test starts nginx itself."""
    site = ProxiedServer(tmp_path)
    site.server.add_room("room01")
    site.start()
    yield site
    site.stop()
    site.stop_nginx()
    if site.nginx:
        print(site.nginx.log())  # noqa: T201 - pytest shows it if the test fails


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """Make a file with certificate and key, and the context of a client that trusts it."""
    key, cert = make_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_text(key.read_text() + cert.read_text())
    return both, ssl.create_default_context(cafile=str(cert))


def client_of(nginx: Nginx, prefix: str = "", **settings: Any) -> MeetingClient:
    """Make a client that does not ask for the room first."""
    usual: dict[str, Any] = {
        "api_key": "devkey",
        "api_secret": "devsecret",
        "retry": RetryPolicy(initial_delay=1.5),  # a server starts faster
        "preflight": False,
    }
    return MeetingClient(nginx.url + prefix, **{**usual, **settings})


def at_retry(then: Callable[[], object]) -> Callable[[Event], None]:
    """Make an observer that begins something in a thread, once, when a retry is scheduled."""
    todo = [then]

    def observe(event: Event) -> None:
        if isinstance(event, RetryScheduled) and todo:
            threading.Thread(target=todo.pop()).start()

    return observe


async def upload(client: MeetingClient, content: bytes = SMALL) -> list[str]:
    """Upload and return the verdicts of all attempts."""
    receipt = await client.upload_whiteboard_file("room01", content, filename="deck.pdf")
    return [attempt.verdict for attempt in receipt.attempts]


async def lost(client: MeetingClient, content: bytes = SMALL) -> UploadOutcomeUnknown:
    """Upload, and return the error of an unknown outcome after one attempt."""
    with pytest.raises(UploadOutcomeUnknown) as caught:
        await upload(client, content)
    assert [attempt.verdict for attempt in caught.value.attempts] == ["unknown"]
    return caught.value


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - the server runs in a thread, without events
            await anyio.sleep(0.02)


async def in_thread(function: Callable[[], object]) -> None:
    """Call a function that blocks, such as stopping a server."""
    await anyio.to_thread.run_sync(function)


# --- 504: nginx times out, the server goes on ----------------------------------------------------


async def test_504_while_the_server_goes_on_is_unknown(site: ProxiedServer) -> None:
    """The document appears although nginx gave up; it is sent once."""
    site.room.processing_seconds = 1.3
    async with client_of(site.front("proxy_read_timeout 1s;")) as client:
        error = await lost(client)
    assert "504" in error.reason
    assert error.bytes_sent == error.size == len(SMALL)
    await until(lambda: site.room.received)
    assert site.requests() == ["room01"]


# --- 413: nginx has a limit of its own -----------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("closing", ["always", "off"])
@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
async def test_413(
    site: ProxiedServer,
    content: bytes,
    closing: str,
    tls: bool,
    certificate: tuple[Path, ssl.SSLContext],
) -> None:
    """Nginx knows it from Content-Length, and the caller before half of the document is sent."""
    limits = f"client_max_body_size 1k; lingering_close {closing};"
    nginx = site.front(limits, certificate=certificate[0] if tls else None)
    async with client_of(nginx, transport=HttpTransport(verify=certificate[1])) as client:
        with pytest.raises(DocumentRefused) as caught:
            await upload(client, content)
    assert (caught.value.status, caught.value.status_code) == (413, None)
    (attempt,) = caught.value.attempts
    assert attempt.bytes_sent < len(LARGE) / 2
    assert site.requests() == []


# --- 502: the server restarts --------------------------------------------------------------------

AGAIN: dict[str, Any] = {"delivery": "at_least_once", "lock": LockPolicy(window=0.5)}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("settings", "how", "verdicts"),
    [
        ("", {}, None),  # it is not the server's record, so nobody knows
        ("proxy_request_buffering off;", {}, ("partial", "accepted")),  # seen early
        ("", AGAIN, ("unknown", "accepted")),  # when the lock of the first must have ended
    ],
)
async def test_502(
    site: ProxiedServer, settings: str, how: dict[str, Any], verdicts: tuple[str, str] | None
) -> None:
    """Unknown if the document was out, and repeated if it was not, or if that is wanted."""
    nginx = site.front(settings)
    await in_thread(site.stop)
    async with client_of(nginx, on_event=at_retry(site.start), **how) as client:
        if verdicts is None:
            assert "502" in (await lost(client)).reason
            await in_thread(site.start)
            assert await upload(client) == ["accepted"]
        else:
            found = await upload(client, LARGE)
            assert (found[0], found[-1]) == verdicts
    assert len(site.room.received) == 1


# --- 503 and 429: nginx limits requests ----------------------------------------------------------

LIMIT = "limit_req_zone $binary_remote_addr zone=one:1m rate=2r/s;"
WITH_HINT = "location @later { add_header Retry-After 1 always; return 503; }"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("settings", "content", "verdict"),
    [
        ("limit_req_status 429;", SMALL, "throttled"),
        ("limit_req_status 429;", LARGE, "throttled"),
        ("error_page 503 @later;", SMALL, None),
        ("error_page 503 @later;", LARGE, "throttled"),
        ("", SMALL, None),
        ("", LARGE, "partial"),
    ],
)
async def test_a_limit_of_requests(
    site: ProxiedServer, settings: str, content: bytes, verdict: str | None
) -> None:
    """429 is waited for; 503 only before the whole document is out, else nobody knows."""
    nginx = site.front(f"limit_req zone=one; {settings}", http=LIMIT, beside=WITH_HINT)
    async with client_of(nginx) as client:
        await client.get_active_room_info("room01")
        if verdict is None:
            assert "503" in (await lost(client, content)).reason
        else:
            assert await upload(client, content) == [verdict, "accepted"]
    assert len(site.requests()) == (verdict is not None)


# --- connections, ways to put it together --------------------------------------------------------


KEPT_UPSTREAM = 'proxy_http_version 1.1; proxy_set_header Connection "";'


@pytest.mark.nightly
@pytest.mark.parametrize(
    "settings",
    [
        "",
        "proxy_request_buffering off; proxy_http_version 1.0;",
        f"proxy_request_buffering off; {KEPT_UPSTREAM}",
        f"proxy_buffering off; client_body_buffer_size 1k; {KEPT_UPSTREAM}",
    ],
    ids=["usual", "streaming to HTTP/1.0", "streaming", "no buffers"],
)
async def test_documents_arrive_whole(site: ProxiedServer, settings: str) -> None:
    """However nginx passes on a body, the same bytes arrive, and 409 and 200 come back."""
    site.server.reply_next(409, path="/room/uploadWhiteboardFile")
    http = f"upstream meet {{ server 127.0.0.1:{site.port}; keepalive 4; }}"
    content = LARGE[: 3 * 1024**2 + 1]
    async with client_of(site.front(settings, to="http://meet", http=http)) as client:
        assert await upload(client, content) == ["busy", "accepted"]
    (received,) = site.room.received
    assert received.sha256 == hashlib.sha256(content).hexdigest()
