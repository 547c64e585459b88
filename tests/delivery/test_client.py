"""The client: JSON calls, signers, headers, links and settings; through a scripted transport."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import anyio
import pytest

from meeting_async import Event, Finished, MeetingClient, RetryPolicy, Started, UploadJob
from meeting_async.errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidInput,
    MeetingError,
    ReplyError,
    RequestRefused,
    RoomNotFound,
    ServerFailed,
    UnexpectedReply,
)
from meeting_async.signers import HmacSigner, SignedHeaders
from meeting_async.transports import Reply
from support.courses import upload
from support.documents import ASKED, LARGE, SMALL
from support.fake_rooms import (
    KEY,
    SECRET,
    Act,
    Scripted,
    accepted,
    busy,
    client_without_checks,
    free,
    hanging,
    headers_of,
    lost,
    record,
    reply,
    signature,
    unreachable,
)

Run = Callable[..., Any]

# --- JSON calls ----------------------------------------------------------------------------------


def test_json_calls_as_the_interface_says(run: Run) -> None:
    """The very bytes that are sent are signed; what comes back is the record, typed or whole."""

    async def main() -> None:
        room = {"room_info": {"room_title": "Physics", "room_id": "room01", "is_running": 1}}
        transport = Scripted(
            accepted(), reply(200, {"rooms": []}), reply(200, record("SUCCESS", room=room))
        )
        async with client_without_checks(transport) as client:
            payload = {"room_id": "raum-ä", "b": [1, None, True], "a": {"ü": 1.5}}
            assert (await client.call("/room/create", payload))["status"] is True
            assert await client.call("room/list") == {"rooms": []}
            info = await client.get_active_room_info("room01")
        assert transport.visits[2].request.max_reply_bytes == 16 * 1024**2  # of many people
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
    ("idempotent",
     [unreachable(), lost(), reply(429, b""), reply(503, b"", "1"), accepted()], None),
    ("idempotent", [FOREIGN] * 5, UnexpectedReply),
    ("idempotent", [reply(500, record("INTERNAL_SERVER_ERROR"))], ServerFailed),
    ("idempotent", [reply(200, record("ROOM_NOT_FOUND"))], RoomNotFound),
    # Any other call: only what was never sent, or was rate-limited.
    ("once", [unreachable(), reply(429, b""), reply(503, record("X"), "1"), accepted()], None),
    ("once", [lost()], ConnectionLost),
    ("once", [FOREIGN], UnexpectedReply),
    ("once", [reply(409, b"")], RequestRefused),
    ("once", [reply(200, b"<html>")], UnexpectedReply),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "script", "error"), CALLS)
def test_what_a_json_call_repeats(run: Run, kind: str, script: list[Act], error: Any) -> None:
    """Never the same call twice where that could do something twice; no request too many."""

    async def main() -> None:
        transport = Scripted(*script)
        raised: Any = None
        async with client_without_checks(transport) as client:
            idempotent = kind == "idempotent"
            try:
                await client.call("room/create", {"room_id": "r"}, idempotent=idempotent)
            except MeetingError as failure:
                raised = failure
        assert type(raised) is (error or type(None))
        if raised:
            assert len(raised.attempts) == len(script)
            assert (raised.operation, raised.room_id) == ("room/create", "r")
        assert len(transport.visits) == len(script)
        assert all(visit.request.idempotent is idempotent for visit in transport.visits)
        begun = [visit.began for visit in transport.visits]
        assert all(later - earlier >= 0.25 for earlier, later in itertools.pairwise(begun))

    run(main)


def test_retries_that_help_use_up_no_budget(run: Run) -> None:
    """A server that needs a second attempt each time gets it for as long as that helps."""

    async def main() -> None:
        script = [reply(429, b""), accepted()] * 150
        async with client_without_checks(Scripted(*script)) as client:
            for _ in range(150):
                await client.call("room/create")

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


def test_a_signer_is_called_once_for_every_message(run: Run) -> None:
    """A rotated key is used from the next attempt on, for questions, too.

    The room is signed before it is asked about: then nothing comes between that and the document.
    """

    async def main() -> None:
        signer = Rotating()
        transport = Scripted(busy(), unreachable(), free(), accepted(), checks=accepted())
        async with client_without_checks(transport, preflight=True, signer=signer) as client:
            await upload(client, ASKED, "raum-ä")
        check, room = '{"room_id":"raum-ä"}'.encode(), "raum-ä".encode()
        assert signer.messages == [room, check] * 3
        keys = [headers_of(visit)["api-key"] for visit in transport.visits]
        assert keys == [f"key{number}" for number in (2, 1, 4, 3, 6, 5, 5)]

    run(main)


@pytest.mark.parametrize(
    ("signer", "error"),
    [
        (Remote(), None),
        (Remote(error=ConnectionError("vault")), ConnectionError),
        (Remote(result=("key", "signature")), TypeError),
    ],
)
def test_asynchronous_signers(run: Run, signer: Remote, error: Any) -> None:
    """What a signer raises ends the call as it is; it is not asked again."""

    async def main() -> None:
        transport, before = Scripted(then=lambda _: accepted()), signer.calls
        async with client_without_checks(transport, signer=signer) as client:
            for call in (upload(client), client.get_active_room_info("room01")):
                with pytest.raises(error) if error else nullcontext():
                    await call
        assert signer.calls == before + 2
        assert len(transport.visits) == (0 if error else 2)

    run(main)


def test_headers_in_both_directions(run: Run) -> None:
    """``default_headers`` go with every request; receipts and errors have those of the reply."""

    def answering(status: int, code: str) -> Act:
        pairs = ((b"X-Request-ID", b"r-1"), (b"Set-Cookie", b"a"))
        return Act(result=Reply(status, pairs, json.dumps(record(code)).encode()))

    async def main() -> None:
        script = [accepted(), free(), answering(200, "SUCCESS"), answering(400, "NO")]
        transport = Scripted(*script)
        headers = {"X-Tenant": "school", "User-Agent": "lms/1"}
        async with client_without_checks(
            transport, preflight=True, default_headers=headers
        ) as client:
            receipt = await upload(client, LARGE)
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


REPLIES: dict[str, tuple[Any, Any]] = {
    "text": ((("X-Request-ID", "r-1"), ("Set-Cookie", "a")), json.dumps(record("SUCCESS"))),
    "a mapping": ({"X-Request-ID": b"r-1", b"Set-Cookie": "a"}, record("SUCCESS")),
    "lists": ([[b"X-Request-ID", b"r-1"], ["Set-Cookie", bytearray(b"a")]], record("SUCCESS")),
}


@pytest.mark.parametrize("given", REPLIES.values(), ids=REPLIES)
def test_headers_and_content_that_are_text(run: Run, given: tuple[Any, Any]) -> None:
    """As other HTTP libraries have them: a transport need not turn them into bytes."""
    headers, content = given
    content = content if isinstance(content, str) else bytearray(json.dumps(content).encode())

    async def main() -> None:
        transport = Scripted(Act(result=Reply(200, headers, content)))
        async with client_without_checks(transport) as client:
            receipt = await upload(client)
        assert receipt.headers == (("x-request-id", "r-1"), ("set-cookie", "a"))

    run(main)
    for wrong in (None, "x: y", ((1, 2),), (("a",),)):
        with pytest.raises(TypeError, match=r"headers of a Reply are no .*: give "):
            Reply(200, wrong)
    with pytest.raises(TypeError, match="content of a Reply is a NoneType: give bytes"):
        Reply(200, (), None)


# --- settings ------------------------------------------------------------------------------------


def every_kind(client: MeetingClient, own: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return a call of each kind, which is not answered."""

    async def batch() -> None:
        job = UploadJob("room01", SMALL, filename="deck.pdf")
        async with client.upload_many([job], **own) as running:
            raise (await running.wait()).outcomes[0].error or AssertionError

    async def check() -> None:
        assert (await client.check(**own)).server.detail == f"no answer in {LIMIT:.1f} s"
        raise DeadlineExceeded(LIMIT, "checking")

    return {
        "upload": lambda: upload(client, **own),
        "call": lambda: client.call("room/list", **own),
        "room": lambda: client.get_active_room_info("room01", **own),
        "activity": lambda: client.wait_until_active("room01", **own),
        "batch": batch,
        "check": check,
    }


LIMIT = 3.0
VARIABLES = {
    "MEETING_BASE_URL": "https://meet.test",
    "MEETING_API_KEY": KEY,
    "MEETING_API_SECRET": SECRET,
}
WAYS: dict[str, tuple[dict[str, str], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "client": ({}, {"timeout": LIMIT}, {}, {}),
    "options": ({}, {"timeout": 9}, {"timeout": LIMIT}, {}),
    "environment": ({"MEETING_TIMEOUT": f"{LIMIT}"}, {}, {}, {}),
    "argument beside the environment": ({"MEETING_TIMEOUT": "9"}, {"timeout": LIMIT}, {}, {}),
    "own": ({"MEETING_TIMEOUT": "9"}, {}, {}, {"timeout": LIMIT}),
    "own alone": ({}, {}, {}, {"timeout": LIMIT}),
}
"""Where it is set: in the environment, for the client, for a part of it, for the call."""


@pytest.mark.parametrize("way", WAYS)
def test_a_limit_of_every_call(run: Run, way: str) -> None:
    """That of the client counts, unless the call has one of its own; it limits everything."""
    variables, settings, options, own = WAYS[way]

    async def main() -> None:
        transport = Scripted(then=lambda _: hanging(), checks=hanging())
        environ = {**VARIABLES, **variables}
        async with MeetingClient.from_env(environ, transport=transport, **settings) as client:
            for name, call in every_kind(client.with_options(**options), own).items():
                began = anyio.current_time()
                with pytest.raises(DeadlineExceeded) as caught:
                    await call()
                assert (name, caught.value.seconds) == (name, LIMIT)
                assert LIMIT <= anyio.current_time() - began <= LIMIT + 0.25

    run(main)


def test_no_limit_of_a_call(run: Run) -> None:
    """``None`` is none, whatever the client has; waiting for a room needs one."""

    async def main() -> None:
        transport = Scripted(then=lambda _: accepted(replying=9.0), checks=accepted(replying=9.0))
        async with client_without_checks(transport, timeout=LIMIT) as limited:
            for client, own in (
                (limited, {"timeout": None}),
                (limited.with_options(timeout=None), {}),
            ):
                calls = every_kind(client, own)
                for name in ("upload", "call", "room"):
                    await calls[name]()
                with pytest.raises(InvalidInput, match="timeout is needed"):
                    await calls["activity"]()

    run(main)


def test_with_options(run: Run) -> None:
    """Other options, the same connections; closing the result closes nothing."""

    async def main() -> None:
        transport = Scripted(then=lambda _: busy())
        async with client_without_checks(transport) as client:
            async with client.with_options(retry=RetryPolicy(max_attempts=1)) as other:
                assert type(other) is type(client)
            assert transport.closed == 0
            client.with_options(lock=None, retry=None, timeouts=None, on_event=None)
        assert transport.closed == 1

    run(main)


@pytest.mark.anyio
async def test_the_life_of_a_client() -> None:
    """Never used: silent; used and forgotten: a ResourceWarning; its repr shows no secret."""
    client = client_without_checks(Scripted())
    assert repr(client) == "<MeetingClient for https://meet.test/auth>"
    del client
    gc.collect()
    clients = [client_without_checks(Scripted(accepted()))]
    await clients[0].call("room/list")
    with pytest.warns(ResourceWarning, match="unclosed MeetingClient for https://meet.test/auth"):
        clients.clear()
    ends: list[Event] = []
    async with client_without_checks(Scripted(), on_event=ends.append) as closed:
        pass
    await closed.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await closed.call("room/list")
    with pytest.raises(RuntimeError, match="closed"):
        await upload(closed)
    assert "closed" in repr(closed)
    assert [type(event) for event in ends] == [Started, Finished] * 2
