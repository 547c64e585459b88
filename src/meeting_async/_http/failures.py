"""One table that maps exceptions of the network and of HTTP libraries to ours.

It matches names of classes, which httpx and its fork httpx2 share, so neither is imported.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

from meeting_async import errors
from meeting_async._protocol.replies import GIVE_CERTIFICATE
from meeting_async._system import EXHAUSTED, NO_NAME
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
"""Names of exceptions or of their base classes, our class, and its text. The first match counts."""


def is_exhaustion(error: BaseException) -> bool:
    """Return whether this machine has no file descriptor or memory left for a socket."""
    return isinstance(error, OSError) and error.errno in EXHAUSTED


def translated(
    error: Exception, host: str, *, connecting: bool | None, sent: int | None = None
) -> Exception:
    """Return the error to raise for ``error``: one of ours, or ``error`` itself.

    ``connecting``: whether the request still waited for a connection; ``None``: decide by the class
    of the error. ``sent``: bytes of the request's body that may have been sent, if that is known.
    """
    made = error if isinstance(error, errors.MeetingError) else _made(error, connecting)
    if isinstance(made, errors.TransportError):
        made.host = made.host or host
        made.sent = sent
    return made


def _meaning(
    error: Exception, connecting: bool | None
) -> tuple[type[errors.TransportError], str] | None:
    names = {kind.__name__ for kind in type(error).__mro__}
    found = next((row for row in _MEANINGS if names.intersection(row[0].split())), None)
    if connecting and (found or isinstance(error, ValueError)):  # ssl and socket: bad host name
        is_exhausted = is_exhaustion(error)
        return errors.ResourceExhausted if is_exhausted else errors.ConnectFailed, "no connection"
    if found is None:
        return None
    _, kind, words = found
    if connecting is False and kind is errors.ConnectFailed:
        kind = errors.ConnectionLost
    return kind, words


def _made(error: Exception, connecting: bool | None) -> Exception:
    meaning, name = _meaning(error, connecting), type(error).__name__
    if meaning is None:
        return error
    kind, words = meaning
    if name == "LocalProtocolError":  # its text and its frames show the wrong header
        return kind(f"{words} ({name})")
    text = one_line(str(error).strip())
    if "ProtocolError" in name:  # it quotes the peer, who may repeat the request
        return kind(f"{words} ({text.partition(': ')[0]})")
    # If a connection broke, only an alert about a certificate is sure to come again.
    is_unconnected = issubclass(kind, errors.ConnectFailed)
    lasting = _lasting(error, _lasting_reason if is_unconnected else _certificate_reason)
    quotes_peer = name == "ProxyError" and text[:3].isdigit()  # status and text of the proxy
    text = f"the proxy says HTTP {text[:3]}" if quotes_peer else text
    made = kind(lasting or f"{words} ({text or name})")
    made.permanent = bool(lasting)
    made.__cause__ = None if quotes_peer else error
    return made


# --- permanent failures ---------------------------------------------------------------------------

_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "BAD_RECORD_TYPE"}
"""OpenSSL's reasons if the peer does not speak TLS."""

_OTHER_NAME = "is for another name ({})", "use a name of it in the base URL"

_CERTIFICATES = {
    9: ("is not valid yet", "check the clocks of both machines"),
    10: ("has expired", "renew it on the server, or check the clock of this machine"),
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}
"""By ``X509_V_ERR_…``: not valid yet, expired, another name, another address."""

_NO_ISSUER = {2, 20, 21}
"""``X509_V_ERR_UNABLE_TO_…``: a certificate's issuer is not trusted, and was not sent."""

_BROKEN_RULES = {32, *range(79, 95)}
"""``X509_V_ERR_KEYUSAGE_NO_CERTSIGN``, and from ``X509_V_ERR_INVALID_CA`` on: most of them need
``ssl.VERIFY_X509_STRICT``."""

_RULES = (
    "does not follow the standard ({})",
    (
        "issue it anew, or that of its authority (Python 3.13 and later are strict)"
        "; or pass HttpTransport(verify=...) an ssl.SSLContext without ssl.VERIFY_X509_STRICT"
    ),
)

_GIVE_FILE = (
    "if an authority of your own has signed it, give the file of that authority, with "
    "MEETING_CA_FILE, --ca-file, SSL_CERT_FILE or HttpTransport(verify=...)"
)
_SEND_INTERMEDIATE = (
    "the server does not send its intermediate certificate: add that to the server's certificate "
    "file"
)
_OTHER_AUTHORITY = "another authority has signed it than the one that was given"

MAX_CAUSES = 10


def _lasting(error: BaseException | None, read: Callable[[BaseException], str]) -> str:
    """Return what ``read`` says of an error or of its causes; ``""``: it may not come again."""
    for _ in range(MAX_CAUSES):
        if error is None:
            break
        if reason := read(error):
            return reason
        error = error.__cause__ or error.__context__  # HTTP libraries wrap errors
    return ""


def certificate_problem(error: BaseException | None) -> tuple[str, str] | None:
    """Return what is wrong with a certificate and how to fix it; ``None``: another error."""
    if said := alert_about_certificate(error):
        words = said.replace("_", " ").lower()
        problem = "wants a client certificate that it accepts"
        if said == _NO_CIPHER:
            problem = "refuses the handshake, perhaps for want of a client certificate"
        return f"the server {problem} ({words})", GIVE_CERTIFICATE
    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    code = error.verify_code
    rules = _RULES if code in _BROKEN_RULES else None
    problem, fix = rules or _CERTIFICATES.get(code) or ("is not trusted ({})", _trusted_by(error))
    return f"its certificate {problem.format(error.verify_message.rstrip('.'))}", fix


_NO_CIPHER = "HANDSHAKE_FAILURE"
_ABOUT_CERTIFICATES = {
    *("BAD_CERTIFICATE", "UNSUPPORTED_CERTIFICATE", "CERTIFICATE_REVOKED", "CERTIFICATE_EXPIRED"),
    *("CERTIFICATE_UNKNOWN", "UNKNOWN_CA", "ACCESS_DENIED", "CERTIFICATE_REQUIRED", _NO_CIPHER),
}
"""Alerts of a server that refuses the client's certificate, or a missing one (RFC 8446 section
6.2). The last one may also mean that there is no cipher in common."""


def alert_about_certificate(error: object) -> str:
    """Return the server's alert about the client's certificate; ``""``: another error.

    With TLS 1.3 it comes after the client's handshake; the server has read nothing of the request.
    """
    said = str(error.reason).partition("ALERT_")[2] if isinstance(error, ssl.SSLError) else ""
    return said if said in _ABOUT_CERTIFICATES else ""


MAX_OWN_AUTHORITIES = 20
"""A context with fewer has authorities of the caller's own: public ones are more than a hundred."""


def mark_authorities(error: ssl.SSLCertVerificationError, context: ssl.SSLContext | None) -> None:
    """Add the number of trusted authorities to an error."""
    vars(error)["authorities"] = context.cert_store_stats()["x509"] if context else 0


def _trusted_by(error: ssl.SSLCertVerificationError) -> str:
    """Return how to make a certificate trusted; do not ask for what was already given."""
    is_given = 0 < vars(error).get("authorities", 0) < MAX_OWN_AUTHORITIES
    if error.verify_code not in _NO_ISSUER:
        return f"{_OTHER_AUTHORITY}: give the right one" if is_given else _GIVE_FILE
    if is_given:
        return f"{_SEND_INTERMEDIATE}; or {_OTHER_AUTHORITY}"
    return f"{_GIVE_FILE}; if you have, or it is a public one, {_SEND_INTERMEDIATE}"


def _certificate_reason(error: BaseException) -> str:
    return ": ".join(certificate_problem(error) or ())


def _lasting_reason(error: BaseException) -> str:
    text = one_line(str(error).strip())
    if found := _certificate_reason(error):
        return found
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return "the port does not speak TLS: check scheme and port of the base URL"
    if isinstance(error, socket.gaierror) and error.errno in NO_NAME:
        return f"no connection ({text}): check the name of the host in the base URL"
    name = type(error).__name__
    if isinstance(error, UnicodeError) or name in {"UnsupportedProtocol", "InvalidURL"}:
        return f"no connection ({text}): check the base URL"
    if name == "ProxyError" and text.startswith("4"):  # a status
        return f"the proxy refuses (HTTP {text[:3]}): check its URL and what it allows"
    return ""
