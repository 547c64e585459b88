"""Mistakes of a new user: each message names what was given, the value, and what to do."""

from __future__ import annotations

import math
import os
import pickle
import tempfile
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from meeting_async import (
    ConfigurationError,
    Document,
    DocumentEmpty,
    DocumentTypeRefused,
    DocumentUnreadable,
    InvalidInput,
    JournalError,
    LockPolicy,
    MeetingClient,
    RetryPolicy,
    Timeouts,
    UploadJob,
)
from meeting_async.errors import MeetingError
from meeting_async.signers import HmacSigner
from meeting_async.testing import run_in_virtual_time
from meeting_async.transports import HttpTransport, HttpxTransport
from support.fake_rooms import FakeRooms
from support.telling import containing, traceback_with_locals

URL = "https://meet.example.com"
SECRET, PASSWORD = "a-secret-that-nobody-reads", "passw0rd-in-an-address"
PDF = b"%PDF-1.7"
VARIABLES = {
    "MEETING_BASE_URL": URL, "MEETING_API_KEY": "devkey", "MEETING_API_SECRET": SECRET
}  # fmt: skip

Mistake = Callable[[], object]
Row = tuple[Mistake, type[Exception], tuple[str, ...]]


def client(url: Any = URL, **settings: Any) -> MeetingClient:
    """Make a client."""
    keys = {} if "signer" in settings else {"api_key": "devkey", "api_secret": SECRET}
    return MeetingClient(url, **(keys | settings))


def env(**variables: str) -> MeetingClient:
    """Make a client from variables."""
    return MeetingClient.from_env(VARIABLES | variables)


def from_env(variables: dict[str, str], **settings: Any) -> MeetingClient:
    """Make a client from these variables alone."""
    return MeetingClient.from_env(variables, **settings)


def calling(call: Callable[[MeetingClient], Any]) -> Mistake:
    """Make a call whose mistake is found before anything is sent."""

    def mistake() -> object:
        rooms = FakeRooms()

        async def main() -> object:
            async with client(transport=rooms) as made:
                return await call(made)

        try:
            return run_in_virtual_time(main)
        finally:
            assert rooms.visits == []

    return mistake


def upload(document: Any, room: Any = "room01", **how: Any) -> Mistake:
    """Upload a document."""
    return calling(lambda made: made.upload_whiteboard_file(room, document, **how))


def pdf(room: Any = "room01", **how: Any) -> Mistake:
    """Upload bytes."""
    return upload(PDF, room, **({"filename": "deck.pdf"} | how))


def call(path: Any, payload: Any = None, **how: Any) -> Mistake:
    """Make a JSON call."""
    return calling(lambda made: made.call(path, payload, **how))


def batch(jobs: Any, **how: Any) -> Mistake:
    """Run a batch."""

    async def run(made: MeetingClient) -> object:
        async with made.upload_many(jobs, **how) as running:
            return await running.wait()

    return calling(run)


async def stream() -> AsyncIterator[bytes]:
    """Produce nothing."""
    yield b""


CONFIGURATION: dict[str, tuple[Mistake, tuple[str, ...]]] = {
    # mistake: (what was done, (field, value, fix))
    "no scheme": (lambda: client("meet.example.com"), ("base_url", "'meet.example.com'", URL)),
    "scheme misspelt": (lambda: client("htps://meet.test"), ("base_url", "'htps://m", URL)),
    "port": (lambda: client(f"{URL}:44e"), ("base_url", "44e", URL)),
    "blank": (lambda: client(f" {URL}"), ("base_url", f"' {URL}'", URL)),
    "empty URL": (lambda: client(""), ("base_url", "''", URL)),
    "password in the URL": (
        lambda: client(f"https://me:{PASSWORD}@meet.test"),
        ("base_url", "(hidden)@meet.test", "give api_key and api_secret instead"),
    ),
    "query": (lambda: client(f"{URL}?x=1"), ("base_url", f"'{URL}?…'", "leave them out")),
    "plain http": (lambda: client("http://meet.test"), ("base_url", "'http:", "use https, or")),
    "no key": (lambda: MeetingClient(URL), ("api_key", "None", "give api_key and api_secret")),
    "no secret": (
        lambda: MeetingClient(URL, api_key="k"),
        ("api_secret", "None", "give api_key and api_secret"),
    ),
    "key with a blank": (lambda: client(api_key="k k"), ("api_key", "(hidden)", "without blanks")),
    "empty secret": (lambda: client(api_secret=""), ("api_secret", "is empty", "give the API")),
    "signer and key": (
        lambda: MeetingClient(URL, signer=HmacSigner("k", "s"), api_key="k"),
        ("signer", "together with api_key", "give one of them"),
    ),
    "signer's class": (
        lambda: client(signer=HmacSigner),
        ("signer", "HmacSigner", "such as HmacSigner(key, secret)"),
    ),
    "httpx as transport": (
        lambda: client(transport=httpx.AsyncClient()),
        ("transport", "AsyncClient", "HttpxTransport(client)"),
    ),
    "address as locks": (
        lambda: client(room_locks="redis://localhost"),
        ("room_locks", "a str", "RedisRoomLocks("),
    ),
    "own header": (
        lambda: client(default_headers={"API-KEY": "x"}),
        ("default_headers", "'API-KEY'", "leave it out"),
    ),
    "header of two lines": (
        lambda: client(default_headers={"X-Id": "a\nb"}),
        ("default_headers", "'X-Id'", "without line breaks"),
    ),
    "header name": (
        lambda: client(default_headers={"X Id": "a"}),
        ("default_headers", "'X Id'", "use letters, digits and -"),
    ),
    "MB": (
        lambda: client(max_size_whiteboard_file="30MB"),
        ("max_size_whiteboard_file", "'30MB'", "30MiB"),
    ),
    "no size": (lambda: client(max_size_whiteboard_file=0), ("max_size_w", "0", "bytes above 0")),
    "no transport": (
        lambda: client(transport=object()),
        ("transport", "object", "HttpxTransport(client)"),
    ),
    "flag": (lambda: client(preflight="yes"), ("preflight", "'yes'", "give True or False")),
    "check": (lambda: client(check_link="yes"), ("check_link", "'yes'", "give True or False")),
    "yes": (lambda: client(allow_images="yes"), ("allow_images", "'yes'", "give True or False")),
    "delivery": (lambda: client(delivery="once"), ("delivery", "'once'", "choose 'at_most_once'")),
    "lock": (lambda: client(lock=5), ("lock", "5", "give LockPolicy(")),
    "retries": (lambda: client(retry=3), ("retry", "3", "give RetryPolicy(")),
    "timeouts": (lambda: client(timeouts=30), ("timeouts", "30", "give Timeouts(")),
    "no callback": (lambda: client(on_event=5), ("on_event", "5", "give a function")),
    "async callback": (
        lambda: client(on_event=_observe),
        ("on_event", "_observe", "give a plain function"),
    ),
    "no attempts": (
        lambda: RetryPolicy(max_attempts=0),
        ("max_attempts", "0", "give an integer of at least 1"),
    ),
    "number as text": (
        lambda: RetryPolicy(max_attempts="3"),  # type: ignore[arg-type]
        ("max_attempts", "'3'", "give an integer"),
    ),
    "no delay": (lambda: RetryPolicy(initial_delay=0), ("initial_delay", "0", "at least 0.25")),
    "connect": (lambda: Timeouts(connect=-1), ("connect", "-1", "give a number above 0")),
    "negative wait": (lambda: LockPolicy(max_wait=-1), ("max_wait", "-1", "of at least 0")),
    "5m": (
        lambda: LockPolicy(window="5m"),  # type: ignore[arg-type]
        ("window", "'5m'", "give a number"),
    ),
    "verify": (
        lambda: HttpTransport(verify=5),  # type: ignore[arg-type]
        ("verify", "5", "the path of a file"),
    ),
    "cert": (
        lambda: HttpTransport(cert=5),  # type: ignore[arg-type]
        ("cert", "int", "give (certificate, key)"),
    ),
    "SOCKS": (
        lambda: HttpTransport(proxy=f"socks5://me:{PASSWORD}@proxy.test"),
        ("proxy", "(hidden)@proxy.test", "give http://host:port"),
    ),
    "proxy without scheme": (
        lambda: HttpTransport(proxy="proxy.test:3128"),
        ("proxy", "'proxy.test:3128'", "give http://host:port"),
    ),
    "no connections": (
        lambda: HttpTransport(max_connections=0),
        ("max_connections", "0", "give a number such as 100"),
    ),
    "no client": (
        lambda: HttpxTransport(None),  # type: ignore[arg-type]
        ("client", "NoneType", "HttpTransport(), the default"),
    ),
    "option misspelt": (
        lambda: client().with_options(delivry="at_least_once"),  # type: ignore[call-arg]
        ("delivry", "'at_least_once'", "did you mean delivery?"),
    ),
    "no option": (
        lambda: client().with_options(base_url=URL),  # type: ignore[call-arg]
        ("base_url", URL, "use one of allow_images"),
    ),
    "nothing exported": (
        lambda: from_env({}),
        ("MEETING_BASE_URL, MEETING_API_KEY, MEETING_API_SECRET", "are not set", "export"),
    ),
    "one is missing": (lambda: env(MEETING_API_KEY=""), ("MEETING_API_KEY", "not set", "export")),
    "half of the keys": (
        lambda: from_env({"MEETING_BASE_URL": URL}, api_key="k"),
        ("MEETING_API_SECRET", "not set", "export"),
    ),
    "signer alone": (
        lambda: from_env({"MEETING_API_KEY": "k"}, signer=HmacSigner("k", "s")),
        ("MEETING_BASE_URL", "not set", "export"),
    ),
    "setting misspelt": (lambda: from_env({}, timeot=3), ("timeot", "3", "did you mean")),
    "variable misspelt": (
        lambda: from_env({"MEETING_BASEURL": URL}),
        ("MEETING_BASEURL", "is not a variable", "rename it to MEETING_BASE_URL"),
    ),
    "empty beside a misspelt one": (
        lambda: env(MEETING_BASE_URL="", MEETING_BASEURL=URL),
        ("MEETING_BASEURL", "is not a variable", "rename it to MEETING_BASE_URL"),
    ),
    "limit": (lambda: client(timeout=0), ("timeout", "0", "give a number above 0")),
    "limit of the environment": (
        lambda: env(MEETING_TIMEOUT="10s"),
        ("MEETING_TIMEOUT", "'10s'", "set it to seconds"),
    ),
    "limit that is none": (
        lambda: env(MEETING_TIMEOUT="nan"),
        ("MEETING_TIMEOUT", "'nan'", "set it to seconds"),
    ),
    "other variable misspelt": (
        lambda: env(MEETING_PROXI="http://proxy.test"),
        ("MEETING_PROXI", "is not a variable", "rename it to MEETING_PROXY"),
    ),
    "secret misspelt": (
        lambda: from_env({}, api_secrt=PASSWORD),
        ("api_secrt", "(hidden)", "did you mean api_secret?"),
    ),
    "two secrets": (
        lambda: env(MEETING_API_SECRET_FILE="/x"),
        ("MEETING_API_SECRET", "(hidden)", "unset one"),
    ),
    "half a character in the secret": (
        lambda: env(MEETING_API_SECRET=f"{SECRET}\udcff"),
        ("api_secret", "(hidden)", "give the API secret"),
    ),
    "several, beside a secret": (
        lambda: from_env({"MEETING_API_SECRET": SECRET}),
        ("MEETING_BASE_URL, MEETING_API_KEY", "are not set", "export"),
    ),
    "timeouts, beside a secret": (
        lambda: from_env({"MEETING_BASE_URL": URL}, api_key="k", api_secret=SECRET, timeouts=3),
        ("timeouts", "3", "give Timeouts("),
    ),
    "address, beside a file of the secret": (
        lambda: env(MEETING_API_SECRET="", MEETING_API_SECRET_FILE=_file(), MEETING_BASE_URL="x"),
        ("base_url", "'x'", URL),
    ),
    "no file of the secret": (
        lambda: env(MEETING_API_SECRET="", MEETING_API_SECRET_FILE="/nope"),
        ("MEETING_API_SECRET_FILE", "'/nope'", "fix the path"),
    ),
    "no file of the authority": (
        lambda: env(MEETING_CA_FILE="/nope.pem"),
        ("MEETING_CA_FILE", "'/nope.pem'", "fix the path"),
    ),
    "another file": (
        lambda: env(MEETING_CA_FILE=__file__),
        ("MEETING_CA_FILE", "test_mistakes.py'", "give a PEM file"),
    ),
    "proxy of the environment": (
        lambda: env(MEETING_PROXY=f"socks5://me:{PASSWORD}@proxy.test"),
        ("MEETING_PROXY", "(hidden)@proxy.test", "give http://host:port"),
    ),
    "size of the environment": (
        lambda: env(MEETING_MAX_SIZE_WHITEBOARD_FILE="30MB"),
        ("MEETING_MAX_SIZE_WHITEBOARD_FILE", "'30MB'", "30MiB"),
    ),
    "maybe": (
        lambda: env(MEETING_ALLOW_PLAINTEXT="maybe"),
        ("MEETING_ALLOW_PLAINTEXT", "'maybe'", "set it to 1 or 0"),
    ),
    "address without scheme": (lambda: env(MEETING_BASE_URL="meet"), ("base_url", "'meet'", URL)),
    "secret that is half a character": (
        lambda: env(MEETING_API_SECRET=f"{SECRET}\udcff"),
        ("api_secret", "(hidden)", "give"),
    ),
    "key of two lines": (lambda: env(MEETING_API_KEY="k\n"), ("api_key", "(hidden)", "without")),
    "another setting is wrong": (
        lambda: from_env(VARIABLES, timeouts=3),
        ("timeouts", "3", "give Timeouts("),
    ),
    "secret as argument, too": (
        lambda: from_env(VARIABLES, signer=HmacSigner("k", "s"), api_secret=SECRET),
        ("signer", "together with api_", "give one of them"),
    ),
    **{
        f"file of the secret: {name!r}": (
            partial(env, MEETING_API_SECRET="", MEETING_API_SECRET_FILE=name),
            ("MEETING_API_SECRET_FILE", repr(name), fix),
        )
        for name, fix in {
            "/": "fix",
            "/nope/x": "fix",
            "nul\0": "fix",
            os.devnull: "put the API",
        }.items()
    },
    **{
        f"size {size!r} of the environment": (
            partial(env, MEETING_MAX_SIZE_WHITEBOARD_FILE=size),
            ("MEETING_MAX_SIZE_WHITEBOARD_FILE", repr(size), ""),
        )
        for size in ("0", "-5", "much", " ", "1.5GiB")
    },
    **{
        f"plaintext {text!r}": (
            partial(env, MEETING_ALLOW_PLAINTEXT=text),
            ("MEETING_ALLOW_PLAINTEXT", repr(text), "set it to 1 or 0"),
        )
        for text in ("2", "y es", "1.0")
    },
    "batch of no width": (batch([], concurrency=0), ("concurrency", "0", "at least 1")),
    "window": (batch([], window="x"), ("window", "'x'", "give an integer")),
    "unknown": (batch([], on_unknown="retry"), ("on_unknown", "'retry'", "choose 'report'")),
    "journal": (batch([], journal=5), ("journal", "5", "give the path of a file")),
}

INPUT: dict[str, tuple[Mistake, tuple[str, ...]]] = {
    "no name": (upload(PDF), ("filename", "None", "give one such as 'deck.pdf'")),
    "empty name": (pdf(filename=""), ("filename", "''", "give one such as 'deck.pdf'")),
    "media type": (pdf(content_type="pdf"), ("content_type", "'pdf'", "'application/pdf'")),
    "empty room": (pdf(""), ("room_id", "''", "pass the id of an active room")),
    "room with a blank": (pdf("room01 "), ("room_id", "'room01 '", "pass the id")),
    "room of two lines": (pdf("a\nb"), ("room_id", r"'a\nb'", "pass the id")),
    "check of no room": (
        calling(lambda made: made.check(room_id="")),
        ("room_id", "''", "pass the id of an active room"),
    ),
    "check in no time": (
        calling(lambda made: made.check(timeout="3")),  # type: ignore[arg-type]
        ("timeout", "'3'", "give seconds"),
    ),
    "no time": (pdf(timeout=0), ("timeout", "0", "None for no limit")),
    "time as flag": (pdf(timeout=True), ("timeout", "True", "give seconds")),
    "time that is none": (call("x", {}, timeout=math.nan), ("timeout", "nan", "give seconds")),
    "no time to wait": (
        calling(lambda made: made.wait_until_active("room01")),
        ("timeout", "None", "give seconds, here or to the client"),
    ),
    "time as text": (pdf(timeout="5"), ("timeout", "'5'", "give seconds")),
    "negative max_wait": (pdf(max_wait=-1), ("max_wait", "-1", "of at least 0")),
    "FTP": (lambda: Document.from_link("ftp://x/y"), ("document_link", "'ftp://x/y'", "http(s)")),
    "password in a link": (
        lambda: Document.from_link(f"https://me:{PASSWORD}@x/y"),
        ("document_link", "(hidden)@x/y", "give a public http(s) URL"),
    ),
    "blank in a link": (
        lambda: Document.from_link("https://x/a b"),
        ("document_link", "'https://x/a b'", "percent-encode"),
    ),
    "text for bytes": (
        lambda: Document.from_bytes("x"),  # type: ignore[arg-type]
        ("data", "'x'", "encode a text"),
    ),
    "number for bytes": (
        lambda: Document.from_bytes(5, "deck.pdf"),  # type: ignore[arg-type]
        ("data", "5", "is not bytes"),
    ),
    "bytes without a name": (
        lambda: Document.from_bytes(PDF),
        ("filename", "None", "give one such as 'deck.pdf'"),
    ),
    "stream without a size": (
        lambda: Document.from_stream(stream(), "deck.pdf", replayable=False),
        ("size", "None", "declare how many bytes"),
    ),
    "stream of no size": (
        lambda: Document.from_stream(stream(), "deck.pdf", size=0),
        ("size", "0", "give an int"),
    ),
    "no document": (Document, ("document", "neither", "choose one")),
    "link with a name": (
        upload(Document.from_link("https://x/y.pdf"), filename="deck.pdf"),
        ("filename", "'deck.pdf'", "leave it out"),
    ),
    "path with auth": (call("/auth/room/create", {}), ("path", "'/auth/room/create'", "leave it")),
    "path upwards": (call("room/../x", {}), ("path", "'room/../x'", "'room/create'")),
    "URL for a path": (call(f"{URL}/auth/x", {}), ("path", URL, "'room/create'")),
    "no JSON": (call("room/create", {"a": object()}), ("payload", "a dict of 1", "JSON's types")),
    "no reply": (call("x", {}, max_reply_bytes=0), ("max_reply_bytes", "0", "number of bytes")),
}


async def awaiting(made: MeetingClient) -> object:
    """Await a batch."""
    return await made.upload_many([])


OTHERS: dict[str, Row] = {
    "batch awaited": (
        calling(awaiting),
        TypeError,
        ("a batch is not awaited", "async with client.upload_many(jobs)"),
    ),
    "journal in no folder": (
        batch([], journal="/nope/term.db"),
        JournalError,
        ("'/nope/term.db'", "there is no folder '/nope'", "make it first"),
    ),
    "folder as journal": (
        batch([], journal=str(Path(__file__).parent)),
        JournalError,
        (str(Path(__file__).parent), "is not a file", "it is made if"),
    ),
    "no URL": (lambda: client(None), TypeError, ("base_url", "NoneType", "must be a str")),
    "key as number": (lambda: client(api_key=5), TypeError, ("api_key", "int", "must be a str")),
    "headers as list": (
        lambda: client(default_headers=["x"]),
        TypeError,
        ("default_headers", "list", "must be a mapping"),
    ),
    "nothing": (upload(None), TypeError, ("document", "NoneType", "must be a path, bytes")),
    "URL as path": (
        upload(f"{URL}/deck.pdf?token={PASSWORD}"),
        TypeError,
        (f"{URL}/deck.pdf?…", "is a URL", "pass Document.from_link(url)"),
    ),
    "room as number": (pdf(5), TypeError, ("room_id", "int", "must be a str")),
    "name as number": (pdf(filename=5), TypeError, ("filename", "int", "must be a str")),
    "type as number": (pdf(content_type=5), TypeError, ("content_type", "int", "must be a str")),
    "path as number": (call(5), TypeError, ("path", "int", "must be a str")),
    "list as payload": (call("x", ["y"]), TypeError, ("payload", "list", "must be a mapping")),
    "one job": (
        batch(UploadJob("room01", PDF)),
        TypeError,
        ("jobs", "UploadJob", "must be an iterable"),
    ),
    "folder": (
        upload(str(Path(__file__).parent)),
        DocumentUnreadable,
        (str(Path(__file__).parent), "is a directory", "meeting-async batch"),
    ),
    "no such file": (upload("nope.pdf"), DocumentUnreadable, ("'nope.pdf'", "No such file")),
    "no file": (upload("/dev/null"), DocumentUnreadable, ("'/dev/null'", "not a regular file")),
    "no bytes": (upload(b"", filename="deck.pdf"), DocumentEmpty, ("'deck.pdf'", "is empty")),
    "picture": (
        upload(b"\x89PNG\r\n\x1a\n", filename="deck.pdf"),
        DocumentTypeRefused,
        ("'deck.pdf'", "PNG image", "put it into a PDF"),
    ),
}


def _file() -> str:
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write(SECRET)
    return file.name


async def _observe(_event: object) -> None:
    """Observe in a way that nobody awaits."""


ROWS: dict[str, Row] = {
    **{name: (do, ConfigurationError, words) for name, (do, words) in CONFIGURATION.items()},
    **{name: (do, InvalidInput, words) for name, (do, words) in INPUT.items()},
    **OTHERS,
}


MISPLACED = {
    "password in the URL", "SOCKS", "secret misspelt", "password in a link", "URL as path"
}  # fmt: skip
"""Where a secret stands in an argument that is none for it: the caller's own frame has it, too."""


@pytest.mark.parametrize("name", ROWS)
def test_a_mistake(name: str) -> None:
    """It is found before anything is sent; the message says what, its value, and what to do.

    The secret is in no error or pickle, nor among the locals of a traceback.
    """
    mistake, kind, words = ROWS[name]
    with pytest.raises(kind) as caught:
        mistake()
    error, text = caught.value, str(caught.value)
    for word in words:
        assert word in text
    assert SECRET not in text + repr(error)
    assert PASSWORD not in text + repr(error)
    if name not in MISPLACED:
        assert containing(traceback_with_locals(error), [SECRET]) == []
    if isinstance(error, MeetingError):
        assert SECRET.encode() not in pickle.dumps(error)
    assert len(text) < 300
    assert text.isprintable()
    assert str(error.__cause__) != text  # a traceback that repeats itself explains nothing
    if isinstance(error, InvalidInput):
        assert error.field == words[0] or error.field.startswith(words[0])
        assert (error.fix, error.problem) != ("", "")
