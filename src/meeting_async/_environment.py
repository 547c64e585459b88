"""Settings from ``MEETING_*`` environment variables, so that no secret stands in code or argv."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meeting_async._limits import parse_size, shown
from meeting_async.errors import ConfigurationError

_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True} | {
    "0": False, "false": False, "no": False, "off": False, "": False
}  # fmt: skip


def settings_from(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the arguments of ``MeetingClient`` that the environment gives; unset ones are left out.

    Raises:
        ConfigurationError: A variable is set to something unusable; it is named.

    """
    settings: dict[str, Any] = {}
    for name in ("base_url", "api_key"):
        if value := environ.get(f"MEETING_{name.upper()}"):
            settings[name] = value
    if (secret := _secret(environ)) is not None:
        settings["api_secret"] = secret
    if size := environ.get("MEETING_MAX_SIZE_WHITEBOARD_FILE"):
        field = "MEETING_MAX_SIZE_WHITEBOARD_FILE"
        settings["max_size_whiteboard_file"] = parse_size(size, field=field)
    settings["allow_plaintext"] = _boolean(environ, "MEETING_ALLOW_PLAINTEXT")
    return settings


def _secret(environ: Mapping[str, str]) -> str | bytes | None:
    value, path = environ.get("MEETING_API_SECRET"), environ.get("MEETING_API_SECRET_FILE")
    if value and path:
        raise ConfigurationError(
            "MEETING_API_SECRET", "(hidden)", "is set beside MEETING_API_SECRET_FILE", "unset one"
        )
    if not path:
        return value or None
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        problem = f"names a file that cannot be read: {error.strerror}"
        fix = "mend path or permissions"
        raise ConfigurationError("MEETING_API_SECRET_FILE", shown(path), problem, fix) from error
    # The one line break that editors and `echo` put at the end of a file is no accident.
    return content.removesuffix(b"\n").removesuffix(b"\r")


def _boolean(environ: Mapping[str, str], name: str) -> bool:
    text = environ.get(name, "")
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise ConfigurationError(name, shown(text), "is neither yes nor no", "set it to 1 or 0")
    return value
