"""The health check: what works between here and the server, one real attempt for each step.

``getActiveRoomInfo`` of a room that need not exist tells whether key and secret are right, and an
empty form tells whether a room is free.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Literal

import anyio
import anyio.lowlevel
import attrs

from meeting_async._delivery.call import checked_seconds
from meeting_async._delivery.history import Step
from meeting_async._delivery.questions import UNUSED_ROOM, Questions
from meeting_async._delivery.session import Session
from meeting_async._http.failures import certificate_problem
from meeting_async._http.origins import Origin
from meeting_async._http.tcp import connect_tcp, look_up, open_socket
from meeting_async._http.transport import HttpTransport, origin_of
from meeting_async._models import Verdict
from meeting_async._policies import Timeouts
from meeting_async._protocol import requests
from meeting_async._protocol.replies import ParsedReply, hint_of, unix_time
from meeting_async._protocol.signing import key_hint
from meeting_async._protocol.verdicts import denies_room, overrules_denial
from meeting_async._text import one_line
from meeting_async.errors import ConfigurationError, TransportError

STEP_SECONDS = 5.0
"""Longest time in seconds for one step."""

MAX_CLOCK_DIFFERENCE = 300.0
"""Seconds by which clocks may differ: more makes certificates and signed links fail."""

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
    room = None if room_id is None else requests.room_of(room_id)
    seconds = math.inf if timeout is None else checked_seconds(timeout)
    steps = _Steps(session, anyio.current_time() + seconds)
    with session.in_use(anyio.lowlevel.current_token()):
        try:
            await steps.reach()
            checked = await steps.ask(room or UNUSED_ROOM)
            if room is None:
                steps.skip("no room was given", "room_active", "room_free")
            else:
                await steps.look_at(room, checked)
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
            found = certificate_problem(error) or certificate_problem(error.__cause__)
            raise self.fail(step, *(found or (detail, fix))) from error

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

    async def ask(self, room: requests.Room) -> ParsedReply:
        """Ask for a room: its answer tells of server, clock, key and secret."""
        questions = Questions(self.session, room, self.session.send)
        with self.limited("key", _FIX_SIGNER):
            request = await questions.check_request(_TIMEOUTS, on_kept_connection=False)
        said, answer = await self._answered("server", questions.ask("check", request))
        self._judge_server(said, answer)
        self._judge_clock(answer)
        self._judge_credentials(said, answer)
        return answer

    async def _answered(
        self, step: str, asking: Awaitable[Step]
    ) -> tuple[Verdict | None, ParsedReply]:
        with self.limited(step, _FIX_SERVER):
            found = await asking
            if found.error is not None:
                raise found.error
        assert found.answer is not None  # noqa: S101 - else there was an error
        return found.verdict, found.answer

    def _judge_server(self, said: Verdict | None, answer: ParsedReply) -> None:
        fix = ""
        if said is Verdict.THROTTLED:
            fix = "it asks for fewer requests: try again later"
        elif said is Verdict.NO_ANSWER:
            fix = "the server behind this address is away or has failed: look at its log"
        elif said is Verdict.REFUSED and not (answer.is_record or denies_room(answer)):
            fix = " ".join(filter(None, [_FIX_SERVER, hint_of(answer)]))
        if fix:
            raise self.fail("server", _shown(answer), fix)
        self.ok("server", self.session.base)

    def _judge_clock(self, answer: ParsedReply) -> None:
        there = unix_time(dict(answer.headers).get("date", ""))
        if there is None:
            self.skip("the answer has no valid Date", "clock")
            return
        ahead = there - time.time()
        if abs(ahead) < 2:  # a Date has whole seconds
            self.ok("clock", "the same as here")
            return
        words = f"{_span(abs(ahead))} {'ahead' if ahead > 0 else 'behind'}"
        if abs(ahead) <= MAX_CLOCK_DIFFERENCE:
            self.ok("clock", words)
        else:
            self.fail("clock", words, "set the clocks of both machines, for example with NTP")

    def _judge_credentials(self, said: Verdict | None, answer: ParsedReply) -> None:
        if answer.status_code == "INVALID_TOKEN_OR_SIGNATURE":
            self.ok("key", "known to the server")
            fix = "give the secret that belongs to this key, without quotes or blanks around it"
            raise self.fail("secret", _shown(answer), f"{fix}; or does a proxy change requests?")
        if (said is Verdict.REFUSED and not denies_room(answer)) or answer.status == 403:
            is_key = answer.status_code == "INVALID_API_KEY"
            fix = key_hint(self.session.signer) if is_key else "does a proxy remove headers?"
            raise self.fail("key", _shown(answer), fix)
        self.ok("key", "known to the server")
        self.ok("secret", "the signature is accepted")

    # --- the room --------------------------------------------------------------------------------

    async def look_at(self, room: requests.Room, checked: ParsedReply) -> None:
        """Ask with an empty form, which has the last word: a check may be wrong about a room."""
        questions = Questions(self.session, room, self.session.send)
        with self.limited("key", _FIX_SIGNER):
            request = questions.probe_request(await self.session.sign(room.raw), _TIMEOUTS)
        said, answer = await self._answered("room_free", questions.ask("probe", request))
        if said in {Verdict.THROTTLED, Verdict.NO_ANSWER}:
            raise self.fail("room_free", _shown(answer), "try again later")
        if answer.status_code == "USER_NOT_ACTIVE":
            raise self.fail("room_active", _shown(answer), "let a presenter join this room")
        if said is Verdict.REFUSED or (denies_room(checked) and not overrules_denial(answer)):
            is_absent = answer.status != 401
            fix = "open a session in this room" if is_absent else "does a proxy remove Room-Id?"
            raise self.fail("room_active", _shown(answer), fix)
        self.ok("room_active", "a session is running")
        if said is Verdict.BUSY:
            raise self.fail("room_free", _shown(answer), "uploads wait until another one has ended")
        self.ok("room_free", "no other upload")


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
