"""One table from exceptions of the network and of HTTP libraries to ours.

It matches names of classes, which httpx, its fork httpx2 and h11 share, so none of them is imported
for it.
"""

from __future__ import annotations

import errno

from meeting_async import errors
from meeting_async._http.request_body import BodyFailed
from meeting_async._text import one_line

_MEANINGS: tuple[tuple[str, type[errors.TransportError], str], ...] = (
    ("ConnectTimeout PoolTimeout", errors.ConnectFailed, "no connection in time"),
    (
        "ConnectError ProxyError UnsupportedProtocol InvalidURL UnicodeError",
        errors.ConnectFailed,
        "no connection",
    ),
    ("WriteTimeout", errors.TransferTimeout, "the peer stopped reading"),
    ("ReadTimeout", errors.TransferTimeout, "no reply in time"),
    ("ProtocolError StreamError", errors.ConnectionLost, "the HTTP exchange broke"),
    (
        "HTTPError OSError BrokenResourceError ClosedResourceError EndOfStream",
        errors.ConnectionLost,
        "the connection broke",
    ),
)
"""Names of exceptions, our class, and its text. The first match counts."""

MAX_REASON_CHARACTERS = 300
"""Longest text of another library that is kept."""

_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def is_exhaustion(error: BaseException) -> bool:
    """Return whether this machine has no file descriptor or memory left for a socket."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def translated(error: Exception, host: str, *, connecting: bool | None) -> Exception:
    """Return the error to raise instead of ``error``, which may be itself.

    ``connecting``: whether the request still waited for a connection; ``None``: decide by the class
    of the error.
    """
    if isinstance(error, BodyFailed):
        return error.reason
    if isinstance(error, errors.TransportError):
        error.host = error.host or host
    if isinstance(error, errors.MeetingError):
        return error
    names = {kind.__name__ for kind in type(error).__mro__}
    for row, kind, words in _MEANINGS:
        if names.intersection(row.split()):
            return _made(error, host, *_in_phase(error, kind, words, connecting))
    if connecting and isinstance(error, ValueError):  # of a host name, from ssl and socket
        return _made(error, host, errors.ConnectFailed, "no connection")
    return error


def _in_phase(
    error: Exception, kind: type[errors.TransportError], words: str, connecting: bool | None
) -> tuple[type[errors.TransportError], str]:
    if connecting:
        return (errors.ResourceExhausted if is_exhaustion(error) else errors.ConnectFailed), (
            "no connection"
        )
    if connecting is False and kind is errors.ConnectFailed:
        return errors.ConnectionLost, words
    return kind, words


def _made(
    error: Exception, host: str, kind: type[errors.TransportError], words: str
) -> errors.TransportError:
    name = type(error).__name__
    if name == "LocalProtocolError":  # its text and its frames show the header that is wrong
        return kind(f"{words} ({name})", host)
    text = one_line(str(error).strip(), MAX_REASON_CHARACTERS)
    if "ProtocolError" in name:  # it quotes the peer, who may repeat the request
        return kind(f"{words} ({text.partition(': ')[0]})", host)
    made = kind(f"{words} ({text or name})", host)
    made.__cause__ = error
    return made
