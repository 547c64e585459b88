"""A client that cannot be made from the environment does not show the secret."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meeting_async import MeetingClient
from meeting_async.errors import MeetingError
from support.sending import shown

SECRET = "5ecret-0f-the-app-47"
GOOD = {
    "MEETING_BASE_URL": "https://meet.example.com",
    "MEETING_API_KEY": "key",
    "MEETING_API_SECRET": SECRET,
}


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no address": ({"MEETING_BASE_URL": None}, {}),
    "empty address": ({"MEETING_BASE_URL": ""}, {}),
    "no URL": ({"MEETING_BASE_URL": "meet"}, {}),
    "another scheme": ({"MEETING_BASE_URL": "ftp://meet.example.com"}, {}),
    "plain http": ({"MEETING_BASE_URL": "http://meet.example.com"}, {}),
    "bad port": ({"MEETING_BASE_URL": "https://meet.example.com:port"}, {}),
    "credentials in the address": ({"MEETING_BASE_URL": "https://a:b@meet.example.com"}, {}),
    "no key": ({"MEETING_API_KEY": None}, {}),
    "empty key": ({"MEETING_API_KEY": ""}, {}),
    "a key that cannot be sent": ({"MEETING_API_KEY": "k\n"}, {}),
    "a key beyond ASCII": ({"MEETING_API_KEY": "\N{SNOWMAN}"}, {}),
    "a size that is none": ({"MEETING_MAX_SIZE_WHITEBOARD_FILE": "large"}, {}),
    "a negative size": ({"MEETING_MAX_SIZE_WHITEBOARD_FILE": "-1"}, {}),
    "a flag that is none": ({"MEETING_ALLOW_PLAINTEXT": "perhaps"}, {}),
    "secret and file": ({"MEETING_API_SECRET_FILE": "/nowhere"}, {}),
    "several": ({"MEETING_BASE_URL": None, "MEETING_API_KEY": None}, {}),
    "a secret with a surrogate": ({"MEETING_API_SECRET": SECRET + "\udcff"}, {}),
    "unknown setting": ({}, {"timeot": 3}),
    "bad timeouts": ({}, {"timeouts": 3}),
    "bad observer": ({}, {"on_event": 3}),
    "bad delivery": ({}, {"delivery": "twice"}),
    "bad headers": ({}, {"default_headers": {"a": "b\n"}}),
    "signer, too": ({}, {"signer": object(), "api_secret": SECRET}),
    "an argument, too": ({"MEETING_API_SECRET": None}, {"api_secret": SECRET, "timeouts": 3}),
    "address of a wrong type": ({"MEETING_BASE_URL": 7}, {}),
}
"""Changes of the variables, and arguments."""


def check(make: Callable[[], object]) -> None:
    """See that it fails without showing the secret."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        make()
    seen = shown(caught.value)
    if isinstance(caught.value, MeetingError):
        seen += repr(pickle.dumps(caught.value))
    assert SECRET not in seen


def environment(changes: dict[str, Any]) -> dict[str, str]:
    """Make the variables of a good client, but for some changes."""
    return {name: value for name, value in (GOOD | changes).items() if value is not None}


@pytest.mark.parametrize("is_process", [False, True], ids=["mapping", "process"])
@pytest.mark.parametrize(("changes", "settings"), WRONG.values(), ids=WRONG)
def test_a_failure_does_not_show_the_secret(
    changes: dict[str, Any],
    settings: dict[str, Any],
    is_process: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither error nor pickle nor traceback with locals, whatever is wrong with the variables."""
    environ: Any = environment(changes)
    if is_process:
        for name, value in environ.items():
            monkeypatch.setenv(name, str(value))
        environ = None
    check(lambda: MeetingClient.from_env(environ, **settings))


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "and a wrong address"])
def test_a_secret_from_a_file(kind: str, tmp_path: Path) -> None:
    """The same for a secret that stands in a file."""
    path = tmp_path / "secret"
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_text("" if kind == "empty" else SECRET)
    changes: dict[str, Any] = {"MEETING_API_SECRET": None, "MEETING_API_SECRET_FILE": str(path)}
    if kind == "and a wrong address":
        changes["MEETING_BASE_URL"] = "ftp://meet.example.com"
    check(lambda: MeetingClient.from_env(environment(changes)))


@pytest.mark.parametrize(
    "wrong", [{"base_url": "ftp://x"}, {"api_key": "k\n"}, {"timeouts": 3}, {"delivery": "twice"}]
)
def test_a_client_that_is_made_from_arguments(wrong: dict[str, Any]) -> None:
    """The same for the constructor."""
    good: Any = {"base_url": GOOD["MEETING_BASE_URL"], "api_key": "key", "api_secret": SECRET}
    check(lambda: MeetingClient(**good | wrong))
