"""Mistakes of a new user: each message names what was given, the value, and what to do."""

from __future__ import annotations

import base64
import math
import os
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
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
from meeting_async.testing import MeetingServer
from meeting_async.transports import HttpTransport, HttpxTransport
from support.fake_rooms import FakeRooms
from support.telling import containing, traceback_with_locals

URL = "https://meet.example.com"
SECRET, PASSWORD = "a-secret-that-nobody-reads", "passw0rd-in-an-address"
PDF, PNG = b"%PDF-1.7", b"\x89PNG\r\n\x1a\n"
HERE = "the current folder is "
FOLDER = str(Path(__file__).parent)
KEYS = {"api_key": "devkey", "api_secret": SECRET}
ADDRESS = {"MEETING_BASE_URL": URL}
VARIABLES = {**ADDRESS, "MEETING_API_KEY": "devkey", "MEETING_API_SECRET": SECRET}
SIGNER = HmacSigner("k", "s")

# --- what somebody does --------------------------------------------------------------------------


def client(base_url: Any = URL, **settings: Any) -> MeetingClient:
    """Make a client."""
    return MeetingClient(base_url, **(({} if "signer" in settings else KEYS) | settings))


def options(**given: Any) -> MeetingClient:
    """Change what a client does."""
    return client().with_options(**given)


def env(**variables: str) -> MeetingClient:
    """Make a client from variables; no transport is the same as none given."""
    return MeetingClient.from_env(VARIABLES | variables, transport=None)


def from_env(found: dict[str, str], **settings: Any) -> MeetingClient:
    """Make a client from these variables and some settings."""
    return MeetingClient.from_env(found, **settings)


def calling(call: Callable[[MeetingClient], Awaitable[object]]) -> object:
    """Make a call whose mistake is found before anything is sent."""
    rooms = FakeRooms()

    async def main() -> object:
        async with client(transport=rooms) as made:
            return await call(made)

    try:
        return anyio.run(main)
    finally:
        assert rooms.visits == []


def upload(document: Any, **how: Any) -> object:
    """Upload a document."""
    return calling(lambda made: made.upload_whiteboard_file("room01", document, **how))


def pdf(room_id: Any = "room01", filename: Any = "deck.pdf", **how: Any) -> object:
    """Upload bytes."""
    how["filename"] = filename
    return calling(lambda made: made.upload_whiteboard_file(room_id, PDF, **how))


def call(path: Any = "room/create", payload: Any = None, **how: Any) -> object:
    """Make a JSON call."""
    return calling(lambda made: made.call(path, payload, **how))


def check(**how: Any) -> object:
    """Check the server."""
    return calling(lambda made: made.check(**how))


def room_info(room_id: Any) -> object:
    """Ask who is in a room."""
    return calling(lambda made: made.get_active_room_info(room_id))


def wait_until_active() -> object:
    """Wait without a limit."""
    return calling(lambda made: made.wait_until_active("room01"))


def batch(jobs: Any = (), **how: Any) -> object:
    """Run a batch."""

    async def run(made: MeetingClient) -> object:
        async with made.upload_many(jobs, **how) as running:
            return await running.wait()

    return calling(run)


def plain_with() -> object:
    """Open a client without ``async``."""
    made: Any = client()
    with made:
        return made


def plain_with_batch() -> object:
    """Open a batch without ``async``."""

    async def run(made: Any) -> object:
        with made.upload_many([]) as running:
            return running

    return calling(run)


def await_a_batch() -> object:
    """Await a batch, which nobody does twice."""

    async def run(made: MeetingClient) -> object:
        return await made.upload_many([])

    return calling(run)


async def stream() -> AsyncIterator[bytes]:
    """Produce nothing."""
    yield b""


async def observe(_event: object) -> None:
    """Observe in a way that nobody awaits."""


# --- and what is said of it ----------------------------------------------------------------------

Row = tuple[dict[str, Any], str, str] | tuple[dict[str, Any], str, str, str]
"""What is given; field, value and fix in the message. The field is the first that is given."""

CONFIGURATION: dict[Callable[..., object], list[Row]] = {
    client: [
        ({"base_url": "meet.example.com"}, "'meet.example.com'", URL),
        ({"base_url": "htps://meet.test"}, "'htps://m", URL),
        ({"base_url": f"{URL}:44e"}, "44e", URL),
        ({"base_url": f" {URL}"}, f"' {URL}'", URL),
        ({"base_url": f"https://me:{PASSWORD}@a.test"}, "(hidden)@a.test", "give api_key and"),
        ({"base_url": f"{URL}?x=1"}, f"'{URL}?…'", "leave them out"),
        ({"max_connections": 0}, "0", "give a number such as 100"),
        ({"max_connections": True}, "True", "give a number such as 100"),
        ({"base_url": "http://meet.test"}, "'http:", "use https, or"),
        ({"api_key": None, "api_secret": None}, "None", "give api_key and api_secret"),
        ({"api_secret": None}, "None", "give api_key and api_secret"),
        ({"api_key": "k k"}, "(hidden)", "without blanks"),
        ({"api_key": ""}, "is empty", "give the API key of the server"),
        ({"api_secret": ""}, "is empty", "give the API"),
        ({"signer": SIGNER, "api_key": "k"}, "together with api_key", "give one of them"),
        ({"signer": HmacSigner}, "HmacSigner", "such as HmacSigner(key, secret)"),
        ({"transport": httpx.AsyncClient()}, "AsyncClient", "HttpxTransport(client)"),
        ({"transport": object()}, "object", "HttpxTransport(client)"),
        ({"room_locks": "redis://localhost"}, "a str", "RedisRoomLocks("),
        ({"default_headers": {"API-KEY": "x"}}, "'API-KEY'", "leave it out"),
        ({"default_headers": {"X-Id": "a\nb"}}, "'X-Id'", "without line breaks"),
        ({"default_headers": {"X Id": "a"}}, "'X Id'", "use letters, digits and -"),
        ({"max_size_whiteboard_file": "30MB"}, "'30MB'", "30MiB"),
        ({"preflight": "yes"}, "'yes'", "give True or False"),
        ({"check_link": "yes"}, "'yes'", "give True or False"),
        ({"allow_images": "yes"}, "'yes'", "give True or False"),
        ({"delivery": "once"}, "'once'", "choose 'at_most_once'"),
        ({"lock": 5}, "5", "give LockPolicy("),
        ({"retry": 3}, "3", "give RetryPolicy("),
        ({"timeouts": 30}, "30", "give Timeouts("),
        ({"timeout": 0}, "0", "give a number above 0"),
        ({"on_event": 5}, "5", "give a function"),
        ({"on_event": observe}, "observe", "give a plain function"),
    ],
    RetryPolicy: [
        ({"max_attempts": 0}, "0", "give an integer of at least 1"),
        ({"max_attempts": "3"}, "'3'", "give an integer"),
        ({"initial_delay": 0}, "0", "at least 0.25"),
    ],
    Timeouts: [({"connect": -1}, "-1", "give a number above 0")],
    LockPolicy: [
        ({"max_wait": -1}, "-1", "of at least 0"),
        ({"window": "5m"}, "'5m'", "give a number"),
    ],
    HttpTransport: [
        ({"verify": 5}, "5", "the path of a file"),
        ({"cert": 5}, "int", "give (certificate, key)"),
        ({"proxy": f"socks5://me:{PASSWORD}@a.test"}, "(hidden)@a.test", "give http://host:p"),
        ({"proxy": "proxy.test:3128"}, "'proxy.test:3128'", "give http://host:port"),
    ],
    HttpxTransport: [({"client": None}, "NoneType", "HttpTransport(), the default")],
    options: [
        ({"delivry": "at_least_once"}, "'at_least_once'", "did you mean delivery?"),
        ({"base_url": URL}, URL, "use one of allow_images"),
    ],
    from_env: [
        ({"api_key": "k", "found": ADDRESS}, "MEETING_API_SECRET", "not set", "export"),
        ({"signer": SIGNER, "found": {}}, "MEETING_BASE_URL", "not set", "export"),
        ({"timeot": 3, "found": {}}, "3", "did you mean"),
        ({"api_secrt": PASSWORD, "found": {}}, "(hidden)", "did you mean api_secret?"),
        ({"timeouts": 3, "found": VARIABLES}, "3", "give Timeouts("),
        ({"timeouts": 3, "found": ADDRESS, **KEYS}, "3", "give Timeouts("),
        ({"signer": SIGNER, "found": VARIABLES, "api_secret": SECRET}, "with api_", "one of them"),
        ({"found": {}}, ", ".join(VARIABLES), "are not set", "export"),
        ({"found": {"MEETING_URL": URL}}, "MEETING_BASE_URL,", "MEETING_URL is set", "rename it"),
        (
            {"found": ADDRESS | {"MEETING_KEY": "k"}},
            "MEETING_API_KEY,",
            "MEETING_KEY is set",
            "ren",
        ),
    ],
    env: [
        ({"MEETING_API_KEY": ""}, "not set", "export"),
        ({"MEETING_API_KEY": "k\n"}, "api_key", "(hidden)", "without"),
        ({"MEETING_BASE_URL": "meet"}, "base_url", "'meet'", URL),
        ({"MEETING_BASEURL": URL, "MEETING_BASE_URL": ""}, "is not a", "rename it to MEETING_BASE"),
        ({"MEETING_PROXI": URL}, "is not a variable", "rename it to MEETING_PROXY"),
        ({"MEETING_TIMEOUT": "10s"}, "'10s'", "set it to seconds"),
        ({"MEETING_TIMEOUT": "nan"}, "'nan'", "set it to seconds"),
        ({"MEETING_API_SECRET": f"{SECRET}\udcff"}, "api_secret", "(hidden)", "give the API s"),
        ({"MEETING_API_SECRET_FILE": "/x"}, "MEETING_API_SECRET", "(hidden)", "unset one"),
        *(
            ({"MEETING_API_SECRET_FILE": name, "MEETING_API_SECRET": ""}, repr(name), fix)
            for name, fix in [
                *((name, "fix the path") for name in ("/nope", "/nope/x", "/", "nul\0")),
                (os.devnull, "put the API"),
            ]
        ),
        ({"MEETING_CA_FILE": "/nope.pem"}, "No such file or directory", "give a PEM file"),
        ({"MEETING_CA_FILE": __file__}, "test_mistakes.py'", "give a PEM file"),
        (
            {"MEETING_PROXY": f"socks5://me:{PASSWORD}@proxy.test"},
            "(hidden)@proxy.test",
            "give http://host:port",
        ),
        *(
            ({"MEETING_MAX_SIZE_WHITEBOARD_FILE": size}, repr(size), "30MiB")
            for size in ("30MB", "0", "-5", " ", "1.5GiB")
        ),
        ({"MEETING_ALLOW_PLAINTEXT": "maybe"}, "'maybe'", "set it to 1 or 0"),
    ],
    batch: [
        ({"concurrency": 0}, "0", "at least 1"),
        ({"window": "x"}, "'x'", "give an integer"),
        ({"once_per": "week"}, "'week'", "choose 'session'"),
        ({"journal": 5}, "5", "give the path of a file"),
    ],
}

INPUT: dict[Callable[..., object], list[Row]] = {
    upload: [
        ({"document": PDF}, "filename", "None", "give one such as 'deck.pdf'"),
        ({"document": "of-1998/caf\udce9"}, "filename", r"/caf\udce9'", "rename it, or"),
        (
            {"filename": "deck.pdf", "document": Document.from_link("https://x/y.pdf")},
            "'deck.pdf'",
            "leave it out",
        ),
    ],
    pdf: [
        ({"filename": ""}, "''", "give one such as 'deck.pdf'"),
        ({"content_type": "pdf"}, "'pdf'", "'application/pdf'"),
        ({"room_id": ""}, "''", "pass the id of an active room"),
        ({"room_id": "room01 "}, "'room01 '", "pass the id"),
        ({"room_id": "a\nb"}, r"'a\nb'", "pass the id"),
        ({"timeout": 0}, "0", "None for no limit"),
        ({"timeout": True}, "True", "give seconds"),
        ({"timeout": "5"}, "'5'", "give seconds"),
        ({"max_wait": -1}, "-1", "of at least 0"),
    ],
    check: [
        ({"room_id": ""}, "''", "pass the id of an active room"),
        ({"timeout": "3"}, "'3'", "give seconds"),
    ],
    room_info: [({"room_id": ""}, "''", "pass the id of an active room")],
    wait_until_active: [({}, "timeout", "None", "give seconds, here or to the client")],
    Document.from_link: [
        ({"url": "ftp://x/y"}, "document_link", "'ftp://x/y'", "http(s)"),
        (
            {"url": f"https://me:{PASSWORD}@x/y"},
            "document_link",
            "(hidden)@x/y",
            "give a public http(s) URL",
        ),
        (
            {"url": f"https://x/a b?{PASSWORD}"},
            "document_link",
            "'https://x/a b?…'",
            "percent-encode",
        ),
    ],
    Document.from_bytes: [
        ({"data": "x"}, "'x'", "encode a text"),
        ({"data": 5, "filename": "deck.pdf"}, "5", "is not bytes"),
        ({"data": PDF}, "filename", "None", "give one such as 'deck.pdf'"),
    ],
    lambda **how: Document.from_stream(stream(), "deck.pdf", **how): [
        ({"replayable": False}, "size", "None", "declare how many bytes"),
        ({"size": 0}, "0", "give an int"),
    ],
    Document: [({}, "document", "neither", "choose one")],
    call: [
        ({"path": "/auth/room/create"}, "'/auth/room/create'", "leave it"),
        ({"path": "room/../x"}, "'room/../x'", "'room/create'"),
        ({"path": f"{URL}/auth/x"}, URL, "'room/create'"),
        ({"payload": {"a": object()}}, "a dict of 1", "JSON's types"),
        ({"max_reply_bytes": 0}, "0", "number of bytes"),
        ({"timeout": math.nan}, "nan", "give seconds"),
    ],
}

TYPES: dict[Callable[..., object], list[Row]] = {
    client: [
        ({"base_url": None}, "NoneType", "must be a str"),
        ({"api_key": 5}, "int", "must be a str"),
        ({"default_headers": ["x"]}, "list", "must be a mapping"),
    ],
    upload: [
        ({"document": None}, "NoneType", "must be a path, bytes"),
        (
            {"document": f"{URL}/deck.pdf?token={PASSWORD}"},
            f"{URL}/deck.pdf?…",
            "is a URL",
            "pass Document.from_link(url)",
        ),
    ],
    pdf: [({name: 5}, "int", "must be a str") for name in ("room_id", "filename", "content_type")],
    call: [
        ({"path": 5}, "int", "must be a str"),
        ({"payload": ["y"]}, "list", "must be a mapping"),
    ],
    batch: [
        ({"jobs": UploadJob("room01", PDF)}, "UploadJob", "must be an iterable"),
        *(
            ({"jobs": [job]}, "job 0", type(job).__name__, "give UploadJob(room_id, document)")
            for job in (("room01", "deck.pdf"), {"room": "room01"}, "deck.pdf")
        ),
    ],
    plain_with: [({}, "a MeetingClient", "is opened with", "use `async with`")],
    plain_with_batch: [({}, "a Batch", "is opened with", "use `async with`")],
    await_a_batch: [({}, "a batch", "is not awaited", "async with client.upload_many(jobs)")],
}

DOCUMENTS: list[tuple[type[Exception], Row]] = [
    (DocumentUnreadable, ({"document": FOLDER}, FOLDER, "is a directory", "meeting-async batch")),
    (DocumentUnreadable, ({"document": "nope.pdf"}, "'nope.pdf'", "No such file", HERE)),
    (
        DocumentUnreadable,
        ({"document": "room01"}, "'room01'", "No such file", "room id comes first"),
    ),
    *(
        (DocumentUnreadable, ({"document": text}, repr(text[:20])[:-1], "cannot be", "pass bytes"))
        for text in (
            *(base64.b64encode(PDF * count).decode() for count in (2, 99)),
            *("%PDF-1.7\n1 0 obj", "UEsDBBQAAAAIAA==", "x" * 300, "x/" * 150 + "x"),
        )
    ),
    (DocumentUnreadable, ({"document": "/dev/null"}, "'/dev/null'", "not a", "regular file")),
    (DocumentEmpty, ({"document": b"", "filename": "a.pdf"}, "'a.pdf'", "is", "empty")),
    (DocumentTypeRefused, ({"document": PNG, "filename": "a.pdf"}, "a.pdf", "PNG", "into a PDF")),
]
JOURNALS: list[Row] = [
    ({"journal": "/nope/term.db"}, "'/nope/term.db'", "no folder '/nope'", "make it first"),
    ({"journal": FOLDER}, FOLDER, "is not a file", "it is made if"),
]


def every_mistake() -> Iterator[object]:
    """Yield error, deed, arguments, and what the message says."""
    tables = [
        *((ConfigurationError, *each) for each in CONFIGURATION.items()),
        *((InvalidInput, *each) for each in INPUT.items()),
        *((TypeError, *each) for each in TYPES.items()),
        *((kind, upload, [row]) for kind, row in DOCUMENTS),
        (JournalError, batch, JOURNALS),
    ]
    for kind, make, rows in tables:
        for given, *words in rows:
            said = words if len(words) == 3 else [next(iter(given)), *words]
            yield pytest.param(kind, make, given, said, id=f"{make.__name__}: {' '.join(said)}")


@pytest.mark.parametrize(("kind", "mistake", "given", "words"), list(every_mistake()))
def test_a_mistake(
    kind: type[Exception],
    mistake: Callable[..., object],
    given: dict[str, Any],
    words: list[str],
) -> None:
    """It is found before anything is sent; the message says what, its value, and what to do.

    The secret is in no error or pickle, nor among the locals of a traceback. Nor is the password
    of a proxy, or what a link has beside host and path.
    """
    with pytest.raises(kind) as caught:
        mistake(**given)
    error, text = caught.value, str(caught.value)
    for word in words:
        assert word in text
    assert SECRET not in text + repr(error)
    assert PASSWORD not in text + repr(error)
    in_urls = [PASSWORD] if words[0] in {"proxy", "document_link"} else []
    assert containing(traceback_with_locals(error), [SECRET, *in_urls]) == []
    if isinstance(error, MeetingError):
        assert SECRET.encode() not in pickle.dumps(error)
    assert len(text) < 300
    assert text.isprintable()
    assert str(error.__cause__) != text  # a traceback that repeats itself explains nothing
    if isinstance(error, InvalidInput):
        assert error.field == words[0] or error.field.startswith(words[0])
        assert (error.fix, error.problem) != ("", "")


# --- what only the server knows ------------------------------------------------------------------

KEY = "APIkey"
ASKED: dict[str, tuple[dict[str, str], Callable[[MeetingClient], Awaitable[object]], list[str]]] = {
    "key and secret, swapped": (
        {"api_key": SECRET, "api_secret": KEY},
        lambda made: made.get_active_room_info("room01"),
        ["INVALID_API_KEY", "perhaps swapped"],
    ),
    "another key": (
        {"api_key": "APIother"},
        lambda made: made.upload_whiteboard_file("room01", PDF, filename="deck.pdf"),
        ["INVALID_API_KEY", "client.api_key in", "API key of this server"],
    ),
    "another room": (
        {},
        lambda made: made.upload_whiteboard_file("room1", PDF, filename="deck.pdf"),
        ["'room1'", "ROOM_NOT_FOUND", "create the room first"],
    ),
    "a room that is not active": (
        {},
        lambda made: made.get_active_room_info("room02"),
        ["'room02'", "ROOM_NOT_ACTIVE", "wait_until_active"],
    ),
    "a typing error in a path": (
        {},
        lambda made: made.call("room/endRom", {"room_id": "room01"}),
        ["room/endRom", "no such path on a meeting server", "given to call()"],
    ),
}


@pytest.mark.parametrize("what", ASKED)
def test_a_mistake_that_the_server_finds(what: str) -> None:
    """Its answer is explained in one line; no secret is in it."""
    given, ask, words = ASKED[what]
    server = MeetingServer(api_key=KEY, api_secret=SECRET)
    server.add_room("room01")
    server.add_room("room02", active=False)

    async def main(url: str) -> None:
        keys: Any = {"api_key": KEY, "api_secret": SECRET} | given
        async with MeetingClient(url, **keys) as made:
            await ask(made)

    with server.run() as url, pytest.raises(MeetingError) as caught:
        anyio.run(main, url)
    text = str(caught.value)
    assert [word for word in words if word not in text] == []
    assert SECRET not in text
    assert text.isprintable()
    assert len(text) < 300


def test_a_lambda_that_returns_a_coroutine(caplog: pytest.LogCaptureFixture) -> None:
    """One line says so, however many events there are; nothing is left that was not awaited."""

    def tell(event: object) -> Any:  # as a lambda does
        return observe(event)

    async def main() -> None:
        async with client(transport=FakeRooms(), on_event=tell) as made:
            for _ in range(2):
                await made.upload_whiteboard_file("room01", PDF, filename="deck.pdf")

    anyio.run(main)
    (told,) = caplog.records
    assert "returned a coroutine" in told.getMessage()
    assert "plain function" in told.getMessage()


def test_a_journal_of_jobs_that_are_all_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """That a batch sends nothing is said, with the journal's name."""

    async def main() -> None:
        async with client(transport=FakeRooms()) as made:
            for _ in range(2):
                assert caplog.records == []
                jobs = [UploadJob("room01", Document.from_bytes(PDF, "deck.pdf"))]
                async with made.upload_many(jobs, journal=tmp_path / "term.db") as running:
                    await running.wait()

    anyio.run(main)
    (told,) = caplog.records
    assert "term.db" in told.getMessage()
