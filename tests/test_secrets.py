"""No credential is told, and every text of a server is one printable line.

Wrong base URLs and debug modes of proxies lead to pages that repeat what they were sent. Here a
peer repeats it in each place of a reply, for each call, in each way to write a text; then all that
is told is searched: results, errors, events, logs, pickles, tracebacks with locals, files, output.
Looked for is the text as it was sent, in any case of its letters, and with the escapes of JSON
(also of JSON in JSON), of URLs and of HTML. Base64 of it is another text.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import attrs
import httpx
import httpx2
import pytest

from meeting_async import (
    Document,
    MeetingClient,
    RetryPolicy,
    RetryScheduled,
    Timeouts,
    UploadJob,
    UploadReceipt,
    WaitingForRoom,
    errors,
)
from meeting_async.signers import HmacSigner
from meeting_async.testing import run_in_virtual_time
from meeting_async.transports import HttpTransport, HttpxTransport, Reply
from support.command_line import Result, call
from support.documents import PDF
from support.fake_rooms import Act, FakeRooms, Visit, accepted, busy, record, reply
from support.fake_rooms import client_of as fake_client_of
from support.interruptions import cancelled_by_scope
from support.peer import (
    WHOLE,
    Connection,
    Peer,
    Script,
    deaf,
    early,
    resetting,
    resetting_at_once,
    silent,
)  # fmt: skip
from support.peer import reply as plain
from support.tables import in_turn
from support.telling import Told, containing, files, traceback_with_locals, unfit

pytestmark = pytest.mark.anyio

KEY, SECRET = "key-0f-the/app+1", "secret-0f-the-app"
TOKENS = [
    "t0ken-of/a-gateway", "x-key-of/a-gateway", "c00kie-of-a-gateway",  # in default_headers
    "t0ken-of-a-client", "c00kie-of-a-client", "passw0rd-of-a-client",  # of an httpx client
    "passw0rd-of-a-proxy", "t0ken-of-a-link",
]  # fmt: skip
BASIC = [base64.b64encode(f"me:{word}".encode()).decode() for word in TOKENS[5:7]]
NOT_SECRET = "r-17-is-no-secret"
HEADERS = {
    "X-Request-Id": NOT_SECRET,
    "Authorization": f"Bearer {TOKENS[0]}",
    "X-Api-Key": TOKENS[1],
    "Cookie": f"theme=dark; sid={TOKENS[2]}",
}
NAMES = [
    b"HASH-SIGNATURE", b"API-KEY", b"Authorization", b"X-Api-Key", b"Cookie", b"X-Client-Token",
    b"Proxy-Authorization",
]  # fmt: skip
"""Headers that a peer repeats."""

SMALL = b"%PDF".ljust(1000, b"\n")
ASKED = b"%PDF".ljust(64 * 1024 + 1, b"\n")
"""A document that is preceded by an empty form."""


class _Unshown(bytes):
    """Bytes that are not searched in each traceback."""

    def __repr__(self) -> str:
        return "LARGE"


LARGE = _Unshown(b"%PDF".ljust(8 * 1024**2))
"""A document that is still being sent when an early answer comes."""

# --- texts ---------------------------------------------------------------------------------------

GREETING = "hello there"
READABLE = "no presenter"
SIGNS = (
    "1\n2\r3\u20284\u20295\x856\x1b[31m7\x1b]0;title\x07"
    "8\x9b2J9\x00\ud800\u202e\u2066 [red]x[/red] <b>x</b>"
)


@attrs.frozen
class Text:
    """How values are repeated."""

    change: Callable[[str], str] = str
    before: str = ""
    after: str = ""
    escape: Callable[[str, list[str]], str] = lambda text, _values: text
    """Writes JSON in another way that means the same."""


def _alone(value: str) -> str:
    """Leave out what is no secret: a scheme, a name."""
    return re.split(r"[ =](?=\S{12})", value)[-1]


def _as_unicode(text: str, values: list[str]) -> str:
    for value in values:
        text = text.replace(value, "".join(f"\\u{ord(letter):04X}" for letter in value))
    return text


def _each(form: str) -> Callable[[str], str]:
    return lambda text: "".join(form.format(ord(letter)) for letter in text)


TEXTS = {
    "as sent": Text(),
    "upper": Text(str.upper),
    "alone": Text(_alone),
    "slashes": Text(escape=lambda text, _: text.replace("/", r"\/")),
    "unicode": Text(escape=_as_unicode),
    "unicode in a text": Text(_each(r"\u{:04x}")),
    "percent": Text(_each("%{:02x}")),
    "html": Text(_each("&#{};")),
    "signs": Text(after=READABLE + SIGNS),
    "forged": Text(after=f"{READABLE}\na.pdf: accepted by room01\n\x1b[1A\x1b[2K"),
    "long": Text(after=f"{READABLE} {'x' * 100_000}"),
    **{f"cut at {count}": Text(before="x" * (count - 20)) for count in (100, 200, 500, 1024)},
}
"""The last ones let what is kept of a text end in the middle of a value."""

# --- places --------------------------------------------------------------------------------------

JSON_PLACES = ["msg", "status_code", "field", "name of a field"]
PLACES = [
    *JSON_PLACES, "page", "header", "content type", "retry after", "location", "reason phrase",
]  # fmt: skip
STATUSES = [200, 302, 400, 401, 409, 413, 429, 500, 502, 503]

Parts = tuple[int, list[tuple[str, str]], bytes, str]
"""Status, headers, content and reason phrase."""


def page(place: str, status: int, values: list[str], text: Text) -> Parts:
    """Make a reply that repeats values in a place."""
    values = [text.change(value) for value in values]
    line = f"{text.before}{GREETING}: {', '.join(values)} {text.after}"
    visible = "".join(letter for letter in line if " " <= letter <= "~")[:5000].strip()
    name = "SUCCESS" if status == 200 else "NAME"
    said: dict[str, Any] = {"status": status == 200, "msg": GREETING, "status_code": name}
    headers, kind = [("X-Request-Id", NOT_SECRET)], "application/json"
    if place in {"msg", "status_code"}:
        said[place] = line
    elif place == "field":
        said["request"] = {"headers": [values], "room": {"metadata": json.dumps(values)}}
        said["room"] = {"room_info": {"metadata": json.dumps(values), "room_title": line}}
    elif place == "name of a field":
        said["request"] = {name: number for number, name in enumerate(values)}
    elif place == "header":
        headers += [(f"X-Debug-{number}", value) for number, value in enumerate(values)]
    elif place == "content type":
        kind = f"application/json; seen={visible}"
    elif place == "retry after":
        headers.append(("Retry-After", values[0]))
    elif place == "location":
        headers.append(("Location", f"https://login.example.com/?back={'&'.join(values)}"))
    content = text.escape(json.dumps(said), values).encode()
    assert json.loads(content) == said
    if place == "page":
        said_here = text.escape(f"<pre>{line}", values)
        kind, content = "text/html", said_here.encode("utf-8", "replace")
    phrase = visible if place == "reason phrase" else "OK"
    return status, [("Content-Type", kind), *headers], content, phrase


def on_the_wire(parts: Parts) -> bytes:
    """Make the bytes of a reply."""
    status, headers, content, phrase = parts
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers)]
    lines += [f"Content-Length: {len(content)}", "", ""]
    return "\r\n".join(lines).encode() + content


DIRT = b"\x1b[31m \x85 \xe2\x80\xa8 \xe2\x80\xae \xff\xfe" + b"y" * 6000
OK, END, EMPTY = b"HTTP/1.1 200 OK\r\n", b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "status line": lambda text: b"HTTP/1.1 abc " + text + END,
    "no status line": lambda text: text + b"\x00" + END,
    "header line": lambda text: OK + text + b"\x00" + END,
    "header's name": lambda text: OK + text + b": yes" + END,
    "header's value": lambda text: OK + b"Server: " + text + b"\x00" + EMPTY,
    "length": lambda text: OK + b"Content-Length: " + text + END,
    "coding": lambda text: OK + b"Transfer-Encoding: " + text + END,
    "chunk": lambda text: CHUNKED + text + b"\r\n",
    "end of a chunk": lambda text: CHUNKED + b"1\r\nx" + text + b"\r\n0\r\n\r\n",
    "trailer": lambda text: CHUNKED + b"0\r\nno trailer " + text + END,
    "compression": lambda text: OK + b"Content-Encoding: gzip\r\nContent-Length: 64" + END + text,
    "reason": lambda text: b"HTTP/1.1 502 " + text + EMPTY,
    "media type": lambda text: b"HTTP/1.1 400 OK\r\nContent-Type: text/" + text + EMPTY,
    "interim": lambda text: (b"HTTP/1.1 103 OK\r\nServer: " + text + END) * 120,
    "half a reply": lambda text: OK + b"Content-Length: 64" + END + text[:20],
    "too long": lambda text: OK + END + text + bytes(2 * 1024**2),
    "nothing": lambda _: b"",
}
"""What is no HTTP, or hardly, and repeats secrets where an error may quote it."""
FAILING: dict[Script, type[errors.MeetingError]] = {
    **dict.fromkeys([resetting_at_once, resetting(100), resetting(WHOLE)], errors.ConnectionLost),
    **dict.fromkeys([silent, deaf], errors.TransferTimeout),
    early(b"", lambda _: None): errors.ConnectionLost,
}
"""What ends in an error of the network, and in which."""

# --- the peer ------------------------------------------------------------------------------------


FREE_RECORD = json.dumps(record("INVALID_PARAMETERS")).encode()
"""To an empty form, of a room that is not locked."""
Answer = Callable[[list[str]], bytes]


def kind_of(head: bytes, body: bytes) -> str:
    """Tell the kind of a request."""
    if b"getActiveRoomInfo" in head:
        return "check"
    is_form = b"uploadWhiteboardFile" in head and b'name="document' not in body
    return "probe" if is_form and body else "document"


@attrs.define
class Repeater:
    """A script for a peer: an answer for each room, made of what the request has sent."""

    answers: list[Answer]
    repeats: str = "document"
    """The kind of request that gets it; all others get a plain success."""
    is_early: bool = False
    """Whether the answer comes before the body is read."""
    seen: set[str] = attrs.field(factory=lambda: {KEY, SECRET, *TOKENS, *BASIC})
    count: int = 0

    def __call__(self, connection: Connection) -> None:
        while connection.read_head():
            request = connection.request
            if not self.is_early or request.length < len(LARGE):
                connection.read_body()
            kind = kind_of(request.head, bytes(request.body))
            if kind != self.repeats:
                connection.send(plain(400, FREE_RECORD) if kind == "probe" else plain())
                continue
            number = re.search(rb"(?:room|class)(\d+)", request.head + bytes(request.body))
            assert number
            connection.send(self.answers[int(number[1])](self.values(connection)))
            if self.is_early:
                connection.closed_within(2)
            return

    def once(self, answer: Answer) -> Script:
        """Answer one request, whatever it is, and close."""

        def script(connection: Connection) -> None:
            if connection.read_head():
                connection.read_body()
                connection.send(answer(self.values(connection)))

        return script

    def values(self, connection: Connection) -> list[str]:
        """Return the credentials of a request; the signature is new."""
        self.count += 1
        each = (connection.request.values(name) for name in NAMES)
        found = [value.decode() for values in each for value in values]
        self.seen.add(found[0])
        return found


def _decoded(text: str) -> str:
    text = re.sub(r"\\+u00(..)", lambda found: chr(int(found[1], 16)), text)
    return unescape(unquote(re.sub(r"\\+/", "/", text)))


def leaked(told: Told, seen: set[str]) -> list[str]:
    """Tell where a credential was seen, or an end of a signature.

    Among the locals of a traceback is the client, whose key is no secret by itself.
    """
    texts = {form: where for where, text in told.texts() for form in (text, _decoded(text))}
    found = [(where, text) for text, where in texts.items()]
    of_key = [(where, text) for where, text in found if not where.startswith("traceback")]
    secret = {word for word in seen - {KEY} if len(word) != 64}
    ends = {part for word in seen if len(word) == 64 for part in (word[:16], word[-16:])}
    return sorted({*containing(found, secret | ends), *containing(of_key, [KEY])})


# --- the client ----------------------------------------------------------------------------------

LIBRARIES: dict[str, Any] = {"httpx": httpx, "httpx2": httpx2}
USUAL: dict[str, Any] = {
    "api_key": KEY,
    "api_secret": SECRET,
    "default_headers": HEADERS,
    "retry": RetryPolicy(max_attempts=1, max_interruptions=0, max_outage=0),
}


@asynccontextmanager
async def client_of(peer: Peer, kind: str = "own", **settings: Any) -> AsyncIterator[MeetingClient]:
    """Make a client with its own transport, or with one that has credentials of its own."""
    usual: dict[str, Any] = {**USUAL, **settings}
    proxy = f"http://me:{TOKENS[6]}@127.0.0.1:{peer.port}" if "proxy" in kind else None
    library = LIBRARIES.get(kind.partition(" ")[0])
    if library is None:
        usual["transport"] = HttpTransport(proxy=proxy, verify=False)
        async with MeetingClient(peer.url, **usual) as client:
            yield client
        return
    usual["default_headers"] = {"X-Request-Id": NOT_SECRET, "X-Api-Key": TOKENS[1]}
    async with library.AsyncClient(
        proxy=proxy,
        auth=("me", TOKENS[5]),
        headers={"X-Client-Token": TOKENS[3]},
        cookies={"sid": TOKENS[4]},
        trust_env=False,
        verify=False,
    ) as borrowed:
        usual["transport"] = HttpxTransport(borrowed)
        async with MeetingClient(peer.url, **usual) as client:
            yield client


def put(document: Any, **how: Any) -> Any:
    """Upload."""
    return lambda client, room, told: client.upload_whiteboard_file(
        room, document, filename="deck.pdf", max_wait=0, on_event=told.events.append, **how
    )


async def batch(client: MeetingClient, room: str, told: Told) -> Any:
    """Upload a document and a link, with a journal that is searched, too."""
    link = Document.from_link(f"https://files.example.com/deck.pdf?token={TOKENS[7]}")
    jobs = [UploadJob(room, SMALL, filename="deck.pdf"), UploadJob(room, link)]
    how: dict[str, Any] = {"max_wait": 0, "on_event": told.events.append}
    Path(room).mkdir()
    async with client.upload_many(jobs, journal=f"{room}/term.db", **how) as running:
        async for outcome in running:
            told.results.append(outcome)
    try:
        running.report.raise_for_failures()
    except errors.BatchFailed as error:
        told.results.append(error)
    told.results.append(dict(files(Path(room))))
    assert "files.example.com" in str(told.results[-1])
    return running.report


CALLS: dict[str, tuple[str, Callable[[MeetingClient, str, Told], Any]]] = {
    "upload": ("document", put(SMALL)),
    "upload, early": ("document", put(LARGE)),
    "upload after a look": ("check", put(SMALL, timeout=20)),
    "upload after a form": ("probe", put(ASKED, timeout=20)),
    "info": (
        "check",
        lambda client, room, told: client.get_active_room_info(room, on_event=told.events.append),
    ),
    "call": (
        "document",
        lambda client, room, told: client.call(
            "room/create", {"room_id": room}, on_event=told.events.append
        ),
    ),
    "health check": ("check", lambda client, room, _: client.check(room)),
    "batch": ("document", batch),
}
"""The request that is answered with a page, and the call."""

Case = tuple[str, int, str]
"""Place, status, text."""
CASES: list[Case] = [
    (place, STATUSES[number * 3 % len(STATUSES)], text)
    for number, (place, text) in enumerate(itertools.product(PLACES, TEXTS))
]


async def told_of(name: str, answers: list[Answer], transport: str) -> tuple[Told, Repeater]:
    """Make a call for each answer, each for another room."""
    repeats, make = CALLS[name]
    told, repeater = Told(), Repeater(answers, repeats, name.endswith("early"))
    with Peer(repeater, receive_buffer=16 * 1024) as peer, told.listening():
        for number in range(len(answers)):
            async with client_of(peer, transport) as client:
                await told.of(make(client, f"room{number}", told))
    assert repeater.count >= len(answers)
    return told, repeater


WAYS = [
    *[("upload", "httpx"), ("upload", "httpx2"), ("call", "httpx2")],
    *((name, "own") for name in CALLS),
]
EACH = [
    (f"{name}, {transport}", (name, transport, CASES[turn :: len(WAYS)]))
    for turn, (name, transport) in enumerate(WAYS)
]
"""All of them together have each case once; uploads keep every page in their errors."""
EACH += [("pages", ("upload", "own", [("page", 400, text) for text in TEXTS]))]
BORROWED = [
    (f"{name}, {library}", (name, library, CASES[turn :: len(CALLS)]))
    for turn, (name, library) in enumerate(zip(CALLS, itertools.cycle(LIBRARIES), strict=False))
    if (name, library) != ("upload, early", "httpx2")  # it never sees an early answer
]


@in_turn("what", EACH, nightly=BORROWED)
async def test_what_a_reply_repeats_is_told_nowhere(
    what: tuple[str, str, list[Case]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes the connection, and adds credentials of its own; the rest is kept."""
    name, transport, chosen = what
    if name.endswith("early"):
        chosen = [case for case in chosen if case[1] >= 400][::2]
    monkeypatch.chdir(tmp_path)
    told, repeater = await told_of(name, [_answer(*case) for case in chosen], transport)
    assert leaked(told, repeater.seen) == []
    assert unfit(told, *(["[", "dict"] if name == "batch" else [])) == []
    if name == "upload":
        for (place, _, text), result in zip(chosen, told.results, strict=True):
            assert isinstance(result, UploadReceipt | errors.MeetingError)
            if isinstance(result, UploadReceipt | errors.ReplyError):
                assert ("x-request-id", NOT_SECRET) in result.headers
            if place in JSON_PLACES and isinstance(result, errors.ReplyError) and "cut" not in text:
                assert GREETING in result.msg


BROKEN_WAYS = [
    (f"{name}, {transport}", (name, transport))
    for name, transport in [
        *[("call", "tls"), ("upload", "proxy"), ("upload", "httpx with a proxy")],
        *[("call", "own"), ("call", "proxy"), ("upload", "own"), ("upload", "httpx")],
        *(("call", library) for library in LIBRARIES),
    ]
]


def _answer(place: str, status: int, text: str) -> Answer:
    return lambda values: on_the_wire(page(place, status, values, TEXTS[text]))


@in_turn("way", BROKEN_WAYS[:3], nightly=BROKEN_WAYS[3:])
async def test_what_breaks_http_is_told_nowhere(
    way: tuple[str, str], tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """The error of whatever ends the exchange; a proxy gets its password, and repeats it."""
    (name, transport), told, repeater = way, Told(), Repeater([])
    dirt = itertools.cycle((b"", DIRT) if name == "call" else (DIRT, b""))
    answers: list[Answer] = [
        lambda values, make=make, more=more: make(" ".join(values).encode() + more)  # type: ignore[misc]  # mypy cannot infer it
        for make, more in zip(BROKEN.values(), dirt, strict=False)
    ]
    answers += [_answer(place, 407, "as sent") for place in PLACES]
    scripts = [*map(repeater.once, answers), *FAILING]
    scripts += [resetting_at_once] * 10 if name == "call" else []  # at one of several moments
    for number, script in enumerate(scripts):
        how: dict[str, Any] = {"preflight": False}
        if script in FAILING:
            how["timeouts"] = Timeouts(connect=1, send_stall=0.3, reply=0.3, upload_reply=0.3)
        make = CALLS["upload, early" if script in FAILING and name == "upload" else name][1]
        # A page of the proxy of your own client may repeat that proxy's password.
        kind = transport if script in FAILING else transport.partition(" ")[0]
        server = tls[0] if kind == "tls" else None
        with Peer(script, tls=server, receive_buffer=16 * 1024) as peer, told.listening():
            async with client_of(peer, kind, **how) as client:
                result = await told.of(make(client, f"room{number}", told))
        assert isinstance(result, errors.MeetingError)
        if isinstance(result, errors.TransportError):
            assert result.host == f"127.0.0.1:{peer.port}"
        if name == "call":
            expected = FAILING.get(script, errors.MeetingError)
            assert isinstance(result, expected | errors.ConnectFailed)
    assert repeater.count == len(answers)
    assert leaked(told, repeater.seen) == []
    assert unfit(told, "RemoteProtocolError") == []  # the words of the library that raised it


@pytest.mark.parametrize("name", ["upload", "call"])
@in_turn("transport", ["own", "tls", "proxy"])
async def test_no_cancellation_shows_a_secret(
    name: str, transport: str, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    """Wherever it strikes: its traceback goes through every frame below."""
    raised: list[BaseException] = []

    async def send(client: MeetingClient, told: Told) -> None:
        try:
            await CALLS[name][1](client, "room0", told)
        except BaseException as error:
            raised.append(error)
            raise

    repeater, number = Repeater([_answer("field", 200, "as sent")]), 0
    script: Script = repeater.once(repeater.answers[0]) if transport == "proxy" else repeater
    with Peer(script, tls=tls[0] if transport == "tls" else None) as peer:
        async with client_of(peer, transport) as client:
            with suppress(errors.ConnectFailed):  # what the proxy says, at last
                while await cancelled_by_scope(send(client, Told()), number := number + 1):
                    pass
    assert len(raised) > 2
    found = [pair for error in raised for pair in traceback_with_locals(error)]
    assert containing(found, repeater.seen - {KEY}) == []


@pytest.mark.parametrize("place", PLACES)
def test_retries_and_waits_tell_no_secret(place: str) -> None:
    """Why an attempt failed is told by events, receipts and the log; whose transport it is."""
    statuses, seen = iter([429, 409, 503, 200, 502]), {KEY, SECRET, *TOKENS}

    def repeat(visit: Visit) -> Act:
        headers = {bytes(name): bytes(value).decode() for name, value in visit.request.headers}
        seen.add(headers[NAMES[0]])
        values = [headers[name] for name in NAMES[:5]]
        status, pairs, content, _ = page(place, next(statuses), values, TEXTS["signs"])
        if status in {429, 503} and place != "retry after":
            pairs.append(("Retry-After", "1"))
        made = tuple((name.encode(), value.encode()) for name, value in pairs)
        return Act(result=Reply(status, made, content))

    async def main() -> None:
        async with fake_client_of(rooms, **{**USUAL, "retry": None}) as client:
            for room in ("room1", "room2"):
                how: dict[str, Any] = {"filename": "a.pdf", "on_event": told.events.append}
                await told.of(client.upload_whiteboard_file(room, SMALL, **how))

    told, rooms = Told(), FakeRooms(repeat)
    with told.listening():
        run_in_virtual_time(main)
    assert {type(event) for event in told.events} >= {RetryScheduled, WaitingForRoom}
    assert len(told.results) == 2
    assert leaked(told, seen) == []
    assert unfit(told) == []


# --- long replies --------------------------------------------------------------------------------

MIB = 1024**2
LONG = {
    "escapes": (r"\u0061", 16 * MIB),
    "escapes of each letter": ("".join(f"\\u{code:04x}" for code in range(0x23, 0x5C)), 16 * MIB),
    "short texts": ('", "', 4 * MIB),
    "keys": (f'", "{KEY}', 4 * MIB),
    "keys in escapes": (_as_unicode(f"{KEY} ", [KEY]), 4 * MIB),
}
"""What a reply of so many bytes repeats."""


@pytest.mark.parametrize("what", LONG)
@pytest.mark.parametrize("is_success", [True, False])
async def test_a_long_reply_does_not_stop_the_event_loop(what: str, is_success: bool) -> None:
    """Other tasks go on while it is parsed and secrets are looked for."""
    unit, size = LONG[what]
    head = json.dumps(record("SUCCESS" if is_success else "NAME"))[:-1]
    content = f'{head}, "list": ["{unit * (size // len(unit))}"]}}'.encode()
    rooms = FakeRooms(ask=lambda _: Act(result=Reply(200, (), content)))
    async with fake_client_of(rooms, **USUAL) as client:
        everything, here = time.process_time(), time.thread_time()
        with suppress(errors.RequestRefused):
            said = await client.call("room/create", max_reply_bytes=32 * MIB)
            assert KEY not in str(said["list"][:5])
        everything, here = time.process_time() - everything, time.thread_time() - here
    assert here <= 0.05 + everything / 4  # the rest is in a thread


# --- short keys ----------------------------------------------------------------------------------

WORDS = ["status", "true", "false", "msg", "SUCCESS", "room", "CONFLICT", "e", '"', "200", ":"]


@pytest.mark.parametrize("key", WORDS)
def test_a_key_that_is_a_common_word_changes_no_meaning(key: str) -> None:
    """Replies mean the same whatever the key is, even if it stands in every record."""
    acts = iter([accepted(), busy(), reply(500, record("X")), reply(400, record("ROOM_NOT_FOUND"))])
    told, rooms = Told(), FakeRooms(lambda _: next(acts))

    async def main() -> None:
        async with fake_client_of(rooms, signer=HmacSigner(key, SECRET)) as client:
            for _ in range(4):
                await told.of(
                    client.upload_whiteboard_file("room01", SMALL, filename="a.pdf", max_wait=0)
                )
            await told.of(client.get_active_room_info("room01"))

    run_in_virtual_time(main)
    expected = ["UploadReceipt", "RoomBusy", "ProcessingFailed", "RoomNotFound", "ActiveRoom"]
    assert [type(result).__name__ for result in told.results] == expected


@pytest.mark.parametrize("is_success", [True, False])
async def test_a_short_key_that_is_a_word(is_success: bool) -> None:
    """It stays in the data of a success; in a refusal it is hidden where it stands alone."""
    texts = {"msg": "the demo of demonstrations", "demo": 1}
    rooms = FakeRooms(ask=lambda _: reply(200, {"status": is_success, **texts}))
    async with fake_client_of(rooms, signer=HmacSigner("demo", SECRET)) as client:
        try:
            said = (await client.call("room/create"))["msg"]
        except errors.RequestRefused as error:
            said = error.msg
    assert said == f"the {'demo' if is_success else '(hidden)'} of demonstrations"


# --- the command line ----------------------------------------------------------------------------

COMMANDS = [
    "upload ROOM a.pdf --max-wait 0",
    "upload ROOM a.pdf --max-wait 0 --debug --json",
    "room ROOM --debug --json",
    "batch m.csv --journal j.db --report r.html --max-wait 0 --concurrency 1",
    "batch m.csv --journal j.db --report r.html --max-wait 0 --concurrency 1 --json",
]
MOST, MOST_OF_JSON = 4096, 16_384
"""Characters of a line on a terminal, and of one with all fields of a document."""


def check_objects(done: list[Result]) -> None:
    """See that what is said in JSON is lines as well, which strict tools can read."""
    for found in [found for one in done for found in one.objects]:
        own = {name: value for name, value in found.items() if name != "reply"}
        json.dumps(own, ensure_ascii=False).encode("utf-8")  # no half character
        said = [found.get("msg"), *(found.get("error") or {}).values()]
        texts = [one for one in said if isinstance(one, str)]
        assert [one for one in texts if not one.isprintable() or len(one) > MOST] == []


def check_report() -> None:
    """See that a report has nothing that is not printable, and that it is short."""
    html = Path("r.html").read_bytes().decode()
    shown = unescape(re.sub(r"<[^>]*>", "", html))
    assert {letter for letter in shown if not letter.isprintable()} <= {"\n"}
    assert READABLE in shown
    assert max(len(line) for line in shown.split("\n")) <= MOST_OF_JSON
    assert max(len(value) for value in re.findall(r'="([^"]*)"', html)) <= MOST_OF_JSON


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_tells_a_secret(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
) -> None:
    """As text, as JSON, with the log of ``--debug``, in a journal, in a report."""
    monkeypatch.chdir(tmp_path)
    is_batch, is_room = "batch" in command, "room ROOM" in command
    # After a page of a proxy documents ask first, and a check is repeated.
    last = {("page", 502), ("msg", 502)} if not is_room else {("page", 404)}
    usual = zip([*JSON_PLACES, "header"], itertools.cycle((400, 200)), strict=False)
    texts = itertools.cycle(["signs", "forged", "upper", "unicode", "as sent"])
    each = [_answer(where, status, next(texts)) for where, status in (*usual, *sorted(last))]
    repeater = Repeater(each, "check" if is_room else "document")
    lines = ["room_id,document", *(f"class{number},a.pdf" for number in range(len(each)))]
    Path("m.csv").write_text("\n".join(lines))
    Path("a.pdf").write_bytes(PDF)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with Peer(repeater) as peer:
        for name, value in (("BASE_URL", peer.url), ("API_KEY", KEY), ("API_SECRET", SECRET)):
            monkeypatch.setenv(f"MEETING_{name}", value)
        done = [
            call(capsys, *command.replace("ROOM", f"class{number}").split())
            for number in range(1 if is_batch else len(each))
        ]
    assert {one.code for one in done} == ({3} if is_batch else {0, 1} if is_room else {0, 1, 3})
    assert any(GREETING in one.out + one.err and READABLE in one.out + one.err for one in done)
    most = 3 * MOST_OF_JSON if is_room else MOST_OF_JSON if "--json" in command else MOST
    shown = [line for one in done for text in (one.out, one.err) for line in text.split("\n")]
    assert [line[:200] for line in shown if not line.isprintable() or len(line) > most] == []
    if "--json" in command:
        check_objects(done)
    if is_batch:
        assert Path("j.db").exists()
        check_report()
    outputs = [(stream, text) for one in done for stream, text in attrs.asdict(one).items()]
    found = [(stream, str(text)) for stream, text in outputs] + list(files(Path()))
    assert repeater.count >= len(each)
    assert containing(found, repeater.seen) == []
