"""Settings of the default transport: certificates, proxies, the environment."""

from __future__ import annotations

import base64
import contextlib
import functools
import gc
import logging
import pickle
import re
import socket
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
import httpx
import pytest

from meeting_async import MeetingClient, RetryPolicy, errors
from meeting_async._http.transport import origin_of
from meeting_async.transports import HttpTransport, HttpxTransport
from support.interpreter import Interpreter
from support.leaks import descriptors
from support.peer import (
    RECORD,
    Connection,
    Peer,
    Script,
    answering,
    greeting,
    in_another_process,
    relaying,
    reply,
    resetting,
    silent,
)
from support.ports import free_port
from support.programs import run_to_its_end
from support.sending import (
    MIB,
    SIGNATURE,
    Form,
    Wire,
    call,
    closing,
    either,
    over,
    shown,
    until,
    upload,
    within,
)

pytestmark = [pytest.mark.anyio]

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]
SECRET = "hunter2-secret"
both_kinds = pytest.mark.parametrize("kind", ["call", "upload"])

# --- many addresses ------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.{0}.{1}"], ids=["one", "ever new ones"])
async def test_ever_new_addresses_cost_no_memory(host: str) -> None:
    """A client that checks links sends requests to ever new URLs, also if nobody listens there."""
    used = []
    with in_another_process("sink") as url:
        transport = HttpTransport()
        async with closing(transport):
            for number in range(601):
                there = url.replace("127.0.0.1", host.format(*divmod(number, 250)))
                request = attrs.evolve(call(url), url=f"{there}/{number}.pdf")
                answered = contextlib.nullcontext()
                with answered if there == url else pytest.raises(errors.ConnectFailed):
                    await transport.send(request)
                if number % 200 == 0:
                    gc.collect()
                    used.append(sys.getallocatedblocks())
    assert used[-1] - used[1] < 400  # not one piece of memory for each of 400


# --- what is given -------------------------------------------------------------------------------


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "cert, too many": ({"cert": ("a", "b", SECRET, "d")}, "cert", "tuple"),
    "cert, too few": ({"cert": ("a",)}, "cert", "tuple"),
    "cert, beside a context": (
        {"cert": "a", "verify": ssl.create_default_context()},
        "cert",
        "load_cert_chain",
    ),
    "proxy, broken": ({"proxy": "http://[::1"}, "proxy", "http://host:port"),
    "proxy, with a path": ({"proxy": "http://proxy/path"}, "proxy", "http://host:port"),
    "proxy, no text": ({"proxy": httpx.URL("http://proxy")}, "proxy", "http://host:port"),
}


@pytest.mark.parametrize(("settings", "field", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_setting(settings: dict[str, Any], field: str, words: str) -> None:
    """One error when it is set: it names the field, shows no password and says what to do."""
    with pytest.raises(errors.ConfigurationError) as caught:
        HttpTransport(**settings)
    assert caught.value.field == field
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_httpx_is_not_imported(python: Interpreter, tmp_path: Path) -> None:
    """It takes long, and only its certificate authorities are needed."""
    code = "import meeting_async.transports, sys; sys.exit('httpx' in sys.modules)"
    assert python.run(code, tmp_path) == (0, "", "")


# --- certificates --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "kind"), [("two files", str), ("one file", Path), ("with a password", Path)]
)
async def test_certificates_of_ones_own(
    server: ssl.SSLContext,
    files: tuple[Path, Path],
    tmp_path: Path,
    form: str,
    kind: type[Any],
) -> None:
    """Authorities as text or path; a server that demands a certificate gets it."""
    server.verify_mode = ssl.CERT_REQUIRED
    key, cert = files
    given: Any = (str(cert), str(key))
    if form == "one file":
        both = tmp_path / "both.pem"
        both.write_bytes(key.read_bytes() + cert.read_bytes())
        given = str(both)
    elif form == "with a password":
        given = (str(cert), str(_locked(key, tmp_path)), SECRET)
    wire: Any = server, kind(cert)
    async with over(wire, answering(reply()), cert=given) as (transport, peer):
        for _ in range(2):
            assert (await transport.send(call(peer.url))).status == 200
    assert SECRET not in repr(transport)


def _locked(key: Path, directory: Path) -> Path:
    locked = directory / "locked.pem"
    command = ["openssl", "ec", "-in", str(key), "-out", str(locked), "-aes256", "-passout"]
    run_to_its_end([*command, f"pass:{SECRET}"])
    return locked


async def test_a_password_that_is_missing_or_wrong(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    """The error does not show it, and OpenSSL asks nobody for another one."""
    for more in ((), (f"not-{SECRET}",)):
        transport = HttpTransport(cert=(str(files[1]), str(_locked(files[0], tmp_path)), *more))
        async with closing(transport):
            with within(10), pytest.raises(errors.ConfigurationError) as caught:
                await transport.send(call("https://127.0.0.1:9"))
        assert caught.value.field == "cert"
        assert SECRET not in shown(caught.value)


@pytest.mark.parametrize("field", ["verify", "cert", "SSL_CERT_FILE"])
@pytest.mark.parametrize("content", [None, b"no certificate"])
async def test_a_file_that_cannot_be_used(
    field: str, content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting is wrong, and no second attempt makes it right: not a failure of the network."""
    path = tmp_path / "wrong.pem"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("NO_PROXY", "*")
    if field == "SSL_CERT_FILE":
        monkeypatch.setenv(field, str(path))
        transport = HttpTransport(trust_env=True)
    else:
        transport = HttpTransport(**{field: str(path)})  # type: ignore[arg-type]
    async with closing(transport):
        with pytest.raises(errors.ConfigurationError) as caught:
            await transport.send(call(f"https://127.0.0.1:{free_port()}"))
    assert caught.value.field == field


@pytest.mark.parametrize("given", ["verify", "SSL_CERT_FILE", "MEETING_CA_FILE", "nothing"])
@pytest.mark.parametrize("place", ["missing/keys.log", "."])
async def test_a_key_log_that_cannot_be_opened(
    given: str,
    place: str,
    files: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``SSLKEYLOGFILE`` is to blame, not the authorities that are loaded at the same time."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / place))
    url = f"https://127.0.0.1:{free_port()}"
    if given == "SSL_CERT_FILE":
        monkeypatch.setenv(given, str(files[1]))
    variables = {"MEETING_BASE_URL": url, "MEETING_API_KEY": "k", "MEETING_API_SECRET": "s"}
    variables["MEETING_CA_FILE"] = str(files[1]) if given == "MEETING_CA_FILE" else ""
    transport = HttpTransport(verify=str(files[1]) if given == "verify" else True)

    async def reach() -> None:
        made = None if given == "MEETING_CA_FILE" else transport
        client = await anyio.to_thread.run_sync(
            functools.partial(MeetingClient.from_env, variables, transport=made)
        )
        async with client:
            await client.get_active_room_info("room01")

    with pytest.raises(errors.ConfigurationError) as caught:
        await reach()
    assert caught.value.field == "SSLKEYLOGFILE"
    assert str(tmp_path)[:60] in str(caught.value)  # a long one is cut
    assert "cannot be written" in str(caught.value)


async def test_certificates_are_loaded_once_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests start at once; and not at all for plain HTTP."""
    threads: list[int] = []
    load = ssl.create_default_context

    def noting(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        threads.append(threading.get_ident())
        return load(*args, **kwargs)

    monkeypatch.setattr(ssl, "create_default_context", noting)

    async def fail(transport: HttpTransport, kind: str) -> None:
        with pytest.raises(errors.ConnectFailed):
            await transport.send(either(kind, f"https://127.0.0.1:{free_port()}"))

    async with over((None, True), answering(reply())) as (transport, peer):
        for kind in ("call", "upload"):
            await transport.send(either(kind, peer.url))
        assert threads == []
        async with anyio.create_task_group() as group:
            for kind in ("call", "upload") * 5:
                group.start_soon(fail, transport, kind)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


# --- proxies -------------------------------------------------------------------------------------


@pytest.mark.both_loops
@both_kinds
async def test_through_a_tunnel(wire: Wire, kind: str) -> None:
    """To ``http`` and to ``https``; the proxy, and nobody else, gets its password."""
    with Peer(answering(reply()), tls=wire[0]) as server, Peer(relaying(server.port)) as proxy:
        address = f"http://m%65:{SECRET}@127.0.0.1:{proxy.port}/"
        transport = HttpTransport(proxy=address, verify=wire[1])
        async with closing(transport):
            for _ in range(2):
                answer = await transport.send(either(kind, server.url))
                assert (answer.status, answer.content) == (200, RECORD)
            form = Form(2 * MIB)
            await transport.send(upload(server.url, form))
            assert form.is_complete
    assert len(server.requests) == 3
    for received in server.requests:
        assert received.values(b"Proxy-Authorization") == []
        assert received.values(b"Host") == [b"127.0.0.1:%d" % server.port]
        assert received.head.startswith(b"POST /auth/room/")
    for received in proxy.requests:
        assert received.head.startswith(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n" % server.port)
        assert received.values(b"Host") == [b"127.0.0.1:%d" % server.port]
        assert received.values(b"Proxy-Authorization") == [b"Basic bWU6aHVudGVyMi1zZWNyZXQ="]
        assert SIGNATURE.encode() not in received.head


@pytest.mark.parametrize("host", ["meet.invalid:80", "meet.invalid:8080", "[::1]:8080"])
async def test_the_name_that_a_proxy_gets(host: str) -> None:
    """With a port in any case, and in brackets if it is an address of IPv6."""
    with Peer(answering(reply(403))) as proxy:
        transport = HttpTransport(proxy=proxy.url)
        async with closing(transport):
            with pytest.raises(errors.ConnectFailed, match="403"):
                await transport.send(call(f"http://{host.removesuffix(':80')}"))
    assert proxy.requests[0].head.startswith(b"CONNECT %b HTTP/1.1\r\n" % host.encode())


def broken(connection: Connection) -> None:
    """Connect, and break in the handshake."""
    connection.read_head()
    connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
    connection.sock.recv(1)
    connection.reset()


def babbling(connection: Connection) -> None:
    """Answer what is no HTTP, for ever."""
    connection.read_head()
    while True:
        connection.send(b"SOCKS?\r\n\r\n")


def speaking(connection: Connection) -> None:
    """Answer for the server before the handshake."""
    connection.read_head()
    connection.send(b"HTTP/1.1 200 OK\r\n\r\n" + reply())
    connection.drain()


TUNNELS: dict[str, tuple[Script, str, bool]] = {
    "refusing": (answering(reply(407)), "refuses the user or the password (HTTP 407)", True),
    "forbidding": (answering(reply(403)), "(HTTP 403): let it connect to meet.invalid:443", True),
    "unreachable": (answering(reply(502)), "cannot reach meet.invalid:443 (HTTP 502)", False),
    "broken": (broken, "no connection", False),
    "resetting": (resetting(0), "breaks the connection", False),
    "greeting": (greeting, "did not answer in HTTP: is it an HTTP proxy", True),
    "babbling": (babbling, "did not answer in HTTP", True),
    "speaking": (speaking, "sent bytes before the TLS handshake", True),
    "silent": (silent, "no connection in time through the proxy", False),
}
"""What a proxy does, what is said, and whether that ends every call at once."""


@pytest.mark.parametrize(("script", "words", "permanent"), TUNNELS.values(), ids=TUNNELS)
async def test_a_tunnel_that_is_not_made(
    tls: Contexts,
    script: Script,
    words: str,
    permanent: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing was sent, nothing stays open, and the password of the proxy does not show."""
    caplog.set_level(logging.DEBUG)
    seconds = 0.2 if script is silent else 10
    with Peer(script) as proxy:
        transport = HttpTransport(proxy=f"http://me:{SECRET}@127.0.0.1:{proxy.port}", verify=tls[1])
        async with closing(transport):
            before = descriptors(proxy)
            form = Form()
            url = "https://meet.invalid:443"
            for request in (call(url), upload(url, form)):
                with pytest.raises(errors.ConnectFailed, match=re.escape(words)) as caught:
                    await transport.send(attrs.evolve(request, connect_timeout=seconds))
                assert caught.value.permanent is permanent
                named = f"the proxy 127.0.0.1:{proxy.port}" in caught.value.reason
                assert named is (script is not broken)
            await until(lambda: not proxy.open)
            assert descriptors(proxy) == before
    assert caught.value.host == "meet.invalid:443"
    assert form.taken == caught.value.sent == 0
    seen = shown(caught.value) + repr(transport) + caplog.text
    assert SECRET not in seen
    assert "aHVudGVyMi1zZWNyZXQ" not in seen


def repeating_in_the_tunnel(connection: Connection) -> None:
    """Make the tunnel, and answer in it with what was asked for."""
    connection.read_head()
    asked = connection.request.head
    connection.send(b"HTTP/1.1 200 OK\r\n\r\n")
    connection.read_head()
    line = b"X-Asked: " + asked.replace(b"\r\n", b" ")
    connection.send(reply(404, b"<pre>" + asked, [line]))


def refusing_in_its_words(connection: Connection) -> None:
    """Refuse, and repeat the request in the reason."""
    connection.read_head()
    words = connection.request.head.replace(b"\r\n", b" ")
    connection.send(b"HTTP/1.1 502 Denied " + words + b"\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize("is_httpx", [False, True], ids=["in the tunnel", "refusing, httpx"])
async def test_a_proxy_that_repeats_its_password(
    is_httpx: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever of the reply is kept, shown or logged here has no password in it."""
    caplog.set_level(logging.DEBUG, "meeting_async")
    with Peer(refusing_in_its_words if is_httpx else repeating_in_the_tunnel) as proxy:
        url = f"http://me:{SECRET}@127.0.0.1:{proxy.port}"
        scheme = "https" if is_httpx else "http"
        own = HttpxTransport(httpx.AsyncClient(proxy=url)) if is_httpx else HttpTransport(proxy=url)
        how: dict[str, Any] = {"transport": own, "retry": RetryPolicy(max_attempts=1, max_outage=0)}
        how |= {"api_key": "key", "api_secret": "secret", "allow_plaintext": True}
        async with MeetingClient(f"{scheme}://meet.invalid", **how) as client:
            with pytest.raises(errors.MeetingError) as caught:
                await client.call("room/isRoomActive", {"room_id": "room01"})
        if is_httpx:
            await own.aclose()
    seen = shown(caught.value) + caplog.text + repr(pickle.dumps(caught.value))
    assert base64.b64encode(f"me:{SECRET}".encode()).decode() not in seen
    assert SECRET not in seen


@pytest.mark.parametrize(
    ("code", "permanent"), [(socket.EAI_AGAIN, False), (socket.EAI_NONAME, True)]
)
async def test_a_proxy_whose_name_is_not_found(
    code: int, permanent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be found later only if the resolver says so."""

    def resolve(*_: object, **_options: object) -> Any:
        raise socket.gaierror(code, "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    transport = HttpTransport(proxy="http://proxy.invalid")
    async with closing(transport):
        with pytest.raises(errors.ConnectFailed, match=r"proxy\.invalid:80 cannot") as caught:
            await transport.send(call("http://meet.invalid"))
    assert caught.value.permanent is permanent


# --- the environment -----------------------------------------------------------------------------

PROXY_VARIABLES = ["http_proxy", "https_proxy", "all_proxy", "no_proxy"]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Begin without variables for proxies."""
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("REQUEST_METHOD", raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("variables", "trust_env", "through"),
    [
        ({"HTTP_PROXY": "{}"}, True, True),
        ({"HTTP_PROXY": "{}"}, False, False),
        ({"HTTPS_PROXY": "{}"}, True, False),
        ({"ALL_PROXY": "{}"}, True, True),
        ({"ALL_PROXY": "127.0.0.1:{port}"}, True, True),
        ({"ALL_PROXY": "{}", "NO_PROXY": "other.invalid"}, True, True),
        ({"ALL_PROXY": "{}", "NO_PROXY": "*"}, True, False),
        ({"ALL_PROXY": "{}", "NO_PROXY": "other.invalid,meet.invalid"}, True, False),
        ({"HTTP_PROXY": "{}", "REQUEST_METHOD": "GET"}, True, False),  # httpoxy
    ],
    ids=str,
)
@pytest.mark.parametrize("host", ["meet.invalid", "meet.invalid."])
async def test_the_proxy_of_the_environment(
    environment: pytest.MonkeyPatch,
    variables: dict[str, str],
    trust_env: bool,
    through: bool,
    host: str,
) -> None:
    """As ``urllib.request`` reads it, unless the environment does not count.

    A dot at the end of a name changes nothing.
    """
    script = answering(reply(502))
    async with over((None, True), script, trust_env=trust_env) as (transport, proxy):
        for name, value in variables.items():
            environment.setenv(name, value.format(proxy.url, port=proxy.port))
        with pytest.raises(errors.ConnectFailed) as caught:
            await transport.send(call(f"http://{host}"))
        assert ("HTTP 502" in caught.value.reason) is through
    assert proxy.connected == through


@pytest.mark.parametrize(
    ("url", "addresses", "is_exempt"),
    [
        ("http://[2001:db8::1]", "2001:db8::1", True),
        ("http://[2001:db8::1]", "other.invalid, [2001:DB8:0::1]", True),
        ("http://[2001:db8::1]", "2001:db8::/32", True),
        ("http://[2001:db8::1]", "2001:db8::/128,10.0.0.0/8", False),
        ("http://[2001:db8::1]:8080", "[2001:db8::1]:8080", True),
        ("http://[2001:db8::1]:8080", "[2001:db8::1]:80", False),
        ("http://192.0.2.7", "192.0.2.7", True),
        ("http://192.0.2.7", "192.0.2.0/24", True),
        ("http://192.0.2.7", "192.0.2.1/24", True),
        ("http://192.0.2.7", "192.0.3.0/24,192.0.2.70", False),
        ("http://192.0.2.7:8080", "192.0.2.7:8080", True),
        ("http://192.0.2.7", "192.0.2.7:80", True),
        ("http://192.0.2.7:8080", "192.0.2.7:80", False),
        ("https://192.0.2.7", "192.0.2.7:443,/,[,x:y:z", True),
        ("http://192.0.2.7.invalid", "192.0.2.0/24", False),
    ],
)
async def test_an_address_that_is_reached_without_a_proxy(
    environment: pytest.MonkeyPatch, url: str, addresses: str, is_exempt: bool
) -> None:
    """``NO_PROXY`` may have addresses, with a port or without, and networks, as for requests."""
    environment.setenv("ALL_PROXY", "http://proxy.invalid:3128")
    environment.setenv("NO_PROXY", addresses)
    transport = HttpTransport()
    async with closing(transport):
        assert ((await origin_of(transport, url)).proxy is None) is is_exempt


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_loopback_is_reached_without_a_proxy(
    environment: pytest.MonkeyPatch, tmp_path: Path, wire: Wire, host: str
) -> None:
    """Whatever the environment says; nor does ``.netrc`` change a request."""
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine {host} login me password it\n")
    environment.setenv("NETRC", str(netrc))
    with Peer(answering(reply(502))) as proxy:
        for name in PROXY_VARIABLES[:3]:
            environment.setenv(name.upper(), proxy.url)
        async with over(wire, answering(reply())) as (transport, peer):
            await transport.send(call(peer.url.replace("127.0.0.1", host)))
    assert (proxy.connected, peer.connected) == (0, 1)
    assert not any(received.values(b"Authorization") for received in peer.requests)
