"""How values appear in messages: short, on one line, and without what may be a credential."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn


def one_line(text: str, limit: int = 1000) -> str:
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


class Url(str):
    """A URL whose ``repr`` shows no credential, also among the locals of a traceback."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(link_label(self))


_PLAIN_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([\w.-]+|\[[\w:.]+\])(:\d*)?([/?#]|$)")
