"""Settings from ``MEETING_*`` variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meeting_async import errors
from meeting_async._environment import settings_from
from meeting_async._signing import HmacSigner

PLAIN = {"allow_plaintext": False}


def test_an_empty_environment_sets_nothing() -> None:
    """Unset variables are left out, so that the constructor's defaults hold."""
    assert settings_from({}) == PLAIN
    assert settings_from({"HOME": "/root", "meeting_base_url": "x"}) == PLAIN


def test_all_variables() -> None:
    """Each has its argument; the secret counts as its UTF-8 bytes, as in the constructor."""
    settings = settings_from(
        {
            "MEETING_BASE_URL": "https://meet.example.com",
            "MEETING_API_KEY": "devkey",
            "MEETING_API_SECRET": "geheim-ü",
            "MEETING_MAX_SIZE_WHITEBOARD_FILE": "30MiB",
            "MEETING_ALLOW_PLAINTEXT": "1",
        }
    )
    secret = settings.pop("api_secret")
    assert settings == {
        "base_url": "https://meet.example.com",
        "api_key": "devkey",
        "max_size_whiteboard_file": 31_457_280,
        "allow_plaintext": True,
    }
    expected = HmacSigner("devkey", "geheim-ü").sign(b"room01")
    assert HmacSigner("devkey", secret).sign(b"room01") == expected


def test_settings_do_not_show_the_secret(tmp_path: Path) -> None:
    """They stand in the frames of whoever makes a client of them."""
    path = tmp_path / "secret"
    path.write_bytes(b"hush")
    for settings in (
        settings_from({"MEETING_API_SECRET": "hush"}),
        settings_from({"MEETING_API_SECRET_FILE": str(path)}),
    ):
        assert settings["api_secret"] == b"hush"
        assert "hush" not in repr(settings) + str(settings["api_secret"])


def test_variables_set_to_nothing_count_as_unset() -> None:
    """As ``export X=`` does in shells and in container files."""
    names = (
        *("BASE_URL", "API_KEY", "API_SECRET", "API_SECRET_FILE"),
        *("MAX_SIZE_WHITEBOARD_FILE", "ALLOW_PLAINTEXT"),
    )
    assert settings_from({f"MEETING_{name}": "" for name in names}) == PLAIN


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"hush", b"hush"),
        (b"hush\n", b"hush"),
        (b"hush\r\n", b"hush"),
        (b" hush \n", b" hush "),
        (b"hu\nsh\n", b"hu\nsh"),
        ("geheim-ü".encode(), "geheim-ü".encode()),
        (b"\xff\x80\n", b"\xff\x80"),
    ],
)
def test_secret_from_a_file(tmp_path: Path, content: bytes, secret: bytes) -> None:
    """The file's bytes, without the line break that editors put at its end."""
    path = tmp_path / "secret"
    path.write_bytes(content)
    settings = settings_from({"MEETING_API_SECRET_FILE": str(path), "MEETING_API_SECRET": ""})
    assert settings == PLAIN | {"api_secret": secret}


def test_secret_and_file_together(tmp_path: Path) -> None:
    """Two secrets are one too many; neither is shown."""
    path = tmp_path / "secret"
    path.write_bytes(b"hush")
    with pytest.raises(errors.ConfigurationError) as caught:
        settings_from({"MEETING_API_SECRET": "hush", "MEETING_API_SECRET_FILE": str(path)})
    assert caught.value.field == "MEETING_API_SECRET"
    assert "MEETING_API_SECRET_FILE" in str(caught.value)
    assert "hush" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n"])
def test_secret_file_without_a_secret(tmp_path: Path, content: bytes) -> None:
    """It is set to something unusable, which is another mistake than not being set."""
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(errors.ConfigurationError) as caught:
        settings_from({"MEETING_API_SECRET_FILE": str(path)})
    assert caught.value.field == "MEETING_API_SECRET_FILE"


@pytest.mark.parametrize("path", [".", "missing", "missing/secret", "nul\0"])
def test_secret_file_that_cannot_be_read(tmp_path: Path, path: str) -> None:
    """The variable and the path are named, and the reason is kept."""
    full = f"{tmp_path}/{path}"
    with pytest.raises(errors.ConfigurationError) as caught:
        settings_from({"MEETING_API_SECRET_FILE": full})
    assert caught.value.field == "MEETING_API_SECRET_FILE"
    assert caught.value.__cause__ is not None
    assert caught.value.value.startswith(repr(full)[:20])


@pytest.mark.parametrize("size", ["30MB", "0", "-5", "much", " "])
def test_unusable_size_is_a_configuration_error(size: str) -> None:
    """Like every other variable that is set to something unusable, and it is named."""
    with pytest.raises(errors.InvalidInput) as caught:
        settings_from({"MEETING_MAX_SIZE_WHITEBOARD_FILE": size})
    assert caught.value.field == "MEETING_MAX_SIZE_WHITEBOARD_FILE"
    assert caught.value.value == repr(size)
    assert isinstance(caught.value, errors.ConfigurationError)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, True) for text in ("1", "true", "TRUE", "yes", "on", " On ")),
        *((text, False) for text in ("0", "false", "False", "no", "off", "", " ")),
    ],
)
def test_booleans(text: str, value: Any) -> None:
    """The usual words, in any case."""
    assert settings_from({"MEETING_ALLOW_PLAINTEXT": text}) == {"allow_plaintext": value}


@pytest.mark.parametrize("text", ["2", "maybe", "y es", "1.0", "ja"])
def test_unusable_booleans_are_named(text: str) -> None:
    """Plain http is not allowed by a word nobody knows."""
    with pytest.raises(errors.ConfigurationError) as caught:
        settings_from({"MEETING_ALLOW_PLAINTEXT": text})
    assert caught.value.field == "MEETING_ALLOW_PLAINTEXT"
    assert caught.value.value == repr(text)
