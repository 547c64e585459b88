"""Settings: what can be used, defaults that are promises, and ``MEETING_*`` variables."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs
import pytest

from meeting_async import LockPolicy, MeetingClient, RetryPolicy, Timeouts
from meeting_async.errors import ConfigurationError, DocumentTooLarge
from meeting_async.signers import HmacSigner
from meeting_async.testing import run_in_virtual_time
from support.fake_rooms import FakeRooms, Visit
from support.fakes import headers_of
from support.telling import containing, traceback_with_locals


def test_defaults() -> None:
    """What the documentation says."""
    assert attrs.asdict(LockPolicy()) == {
        "max_wait": None, "window": 300, "min_delay": 0.5, "max_delay": 7.5, "probe": True,
    }  # fmt: skip
    assert attrs.asdict(RetryPolicy()) == {
        "max_attempts": 5, "max_interruptions": 2, "initial_delay": 0.5, "max_delay": 20,
        "max_retry_after": 60, "max_outage": 60,
    }  # fmt: skip
    assert attrs.asdict(Timeouts()) == {
        "connect": 10, "send_stall": 30, "reply": 15, "upload_reply": 330,
    }  # fmt: skip


JUNK: list[Any] = [-1, math.nan, -math.inf, "5", True, False, [1], 1j]
NUMBERS = [
    (kind, field.name)
    for kind in (LockPolicy, RetryPolicy, Timeouts)
    for field in attrs.fields(kind)
    if field.name != "probe"
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=str)
def test_junk_is_refused_by_name(kind: type, name: str) -> None:
    """Negative, NaN, text and truth values are no numbers of seconds or attempts."""
    for value in JUNK:
        with pytest.raises(ConfigurationError) as caught:
            kind(**{name: value})
        assert (caught.value.field, caught.value.value) == (name, repr(value))


@pytest.mark.parametrize(
    ("kind", "name", "refused", "allowed"),
    [
        (LockPolicy, "max_wait", [], [None, 0, 0.1, math.inf]),
        (LockPolicy, "min_delay", [0, 0.24, None], [0.25, 5]),
        (LockPolicy, "max_delay", [0, None], [0.1, 60]),
        (LockPolicy, "probe", [0, 1, None, "yes"], [True, False]),
        (RetryPolicy, "max_attempts", [0, 1.0, None], [1, 100]),
        (RetryPolicy, "max_interruptions", [0.5], [0, 10]),
        (RetryPolicy, "initial_delay", [0, 0.24], [0.25]),
        (RetryPolicy, "max_delay", [0, 0.24], [0.25]),
        (RetryPolicy, "max_outage", [None], [0, 3600]),
        *((Timeouts, name, [0, None], [0.1, 1e6])
          for name in ("connect", "send_stall", "reply", "upload_reply")),
    ],
)  # fmt: skip
def test_limits_of_the_settings(
    kind: type, name: str, refused: list[Any], allowed: list[Any]
) -> None:
    """No setting can make anything repeat sooner than after a quarter of a second."""
    for value in allowed:
        assert getattr(kind(**{name: value}), name) == value
    for value in refused:
        with pytest.raises(ConfigurationError, match=name):
            kind(**{name: value})


VARIABLES = {"MEETING_BASE_URL": "https://meet.test", "MEETING_API_KEY": "devkey"}


def sent_with(
    variables: dict[str, str] | None, data: bytes = b"%PDF", **settings: Any
) -> tuple[Visit, bytes]:
    """Upload with the settings of variables; return what was sent, and the signed message."""
    rooms = FakeRooms()
    made = MeetingClient.from_env(variables, transport=rooms, **settings)
    assert "hush" not in repr(made)

    async def main() -> None:
        async with made as client:
            await client.upload_whiteboard_file("room01", data, filename="a.pdf")

    run_in_virtual_time(main)
    (visit,) = rooms.uploads
    return visit, b"room01"


def test_all_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its argument; empty ones, and those of other programs, are left out.

    Without a mapping they are those of the process. What an argument or a signer replaces is not
    read.
    """
    variables = {
        "MEETING_BASE_URL": "http://10.0.0.1",
        "MEETING_API_KEY": "devkey",
        "MEETING_API_SECRET": "hush-ü",
        "MEETING_API_SECRET_FILE": "",
        "MEETING_MAX_SIZE_WHITEBOARD_FILE": "1KiB",
        "MEETING_ALLOW_PLAINTEXT": "1",
        "MEETING_PROXY": "",
        "HOME": "/root",
        "meeting_base_url": "x",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    another = HmacSigner("another", "one")
    wrong = {**variables, "MEETING_API_SECRET_FILE": "/nope", "MEETING_TIMEOUT": "soon"}
    for given, settings, signer in (
        (variables, {}, HmacSigner("devkey", "hush-ü")),
        (None, {}, HmacSigner("devkey", "hush-ü")),
        (None, {"signer": another}, another),
        (wrong, {"signer": another, "timeout": 60}, another),
        (wrong, {"api_key": "another", "api_secret": "one", "timeout": None}, another),
    ):
        visit, message = sent_with(given, b"%PDF".ljust(1024), **settings)
        assert visit.request.url == "http://10.0.0.1/auth/room/uploadWhiteboardFile"
        headers, signed = headers_of(visit), signer.sign(message)
        assert (headers["api-key"], headers["hash-signature"]) == (signed.api_key, signed.signature)
    with pytest.raises(DocumentTooLarge, match="1,025 bytes"):
        sent_with(variables, b"%PDF".ljust(1025))


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        *((b"hush" + end, b"hush") for end in (b"", b"\n", b"\r\n")),
        *((b" hush \n", b" hush "), (b"hu\nsh\n", b"hu\nsh"), (b"\xff\x80\n", b"\xff\x80")),
    ],
)
def test_the_secret_from_a_file(tmp_path: Path, content: bytes, secret: bytes) -> None:
    """The file's bytes, without the line break that editors put at its end; no error shows it."""
    path = tmp_path / "secret"
    path.write_bytes(content)
    variables = {**VARIABLES, "MEETING_API_SECRET_FILE": str(path)}
    visit, message = sent_with(variables)
    assert HmacSigner("devkey", secret).verify(message, headers_of(visit)["hash-signature"])
    with pytest.raises(ConfigurationError) as caught:
        MeetingClient.from_env({**variables, "MEETING_BASE_URL": "ftp://meet.test"})
    assert containing(traceback_with_locals(caught.value), ["hush"]) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, True) for text in ("1", "true", "TRUE", "yes", "on", " On ")),
        *((text, False) for text in ("0", "false", "False", "no", "off", "", " ")),
    ],
)
def test_booleans(text: str, value: bool) -> None:
    """The usual words, in any case."""
    plain = {"MEETING_BASE_URL": "http://10.0.0.1", "MEETING_ALLOW_PLAINTEXT": text}
    with nullcontext() if value else pytest.raises(ConfigurationError, match="clear text"):
        MeetingClient.from_env({**VARIABLES, "MEETING_API_SECRET": "s", **plain})
