"""nginx in front of the meeting server: the table of docs/operations.md, "Proxies in front".

Each test has the few lines of configuration that it is about; a failing test prints nginx's logs.
In the end the server of several batches, one for each way to it, goes away and comes back.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import random
import ssl
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
import httpx
import pytest

from meeting_async import (
    AttemptStarted,
    BatchReport,
    Event,
    LockPolicy,
    MeetingClient,
    RetryPolicy,
    RetryScheduled,
    UploadJob,
)
from meeting_async.errors import DocumentRefused, RequestRefused, UploadOutcomeUnknown
from meeting_async.testing import MeetingServer, Room
from meeting_async.transports import HttpTransport, HttpxTransport
from support.certificates import make_certificate
from support.proxies import NGINX, Nginx, needs_nginx
from support.sending import until

pytestmark = pytest.mark.anyio


@attrs.define
class ProxiedServer:
    """A meeting server that can be stopped and started again, and nginx in front of it."""

    directory: Path
    server: MeetingServer = attrs.field(factory=MeetingServer)
    nginx: Nginx | None = None
    proxy: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack, init=False)
    _running: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack, init=False)
    port: int = 0

    def start(self) -> None:
        """Start the server, each time on the same port."""
        url = self._running.enter_context(self.server.run(port=self.port))
        self.port = int(url.rpartition(":")[2])

    def stop(self) -> None:
        """Stop the server and cut its connections."""
        self._running.close()

    def front(self, settings: str = "", *, to: str = "", beside: str = "", **more: Any) -> Nginx:
        """Start nginx with ``settings`` in the location of the server.

        ``beside`` has further lines of the ``server`` block; the rest is for :class:`Nginx`.
        """
        upstream = to or f"http://127.0.0.1:{self.port}"
        server = f"location / {{ proxy_pass {upstream}; {settings} }} {beside}"
        self.nginx = self.proxy.enter_context(Nginx(self.directory, server, **more))
        return self.nginx

    @property
    def room(self) -> Room:
        """The room of all tests."""
        return self.server.rooms["room01"]

    def requests(self) -> list[str | None]:
        """Return the rooms of the uploads that the server has seen."""
        path = "/auth/room/uploadWhiteboardFile"
        return [request.room_id for request in self.server.requests if request.path == path]


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
    site.proxy.close()
    if site.nginx:
        print(site.nginx.log())  # noqa: T201 - pytest shows it if the test fails


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """Make a file with certificate and key, and the context of a client that trusts it."""
    key, cert = make_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_text(key.read_text() + cert.read_text())
    return both, ssl.create_default_context(cafile=str(cert))


def client_of(nginx: Nginx, **settings: Any) -> MeetingClient:
    """Make a client that does not ask for the room first."""
    usual: dict[str, Any] = {
        "api_key": "devkey",
        "api_secret": "devsecret",
        "retry": RetryPolicy(initial_delay=1.5),  # a server starts faster
        "preflight": False,
    }
    return MeetingClient(nginx.url, **{**usual, **settings})


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


# --- 504: nginx times out, the server goes on ----------------------------------------------------


@needs_nginx
async def test_a_client_certificate_is_wanted(
    site: ProxiedServer, certificate: tuple[Path, ssl.SSLContext]
) -> None:
    """It says so with a page; with the certificate the document arrives."""
    file, trusting = certificate
    authority = site.directory / "peer.crt"
    wants = f'ssl_verify_client on; ssl_client_certificate "{authority}";'
    nginx = site.front(beside=wants, certificate=file)
    for transport in (
        HttpTransport(verify=trusting),
        HttpTransport(verify=str(authority), cert=str(file)),
    ):
        async with client_of(nginx, transport=transport) as client:
            if transport._origins._cert:
                await client.upload_whiteboard_file("room01", SMALL, filename="deck.pdf")
                continue
            with pytest.raises(RequestRefused, match=r"HttpTransport\(cert=...\)"):
                await client.upload_whiteboard_file("room01", SMALL, filename="deck.pdf")
    assert len(site.requests()) == 1


@needs_nginx
async def test_504_while_the_server_goes_on_is_unknown(site: ProxiedServer) -> None:
    """The document is being converted when nginx gives up; it is sent once."""
    site.room.processing_seconds = LONG_CONVERSION
    async with client_of(site.front("proxy_read_timeout 1s;")) as client:
        error = await lost(client)
    assert "504" in error.reason
    assert error.bytes_sent == error.size == len(SMALL)
    await until(lambda: site.room.accepted)
    assert site.requests() == ["room01"]


# --- 413: nginx has a limit of its own -----------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("closing", ["always", "off"])
@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
@needs_nginx
async def test_nginx_answers_413(
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
@needs_nginx
async def test_nginx_answers_502(
    site: ProxiedServer, settings: str, how: dict[str, Any], verdicts: tuple[str, str] | None
) -> None:
    """Unknown if the document was out, and repeated if it was not, or if that is wanted."""
    nginx = site.front(settings)
    await anyio.to_thread.run_sync(site.stop)
    async with client_of(nginx, on_event=at_retry(site.start), **how) as client:
        if verdicts is None:
            assert "502" in (await lost(client)).reason
            await anyio.to_thread.run_sync(site.start)
            assert await upload(client) == ["accepted"]
        else:
            found = await upload(client, LARGE)
            assert (found[0], found[-1]) == verdicts
    assert len(site.room.received) == 1


# --- 503 and 429: nginx limits requests ----------------------------------------------------------

LIMIT = "limit_req_zone $binary_remote_addr zone=one:1m rate=40r/m;"
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
@needs_nginx
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
            first, *_, last = await upload(client, content)
            assert (first, last) == (verdict, "accepted")
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
@needs_nginx
async def test_documents_arrive_whole(site: ProxiedServer, settings: str) -> None:
    """However nginx passes on a body, the same bytes arrive, and 409 and 200 come back."""
    site.server.reply_next(409, path="/room/uploadWhiteboardFile")
    http = f"upstream meet {{ server 127.0.0.1:{site.port}; keepalive 4; }}"
    content = LARGE[: 3 * 1024**2 + 1]
    async with client_of(site.front(settings, to="http://meet", http=http)) as client:
        assert await upload(client, content) == ["busy", "accepted"]
    (received,) = site.room.received
    assert received.sha256 == hashlib.sha256(content).hexdigest()


# --- the server goes away ------------------------------------------------------------------------

ROOMS, EACH = 10, 3
SIZES = [8, 10_000, 70_000, 300_000]
"""Bytes; the rooms take them in turn."""

CONVERSION, LONG_CONVERSION = 0.3, 60.0
"""Seconds; the long one is that of the document amid which the server goes, and ends with it."""

Way = tuple[str | None, str]
"""How a batch reaches the server: settings of nginx, ``None`` without it; and its transport."""

UNBUFFERED = "proxy_request_buffering off;"
WAYS: dict[str, Way] = {
    "direct": (None, "own"),
    "direct-httpx": (None, "httpx"),
    "buffered": ("", "own"),
    "unbuffered": (UNBUFFERED, "own"),
    "unbuffered-httpx": (UNBUFFERED, "httpx"),
}
UPSTREAMS: dict[str, Way] = {
    "direct": (None, "own"),
    **{
        f"{name}-{version}": (f"{settings} {upstream}", "own")
        for name, settings in (("buffered", ""), ("unbuffered", UNBUFFERED))
        for version, upstream in (("1.0", "proxy_http_version 1.0;"), ("1.1", KEPT_UPSTREAM))
    },
}


@attrs.define
class Run:
    """Batches, a server, and an outage."""

    ways: dict[str, Way]
    directory: Path
    server: MeetingServer = attrs.field(factory=MeetingServer)
    reports: dict[str, BatchReport] = attrs.field(factory=dict)
    log: str = ""
    """Of nginx."""

    def rooms(self, way: str) -> list[str]:
        """Return the rooms of a batch."""
        return [f"{way.replace('.', '_')}-{number}" for number in range(ROOMS)]

    def jobs(self, way: str) -> list[UploadJob]:
        """Make the jobs of a batch: the rooms in turn, documents with names of their own."""
        return [
            UploadJob(room, b"%PDF-1.7".ljust(size, b"%"), filename=f"{room}-{turn}.pdf")
            for turn in range(EACH)
            for room, size in zip(self.rooms(way), SIZES * ROOMS, strict=False)
        ]

    def run(
        self, go_away: Callable[[Run], bool], seconds: float, on_event: Callable[[Event], None]
    ) -> None:
        """Run the batches; stop the server when ``go_away`` says so, for some seconds."""
        for room in [room for way in self.ways for room in self.rooms(way)]:
            self.server.add_room(room).processing_seconds = CONVERSION

        async def main() -> None:
            with contextlib.ExitStack() as running, contextlib.ExitStack() as proxy:
                url = running.enter_context(self.server.run())
                nginx = self._front(url, proxy)
                with anyio.fail_after(40):
                    async with anyio.create_task_group() as group:
                        for name, (settings, _) in self.ways.items():
                            base = url if settings is None else f"{nginx and nginx.url}/{name}"
                            group.start_soon(self._batch, name, base, on_event)
                        while not go_away(self):  # noqa: ASYNC110 - the server is in a thread
                            await anyio.sleep(0.005)
                        await anyio.to_thread.run_sync(stop, running)
                        for room in self.server.rooms.values():
                            room.unlock()
                        await anyio.sleep(seconds)
                        port = int(url.rpartition(":")[2])
                        running.enter_context(self.server.run(port=port))
                self.log = nginx.log() if nginx else ""

        with warnings.catch_warnings():  # see `stop`
            warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
            anyio.run(main)
            gc.collect()

    def _front(self, url: str, stack: contextlib.ExitStack) -> Nginx | None:
        blocks = [
            f"location /{name}/ {{ proxy_pass {url}/; {settings} }}"
            for name, (settings, _) in self.ways.items()
            if settings is not None
        ]
        nginx = Nginx(self.directory, "\n".join(blocks)) if blocks else None
        return stack.enter_context(nginx) if nginx else None

    async def _batch(self, name: str, base: str, on_event: Callable[[Event], None]) -> None:
        async with (
            httpx.AsyncClient() as borrowed,
            MeetingClient(
                base,
                api_key="devkey",
                api_secret="devsecret",
                transport=HttpxTransport(borrowed) if self.ways[name][1] == "httpx" else None,
                retry=RetryPolicy(max_delay=1),
                on_event=on_event,
            ) as client,
            client.upload_many(self.jobs(name)) as batch,
        ):
            self.reports[name] = await batch.wait()

    # --- what came of it -------------------------------------------------------------------------

    def wrong(self, way: str) -> list[str]:
        """Return what breaks the promise: all accepted but few, each once."""
        rooms = [self.server.rooms[room] for room in self.rooms(way)]
        held = Counter(file.name for room in rooms for file in room.accepted)
        expected = {"accepted": {1}, "unknown": {0, 1}}
        return [
            f"{one.document}: {one.status} {one.error!r}, {held[one.document]} times"
            for one in self.reports[way].outcomes
            if held[one.document] not in expected.get(one.status, set())
        ]

    def unknown(self, way: str) -> list[str]:
        """Return the names of the documents of unknown outcome."""
        return [o.document for o in self.reports[way].outcomes if o.status == "unknown"]


def stop(running: contextlib.ExitStack) -> None:
    """Stop a server without a log of what connected at that very moment.

    asyncio accepts such a connection for a future that is cancelled, and logs an error that keeps
    it open for as long as pytest keeps the log (https://github.com/python/cpython/issues/153761).
    """
    logger = logging.getLogger("asyncio")
    logger.disabled = True
    try:
        running.close()
        gc.collect()
    finally:
        logger.disabled = False


def is_second(document: str | None) -> bool:
    """Tell whether it is a room's second document."""
    return (document or "").endswith("-1.pdf")


def test_a_server_that_goes_away(tmp_path: Path) -> None:
    """Every document is accepted and in its room once, but those that were being answered.

    The server stops when every room is converting its second document, and starts again. No
    document is sent into the outage: unknown are only those of which the server had every byte.
    """
    run = Run({name: way for name, way in WAYS.items() if NGINX or way[0] is None}, tmp_path)

    def long_or_short(event: Event) -> None:
        if isinstance(event, AttemptStarted) and event.room_id:
            room = run.server.rooms[event.room_id]
            is_long = is_second(event.document)
            room.processing_seconds = LONG_CONVERSION if is_long else CONVERSION

    def all_convert(run: Run) -> bool:
        return all(len(room.accepted) == 2 for room in run.server.rooms.values())

    run.run(all_convert, 2, long_or_short)
    for way in run.ways:
        assert len(run.reports[way].outcomes) == ROOMS * EACH
        assert run.wrong(way) == [], (way, run.log)
        assert [name for name in run.unknown(way) if not is_second(name)] == [], (way, run.log)


def _any_moment(share: float) -> Callable[[Run], bool]:
    """Stop when so many of all documents have reached the server."""
    return lambda run: (
        sum(len(room.accepted) for room in run.server.rooms.values())
        >= share * ROOMS * EACH * len(run.ways)
    )


@pytest.mark.nightly
@needs_nginx
@pytest.mark.parametrize("turn", range(5))
def test_a_server_that_stops_at_any_moment(tmp_path: Path, turn: int) -> None:
    """With each version of HTTP behind nginx, at most one unknown outcome in each room."""
    share = (0.02, 0.2, 0.4, 0.6, 0.9)[turn]
    run = Run(UPSTREAMS, tmp_path)
    run.run(_any_moment(share), random.Random(turn).uniform(1, 4), lambda _event: None)
    for way in UPSTREAMS:
        assert run.wrong(way) == [], (way, run.log)
        rooms = Counter(name.rpartition("-")[0] for name in run.unknown(way))
        assert all(count == 1 for count in rooms.values()), (way, rooms)
