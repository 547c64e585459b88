"""Settings from ``MEETING_*`` environment variables, so that no secret is in code or argv."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import attrs

from meeting_async._models import Secret, hidden_text
from meeting_async._policies import Delivery, parse_size
from meeting_async._text import nearest, short_repr
from meeting_async.errors import ConfigurationError

_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True} | {
    "0": False, "false": False, "no": False, "off": False, "": False
}  # fmt: skip


@attrs.frozen
class Environment:
    """Variables; tracebacks with locals do not show their values."""

    variables: Mapping[str, str] = attrs.field(repr=False)

    def get(self, name: str) -> str:
        """Return the variable's value, ``""`` when it is not set."""
        return self.variables.get(name, "")


def settings_from(variables: Environment, *, given: Collection[str] = ()) -> dict[str, Any]:
    """Read the arguments of ``MeetingClient`` from variables that are set, except those given.

    Raises:
        ConfigurationError: A variable cannot be used; the error names it.

    """
    found = {name: read(variables) for name, read in _READERS.items() if name not in given}
    return {name: value for name, value in found.items() if value or value is False}


def max_size(variables: Environment) -> int | None:
    """Read the largest document in bytes, if a variable sets it."""
    field = "MEETING_MAX_SIZE_WHITEBOARD_FILE"
    size = variables.get(field)
    return parse_size(size, field=field) if size else None


KNOWN = (
    *("MEETING_BASE_URL", "MEETING_API_KEY", "MEETING_API_SECRET", "MEETING_API_SECRET_FILE"),
    *("MEETING_MAX_SIZE_WHITEBOARD_FILE", "MEETING_TIMEOUT", "MEETING_ALLOW_PLAINTEXT"),
    "MEETING_DELIVERY",
    *("MEETING_CA_FILE", "MEETING_CERT_FILE", "MEETING_PROXY", "MEETING_QUEUE_DSN"),
)
"""Variables of this library and of its command line."""


def check_names(variables: Environment) -> None:
    """Refuse a variable whose name is nearly one of ours. Others may belong to the program.

    Raises:
        ConfigurationError: It names the variable, and the one that is meant.

    """
    for name in variables.variables:
        if not name.startswith("MEETING_") or name in KNOWN:
            continue
        if meant := nearest(name, [known for known in KNOWN if not variables.get(known)], 0.85):
            fix = f"rename it to {meant}"
            raise ConfigurationError(name, "", "is not a variable of this library", fix)


def nearly_set(variables: Environment, missing: Collection[str]) -> str:
    """Return which variable is perhaps meant for one that is missing; ``""`` if none is."""
    for name in missing:
        last_word = name.rpartition("_")[2]
        if (close := f"MEETING_{last_word}") in variables.variables:
            return f"; {close} is set: rename it to {name}"
    return ""


def certificates(variables: Environment) -> dict[str, Any]:
    """Return ``verify`` and ``cert`` of the transport.

    The files are loaded now: a mistake is found before anything is sent, and names its variable.

    Raises:
        ConfigurationError: One of them is not a file with certificates.

    """
    authority, own = variables.get("MEETING_CA_FILE"), variables.get("MEETING_CERT_FILE")
    if not (authority or own):
        return {}
    import ssl  # noqa: PLC0415 - it is slow, and plain http does without

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority:
        with _loading("MEETING_CA_FILE", authority, "the certificate of your authority"):
            context = ssl.create_default_context(cafile=authority)
    if own:
        with _loading("MEETING_CERT_FILE", own, "your certificate and its key, without a password"):
            context.load_cert_chain(own, password="")  # else OpenSSL asks for one
            context.post_handshake_auth = True
    return {"verify": context} if authority else {"cert": own}


@contextmanager
def _loading(field: str, path: str, content: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        check_key_log(error)
        problem = f"cannot be loaded: {getattr(error, 'strerror', None) or error}"
        fix = f"give a PEM file with {content}"
        raise ConfigurationError(field, short_repr(path), problem, fix) from error


def check_key_log(error: OSError | ValueError) -> None:
    """Blame the file for TLS keys, which Python opens with the authorities, if it is to blame.

    Raises:
        ConfigurationError: It cannot be opened.

    """
    name = "SSLKEYLOGFILE"
    path = os.environ.get(name)
    if path and getattr(error, "filename", None) == path:
        reason = getattr(error, "strerror", None) or error
        fix = "unset it, or give a file that can be written"
        raise ConfigurationError(
            name, short_repr(path), f"cannot be written: {reason}", fix
        ) from error


def _check_mark(field: str, secret: Secret) -> None:
    """Refuse a byte order mark, which Windows' programs write: no server has it in its secret."""
    is_utf_16 = secret.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and secret.count(0)
    if is_utf_16 or secret.startswith(codecs.BOM_UTF8):
        kind = "UTF-16" if is_utf_16 else "UTF-8"
        problem = f"begins with a byte order mark ({kind}), which is not part of the secret"
        fix = "save it as UTF-8 without one (PowerShell: Set-Content -Encoding ascii)"
        raise ConfigurationError(field, "(hidden)", problem, fix)


def _secret(environ: Environment) -> Secret:
    path = environ.get("MEETING_API_SECRET_FILE")
    if not path:
        given = hidden_text(environ.get("MEETING_API_SECRET"))
        _check_mark("MEETING_API_SECRET", given)
        return given
    if environ.get("MEETING_API_SECRET"):
        raise ConfigurationError(
            "MEETING_API_SECRET", "(hidden)", "is set, as is MEETING_API_SECRET_FILE", "unset one"
        )
    content = Secret(_content("MEETING_API_SECRET_FILE", path))
    _check_mark("MEETING_API_SECRET_FILE", content)
    # The one line break that editors and `echo` put at the end of a file is not part of the secret.
    secret = Secret(content.removesuffix(b"\n").removesuffix(b"\r"))
    if not secret:
        problem, fix = "names a file that is empty", "put the API secret into it"
        raise ConfigurationError("MEETING_API_SECRET_FILE", short_repr(path), problem, fix)
    return secret


def _content(field: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        problem = f"names a file that cannot be read: {getattr(error, 'strerror', None) or error}"
        fix = "fix the path or the permissions"
        raise ConfigurationError(field, short_repr(path), problem, fix) from error


def _timeout(variables: Environment) -> float | None:
    name = "MEETING_TIMEOUT"
    if not (text := variables.get(name)):
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:  # also NaN
        problem = "is not a positive number of seconds"
        raise ConfigurationError(name, short_repr(text), problem, "set it to seconds, such as 60")
    return value


def _delivery(variables: Environment) -> Delivery | None:
    name = "MEETING_DELIVERY"
    if not (text := variables.get(name)):
        return None
    for mode in get_args(Delivery):
        if text == mode:
            return mode  # type: ignore[no-any-return]  # one of its words
    fix = f"choose {' or '.join(get_args(Delivery))}"
    raise ConfigurationError(name, short_repr(text), "is not a delivery mode", fix)


def _allow_plaintext(variables: Environment) -> bool:
    name = "MEETING_ALLOW_PLAINTEXT"
    text = variables.get(name)
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise ConfigurationError(
            name, short_repr(text), "is neither yes nor no", "set it to 1 or 0"
        )
    return value


_READERS: dict[str, Callable[[Environment], Any]] = {
    "base_url": lambda variables: variables.get("MEETING_BASE_URL"),
    "api_key": lambda variables: variables.get("MEETING_API_KEY"),
    "api_secret": _secret,
    "max_size_whiteboard_file": max_size,
    "timeout": _timeout,
    "delivery": _delivery,
    "allow_plaintext": _allow_plaintext,
}
"""What reads each argument."""
