"""The first hour with one's own server: what cannot heal ends at once, and says how to fix it.

Nothing here takes a second; without the rule that is tested, each would take a minute.
"""

from __future__ import annotations

import logging
import pickle
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest

from meeting_async import Event, MeetingClient, RetryPolicy, RetryScheduled, errors
from meeting_async.testing import MeetingServer
from meeting_async.transports import HttpTransport, HttpxTransport
from support.certificates import Authority
from support.peer import Connection, Peer, Script, answering, answering_once, greeting, reply
from support.ports import free_port
from support.proxies import needs_tinyproxy, tinyproxy
from support.sending import shown, within
from support.tables import in_turn

pytestmark = [pytest.mark.anyio]

SOON = 30.0
"""Seconds on a busy machine for what takes some milliseconds. Retries would take a minute."""

HERE, ELSEWHERE = "IP:127.0.0.1,DNS:localhost", "DNS:elsewhere.test"
PASSWORD = "a-pass-word-of-a-proxy"
PDF = b"%PDF-1.7"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Provide an authority of one's own."""
    return Authority(tmp_path_factory.mktemp("authority"))


def client_of(url: str, transport: Any = None, **settings: Any) -> MeetingClient:
    """Make a client."""
    settings |= {"transport": transport or HttpTransport()}
    return MeetingClient(url, api_key="devkey", api_secret="devsecret", **settings)


async def client_from_env(url: str, **variables: str) -> MeetingClient:
    """Make a client in a thread, as files are read."""
    given = {"MEETING_API_KEY": "devkey", "MEETING_API_SECRET": "devsecret", **variables}
    given["MEETING_BASE_URL"] = url
    return await anyio.to_thread.run_sync(MeetingClient.from_env, given)


async def upload(client: MeetingClient) -> object:
    """Upload a small document."""
    return await client.upload_whiteboard_file("room01", PDF, filename="deck.pdf")


async def ask(client: MeetingClient) -> object:
    """Ask for the room."""
    return await client.get_active_room_info("room01")


async def end(client: MeetingClient) -> object:
    """Make a call that must not be repeated."""
    return await client.call("room/endRoom", {"room_id": "room01"})


CALLS = (upload, ask, end)


async def failures(client: MeetingClient) -> list[errors.MeetingError]:
    """Return how each kind of call fails: after one attempt, with the facts of the call."""
    found = []
    async with client:
        for call in CALLS:
            with within(SOON), pytest.raises(errors.MeetingError) as caught:
                await call(client)
            assert len(caught.value.attempts) <= 1
            assert caught.value.room_id == "room01"
            found.append(caught.value)
    return found


async def assert_lasting(client: MeetingClient, *words: str) -> None:
    """Every call ends at once, with these words and nothing sent."""
    for error in await failures(client):
        assert isinstance(error, errors.TransportError)
        assert error.permanent
        for word in words:
            assert word in str(error)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        assert type(error)(*error.args).permanent


def both(verify: Any = True) -> list[Any]:
    """Return the default transport and one with a client of the user's."""
    context = ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify
    return [
        HttpTransport(verify=verify, trust_env=False),
        HttpxTransport(httpx.AsyncClient(verify=context, trust_env=False)),
    ]


async def work(url: str, context: ssl.SSLContext) -> None:
    """Make each call and the check, with the default transport and a client of the user's."""
    async with httpx.AsyncClient(verify=context, trust_env=False) as own:
        for transport in (HttpTransport(verify=context, trust_env=False), HttpxTransport(own)):
            async with client_of(url, transport) as client:
                for call in CALLS:
                    await call(client)
                found = await client.check(timeout=SOON)
                assert found.certificate.status in {"ok", "not checked"}


# --- certificates --------------------------------------------------------------------------------

Certificate = tuple[dict[str, Any], bool, tuple[str, ...]]
"""Of the server; whether its authority is trusted, and what is said."""
CERTIFICATES: dict[str, Certificate] = {
    "good": ({"names": HERE}, False, ("not trusted", "MEETING_CA_FILE", "SSL_CERT_FILE", "verify")),
    "expired": ({"names": HERE, "days": -1}, True, ("has expired", "renew it")),
    "other": ({"names": ELSEWHERE}, True, ("is for another name", "127.0.0.1", "base URL")),
}


@in_turn("certificate", CERTIFICATES.items())
async def test_a_certificate_that_is_not_accepted(
    authority: Authority, certificate: Certificate
) -> None:
    """The error says what is wrong with it, and who can do what; nothing is sent."""
    how, is_trusted, words = certificate
    with Peer(answering(reply()), tls=authority.sign(**how)) as peer:
        for transport in both(str(authority.file) if is_trusted else True):
            await assert_lasting(client_of(peer.url, transport), *words)
    assert peer.requests == []


NO_INTERMEDIATE = "the server does not send its intermediate certificate"
WRONG_AUTHORITY = "another authority has signed it than the one that was given"
GIVE_FILE = "give the file of that authority"


@pytest.fixture(scope="module")
def intermediate(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Provide an authority that another one has signed."""
    return authority.intermediate(tmp_path_factory.mktemp("intermediate"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Provide an authority that has signed nothing."""
    return Authority(tmp_path_factory.mktemp("stranger"))


async def test_an_intermediate_certificate_that_is_not_sent(
    authority: Authority, intermediate: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is to be fixed, however the right authority was given; then it works."""
    file = str(authority.file)
    with Peer(answering(reply()), tls=intermediate.sign(HERE)) as peer:
        given = [client_of(peer.url, HttpTransport(verify=file))]
        given.append(await client_from_env(peer.url, MEETING_CA_FILE=file))
        monkeypatch.setenv("SSL_CERT_FILE", file)
        for client in (*given, client_of(peer.url)):
            for error in await failures(client):
                assert f"{NO_INTERMEDIATE}: add that to the server's certificate file" in str(error)
                assert GIVE_FILE not in str(error)
        monkeypatch.delenv("SSL_CERT_FILE")
        for transport in (both(file)[1], both()[0]):  # nobody knows, or none was given
            await assert_lasting(client_of(peer.url, transport), NO_INTERMEDIATE, GIVE_FILE)
    with Peer(answering(reply()), tls=intermediate.sign(HERE, sends_authority=True)) as peer:
        async with client_of(peer.url, HttpTransport(verify=file)) as client:
            await upload(client)


@in_turn("chain", [("with its authority", True), ("alone", False)])
async def test_the_wrong_authority(authority: Authority, stranger: Authority, chain: bool) -> None:
    """If one was given, the error does not ask for one as if there were none."""
    context = authority.sign(HERE, sends_authority=chain)
    with Peer(answering(reply()), tls=context) as peer:
        client = client_of(peer.url, HttpTransport(verify=str(stranger.file)))
        for error in await failures(client):
            assert WRONG_AUTHORITY in str(error)
            assert (NO_INTERMEDIATE in str(error)) is not chain
            assert GIVE_FILE not in str(error)


async def test_a_certificate_that_breaks_the_rules(authority: Authority) -> None:
    """Python 3.13 is strict; the error says which rule, and what helps."""
    context = ssl.create_default_context(cafile=str(authority.file))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with Peer(answering(reply()), tls=authority.sign(HERE, is_strict=False)) as peer:
        for transport in both(context):
            words = ("Missing Authority Key Identifier", "Python 3.13", "VERIFY_X509_STRICT")
            await assert_lasting(client_of(peer.url, transport), *words)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        await work(peer.url, context)


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize("shown", ["none", "of another authority", "the right one"])
async def test_a_client_certificate_that_the_server_wants(
    authority: Authority, stranger: Authority, version: str, shown: str
) -> None:
    """None, or one that it refuses: that is said at once, with the setting that gives one.

    With TLS 1.3 the server says so after the client's handshake, in answer to its first request.
    """
    server = authority.sign(HERE)
    server.minimum_version = server.maximum_version = ssl.TLSVersion[version]
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(authority.file)
    signed_by = stranger if shown == "of another authority" else authority
    cert = None if shown == "none" else str(signed_by.client())
    transports: list[Any] = [HttpTransport(verify=str(authority.file), cert=cert)]
    if version == "TLSv1_2":  # httpx loses what the server says when it is still sending
        context = ssl.create_default_context(cafile=str(authority.file))
        if cert:
            context.load_cert_chain(cert)
        transports.append(HttpxTransport(httpx.AsyncClient(verify=context, trust_env=False)))
    with Peer(answering(reply()), tls=server) as peer:
        for transport in transports:
            client = client_of(peer.url, transport)
            if shown == "the right one":
                async with client:
                    await upload(client)
                continue
            await assert_lasting(client, "client certificate", *CERT_SETTINGS)
        if shown != "the right one":
            assert peer.requests == []
            client = client_of(peer.url, HttpTransport(verify=str(authority.file), cert=cert))
            async with client:
                found = await client.check(timeout=SOON)
                failed = found.certificate if version == "TLSv1_2" else found.server
            assert "client certificate" in failed.detail
            assert all(word in failed.fix for word in CERT_SETTINGS)
            given = {"MEETING_CA_FILE": str(authority.file)}
            given["MEETING_CERT_FILE"] = str(authority.client())
            async with await client_from_env(peer.url, **given) as client:
                await upload(client)


CERT_SETTINGS = "HttpTransport(cert=...)", "--cert", "MEETING_CERT_FILE"


async def test_a_name_with_a_dot_at_its_end(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Kubernetes: it is looked up with the dot, and TLS knows the name without it."""
    looked_up, told, find = [], [], socket.getaddrinfo

    def resolve(host: str | bytes, port: Any, *how: Any, **options: Any) -> Any:
        name = host if isinstance(host, str) else host.decode()
        looked_up.append(name)
        return find("127.0.0.1" if name == "meet.test." else name, port, *how, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    context = authority.sign("DNS:meet.test")
    context.sni_callback = lambda _, name, __: told.append(name)
    with Peer(answering(reply()), tls=context) as peer:
        url = peer.url.replace("127.0.0.1", "meet.test.")
        await work(url, ssl.create_default_context(cafile=str(authority.file)))
        heads = [request.head for request in peer.requests]
    assert set(looked_up) == {"meet.test."}
    assert set(told) == {"meet.test"}
    assert {b"meet.test." in head.lower() for head in heads} == {True}


async def test_the_file_of_the_authority_is_the_fix(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given to the transport, to ``from_env``, or in ``SSL_CERT_FILE``, unless that is ignored."""
    with Peer(answering(reply()), tls=authority.sign(HERE)) as peer:
        file = str(authority.file)
        made = [client_of(peer.url, HttpTransport(verify=file))]
        made.append(await client_from_env(peer.url, MEETING_CA_FILE=file))
        monkeypatch.setenv("SSL_CERT_FILE", file)
        for client in (*made, client_of(peer.url)):
            async with client:
                await upload(client)
        client = client_of(peer.url, HttpTransport(trust_env=False))
        await assert_lasting(client, "not trusted")


# --- the wrong port ------------------------------------------------------------------------------


def bad_request(connection: Connection) -> None:
    """Answer in clear whatever comes."""
    connection.sock.recv(65536)
    connection.send(reply(400))


Port = tuple[str, Script, tuple[str, ...]]
USE_TLS = "speaks TLS", "use https://"
PORTS: dict[str, Port] = {
    "https to http": ("https", bad_request, ("does not speak TLS", "base URL")),
    "https to ssh": ("https", greeting, ("does not speak TLS", "base URL")),
    "http to ssh": ("http", greeting, ("speaks no HTTP/1.1", "port of the base URL")),
    "http to TLS, an alert": ("http", answering_once(b"\x15\3\1\0\2\2\x46"), USE_TLS),
    "http to TLS, a handshake": ("http", answering_once(b"\x16\3\3\0\4\0\0\0\0"), USE_TLS),
}


@in_turn("port", PORTS.items())
async def test_a_port_of_another_protocol(port: Port) -> None:
    """The error says what is wrong: the scheme or the port."""
    scheme, script, words = port
    with Peer(script) as peer:
        for transport in both() if scheme == "https" else [None]:
            client = client_of(peer.url.replace("http", scheme), transport)
            await assert_lasting(client, *words)


PAGES = {
    "nginx": (
        b"<html><center>The plain HTTP request was sent to HTTPS port</center></html>",
        "use https://",
    ),
    "go": (b"Client sent an HTTP request to an HTTPS server.\n", "use https://"),
    "apache": (b"You're speaking plain HTTP to an SSL-enabled server port.<br />", "use https://"),
    "no certificate": (b"<center>No required SSL certificate was sent</center>", "cert=..."),
    "a wrong one": (b"<center>The SSL certificate error</center>", "cert=..."),
}


@in_turn("page", PAGES.items())
async def test_http_on_a_port_with_tls_that_answers_a_page(page: tuple[bytes, str]) -> None:
    """Not in the words of the server, but in ours; and a page about a client certificate."""
    content, words = page
    with Peer(answering(reply(400, content))) as peer:
        for error in await failures(client_of(peer.url)):
            assert type(error) is errors.UnexpectedReply
            assert words in str(error)


# --- names ---------------------------------------------------------------------------------------


NAMES = ["no-such-host.invalid", "a..invalid", *(f"{'a' * n}.invalid" for n in (64, 300))]


@in_turn("host", NAMES)
async def test_a_name_that_does_not_exist(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that is none; whoever resolves it."""
    _resolving(monkeypatch, socket.EAI_NONAME)
    for transport in both():
        words = (f"{host}:443", "check the", "base URL")
        await assert_lasting(client_of(f"https://{host}", transport), *words)


def _resolving(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def resolve(host: str | bytes, *_: object, **_options: object) -> Any:
        if isinstance(host, str):
            host.encode("idna")
        raise socket.gaierror(code, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


# --- what may heal -------------------------------------------------------------------------------


OUTAGES: dict[str, Script | None] = {
    "refusing": None,  # nobody listens
    "a proxy whose server is restarting": answering(reply(502, b"<html>Bad Gateway</html>")),
    "a load balancer without a server": answering(reply(503, b"<html>No server</html>")),
    "a server that is starting": Connection.reset,
    "unresolved": None,
}


@contextmanager
def out(outage: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Provide the URL of a server that may be back soon."""
    if script := OUTAGES[outage]:
        with Peer(script) as peer:
            yield peer.url
    elif outage == "refusing":
        yield f"http://127.0.0.1:{free_port()}"
    else:
        _resolving(monkeypatch, socket.EAI_AGAIN)
        yield "https://meet.test"


async def retried(url: str, transport: Any = None, before: Any = None) -> RetryScheduled:
    """Return the first retry of an upload, which is cancelled then."""
    found: list[RetryScheduled] = []
    with anyio.CancelScope() as scope:

        def told(event: Event) -> None:
            if isinstance(event, RetryScheduled):
                found.append(event)
                scope.cancel()

        async with client_of(url, transport, on_event=told) as client:
            if before is not None:
                await before(client)
            await upload(client)
    return found[0]


@in_turn("outage", OUTAGES)
async def test_what_may_heal_is_retried(
    outage: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first retry a warning says for how long; a question is repeated so many times."""
    policy = RetryPolicy(initial_delay=0.25, max_delay=0.25, max_attempts=2)
    with out(outage, monkeypatch) as url, caplog.at_level(logging.WARNING, "meeting_async"):
        event = await retried(url)
        (told,) = [record for record in caplog.records if "again in" in record.getMessage()]
        async with client_of(url, retry=policy) as client:
            with pytest.raises(errors.MeetingError) as caught:
                await ask(client)
    verdicts = {"never sent", "no answer"} if OUTAGES[outage] else {"never sent"}  # a race
    assert event.limit == "for up to 60 s"
    assert event.verdict in verdicts
    assert told.levelname == "WARNING"
    assert "room room01" in told.getMessage()
    assert "for up to 60 s" in told.getMessage()
    assert not getattr(caught.value, "permanent", False)
    assert "after 2 attempts in " in str(caught.value)


async def test_what_has_worked_may_be_restarting() -> None:
    """Once a server was reached, wrong answers are waited for: its port may have another owner."""
    scripts: list[Script] = [answering_once(reply()), greeting]
    with Peer(*scripts) as peer:
        event = await retried(peer.url, before=end)
    assert "speaks no HTTP/1.1" in event.reason


# --- pages of something else ---------------------------------------------------------------------


async def test_a_path_that_is_not_there() -> None:
    """Of a meeting server itself, which says so in nine bytes of text."""
    with MeetingServer().run() as url:
        for error in await failures(client_of(f"{url}/meet")):
            assert type(error) is errors.UnexpectedReply
            assert "Is this the meeting server, and the path right" in str(error)


# --- proxies -------------------------------------------------------------------------------------


def through(address: str) -> HttpTransport:
    """Make a transport through a proxy with a password."""
    return HttpTransport(proxy=f"http://me:{PASSWORD}@{address}")


async def test_a_proxy_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, without its password; so is the variable it comes from."""
    address = f"127.0.0.1:{free_port()}"
    for url in ("https://meet.test", "http://127.0.0.1:1"):
        words = (f"the proxy {address} cannot be reached", "check its address")
        await assert_lasting(client_of(url, through(address)), *words)
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{PASSWORD}@{address}")
    for error in await failures(client_of("https://meet.test")):
        assert f"the proxy {address} of HTTPS_PROXY cannot be reached" in str(error)
        assert PASSWORD not in shown(error)


@needs_tinyproxy
async def test_a_real_proxy(authority: Authority, tmp_path: Path) -> None:
    """With its password a tunnel to a TLS server and a plain one; else the error says what to do.

    Behind it a server may come back: it is tried again, and the proxy is named.
    """
    file = str(authority.file)
    with ExitStack() as stack:
        secure = stack.enter_context(Peer(answering(reply()), tls=authority.sign(HERE)))
        plain = stack.enter_context(Peer(answering(reply())))
        address = stack.enter_context(tinyproxy(tmp_path, PASSWORD))
        for peer in (secure, plain):
            proxy = f"http://me:{PASSWORD}@{address}"
            made = await client_from_env(peer.url, MEETING_CA_FILE=file, MEETING_PROXY=proxy)
            async with made as client:
                await upload(client)
            assert peer.requests[0].values(b"Via") == []  # by a tunnel
            for user, *words in (
                ("", f"the proxy {address} wants a user and a password", "http://user:password@"),
                ("me:wrong@", f"the proxy {address} refuses the user or the password"),
            ):
                transport = HttpTransport(proxy=f"http://{user}{address}", verify=file)
                await assert_lasting(client_of(peer.url, transport), *words)
        event = await retried(f"https://127.0.0.1:{free_port()}", through(address))
    assert f"the proxy {address} cannot reach " in event.reason
