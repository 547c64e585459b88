"""The client: its methods and its settings.

More of it: ``test_client_input`` and ``test_client_lifetime``.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from _clients import PDF, SECRET, InVirtualTime, connected, signature, upload
from _fakes import (
    Act,
    EventRecorder,
    FakeTransport,
    accepted,
    failing,
    hanging,
    record,
    reply,
)
from meeting_async import (
    ActiveRoom,
    HmacSigner,
    MeetingClient,
    RetryPolicy,
    Timeouts,
    UploadReceipt,
)
from meeting_async.errors import (
    AuthenticationFailed,
    ConfigurationError,
    ConnectionLost,
    DeadlineExceeded,
    DocumentTooLarge,
    InvalidInput,
    RoomNotFound,
)

pytestmark = pytest.mark.anyio


# --- the methods ---------------------------------------------------------------------------------


async def test_get_active_room_info() -> None:
    """A signed POST with the room in a JSON body; the record comes back typed and whole."""
    room = {
        "room_info": {"room_title": "Physics", "room_id": "room01", "is_running": 1},
        "participants_info": [{"identity": "p1", "name": "Presenter"}],
    }
    transport = FakeTransport(reply(200, record("SUCCESS", room=room)))
    async with connected(transport) as client:
        info = await client.get_active_room_info("room01")
    assert isinstance(info, ActiveRoom)
    assert (info.room_id, info.title, info.is_running) == ("room01", "Physics", True)
    assert info.participants[0].name == "Presenter"
    assert info.raw["room"] == room
    (exchange,) = transport.exchanges
    request, body = exchange.request, bytes(exchange.sent)
    assert (request.method, body) == ("POST", b'{"room_id":"room01"}')
    assert request.url == "https://meet.test/auth/room/getActiveRoomInfo"
    assert exchange.headers["api-key"] == "key"
    assert exchange.headers["hash-signature"] == signature(body)
    assert exchange.headers["content-type"] == "application/json"


async def test_upload_whiteboard_file() -> None:
    """A signed multipart POST with the room in a header; the signature is over that header."""
    transport = FakeTransport(accepted())
    async with connected(transport) as client:
        receipt = await client.upload_whiteboard_file("raum-ä", PDF, filename="deck.pdf")
    assert isinstance(receipt, UploadReceipt)
    (exchange,) = transport.exchanges
    assert exchange.request.url == "https://meet.test/auth/room/uploadWhiteboardFile"
    assert exchange.headers["room-id"] == "raum-ä"
    assert exchange.headers["hash-signature"] == signature("raum-ä".encode())
    assert exchange.headers["content-type"].startswith("multipart/form-data; boundary=")
    assert int(exchange.headers["content-length"]) == len(exchange.sent)
    assert exchange.document == PDF
    assert b'name="document"; filename="deck.pdf"\r\nContent-Type: application/pdf' in exchange.sent


async def test_call() -> None:
    """Any other method: the payload's bytes are signed as they are sent; the object comes back."""
    transport = FakeTransport(reply(200, record("SUCCESS", token="t")), accepted(), accepted())
    payload = {"room_id": "raum-ä", "b": [1, None, True], "a": {"ü": 1.5}}
    async with connected(transport) as client:
        answer = await client.call("room/create", payload)
        await client.call("/room/create")
        await client.call("room/create", {})
    assert answer == {
        "status": True,
        "msg": "as the script says",
        "status_code": "SUCCESS",
        "token": "t",
    }
    first, *empty = transport.exchanges
    assert json.loads(first.sent) == payload
    assert list(json.loads(first.sent)) == ["room_id", "b", "a"]
    assert "raum-ä".encode() in first.sent
    for exchange in transport.exchanges:
        assert exchange.request.url == "https://meet.test/auth/room/create"
        assert exchange.headers["hash-signature"] == signature(bytes(exchange.sent))
    assert [bytes(exchange.sent) for exchange in empty] == [b"{}", b"{}"]


async def test_a_call_that_is_not_accepted_raises() -> None:
    """``status: false`` is an error whatever the method; no status at all is an answer."""
    transport = FakeTransport(reply(200, record("ROOM_NOT_FOUND")), reply(200, {"rooms": []}))
    async with connected(transport) as client:
        with pytest.raises(RoomNotFound) as caught:
            await client.call("room/endRoom", {"room_id": "room01"})
        assert (caught.value.operation, caught.value.room_id) == ("room/endRoom", "room01")
        assert await client.call("room/list") == {"rooms": []}


async def test_a_call_is_repeated_only_if_that_is_harmless() -> None:
    """A lost reply ends a call, unless it is idempotent."""
    quick = RetryPolicy(initial_delay=0.001)
    lost = [failing(ConnectionLost("reset")) for _ in range(2)]
    transport = FakeTransport(lost[0], accepted())
    async with connected(transport, retry=quick) as client:
        with pytest.raises(ConnectionLost):
            await client.call("room/create")
        assert len(transport.exchanges) == 1
    transport = FakeTransport(lost[1], accepted())
    async with connected(transport, retry=quick) as client:
        await client.call("room/create", idempotent=True)
        assert len(transport.exchanges) == 2


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("https://meet.test", "https://meet.test/auth/x"),
        ("https://meet.test/", "https://meet.test/auth/x"),
        ("https://meet.test/auth", "https://meet.test/auth/x"),
        ("https://meet.test/prefix/auth/", "https://meet.test/prefix/auth/x"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/auth/x"),
        ("http://[::1]:8080/", "http://[::1]:8080/auth/x"),
        ("http://localhost", "http://localhost/auth/x"),
    ],
)
async def test_base_urls(base_url: str, expected: str) -> None:
    """However the base URL is written, requests go to ``{base_url}/auth`` and the path."""
    transport = FakeTransport(accepted())
    async with MeetingClient(
        base_url, api_key="key", api_secret=SECRET, transport=transport
    ) as client:
        await client.call("x")
    assert transport.exchanges[0].request.url == expected


async def test_timeouts_reach_the_transport() -> None:
    """Each kind of call carries its limits."""
    limits = Timeouts(reply=3, upload_reply=7)
    transport = FakeTransport(accepted(), accepted())
    async with connected(transport, timeouts=limits) as client:
        await client.call("x")
        await client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")
    requests = [exchange.request for exchange in transport.exchanges]
    assert [request.reply_timeout for request in requests] == [3, 7]
    assert [request.timeouts for request in requests] == [limits, limits]


# --- waiting until a room is active --------------------------------------------------------------


def test_wait_until_active(in_virtual_time: InVirtualTime) -> None:
    """Asks every two seconds while the room is not there, or not active."""

    async def main() -> list[float]:
        script = [
            reply(200, record("ROOM_NOT_FOUND")),
            reply(200, record("ROOM_NOT_ACTIVE")),
            accepted(),
        ]
        transport = FakeTransport(*script)
        async with connected(transport) as client:
            room = await client.wait_until_active("room01", 60)
        assert isinstance(room, ActiveRoom)
        assert room.room_id == "room01"
        return [exchange.began for exchange in transport.exchanges]

    assert in_virtual_time(main) == [0, 2, 4]


@pytest.mark.parametrize("act", [reply(200, record("ROOM_NOT_ACTIVE")), hanging()])
def test_wait_until_active_gives_up(in_virtual_time: InVirtualTime, act: Act) -> None:
    """After ``timeout`` seconds, also in the middle of a question."""

    async def main() -> float:
        async with connected(FakeTransport(then=lambda _: act)) as client:
            with pytest.raises(DeadlineExceeded, match=r"room 'room01' to become active") as caught:
                await client.wait_until_active("room01", 7)
        assert caught.value.seconds == 7
        return anyio.current_time()

    assert in_virtual_time(main) == 7


async def test_wait_until_active_does_not_wait_for_the_impossible() -> None:
    """Anything but a room that is not there yet is raised at once."""
    transport = FakeTransport(reply(401, record("INVALID_API_KEY")))
    async with connected(transport) as client:
        with pytest.raises(AuthenticationFailed):
            await client.wait_until_active("room01", 60)


async def test_seconds_are_checked() -> None:
    """A deadline is a positive number of seconds; a closed client does not get so far."""
    transport = FakeTransport()
    async with connected(transport) as client:
        with pytest.raises(InvalidInput, match="deadline"):
            await client.call("x", deadline=0)
    with pytest.raises(RuntimeError, match="closed"):
        await client.call("x")
    assert not transport.exchanges


# --- settings ------------------------------------------------------------------------------------

KEYS = {"api_key": "key", "api_secret": SECRET}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({}, "api_key"),
        ({"api_key": "key"}, "api_secret"),
        ({"api_secret": SECRET}, "api_key"),
        ({"api_key": "", "api_secret": SECRET}, "api_key"),
        ({"api_key": "a b", "api_secret": SECRET}, "api_key"),
        ({"api_key": "key", "api_secret": ""}, "api_secret"),
        ({"signer": HmacSigner("k", "s"), "api_key": "key"}, "signer"),
        ({"signer": HmacSigner("k", "s"), "api_secret": SECRET}, "signer"),
        *[
            ({"max_size_whiteboard_file": size, **KEYS}, "max_size_whiteboard_file")
            for size in (0, -1, True, "30MB", "", "x", 1.5)
        ],
        ({"delivery": "exactly_once", **KEYS}, "delivery"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], field: str) -> None:
    """A ``ConfigurationError`` that names the setting and says what to do; no secret in it."""
    with pytest.raises(ConfigurationError) as caught:
        MeetingClient("https://meet.test", transport=FakeTransport(), **settings)
    assert caught.value.field == field
    assert caught.value.fix
    assert SECRET not in str(caught.value).replace("api_secret", "")


WRONG_TYPES: list[tuple[str, Any]] = [
    ("delivery", None),
    ("allow_images", "yes"),
    ("lock", 5),
    ("lock", 0),
    ("retry", 0),
    ("timeouts", False),
    ("on_event", "print"),
]


@pytest.mark.parametrize(("setting", "value"), WRONG_TYPES)
@pytest.mark.parametrize("derived", [False, True])
def test_settings_of_a_wrong_type(setting: str, value: Any, derived: bool) -> None:
    """One clear line that names the setting; a wrong value is not passed over in silence."""
    make: Callable[..., MeetingClient] = partial(connected, FakeTransport())
    with pytest.raises((ConfigurationError, TypeError)) as caught:
        (make().with_options if derived else make)(**{setting: value})
    assert setting in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "meet.test",
        "ftp://meet.test",
        "https://",
        "https://u:p@meet.test",
        "https://meet.test?x=1",
        "https://meet.test#x",
        "http://meet.test",
        "https://meet.test:port",
        "https://meet.test\n",
    ],
)
def test_base_urls_that_cannot_be_used(base_url: str) -> None:
    """Named, with the way out; a password in it is not repeated."""
    with pytest.raises(ConfigurationError) as caught:
        MeetingClient(base_url, **KEYS)  # type: ignore[arg-type]
    assert caught.value.field == "base_url"
    assert "u:p" not in str(caught.value)


def test_plaintext_can_be_allowed() -> None:
    """``allow_plaintext=True`` for a network one trusts."""
    client = MeetingClient("http://meet.test", allow_plaintext=True, api_key="k", api_secret="s")
    assert repr(client) == "<MeetingClient for http://meet.test/auth>"


class CollectingTransport(FakeTransport):
    """A transport that is a collection, and empty at first."""

    def __len__(self) -> int:
        return len(self.exchanges)


async def test_a_transport_that_is_falsy_is_used() -> None:
    """Given is given, whatever its truth value."""
    transport = CollectingTransport(accepted())
    async with connected(transport, retry=RetryPolicy(max_attempts=1)) as client:
        await client.call("x")
    assert len(transport) == 1


def test_a_client_half_made_has_a_repr() -> None:
    """Error trackers show local variables, of a constructor that raised as well."""
    assert "MeetingClient" in repr(MeetingClient.__new__(MeetingClient))


# --- from_env ------------------------------------------------------------------------------------

ENVIRON = {
    "MEETING_BASE_URL": "https://env.test/prefix",
    "MEETING_API_KEY": "envkey",
    "MEETING_API_SECRET": SECRET,
}


async def sent_by(client: MeetingClient, transport: FakeTransport) -> tuple[str, str, bool]:
    """Make a call; return its URL and key, and whether the signature is the secret's."""
    async with client:
        await client.call("x")
    exchange = transport.exchanges[-1]
    headers = exchange.headers
    return (
        exchange.request.url,
        headers["api-key"],
        headers["hash-signature"] == signature(bytes(exchange.sent)),
    )


async def test_from_env(monkeypatch: pytest.MonkeyPatch) -> None:
    """All settings from the process's environment."""
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MEETING_MAX_SIZE_WHITEBOARD_FILE", "1KiB")
    transport = FakeTransport(accepted())
    client = MeetingClient.from_env(transport=transport)
    with pytest.raises(DocumentTooLarge):
        await client.upload_whiteboard_file("room01", bytes(1025), filename="deck.pdf")
    assert await sent_by(client, transport) == ("https://env.test/prefix/auth/x", "envkey", True)


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_from_env_with_a_secret_file(ending: bytes, tmp_path: Path) -> None:
    """The secret may stand in a file; one line break at its end does not count."""
    path = tmp_path / "secret"
    path.write_bytes(SECRET.encode() + ending)
    environ = {**ENVIRON, "MEETING_API_SECRET_FILE": str(path)}
    del environ["MEETING_API_SECRET"]
    transport = FakeTransport(accepted())
    client = MeetingClient.from_env(environ, transport=transport)
    assert asyncio.run(sent_by(client, transport))[2]


@pytest.mark.parametrize(
    ("changes", "variable"),
    [
        ({"MEETING_BASE_URL": None}, "MEETING_BASE_URL"),
        ({"MEETING_BASE_URL": ""}, "MEETING_BASE_URL"),
        ({"MEETING_API_KEY": None}, "MEETING_API_KEY"),
        ({"MEETING_API_SECRET": None}, "MEETING_API_SECRET"),
        ({"MEETING_API_SECRET": ""}, "MEETING_API_SECRET"),
        ({"MEETING_API_SECRET_FILE": "/does/not/exist"}, "MEETING_API_SECRET"),
        (
            {"MEETING_API_SECRET": None, "MEETING_API_SECRET_FILE": "/does/not/exist"},
            "MEETING_API_SECRET_FILE",
        ),
        ({"MEETING_MAX_SIZE_WHITEBOARD_FILE": "30MB"}, "MEETING_MAX_SIZE_WHITEBOARD_FILE"),
        ({"MEETING_ALLOW_PLAINTEXT": "perhaps"}, "MEETING_ALLOW_PLAINTEXT"),
        ({"MEETING_BASE_URL": "http://meet.test"}, "base_url"),
    ],
)
def test_from_env_names_what_is_wrong(changes: Mapping[str, str | None], variable: str) -> None:
    """Missing or unusable variables are a ``ConfigurationError`` with their name."""
    environ = {name: value for name, value in {**ENVIRON, **changes}.items() if value is not None}
    with pytest.raises(ConfigurationError) as caught:
        MeetingClient.from_env(environ)
    assert caught.value.field == variable
    assert SECRET not in str(caught.value)


async def test_from_env_allows_plaintext() -> None:
    """``MEETING_ALLOW_PLAINTEXT=1`` is ``allow_plaintext=True``."""
    environ = {**ENVIRON, "MEETING_BASE_URL": "http://meet.test", "MEETING_ALLOW_PLAINTEXT": "1"}
    transport = FakeTransport(accepted())
    client = MeetingClient.from_env(environ, transport=transport)
    assert (await sent_by(client, transport))[0] == "http://meet.test/auth/x"


async def test_arguments_win_over_the_environment() -> None:
    """What is passed to ``from_env`` replaces what the environment says; the rest stays."""
    transport = FakeTransport(accepted(), accepted(), accepted())
    client = MeetingClient.from_env(ENVIRON, api_key="mine", transport=transport)
    assert await sent_by(client, transport) == ("https://env.test/prefix/auth/x", "mine", True)
    signer = HmacSigner("signers", "other")
    client = MeetingClient.from_env(ENVIRON, signer=signer, transport=transport)
    assert await sent_by(client, transport) == ("https://env.test/prefix/auth/x", "signers", False)
    only_url = {"MEETING_BASE_URL": "https://env.test"}
    client = MeetingClient.from_env(only_url, signer=signer, transport=transport)
    assert (await sent_by(client, transport))[1] == "signers"


async def test_from_env_with_no_signer_is_the_environments() -> None:
    """``signer=None`` is the default and takes nothing away."""
    transport = FakeTransport(accepted())
    client = MeetingClient.from_env(ENVIRON, signer=None, transport=transport)
    assert (await sent_by(client, transport))[1:] == ("envkey", True)


# --- with_options --------------------------------------------------------------------------------


async def test_with_options_changes_a_copy() -> None:
    """The derived client has the new options, the original keeps its own; both share the rest."""
    transport, recorder = FakeTransport(then=lambda _: accepted()), EventRecorder()
    async with connected(transport) as client:
        derived = client.with_options(max_size_whiteboard_file="1KiB", on_event=recorder)
        with pytest.raises(DocumentTooLarge):
            await upload(derived, document=bytes(1025))
        await upload(client, document=bytes(1025))
        assert not recorder.events
        await upload(derived.with_options(max_size_whiteboard_file=None), document=bytes(1025))
        assert recorder.events
    assert len(transport.exchanges) == 2
    assert repr(derived) == repr(client)


async def test_a_derived_client_does_not_close() -> None:
    """Only the original closes; then both are closed."""
    transport = FakeTransport(then=lambda _: accepted())
    async with connected(transport) as client:
        derived = client.with_options(allow_images=True)
        async with derived:
            await derived.call("x")
        await derived.aclose()
        assert transport.closed == 0
        await derived.call("x")
    assert transport.closed == 1
    with pytest.raises(RuntimeError, match="closed"):
        await derived.call("x")


def test_with_options_checks() -> None:
    """Unknown options and unusable values are refused as in the constructor."""
    client = connected(FakeTransport())
    with pytest.raises(TypeError, match="api_key"):
        client.with_options(api_key="other")
    with pytest.raises(TypeError, match="colour"):
        client.with_options(colour="red")
    for option, value in (("max_size_whiteboard_file", "30MB"), ("delivery", "twice")):
        with pytest.raises(ConfigurationError) as caught:
            client.with_options(**{option: value})
        assert caught.value.field == option


def test_with_options_shares_the_turnstile(in_virtual_time: InVirtualTime) -> None:
    """Uploads of both to one room take turns."""

    async def main() -> FakeTransport:
        transport = FakeTransport(then=lambda _: accepted(replying=5))
        async with connected(transport) as client, anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(upload, client.with_options(allow_images=bool(number % 2)))
        assert anyio.current_time() == 20
        return transport

    assert not in_virtual_time(main).collisions
