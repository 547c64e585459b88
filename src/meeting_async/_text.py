"""How values appear in messages: short, on one line, and without what may be a credential."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn

MAX_CHARACTERS = 1000
"""Longest text of somebody else, a server's message for example, that is kept."""

MAX_PATH_CHARACTERS = 250
"""Longest path in a text."""


def one_line(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Return the first ``limit`` characters as one line that every terminal and log can show.

    Line breaks, escape codes, lone surrogates and whatever else cannot be printed are escaped.
    """
    text = text[:limit]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)[:limit]


def short_repr(value: object, limit: int = 100) -> str:
    """Return ``repr(value)``, cut to ``limit`` characters."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


def path_repr(path: str) -> str:
    """Return ``repr(path)``; what is too long for one may be a document, and is cut."""
    return short_repr(path, MAX_PATH_CHARACTERS if len(path) < MAX_PATH_CHARACTERS else 100)


def needs_async_with(self: object, *_: object) -> NoReturn:
    """Refuse a plain ``with``, as a class's ``__enter__`` and ``__exit__``."""
    raise TypeError(f"a {type(self).__name__} is opened with a plain `with`: use `async with`")


def nearest(name: str, known: Iterable[str], similarity: float = 0.7) -> str:
    """Return the known name that is probably meant; ``""`` if none is similar."""
    import difflib  # noqa: PLC0415 - for errors only

    return next(iter(difflib.get_close_matches(name, known, 1, similarity)), "")


def link_label(link: str) -> str:
    """Return a link without user, password, query and fragment, which may be credentials.

    A link with a typing error is still a secret: where it is unclear what is a password, more is
    hidden.
    """
    head, *rest = re.split(r"[?#]", link, maxsplit=1)
    if not _PLAIN_AUTHORITY.match(link) and "@" in link:
        scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://|", link)
        public = "" if "@" in "".join(rest) else "@" + head.rpartition("@")[2]
        head = f"{scheme[0] if scheme else ''}(hidden){public}"
    return f"{head}?…" if "?" in link else head


def printable(text: str) -> str:
    """Return the text as one line, without characters that control a terminal.

    File names and messages of servers may contain escape sequences, or characters that reverse
    the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


class Url(str):
    """A URL whose ``repr`` shows no credential, also among the locals of a traceback."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(link_label(self))


_PLAIN_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([\w.-]+|\[[\w:.]+\])(:\d*)?([/?#]|$)")


# --- numbers -------------------------------------------------------------------------------------

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 room``, ``2 rooms``."""
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


def size(number: float) -> str:
    """Return a number of bytes as text, in the units of configured limits: ``30.0 MiB``."""
    if number < 1024:
        return counted(round(number), "byte")
    unit, *larger = _UNITS
    number /= 1024
    while larger and number >= 1023.95:  # would be printed as 1,024.0
        unit, *larger = larger
        number /= 1024
    return f"{number:,.1f} {unit}"


def duration(seconds: float) -> str:
    """Return a duration as text, with about three digits."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"
