"""Secret and signature appear nowhere but on the wire, whatever goes right or wrong.

Not in reprs, texts, events, errors, notes, pickles, logs of any library at DEBUG, nor in tracebacks
that show local variables, as error trackers do. All over the real transport.
"""

import copy
import hashlib
import hmac
import logging
import pickle
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest

from _fakes import EventRecorder
from _peer import Connection, Peer, answering, resetting, resetting_at_once, silent
from _peer import reply as raw_reply
from meeting_async import (
    AttemptStarted,
    BytesSent,
    Event,
    HmacSigner,
    LockPolicy,
    MeetingClient,
    Request,
    RetryPolicy,
    SignedHeaders,
    Timeouts,
    WaitingForRoom,
)
from meeting_async._wire import json_bytes
from meeting_async.errors import (
    AuthenticationFailed,
    ConfigurationError,
    ConnectFailed,
    DeadlineExceeded,
    DocumentChanged,
    DocumentRefused,
    DocumentTypeRefused,
    InvalidInput,
    MeetingError,
    ProcessingFailed,
    RequestRefused,
    RoomBusy,
    RoomNotActive,
    Throttled,
    TransportError,
    UnexpectedReply,
    UploadInterrupted,
    UploadOutcomeUnknown,
)
from meeting_async.testing import MeetingServer

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
MIB = b"%PDF" + bytes(1024**2 - 4)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)
SECRET = "Xq7-the-api-secret-f00"


def signature(message: bytes) -> str:
    """Sign as interface section 5 says."""
    return hmac.new(SECRET.encode(), message, hashlib.sha256).hexdigest()


FORBIDDEN = {
    "secret": SECRET,
    "signature of the room": signature(b"room01"),
    "signature of a question": signature(json_bytes({"room_id": "room01"})),
    "signature of a call": signature(b"{}"),
}


def leaks(text: str) -> set[str]:
    """Name what must not be in a text and is."""
    return {name for name, word in FORBIDDEN.items() if word in text}


def about(error: BaseException) -> Iterator[tuple[str, str]]:
    """Everything that a log, a debugger or an error tracker may get to see of an error."""
    yield "str", str(error)
    yield "repr", repr(error)
    yield "dict", repr(vars(error))
    yield "notes", repr(getattr(error, "__notes__", None))
    told = traceback.TracebackException.from_exception(error, capture_locals=True)
    yield "traceback", "".join(told.format(chain=True))
    if isinstance(error, MeetingError):
        yield "pickle", pickle.dumps(error, protocol=0).decode("latin-1")
        yield "copy", repr(copy.copy(error))
        yield "attempts", repr([attrs.asdict(attempt) for attempt in error.attempts])
    if error.__cause__ is not None:
        yield from about(error.__cause__)
    if error.__context__ is not None and error.__context__ is not error.__cause__:
        yield from about(error.__context__)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Collect every record of every library at DEBUG."""
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore", "asyncio", "meeting_async"):
        caplog.set_level(logging.DEBUG, name)
    return caplog


def logged(log: pytest.LogCaptureFixture) -> Iterator[tuple[str, str]]:
    """All that can be made of the records."""
    formatter = logging.Formatter("%(name)s %(levelname)s %(message)s")
    for entry in log.records:
        yield f"log of {entry.name}", formatter.format(entry)
        yield f"record of {entry.name}", repr(vars(entry))


def check(
    error: BaseException | None, recorder: EventRecorder, log: pytest.LogCaptureFixture
) -> None:
    """Assert that nothing leaked."""
    found = [] if error is None else list(about(error))
    found += [("event", repr(event)) for event in recorder.events]
    found += [("event", pickle.dumps(event, 0).decode("latin-1")) for event in recorder.events]
    found += logged(log)
    assert {where: leaks(text) for where, text in found if leaks(text)} == {}


# --- the stage -----------------------------------------------------------------------------------


@attrs.define
class Stage:
    """A server, a client of it and what the client tells."""

    server: MeetingServer
    directory: Path
    recorder: EventRecorder = attrs.field(factory=EventRecorder)

    def client(self, url: str | None = None, **settings: Any) -> MeetingClient:
        """Make a client, by default of the server."""
        settings = {"signer": HmacSigner(self.server.api_key, SECRET), **settings}
        quick = RetryPolicy(initial_delay=0.001, max_attempts=3)
        lock = LockPolicy(min_delay=0.01)
        settings = {"retry": quick, "lock": lock, "on_event": self.recorder, **settings}
        return MeetingClient(url or self.server.url, **settings)

    def large_file(self) -> Path:
        """Make a document that does not fit into the buffers of a connection."""
        path = self.directory / "large.pdf"
        with path.open("wb") as file:
            file.truncate(16 * 1024**2)
        return path

    async def upload(
        self, url: str | None = None, document: Any = PDF, room_id: str = "room01", **settings: Any
    ) -> None:
        """Upload a document."""
        how = {name: settings.pop(name) for name in ("deadline", "max_wait") if name in settings}
        name = "deck.pdf" if isinstance(document, bytes) else None
        async with self.client(url, **settings) as client:
            await client.upload_whiteboard_file(room_id, document, filename=name, **how)

    async def ask(self, url: str | None = None, **settings: Any) -> None:
        """Ask for a room."""
        async with self.client(url, **settings) as client:
            await client.get_active_room_info("room01")

    async def with_peer(self, script: Callable[[Connection], None], **how: Any) -> None:
        """Upload to a peer that misbehaves."""
        peer = Peer(script)
        await anyio.to_thread.run_sync(peer.__enter__)
        try:
            await self.upload(peer.url, **how)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(peer.__exit__, None, None, None)


@pytest.fixture(scope="module")
def running_server() -> Iterator[MeetingServer]:
    """Run one server for all tests."""
    server = MeetingServer(api_secret=SECRET, max_size_whiteboard_file=2 * 1024**2)
    with server.run():
        yield server


@pytest.fixture
def stage(running_server: MeetingServer, tmp_path: Path) -> Stage:
    """Give the server fresh rooms and forget what was scripted."""
    running_server._state.rooms.clear()
    running_server._state.faults._queue.clear()
    running_server.add_room("room01")
    return Stage(running_server, tmp_path)


# --- what goes wrong -----------------------------------------------------------------------------


async def wrong_key(stage: Stage) -> None:
    """Get 401."""
    await stage.upload(signer=HmacSigner("other", SECRET))


async def wrong_signature(stage: Stage) -> None:
    """Get 401, with the signature of something else."""
    await stage.upload(signer=WrongSigner())


class WrongSigner:
    """Signs an empty call whatever it is given."""

    def sign(self, _: bytes, /) -> SignedHeaders:
        """Sign."""
        return HmacSigner("devkey", SECRET).sign(b"{}")


async def room_not_active(stage: Stage) -> None:
    """Get 400."""
    stage.server.rooms["room01"].active = False
    await stage.upload()


async def image(stage: Stage) -> None:
    """Get 400 for the content."""
    await stage.upload(document=PNG, allow_images=True)


async def image_beforehand(stage: Stage) -> None:
    """Be refused before anything is sent."""
    await stage.upload(document=PNG)


async def too_large(stage: Stage) -> None:
    """Get 413."""
    await stage.upload(document=b"a" * (2 * 1024**2 + 1))


async def failed_conversion(stage: Stage) -> None:
    """Get 500 in the server's own record."""
    stage.server.rooms["room01"].fail_conversion = True
    await stage.upload()


async def busy(stage: Stage) -> None:
    """Get 409 until the budget ends."""
    stage.server.rooms["room01"].lock(60)
    await stage.upload(max_wait=0.05)


async def throttled(stage: Stage) -> None:
    """Get 429 for ever."""
    stage.server.reply_next(429, headers={"retry-after": "0"}, times=3)
    await stage.upload()


async def foreign_page(stage: Stage) -> None:
    """Get 200 with a page."""
    stage.server.reply_next(200, body=b"<html>")
    await stage.upload()


async def foreign_page_for_a_question(stage: Stage) -> None:
    """Get the same for a JSON call."""
    stage.server.reply_next(200, body=b"<html>", times=3)
    await stage.ask()


async def redirect(stage: Stage) -> None:
    """Get 302 to somewhere else."""
    stage.server.reply_next(302, headers={"location": "https://elsewhere.test/"})
    await stage.upload()


async def nobody_listens(stage: Stage) -> None:
    """Find nobody at the address."""
    await stage.upload("http://127.0.0.1:1")


async def no_tls(stage: Stage) -> None:
    """Speak TLS to a port that does not."""
    await stage.upload(stage.server.url.replace("http:", "https:"))


async def reset_at_once(stage: Stage) -> None:
    """Lose the connection while the headers go out, or before."""
    await stage.with_peer(resetting_at_once)


async def reset_in_the_body(stage: Stage) -> None:
    """Lose the connection in the middle of the document."""
    await stage.with_peer(resetting(1000), document=stage.large_file())


async def reset_after_the_boundary(stage: Stage) -> None:
    """Lose the connection instead of getting a reply."""

    def script(connection: Connection) -> None:
        connection.read_head()
        connection.read_body()
        connection.reset()

    await stage.with_peer(script)


async def garbage(stage: Stage) -> None:
    """Get a reply that is no HTTP."""
    await stage.with_peer(answering(b"garbage\r\n\r\n"))


async def truncated(stage: Stage) -> None:
    """Get a reply that ends early."""
    await stage.with_peer(answering(raw_reply()[:-5]), timeouts=Timeouts(upload_reply=0.1))


async def silence(stage: Stage) -> None:
    """Get no reply in time."""
    await stage.with_peer(silent, timeouts=Timeouts(upload_reply=0.1))


async def deadline_in_a_wait(stage: Stage) -> None:
    """Run out of time while the room is locked."""
    stage.server.rooms["room01"].lock(60)
    await stage.upload(deadline=1, lock=LockPolicy(min_delay=10))


async def deadline_after_the_boundary(stage: Stage) -> None:
    """Run out of time while the server converts."""
    stage.server.rooms["room01"].processing_seconds = 1
    await stage.upload(deadline=0.5)


async def changed(stage: Stage) -> None:
    """Let the document shrink while it is sent, deep inside the HTTP library."""
    path = stage.directory / "deck.pdf"
    path.write_bytes(MIB)

    async def on_event(event: Event) -> None:
        stage.recorder(event)
        if isinstance(event, BytesSent):
            await anyio.to_thread.run_sync(path.write_bytes, b"%PDF")

    await stage.upload(document=path, on_event=on_event)


async def broken_signer(stage: Stage) -> None:
    """Let the signer raise."""

    class BrokenSigner:
        def sign(self, _: bytes, /) -> SignedHeaders:
            raise RuntimeError("the vault is sealed")

    await stage.upload(signer=BrokenSigner())


class FoldingSigner:
    """Signs correctly, but as a tool prints it: with a line break at the end."""

    def sign(self, message: bytes, /) -> SignedHeaders:
        """Sign."""
        return SignedHeaders("devkey", signature(message) + "\n")


async def unusable_signature(stage: Stage) -> None:
    """Let the signer return a good signature that cannot stand in a header."""
    await stage.upload(signer=FoldingSigner())


async def unusable_signature_of_a_call(stage: Stage) -> None:
    """Do the same with a JSON call."""
    await stage.ask(signer=FoldingSigner())


async def raising_observer(stage: Stage) -> None:
    """Be refused while the observer raises on each event."""

    def on_event(event: Event) -> None:
        stage.recorder(event)
        raise RuntimeError("boom")

    stage.server.rooms["room01"].active = False
    await stage.upload(on_event=on_event)


SCENARIOS: dict[Callable[[Stage], Awaitable[None]], type[Exception] | tuple[type[Exception], ...]]
SCENARIOS = {
    wrong_key: AuthenticationFailed,
    wrong_signature: AuthenticationFailed,
    room_not_active: RoomNotActive,
    image: RequestRefused,
    image_beforehand: DocumentTypeRefused,
    too_large: DocumentRefused,
    failed_conversion: ProcessingFailed,
    busy: RoomBusy,
    throttled: Throttled,
    foreign_page: UploadOutcomeUnknown,
    foreign_page_for_a_question: UnexpectedReply,
    redirect: RequestRefused,
    nobody_listens: ConnectFailed,
    no_tls: ConnectFailed,
    # How much of a small upload goes out before the reset is noticed is the kernel's business.
    reset_at_once: (TransportError, UploadOutcomeUnknown),
    reset_in_the_body: UploadInterrupted,
    reset_after_the_boundary: UploadOutcomeUnknown,
    garbage: UploadOutcomeUnknown,
    truncated: UploadOutcomeUnknown,
    silence: UploadOutcomeUnknown,
    deadline_in_a_wait: DeadlineExceeded,
    deadline_after_the_boundary: UploadOutcomeUnknown,
    changed: DocumentChanged,
    broken_signer: RuntimeError,
    unusable_signature: InvalidInput,
    unusable_signature_of_a_call: InvalidInput,
    raising_observer: RoomNotActive,
}


@pytest.mark.parametrize(
    ("scenario", "error"), SCENARIOS.items(), ids=[scenario.__name__ for scenario in SCENARIOS]
)
async def test_no_failure_shows_a_secret(
    scenario: Callable[[Stage], Awaitable[None]],
    error: Any,
    stage: Stage,
    log: pytest.LogCaptureFixture,
) -> None:
    """Whatever fails, error, events and logs hold neither secret nor signature."""
    with pytest.raises(error) as caught:
        await scenario(stage)
    check(caught.value, stage.recorder, log)


async def test_no_success_shows_a_secret(stage: Stage, log: pytest.LogCaptureFixture) -> None:
    """Receipts, rooms, replies and the logs of what went well; the signature did go out."""
    stage.server.rooms["room01"].lock(0.02)
    async with stage.client() as client:
        receipt = await client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")
        room = await client.get_active_room_info("room01")
        answer = await client.call("room/isRoomActive", {"room_id": "room01"})
        shown = [receipt, receipt.attempts, receipt.raw, room, room.raw, answer, client]
        assert leaks(" ".join(map(repr, shown))) == set()
    assert {"httpcore.connection", "meeting_async"} <= {r.name for r in log.records}
    check(None, stage.recorder, log)


@pytest.mark.parametrize("moment", [AttemptStarted, WaitingForRoom, BytesSent])
async def test_no_cancellation_shows_a_secret(
    moment: type[Event], stage: Stage, log: pytest.LogCaptureFixture
) -> None:
    """The traceback of a cancelled upload goes through every frame below it."""
    room = stage.server.rooms["room01"]
    room.processing_seconds = 0.5
    if moment is WaitingForRoom:
        room.lock(60)
    raised: list[BaseException] = []

    async def run() -> None:
        try:
            await stage.upload()
        except BaseException as error:
            raised.append(error)
            raise

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await stage.recorder.until(moment)
        await anyio.sleep(0.05)
        group.cancel_scope.cancel()
    # Cancelled while connecting, trio brings it in a group, from the nursery that connects.
    assert not isinstance(raised[0], Exception)
    check(raised[0], stage.recorder, log)


async def test_no_cancellation_of_a_stalled_send_shows_a_secret(
    stage: Stage, log: pytest.LogCaptureFixture
) -> None:
    """A peer that reads nothing: the upload is cancelled inside a write."""
    raised: list[BaseException] = []

    def deaf(connection: Connection) -> None:
        connection.read_head()
        connection.closed_within(5)

    async def run() -> None:
        try:
            await stage.with_peer(deaf, document=stage.large_file())
        except BaseException as error:
            raised.append(error)
            raise

    with anyio.move_on_after(0.3):
        await run()
    check(raised[0], stage.recorder, log)


# --- values --------------------------------------------------------------------------------------


def test_the_values_that_hold_secrets_hide_them() -> None:
    """Signer, signed headers, request and client, by themselves and inside one another."""
    signer = HmacSigner("key", SECRET)
    signed = signer.sign(b"room01")
    request = Request("POST", "https://meet.test", ((b"H", signed.signature.encode()),), b"{}")
    client = MeetingClient("https://meet.test", signer=signer)
    for value in (signer, signed, request, client, [signed], {"request": request}):
        assert leaks(f"{value!r} {value!s}") == set()
    with pytest.raises(TypeError, match="does not pickle"):
        pickle.dumps(signer)
    assert signed.signature == signature(b"room01")


def test_the_search_finds_what_is_there() -> None:
    """The words looked for are the right ones, and found where local variables are shown."""

    def careless() -> None:
        header = SECRET
        raise LookupError(len(header))

    with pytest.raises(LookupError) as caught:
        careless()
    assert {where for where, text in about(caught.value) if leaks(text)} == {"traceback"}
    assert leaks(HmacSigner("key", SECRET).sign(b"room01").signature) == {"signature of the room"}


# --- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"base_url": "http://meet.test"},
        {"api_key": "a b"},
        {"max_size_whiteboard_file": 0},
        {"delivery": "twice"},
    ],
)
def test_no_wrong_setting_shows_the_secret(settings: dict[str, Any]) -> None:
    """A client that is not made does not show the secret it was to be made with."""
    base_url = settings.pop("base_url", "https://meet.test")
    settings = {"api_key": "key", **settings}
    with pytest.raises((ValueError, TypeError)) as caught:
        MeetingClient(base_url, api_secret=SECRET, **settings)
    assert {where: leaks(text) for where, text in about(caught.value) if leaks(text)} == {}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MEETING_BASE_URL", ""),
        ("MEETING_BASE_URL", "http://meet.test"),
        ("MEETING_API_SECRET_FILE", "/does/not/exist"),
        ("MEETING_MAX_SIZE_WHITEBOARD_FILE", "30MB"),
        ("MEETING_ALLOW_PLAINTEXT", "perhaps"),
    ],
)
def test_no_wrong_variable_shows_the_secret(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do the frames of ``from_env``, through which the whole environment goes."""
    monkeypatch.setenv("MEETING_BASE_URL", "https://meet.test")
    monkeypatch.setenv("MEETING_API_KEY", "key")
    monkeypatch.setenv("MEETING_API_SECRET", SECRET)
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidInput) as caught:
        MeetingClient.from_env()
    assert {where: leaks(text) for where, text in about(caught.value) if leaks(text)} == {}


def test_the_warning_about_a_line_break_does_not_show_the_secret() -> None:
    """It says what was done, not to what."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        signer = HmacSigner("key", SECRET + "\n")
    (warning,) = caught
    assert "line break" in str(warning.message)
    assert leaks(str(warning.message)) == set()
    assert signer.sign(b"room01").signature == signature(b"room01")


@pytest.mark.parametrize("secret", [b"", "", SECRET + "\0"])
def test_an_unusable_secret_is_not_repeated(secret: str | bytes) -> None:
    """Text and attributes of the error say ``(hidden)``."""
    with pytest.raises(ConfigurationError) as caught:
        HmacSigner("key", secret)
    assert leaks(str(caught.value) + repr(caught.value)) == set()
