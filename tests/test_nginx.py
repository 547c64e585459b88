"""nginx in front of the meeting server: what its own answers and its habits do to a call.

Each test writes the few lines of configuration that it is about. What nginx wrote to its logs is
printed when the test fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest

from _nginx import Nginx, Site, needs_nginx
from _peer import server_context
from _wires import KIB, MIB, until
from meeting_async import (
    Event,
    HttpxTransport,
    LockPolicy,
    MeetingClient,
    RetryPolicy,
    RetryScheduled,
    Turnstile,
    WaitingForRoom,
)
from meeting_async.errors import (
    DocumentRefused,
    MeetingError,
    RequestRefused,
    TransportError,
    UnexpectedReply,
    UploadInterrupted,
    UploadOutcomeUnknown,
)
from meeting_async.testing import MeetingServer

pytestmark = [needs_nginx, pytest.mark.anyio, pytest.mark.timeout(30)]

SMALL = b"%PDF-1.7\n".ljust(4 * KIB, b"%")
LARGE = SMALL.ljust(24 * MIB, b"%")
PROMPTLY = 3.0
"""Seconds within which an early answer must be understood; sending into a stall takes 30."""


# --- the site: server, nginx, client -------------------------------------------------------------


@pytest.fixture(scope="module")
def meanwhile() -> Iterator[Callable[[Callable[[], None]], object]]:
    """Do something while the next test runs: stopping a server takes a fifth of a second."""
    with ThreadPoolExecutor() as threads:
        futures: list[Future[None]] = []
        yield lambda function: futures.append(threads.submit(function))
    for future in futures:
        future.result()


@pytest.fixture
def site(tmp_path: Path, meanwhile: Callable[[Callable[[], None]], object]) -> Iterator[Site]:
    """Provide a running server with a room; nginx is the test's to start."""
    site = Site(tmp_path)
    site.server.add_room("room01")
    site.start()
    yield site
    meanwhile(site.stop)
    site.stop_nginx()
    if site.nginx:
        print(site.nginx.log())  # noqa: T201 - pytest shows it if the test fails


@attrs.define
class Seen:
    """Remembers what failed, and does something about it."""

    then: Callable[[], object] = lambda: None
    verdicts: list[str] = attrs.field(factory=list)

    async def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, RetryScheduled):
            self.verdicts.append(event.verdict)
            await anyio.to_thread.run_sync(self.then)


def client_of(nginx: Nginx, prefix: str = "", **settings: Any) -> MeetingClient:
    """Make a client that loses little time between two attempts."""
    usual = {
        "api_key": "devkey",
        "api_secret": "devsecret",
        "retry": RetryPolicy(initial_delay=0.1),
        "lock": LockPolicy(min_delay=0.1),
        "room_gate": Turnstile(),  # what one client loses shall not keep the next one waiting
    }
    return MeetingClient(nginx.url + prefix, **{**usual, **settings})


async def upload(client: MeetingClient, content: bytes = SMALL) -> list[str]:
    """Upload and return the verdicts of all attempts."""
    receipt = await client.upload_whiteboard_file("room01", content, filename="deck.pdf")
    return [attempt.verdict for attempt in receipt.attempts]


async def lost(client: MeetingClient, content: bytes = SMALL) -> UploadOutcomeUnknown:
    """Upload, once, and return the error that says that nobody knows."""
    with pytest.raises(UploadOutcomeUnknown) as caught:
        await upload(client, content)
    assert [attempt.verdict for attempt in caught.value.attempts] == ["unknown"]
    return caught.value


async def in_thread(function: Callable[[], object]) -> None:
    """Call what blocks, such as stopping a server."""
    await anyio.to_thread.run_sync(function)


# --- 504: nginx has no patience, the server goes on ----------------------------------------------


async def test_504_while_the_server_goes_on_is_unknown(site: Site) -> None:
    """The document that nginx gave up on appears; it is sent once, and the caller is warned."""
    site.room.processing_seconds = 1.3
    async with client_of(site.front("proxy_read_timeout 1s;")) as client:
        error = await lost(client)
    assert error.reason.startswith("HTTP 504")
    assert error.bytes_sent == error.size == len(SMALL)
    assert 290 < error.lock_free_in <= 300
    assert site.room.received == ()
    await until(lambda: site.room.received, "the document never appeared")
    assert [file.size for file in site.room.accepted] == [len(SMALL)]
    assert site.requests() == ["room01"]


async def test_504_and_at_least_once_is_a_visible_duplicate(site: Site) -> None:
    """Who chose at_least_once gets a receipt, and here the document twice."""
    site.room.processing_seconds = 0.5
    seen = Seen(then=lambda: setattr(site.room, "processing_seconds", 0))
    async with client_of(
        site.front("proxy_read_timeout 300ms;"),
        delivery="at_least_once",
        lock=LockPolicy(window=0.5),
        on_event=seen,
    ) as client:
        assert await upload(client) == ["unknown", "accepted"]
    assert seen.verdicts == ["unknown"]
    assert [file.name for file in site.room.received] == ["deck.pdf", "deck.pdf"]


def two_servers(site: Site) -> str:
    """Name the server twice, so that nginx has somewhere else to go."""
    return f"upstream meet {{ {f'server 127.0.0.1:{site.port};' * 2} }}"


async def test_nginx_with_two_servers_asks_one_of_them(site: Site) -> None:
    """By default it repeats no POST, whatever ``proxy_next_upstream`` allows besides."""
    site.room.processing_seconds = 0.5
    settings = "proxy_read_timeout 300ms; proxy_next_upstream error timeout http_502 http_504;"
    async with client_of(site.front(settings, to="http://meet", http=two_servers(site))) as client:
        await lost(client)
    await until(lambda: site.room.received, "the document never appeared")
    assert site.requests() == ["room01"]


async def test_nginx_that_repeats_uploads_breaks_the_promise(site: Site) -> None:
    """With ``non_idempotent`` a class sees its slides twice, and no client can notice.

    The repetition meets the lock that the first try holds; its 409 looks like somebody else's.
    """
    site.room.processing_seconds = 0.5
    settings = "proxy_read_timeout 300ms; proxy_next_upstream error timeout non_idempotent;"
    nginx = site.front(settings, to="http://meet", http=two_servers(site))

    def hasten(event: Event) -> None:
        if isinstance(event, WaitingForRoom):
            site.room.processing_seconds = 0

    async with client_of(nginx, on_event=hasten) as client:
        verdicts = await upload(client)
    assert verdicts == [*["busy"] * (len(verdicts) - 1), "accepted"]
    assert len(site.room.received) == 2


async def test_504_of_a_question_is_asked_again(site: Site) -> None:
    """Asking for a room changes nothing, so it is repeated."""
    site.server.reply_next(200, delay=1.5)
    seen = Seen()
    async with client_of(site.front("proxy_read_timeout 500ms;"), on_event=seen) as client:
        await client.get_active_room_info("room01")
    assert seen.verdicts == ["unknown"]
    assert site.requests("getActiveRoomInfo") == ["room01", "room01"]


# --- 413: nginx has a limit of its own -----------------------------------------------------------


@pytest.mark.parametrize("closing", ["on", "off"])
@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
async def test_413_comes_before_the_document_is_out(site: Site, closing: str, tls: bool) -> None:
    """The limit is known from Content-Length, and the caller knows it within a few chunks."""
    certificate = server_context(site.directory)[1] if tls else None
    limits = f"client_max_body_size 1m; lingering_close {'always' if closing == 'on' else 'off'};"
    nginx = site.front(limits, certificate=certificate)
    began = time.monotonic()
    async with client_of(nginx, transport=HttpxTransport(verify=certificate or True)) as client:
        with pytest.raises(DocumentRefused) as caught:
            await upload(client, LARGE)
    assert time.monotonic() - began < PROMPTLY
    assert caught.value.status == 413
    assert caught.value.status_code is None
    (attempt,) = caught.value.attempts
    assert attempt.bytes_sent < len(LARGE) / 2
    assert site.requests() == []


async def test_413_of_a_small_document(site: Site) -> None:
    """It is understood as well when all had been sent before nginx could say a word."""
    async with client_of(site.front("client_max_body_size 1k;")) as client:
        with pytest.raises(DocumentRefused):
            await upload(client)
    assert site.requests() == []


ENDINGS_OF_A_413_BEHIND: dict[str, set[tuple[type[MeetingError], tuple[str, ...]]]] = {
    "on": {(DocumentRefused, ("refused",)), (UploadOutcomeUnknown, ("unknown",))},
    "off": {
        *((DocumentRefused, (*["partial"] * lost, "refused")) for lost in range(3)),
        (UploadInterrupted, ("partial",) * 3),
    },
}
"""Error and verdicts, by whether nginx takes in the document before it passes it on."""


@pytest.mark.parametrize("buffering", ["on", "off"])
async def test_413_of_the_server_itself_may_be_lost(site: Site, buffering: str) -> None:
    """It is, when nginx still passes the document on: an answer of 502, or one that is cut off.

    Nothing is delivered, but the caller may not learn it. nginx's own limit should come first.
    """
    await in_thread(site.stop)
    site.server = MeetingServer(max_body_size=MIB)
    site.server.add_room("room01")
    await in_thread(site.start)
    async with client_of(site.front(f"proxy_request_buffering {buffering};")) as client:
        with pytest.raises(MeetingError) as caught:
            await upload(client, LARGE)
    assert site.room.accepted == ()
    verdicts = tuple(attempt.verdict for attempt in caught.value.attempts)
    assert (caught.type, verdicts) in ENDINGS_OF_A_413_BEHIND[buffering]


# --- 502: the server restarts --------------------------------------------------------------------


async def test_502_of_nginx_says_nothing_about_a_sent_document(site: Site) -> None:
    """It carries no record of the server, so nobody knows, though here it did not arrive."""
    nginx = site.front()
    await in_thread(site.stop)
    async with client_of(nginx) as client:
        error = await lost(client)
    assert error.reason.startswith("HTTP 502")
    await in_thread(site.start)
    async with client_of(nginx) as client:
        assert await upload(client) == ["accepted"]
    assert len(site.room.accepted) == 1


async def test_502_before_the_document_is_out_is_repeated(site: Site) -> None:
    """Without buffering nginx notices early that there is no server; nothing is lost then."""
    nginx = site.front("proxy_request_buffering off;")
    await in_thread(site.stop)
    seen = Seen(then=site.start)
    async with client_of(nginx, on_event=seen) as client:
        assert await upload(client, LARGE) == ["partial", "accepted"]
    assert [file.size for file in site.room.received] == [len(LARGE)]


async def test_502_and_at_least_once_delivers_after_the_restart(site: Site) -> None:
    """The second attempt waits for the lock that the first one may hold."""
    nginx = site.front()
    await in_thread(site.stop)
    seen = Seen(then=site.start)
    async with client_of(
        nginx, delivery="at_least_once", lock=LockPolicy(window=0.3), on_event=seen
    ) as client:
        assert await upload(client) == ["unknown", "accepted"]
    assert len(site.room.received) == 1


async def test_a_restart_during_the_conversion_is_unknown(site: Site) -> None:
    """Whatever nginx makes of a server that dies with the document in hand."""
    site.room.processing_seconds = 20
    async with client_of(site.front()) as client, anyio.create_task_group() as group:

        async def stop() -> None:
            await until(lambda: site.room.accepted, "nothing arrived")
            await in_thread(site.stop)

        group.start_soon(stop)
        error = await lost(client)
    assert error.attempts[0].status in {502, 503}
    assert len(site.room.accepted) == 1


async def test_502_of_a_question_is_asked_again(site: Site) -> None:
    """A restart is bridged without the caller's noticing."""
    nginx = site.front()
    await in_thread(site.stop)
    seen = Seen(then=site.start)
    async with client_of(nginx, on_event=seen) as client:
        room = await client.get_active_room_info("room01")
    assert room.room_id == "room01"
    assert seen.verdicts == ["unknown"]


async def test_502_of_another_call_is_not(site: Site) -> None:
    """A call that may have had its effect is the caller's to repeat, and says what answered."""
    nginx = site.front()
    await in_thread(site.stop)
    async with client_of(nginx, on_event=Seen(then=site.start)) as client:
        with pytest.raises(UnexpectedReply) as caught:
            await client.call("room/create", {"room_id": "new"})
    assert (caught.value.status, len(caught.value.attempts)) == (502, 1)
    await in_thread(site.start)
    assert site.requests("create") == []


# --- 503 and 429: nginx asks for patience --------------------------------------------------------

ONE_EACH_HALF_SECOND = "limit_req_zone $binary_remote_addr zone=one:1m rate=2r/s;"
WITH_HINT = "location @later { add_header Retry-After 1 always; return 503; }"


@pytest.mark.parametrize(
    ("settings", "content", "expected"),
    [
        ("limit_req_status 429;", SMALL, "throttled"),
        ("error_page 503 @later;", LARGE, "throttled"),
        ("", LARGE, "partial"),
    ],
    ids=["429", "503 with Retry-After", "503 before the document is out"],
)
async def test_a_limit_of_requests_is_waited_for(
    site: Site, settings: str, content: bytes, expected: str
) -> None:
    """An answer that asks for patience gets it, and the server sees one upload."""
    settings = f"limit_req zone=one; {settings}"
    nginx = site.front(settings, http=ONE_EACH_HALF_SECOND, beside=WITH_HINT)
    retry = RetryPolicy(initial_delay=1)
    async with client_of(nginx, retry=retry) as client:
        await client.get_active_room_info("room01")
        assert await upload(client, content) == [expected, "accepted"]
    assert len(site.room.received) == 1
    assert site.requests() == ["room01"]


async def test_503_without_a_hint_says_nothing_about_a_sent_document(site: Site) -> None:
    """What limit_req answers by default may as well be a server's that gave up half-way."""
    nginx = site.front("limit_req zone=one;", http=ONE_EACH_HALF_SECOND)
    async with client_of(nginx) as client:
        await client.get_active_room_info("room01")
        assert (await lost(client)).reason.startswith("HTTP 503")
    assert site.requests() == []


# --- connections that nginx closes ---------------------------------------------------------------


async def test_an_idle_connection_that_nginx_closed_is_not_used(site: Site) -> None:
    """Calls before and after go through, each of them once."""
    nginx = site.front(beside="keepalive_timeout 1s;")
    async with client_of(nginx, retry=RetryPolicy(max_attempts=1)) as client:
        await client.call("room/create", {"room_id": "before"})
        await anyio.sleep(1.3)
        await client.call("room/create", {"room_id": "after"})
        await upload(client)
    assert site.requests("create") == ["before", "after"]
    assert len(site.room.received) == 1


async def test_calls_that_race_with_the_closing_of_idle_connections(site: Site) -> None:
    """Whoever wins, no call reaches the server twice, and a repeatable one always gets through."""
    nginx = site.front(beside="keepalive_timeout 10ms;")
    names = [f"new{number}" for number in range(50)]
    answered = []
    async with client_of(nginx) as client:
        for number, name in enumerate(names):
            await client.get_active_room_info("room01")
            await anyio.sleep(0.008 + number % 25 * 0.0002)
            with contextlib.suppress(TransportError):
                await client.call("room/create", {"room_id": name})
                answered.append(name)
    seen = site.requests("create")
    assert len(seen) == len(set(seen))
    assert set(answered) <= set(seen) <= set(names)
    assert len(answered) > len(names) * 0.8


async def test_nginx_that_ends_connections_after_some_requests(site: Site) -> None:
    """A ``Connection: close`` between calls costs nothing but a new connection."""
    nginx = site.front(beside="keepalive_requests 3;")
    names = [f"new{number}" for number in range(10)]
    async with client_of(nginx, retry=RetryPolicy(max_attempts=1)) as client:
        for name in names:
            await client.call("room/create", {"room_id": name})
    assert site.requests("create") == names


# --- ways to put it together ---------------------------------------------------------------------

KEPT_UPSTREAM = 'proxy_http_version 1.1; proxy_set_header Connection "";'


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
async def test_documents_arrive_whole(site: Site, settings: str) -> None:
    """Each way in which nginx passes on a body brings the same bytes, and 409 and 200 come back.

    The usual way is to buffer, and HTTP/1.0.
    """
    site.server.reply_next(409, path="/room/uploadWhiteboardFile")
    http = f"upstream meet {{ server 127.0.0.1:{site.port}; keepalive 4; }}"
    content = LARGE[: 3 * MIB + 1]
    async with client_of(site.front(settings, to="http://meet", http=http)) as client:
        assert await upload(client, content) == ["busy", "accepted"]
    (received,) = site.room.received
    assert received.sha256 == hashlib.sha256(content).hexdigest()


async def test_a_path_prefix(site: Site) -> None:
    """The base URL may lead to a folder of a site; what is signed stays the same."""
    nginx = site.front(location="/meet/", to=f"http://127.0.0.1:{site.port}/")
    async with client_of(nginx, "/meet") as client:
        await client.get_active_room_info("room01")
        assert await upload(client) == ["accepted"]
    async with client_of(nginx) as client:
        with pytest.raises(RequestRefused) as caught:
            await client.get_active_room_info("room01")
    assert caught.value.status == 404
    assert site.requests("getActiveRoomInfo") == ["room01"]


async def test_tls_ends_at_nginx(site: Site) -> None:
    """With its authority named, the certificate holds; the server behind speaks plain HTTP."""
    certificate = server_context(site.directory)[1]
    nginx = site.front(certificate=certificate)
    async with client_of(nginx, transport=HttpxTransport(verify=str(certificate))) as client:
        await client.get_active_room_info("room01")
        assert await upload(client, LARGE) == ["accepted"]
    assert [file.size for file in site.room.received] == [len(LARGE)]
    async with client_of(nginx, retry=RetryPolicy(max_attempts=1)) as stranger:
        with pytest.raises(TransportError, match="certificate"):
            await stranger.get_active_room_info("room01")


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
async def test_a_redirect_to_https_is_not_followed(site: Site, content: bytes) -> None:
    """It ends each kind of call, names the cause, and the server sees nothing."""
    certificate = server_context(site.directory)[1]
    to_https = "error_page 497 =301 https://$http_host$request_uri;"
    nginx = site.front(beside=to_https, certificate=certificate)
    nginx.url = nginx.url.replace("https:", "http:")
    async with client_of(nginx, transport=HttpxTransport(verify=certificate)) as client:
        with pytest.raises(RequestRefused) as of_upload:
            await upload(client, content)
        with pytest.raises(RequestRefused) as of_call:
            await client.get_active_room_info("room01")
    for caught in (of_upload, of_call):
        assert (caught.value.status, len(caught.value.attempts)) == (301, 1)
        assert "Mend the base URL." in caught.value.__notes__[0]
    assert site.server.requests == []
