"""What a server writes is one printable line of bounded length, wherever it is told.

Otherwise a message could forge lines of a log, clear a terminal, or make a log handler fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import httpx
import pytest

from meeting_async import (
    Document,
    MeetingClient,
    RetryPolicy,
    RetryScheduled,
    Timeouts,
    UploadReceipt,
)
from meeting_async import errors as e
from meeting_async.testing import run_in_virtual_time
from meeting_async.transports import HttpxTransport, Reply, Request
from meeting_async.web import http_answer, public_detail
from support.fake_rooms import Act, FakeRooms, accepted, failing, job
from support.fakes import LARGE
from support.loops import in_turn
from support.peer import Connection, Peer
from support.repeating import of_its_room
from support.telling import LogFile, Told, extra, texts

PDF = LARGE[:1000]

SIGNS = (
    "1\n2\r3\r\n4\u20285\u20296\x857\x0b8\x0c9\x1b[31m\x1b]0;title\x07\x9b2J\x00\ud800\u202e\u2066"
)
"""Line breaks of seven kinds, escapes for terminals, NUL, half a character, marks that turn text
around."""

READABLE = "no presenter für alle"
"""What a person must still be able to read."""

TEXTS: dict[str, str] = {
    "signs": f"{READABLE} {SIGNS}",
    "forged": f"{READABLE}\n2026-11-22 12:00:00 INFO meeting_async: accepted\n",
    "long": f"{READABLE} {'x' * 100_000}",
    "long and hostile": f"{READABLE} {SIGNS * 1_000}",
}

MORE = {
    "only signs": SIGNS,
    "huge": f"{READABLE} {'x' * 490_000}",
    "huge and hostile": f"{READABLE} {SIGNS * 4_000}",
}
"""The last two make a record of nearly 1 MiB, which no reply may exceed."""

MOST = 4096
"""Characters of one text, and of one line of a log; some tools cut longer ones."""

MOST_OF_A_REPR = 16_384
"""Characters: a few lines of a terminal, a page at most."""


# --- what is checked -----------------------------------------------------------------------------


def unfit(told: Told) -> list[str]:
    """Tell which texts are not one printable line of bounded length.

    The first bytes of a reply (``body``) and its parsed content (``raw``) are data, not text.
    """
    found = [pair for thing in [*told.results, *told.events] for pair in texts(thing)]
    found += [pair for record in told.records for pair in extra(record)]
    found += [("log", record.getMessage()) for record in told.records]
    return sorted({
        f"{where}: {'too long' if text.isprintable() else 'unprintable'}"
        for where, text in found
        if "(bytes)" not in where and ".raw" not in where and not fits(where, text)
    })  # fmt: skip


def fits(where: str, text: str) -> bool:
    """Tell whether a text is as it must be."""
    return text.isprintable() and len(text) <= (MOST_OF_A_REPR if "repr" in where else MOST)


def play(
    rooms: FakeRooms, make: Callable[[MeetingClient, Told], list[Any]], **settings: Any
) -> Told:
    """Make calls one after the other, in virtual time, and return what they tell."""

    async def main() -> Told:
        told = Told()
        with told.listening():
            usual: dict[str, Any] = {"api_key": "key-0f-the-app", "api_secret": "secret"}
            async with MeetingClient(
                "https://meet.test", transport=rooms, on_event=told, **(usual | settings)
            ) as client:
                for call in make(client, told):
                    await told.of(call)
        return told

    return run_in_virtual_time(main)


def uploads(
    client: MeetingClient, *, count: int = 1, data: Any = PDF, max_wait: float | None = 0
) -> list[Any]:
    """Make uploads."""
    how: dict[str, Any] = {} if isinstance(data, Document) else {"filename": "deck.pdf"}
    return [
        client.upload_whiteboard_file(f"room{number}", data, max_wait=max_wait, **how)
        for number in range(count)
    ]


# --- replies -------------------------------------------------------------------------------------


def own(status: int, text: str, *, is_good: bool = True) -> Act:
    """Reply with the server's own record, with a text in all its fields."""
    record = {"status": is_good and status == 200, "msg": text, "status_code": text}
    return raw(status, json.dumps(record).encode())


def raw(status: int, content: bytes, *headers: tuple[bytes, bytes], kind: bytes = b"") -> Act:
    """Reply with anything."""
    pairs = ((b"Content-Type", kind or b"application/json"), *headers)
    return attrs.evolve(accepted(), result=Reply(status, pairs, content))


def header(status: int, text: str) -> Act:
    """Reply with a text in every header that the library looks at, and in others."""
    value = text.encode("utf-8", "replace")[:60_000]
    names = (b"Retry-After", b"Location", b"Server", b"X-Request-Id", b"Content-Encoding")
    pairs = tuple((name, value) for name in names)
    return raw(status, b"<html>", *pairs, kind=b"text/" + value)


REFUSALS = [200, 400, 401, 404, 409, 413, 500, 503]
each_text = pytest.mark.parametrize(
    "text",
    [
        *(pytest.param(text, id=name) for name, text in TEXTS.items()),
        *(pytest.param(text, id=name, marks=pytest.mark.nightly) for name, text in MORE.items()),
    ],
)


@each_text
def test_messages_of_a_server(text: str) -> None:
    """Its ``msg`` and ``status_code``, in every kind of error, in receipts, and in the log."""
    acts = iter([*(own(status, text, is_good=False) for status in REFUSALS), own(200, text)])
    told = play(
        FakeRooms(lambda _: next(acts)),
        lambda client, _: uploads(client, count=len(REFUSALS) + 1),
        retry=RetryPolicy(max_attempts=1),
    )
    kinds = {type(result) for result in told.results}
    assert kinds >= {UploadReceipt, e.RoomBusy, e.ProcessingFailed, e.AuthenticationFailed}
    assert unfit(told) == []
    for result in told.results:
        said = getattr(result, "msg", "") or getattr(result, "reason", "")
        assert (READABLE in said) == (READABLE in text)
        if isinstance(result, Exception):
            assert (READABLE in str(result)) == (READABLE in text)


@each_text
def test_why_an_upload_waits_or_tries_again(text: str) -> None:
    """``RetryScheduled.reason``, ``Attempt.reason`` and ``RoomBusy.reason`` are such lines, too."""
    throttled = json.dumps({"status": False, "msg": text, "status_code": text}).encode()
    acts = iter([
        raw(429, throttled, (b"Retry-After", b"2")),
        raw(503, throttled, (b"Retry-After", b"1")),
        own(409, text),
        own(200, text),
        own(409, text),
    ])  # fmt: skip
    told = play(
        FakeRooms(lambda _: next(acts)),
        lambda client, _: [*uploads(client, max_wait=None), *uploads(client)],
    )
    assert [type(result) for result in told.results] == [UploadReceipt, e.RoomBusy]
    assert len([event for event in told.events if isinstance(event, RetryScheduled)]) == 2
    assert len(told.results[0].attempts) == 4
    assert unfit(told) == []


@each_text
def test_what_a_transport_says(text: str) -> None:
    """Errors of somebody's own transport may quote a server, too."""
    acts = iter([
        failing(e.ConnectFailed(text, "meet.test:443"), take=0),
        failing(e.ConnectionLost(text, "meet.test:443"), take=1),
        accepted(),
        failing(e.TransferTimeout(text, "meet.test:443")),
    ])  # fmt: skip
    told = play(FakeRooms(lambda _: next(acts)), lambda client, _: uploads(client, count=2))
    assert [type(result) for result in told.results] == [UploadReceipt, e.UploadOutcomeUnknown]
    found = unfit(told)
    assert [where for where in found if " from " not in where] == []  # the cause is its own


@each_text
def test_headers_of_a_server(text: str) -> None:
    """Media types stand in messages, redirects in hints, and all of them in ``error.headers``."""
    statuses = [200, 302, 400, 409, 429, 500, 502]
    acts = iter([header(status, text) for status in statuses])
    told = play(
        FakeRooms(lambda _: next(acts)),
        lambda client, _: uploads(client, count=len(statuses)),
        retry=RetryPolicy(max_attempts=1),
    )
    assert all(isinstance(result, e.MeetingError) for result in told.results)
    assert unfit(told) == []


@each_text
def test_replies_to_other_calls(text: str) -> None:
    """The check of a room, ``get_active_room_info`` and ``call`` are told in the same way."""

    def calls(client: MeetingClient, _: Told) -> list[Any]:
        return [
            *uploads(client, data=LARGE),
            client.get_active_room_info("room01"),
            client.call("room/create", {"room_id": "room01"}),
        ]

    for act in (
        lambda: own(200, text, is_good=False),
        lambda: own(404, text),
        lambda: header(404, text),
        lambda: raw(200, text.encode("utf-8", "replace"), kind=b"text/html"),
    ):
        told = play(
            FakeRooms(lambda _, act=act: act(), ask=lambda _, act=act: act()),  # type: ignore[misc]
            calls,
            retry=RetryPolicy(max_attempts=1, max_outage=0),
        )
        assert all(isinstance(result, e.MeetingError) for result in told.results)
        assert unfit(told) == []


class Links(FakeRooms):
    """Answers HEAD as somebody else's server."""

    def __init__(self, answer: Reply) -> None:
        super().__init__()
        self.answer = answer

    async def send(self, request: Request, /) -> Reply:
        """Answer."""
        return self.answer if request.method == "HEAD" else await super().send(request)


LINK = "https://93.184.215.14/deck.pdf?token=hush-hush-hush"
"""Its host is an address, as names are not resolved here."""


@each_text
def test_answers_of_the_server_of_a_link(text: str) -> None:
    """``LinkRefused`` quotes the media type of somebody else's server."""
    value = text.encode("utf-8", "replace")[:60_000]
    for name, status in ((b"Content-Type", 200), (b"Location", 302), (b"Content-Length", 403)):
        pairs = ((name, b"text/html; " + value),)
        told = play(
            Links(Reply(status, pairs)),
            lambda client, _: uploads(client, data=Document.from_link(LINK)),
            check_link=True,
        )
        assert isinstance(told.results[0], e.LinkRefused)
        assert unfit(told) == []


def test_the_query_of_a_link_is_not_repeated() -> None:
    """It is a credential, and its own server may repeat it: the error does not."""
    query = LINK.partition("?")[2].encode()
    told = play(
        Links(Reply(200, ((b"Content-Type", b"text/html; " + query),))),
        lambda client, _: uploads(client, data=Document.from_link(LINK)),
        check_link=True,
    )
    assert isinstance(told.results[0], e.LinkRefused)
    assert [
        where for where, text in told.texts() if "hush-hush" in text and "trace" not in where
    ] == []


# --- the log, and what is shown to browsers ------------------------------------------------------


@each_text
def test_the_log_has_a_line_for_each_record(text: str) -> None:
    """A handler that writes UTF-8 can write each record, fields included, as exactly one line."""
    throttled = json.dumps({"status": False, "msg": text, "status_code": text}).encode()
    script = [
        raw(429, throttled, (b"Retry-After", b"1")),
        own(409, text),
        header(502, text),
        own(200, text),
        own(500, text),
        own(400, text),
        header(302, text),
    ]
    acts = iter(script)
    log = LogFile()
    with log.open():
        told = play(
            FakeRooms(lambda _: next(acts)),
            lambda client, _: uploads(client, count=5, max_wait=None),
        )
    lines = log.content.decode().split("\n")
    assert log.failed == []
    assert len(told.records) >= len(script)
    assert len(lines) == len(told.records) + 1
    assert [line[:200] for line in lines if not line.isprintable()] == []


@each_text
def test_a_browser_is_told_in_one_line(text: str) -> None:
    """``http_answer`` and ``public_detail`` contain nothing of it that is no plain text."""
    acts = iter([own(status, text) for status in (200, 400, 409, 500)])
    told = play(FakeRooms(lambda _: next(acts)), lambda client, _: uploads(client, count=4))
    for result in told.results:
        found = list(texts(http_answer(result)))
        if isinstance(result, Exception):
            found += [("detail", public_detail(result))]
        assert [where for where, said in found if not fits(where, said)] == []
        json.dumps(http_answer(result).body).encode()


@each_text
def test_the_outcomes_of_a_batch(text: str) -> None:
    """The report of a batch, and the error that sums it up."""

    async def main() -> Told:
        acts = iter([own(status, text) for status in (400, 200, 500, 409)])
        told, rooms = Told(), FakeRooms(lambda _: next(acts))
        async with MeetingClient(
            "https://meet.test", api_key="k", api_secret="s", transport=rooms, on_event=told
        ) as client:
            jobs = [job(f"room{number}") for number in range(4)]
            async with client.upload_many(jobs, max_wait=0, concurrency=1) as batch:
                told.results += (await batch.wait()).outcomes
            with pytest.raises(e.BatchFailed) as caught:
                batch.report.raise_for_failures()
            told.results.append(caught.value)
        return told

    told = run_in_virtual_time(main)
    assert len(told.results) == 5
    assert unfit(told) == []


# --- on the wire ---------------------------------------------------------------------------------

JUNK = b"junk \x1b[31m \x85 \xe2\x80\xa8 " + b"\xff\xfe\x00" + b"y" * 6000
BROKEN = [
    JUNK + b"\r\n\r\n",
    b"HTTP/1.1 abc " + JUNK + b"\r\n\r\n",
    b"HTTP/1.1 502 " + JUNK.replace(b"\0", b"") + b"\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n" + JUNK + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nServer: " + JUNK + b"\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: " + JUNK + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + JUNK + b"\r\n",
    b"HTTP/1.1 302 OK\r\nLocation: \xe2\x80\xae\xff\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 400 OK\r\nContent-Type: text/\xe2\x80\xae\xff\r\nContent-Length: 1\r\n\r\n ",
]
"""What is no HTTP, or hardly."""


def breaking(connection: Connection) -> None:
    """Answer each upload and call with something of that, and each check of a room well."""
    fine = b'{"status":true,"msg":"ok","status_code":"SUCCESS","room":{}}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    connection.read_head()
    connection.read_body()
    is_check = b"getActiveRoomInfo" in connection.request.head
    broken = of_its_room(BROKEN, connection.request)
    connection.send(head % len(fine) + fine if is_check else broken)


@pytest.mark.anyio
@in_turn("call", ["upload", "call"])
@pytest.mark.parametrize("borrowed", [False, True], ids=["own", "borrowed"])
async def test_what_is_no_http_is_quoted_in_one_line(call: str, borrowed: bool) -> None:
    """Errors of the libraries below quote the peer; here that is one line, and a short one."""
    told = Told()
    with Peer(breaking) as peer, told.listening():
        async with httpx.AsyncClient(trust_env=False, verify=False) as library:
            settings: dict[str, Any] = {"transport": HttpxTransport(library)} if borrowed else {}
            async with MeetingClient(
                peer.url,
                api_key="key-0f-the-app",
                api_secret="secret",
                retry=RetryPolicy(max_attempts=1, max_interruptions=0, max_outage=0),
                timeouts=Timeouts(upload_reply=5),
                on_event=told,
                **settings,
            ) as client:
                for number in range(len(BROKEN)):
                    room = f"room{number}"
                    if call == "call":
                        await told.of(client.call("room/create", {"room_id": room}))
                    else:
                        upload = client.upload_whiteboard_file(room, PDF, filename="deck.pdf")
                        await told.of(upload)
    assert all(isinstance(result, e.MeetingError) for result in told.results)
    foreign = "RemoteProtocolError"  # the cause keeps the words of the library that raised it
    assert [where for where in unfit(told) if foreign not in where] == []
