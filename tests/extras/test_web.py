"""``meeting_async.web``: each error has a status, and a browser sees nothing of the server."""

from __future__ import annotations

import inspect
import json

import attrs
import pytest

from meeting_async import UploadReceipt, errors
from meeting_async.web import http_answer, public_detail, public_name

STATUSES = {
    "InvalidInput": 422,
    "ConfigurationError": 500,
    "DocumentError": 422,
    "DocumentEmpty": 422,
    "DocumentTooLarge": 413,
    "DocumentTypeRefused": 415,
    "DocumentUnreadable": 400,
    "DocumentChanged": 400,
    "LinkRefused": 422,
    "ReplyError": 502,
    "RequestRefused": 422,
    "AuthenticationFailed": 500,
    "RoomNotFound": 404,
    "RoomNotActive": 409,
    "DocumentRefused": 413,
    "Throttled": 503,
    "ServerFailed": 502,
    "ProcessingFailed": 422,
    "UnexpectedReply": 502,
    "RoomBusy": 503,
    "DeadlineExceeded": 504,
    "RoomLocksUnavailable": 503,
    "TransportError": 502,
    "ConnectFailed": 502,
    "ResourceExhausted": 502,
    "ConnectionLost": 502,
    "ReplyTooLarge": 502,
    "TransferTimeout": 502,
    "UploadInterrupted": 502,
    "UploadOutcomeUnknown": 202,
    "JournalError": 500,
    "JournalInUse": 500,
    "UploadPutBack": 202,
    "UploadFailed": 422,
    "BatchStopped": 503,
    "BatchFailed": 500,
}
PRIVATE = ["/srv/deck.pdf", "10.0.0.5", "meet.internal", "localhost", "devsecret"]
TEXT = "as 10.0.0.5 and meet.internal say of /srv/deck.pdf on localhost with devsecret"
GENERIC = "the application could not do this"


def subclasses(kind: type[errors.MeetingError]) -> set[type[errors.MeetingError]]:
    """Return all classes below one that the library itself defines."""
    below = {sub for sub in kind.__subclasses__() if sub.__module__ == errors.__name__}
    return below.union(*map(subclasses, below))


def made(kind: type[errors.MeetingError], text: str = TEXT) -> errors.MeetingError:
    """Make an error; each text in it is private."""
    values = {"int": 413, "float": 299.5, "bytes": text.encode(), "tuple": (("host", text),)}
    arguments = [
        next((value for name, value in values.items() if str(field.type).startswith(name)), text)
        for field in (attrs.fields(kind) if attrs.has(kind) else ())
    ]
    error = kind(*arguments)
    error.room_id = error.document = error.operation = text
    error.__cause__ = OSError(text)
    return error


TREE = sorted(subclasses(errors.MeetingError), key=lambda kind: kind.__name__)


def test_every_class_has_its_status() -> None:
    """A new class of error needs a status here, and a sentence; two of them say no reason."""
    assert {kind.__name__: http_answer(made(kind)).status for kind in TREE} == STATUSES
    spoken = {kind.__name__ for kind in TREE if http_answer(made(kind)).body["detail"] != GENERIC}
    generic = {"ConfigurationError", "AuthenticationFailed"}
    assert set(STATUSES) - spoken == generic


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_nothing_private_reaches_a_browser(kind: type[errors.MeetingError]) -> None:
    """Whatever the error contains: no path, no host, no secret, no text of the server."""
    for text in [TEXT, *PRIVATE]:
        answer = http_answer(made(kind, text))
        said = json.dumps(answer) + public_detail(made(kind, text))
        assert not [private for private in PRIVATE if private in said]
        assert answer.body["error"] == kind.__name__
        assert answer.body["delivered"] is (None if answer.status == 202 else False)


def test_details_that_help() -> None:
    """The size of a document that is too large, and the name of an argument."""
    too_large = http_answer(errors.DocumentTooLarge("deck.pdf", 31_457_281, 31_457_280))
    assert "31,457,281 bytes" in too_large.body["detail"]
    assert "31,457,280" in too_large.body["detail"]
    invalid = errors.InvalidInput("room_id", TEXT, TEXT, TEXT)
    assert public_detail(invalid) == "the request is not valid: room_id"
    setting = errors.ConfigurationError("path", TEXT, TEXT, TEXT)
    assert public_detail(setting) == GENERIC


def test_when_to_try_again() -> None:
    """Whole seconds, rounded up; Retry-After belongs to 503 only."""
    busy = http_answer(errors.RoomBusy(20.0, "another client", 280.0))
    assert (busy.status, busy.headers) == (503, {"Retry-After": "10"})
    throttled = http_answer(errors.Throttled(429, None, "", retry_after=2.5))
    assert throttled.headers == {"Retry-After": "3"}
    assert http_answer(errors.Throttled(429, None, "", retry_after=0.0)).headers == {
        "Retry-After": "0"
    }
    unknown = http_answer(errors.UploadOutcomeUnknown("no reply", 9, 9, 299.5))
    assert (unknown.body["settled_in"], unknown.headers) == (300, {})
    others = [http_answer(made(kind)) for kind in TREE]
    assert all(("Retry-After" in other.headers) == (other.status == 503) for other in others)


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ("déck.pdf", "déck.pdf"),
        ("what is C#?.pdf", "what is C#?.pdf"),
        ("/srv/documents/deck.pdf", "deck.pdf"),
        ("C:\\documents\\deck.pdf", "deck.pdf"),
        ("https://10.0.0.5:8443/week1/deck.pdf?…", "deck.pdf"),
        ("https://10.0.0.5?…", "document"),
        ("https://10.0.0.5", "document"),
        ("https://10.0.0.5/", "document"),
        ("https://[::1]/a/deck.pdf", "deck.pdf"),
        ("https://(hidden)@10.0.0.5/deck.pdf", "deck.pdf"),
        ("", ""),
    ],
)
def test_a_document_is_named_without_its_place(document: str, name: str) -> None:
    """Only the last part of a path or link is shown, also after success."""
    assert public_name(document) == name
    receipt = UploadReceipt(
        room_id="room01",
        document=document,
        size=9,
        msg=TEXT,
        status_code=TEXT,
        seconds=1.0,
        attempts=(),
        raw={"msg": TEXT},
    )
    body = {"delivered": True, "document": name, "size": 9}
    assert http_answer(receipt) == (200, body, {})


def test_errors_of_others() -> None:
    """A class of one's own and a foreign exception say nothing but that it failed."""

    class Own(errors.MeetingError):
        pass

    assert http_answer(Own(TEXT)) == (
        500,
        {"delivered": False, "error": "Own", "detail": GENERIC},
        {},
    )
    for error in (OSError(2, TEXT, "/srv/deck.pdf"), KeyboardInterrupt(TEXT)):
        assert public_detail(error) == GENERIC


def test_the_tree_is_complete() -> None:
    """The walk above finds every public class of the module."""
    names = {name for name, _ in inspect.getmembers(errors, inspect.isclass)}
    assert {kind.__name__ for kind in TREE} <= names
    assert {name for name in names if not name.startswith("_")} - set(STATUSES) == {"MeetingError"}
