"""The health check: each step that can fail is named with its fix, and nothing changes."""

from __future__ import annotations

import contextlib
import re
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest

from meeting_async import CheckResult, MeetingClient, ServerCheck
from meeting_async.errors import ConfigurationError, ConnectFailed
from meeting_async.signers import SignedHeaders
from meeting_async.testing import MeetingServer
from meeting_async.transports import HttpTransport
from support.fake_rooms import Act, FakeRooms, absent, accepted, busy, client_of, failing
from support.fake_rooms import reply as answered
from support.peer import Peer, Script, answering, deaf, relaying, reply, silent
from support.ports import free_port
from support.tables import in_turn

pytestmark = [pytest.mark.anyio]

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]
KEY, SECRET = "devkey-of-the-test", "devsecret-of-the-test"
STEPS = [
    "name", "address", "proxy", "certificate", "server", "clock", "key", "secret", "room_active",
    "room_free",
]  # fmt: skip


@pytest.fixture
def server() -> Iterator[MeetingServer]:
    """Run a server with an active room."""
    server = MeetingServer(api_key=KEY, api_secret=SECRET)
    server.add_room("room01")
    with server.run():
        yield server


def client(url: str, *, key: str = KEY, secret: str = SECRET, **settings: object) -> MeetingClient:
    """Make a client whose transport has the settings."""
    transport = HttpTransport(**settings)  # type: ignore[arg-type]
    return MeetingClient(url, api_key=key, api_secret=secret, transport=transport)


async def check(
    client: MeetingClient, room_id: str | None = None, seconds: float = 30.0
) -> ServerCheck:
    """Check, and see that the rest was left out after a failure."""
    async with client:
        found = await client.check(room_id, timeout=seconds)
    assert list(found.findings) == STEPS
    assert all(
        bool(finding.fix) == (finding.status == "failed") for finding in found.findings.values()
    )
    assert SECRET not in repr(found)
    return found


def failed(found: ServerCheck) -> dict[str, CheckResult]:
    """Return what failed; nothing after the last of it was checked, except a wrong clock's."""
    bad = {name: finding for name, finding in found.findings.items() if finding.status == "failed"}
    assert found.ok == (not bad)
    if bad and "clock" not in bad:
        after = STEPS[STEPS.index([*bad][-1]) + 1 :]
        assert all(
            found.findings[name].status == "not checked" or name == "proxy" for name in after
        )
    return bad


# --- a server that works -------------------------------------------------------------------------


@pytest.mark.both_loops
async def test_every_step_is_ok(server: MeetingServer) -> None:
    """Each step says what it saw; two small calls change nothing on the server.

    Without a room, key and secret are told by one that does not exist.
    """
    found = await check(client(server.url), "room01")
    assert not failed(found)
    assert found.name.detail == "127.0.0.1"
    assert found.address.detail == server.url.removeprefix("http://")
    steps = {found.findings[name].status for name in STEPS if name != "certificate"}
    assert (steps, found.certificate.detail) == ({"ok"}, "plain http")
    found = await check(client(server.url))
    assert (found.ok, found.secret.status) == (True, "ok")
    assert found.room_active == found.room_free == CheckResult("not checked", "no room was given")
    assert len(server.requests) == 3
    ((name, room),) = server.rooms.items()
    assert (name, room.locked, room.received) == ("room01", False, ())


async def test_a_certificate_that_expires_soon(tls: Contexts) -> None:
    """A day of it, and the days that are left."""
    with Peer(deaf, answering(reply()), tls=tls[0]) as peer:
        found = await check(client(peer.url, verify=tls[1]))
    assert found.ok
    assert f"{datetime.now(UTC):%Y}"[:2] in found.certificate.detail
    assert found.certificate.detail.endswith((" (1 days)", " (2 days)"))


@pytest.mark.both_loops
async def test_through_a_proxy(tls: Contexts) -> None:
    """The proxy looks the server up; certificate and answer are the server's."""
    with Peer(answering(reply()), tls=tls[0]) as peer, Peer(relaying(peer.port)) as proxy:
        found = await check(client(peer.url, verify=tls[1], proxy=proxy.url), "room01")
    assert not failed(found)
    assert found.proxy.detail == f"127.0.0.1:{proxy.port}"
    assert found.certificate.status == found.room_free.status == "ok"
    assert found.name.status == found.address.status == "not checked"


async def test_a_custom_transport() -> None:
    """What it connects to is its own affair; the answers are checked all the same."""
    found = await check(client_of(FakeRooms()), "room01")
    assert not failed(found)
    ours = CheckResult("not checked", "your own transport")
    assert found.name == found.address == found.proxy == found.certificate == ours
    assert found.server.status == found.secret.status == found.room_free.status == "ok"


# --- the way there -------------------------------------------------------------------------------


async def test_a_name_that_does_not_exist() -> None:
    """The first step, and the last."""
    bad = failed(await check(client("https://meet.invalid")))
    assert [*bad] == ["name"]
    assert "typing error" in bad["name"].fix


async def test_a_port_on_which_nobody_listens() -> None:
    """At once, without retries."""
    began = time.monotonic()
    bad = failed(await check(client(f"https://127.0.0.1:{free_port()}")))
    assert [*bad] == ["address"]
    assert re.search("refused( it)?$", bad["address"].detail)  # "actively refused it", says Windows
    assert time.monotonic() - began < 20


async def test_a_certificate_of_an_unknown_authority(tls: Contexts) -> None:
    """The fix names option and variable."""
    with Peer(answering(reply()), tls=tls[0]) as peer:
        bad = failed(await check(client(peer.url)))
    assert [*bad] == ["certificate"]
    assert re.search("self.signed certificate", bad["certificate"].detail)
    assert "--ca-file" in bad["certificate"].fix
    assert "MEETING_CA_FILE" in bad["certificate"].fix


async def test_a_certificate_for_another_name(tls: Contexts) -> None:
    """It is trusted, but it is not this server's."""
    with Peer(answering(reply()), tls=tls[0]) as peer, Peer(relaying(peer.port)) as proxy:
        ours = client("https://meet.example.com", verify=tls[1], proxy=proxy.url)
        bad = failed(await check(ours))
    assert [*bad] == ["certificate"]
    assert "use a name of it" in bad["certificate"].fix


async def test_tls_with_a_port_that_does_not_speak_it(server: MeetingServer) -> None:
    """The scheme is wrong, or the port."""
    bad = failed(await check(client(server.url.replace("http:", "https:"))))
    assert [*bad] == ["certificate"]
    assert "check scheme and port" in bad["certificate"].fix


async def test_certificates_that_are_not_checked(tls: Contexts) -> None:
    """``verify=False`` is not called ok."""
    with Peer(answering(reply()), tls=tls[0]) as peer:
        found = await check(client(peer.url, verify=False))
    assert (found.ok, found.certificate.status) == (True, "not checked")


async def test_a_proxy_that_is_away_or_refuses(tls: Contexts) -> None:
    """The proxy is named, not the server."""
    url, gone = "https://meet.example.com", free_port()
    bad = failed(await check(client(url, proxy=f"http://127.0.0.1:{gone}")))
    assert ([*bad], bad["proxy"].detail) == (["proxy"], "Connection refused")
    with Peer(answering(reply(407))) as proxy:
        bad = failed(await check(client(url, proxy=f"http://me:{SECRET}@127.0.0.1:{proxy.port}")))
    assert [*bad] == ["proxy"]
    assert "407" in bad["proxy"].detail
    assert "user and password" in bad["proxy"].fix


@in_turn("script", [("silent", silent), ("deaf", deaf)])
async def test_a_server_that_does_not_answer(script: Script) -> None:
    """The time limit is kept, and what it cut short has failed."""
    with Peer(script) as peer:
        began = time.monotonic()
        bad = failed(await check(client(peer.url), seconds=0.3))
        assert 0.28 <= time.monotonic() - began < 15  # a clock may have steps
    assert [*bad] == ["server"]
    assert "no answer in" in bad["server"].detail


# --- what the server says ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "room_id", "step"),
    [
        ({"key": "another"}, None, "key"),
        ({"secret": "another"}, "room01", "secret"),
        ({}, "room03", "room_active"),
        ({}, "not there", "room_active"),
        ({}, "locked", "room_free"),
    ],
)
async def test_what_is_refused(
    server: MeetingServer, given: dict[str, str], room_id: str | None, step: str
) -> None:
    """Key, secret and room are told apart; what an upload would meet counts."""
    server.add_room("locked").lock(60)
    server.add_room("room03").presenter = False
    found = await check(client(server.url, **given), room_id)
    bad = failed(found)
    assert [*bad] == [step]
    assert room_id != "room03" or "presenter" in bad[step].fix
    assert step == "key" or found.key.status == "ok"


async def test_a_custom_signer(server: MeetingServer) -> None:
    """One that cannot sign is a finding like any other, and nothing is sent."""

    class Vault:
        async def sign(self, message: bytes, /) -> SignedHeaders:
            raise ConnectionError("the vault is sealed")

    ours = MeetingClient(server.url, signer=Vault())
    bad = failed(await check(ours))
    assert ([*bad], bad["key"].detail) == (["key"], "the vault is sealed")
    assert not server.requests


NOT_ALLOWED = b'{"status": false, "msg": "no", "status_code": "PERMISSION_DENIED"}'


@pytest.mark.parametrize(
    ("answer", "detail", "fix"),
    [
        (reply(403, NOT_ALLOWED), "", ""),  # the signature was not necessarily looked at
        (reply(200, b"<html>Welcome</html>"), "HTTP 200", "is this the meeting server?"),
        (reply(404, b"not found"), "HTTP 404", "Is this the meeting server"),
        (reply(302, b"", [b"Location: /login"]), "HTTP 302", "leads to /login"),
        (reply(301, b"", [b"Location: https://x.test/"]), "HTTP 301", "leads to https://x.test/"),
        (reply(400, b"to an HTTPS server"), "HTTP 400", "speaks TLS: use https://"),
        (b"\x15\x03\x03\x00\x02\x02\x16", "speaks TLS: use https://", "base URL"),
        (reply(502, b"<html>Bad Gateway</html>"), "HTTP 502", "away or has failed"),
        (reply(503, b"", [b"Retry-After: 30"]), "HTTP 503", "try again later"),
        (reply(200, b"x" * 2**21), "more than 65,536 bytes", "is this the meeting server?"),
        (b"SSH-2.0-OpenSSH_9.7\r\n\r\n", "", "is this the meeting server?"),
    ],
)
async def test_answers_of_something_else(answer: bytes, detail: str, fix: str) -> None:
    """Keys are not judged by a page of HTML."""
    with Peer(answering(answer)) as peer:
        bad = failed(await check(client(peer.url)))
    (step,) = bad
    assert step == ("key" if NOT_ALLOWED in answer else "server")
    assert detail in bad[step].detail
    assert fix in bad[step].fix


@pytest.mark.parametrize(
    ("ahead", "status", "words"),
    [
        (0, "ok", "the same"),
        (-60, "ok", "behind"),
        (3600, "failed", "ahead"),
        (-86400, "failed", "1 day"),
        *((text, "not checked", "") for text in ("", "yesterday", "\u0660")),
        ("Mon, 99 Foo 99999 99:99:99 GMT", "not checked", ""),
    ],
)
async def test_a_wrong_clock_is_reported(ahead: float | str, status: str, words: str) -> None:
    """A wrong clock is told, and the other steps go on; what is no date says nothing of it."""
    date = ahead
    if not isinstance(ahead, str):
        date = format_datetime(datetime.fromtimestamp(time.time() + ahead, UTC), usegmt=True)
    with Peer(answering(reply(200, headers=[f"Date: {date}".encode()]))) as peer:
        found = await check(client(peer.url), "room01")
    assert found.clock.status == status
    assert words in found.clock.detail or ahead == 0  # the machine may be slow
    assert (found.ok, found.room_free.status) == (status != "failed", "ok")


# --- the room ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "probe", "status", "step"),
    [
        (accepted(), absent(), "failed", "room_active"),
        *((accepted(), act, "not checked", "room_free")
          for act in (answered(502, b"<html>"), failing(ConnectFailed("no")), answered(429, b""))),
        (absent(), busy(), "ok", "room_free"),  # a known server denies rooms in another spelling
    ],
)  # fmt: skip
async def test_the_empty_form_has_the_last_word(
    asked: Act, probe: Act, status: str, step: str
) -> None:
    """Whatever the check of the room says; no answer says nothing of the room."""
    rooms = FakeRooms(ask=lambda visit: probe if visit.kind == "probe" else asked)
    found = await check(client_of(rooms), "room01")
    assert ([*failed(found)], found.room_active.status) == ([step], status)


# --- arguments -----------------------------------------------------------------------------------


async def test_a_client_that_cannot_check(tmp_path: Path) -> None:
    """That is an error, no finding, before anything is sent."""
    async with client("https://127.0.0.1", verify=str(tmp_path / "none.pem")) as ours:
        with pytest.raises(ConfigurationError, match="verify"):
            await ours.check()
    with contextlib.suppress(RuntimeError):
        await ours.check()
        pytest.fail("a closed client checks nothing")
