"""The health check: what works between here and the server, one real attempt for each step.

``getActiveRoomInfo`` of a room that need not exist tells whether key and secret are right, and an
empty form tells whether a room is free.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Awaitable, Iterator
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
class CheckResult:
    """What one step of a health check found."""

    status: Status
    """``"ok"``, ``"failed"``, or ``"not checked"``: an earlier step failed, or there is nothing to
    check."""
    detail: str = ""
    """What was seen, in one line."""
    fix: str = ""
    """What to do, if it failed."""


_NOT_REACHED = CheckResult("not checked", "an earlier step failed")


@attrs.frozen(kw_only=True)
class ServerCheck:
    """What :meth:`MeetingClient.check` found: a :class:`CheckResult` for each step, in order."""

    name: CheckResult = _NOT_REACHED
    """The server's name was found; with a proxy, the proxy looks it up."""
    address: CheckResult = _NOT_REACHED
    """Something accepts connections at the server's address."""
    proxy: CheckResult = _NOT_REACHED
    """The proxy accepts connections, and connects to the server."""
    certificate: CheckResult = _NOT_REACHED
    """The certificate is trusted and fits the name; ``detail`` has its end."""
    server: CheckResult = _NOT_REACHED
    """A meeting server answers."""
    clock: CheckResult = _NOT_REACHED
    """The clocks here and there differ by at most five minutes."""
    key: CheckResult = _NOT_REACHED
    """The server knows the API key."""
    secret: CheckResult = _NOT_REACHED
    """The server accepts the signature, so the API secret is right."""
    room_active: CheckResult = _NOT_REACHED
    """A session is running in the room."""
    room_free: CheckResult = _NOT_REACHED
    """No upload has locked the room."""

    @property
    def ok(self) -> bool:
        """Whether no step failed."""
        return all(finding.status != "failed" for finding in self.findings.values())

    @property
    def findings(self) -> dict[str, CheckResult]:
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
            await steps.ask(room or UNUSED_ROOM, also_form=room is not None)
        except _StepFailed:
            pass
    return ServerCheck(**steps.found)


class _StepFailed(Exception):
    """The steps after this one cannot be checked."""


_FIXES = {
    "name": "check the address: is there a typing error in the host's name?",
    "address": "check host and port; is the server running, does a firewall let this through?",
    "proxy": "check the proxy's address, user and password, and whether it may reach the server",
    "certificate": "check scheme and port: nothing there speaks TLS",
    "server": "check the base URL and any proxy: is this the meeting server?",
    "clock": "set the clocks of both machines, for example with NTP",
    "key": "does your signer fail, or a proxy remove headers?",
    "secret": "",
    "room_active": "open a session in this room; or does a proxy remove Room-Id?",
    "room_free": "uploads wait until another one has ended",
}
_LATER = "try again later: it asks for fewer requests, is away or has failed (look at its log)"


@attrs.define(eq=False)
class _Steps:
    session: Session
    ends_at: float
    """When the caller's timeout ends, on the event loop's clock."""
    found: dict[str, CheckResult] = attrs.field(factory=dict)

    def ok(self, step: str, detail: str) -> None:
        self.found[step] = CheckResult("ok", detail)

    def skip(self, detail: str, *steps: str) -> None:
        self.found.update(dict.fromkeys(steps, CheckResult("not checked", detail)))

    def fail(self, step: str, detail: str, fix: str = "") -> _StepFailed:
        self.found[step] = CheckResult("failed", one_line(detail), fix or _FIXES[step])
        return _StepFailed()

    def refused(self, step: str, answer: ParsedReply, fix: str | None = None) -> _StepFailed:
        """Fail because of an answer, whose own hint tells what to do."""
        code = f" {answer.status_code}" if answer.status_code else ""
        shown = f"HTTP {answer.status}{code}: {answer.msg}"
        return self.fail(step, shown, fix or hint_of(answer) or "")

    @contextmanager
    def limited(self, step: str) -> Iterator[None]:
        """Limit the time of a step; what the network does wrong makes it fail."""
        seconds = max(0.0, min(STEP_SECONDS, self.ends_at - anyio.current_time()))
        try:
            with anyio.fail_after(seconds):
                yield
        except ConfigurationError:
            raise
        except (OSError, ValueError) as error:  # ValueError: of a host name
            step = "certificate" if isinstance(error, ssl.SSLError) else step
            told = error.reason if isinstance(error, TransportError) else str(error)
            detail = getattr(error, "strerror", None) or told or f"no answer in {seconds:.1f} s"
            found = certificate_problem(error) or certificate_problem(error.__cause__)
            raise self.fail(step, *(found or (detail,))) from error

    async def reach(self) -> None:
        """Look up the name, connect, do the handshake; a proxy looks the name up itself."""
        transport = self.session.transport
        if not isinstance(transport, HttpTransport):
            self.skip("your own transport", "name", "address", "proxy", "certificate")
            return
        with self.limited("name"):
            origin = await origin_of(transport, self.session.base)
        host, port = (origin.proxy or origin).address
        if origin.proxy is None:
            self.ok("proxy", "none")
            with self.limited("name"):
                rows = await look_up(host, port)
            addresses = [*dict.fromkeys(str(row[4][0]) for row in rows)]
            self.ok("name", f"{host}: {', '.join(addresses)}" if addresses != [host] else host)
        else:
            self.skip("the proxy does that", "name", "address")
        step = "address" if origin.proxy is None else "proxy"
        with self.limited(step):
            (await connect_tcp(host, port)).close()
        self.ok(step, origin.name if origin.proxy is None else f"{host}:{port}")
        if origin.context is None:
            self.skip("plain http", "certificate")
            return
        with self.limited("certificate" if origin.proxy is None else "proxy"):
            sock, tls = await open_socket(origin)
            sock.close()
        if found := tls.certificate() if tls is not None else {}:
            self.ok("certificate", _end_of(str(found["notAfter"])))
        else:
            self.skip("any certificate is accepted (verify=False)", "certificate")

    async def answered(self, step: str, asking: Awaitable[Step]) -> tuple[bool, ParsedReply]:
        """Return whether a question was refused, and its answer; without one the step fails."""
        with self.limited(step):
            found = await asking
            if found.error is not None:
                raise found.error
        assert found.answer is not None  # noqa: S101 - else there was an error
        if found.verdict in {Verdict.THROTTLED, Verdict.NO_ANSWER}:
            raise self.refused(step, found.answer, _LATER)
        return found.verdict is Verdict.REFUSED, found.answer

    async def ask(self, room: requests.Room, *, also_form: bool) -> None:
        """Ask for a room: its answer tells of server, clock, key and secret.

        An empty form has the last word about the room: the first answer may be wrong about it.
        """
        questions = Questions(self.session, room, self.session.send)
        with self.limited("key"):
            signed = await self.session.sign(room.raw)
        asking = questions.check(_TIMEOUTS, on_kept_connection=False)
        is_refused, answer = await self.answered("server", asking)
        self._judge(answer, is_refused=is_refused and not denies_room(answer))
        if not also_form:
            self.skip("no room was given", "room_active", "room_free")
            return
        asking = questions.probe(signed, _TIMEOUTS)
        is_refused, told = await self.answered("room_free", asking)
        is_denied = denies_room(answer) and not overrules_denial(told)
        if is_refused or is_denied or told.status_code == "USER_NOT_ACTIVE":
            raise self.refused("room_active", told)
        self.ok("room_active", "a session is running")
        if told.status == 409:
            raise self.refused("room_free", told)
        self.ok("room_free", "no other upload")

    def _judge(self, answer: ParsedReply, *, is_refused: bool) -> None:
        if is_refused and not answer.is_record:
            raise self.refused("server", answer)
        self.ok("server", self.session.base)
        self._judge_clock(answer)
        if answer.status_code == "INVALID_API_KEY":
            raise self.refused("key", answer, key_hint(self.session.signer))
        if answer.status_code == "INVALID_TOKEN_OR_SIGNATURE":
            self.ok("key", "known to the server")
            raise self.refused("secret", answer)
        if is_refused or answer.status == 403:
            raise self.refused("key", answer)
        self.ok("key", "known to the server")
        self.ok("secret", "the signature is accepted")

    def _judge_clock(self, answer: ParsedReply) -> None:
        there = unix_time(dict(answer.headers).get("date", ""))
        if there is None:
            self.skip("the answer has no valid Date", "clock")
            return
        ahead = there - time.time()
        words = f"{timedelta(seconds=round(abs(ahead)))} {'ahead' if ahead > 0 else 'behind'}"
        if abs(ahead) > MAX_CLOCK_DIFFERENCE:
            self.fail("clock", words)
        else:  # a Date has whole seconds
            self.ok("clock", "the same as here" if abs(ahead) < 2 else words)


_TIMEOUTS = Timeouts(connect=STEP_SECONDS, send_stall=STEP_SECONDS, reply=STEP_SECONDS)


def _end_of(not_after: str) -> str:
    end = datetime.fromtimestamp(ssl.cert_time_to_seconds(not_after), UTC)
    return f"valid until {end:%Y-%m-%d %H:%M} UTC ({(end - datetime.now(UTC)).days} days)"
