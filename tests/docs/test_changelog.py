"""What the changelog says to somebody who comes from 0.1.0 is complete, and true."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import meeting_async

CHANGELOG = (Path(__file__).parents[2] / "CHANGELOG.md").read_text("utf-8")
SECTION = CHANGELOG.split("\n## [0.2.0]")[1].split("\n## [0.1.0]")[0]
TABLE = [line.strip("|").split(" | ") for line in SECTION.splitlines() if line.startswith("| `")]

NAMES = [
    "ActiveRoom", "Attempt", "AttemptStarted", "Body", "BytesSent", "Document", "Event",
    "Finished", "HmacSigner",
    "HttpxTransport", "LockPolicy", "MeetingClient", "Participant", "Queued", "Reply",
    "Request", "RetryPolicy",
    "RetryScheduled", "SignedHeaders", "Signer", "Timeouts", "Transport", "UploadReceipt",
    "Verdict", "WaitingForRoom",
    "__version__", "errors",
]  # fmt: skip
"""Everything that ``meeting_async`` 0.1.0 had."""

ERRORS = [
    "MeetingError", "InvalidInput", "ConfigurationError", "DocumentError", "DocumentEmpty",
    "DocumentTooLarge",
    "DocumentTypeRefused", "DocumentUnreadable", "DocumentChanged", "ReplyError", "RequestRefused",
    "AuthenticationFailed", "RoomNotFound", "RoomNotActive", "DocumentRefused", "Throttled",
    "ServerFailed",
    "ProcessingFailed", "UnexpectedReply", "RoomBusy", "DeadlineExceeded", "TransportError",
    "ConnectFailed",
    "ConnectionLost", "TransferTimeout", "UploadInterrupted", "UploadOutcomeUnknown",
]  # fmt: skip
"""Everything that ``meeting_async.errors`` 0.1.0 had."""


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_0_1_0_is_there_or_in_the_table(name: str) -> None:
    """Nobody searches in vain."""
    is_listed = any(re.search(rf"[`.]{name}[`(]", row[0]) for row in TABLE)
    assert hasattr(meeting_async, name) or is_listed


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_of_0_1_0_is_there(name: str) -> None:
    """Each of them, under its name."""
    assert hasattr(meeting_async.errors, name)


def _new_names() -> list[tuple[str, str]]:
    """Return module and name of all that the table sends its readers to."""
    found = []
    for _, now in TABLE:
        module = ""
        for given in re.findall(r"`([\w.]+)(?:\([^`]*\))?`", now):
            place, _, name = given.rpartition(".")
            module = place or module
            if module.startswith("meeting_async"):
                found.append((module, name))
    return found


@pytest.mark.parametrize(("module", "name"), _new_names())
def test_the_new_name_exists(module: str, name: str) -> None:
    """It can be imported from where the table says."""
    assert hasattr(import_module(module), name)


def test_the_version_has_a_section() -> None:
    """The newest section is that of the version which is installed."""
    newest = re.search(r"^## \[([^\]]+)\]", CHANGELOG, re.MULTILINE)
    assert newest is not None
    assert newest[1] == meeting_async.__version__
    assert len(_new_names()) >= 8
