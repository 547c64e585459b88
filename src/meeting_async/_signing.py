"""Signatures of requests (interface section 5). Sans-I/O: bytes in, headers out."""

from __future__ import annotations

import hmac
import warnings
from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from meeting_async._records import SignedHeaders
from meeting_async.errors import ConfigurationError


@runtime_checkable
class Signer(Protocol):
    """Authenticates requests. Implement it to fetch or rotate keys.

    It is asked once for every attempt, so a rotated key is used from the next attempt on. What it
    raises ends the call and reaches the caller as it is.
    """

    def sign(self, message: bytes, /) -> SignedHeaders | Awaitable[SignedHeaders]:
        """Return the authentication headers for the exact bytes of ``message``.

        That is the raw body of a JSON call, and the value of the ``Room-Id`` header of an upload
        (interface section 5 rules 2 and 3). May be a coroutine function.
        """
        ...


class HmacSigner:
    """Signs with HMAC-SHA256 in lowercase hexadecimal, the scheme of interface section 5.

    ``api_key`` is sent with each call; ``api_secret`` (text or bytes) never leaves the process.
    """

    def __init__(self, api_key: str, api_secret: str | bytes) -> None:
        self._api_key = _checked_key(api_key)
        self._secret = _checked_secret(api_secret)

    def __repr__(self) -> str:
        return f"HmacSigner({self._api_key!r}, (hidden))"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("an HmacSigner holds a secret and does not pickle")

    def sign(self, message: bytes, /) -> SignedHeaders:
        """Return the authentication headers for ``message``."""
        return SignedHeaders(self._api_key, self._hexdigest(message))

    def verify(self, message: bytes, signature: str) -> bool:
        """Tell, in constant time, whether ``signature`` is the one for ``message``."""
        return hmac.compare_digest(self._hexdigest(message).encode(), signature.encode())

    def _hexdigest(self, message: bytes) -> str:
        return hmac.digest(self._secret, message, "sha256").hex()


def _checked_key(api_key: object) -> str:
    if not isinstance(api_key, str):
        raise TypeError(f"api_key must be a str, not {type(api_key).__name__}")
    if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise ConfigurationError(
            "api_key",
            "(hidden)" if api_key else "nothing",
            "cannot stand in a header",
            "give the key as printable ASCII without blanks",
        )
    return api_key


def _checked_secret(api_secret: object) -> bytes:
    if not isinstance(api_secret, str | bytes):
        raise TypeError(f"api_secret must be str or bytes, not {type(api_secret).__name__}")
    secret = api_secret.encode() if isinstance(api_secret, str) else api_secret
    if secret.endswith((b"\n", b"\r")):
        warnings.warn(
            "api_secret ends with a line break, which was stripped; "
            "it usually comes from reading a file",
            stacklevel=3,
        )
        secret = secret.rstrip(b"\r\n")
    if not secret or b"\0" in secret:
        raise ConfigurationError(
            "api_secret",
            "(hidden)" if secret else "nothing",
            "is empty or contains NUL",
            "give the API secret of the server",
        )
    return secret
