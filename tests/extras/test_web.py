"""``meeting_async.web``: each error has a status, and a browser sees nothing of the server."""

from __future__ import annotations

import inspect
import json
from collections import defaultdict
from typing import Any

import attrs
import pytest

from meeting_async import UploadReceipt, errors
from meeting_async.web import http_answer, public_detail, public_name

STATUSES = {
    202: {"UploadOutcomeUnknown", "UploadPutBack"},
    400: {"DocumentChanged", "DocumentUnreadable"},
    404: {"RoomNotFound"},
    409: {"RoomNotActive"},
    413: {"DocumentRefused", "DocumentTooLarge"},
    415: {"DocumentTypeRefused"},
    422: {
        "DocumentEmpty", "DocumentError", "InvalidInput", "LinkRefused", "ProcessingFailed",
        "RequestRefused", "UploadFailed",
    },
    500: {
        "AuthenticationFailed", "BatchFailed", "ConfigurationError", "JournalError",
        "JournalInUse", "MeetingError",
    },
    502: {
        "ConnectFailed", "ConnectionLost", "ReplyError", "ReplyTooLarge",
        "ServerFailed", "TransferTimeout", "TransportError",
        "UnexpectedReply", "UploadInterrupted",
    },
    503: {"BatchStopped", "ResourceExhausted", "RoomBusy", "RoomLocksUnavailable", "Throttled"},
    504: {"DeadlineExceeded"},
}  # fmt: skip
PRIVATE = ["/srv/deck.pdf", "10.0.0.5", "meet.internal", "localhost", "devsecret"]
TEXT = "as 10.0.0.5 and meet.internal say of /srv/deck.pdf on localhost with devsecret"
GENERIC = "the application could not do this"
TREE = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.MeetingError)
}


def made(kind: type[errors.MeetingError]) -> errors.MeetingError:
    """Make an error; each text in it is private."""
    values = {"int": 413, "float": 299.5, "bytes": TEXT.encode(), "tuple": (("host", TEXT),)}
    arguments = [
        next((value for name, value in values.items() if str(field.type).startswith(name)), TEXT)
        for field in (attrs.fields(kind) if attrs.has(kind) else ())
    ]
    error = kind(*arguments)
    error.room_id = error.document = error.operation = TEXT
    error.__cause__ = OSError(TEXT)
    return error


def test_every_class_has_its_status() -> None:
    """A new class of error needs a status here, and a sentence; two of them say no reason."""
    answers = {name: http_answer(made(kind)) for name, kind in TREE.items()}
    found = defaultdict(set)
    for name, answer in answers.items():
        found[answer.status].add(name)
    assert found == STATUSES
    silent = {name for name, answer in answers.items() if answer.body["detail"] == GENERIC}
    assert silent == {"MeetingError", "ConfigurationError", "AuthenticationFailed"}
    hasty = {name for name, answer in answers.items() if "Retry-After" in answer.headers}
    assert hasty == STATUSES[503]


@pytest.mark.parametrize("name", TREE)
def test_nothing_private_reaches_a_browser(name: str) -> None:
    """Whatever the error contains: no path, no host, no secret, no text of the server."""
    error = made(TREE[name])
    answer = http_answer(error)
    said = json.dumps(answer) + public_detail(error)
    assert not [private for private in PRIVATE if private in said]
    assert answer.body["error"] == name
    is_open = answer.status == 202 or name == "BatchFailed"
    assert answer.body["delivered"] is (None if is_open else False)


ANSWERS: dict[str, tuple[errors.MeetingError, dict[str, str], dict[str, object]]] = {
    # what was raised: the headers, and what the body says
    "size": (
        errors.DocumentTooLarge("deck.pdf", 31_457_281, 31_457_280), {},
        {"detail": "the document has 31,457,281 bytes, the limit is 31,457,280"},
    ),
    "argument": (
        errors.InvalidInput("room_id", TEXT, TEXT, TEXT), {},
        {"detail": "the request is not valid: room_id"},
    ),
    "changed": (
        errors.DocumentChanged("deck.pdf", "an earlier run of the batch sent it as it was"), {},
        {"detail": "the document has changed or is not whole: this version was not delivered"},
    ),
    "link": (
        errors.LinkRefused("https://10.0.0.5/deck.pdf?…", TEXT), {},
        {"detail": "the link cannot be used: it must lead directly to a public document"},
    ),
    "silent link": (
        errors.DocumentUnreadable("https://10.0.0.5/deck.pdf?…", TEXT), {},
        {"detail": "the link does not answer: try again later"},
    ),
    "file": (
        errors.DocumentUnreadable("deck.pdf", TEXT), {},
        {"detail": "the document could not be read completely"},
    ),
    "setting": (errors.ConfigurationError("path", TEXT, TEXT, TEXT), {}, {"detail": GENERIC}),
    "busy": (errors.RoomBusy(20.0, "another client", 280.0), {"Retry-After": "10"}, {}),
    "hint": (errors.Throttled(429, None, "", retry_after=2.5), {"Retry-After": "3"}, {}),
    "no hint": (errors.Throttled(429, None, "", retry_after=0.0), {"Retry-After": "0"}, {}),
    "unknown": (
        errors.UploadOutcomeUnknown("no reply", 9, 9, 299.5), {},
        {"settled_in": 300, "delivered": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ANSWERS)
def test_facts_that_help(what: str) -> None:
    """The size of a document, the name of an argument, when to try again: rounded up."""
    error, headers, body = ANSWERS[what]
    answer = http_answer(error)
    assert answer.headers == headers
    assert answer.body == {**answer.body, **body}


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ("déck.pdf", "déck.pdf"),
        ("what is C#?.pdf", "what is C#?.pdf"),
        ("/srv/documents/deck.pdf", "deck.pdf"),
        ("C:\\documents\\deck.pdf", "deck.pdf"),
        ("https://10.0.0.5:8443/week1/deck.pdf?…", "deck.pdf"),
        ("https://10.0.0.5", "document"),
        ("", ""),
    ],
)
def test_a_document_is_named_without_its_place(document: str, name: str) -> None:
    """Only the last part of a path or link is shown, also after success."""
    assert public_name(document) == name
    texts: dict[str, Any] = dict.fromkeys(["room_id", "msg", "status_code", "raw"], TEXT)
    receipt = UploadReceipt(document=document, size=9, seconds=1.0, attempts=(), **texts)
    body = {"delivered": True, "document": name, "size": 9}
    assert http_answer(receipt) == (200, body, {})


def test_errors_of_others() -> None:
    """A class of one's own and a foreign exception say nothing but that it failed."""

    class Own(errors.MeetingError):
        pass

    body = {"delivered": False, "error": "Own", "detail": GENERIC}
    assert http_answer(Own(TEXT)) == (500, body, {})
    for error in (OSError(2, TEXT, "/srv/deck.pdf"), KeyboardInterrupt(TEXT)):
        assert public_detail(error) == GENERIC
