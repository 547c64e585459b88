"""Clients of the caller's: httpx and httpx2, used as they are and never closed."""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import httpx2
import pytest

from meeting_async import MeetingClient, MeetingError, errors
from meeting_async.transports import HttpxTransport, Request
from support.documents import PDF
from support.peer import RECORD, Peer, answering, reply, silent
from support.sending import MIB, Form, call, either, until, upload, within

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

both_kinds = pytest.mark.parametrize("kind", ["call", "upload"])


@pytest.fixture
def library(request: pytest.FixtureRequest) -> Any:
    """Provide httpx and its fork."""
    return {"httpx": httpx, "httpx2": httpx2}[request.param]


@both_kinds
async def test_an_external_client_is_used_as_it_is(library: Any, kind: str) -> None:
    """With its headers and hooks, and it stays open."""
    seen: list[str] = []

    async def hook(request: Any) -> None:
        seen.append(request.url.path)

    with Peer(answering(reply())) as peer:
        async with library.AsyncClient(
            headers={"X-Mine": "1"}, event_hooks={"request": [hook]}, trust_env=False
        ) as client:
            transport = HttpxTransport(client)
            assert (await transport.send(either(kind, peer.url))).content == RECORD
            await transport.aclose()
            assert not client.is_closed
            assert (await client.get(peer.url)).status_code == 200
            assert "your own client" in repr(transport)
            with pytest.raises(RuntimeError, match="closed"):
                await transport.send(either(kind, peer.url))
    assert seen[0].startswith("/auth/room/")
    (received, _) = peer.requests
    assert received.values(b"X-Mine") == [b"1"]
    assert received.length == len(received.body)
    assert received.values(b"Transfer-Encoding") == []


async def test_a_question_without_content(library: Any) -> None:
    """It is not announced as chunked, which a strict proxy refuses."""
    with Peer(answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")) as peer:
        async with library.AsyncClient(trust_env=False) as client:
            request = Request(method="HEAD", url=peer.url, headers=(), body=b"", idempotent=True)
            assert (await HttpxTransport(client).send(request)).status == 404
    (received,) = peer.requests
    assert received.values(b"Transfer-Encoding") == []


async def test_redirects_are_not_followed(library: Any) -> None:
    """Nor does the client's own setting change that."""
    with Peer(answering(reply(308, headers=[b"Location: /elsewhere"]))) as peer:
        async with library.AsyncClient(follow_redirects=True, trust_env=False) as client:
            assert (await HttpxTransport(client).send(upload(peer.url))).status == 308
    assert len(peer.requests) == 1


async def test_a_client_without_a_free_connection(library: Any) -> None:
    """Its own limit; waiting for it is limited as connecting."""
    with Peer(silent) as peer:
        limits = library.Limits(max_connections=1)
        async with (
            library.AsyncClient(limits=limits, trust_env=False) as client,
            anyio.create_task_group() as group,
        ):

            async def fill() -> None:
                await HttpxTransport(client).send(call(peer.url))

            group.start_soon(fill)
            await until(lambda: peer.requests)
            with within(5), pytest.raises(errors.ConnectFailed, match="in time"):
                await HttpxTransport(client).send(call(peer.url, connect_timeout=0.2))
            group.cancel_scope.cancel()


@both_kinds
async def test_an_application_in_process(library: Any, kind: str) -> None:
    """Without any network: the very bytes arrive, and what was sent is not known."""
    got = bytearray()

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            got.extend(message.get("body", b""))
            more = message.get("more_body", False)
        start = {"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"b")]}
        await send(start)
        await send({"type": "http.response.body", "body": RECORD})

    transport = library.ASGITransport(app=application)
    async with library.AsyncClient(transport=transport) as client:
        form = Form(3 * MIB + 1)
        request = (
            upload("http://meet.invalid", form) if kind == "upload" else call("http://meet.invalid")
        )
        answer = await HttpxTransport(client).send(request)
    assert (answer.status, answer.content, answer.sent) == (200, RECORD, None)
    assert answer.headers == ((b"x-a", b"b"),)
    assert got == (request.body if isinstance(request.body, bytes) else form.content)


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("closed", RuntimeError, "closed"),  # not a lost connection, which would be tried again
        ("its hook", LookupError, "mine"),
        ("sends again", errors.ConnectionLost, "the second time"),  # the body was taken
    ],
)
async def test_what_a_client_raises(
    library: Any, what: str, error: type[Exception], words: str
) -> None:
    """The caller's own mistakes pass as they are; whether a body was taken is known better."""

    async def hook(_request: object) -> None:
        raise LookupError("mine")

    class Retrying(library.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            async for _ in request.stream:
                pass
            raise library.ConnectError("the second time")

    hooks = {"request": [hook]} if what == "its hook" else {}
    async with library.AsyncClient(transport=Retrying(), event_hooks=hooks) as client:
        if what == "closed":
            await client.aclose()
        with pytest.raises(error, match=words):
            await HttpxTransport(client).send(upload("http://meet.invalid"))


async def failed(library: Any, hook: Any, *answers: bytes, **how: Any) -> tuple[MeetingError, Peer]:
    """Upload with a hook for responses; return how it failed."""
    keys: dict[str, Any] = {"api_key": "key-0f-the-app", "api_secret": "s3cret"}
    with Peer(*map(answering, answers)) as peer:
        async with (
            library.AsyncClient(event_hooks={"response": [hook]}, trust_env=False) as own,
            MeetingClient(peer.url, transport=HttpxTransport(own), **keys) as client,
        ):
            with within(5), pytest.raises(MeetingError) as caught:
                await client.upload_whiteboard_file("room01", PDF, filename="a.pdf", **how)
    return caught.value, peer


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize(
    ("check", "document", "error"),
    [
        (200, 409, errors.RoomBusy),
        (200, 500, errors.UploadOutcomeUnknown),
        (401, 200, errors.AuthenticationFailed),
    ],
)
async def test_a_hook_that_raises_for_a_status(
    library: Any, reads: bool, check: int, document: int, error: type[Exception]
) -> None:
    """The status counts; the content does, too, if the hook has read it."""

    async def hook(response: Any) -> None:
        if reads:
            await response.aread()
        response.raise_for_status()

    refusal = RECORD.replace(b"true", b"false")
    answers = [reply(one, RECORD if one == 200 else refusal) for one in (check, document)]
    if reads and document == 500:
        error = errors.ProcessingFailed
    assert type((await failed(library, hook, *answers, max_wait=0))[0]) is error


async def test_a_hook_that_asks_something_else(library: Any) -> None:
    """What another service answers says nothing of the document, which is sent once."""

    async def hook(response: Any) -> None:
        if b"uploadWhiteboardFile" in response.request.url.raw_path:
            other = library.Request("POST", "http://audit.test")
            library.Response(409, request=other).raise_for_status()

    error, peer = await failed(library, hook, reply(200, RECORD))
    assert type(error) is errors.UploadOutcomeUnknown
    assert len([one for one in peer.requests if b"uploadWhiteboardFile" in one.head]) == 1


@both_kinds
async def test_a_client_that_sends_twice(library: Any, kind: str) -> None:
    """Digest authentication does; a call is repeated, and a document is not, which the error says.

    The page that asks for the password is not lost in an unknown outcome without a reason.
    """
    wanted = reply(401, b"", [b'WWW-Authenticate: Digest realm="x", nonce="y", qop="auth"'])
    with Peer(answering(wanted), answering(reply())) as peer:
        auth = library.DigestAuth("me", "password")
        async with library.AsyncClient(auth=auth, trust_env=False) as client:
            request = either(kind, peer.url)
            if kind == "call":
                assert (await HttpxTransport(client).send(request)).status == 200
            else:
                with pytest.raises(errors.ConnectionLost, match="DigestAuth"):
                    await HttpxTransport(client).send(request)
