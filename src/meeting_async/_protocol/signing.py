"""Signatures of requests (``docs/interface.md``, Authentication): bytes in, headers out."""

from __future__ import annotations

import hmac
import re
import warnings
from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from meeting_async._models import Secret, SignedHeaders, hidden
from meeting_async.errors import ConfigurationError


@runtime_checkable
class Signer(Protocol):
    """Signs requests. Implement it to fetch or rotate keys.

    It is called once for every attempt and every question, so a new key is used from the next
    attempt on. An exception that it raises ends the call and reaches the caller unchanged.
    """

    def sign(self, message: bytes, /) -> SignedHeaders | Awaitable[SignedHeaders]:
        """Return the authentication headers for the exact bytes of ``message``.

        The message is the raw body of a JSON call, or the value of the ``Room-Id`` header of an
        upload. ``sign`` may be a coroutine function.
        """
        ...


class HmacSigner:
    """Signs with HMAC-SHA256 in lowercase hexadecimal (``docs/interface.md``, Authentication).

    ``api_key`` is sent with each call; ``api_secret`` (text or bytes) is never sent. A line break
    at the end of the secret is stripped with a warning.

    Raises:
        ConfigurationError: Key or secret cannot be used; the error shows neither.

    """

    _api_key = ""  # error reporters may call repr during __init__

    def __init__(self, api_key: str, api_secret: str | bytes) -> None:
        secret, kind = hidden(api_secret), type(api_secret).__name__
        del api_secret  # so that no traceback frame shows it
        if not isinstance(secret, Secret):
            del secret
            raise TypeError(f"api_secret must be str or bytes, not {kind}")
        self._api_key, self._secret = _text(api_key), secret
        del api_key
        if not self._api_key:
            raise _unusable("api_key", "", "is empty", "give the API key of the server")
        if not re.fullmatch(r"[\x21-\x7e]+", self._api_key):
            fix = "give the key as printable ASCII without blanks"
            raise _unusable("api_key", self._api_key, "cannot be sent in a header", fix)
        if self._secret.endswith((b"\n", b"\r")):
            self._secret = Secret(self._secret.rstrip(b"\r\n"))
            warnings.warn(_LINE_BREAK, stacklevel=2)
        if not self._secret or self._secret.count(0):
            problem = "is empty, contains NUL or is not valid Unicode"
            raise _unusable(
                "api_secret", self._secret, problem, "give the API secret of the server"
            )

    def __repr__(self) -> str:
        return f"HmacSigner({self._api_key!r}, (hidden))"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("an HmacSigner holds a secret and does not pickle")

    def sign(self, message: bytes, /) -> SignedHeaders:
        """Return the authentication headers for ``message``."""
        return SignedHeaders(self._api_key, self._hexdigest(message))

    def verify(self, message: bytes, signature: str) -> bool:
        """Return whether ``signature`` is that of ``message``, compared in constant time."""
        given = signature.encode("utf-8", "surrogatepass")
        return hmac.compare_digest(self._hexdigest(message).encode(), given)

    @property
    def looks_swapped(self) -> bool:
        """Whether the secret looks like a key: those of known servers begin with ``API``."""
        return self._secret.startswith(b"API") and not self._api_key.startswith("API")

    def _hexdigest(self, message: bytes) -> str:
        return hmac.digest(self._secret, message, "sha256").hex()


WRONG_KEY = (
    "Is it an API key of this server (plugNmeet-server: client.api_key in config.yaml), without "
    "quotes around it, and not the secret?"
)


def key_hint(signer: object) -> str:
    """Return what to do about a key that a server does not know."""
    if isinstance(signer, HmacSigner) and signer.looks_swapped:
        return "Key and secret are perhaps swapped: the secret begins with API, as keys do."
    return WRONG_KEY


_LINE_BREAK = (
    "api_secret ends with a line break, which was stripped; it usually comes from reading a file"
)


def _text(api_key: object) -> str:
    if not isinstance(api_key, str):
        raise TypeError(f"api_key must be a str, not {type(api_key).__name__}")
    return api_key


def _unusable(field: str, value: str | bytes, problem: str, fix: str) -> ConfigurationError:
    return ConfigurationError(field, "(hidden)" if value else "", problem, fix)
