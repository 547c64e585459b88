"""The error tree: its shape, its facts, its texts, and that it travels between processes."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re
from typing import Any

import attrs
import pytest
from celery import Celery  # type: ignore[import-untyped]  # it brings no types
from celery.backends.base import Backend  # type: ignore[import-untyped]  # as above

import meeting_async
from meeting_async import Attempt, Verdict, errors
from meeting_async.errors import MeetingError

TREE: list[type[MeetingError]] = [
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, MeetingError)
]
ATTEMPTS = (
    Attempt(1, 0.0, 0.25, Verdict.BUSY, 409, "HTTP 409 (in progress)"),
    Attempt(2, 0.75, 12.5, Verdict.UNKNOWN, None, "silence", bytes_sent=4096),
)
VALUES: dict[str, Any] = {
    "str": "text",
    "str | None": "text",
    "int": 4096,
    "int | None": 4096,
    "float": 12.5,
    "float | None": 7.5,
    "bytes": b"{}",
    "tuple[tuple[str, str], ...]": (("x-request-id", "r-1"),),
}
HOSTILE = "1\n2\r3\u20284\x855\x1b[31m6\ud800 ende für alle"
"""Line breaks of four kinds, a terminal's escape, and a character no file can hold."""

each_error = pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)


def facts(kind: type[MeetingError]) -> dict[str, Any]:
    """Return a value for each fact of an error."""
    if not attrs.has(kind):
        return {}
    found = {field.name: VALUES[str(field.type)] for field in attrs.fields(kind)}
    return {name: f"{name} here" if value == "text" else value for name, value in found.items()}


def make(kind: type[MeetingError], /, **changed: Any) -> MeetingError:
    """Make an error as a call raises it."""
    error = kind(*(facts(kind) | changed).values())
    error.operation, error.room_id = "room/uploadWhiteboardFile", "room01"
    if "document" not in facts(kind):
        error.document = "deck.pdf"
    error.attempts = ATTEMPTS
    error.add_note("a note")
    return error


def through_celery(error: MeetingError) -> Any:
    """Store class and args as JSON, as Celery's result backend does, and make the error again."""
    backend = Backend(app=Celery("test", set_as_current=False), serializer="json")
    stored = backend.encode(backend.prepare_exception(error, "json"))
    return backend.exception_to_python(backend.decode(stored))


WAYS: dict[str, Any] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "class and args": lambda error: type(error)(*error.args),
    "Celery": through_celery,
}


@each_error
def test_errors_travel(kind: type[MeetingError]) -> None:
    """Facts and text survive a copy and the way to another process.

    Attempts and notes do, too, unless a queue keeps class and arguments only.
    """
    error = make(kind)
    error.tried = "after 3 attempts in 5 s; nothing was sent"
    assert kind(*facts(kind).values()).args == tuple(facts(kind).values())
    for way, travel in WAYS.items():
        other = travel(error)
        assert type(other) is kind
        assert other is not error
        assert str(other) == str(error)
        for name in ("operation", "room_id", "document", "tried"):
            assert getattr(other, name) == getattr(error, name)
        if way != "Celery":  # whose JSON has no bytes and no tuples
            assert (repr(other), other.args) == (repr(error), error.args)
        if way not in {"Celery", "class and args"}:
            assert vars(other) == vars(error)
            assert other.attempts == ATTEMPTS


@each_error
def test_a_new_error_knows_no_call(kind: type[MeetingError]) -> None:
    """The facts of the call are attributes of every error, from the start; it is public."""
    assert getattr(meeting_async, kind.__name__) is kind
    assert kind.__name__ in meeting_async.__all__
    error = kind(**facts(kind))
    assert (error.operation, error.room_id, error.attempts) == (None, None, ())
    assert error.document == facts(kind).get("document")
    assert str(error).strip() if facts(kind) else repr(kind("why")) == f"{kind.__name__}('why')"


@each_error
def test_texts_are_one_line_without_doubled_words(kind: type[MeetingError]) -> None:
    """Whatever a server or an operating system says fits on a line of a log, and is cut there."""
    texts = [name for name, value in facts(kind).items() if isinstance(value, str)]
    for said in (None, HOSTILE, "x" * 5000):
        error = make(kind, **(dict.fromkeys(texts, said) if said else {}))
        assert str(error).isprintable()
        assert len(repr(error).splitlines()) == 1
    error.attempts = ATTEMPTS * 500
    assert len(repr(error)) < 2500
    text = str(make(kind))
    assert not re.search(r"\b(\w+) \1\b", text)
    phrases = re.findall(r"[a-z][a-z ]{15,}", text)
    assert len(phrases) == len(set(phrases))


def test_the_tree_is_the_one_that_is_drawn() -> None:
    """The docstring draws every class, below its parent, with its builtin base."""
    drawn: list[tuple[str, str | None]] = []
    stack: list[tuple[int, str]] = []
    pattern = re.compile(r"^    ([│ ├└─]*)(\w+)(?: \((\w+)\))?", re.MULTILINE)
    picture = (errors.__doc__ or "").split("::\n", 1)[1].split("\n\n:class:")[0]
    for prefix, name, builtin in pattern.findall(picture):
        kind: type[MeetingError] = getattr(errors, name)
        while stack and stack[-1][0] >= len(prefix):
            stack.pop()
        bases = [stack[-1][1]] if stack else ["Exception"]
        assert [base.__name__ for base in kind.__bases__] == bases + ([builtin] if builtin else [])
        stack.append((len(prefix), name))
        drawn.append((name, builtin))
    assert sorted(name for name, _ in drawn) == sorted(kind.__name__ for kind in TREE)
    assert all(issubclass(getattr(builtins, name), Exception) for _, name in drawn if name)


def test_an_unknown_outcome_is_no_transport_error() -> None:
    """``except TransportError: retry()`` must not show a class the same slides twice."""
    for kind in (errors.TransportError, ConnectionError, TimeoutError, OSError):
        assert not issubclass(errors.UploadOutcomeUnknown, kind)
        assert not issubclass(errors.BatchStopped, kind)


REPLY = (400, "NAME", "no such thing")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.InvalidInput("room_id", "''", "is empty", "pass one"),
         "room_id is empty (got ''): pass one"),
        (errors.DocumentTooLarge("a.pdf", 1_001, 1_000),
         "'a.pdf' has 1,001 bytes, 1 more than max_size_whiteboard_file allows (1,000)"),
        (errors.DocumentUnreadable("a.pdf", "No such file or directory"),
         "'a.pdf' cannot be read: No such file or directory"),
        (errors.RequestRefused(*REPLY),
         "upload of 'deck.pdf' to room 'room01': refused (HTTP 400 NAME: no such thing)"),
        (errors.RoomNotFound(200, None, "none", hint="Create it."),
         ("upload of 'deck.pdf' to room 'room01': the server knows no such room "
          "(HTTP 200: none). Create it.")),
        (errors.RoomBusy(330.04, "another client", 12.3, "in use"),
         ("room 'room01' is busy: another client has locked it (HTTP 409: in use); "
          "waited 330.0 s; it must be free in 12 s")),
        (errors.RoomBusy(330.04, "another client", 0.0, limit="window"),
         ("room 'room01' is busy: another client has locked it; "
          "waited 330.0 s, the longest without max_wait; it should be free by now")),
        (errors.RoomBusy(0, "another upload of this application", None),
         ("room 'room01' is busy: another upload of this application has locked it; "
          "waited 0.0 s")),
        (errors.DeadlineExceeded(30.0, "sending"),
         "upload of 'deck.pdf' to room 'room01': the timeout of 30 s ended it while sending"),
        (errors.ConnectFailed("connection refused", "meet.test:443"),
         "meet.test:443: connection refused"),
        (errors.UploadInterrupted("reset", "meet.test:443", 4096),
         ("upload of 'deck.pdf' to room 'room01' was cut off after 4,096 bytes: "
          "meet.test:443: reset")),
        (errors.UploadOutcomeUnknown("silence", 9, 9, 300.0),
         ("'deck.pdf' was sent to room 'room01', but whether it arrived is unknown: silence; "
          "look into the room before sending it again")),
        (errors.BatchFailed(1_200, 1, 2, 3, 1_000, "'a.pdf' for room 'b': no"),
         ("1,006 of 1,200 documents are not known to be in their rooms: 1 refused, 2 failed, "
          "3 of unknown outcome, 1,000 skipped; first: 'a.pdf' for room 'b': no")),
        (errors.Throttled(*REPLY, retry_after=5),  # to a JSON call
         ("room/create for room 'room01': the server asks for fewer requests "
          "(HTTP 400 NAME: no such thing)")),
        (errors.BatchFailed(1_200, 0, 0, 0, 0, "KeyError('column')"),
         "the batch ended early, after 1,200 documents: KeyError('column')"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)  # fmt: skip
def test_texts(error: MeetingError, text: str) -> None:
    """What people read: the call, what was seen, the host, what to do."""
    error.operation, error.room_id = "room/create", "room01"
    if not isinstance(error, errors.DocumentError | errors.Throttled):
        error.document = "deck.pdf"
    assert str(error) == text
