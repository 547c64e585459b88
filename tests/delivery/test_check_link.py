"""``check_link=True``: what the host of a link gets, and what is said of its answer."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

from meeting_async import Document, MeetingClient
from meeting_async.errors import (
    ConfigurationError,
    DeadlineExceeded,
    DocumentTooLarge,
    DocumentUnreadable,
    LinkRefused,
    MeetingError,
)
from meeting_async.transports import HttpTransport, HttpxTransport, Transport
from support.certificates import Authority, make_certificate
from support.fake_rooms import Scripted, accepted, client_without_checks
from support.peer import Connection, Peer, Script, answering, reply, resetting_at_once, silent
from support.tables import in_turn
from support.telling import Told, containing, unfit

pytestmark = [pytest.mark.anyio]

QUERY = "token=hush-hush-hush"
PUBLIC = [
    *("93.184.215.14", "[2606:2800:21f:cb07:6820:80da:af6b:8b2c]"),
    *("[64:ff9b::93.184.215.14]", "[::ffff:0:93.184.215.14]", "[::ffff:93.184.215.14]"),
]
PRIVATE = [
    *("127.0.0.1", "2130706433", "localhost", "10.0.0.1", "0.0.0.0", "100.64.0.1"),
    *("[::1]", "[fec0::1]", "[::ffff:10.0.0.1]", "[2002:7f00:1::]", "[64:ff9b::7f00:1]"),
    *("[::10.0.0.1]", "[::127.0.0.1]", "[::a9fe:a9fe]", "[::]", "[2001:0:7f00:1::]"),
    *("[::ffff:0:10.0.0.1]", "[::ffff:0:127.0.0.1]", "[::ffff:0:a9fe:a9fe]"),
    *("[64:ff9b:1::7f00:1]", "[64:ff9b:1::5db8:d70e]", "[64:ff9b:1:ffff::]"),
    "224.0.0.1",
]
HEADERS = {b"host", b"user-agent", b"accept"}
"""All that HEAD has."""
SETTINGS: dict[str, Any] = {"check_link": True, "max_size_whiteboard_file": 1000}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Begin without proxies and authorities."""
    for name in [*os.environ]:
        if name.lower().endswith("_proxy") or name.startswith("SSL_CERT_"):
            monkeypatch.delenv(name)
    return monkeypatch


def head(
    status: int = 200, kind: bytes | None = b"application/pdf", length: bytes = b"99"
) -> Script:
    """Answer HEAD."""
    lines = [b"HTTP/1.1 %d OK" % status, b"Content-Length: " + length]
    lines += [b"Content-Type: " + kind] if kind else []
    return answering(b"\r\n".join([*lines, b"Location: /?" + QUERY.encode(), b"", b""]))


def tunnel_to(script: Script) -> Script:
    """Play a proxy, and behind it the host of a link, whatever its address."""

    def play(connection: Connection) -> None:
        connection.read_head()
        connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
        script(connection)

    return play


async def put(client: Any, url: str, told: Told, **how: Any) -> Any:
    """Upload a link."""
    link = Document.from_link(f"{url}/deck.pdf?{QUERY}")
    return await told.of(client.upload_whiteboard_file("room01", link, on_event=told, **how))


ANSWERS: list[tuple[Script, type[MeetingError] | None, str]] = [
    (head(), None, ""),
    (head(kind=b"application/vnd.ms-powerpoint; x=y"), None, ""),
    (head(length=b"1000"), None, ""),
    (head(length=b"1001"), DocumentTooLarge, "1,001 bytes"),
    *((head(status), LinkRefused, "redirects") for status in (301, 307)),
    *((head(status), LinkRefused, f"HTTP {status}; is it") for status in (401, 405)),
    *((head(status), DocumentUnreadable, f"HTTP {status}") for status in (408, 429, 500)),
    (head(403), LinkRefused, "HTTP 403; if it is presigned, for GET only, upload the object as a"),
    (head(403), LinkRefused, "stream instead: the meeting server may first send HEAD"),
    (head(kind=b"text/html; charset=utf-8; " + QUERY.encode()), LinkRefused, "text/html"),
    (head(kind=b"\x9b31m"), LinkRefused, "missing"),
    (head(kind=b"image/png"), LinkRefused, "image/png"),
    (head(kind=None), LinkRefused, "missing"),
    (head(length=b"junk"), DocumentUnreadable, "HEAD"),
    (answering(b"\x15\x03\x03 alert"), LinkRefused, "use https:// in the link"),
    (resetting_at_once, DocumentUnreadable, "HEAD from here has no answer"),
    (silent, DeadlineExceeded, "checking the link"),
]  # fmt: skip


@in_turn("answer", [(str(number), row) for number, row in enumerate(ANSWERS)])
async def test_what_is_said_of_an_answer(
    answer: tuple[Script, type[MeetingError] | None, str], environment: pytest.MonkeyPatch
) -> None:
    """Asked once with HEAD: direct, public, a document type, not too large; through the proxy."""
    script, kind, words = answer
    told, transport = Told(), Scripted(accepted())
    settings = {**SETTINGS, "default_headers": {"X-Tenant": "school"}}
    with Peer(tunnel_to(script)) as proxy, told.listening():
        environment.setenv("HTTP_PROXY", proxy.url)
        async with client_without_checks(transport, **settings) as client:
            limit = {"timeout": 0.5} if script is silent else {}
            result = await put(client, f"http://{PUBLIC[0]}", told, **limit)
    assert type(result) is kind if kind else result.size is None
    assert words in str(result)
    assert len(transport.visits) == (kind is None)
    assert proxy.requests[0].head.startswith(b"CONNECT 93.184.215.14:80 ")
    for asked in proxy.requests[1:]:
        line, *headers = asked.head.lower().split(b"\r\n")[:-2]
        assert line == b"head /deck.pdf?%b http/1.1" % QUERY.encode()
        assert {header.partition(b":")[0] for header in headers} == HEADERS
    assert containing(told.texts(), [QUERY]) == []
    assert unfit(told) == []


@pytest.mark.parametrize(
    ("host", "settings"),
    [
        *((host, SETTINGS) for host in [*PUBLIC, *PRIVATE]),
        (PUBLIC[0], {}),
        (PRIVATE[0], {}),
    ],
)
async def test_which_links_are_asked(
    host: str, settings: dict[str, Any], environment: pytest.MonkeyPatch
) -> None:
    """Public ones, with ``check_link=True`` only; a private address is refused, unasked."""
    is_refused = bool(settings) and host in PRIVATE
    transport, told = Scripted(accepted()), Told()
    with Peer(tunnel_to(head())) as proxy:
        environment.setenv("HTTP_PROXY", proxy.url)
        async with client_without_checks(transport, **settings) as client:
            result = await put(client, f"http://{host}", told)
    assert ("its host is not public" in str(result)) is is_refused
    assert len(proxy.requests) == (2 if settings and not is_refused else 0)
    assert len(transport.visits) == (not is_refused)


LOOKUPS: list[tuple[str, bool, type[MeetingError] | None]] = [
    ("127.0.0.1", False, LinkRefused),
    ("127.0.0.1", True, LinkRefused),
    ("unknown", False, LinkRefused),
    ("unknown", True, None),
    ("later", False, DocumentUnreadable),
    ("later", True, DocumentUnreadable),
    ("slow", True, DocumentUnreadable),
]


@in_turn("lookup", [(f"{where} {proxied}", (where, proxied, k)) for where, proxied, k in LOOKUPS])
async def test_a_name_that_leads_to_this_machine(
    lookup: tuple[str, bool, type[MeetingError] | None], environment: pytest.MonkeyPatch
) -> None:
    """Only an address that was checked is asked; a name that does not exist is left to a proxy."""
    where, is_proxied, kind = lookup
    found, ended = socket.getaddrinfo, threading.Event()
    codes = {"unknown": socket.EAI_NONAME, "later": socket.EAI_AGAIN}

    def look_up(host: str, port: int, **facts: Any) -> Any:
        if host != "files.example":
            return found(host, port, **facts)
        if where == "slow":
            ended.wait(10)
        if where in codes:
            raise socket.gaierror(codes[where], where)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]

    with Peer(tunnel_to(head()) if is_proxied else head()) as peer:
        environment.setattr(socket, "getaddrinfo", look_up)
        if is_proxied:
            environment.setenv("HTTP_PROXY", peer.url)
        async with client_without_checks(Scripted(accepted()), **SETTINGS) as client:
            result = await put(client, f"http://files.example:{peer.port}", Told())
        ended.set()
    assert type(result) is kind if kind else result.size is None
    assert bool(peer.requests) is (kind is None)


async def test_images_that_are_allowed(environment: pytest.MonkeyPatch) -> None:
    """With ``allow_images=True`` a link may lead to one."""
    with Peer(tunnel_to(head(kind=b"image/png"))) as proxy:
        environment.setenv("HTTP_PROXY", proxy.url)
        async with client_without_checks(
            Scripted(accepted()), allow_images=True, **SETTINGS
        ) as client:
            assert (await put(client, f"http://{PUBLIC[0]}", Told())).size is None


@pytest.mark.parametrize(
    ("address", "kind", "words"),
    [
        ("socks5://me:%s@127.0.0.1:1", ConfigurationError, "do without check_link=True"),
        ("http://me:%s@127.0.0.1:9", DocumentUnreadable, "of HTTP_PROXY cannot be reached"),
    ],
)
async def test_a_proxy_of_the_environment_that_cannot_be_used(
    environment: pytest.MonkeyPatch, address: str, kind: type[MeetingError], words: str
) -> None:
    """The error names it; no password."""
    environment.setenv("HTTP_PROXY", address % QUERY)
    told = Told()
    async with client_without_checks(Scripted(accepted()), **SETTINGS) as client:
        result = await put(client, f"http://{PUBLIC[0]}", told)
    assert containing(told.texts(), [QUERY]) == []
    assert type(result) is kind
    assert "HTTP_PROXY" in str(result)
    assert words in str(result)


# --- what belongs to the meeting server ----------------------------------------------------------


@asynccontextmanager
async def transport_of(
    name: str, context: ssl.SSLContext, server: Authority, cert: tuple[str, str]
) -> AsyncIterator[Transport]:
    """Make a transport that has much to lose: a certificate, a password, headers, cookies."""
    if name.startswith("own"):
        yield HttpTransport(verify=name != "own, lax" and str(server.file), cert=cert)
        return
    module: Any = {"httpx": httpx, "httpx2": httpx2}[name]
    context.load_cert_chain(*cert)
    how = {"auth": ("me", "it"), "headers": {"X-Api-Key": "k"}, "cookies": {"sid": "c"}}
    async with module.AsyncClient(verify=context, **how) as client:
        yield HttpxTransport(client)


@in_turn("name", ["own", "own, lax", "httpx", "httpx2"])
async def test_the_host_of_a_link_gets_nothing_of_the_meeting_servers(
    name: str, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No certificate, authorization, header or cookie; and the usual authorities apply to it."""
    for folder in ("server", "link"):
        (tmp_path / folder).mkdir()
    ours, usual = Authority(tmp_path / "server"), Authority(tmp_path / "link")
    key, cert = make_certificate(tmp_path, "client")
    link_side = usual.sign("DNS:localhost")
    link_side.verify_mode = ssl.CERT_OPTIONAL
    link_side.load_verify_locations(cert)
    certificates: list[Any] = []

    def watching(connection: Connection) -> None:
        certificates.append(connection.sock.getpeercert())  # type: ignore[attr-defined]  # of TLS
        head()(connection)

    environment.setenv("SSL_CERT_FILE", str(usual.file))
    context = ssl.create_default_context(cafile=str(ours.file))
    if name != "own":  # these trust both, and so would get as far as the link
        context.load_verify_locations(usual.file)
    with (
        Peer(answering(reply()), tls=ours.sign("IP:127.0.0.1")) as server,
        Peer(watching, tls=link_side) as host,
    ):
        async with transport_of(name, context, ours, (str(cert), str(key))) as transport:
            headers = {"X-Tenant": "school"}
            keys: dict[str, Any] = {"api_key": "k", "api_secret": "s", "check_link": True}
            async with MeetingClient(
                server.url, transport=transport, default_headers=headers, **keys
            ) as client:
                receipt = await put(client, f"https://localhost:{host.port}", Told())
    assert receipt.status_code == "SUCCESS"
    assert not any(certificates)
    (asked,) = host.requests
    names = {line.partition(b":")[0].lower() for line in asked.head.split(b"\r\n")[1:-2]}
    assert names == HEADERS
    assert server.requests[-1].values(b"X-Tenant") == [b"school"]


async def test_a_certificate_of_a_link_that_is_not_trusted(tmp_path: Path) -> None:
    """An authority for the meeting server counts for that one only, and no hint says otherwise."""
    ours = Authority(tmp_path)
    with Peer(head(), tls=ours.sign("DNS:localhost,IP:127.0.0.1")) as peer:
        transport = HttpTransport(verify=str(ours.file))
        keys: dict[str, Any] = {"api_key": "k", "api_secret": "s", "check_link": True}
        async with MeetingClient(peer.url, transport=transport, **keys) as client:
            result = await put(client, f"https://localhost:{peer.port}", Told())
    assert type(result) is LinkRefused
    assert "its certificate is not trusted" in str(result)
    assert "MEETING_CA_FILE" not in str(result)
