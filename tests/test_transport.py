"""The transport as a whole: what goes out, what comes back, what is left behind."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import itertools
import json
import logging
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import respx
import trio

from _peer import (
    RECORD,
    Connection,
    Peer,
    Script,
    answering,
    answering_once,
    deaf,
    descriptors,
    dripping,
    reply,
    resetting,
    shown_elsewhere,
    silent,
)
from _transports import (
    API_KEY,
    BOUNDARY,
    KIB,
    MIB,
    REPLIES,
    SECRET,
    Interrupted,
    Supply,
    Wire,
    both_kinds,
    call,
    cancelled,
    either,
    endless_content,
    finish,
    json_or_upload,
    large_upload,
    living_tasks,
    never_connects,
    over,
    until,
    upload,
    within,
)
from meeting_async import (
    Document,
    HttpxTransport,
    LockPolicy,
    MeetingClient,
    Request,
    RetryPolicy,
    Timeouts,
    Transport,
)
from meeting_async.errors import (
    ConnectionLost,
    DocumentChanged,
    RequestRefused,
    TransportError,
    UploadOutcomeUnknown,
)
from meeting_async.httpx2 import Httpx2Transport

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[HttpxTransport, Httpx2Transport])
def transport_class(request: pytest.FixtureRequest) -> type[HttpxTransport]:
    """Run what uses ``transport`` on both libraries."""
    chosen: type[HttpxTransport] = request.param
    return chosen


# What goes out


@both_kinds
async def test_headers_go_out_as_given(transport: HttpxTransport, kind: str) -> None:
    """Names and values byte for byte, UTF-8 included: the signature depends on them."""
    with Peer(answering(reply())) as peer:
        request = either(kind, peer.url)
        await transport.send(request)
    (received,) = peer.requests
    for name, value in request.headers:
        assert received.head.count(b"\r\n%b: %b\r\n" % (name, value)) == 1
        assert len(received.values(name)) == 1
    assert received.head.startswith(f"POST {httpx.URL(request.url).path} HTTP/1.1\r\n".encode())
    assert received.values(b"Host") == [b"127.0.0.1:%d" % peer.port]
    assert received.values(b"User-Agent")[0].startswith(b"meeting-async/")


async def test_a_json_body_goes_out_as_given(transport: HttpxTransport) -> None:
    """Byte for byte, with its exact length, never chunked."""
    body = '{"a":"é","b": [1 ,2]}'.encode()
    with Peer(answering(reply())) as peer:
        await transport.send(call(peer.url, body=body))
    (received,) = peer.requests
    assert received.body == body
    assert received.values(b"Content-Length") == [b"%d" % len(body)]
    assert received.values(b"Transfer-Encoding") == []


@pytest.mark.parametrize("size", [1, 256 * KIB, 3 * MIB + 1])
async def test_an_upload_goes_out_as_planned(transport: HttpxTransport, size: int) -> None:
    """Head, document and closing boundary, with the exact length, never chunked."""
    with Peer(answering(reply())) as peer:
        request, body = upload(peer.url, Supply(size))
        answer = await transport.send(request)
    (received,) = peer.requests
    assert (answer.status, answer.content) == (200, RECORD)
    assert body.complete
    assert len(received.body) == body.length == received.length
    assert received.body.count(b"x") >= size
    assert received.body.endswith(b"x\r\n--%b--\r\n" % BOUNDARY.encode())
    assert received.values(b"Transfer-Encoding") == []
    assert received.values(b"Expect") == []


@both_kinds
async def test_nothing_of_a_reply_comes_back(transport: HttpxTransport, kind: str) -> None:
    """No cookie and no credential of an earlier reply stands in a later request."""
    with Peer(answering(reply(headers=[b"Set-Cookie: lb=1; Path=/"]))) as peer:
        for _ in range(2):
            await transport.send(either(kind, peer.url))
    assert [received.values(b"Cookie") for received in peer.requests] == [[], []]


@both_kinds
@pytest.mark.parametrize("data", REPLIES.values(), ids=REPLIES.keys())
async def test_replies_of_every_form_are_read(
    transport: HttpxTransport, kind: str, data: bytes
) -> None:
    """However the end is marked, whatever stands around: status and content are right."""
    with Peer(answering_once(data)) as peer:
        answer = await transport.send(either(kind, peer.url))
    assert (answer.status, answer.content) == (200, RECORD)


async def test_a_reply_is_not_decoded(transport: HttpxTransport) -> None:
    """A small compressed reply cannot become a large one."""
    bomb = gzip.compress(bytes(MIB))
    with Peer(answering(reply(content=bomb, headers=[b"Content-Encoding: gzip"]))) as peer:
        answer = await transport.send(call(peer.url))
    assert answer.content == bomb
    assert (b"Content-Encoding", b"gzip") in answer.headers


@both_kinds
async def test_every_status_is_a_reply(transport: HttpxTransport, kind: str) -> None:
    """A transport judges nothing; headers come back as bytes."""
    for status in (201, 204, 304, 400, 401, 409, 413, 429, 500, 503):
        content = b"" if status in {204, 304} else b"<html>"
        data = reply(status, content, [b"Retry-After: 7", b"X-Odd: \xe9"], length=bool(content))
        with Peer(answering(data)) as peer:
            answer = await transport.send(either(kind, peer.url))
        assert (answer.status, answer.content) == (status, content)
        assert {(b"Retry-After", b"7"), (b"X-Odd", b"\xe9")} <= set(answer.headers)


@both_kinds
@pytest.mark.parametrize("borrowed", [True, False], ids=["borrowed", "own"])
async def test_redirects_are_not_followed(kind: str, borrowed: bool) -> None:
    """The second host would get signature and document; it does not even get a connection."""
    async with httpx.AsyncClient(follow_redirects=True, trust_env=False) as client:
        transport = HttpxTransport(client if borrowed else None)
        for status in (301, 302, 303, 307, 308):
            with Peer(answering(reply())) as second:
                location = f"Location: {second.url}/auth/room/upload".encode()
                with Peer(answering(reply(status, b"", [location]))) as first:
                    answer = await transport.send(either(kind, first.url))
            assert answer.status == status
            assert (first.connected, len(first.requests)) == (1, 1)
            assert second.connected == 0
        await transport.aclose()


@pytest.mark.parametrize(
    "location",
    [b"http://[::1", b"http://host:port/", b"//", b"", b"http://\xff\xfe/", b"x" * 70_000, b"a b"],
    ids=["bracket", "port", "slashes", "empty", "bytes", "long", "blank"],
)
async def test_a_redirect_to_nowhere_is_a_reply(transport: HttpxTransport, location: bytes) -> None:
    """Any 3xx is a refusal (DESIGN section 4), wherever it points."""
    with Peer(answering(reply(302, b"", [b"Location: " + location]))) as peer:
        for kind in ("json", "upload"):
            answer = await transport.send(either(kind, peer.url))
            assert answer.status == 302


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://[::1", "http://", "gopher://x"])
async def test_an_address_that_is_none(transport: HttpxTransport, url: str) -> None:
    """What cannot be connected to was not sent."""
    await never_connects(transport, url)


@both_kinds
async def test_a_peer_that_closes_without_a_word(wire: Wire, kind: str) -> None:
    """The end of the connection in the place of a reply."""
    async with over(wire, answering_once(b"")) as (transport, peer):
        with within(2), pytest.raises(ConnectionLost) as caught:
            await transport.send(either(kind, peer.url))
    assert type(caught.value) is ConnectionLost


def signature(message: bytes) -> str:
    """Sign as interface section 5 says."""
    return hmac.new(SECRET.encode(), message, hashlib.sha256).hexdigest()


OUTCOMES: dict[str, tuple[Script, tuple[type[Exception], ...]]] = {
    "accepted": (answering(reply()), ()),
    "refused": (answering(reply(401, b"{}")), (RequestRefused,)),
    "redirected": (answering(reply(307, b"", [b"Location: /x"])), (RequestRefused,)),
    "reset": (resetting(10), (TransportError, UploadOutcomeUnknown)),
    "no HTTP": (answering_once(b"?\r\n\r\n"), (TransportError, UploadOutcomeUnknown)),
    "silent": (silent, (TransportError, UploadOutcomeUnknown)),
}


@pytest.mark.parametrize(("script", "expected"), OUTCOMES.values(), ids=OUTCOMES.keys())
async def test_no_secret_leaves_the_request(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
    script: Script,
    expected: tuple[type[Exception], ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither in a log at any level, nor in a repr, an error or a traceback with locals."""
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore", "httpcore.http11", "httpcore.connection", "asyncio"):
        caplog.set_level(logging.DEBUG, logger=name)
    events: list[object] = []
    async with over(tls, script) as (transport, peer):
        client = MeetingClient(
            peer.url,
            api_key=API_KEY.decode(),
            api_secret=SECRET,
            transport=transport,
            retry=RetryPolicy(max_attempts=1),
            timeouts=Timeouts(reply=0.5, upload_reply=0.5),
            on_event=events.append,
        )
        seen = repr(transport)
        for run in (
            lambda: client.call("room/create", {"room_id": "room01"}),
            lambda: client.upload_whiteboard_file("room01", b"%PDF-", filename="deck.pdf"),
        ):
            try:
                seen += repr(await run())
            except expected as error:
                seen += shown_elsewhere(error) + repr(error) + str(error) + repr(error.__cause__)
        await client.aclose()
    assert peer.requests == [] or len(peer.requests) >= 2
    records = "".join(repr(vars(record)) + record.getMessage() for record in caplog.records)
    assert "httpcore" in records
    for secret in (SECRET, signature(b"room01"), signature(b'{"room_id":"room01"}')):
        assert secret not in seen
        assert secret not in records
        assert secret not in repr(events)


async def test_no_secret_in_the_traceback_of_a_document_that_changes(tmp_path: Path) -> None:
    """Its error passes through every frame between the file and the caller."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(b"x" * 2 * MIB)
    grown = threading.Event()

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.read_body(MIB)
        with path.open("ab") as file:
            file.write(b"more")
        grown.set()
        connection.drain()

    async def wait(event: object) -> None:
        if getattr(event, "sent", 0) == 2 * MIB:
            await until(grown.is_set)

    with Peer(script) as peer:
        async with MeetingClient(
            peer.url, api_key=API_KEY.decode(), api_secret=SECRET, on_event=wait
        ) as client:
            with pytest.raises(DocumentChanged) as caught:
                await client.upload_whiteboard_file("room01", path)
    shown = shown_elsewhere(caught.value)
    assert SECRET not in shown
    assert signature(b"room01") not in shown
    (received,) = peer.requests
    assert len(received.body) < received.length


def test_it_is_a_transport() -> None:
    """The protocol can be checked at run time."""
    transport = HttpxTransport()
    assert isinstance(transport, Transport)
    assert repr(transport).startswith("<HttpxTransport")


@pytest.mark.parametrize(
    ("script", "make"),
    [
        (deaf, large_upload),
        (silent, json_or_upload),
        (dripping(endless_content, 0.002), json_or_upload),
    ],
    ids=["sending", "waiting", "receiving"],
)
async def test_cancelled_thirty_times(
    wire: Wire, script: Script, make: Callable[[str, int], Request]
) -> None:
    """At different moments; in between and at the end the transport works; nothing is left."""
    async with over(wire, answering(reply())) as (transport, good):
        assert (await transport.send(upload(good.url)[0])).status == 200
        await until(good.idle)
        with Peer(script, tls=wire[0], receive_buffer=64 * KIB) as bad:
            before, tasks = descriptors(good, bad), living_tasks()
            for number in range(30):
                await cancelled(transport, make(bad.url, number), 0.001 + 0.0003 * number)
                if number % 10 == 9:
                    for kind in ("upload", "json"):
                        assert (await transport.send(either(kind, good.url))).status == 200
            await until(lambda: descriptors(good, bad).total() <= before.total() + 1)
            await transport.aclose()
            await until(lambda: descriptors(good, bad) == before)
            await until(lambda: living_tasks() == tasks)


@both_kinds
async def test_cancelled_at_every_await(wire: Wire, kind: str) -> None:
    """Wherever a request is cancelled, its connection is closed and the next one works."""
    async with over(wire, answering(reply())) as (transport, peer):
        kept = 1 if kind == "json" else 0
        leaks = []
        for number in itertools.count(1):
            await transport.aclose()  # so that connecting is interrupted, too
            await until(peer.idle)
            request = either(kind, peer.url)
            run = Interrupted(transport.send(request), number)
            with run.scope:
                await run
            assert (await transport.send(either(kind, peer.url))).status == 200
            try:
                await until(lambda: peer.open <= kept, 0.3)
            except TimeoutError:
                leaks.append(number)
            if not run.scope.cancelled_caught:
                break
        assert number > 2
        assert leaks == []


def test_asyncio_cancels_amid_a_request() -> None:
    """``asyncio.wait_for`` breaks through shields; the next request works, nothing is left."""

    async def main() -> None:
        transport = HttpxTransport()
        with Peer(answering(reply())) as good, Peer(deaf, receive_buffer=64 * KIB) as bad:
            await transport.send(upload(good.url)[0])
            await until(good.idle)
            before = descriptors(good, bad)
            for number in range(30):
                request = upload(bad.url, Supply(64 * MIB))[0] if number % 2 else call(bad.url)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(transport.send(request), 0.001 * number + 0.001)
            assert (await transport.send(upload(good.url)[0])).status == 200
            await until(good.idle)
            await until(lambda: descriptors(good, bad) == before)
            await finish(transport)

    asyncio.run(main())


def test_a_transport_that_was_closed_serves_a_second_loop() -> None:
    """It holds nothing of the first loop."""
    transport = HttpxTransport()

    async def main(peer: Peer) -> None:
        for kind in ("json", "upload", "json"):
            assert (await transport.send(either(kind, peer.url))).status == 200
        await transport.aclose()

    with Peer(answering(reply())) as peer:
        asyncio.run(main(peer))
        trio.run(main, peer)


async def test_a_path_is_uploaded_through_the_whole_client(tmp_path: Path) -> None:
    """From a file to the wire, with a lock in between that gives no second chance."""
    path = tmp_path / "deck.pdf"
    path.write_bytes(b"%PDF-" + bytes(MIB))
    with Peer(answering(reply(409)), answering(reply())) as peer:
        async with MeetingClient(
            peer.url,
            api_key="key",
            api_secret=SECRET,
            lock=LockPolicy(min_delay=0.01),
        ) as client:
            receipt = await client.upload_whiteboard_file("room01", Document.from_path(path))
    assert [attempt.verdict for attempt in receipt.attempts] == ["busy", "accepted"]
    assert b"%PDF-" + bytes(MIB) + b"\r\n--" in peer.requests[0].body
    assert b"%PDF-" + bytes(MIB) + b"\r\n--" in peer.requests[1].body


@both_kinds
async def test_respx_mocks_our_own_clients(kind: str) -> None:
    """The usual way to fake httpx works with either kind of request."""
    url = "https://meet.invalid"
    request = either(kind, url)
    transport = HttpxTransport()
    with respx.mock(base_url=url) as router:
        route = router.post(path__startswith="/auth/room/").respond(json=json.loads(RECORD))
        answer = await transport.send(request)
    assert answer.status == 200
    assert json.loads(answer.content) == json.loads(RECORD)
    sent = route.calls.last.request
    assert len(sent.content) == int(sent.headers["Content-Length"])
    if kind == "upload":
        assert sent.content.endswith(b"--\r\n")
