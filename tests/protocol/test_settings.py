"""Settings: what can be used, and ``MEETING_*`` variables."""

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
from support.fake_rooms import FakeRooms, Visit, headers_of
from support.telling import containing, traceback_with_locals

JUNK: list[Any] = [-1, math.nan, -math.inf, "5", True, False, [1], 1j]
"""No number of seconds or attempts."""
LIMITS: dict[type, dict[str, tuple[list[Any], list[Any]]]] = {
    LockPolicy: {
        "max_wait": (JUNK, [None, 0, 0.1, math.inf]),
        "window": ([*JUNK, None], [0, 300]),
        "min_delay": ([*JUNK, 0, 0.24, None], [0.25, 5]),
        "probe": ([0, 1, None, "yes"], [True, False]),
    },
    RetryPolicy: {
        "max_attempts": ([*JUNK, 0, 1.0, None], [1, 100]),
        "max_interruptions": ([*JUNK, 0.5], [0, 10]),
        "settle_after": ([*JUNK, None], [0, 300]),
        "max_failed_conversions": ([*JUNK, 0.5], [0, 10]),
        "initial_delay": ([*JUNK, 0, 0.24], [0.25]),
        "max_delay": ([*JUNK, 0, 0.24], [0.25]),
        "max_retry_after": ([*JUNK, None], [0, 60]),
        "max_outage": ([*JUNK, None], [0, 3600]),
    },
    Timeouts: dict.fromkeys(
        ["connect", "send_stall", "reply", "upload_reply"], ([*JUNK, 0, None], [0.1, 1e6])
    ),
}
"""What each setting refuses and allows."""


@pytest.mark.parametrize("kind", LIMITS)
def test_limits_of_the_settings(kind: type) -> None:
    """No setting can make anything repeat sooner than after a quarter of a second.

    Negative, NaN, text and truth values are no numbers; what is refused is named.
    """
    assert LIMITS[kind].keys() == {field.name for field in attrs.fields(kind)}
    for name, (refused, allowed) in LIMITS[kind].items():
        for value in allowed:
            assert getattr(kind(**{name: value}), name) == value
        for value in refused:
            with pytest.raises(ConfigurationError) as caught:
                kind(**{name: value})
            assert (caught.value.field, caught.value.value) == (name, repr(value))


VARIABLES = {"MEETING_BASE_URL": "https://meet.test", "MEETING_API_KEY": "devkey"}


def sent_with(variables: dict[str, str] | None, data: bytes = b"%PDF", **settings: Any) -> Visit:
    """Upload to "room01" with the settings of variables, and return what was sent."""
    rooms = FakeRooms()
    made = MeetingClient.from_env(variables, transport=rooms, **settings)
    assert "hush" not in repr(made)

    async def main() -> None:
        async with made as client:
            await client.upload_whiteboard_file("room01", data, filename="a.pdf")

    run_in_virtual_time(main)
    (visit,) = rooms.uploads
    return visit


def test_all_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its argument; empty ones, and those of other programs, are left out.

    Without a mapping they are those of the process. What an argument or a signer replaces is not
    read.
    """
    variables = {
        "meeting_base_url": "x",  # on Windows it is the next one
        "MEETING_BASE_URL": "http://10.0.0.1",
        "MEETING_API_KEY": "devkey",
        "MEETING_API_SECRET": "hush-ü",
        "MEETING_API_SECRET_FILE": "",
        "MEETING_MAX_SIZE_WHITEBOARD_FILE": "1KiB",
        "MEETING_ALLOW_PLAINTEXT": "1",
        "MEETING_PROXY": "",
        "HOME": "/root",
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
        visit = sent_with(given, b"%PDF".ljust(1024), **settings)
        assert visit.request.url == "http://10.0.0.1/auth/room/uploadWhiteboardFile"
        headers, signed = headers_of(visit), signer.sign(b"room01")
        assert (headers["api-key"], headers["hash-signature"]) == (signed.api_key, signed.signature)
    with pytest.raises(DocumentTooLarge, match="1,025 bytes"):
        sent_with(variables, b"%PDF".ljust(1025))


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        *((b"hush" + end, b"hush") for end in (b"", b"\n", b"\r\n")),
        *((b" hush \n", b" hush "), (b"hu\nsh\n", b"hu\nsh"), (b"\xff\x80\n", b"\xff\x80")),
        *((b"\xff\xfe hush", b"\xff\xfe hush"), (b"hu\xef\xbb\xbfsh", b"hu\xef\xbb\xbfsh")),
    ],
)
def test_the_secret_from_a_file(tmp_path: Path, content: bytes, secret: bytes) -> None:
    """The file's bytes, without the line break that editors put at its end; no error shows it."""
    path = tmp_path / "secret"
    path.write_bytes(content)
    variables = {**VARIABLES, "MEETING_API_SECRET_FILE": str(path)}
    signature = headers_of(sent_with(variables))["hash-signature"]
    assert HmacSigner("devkey", secret).verify(b"room01", signature)
    with pytest.raises(ConfigurationError) as caught:
        MeetingClient.from_env({**variables, "MEETING_BASE_URL": "ftp://meet.test"})
    assert containing(traceback_with_locals(caught.value), ["hush"]) == []


MARKED = {"utf-8": "UTF-8", "utf-16-le": "UTF-16", "utf-16-be": "UTF-16", "variable": "UTF-8"}
"""Encodings of a file, or a variable, and what is said."""


@pytest.mark.parametrize("encoding", MARKED)
def test_a_secret_with_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    """As Windows' programs write it: no server has it, so the file is refused, and not shown."""
    path, field, value = tmp_path / "secret", "MEETING_API_SECRET", "\ufeffhush"
    if encoding != "variable":
        path.write_bytes(f"{value}\r\n".encode(encoding))
        field, value = "MEETING_API_SECRET_FILE", str(path)
    with pytest.raises(ConfigurationError) as caught:
        MeetingClient.from_env({**VARIABLES, field: value})
    assert f"begins with a byte order mark ({MARKED[encoding]})" in str(caught.value)
    assert "UTF-8 without" in str(caught.value)
    assert caught.value.field == field
    assert containing(traceback_with_locals(caught.value), ["hush", "h\0u\0s"]) == []


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
