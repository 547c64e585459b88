"""One table from exceptions of the network and of HTTP libraries to ours.

It matches names of classes, which httpx, its fork httpx2 and h11 share, so none of them is imported
for it.
"""

from __future__ import annotations

import errno
import socket
import ssl

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
    fix = _fix(error) if issubclass(kind, errors.ConnectFailed) else ""
    made = kind(f"{words} ({text or name})" + (f": {fix}" if fix else ""), host)
    made.permanent = bool(fix)
    made.__cause__ = error
    return made


# --- what cannot heal ----------------------------------------------------------------------------

_NO_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}

_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "BAD_RECORD_TYPE"}
"""What OpenSSL says of a peer that speaks something else."""

_CERTIFICATES = {
    9: "check the clock of this machine",
    10: "renew the certificate of the server",
    62: "use a name of the certificate in the base URL",
    64: "use a name of the certificate in the base URL",
}
"""By ``X509_V_ERR_…``: not valid yet, expired, another name, another address."""

_CA_FILE = (
    "if an authority of your own has signed it, give that authority's file: MEETING_CA_FILE, "
    "SSL_CERT_FILE or HttpTransport(verify=...)"
)


def _fix(error: BaseException | None) -> str:
    """Return what to do about an error that would come again; ``""`` if it may heal."""
    while error is not None:
        if fix := _fix_of(error):
            return fix
        error = error.__cause__ or error.__context__  # HTTP libraries have one of their own
    return ""


def _fix_of(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _CERTIFICATES.get(error.verify_code, _CA_FILE)
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return "the port does not speak TLS: check scheme and port of the base URL"
    if isinstance(error, socket.gaierror) and error.errno in _NO_NAME:
        return "there is no such host: check the name in the base URL"
    if isinstance(error, UnicodeError) or type(error).__name__ in {
        "UnsupportedProtocol",
        "InvalidURL",
    }:
        return "check the name in the base URL"
    return "check the proxy" if _is_refusing_proxy(error) else ""


def _is_refusing_proxy(error: BaseException) -> bool:
    return type(error).__name__ == "ProxyError" and str(error).startswith("4")  # its status


def proxy_failed(
    label: str, problem: str, fix: str, *, permanent: bool = True
) -> errors.ConnectFailed:
    """Return the error for a proxy, which has a name and no password."""
    made = errors.ConnectFailed(f"the proxy {label} {problem}: {fix}")
    made.permanent = permanent
    return made
