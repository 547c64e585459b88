"""A page that repeats what it was sent: signature and key of the request go no further.

Wrong base URLs lead to pages that show the headers of a request; so do debug modes of proxies.
Looked for is the text as it was sent, in any case of its letters. An encoding of it (percent signs,
HTML, base64) is another text.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from meeting_async import Document, MeetingClient, RetryPolicy, Timeouts, UploadJob, UploadReceipt
from meeting_async.errors import (
    MeetingError,
    ReplyError,
    RequestRefused,
)
from meeting_async.testing import run_in_virtual_time
from meeting_async.transports import HttpxTransport, Reply
from support.fake_rooms import FakeRooms, Visit, accepted, busy, job, reply
from support.loops import in_turn
from support.peer import Connection, Peer
from support.repeating import (
    GREETING,
    KEY,
    NOT_SECRET,
    PLACES,
    PLAIN,
    SECRET,
    STATUSES,
    Answer,
    Repeater,
    as_bytes,
    page,
    repeating,
)
from support.telling import Told, containing, files, unfit

pytestmark = pytest.mark.anyio

TOKEN = "t0ken-of-a-gateway"
HEADERS = {"X-Request-Id": NOT_SECRET}
OWN_SECRET = {**HEADERS, "Authorization": f"Bearer {TOKEN}"}
"""What somebody's gateway in front of the server wants."""
LARGE = b"%PDF".ljust(256 * 1024 + 1, b"\n")
"""A document whose room is looked at first."""
SMALL = LARGE[:1000]

SHORT = "demo"
"""A key that is also a word."""


@pytest.mark.parametrize("is_success", [True, False])
async def test_a_short_key_that_is_a_word(is_success: bool) -> None:
    """It stays in the data of a success; in a refusal it is hidden where it stands alone."""
    texts = {"msg": "the demo of demonstrations", "demo": 1}
    rooms = FakeRooms(ask=lambda _: reply(200, {"status": is_success, **texts}))
    async with MeetingClient(
        "https://meet.test", api_key=SHORT, api_secret=SECRET, transport=rooms
    ) as client:
        try:
            said = (await client.call("room/create"))["msg"]
        except RequestRefused as error:
            said = error.msg
    assert said == (
        "the demo of demonstrations" if is_success else "the (hidden) of demonstrations"
    )


# --- calls ---------------------------------------------------------------------------------------


@asynccontextmanager
async def client_of(peer: Peer, *, borrowed: bool = False, **settings: Any) -> AsyncIterator[Any]:
    """Make a client with connections of its own, or with a client of httpx."""
    usual: dict[str, Any] = {
        "api_key": KEY,
        "api_secret": SECRET,
        "default_headers": HEADERS,
        "retry": RetryPolicy(max_attempts=1, max_interruptions=0, max_outage=0),
        "timeouts": Timeouts(upload_reply=5),
    }
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        if borrowed:
            usual["transport"] = HttpxTransport(client)
        async with MeetingClient(peer.url, **(usual | settings)) as made:
            yield made


def leaked(told: Told, secrets: set[str]) -> list[str]:
    """Tell where one of some secrets was seen.

    Among the locals of a traceback is the client, whose key is no secret by itself.
    """
    found = list(told.texts())
    of_key = [(where, text) for where, text in found if not where.startswith("traceback")]
    return sorted({*containing(found, secrets - {KEY}), *containing(of_key, [KEY])})


CALLS: dict[str, tuple[str, Callable[[MeetingClient, str, Told], Any]]] = {
    "upload": (
        "document",
        lambda client, room, told: client.upload_whiteboard_file(
            room, SMALL, filename="deck.pdf", max_wait=0, on_event=told
        ),
    ),
    "large upload": (
        "document",
        lambda client, room, told: client.upload_whiteboard_file(
            room, b"%PDF".ljust(8 * 1024**2), filename="deck.pdf", max_wait=0, on_event=told
        ),
    ),
    "upload after a look": (
        "check",
        lambda client, room, told: client.upload_whiteboard_file(
            room, LARGE, filename="deck.pdf", max_wait=0, timeout=2, on_event=told
        ),
    ),
    "upload after a form": (
        "probe",
        lambda client, room, told: client.upload_whiteboard_file(
            room, LARGE, filename="deck.pdf", max_wait=0, timeout=2, on_event=told
        ),
    ),
    "get_active_room_info": (
        "check",
        lambda client, room, told: client.get_active_room_info(room, on_event=told),
    ),
    "call": (
        "document",
        lambda client, room, told: client.call("room/create", {"room_id": room}, on_event=told),
    ),
}
"""Which request is answered with a page, and the call."""


async def leaks(
    call: str,
    answers: list[Answer],
    *,
    is_early: bool = False,
    results: list[Any] | None = None,
    **settings: Any,
) -> list[str]:
    """Make a call for each answer, each for another room, and tell where a secret was seen."""
    repeats, make = CALLS[call]
    told, repeater = Told(), Repeater(answers, repeats, is_early)
    with Peer(repeater, receive_buffer=16 * 1024) as peer, told.listening():
        async with client_of(peer, **settings) as client:
            for number in range(len(answers)):
                await told.of(make(client, f"room{number}", told))
    assert len(repeater.seen) > len(answers)
    if results is not None:
        results += told.results
    return leaked(told, repeater.seen)


USUAL = [call for call in CALLS if call != "large upload"]
HOW: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("own", {}, {}),
    ("borrowed", {"borrowed": True}, {}),
    ("upper case", {}, {"change": str.upper}),
    ("swapped case", {}, {"change": str.swapcase}),
    ("a secret header", {"default_headers": OWN_SECRET}, {}),
]
"""Settings of the client, and what the page changes."""
EACH = [
    (f"{call}, {place}, {name}", (call, place, settings, change, turn))
    for turn, ((place, call), (name, settings, change)) in enumerate(
        itertools.product(itertools.product(PLACES, USUAL), HOW)
    )
]
USUALLY = EACH[::7]
"""As seven has no factor in common with the numbers of calls, places and settings, all of them."""


@in_turn("what", USUALLY, nightly=[row for row in EACH if row not in USUALLY])
async def test_what_a_reply_repeats_is_told_nowhere(what: tuple[Any, ...]) -> None:
    """Not in the result, an error, an event, the log, nor in pickles of any of these.

    Whatever the case of its letters, and whoever makes the connections; also a header of
    ``default_headers`` that is as secret as the signature. With success and two other statuses.
    """
    call, place, settings, change, turn = what
    others = STATUSES[1:]
    statuses = [200, others[turn % len(others)], others[(turn + 4) % len(others)]]
    answers = [repeating(place, status, **change) for status in statuses]
    assert await leaks(call, answers, **settings) == []


@in_turn("call", USUAL)
async def test_no_traceback_shows_a_secret_header_of_your_own(call: str) -> None:
    """Also if no page repeats it: nothing of it is among the locals, or in a ``repr``."""
    told, refusal = Told(), as_bytes(400, page("msg", 400, []))
    with Peer(Repeater([lambda _: refusal], "all")) as peer, told.listening():
        async with client_of(peer, default_headers=OWN_SECRET) as client:
            error = await told.of(CALLS[call][1](client, "room01", told))
            shown = repr(client)
    assert isinstance(error, RequestRefused)
    assert TOKEN not in shown
    assert containing(told.texts(), [TOKEN]) == []


@in_turn("status", [200, 400, 500, 502])
async def test_the_rest_of_a_reply_is_kept(status: int) -> None:
    """Only secrets are replaced: an operator still reads what was said, and finds the request."""
    results: list[Any] = []
    assert await leaks("upload", [repeating("msg", status)], results=results) == []
    (result,) = results
    assert isinstance(result, UploadReceipt if status == 200 else ReplyError)
    assert ("x-request-id", NOT_SECRET) in result.headers
    assert GREETING in result.msg


WORDS = ["status", "true", "false", "msg", "SUCCESS", "room", "CONFLICT", "e", '"', "200", ":"]


@pytest.mark.parametrize("key", WORDS)
def test_a_key_that_is_a_common_word_changes_no_meaning(key: str) -> None:
    """Replies mean the same whatever the key is, even if it stands in every record."""

    async def main() -> list[Any]:
        acts = iter([
            accepted(), busy(), reply(500, record_of("X")), reply(400, record_of("ROOM_NOT_FOUND"))
        ])  # fmt: skip
        told, rooms = Told(), FakeRooms(lambda _: next(acts))
        async with MeetingClient(
            "https://meet.test", api_key=key, api_secret=SECRET, transport=rooms
        ) as client:
            for _ in range(4):
                await told.of(
                    client.upload_whiteboard_file("room01", SMALL, filename="a.pdf", max_wait=0)
                )
            await told.of(client.get_active_room_info("room01"))
        return [type(result).__name__ for result in told.results]

    expected = ["UploadReceipt", "RoomBusy", "ProcessingFailed", "RoomNotFound", "ActiveRoom"]
    assert run_in_virtual_time(main) == expected


def record_of(code: str, **more: Any) -> dict[str, Any]:
    """Make the server's own record of a refusal."""
    return {"status": False, "msg": "no", "status_code": code, **more}


# --- parts and disguises -------------------------------------------------------------------------


def padded(place: str, before: int) -> Answer:
    """Let a signature begin after so many bytes of a text."""
    return lambda values: as_bytes(400, page(place, 400, ["x" * before + values[0]]))


@in_turn("before", [1024 - 20, 1024 - 50, 200 - 20, 500 - 20])
async def test_no_part_of_a_secret_is_left_where_a_text_is_cut(before: int) -> None:
    """What is kept of a page, and of a message, may end in the middle of a signature."""
    told = Told()
    places = ("page", "msg", "header")
    repeater = Repeater([padded(place, before - len(GREETING) - 20) for place in places])
    with Peer(repeater) as peer, told.listening():
        async with client_of(peer) as client:
            for number in range(len(places)):
                error = await told.of(CALLS["upload"][1](client, f"room{number}", told))
                assert isinstance(error, RequestRefused)
    parts = [
        secret[start : start + 16]
        for secret in repeater.seen - {KEY}
        for start in range(0, 48, 16)
    ]  # fmt: skip
    assert containing(told.texts(), parts) == []


def escaped(status: int, escape: Callable[[str], str]) -> Answer:
    """Write each repeated value as JSON allows, too."""

    def answer(values: list[str]) -> bytes:
        headers, content, phrase = page("msg", status, values)
        text = content.decode()
        for value in values:
            text = text.replace(value, escape(value))
        assert json.loads(text) == json.loads(content)
        return as_bytes(status, (headers, text.encode(), phrase))

    return answer


ESCAPES: dict[str, Callable[[str], str]] = {
    "slash": lambda value: value.replace("/", r"\/"),
    "unicode": lambda value: "".join(f"\\u{ord(letter):04x}" for letter in value),
}


@in_turn("escape", ESCAPES.items())
async def test_an_escape_of_json_is_no_disguise(escape: Callable[[str], str]) -> None:
    r"""PHP writes ``\/``, others ``\u0061``; what is read of it is the same text."""
    assert await leaks("upload", [escaped(status, escape) for status in (200, 400, 500)]) == []


JUNK = b"junk \x1b[31m \x85 \xe2\x80\xa8 \xe2\x80\xae \xff\xfe" + b"y" * 6000
"""What nobody wants to see in a terminal or in a log."""
OK, END, EMPTY = b"HTTP/1.1 200 OK\r\n", b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n"
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "status line": lambda text: b"HTTP/1.1 abc " + text + END,
    "no status line": lambda text: text + b"\x00" + END,
    "reason": lambda text: b"HTTP/1.1 502 " + text + EMPTY,
    "header line": lambda text: OK + text + b"\x00" + END,
    "header": lambda text: OK + b"Server: " + text + EMPTY,
    "length": lambda text: OK + b"Content-Length: " + text + END,
    "coding": lambda text: OK + b"Transfer-Encoding: " + text + END,
    "chunk": lambda text: OK + b"Transfer-Encoding: chunked\r\n\r\n" + text + b"\r\n",
    "compression": lambda text: OK + b"Content-Encoding: gzip\r\nContent-Length: 64" + END + text,
    "redirect": lambda text: b"HTTP/1.1 302 OK\r\nLocation: " + text + EMPTY,
    "media type": lambda text: b"HTTP/1.1 400 OK\r\nContent-Type: text/" + text + EMPTY,
}
"""What is no HTTP, or hardly, and repeats secrets where an error may quote it."""


def broken(make: Callable[[bytes], bytes], more: bytes) -> Answer:
    """Answer with something of that."""
    return lambda values: make(" ".join(values).encode() + more)


def then_closing(connection: Connection, repeater: Repeater) -> None:
    """Answer one request; what comes has no end that anybody could know."""
    connection.read_head()
    connection.read_body()
    is_check = b"getActiveRoomInfo" in connection.request.head
    connection.send(PLAIN if is_check else repeater.answer(connection.request))


@pytest.mark.parametrize("more", [b"", JUNK], ids=["short", "junk"])
@pytest.mark.parametrize("borrowed", [False, True], ids=["own", "borrowed"])
@in_turn("call", ["upload", "call"])
async def test_an_error_of_http_quotes_no_secret(call: str, borrowed: bool, more: bytes) -> None:
    """What a server sends back is quoted in one short line, without what is secret in it."""
    told, repeater = Told(), Repeater([broken(make, more) for make in BROKEN.values()])
    with Peer(partial(then_closing, repeater=repeater)) as peer, told.listening():
        async with client_of(peer, borrowed=borrowed) as client:
            for number, name in enumerate(BROKEN):
                result = await told.of(CALLS[call][1](client, f"room{number}", told))
                assert isinstance(result, MeetingError), name
    assert leaked(told, repeater.seen) == []
    assert unfit(told, "RemoteProtocolError") == []  # the words of the library that raised it


@in_turn("status", [413], nightly=[401, 409, 503])
async def test_an_early_answer_repeats_no_secret(status: int) -> None:
    """What comes while the document is still being sent is treated in the same way."""
    results: list[Any] = []
    answers = [repeating(place, status) for place in ("page", "header")]
    assert await leaks("large upload", answers, is_early=True, results=results) == []
    assert all(isinstance(result, MeetingError) for result in results)


# --- somebody's own transport, retries, batches, the command line --------------------------------


class Mirror(FakeRooms):
    """A transport of somebody's own, whose replies repeat the headers of their requests."""

    def __init__(self, place: str, *statuses: int) -> None:
        super().__init__(self._mirrored)
        self.seen = {KEY}
        self._place, self._statuses = place, list(statuses)

    def _mirrored(self, visit: Visit) -> Any:
        headers = {bytes(name).lower(): bytes(value) for name, value in visit.request.headers}
        values = [headers[name].decode() for name in (b"hash-signature", b"api-key")]
        self.seen.add(values[0])
        status = self._statuses.pop(0)
        pairs, content, _ = page(self._place, status, values)
        made = [(name.encode(), value.encode()) for name, value in pairs]
        if status in {429, 503} and self._place != "retry after":
            made.append((b"Retry-After", b"1"))
        act = accepted()
        return attrs.evolve(act, result=Reply(status, tuple(made), content))


def mirror_client(rooms: FakeRooms, **settings: Any) -> MeetingClient:
    """Make a client of it."""
    return MeetingClient(
        "https://meet.test",
        api_key=KEY,
        api_secret=SECRET,
        default_headers=HEADERS,
        transport=rooms,
        **settings,
    )


@pytest.mark.parametrize("place", PLACES[:-1])
def test_retries_and_waits_repeat_no_secret(place: str) -> None:
    """Why an attempt failed is told by events, receipts and the log, without what was repeated."""

    async def main() -> tuple[Told, Mirror]:
        told, rooms = Told(), Mirror(place, 429, 409, 503, 200, 502)
        with told.listening():
            async with mirror_client(rooms) as client:
                for _ in range(2):
                    call = client.upload_whiteboard_file(
                        "room01", SMALL, filename="deck.pdf", on_event=told
                    )
                    await told.of(call)
        return told, rooms

    told, rooms = run_in_virtual_time(main)
    assert len(told.results) == 2
    assert {type(event).__name__ for event in told.events} >= {"RetryScheduled", "WaitingForRoom"}
    assert leaked(told, rooms.seen) == []


@pytest.mark.parametrize("place", ["page", "msg", "field", "header"])
async def test_outcomes_and_journals_repeat_no_secret(place: str, tmp_path: Path) -> None:
    """Neither the report of a batch nor the files of its journal, while it runs and afterwards."""
    statuses = [200, 400, 500, 502, 409, 200, 200]
    told, rooms, found = Told(), Mirror(place, *statuses), []
    rooms.seen |= {SECRET, TOKEN}
    link = Document.from_link(f"https://files.example.com/deck.pdf?token={TOKEN}")
    with told.listening():
        async with mirror_client(rooms, on_event=told) as client:
            jobs = [job("room01", number, SMALL) for number in range(len(statuses) - 1)]
            jobs.append(UploadJob("room01", link))
            journal = tmp_path / "term.db"
            async with client.upload_many(jobs, journal=journal, max_wait=0) as batch:
                async for outcome in batch:
                    told.results.append(outcome)
                    found += containing(files(tmp_path), rooms.seen)
            told.results.append(batch.report)
            with pytest.raises(MeetingError) as caught:
                batch.report.raise_for_failures()
            told.results.append(caught.value)
    assert len(told.results) == len(statuses) + 2
    found += leaked(told, rooms.seen)
    found += containing(files(tmp_path), rooms.seen)
    assert containing(files(tmp_path), ["files.example.com"])
    assert found == []
