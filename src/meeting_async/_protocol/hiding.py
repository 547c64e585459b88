"""Hiding the credentials of a request that its reply repeats."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

import attrs

HIDDEN = b"(hidden)"

_CREDENTIAL = re.compile(
    rb"auth|cookie|credential|(?<!idempotency-)key|passphrase|passwd|password|secret|session"
    rb"|signature|token",
    re.IGNORECASE,
)
"""Names of headers whose values must not be repeated; a request id, for example, may be."""

LONG_SECRET = 12
"""A shorter secret may be a word: it is replaced where it stands alone, and not in names of fields.
In the server's own success a word like a short key is data, and stays."""

PIECE_BYTES = 256 * 1024
"""A text is searched in pieces of this size, as each stops all threads for some milliseconds. A
longer text that repeats a secret is replaced as a whole."""

OVERLAP_BYTES = 64 * 1024
"""Bytes of the next piece that are searched, too. Headers are shorter, even in escapes."""

_is_credential = lru_cache(_CREDENTIAL.search)
_SEPARATOR, _ESCAPE = re.compile(rb"[\s,;=]"), re.compile(rb"[\\%&]")
_TORN = re.compile(rb"(\\+u?[0-9a-fA-F]{0,4}|%[0-9a-fA-F]?|&[#\w]{0,8})\Z")
"""An escape at the end of a text, perhaps a part of one."""
_BACKSLASHES, _BREAK = re.compile(rb"\\+"), re.compile(rb"\\[bfnrt]")


def _words(headers: Iterable[tuple[bytes, bytes]], *, is_success: bool) -> set[bytes]:
    """Return the credentials among headers, with and without escapes, in lower case."""
    shortest, words = LONG_SECRET if is_success else 1, set[bytes]()
    for name, value in headers:
        if _is_credential(name):
            for part in _parts(bytes(value)):
                words.update((part.lower(), _plain(part).lower()))
    return {word for word in words if len(word) >= shortest}


def _are_in(text: bytes, words: set[bytes]) -> bool:
    """Return whether a text has one of the words, whatever hides it."""
    for start in range(0, len(text), PIECE_BYTES):
        piece = text[start : start + PIECE_BYTES + OVERLAP_BYTES]
        plain = _plain(piece)
        for form in (piece,) if plain is piece else (piece, plain):
            lower = form.lower()
            for word in words:
                if word in lower:
                    return True
    return False


def hiding_in(
    text: bytes, headers: Iterable[tuple[bytes, bytes]], *, is_success: bool
) -> Hiding | None:
    """Return what replaces credentials among headers; ``None`` if the text repeats none."""
    words = _words(headers, is_success=is_success)
    return Hiding(words, _pattern(words)) if _are_in(text, words) else None


def without_torn(text: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a text that was cut off without the credential at its end, if it is cut amid one."""
    words = _words(headers, is_success=True)
    tail = _plain(_TORN.sub(b"", text[-OVERLAP_BYTES:])).lower()
    for word in words:
        for count in range(len(word) - 1, LONG_SECRET - 1, -1):
            if tail.endswith(word[:count]):
                is_plain = text.lower().endswith(word[:count])
                return text[:-count] + HIDDEN if is_plain else HIDDEN
    return text


@attrs.frozen
class Hiding:
    """Replaces secrets that a reply repeats."""

    words: set[bytes]
    pattern: re.Pattern[bytes]

    def text(self, text: bytes) -> bytes:
        """Return a text without secrets; its escapes stay if none of them hides one."""
        if not _are_in(text, self.words):
            return text
        if len(text) > PIECE_BYTES:
            return HIDDEN
        text = self.pattern.sub(HIDDEN, text)
        plain = _plain(text)
        return self.pattern.sub(HIDDEN, plain) if self.pattern.search(plain) else text

    def payload(self, payload: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return an object without secrets; ``None`` if it is too deep to tell."""
        try:
            return self.json(payload)  # type: ignore[no-any-return]
        except RecursionError:
            return None

    def json(self, value: Any) -> Any:
        """Return a value of JSON without secrets; an object has each name once."""
        if isinstance(value, dict):
            return {self._name(name, at): self.json(value[name]) for at, name in enumerate(value)}
        if isinstance(value, list):
            return [self.json(each) for each in value]
        if value is None or isinstance(value, bool):
            return value
        text = str(value).encode("utf-8", "surrogatepass")
        clean = self.text(text)
        return value if clean == text else clean.decode("utf-8", "replace")

    def _name(self, name: str, number: int) -> str:
        clean = name if len(name) < LONG_SECRET else self.json(name)
        return name if clean == name else f"{clean} {number}"


def _parts(value: bytes) -> list[bytes]:
    """Return a credential, and its long parts: a token without its scheme, a cookie's value."""
    if not _SEPARATOR.search(value):
        return [value]
    parts = re.split(rb"[\s,;]+", value)
    words = (word for part in parts for word in (part, part.partition(b"=")[2]))
    return [value, *(word for word in words if len(word) >= LONG_SECRET)]


def _plain(text: bytes) -> bytes:
    """Return a text without the escapes of JSON, also those of JSON in JSON, of URLs and of HTML.

    A character that Latin-1 does not have may get lost.
    """
    if not _ESCAPE.search(text):
        return text
    if b"\\" in text:
        text = _BREAK.sub(b" ", _BACKSLASHES.sub(rb"\\", text))
        text = text.decode("raw_unicode_escape", "ignore").encode("latin-1", "replace")
        text = text.replace(b"\\", b"")
    text = unquote_to_bytes(text)
    if b"&" in text:
        from html import unescape  # noqa: PLC0415 - takes time, and few need it

        text = unescape(text.decode("latin-1")).encode("latin-1", "replace")
    return text


def _pattern(words: set[bytes]) -> re.Pattern[bytes]:
    """Return the pattern of words of which a short one stands alone."""
    each = (
        (b"%b" if len(word) >= LONG_SECRET else rb"(?<!\w)%b(?!\w)") % re.escape(word)
        for word in sorted(words, key=len, reverse=True)
    )
    return re.compile(b"|".join(each), re.IGNORECASE)
