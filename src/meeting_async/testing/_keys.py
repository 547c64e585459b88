"""Authentication (interface section 5): API-KEY, then HASH-SIGNATURE, over exact bytes."""

import hashlib
import hmac

from starlette.requests import Request

from ._replies import Refusal
from ._settings import Settings


def header(request: Request, name: bytes) -> bytes:
    """Return the raw value of the first header ``name`` (lower case), or ``b""``.

    Blanks around a value are not part of it (RFC 9110 section 5.5).
    """
    headers: list[tuple[bytes, bytes]] = request.scope["headers"]
    return next((value.strip(b" \t") for key, value in headers if key.lower() == name), b"")


def authenticate(settings: Settings, request: Request, message: bytes) -> None:
    """Refuse unless the key is known and the signature is the secret's over ``message``."""
    _check_key(settings, header(request, b"api-key"))
    _check_signature(settings, header(request, b"hash-signature"), message)


def _check_key(settings: Settings, key: bytes) -> None:
    if not key:
        raise Refusal(401, "MISSING_REQUIRED_PARAMETER", "API-KEY header is required")
    if not hmac.compare_digest(key, settings.api_key.encode()):
        raise Refusal(401, "INVALID_API_KEY", "the API key is not known")


def _check_signature(settings: Settings, signature: bytes, message: bytes) -> None:
    if not signature:
        raise Refusal(401, "MISSING_REQUIRED_PARAMETER", "HASH-SIGNATURE header is required")
    expected = hmac.new(settings.api_secret.encode(), message, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(signature, expected.encode("ascii")):
        raise Refusal(401, "INVALID_TOKEN_OR_SIGNATURE", "the signature does not match")
