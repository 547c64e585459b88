"""The health check: what works between here and the server, one real attempt for each step.

``getActiveRoomInfo`` of a room that need not exist tells whether key and secret are right, and an
empty form tells whether a room is free.
"""

from __future__ import annotations

import math
import secrets
import ssl
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Literal

import anyio
import anyio.lowlevel
import attrs

from meeting_async._delivery.call import checked_seconds
from meeting_async._delivery.session import Session
from meeting_async._delivery.upload import CHECK_BYTES
from meeting_async._http.failures import certificate_problem
from meeting_async._http.origins import Origin
from meeting_async._http.tcp import connect_tcp, look_up, open_socket
from meeting_async._http.transport import HttpTransport, origin_of
from meeting_async._models import Request, SignedHeaders, Verdict
from meeting_async._policies import Timeouts
from meeting_async._protocol import requests
from meeting_async._protocol.multipart import empty_form
from meeting_async._protocol.replies import ParsedReply, hint_of
from meeting_async._protocol.verdicts import Sent, denies_room, overrules_denial, read
from meeting_async._text import one_line
from meeting_async.errors import ConfigurationError, TransportError

STEP_SECONDS = 5.0
"""Longest time in seconds for one step."""

MAX_CLOCK_DIFFERENCE = 300.0
"""Seconds by which clocks may differ: more makes certificates and signed links fail."""

UNUSED_ROOM = "meeting-async-check"
"""The room that is asked for if none was given; it need not exist."""

Status = Literal["ok", "failed", "not checked"]


@attrs.frozen
class Finding:
    """What one step of a health check found."""

    status: Status
    """``"ok"``, ``"failed"``, or ``"not checked"``: an earlier step failed, or there is nothing to
    check."""
    detail: str = ""
    """What was seen, in one line."""
    fix: str = ""
    """What to do, if it failed."""


_NOT_REACHED = Finding("not checked", "an earlier step failed")


@attrs.frozen(kw_only=True)
class ServerCheck:
    """What :meth:`MeetingClient.check` found, one :class:`Finding` for each step, in this order."""

    name: Finding = _NOT_REACHED
    """The server's name was found; with a proxy, the proxy looks it up."""
    address: Finding = _NOT_REACHED
    """Something accepts connections at the server's address."""
    proxy: Finding = _NOT_REACHED
    """The proxy accepts connections, and connects to the server."""
    certificate: Finding = _NOT_REACHED
    """The certificate is trusted and fits the name; ``detail`` has its end."""
    server: Finding = _NOT_REACHED
    """A meeting server answers."""
    clock: Finding = _NOT_REACHED
    """The clocks here and there differ by at most five minutes."""
    key: Finding = _NOT_REACHED
    """The server knows the API key."""
    secret: Finding = _NOT_REACHED
    """The server accepts the signature, so the API secret is right."""
    room_active: Finding = _NOT_REACHED
    """A session is running in the room."""
    room_free: Finding = _NOT_REACHED
    """No upload has locked the room."""

    @property
    def ok(self) -> bool:
        """Whether no step failed."""
        return all(finding.status != "failed" for finding in self.findings.values())

    @property
    def findings(self) -> dict[str, Finding]:
        """All findings by their names, in their order."""
        return {field.name: getattr(self, field.name) for field in attrs.fields(ServerCheck)}


async def check_server(
    session: Session, room_id: str | None, *, timeout: float | None
) -> ServerCheck:
    """Check a server step by step, up to the first that fails.

    Raises:
        InvalidInput: The room id cannot be sent, or the timeout is not a number of seconds.
        ConfigurationError: Certificates cannot be loaded.

    """
    room = None if room_id is None else requests.room_id_bytes(room_id)
    seconds = math.inf if timeout is None else checked_seconds(timeout)
    steps = _Steps(session, anyio.current_time() + seconds)
    with session.in_use(anyio.lowlevel.current_token()):
        try:
            await steps.reach()
            await steps.ask(room_id or UNUSED_ROOM)
            await steps.look_at_room(room)
        except _StepFailed:
            pass
    return ServerCheck(**steps.found)


class _StepFailed(Exception):
    """The steps after this one cannot be checked."""


@attrs.define(eq=False)
class _Steps:
    session: Session
    ends_at: float
    """When the caller's timeout ends, on the event loop's clock."""
    found: dict[str, Finding] = attrs.field(factory=dict)
    is_denied: bool = False
    """Whether ``getActiveRoomInfo`` has denied the room."""

    def ok(self, step: str, detail: str) -> None:
        self.found[step] = Finding("ok", detail)

    def skip(self, detail: str, *steps: str) -> None:
        self.found.update(dict.fromkeys(steps, Finding("not checked", detail)))

    def fail(self, step: str, detail: str, fix: str) -> _StepFailed:
        self.found[step] = Finding("failed", one_line(detail), fix)
        return _StepFailed()

    @contextmanager
    def limited(self, step: str, fix: str) -> Generator[None, None, None]:
        """Limit the time of a step; what the network does wrong makes it fail."""
        seconds = max(0.0, min(STEP_SECONDS, self.ends_at - anyio.current_time()))
        try:
            with anyio.fail_after(seconds):
                yield
        except ConfigurationError:
            raise
        except (OSError, ValueError) as error:  # ValueError: of a host name
            detail = _reason(error) or f"no answer in {seconds:.1f} s"
            raise self.fail(step, *(certificate_problem(error) or (detail, fix))) from error

    # --- the way to the server -------------------------------------------------------------------

    async def reach(self) -> None:
        """Look up the name, connect, do the handshake."""
        transport = self.session.transport
        if not isinstance(transport, HttpTransport):
            self.skip("your own transport", "name", "address", "proxy", "certificate")
            return
        with self.limited("name", _FIX_NAME):
            origin = await origin_of(transport, self.session.base)
        if origin.proxy is None:
            self.ok("proxy", "none")
            await self._reach_directly(origin)
        else:
            await self._reach_proxy(origin)
        await self._secure(origin)

    async def _reach_directly(self, origin: Origin) -> None:
        host, port = origin.address
        with self.limited("name", _FIX_NAME):
            rows = await look_up(host, port)
        addresses = [*dict.fromkeys(str(row[4][0]) for row in rows)]
        self.ok("name", f"{host}: {', '.join(addresses)}" if addresses != [host] else host)
        with self.limited("address", _FIX_ADDRESS):
            (await connect_tcp(host, port)).close()
        self.ok("address", origin.name)

    async def _reach_proxy(self, origin: Origin) -> None:
        self.skip("the proxy does that", "name", "address")
        host, port = (origin.proxy or origin).address
        with self.limited("proxy", _FIX_PROXY):
            (await connect_tcp(host, port)).close()
            if origin.context is not None:
                await self._open_tunnel(origin)
        self.ok("proxy", f"{host}:{port}")

    async def _open_tunnel(self, origin: Origin) -> None:
        """Ask the proxy for a tunnel; the handshake in it is another step."""
        try:
            sock, _ = await open_socket(origin)
        except ssl.SSLError:
            return
        sock.close()

    async def _secure(self, origin: Origin) -> None:
        if origin.context is None:
            self.skip("plain http", "certificate")
            return
        with self.limited("certificate", _FIX_CERTIFICATE):
            sock, tls = await open_socket(origin)
            sock.close()
        found = tls.certificate() if tls is not None else {}
        if not found:
            self.skip("any certificate is accepted (verify=False)", "certificate")
        else:
            self.ok("certificate", _end_of(str(found["notAfter"])))

    # --- what the server says --------------------------------------------------------------------

    async def ask(self, room_id: str) -> None:
        """Ask for a room: its answer tells of server, clock, key and secret."""
        session, body = self.session, requests.active_room_body(room_id)
        request = requests.json_request(
            f"{session.base}/{requests.ACTIVE_ROOM_INFO}",
            body,
            await self._signed(body),
            session.default_headers,
            _TIMEOUTS,
            idempotent=False,  # on a connection of its own
            max_reply_bytes=CHECK_BYTES,
            cut_reply=True,
        )
        with self.limited("server", _FIX_SERVER):
            answer = await session.send(request)
        self.is_denied = denies_room(answer)
        self._judge_server(answer)
        self._judge_clock(answer)
        self._judge_credentials(answer)

    async def _signed(self, message: bytes) -> SignedHeaders:
        """Sign; a signer of the caller's may need a network, too."""
        with self.limited("key", _FIX_SIGNER):
            return await self.session.sign(message)

    def _judge_server(self, answer: ParsedReply) -> None:
        said = read(answer, Sent.ALL, "check")
        if said is Verdict.THROTTLED:
            raise self.fail("server", _shown(answer), "it asks for fewer requests: try again later")
        if said is Verdict.NEVER_SENT:
            fix = "the server behind this address is away or has failed: look at its log"
            raise self.fail("server", _shown(answer), fix)
        if said is Verdict.REFUSED and not (answer.is_record or denies_room(answer)):
            fix = " ".join(filter(None, [_FIX_SERVER, hint_of(answer)]))
            raise self.fail("server", f"{_shown(answer)}, not a meeting server's", fix)
        self.ok("server", self.session.base)

    def _judge_clock(self, answer: ParsedReply) -> None:
        try:
            there = parsedate_to_datetime(dict(answer.headers)["date"])
            ahead = there.replace(tzinfo=there.tzinfo or UTC).timestamp() - time.time()
        except (KeyError, ValueError, OverflowError):
            self.skip("the answer has no valid Date", "clock")
            return
        if abs(ahead) < 2:  # a Date has whole seconds
            self.ok("clock", "the same as here")
            return
        words = f"{_span(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}"
        if abs(ahead) <= MAX_CLOCK_DIFFERENCE:
            self.ok("clock", words)
        else:
            self.fail("clock", words, "set the clocks of both machines, for example with NTP")

    def _judge_credentials(self, answer: ParsedReply) -> None:
        if answer.status_code == "INVALID_TOKEN_OR_SIGNATURE":
            self.ok("key", "known to the server")
            fix = "give the secret that belongs to this key, without quotes or blanks around it"
            raise self.fail("secret", _shown(answer), f"{fix}; or does a proxy change requests?")
        is_refusal = read(answer, Sent.ALL, "check") is Verdict.REFUSED
        if (is_refusal and not denies_room(answer)) or answer.status == 403:
            is_key = answer.status_code == "INVALID_API_KEY"
            fix = "give a key of this server, without quotes around it"
            fix = fix if is_key else "does a proxy remove headers?"
            raise self.fail("key", _shown(answer), fix)
        self.ok("key", "known to the server")
        self.ok("secret", "the signature is accepted")

    # --- the room --------------------------------------------------------------------------------

    async def look_at_room(self, room: bytes | None) -> None:
        """Ask with an empty form, which has the last word: a check may be wrong about a room."""
        if room is None:
            self.skip("no room was given", "room_active", "room_free")
            return
        question = await self._empty_form(room)
        with self.limited("room_free", _FIX_SERVER):
            probe = await self.session.send(question)
        said = read(probe, Sent.ALL, "probe")
        if said in {Verdict.THROTTLED, Verdict.NEVER_SENT}:
            raise self.fail("room_free", _shown(probe), "try again later")
        if probe.status_code == "USER_NOT_ACTIVE":
            raise self.fail("room_active", _shown(probe), "let a presenter join this room")
        if said is Verdict.REFUSED or (self.is_denied and not overrules_denial(probe)):
            is_absent = probe.status != 401
            fix = "open a session in this room" if is_absent else "does a proxy remove Room-Id?"
            raise self.fail("room_active", _shown(probe), fix)
        self.ok("room_active", "a session is running")
        if said is Verdict.BUSY:
            raise self.fail("room_free", _shown(probe), "uploads wait until another one has ended")
        self.ok("room_free", "no other upload")

    async def _empty_form(self, room: bytes) -> Request:
        session = self.session
        content_type, body = empty_form(boundary=secrets.token_hex(16))
        return requests.upload_request(
            f"{session.base}/{requests.UPLOAD_WHITEBOARD_FILE}",
            room,
            content_type,
            body,
            await self._signed(room),
            session.default_headers,
            _TIMEOUTS,
        )


_TIMEOUTS = Timeouts(connect=STEP_SECONDS, send_stall=STEP_SECONDS, reply=STEP_SECONDS)

_FIX_SIGNER = "look at your signer: it made no signature"
_FIX_NAME = "check the address: is there a typing error in the host's name?"
_FIX_ADDRESS = "check host and port; is the server running, and does a firewall let this through?"
_FIX_PROXY = "check the proxy's address, user and password, and whether it may reach the server"
_FIX_CERTIFICATE = "check scheme and port: nothing there speaks TLS"
_FIX_SERVER = "check the base URL and any proxy: is this the meeting server?"


def _reason(error: Exception) -> str:
    """Return what went wrong, in words; ``""`` for the end of the time."""
    if isinstance(error, TransportError):
        return error.reason
    return getattr(error, "strerror", None) or str(error)


def _end_of(not_after: str) -> str:
    end = datetime.fromtimestamp(ssl.cert_time_to_seconds(not_after), UTC)
    return f"valid until {end:%Y-%m-%d %H:%M} UTC ({(end - datetime.now(UTC)).days} days)"


def _span(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _shown(answer: ParsedReply) -> str:
    code = f" {answer.status_code}" if answer.status_code else ""
    return f"HTTP {answer.status}{code}: {answer.msg}"
