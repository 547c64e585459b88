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

from meeting_async import errors
from meeting_async._attempts import Attempt
from meeting_async.errors import MeetingError

TREE: list[type[Any]] = sorted(
    (
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, Exception)
    ),
    key=lambda kind: kind.__name__,
)
BY_NAME = {kind.__name__: kind for kind in TREE}

ATTEMPTS = (
    Attempt(1, 0.0, 0.25, "busy", 409, "HTTP 409 (in progress)"),
    Attempt(2, 0.75, 12.5, "unknown", None, "silence", bytes_sent=4096),
)

EXAMPLE_VALUES: dict[str, Any] = {
    "str": "text",
    "int": 4096,
    "float": 12.5,
    "str | None": "NAME",
    "float | None": 7.5,
}
HOSTILE = "1\n2\r3\u20284\x855\x1b[31m6\ud800 ende für alle"
"""Line breaks of four kinds, a terminal's escape, and a character no file can hold."""


def facts(kind: type[MeetingError]) -> dict[str, Any]:
    """Return a value for each fact of an error, different for each text."""
    if not attrs.has(kind):
        return {}
    found: dict[str, Any] = {}
    for field in attrs.fields(kind):
        value = EXAMPLE_VALUES[str(field.type)]
        found[field.name] = f"{value} of {field.name}" if isinstance(value, str) else value
    return found


def make(kind: type[MeetingError], **changed: Any) -> MeetingError:
    """Make an example of an error class."""
    error = kind(*(facts(kind) | changed).values())
    error.attempts = ATTEMPTS
    error.add_note("a hint")
    return error


def assert_same(left: MeetingError, right: MeetingError) -> None:
    """Assert that two errors tell the same, down to notes and attempts."""
    assert type(left) is type(right)
    assert left is not right
    assert str(left) == str(right)
    assert left.args == right.args
    assert left.attempts == right.attempts == ATTEMPTS
    assert left.__notes__ == right.__notes__ == ["a hint"]
    for name, value in facts(type(left)).items():
        assert getattr(left, name) == getattr(right, name) == value


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_pickles(kind: type[MeetingError], protocol: int) -> None:
    """Facts, attempts and notes survive the way to another process."""
    error = make(kind)
    assert_same(pickle.loads(pickle.dumps(error, protocol)), error)


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_every_error_copies(kind: type[MeetingError], duplicate: Any) -> None:
    """A copy is complete, too."""
    error = make(kind)
    assert_same(duplicate(error), error)


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_error_is_one_of_ours(kind: type[BaseException]) -> None:
    """One ``except MeetingError`` catches all, and each class says what it is."""
    assert issubclass(kind, MeetingError)
    assert kind.__doc__
    assert kind.__module__ == "meeting_async.errors"


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_facts_may_be_named(kind: type[MeetingError]) -> None:
    """Facts are named arguments and attributes of the same name."""
    error = kind(**facts(kind))
    assert {name: getattr(error, name) for name in facts(kind)} == facts(kind)


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_text_is_one_line(kind: type[MeetingError]) -> None:
    """An error fits on a line of a log, and its repr, too."""
    error = make(kind)
    assert str(error).isprintable()
    assert len(repr(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("kind", "fact"),
    [
        pytest.param(kind, fact, id=f"{kind.__name__}.{fact}")
        for kind in TREE
        for fact in ("msg", "status_code", "reason")
        if fact in facts(kind)
    ],
)
def test_text_is_one_line_whatever_others_say(kind: type[MeetingError], fact: str) -> None:
    """Texts of the server and the operating system can forge no line and spoil no log file."""
    error = make(kind, **{fact: HOSTILE})
    assert getattr(error, fact) == HOSTILE
    assert "ende für alle" in str(error)
    assert str(error).isprintable()


def test_what_does_not_print_is_escaped() -> None:
    """As Python writes it, and nothing else is touched."""
    assert str(errors.ConnectionLost("a\n\x1b[0m \ud800 ü\\'")) == r"a\n\x1b[0m \ud800 ü\'"


def test_texts() -> None:
    """What people read, word for word."""
    reply = ("room/create", "room01", 400, "NAME", "no")
    assert [
        str(error)
        for error in (
            errors.InvalidInput("room_id", "''", "is empty", "pass one"),
            errors.DocumentEmpty("a.pdf"),
            errors.DocumentTooLarge("a.pdf", 1_001, 1_000),
            errors.DocumentTypeRefused("a.png", "PNG image"),
            errors.DocumentUnreadable("a.pdf", "No such file or directory"),
            errors.DocumentChanged("a.pdf", "it is gone"),
            errors.ReplyError(*reply),
            errors.RequestRefused("room/create", None, 400, None, "no"),
            errors.RoomBusy("room01", 330.04, "HTTP 409 (busy)"),
            errors.DeadlineExceeded("room/create", 30.0, "sending"),
            errors.RoomGateUnavailable("https://meet.test:443/auth room01", "no answer"),
            errors.ConnectionLost("the connection broke"),
            errors.UploadInterrupted("reset", "room01", "a.pdf", 4096),
            errors.UploadOutcomeUnknown("room01", "a.pdf", 9, 9, "silence", 300.0),
            errors.JournalError("term.db", "cannot be written: disk full"),
            errors.JournalInUse("term.db", "is in use by another batch: wait for its end"),
            errors.BatchStopped("before it was sent"),
            errors.BatchFailed(1_200, 1, 2, 3, 1_000, "'a.pdf' for room 'b': no"),
            errors.BatchFailed(9, 0, 1, 0, 0, ""),
            errors.BatchFailed(1_200, 0, 0, 0, 0, "KeyError('column')"),
        )
    ] == [
        "room_id is empty (got ''): pass one",
        "'a.pdf' is empty: there is nothing to show in a room",
        "'a.pdf' has 1,001 bytes, 1 more than max_size_whiteboard_file allows (1,000)",
        (
            "'a.png' is a PNG image: whiteboard files are office documents and presentations; "
            "put it into a PDF, or pass allow_images=True if your server takes it"
        ),
        "'a.pdf' cannot be read: No such file or directory",
        "'a.pdf' changed during the upload: it is gone",
        "room/create for room 'room01': the server did not accept the request (HTTP 400 NAME: no)",
        "room/create: refused (HTTP 400: no)",
        "room 'room01' is busy after 330.0 s of waiting: HTTP 409 (busy)",
        "room/create: the deadline of 30 s struck while sending",
        (
            "the gate of room 'https://meet.test:443/auth room01' cannot be asked, "
            "nothing was sent: no answer"
        ),
        "the connection broke",
        "upload of 'a.pdf' to room 'room01' was cut off after 4,096 bytes: reset",
        (
            "'a.pdf' was sent to room 'room01', but whether it arrived is unknown: silence; "
            "look into the room before sending it again"
        ),
        "the journal 'term.db' cannot be written: disk full",
        "the journal 'term.db' is in use by another batch: wait for its end",
        "the batch was stopped before it was sent",
        (
            "1,006 of 1,200 documents are not known to be in their rooms: 1 refused, 2 failed, "
            "3 of unknown outcome, 1,000 skipped; first: 'a.pdf' for room 'b': no"
        ),
        "1 of 9 documents are not known to be in their rooms: 1 failed",
        "the batch ended early, after 1,200 documents: KeyError('column')",
    ]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (errors.AuthenticationFailed, "authentication failed"),
        (errors.RoomNotFound, "there is no such room"),
        (errors.RoomNotActive, "the room is not active"),
        (errors.DocumentRefused, "the document is larger than the server accepts"),
        (errors.Throttled, "the server asks for fewer requests"),
        (errors.ServerFailed, "the server failed"),
        (errors.ProcessingFailed, "the server could not process the document"),
        (errors.UnexpectedReply, "the reply is not one of a meeting server"),
    ],
)
def test_each_reply_error_says_what_it_means(kind: type[errors.ReplyError], words: str) -> None:
    """The text names the meaning, the operation, the room, and what the server said."""
    text = str(make(kind))
    for part in (words, "operation", "room_id", "4096", "status_code", "msg"):
        assert part in text


BUILTINS: dict[str, tuple[type[BaseException], ...]] = {
    "InvalidInput": (ValueError,),
    "ConfigurationError": (ValueError,),
    "DocumentEmpty": (ValueError,),
    "DocumentTooLarge": (ValueError,),
    "DocumentTypeRefused": (ValueError,),
    "DocumentUnreadable": (OSError,),
    "RoomBusy": (TimeoutError,),
    "DeadlineExceeded": (TimeoutError,),
    "RoomGateUnavailable": (ConnectionError,),
    "TransportError": (ConnectionError,),
    "ConnectFailed": (ConnectionError,),
    "ConnectionLost": (ConnectionError,),
    "TransferTimeout": (ConnectionError, TimeoutError),
    "UploadInterrupted": (ConnectionError,),
    "JournalError": (OSError,),
    "JournalInUse": (OSError,),
}
WATCHED = (ValueError, OSError, ConnectionError, TimeoutError, RuntimeError, TypeError)


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_builtin_bases(kind: type[MeetingError]) -> None:
    """A caller who knows only Python's own errors catches the right ones, and no others."""
    expected = BUILTINS.get(kind.__name__, ())
    for builtin in WATCHED:
        should = any(issubclass(base, builtin) for base in expected)
        assert issubclass(kind, builtin) is should, builtin


def test_unknown_outcome_is_no_network_error() -> None:
    """``except TransportError: retry()`` must not show a class the same document twice."""
    for kind in (errors.TransportError, OSError, ConnectionError, TimeoutError):
        assert not issubclass(errors.UploadOutcomeUnknown, kind)
    assert errors.UploadOutcomeUnknown.__bases__ == (MeetingError,)


def drawn_tree() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Read the drawing in the module's docstring: name -> (parent, builtins)."""
    drawn: dict[str, tuple[str, tuple[str, ...]]] = {}
    path = ["MeetingError"]
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r" {4}((?:[│ ] {3})*)[├└]── (\w+)(?: \(([\w, ]+)\))?( {2}|$)", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        path[depth + 1 :] = [match[2]]
        drawn[match[2]] = (path[depth], tuple((match[3] or "").split(", ")) if match[3] else ())
    return drawn


def real_tree() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Read the same from the classes."""
    return {
        kind.__name__: (
            kind.__bases__[0].__name__,
            tuple(base.__name__ for base in kind.__bases__[1:]),
        )
        for kind in TREE
        if kind is not MeetingError
    }


def test_drawing_is_the_tree() -> None:
    """The tree in the docstring shows every class, under its parent, with its builtin."""
    assert "    MeetingError\n" in (errors.__doc__ or "")
    assert drawn_tree() == real_tree()
    for _, names in real_tree().values():
        assert all(hasattr(builtins, name) for name in names)


def test_attempts_default_to_none_made() -> None:
    """An error that was raised before anything was tried says so."""
    assert errors.DocumentEmpty("a.pdf").attempts == ()
    assert MeetingError("anything").attempts == ()


def test_os_error_carries_no_invented_errno() -> None:
    """``DocumentUnreadable`` is an ``OSError``, yet its name is no error number."""
    error = errors.DocumentUnreadable("a.pdf", "No such file or directory")
    assert error.errno is None
    assert error.strerror is None
    assert error.filename is None


def test_cause_is_kept() -> None:
    """What was behind an error stays behind it."""
    cause = OSError("reset")
    with pytest.raises(errors.ConnectionLost) as caught:
        raise errors.ConnectionLost("the connection broke") from cause
    assert caught.value.__cause__ is cause
