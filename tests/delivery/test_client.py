"""The client: JSON calls, signers, headers, links and settings; through a scripted transport."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import anyio
import pytest

from meeting_async import (
    Document,
    Event,
    Finished,
    MeetingClient,
    RetryPolicy,
    Started,
    UploadReceipt,
)
from meeting_async.errors import (
    ConfigurationError,
    ConnectFailed,
    ConnectionLost,
    DocumentTooLarge,
    LinkRefused,
    MeetingError,
    ReplyError,
    RequestRefused,
    RoomNotFound,
    ServerFailed,
    Throttled,
    UnexpectedReply,
    UploadOutcomeUnknown,
)
from meeting_async.signers import HmacSigner, SignedHeaders
from meeting_async.transports import Reply
from support.fake_rooms import Act, accepted, busy, free, lost, record, refused, reply, unreachable
from support.fakes import ASKED, KEY, LARGE, PDF, SECRET, Scripted, client_of, headers_of, signature

Run = Callable[..., Any]
LINK = "https://files.test/deck.pdf?token=hush"

# --- JSON calls ----------------------------------------------------------------------------------


def test_json_calls_as_the_interface_says(run: Run) -> None:
    """The very bytes that are sent are signed; what comes back is the record, typed or whole."""

    async def main() -> None:
        room = {"room_info": {"room_title": "Physics", "room_id": "room01", "is_running": 1}}
        transport = Scripted(
            accepted(), reply(200, {"rooms": []}), reply(200, record("SUCCESS", room=room))
        )
        async with client_of(transport) as client:
            payload = {"room_id": "raum-ä", "b": [1, None, True], "a": {"ü": 1.5}}
            assert (await client.call("/room/create", payload))["status"] is True
            assert await client.call("room/list") == {"rooms": []}
            info = await client.get_active_room_info("room01")
        assert (info.title, info.is_running) == ("Physics", True)
        assert json.loads(transport.visits[0].sent) == payload
        paths = ("room/create", "room/list", "room/getActiveRoomInfo")
        for visit, path in zip(transport.visits, paths, strict=True):
            headers = headers_of(visit)
            assert visit.request.url == f"https://meet.test/auth/{path}"
            assert headers["hash-signature"] == signature(bytes(visit.sent))
            assert (headers["api-key"], headers["content-type"]) == (KEY, "application/json")
        assert bytes(transport.visits[1].sent) == b"{}"

    run(main)


FOREIGN = reply(502, b"<html>")
CALLS: list[tuple[str, list[Act], Any]] = [
    # Whoever asks for a room, or says idempotent=True: all but clear answers are repeated.
    (
        "idempotent",
        [unreachable(), lost(), reply(429, b""), reply(503, b"", "1"), accepted()],
        None,
    ),
    ("idempotent", [FOREIGN] * 5, UnexpectedReply),
    ("idempotent", [lost()] * 5, ConnectionLost),
    ("idempotent", [unreachable()] * 5, ConnectFailed),
    ("idempotent", [reply(500, record("INTERNAL_SERVER_ERROR"))], ServerFailed),
    ("idempotent", [reply(200, record("ROOM_NOT_FOUND"))], RoomNotFound),
    # Any other call: only what was never sent, or was rate-limited.
    ("once", [unreachable(), reply(429, b""), reply(503, record("X"), "1"), accepted()], None),
    ("once", [lost()], ConnectionLost),
    ("once", [FOREIGN], UnexpectedReply),
    ("once", [reply(503, b"<html>", "5")], UnexpectedReply),  # a cache, and the server goes on
    ("once", [reply(408, b"")], UnexpectedReply),
    ("once", [reply(429, b"", "0")] * 5, Throttled),
    ("once", [refused()], RequestRefused),
    ("once", [reply(409, b"")], RequestRefused),
    ("once", [reply(200, b"<html>")], UnexpectedReply),
]


@pytest.mark.parametrize(("kind", "script", "error"), CALLS)
def test_what_a_json_call_repeats(run: Run, kind: str, script: list[Act], error: Any) -> None:
    """Never the same call twice where that could do something twice; no request too many."""

    async def main() -> None:
        transport = Scripted(*script)
        async with client_of(transport) as client:
            calls = [
                lambda: client.call(
                    "room/create", {"room_id": "r"}, idempotent=kind == "idempotent"
                )
            ]
            if error is None:
                await calls[0]()
            else:
                with pytest.raises(MeetingError) as caught:
                    await calls[0]()
                assert type(caught.value) is error
                assert len(caught.value.attempts) == len(script)
                assert (caught.value.operation, caught.value.room_id) == ("room/create", "r")
        assert len(transport.visits) == len(script)
        assert all(visit.request.idempotent is (kind == "idempotent") for visit in transport.visits)
        gaps = [
            b.began - a.began for a, b in zip(transport.visits, transport.visits[1:], strict=False)
        ]
        assert min(gaps, default=1) >= 0.25

    run(main)


def test_retries_that_help_use_up_no_budget(run: Run) -> None:
    """A server that needs a second attempt each time gets it for as long as that helps."""

    async def main() -> None:
        script = [reply(429, b""), accepted()] * 150
        async with client_of(Scripted(*script)) as client:
            for _ in range(150):
                await client.call("room/create")

    run(main)


def test_a_hint_that_does_not_fit_ends_a_json_call_now(run: Run) -> None:
    """With the error that caused it, not with a deadline two seconds later."""

    async def main() -> None:
        async with client_of(Scripted(reply(429, b"", "5"))) as client:
            with pytest.raises(Throttled):
                await client.call("room/create", timeout=2)
        assert anyio.current_time() == 0

    run(main)


# --- signers and headers -------------------------------------------------------------------------


class Rotating:
    """A key for each signature."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def sign(self, message: bytes, /) -> SignedHeaders:
        """Sign with the next key."""
        self.messages.append(message)
        return SignedHeaders(f"key{len(self.messages)}", "abcdef")


class Remote:
    """Signs somewhere else, or is asked for something else."""

    def __init__(self, result: Any = None, error: Exception | None = None) -> None:
        self.result, self.error, self.calls = result, error, 0

    async def sign(self, message: bytes, /) -> Any:
        """Take a second."""
        self.calls += 1
        await anyio.sleep(1)
        if self.error is not None:
            raise self.error
        return self.result or HmacSigner(KEY, SECRET).sign(message)


def test_a_signer_is_called_once_for_every_request(run: Run) -> None:
    """A rotated key is used from the next attempt on, for questions, too."""

    async def main() -> None:
        signer = Rotating()
        transport = Scripted(busy(), unreachable(), free(), accepted(), checks=accepted())
        async with client_of(transport, preflight=True, signer=signer) as client:
            await client.upload_whiteboard_file("raum-ä", ASKED, filename="deck.pdf")
        check, room = '{"room_id":"raum-ä"}'.encode(), "raum-ä".encode()
        assert signer.messages == [check, room, check, room, check, room, room]
        keys = [headers_of(visit)["api-key"] for visit in transport.visits]
        assert keys == [f"key{number}" for number in range(1, 8)]

    run(main)


@pytest.mark.parametrize(
    ("signer", "error"),
    [
        (Remote(), None),
        (Remote(error=LookupError("vault")), LookupError),
        (Remote(error=ConnectionError("vault")), ConnectionError),
        (Remote(result=("key", "signature")), TypeError),
        (Remote(result={"API-KEY": "x"}), TypeError),
    ],
)
def test_asynchronous_signers(run: Run, signer: Remote, error: Any) -> None:
    """What a signer raises ends the call as it is; it is not asked again."""

    async def main() -> None:
        transport, before = Scripted(then=lambda _: accepted()), signer.calls
        async with client_of(transport, signer=signer) as client:
            for call in (
                lambda: client.upload_whiteboard_file("room01", PDF, filename="a.pdf"),
                lambda: client.get_active_room_info("room01"),
            ):
                if error is None:
                    await call()
                else:
                    with pytest.raises(error):
                        await call()
        assert signer.calls == before + 2
        assert len(transport.visits) == (0 if error else 2)

    run(main)


def test_headers_in_both_directions(run: Run) -> None:
    """``default_headers`` go with every request; receipts and errors have those of the reply."""

    def answering(status: int, code: str) -> Act:
        content = json.dumps(record(code)).encode()
        return Act(
            result=Reply(status, ((b"X-Request-ID", b"r-1"), (b"Set-Cookie", b"a")), content)
        )

    async def main() -> None:
        script = [accepted(), free(), answering(200, "SUCCESS"), answering(400, "NO")]
        transport = Scripted(*script)
        headers = {"X-Tenant": "school", "User-Agent": "lms/1"}
        async with client_of(transport, preflight=True, default_headers=headers) as client:
            receipt = await client.upload_whiteboard_file("room01", LARGE, filename="deck.pdf")
            with pytest.raises(ReplyError) as caught:
                await client.call("room/create")
        assert transport.kinds == ["question", "probe", "upload", "question"]
        for visit in transport.visits:
            sent = headers_of(visit)
            assert (sent["x-tenant"], sent["user-agent"]) == ("school", "lms/1")
        for found in (receipt.headers, caught.value.headers):
            assert found == (("x-request-id", "r-1"), ("set-cookie", "a"))
        assert json.loads(caught.value.body) == record("NO")

    run(main)


# --- links ---------------------------------------------------------------------------------------


def test_the_size_of_a_link_is_unknown(run: Run) -> None:
    """Nowhere is it the length of the URL; its query stays out of everything."""

    async def main() -> None:
        transport = Scripted(accepted(), lost())
        async with client_of(transport) as client:
            receipt = await client.upload_whiteboard_file("room01", Document.from_link(LINK))
            with pytest.raises(UploadOutcomeUnknown) as caught:
                await client.upload_whiteboard_file("room01", Document.from_link(LINK))
        assert (receipt.size, receipt.document) == (None, "https://files.test/deck.pdf?…")
        assert (caught.value.size, caught.value.bytes_sent) == (None, None)
        attempts = (*receipt.attempts, *caught.value.attempts)
        assert [attempt.bytes_sent for attempt in attempts] == [0, 0]
        assert "hush" not in f"{receipt} {caught.value} {caught.value!r}"
        body = bytes(transport.visits[0].sent)
        assert b'name="document_link"\r\n\r\n' + LINK.encode() + b"\r\n" in body
        assert b'name="document"' not in body

    run(main)


def head(status: int = 200, kind: bytes | None = b"application/pdf", length: bytes = b"99") -> Act:
    """Answer a HEAD."""
    headers = (
        (b"Content-Length", length),
        *(((b"Content-Type", kind),) if kind is not None else ()),
    )
    return Act(result=Reply(status, headers))


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (head(), None, ""),
        (head(kind=b"application/vnd.ms-powerpoint; x=y"), None, ""),
        (head(length=b"1000"), None, ""),
        (head(length=b"1001"), DocumentTooLarge, "1,001 bytes"),
        (head(length=b"9" * 5000), None, ""),
        (head(length=b"junk"), None, ""),
        *((head(status), LinkRefused, "redirects") for status in (301, 302, 307)),
        *((head(status), LinkRefused, f"HTTP {status}") for status in (401, 403, 404, 405, 500)),
        (head(kind=b"text/html; charset=utf-8"), LinkRefused, "text/html"),
        (head(kind=b"image/png"), LinkRefused, "image/png"),
        (head(kind=None), LinkRefused, "missing"),
        (unreachable(), LinkRefused, "refused"),
        (lost(), LinkRefused, "reset"),
    ],
)
def test_check_link(run: Run, answer: Act, error: Any, words: str) -> None:
    """Asked once with HEAD, as the server will: direct, public, a document type, not too large."""

    async def main() -> None:
        transport = Scripted(answer, accepted())
        settings: dict[str, Any] = {"check_link": True, "default_headers": {"X-Tenant": "school"}}
        async with client_of(transport, max_size_whiteboard_file=1000, **settings) as client:
            upload = client.upload_whiteboard_file("room01", Document.from_link(LINK))
            if error is None:
                assert (await upload).size is None
            else:
                with pytest.raises(error, match=words) as caught:
                    await upload
                assert "hush" not in str(caught.value)
                assert len(transport.visits) == 1
        asked = transport.visits[0].request
        assert (asked.method, asked.url) == ("HEAD", LINK)
        assert not {"api-key", "hash-signature", "room-id", "x-tenant"} & {
            *headers_of(transport.visits[0])
        }

    run(main)


PUBLIC = ["93.184.215.14", "[2606:2800:21f:cb07:6820:80da:af6b:8b2c]"]
PRIVATE = [
    *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]", "localhost"),
    *("10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
    *("[fe80::1]", "[fd00::1]", "[::ffff:10.0.0.1]", "[2002:7f00:1::]", "[::]", "224.0.0.1"),
]


@pytest.mark.parametrize(
    ("host", "script", "settings"),
    [
        *((host, [], {"check_link": True}) for host in PRIVATE),
        *((host, [head(), accepted()], {"check_link": True}) for host in PUBLIC),
        (PUBLIC[0], [head(kind=b"image/png"), accepted()],
         {"check_link": True, "allow_images": True}),
        *((host, [accepted()], {}) for host in ("127.0.0.1", PUBLIC[0])),
    ],
)  # fmt: skip
def test_which_links_are_asked(
    run: Run, host: str, script: list[Act], settings: dict[str, Any]
) -> None:
    """Public ones, with ``check_link=True`` only; a private address is refused, unasked."""

    async def main() -> None:
        transport, link = Scripted(*script), Document.from_link(f"https://{host}/deck.pdf")
        refused = pytest.raises(LinkRefused, match="its host is not public")
        async with client_of(transport, **settings) as client:
            with nullcontext() if script else refused:
                await client.upload_whiteboard_file("room01", link)
        assert len(transport.visits) == len(script)

    run(main)


# --- settings ------------------------------------------------------------------------------------


def test_from_env(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's environment or a mapping; arguments win; a signer replaces key and secret."""
    for name, value in {
        "BASE_URL": "http://10.0.0.1",
        "API_KEY": KEY,
        "API_SECRET": SECRET,
    }.items():
        monkeypatch.setenv(f"MEETING_{name}", value)

    async def main() -> None:
        given: list[Any] = [{}, {"signer": HmacSigner(KEY, SECRET)}]
        for settings in given:
            transport = Scripted(accepted())
            made = MeetingClient.from_env(transport=transport, allow_plaintext=True, **settings)
            async with made as client:
                await client.call("room/list")
            assert transport.visits[0].request.url == "http://10.0.0.1/auth/room/list"
            assert headers_of(transport.visits[0])["hash-signature"] == signature(b"{}")

    run(main)


def test_with_options(run: Run) -> None:
    """Other options, the same connections; closing the result closes nothing."""

    async def main() -> None:
        transport = Scripted(then=lambda _: busy())
        async with client_of(transport) as client:
            async with client.with_options(retry=RetryPolicy(max_attempts=1)) as other:
                assert type(other) is type(client)
            assert transport.closed == 0
            client.with_options(lock=None, retry=None, timeouts=None, on_event=None)
            for changes in (
                {"api_key": "x"},
                {"delivery": "twice"},
                {"preflight": 1},
            ):
                with pytest.raises(ConfigurationError) as caught:
                    client.with_options(**changes)
                assert caught.value.field in changes
                assert "ClientOptions" not in str(caught.value)
            with pytest.raises(ConfigurationError):
                client.with_options(timeout=3)  # type: ignore[call-arg]  # type checkers see it, too
        assert transport.closed == 1

    run(main)


@pytest.mark.anyio
async def test_the_life_of_a_client() -> None:
    """Never used: silent; used and forgotten: a ResourceWarning; its repr shows no secret."""
    client = client_of(Scripted())
    assert repr(client) == "<MeetingClient for https://meet.test/auth>"
    del client
    gc.collect()
    clients = [client_of(Scripted(accepted()))]
    await clients[0].call("room/list")
    with pytest.warns(ResourceWarning, match="unclosed MeetingClient for https://meet.test/auth"):
        clients.clear()
    ends: list[Event] = []
    async with client_of(Scripted(), on_event=ends.append) as closed:
        pass
    await closed.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await closed.call("room/list")
    with pytest.raises(RuntimeError, match="closed"):
        await closed.upload_whiteboard_file("room01", PDF, filename="deck.pdf")
    assert "closed" in repr(closed)
    assert [type(event) for event in ends] == [Started, Finished] * 2


def test_receipts_are_public_values(run: Run) -> None:
    """What a program may keep, or send to another process."""

    async def main() -> UploadReceipt:
        async with client_of(Scripted(accepted())) as client:
            return await client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")

    receipt = run(main)
    assert (receipt.status_code, receipt.raw["status"]) == ("SUCCESS", True)
    assert receipt.attempts[0].bytes_sent == len(PDF)
    assert receipt.attempts[0].body_seconds == 0
