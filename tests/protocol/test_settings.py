"""Settings: what can be used, defaults that are promises, and ``MEETING_*`` variables."""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from meeting_async import _config
from meeting_async._config import Environment
from meeting_async._policies import LockPolicy, RetryPolicy, Timeouts
from meeting_async.errors import ConfigurationError


def read(variables: Mapping[str, str]) -> dict[str, Any]:
    """Read settings from variables."""
    return _config.settings_from(Environment(variables))


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


@pytest.mark.parametrize("kind", [LockPolicy, RetryPolicy, Timeouts])
def test_settings_are_frozen_values(kind: Any) -> None:
    """Shared by calls that run at the same time; equal when they say the same."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        kind().window = 5
    with pytest.raises(TypeError):
        kind(5)
    assert kind() == kind()


PLAIN = {"allow_plaintext": False}


def test_all_variables() -> None:
    """Each has its argument; unset and empty ones are left out; the secret does not show."""
    settings = read(
        {
            "MEETING_BASE_URL": "https://meet.example.com",
            "MEETING_API_KEY": "devkey",
            "MEETING_API_SECRET": "hush-ü",
            "MEETING_MAX_SIZE_WHITEBOARD_FILE": "30MiB",
            "MEETING_ALLOW_PLAINTEXT": "1",
        }
    )
    assert settings == {
        "base_url": "https://meet.example.com",
        "api_key": "devkey",
        "api_secret": "hush-ü".encode(),
        "max_size_whiteboard_file": 31_457_280,
        "allow_plaintext": True,
    }
    assert "hush" not in f"{settings!r} {settings['api_secret']}"
    assert read({"HOME": "/root", "meeting_base_url": "x"}) == PLAIN
    names = ("BASE_URL", "API_KEY", "API_SECRET", "API_SECRET_FILE", "ALLOW_PLAINTEXT")
    assert read({f"MEETING_{name}": "" for name in names}) == PLAIN


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        *((b"hush" + end, b"hush") for end in (b"", b"\n", b"\r\n")),
        *((b" hush \n", b" hush "), (b"hu\nsh\n", b"hu\nsh"), (b"\xff\x80\n", b"\xff\x80")),
    ],
)
def test_the_secret_from_a_file(tmp_path: Path, content: bytes, secret: bytes) -> None:
    """The file's bytes, without the line break that editors put at its end."""
    path = tmp_path / "secret"
    path.write_bytes(content)
    settings = read({"MEETING_API_SECRET_FILE": str(path), "MEETING_API_SECRET": ""})
    assert settings == PLAIN | {"api_secret": secret}
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(
    ("variables", "field"),
    [
        ({"MEETING_API_SECRET": "hush", "MEETING_API_SECRET_FILE": "secret"}, "MEETING_API_SECRET"),
        *(({"MEETING_API_SECRET_FILE": name}, "MEETING_API_SECRET_FILE")
          for name in (".", "missing", "missing/secret", "nul\0", "empty", "line")),
        *(({"MEETING_MAX_SIZE_WHITEBOARD_FILE": size}, "MEETING_MAX_SIZE_WHITEBOARD_FILE")
          for size in ("30MB", "0", "-5", "much", " ", "1.5GiB")),
        *(({"MEETING_ALLOW_PLAINTEXT": text}, "MEETING_ALLOW_PLAINTEXT")
          for text in ("2", "maybe", "y es", "1.0", "ja")),
    ],
)  # fmt: skip
def test_unusable_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], field: str
) -> None:
    """Named like the variable; what stands beside it does not show, nor in a traceback's locals."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_bytes(b"hush")
    (tmp_path / "empty").touch()
    (tmp_path / "line").write_bytes(b"\n")
    if "MEETING_API_SECRET_FILE" not in variables:
        variables = {"MEETING_API_SECRET": "hush", **variables}
    with pytest.raises(ConfigurationError) as caught:
        read(variables)
    assert caught.value.field == field
    report = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    frames = [frame.locals for frame in report.stack if frame.filename == _config.__file__]
    assert frames
    assert "hush" not in f"{frames} {caught.value} {caught.value!r}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, True) for text in ("1", "true", "TRUE", "yes", "on", " On ")),
        *((text, False) for text in ("0", "false", "False", "no", "off", "", " ")),
    ],
)
def test_booleans(text: str, value: Any) -> None:
    """The usual words, in any case."""
    assert read({"MEETING_ALLOW_PLAINTEXT": text}) == {"allow_plaintext": value}
