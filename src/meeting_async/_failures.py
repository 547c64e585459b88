"""What the exceptions of HTTP libraries mean here: one table."""

from __future__ import annotations

from typing import Any

import anyio
import h11

from meeting_async import errors

_NAMES: tuple[tuple[tuple[str, ...], type[errors.TransportError], str], ...] = (
    (("ConnectTimeout", "PoolTimeout"), errors.ConnectFailed, "no connection in time"),
    (
        ("ConnectError", "ProxyError", "UnsupportedProtocol", "InvalidURL"),
        errors.ConnectFailed,
        "no connection",
    ),
    (("WriteTimeout",), errors.TransferTimeout, "the peer stopped reading"),
    (("ReadTimeout",), errors.TransferTimeout, "no reply in time"),
    (("ProtocolError", "StreamError"), errors.ConnectionLost, "the HTTP exchange broke"),
    (
        ("HTTPError", "NetworkError", "TimeoutException"),
        errors.ConnectionLost,
        "the connection broke",
    ),
)
"""What httpx and its relatives raise, by the names they all use, what it is here, and in which
words. The first match counts."""

_OTHERS: tuple[tuple[tuple[type[Exception], ...], type[errors.TransportError], str], ...] = (
    # a host name that no name server can be asked for
    ((UnicodeError,), errors.ConnectFailed, "no connection"),
    ((h11.ProtocolError,), errors.ConnectionLost, "the HTTP exchange broke"),
    (
        (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream),
        errors.ConnectionLost,
        "the connection broke",
    ),
)


class Failures:
    """What the exceptions of some HTTP libraries mean."""

    def __init__(self, *modules: object) -> None:
        named = ((_classes(modules, names), ours, words) for names, ours, words in _NAMES)
        self._rows = (*named, *_OTHERS)
        self.foreign: tuple[type[Exception], ...] = tuple(
            kind for kinds, _, _ in self._rows for kind in kinds
        )
        """All of them."""
        self.our_fault = (*_classes(modules, ("LocalProtocolError",)), h11.LocalProtocolError)
        """Those that blame the request, and quote it."""

    def meaning(self, error: Exception) -> tuple[type[errors.TransportError], str]:
        """Return what to raise instead, and in which words."""
        return next(row[1:] for row in self._rows if isinstance(error, row[0]))


def _classes(modules: tuple[object, ...], names: tuple[str, ...]) -> tuple[type[Any], ...]:
    return tuple(
        getattr(module, name) for name in names for module in modules if hasattr(module, name)
    )
