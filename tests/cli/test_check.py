"""``check``; and ``--ca-file`` and ``--proxy``, with which every command reaches a server."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from meeting_async.testing import MeetingServer
from support.certificates import make_certificate
from support.command_line import PDF, call
from support.peer import Peer, answering, relaying, reply
from support.ports import free_port

Capture = pytest.CaptureFixture[str]

COMMANDS = ["check room01", "room room01", "upload room01 a.pdf", "batch m.csv"]
every_command = pytest.mark.parametrize("command", COMMANDS)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export key and secret, and write a manifest."""
    monkeypatch.setenv("MEETING_API_KEY", "key")
    monkeypatch.setenv("MEETING_API_SECRET", "secret")
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\n")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a key and a certificate that no authority knows."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def secure(certificate: tuple[Path, Path], credentials: None) -> Iterator[Peer]:
    """Run a server with that certificate, which accepts everything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    with Peer(answering(reply()), tls=context) as peer:
        yield peer


# --- check ---------------------------------------------------------------------------------------


def test_a_line_for_each_step(server: MeetingServer, capsys: Capture) -> None:
    """Its name, ok, and what was seen; exit code 0."""
    done = call(capsys, "check", "room01")
    lines = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert (done.code, done.err) == (0, "")
    assert [*lines][:4] == ["name", "address", "proxy", "certificate"]
    assert lines["secret"].startswith("ok ")
    assert "room free    ok           no other upload" in done.out
    assert not server.rooms["room01"].received


def test_what_failed_has_the_fix(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its line; the steps after it are not called ok. Exit code 1; ``-q`` prints it alone."""
    monkeypatch.setenv("MEETING_API_SECRET", "wrong-secret")
    done = call(capsys, "check", "room01")
    assert done.code == 1
    assert "secret       failed       HTTP 401" in done.out
    assert "give the secret that belongs to this key" in done.out
    assert "room free    not checked  an earlier step failed" in done.out
    assert "wrong-secret" not in done.out + done.err
    quiet = call(capsys, "check", "room01", "-q")
    assert (quiet.code, len(quiet.out.splitlines())) == (1, 1)


def test_for_programs(server: MeetingServer, capsys: Capture) -> None:
    """One object with all findings."""
    (found,) = call(capsys, "check", "--json").objects
    assert (found["type"], found["ok"]) == ("server_check", True)
    assert found["findings"]["key"] == {"status": "ok", "detail": "known to the server", "fix": ""}
    done = call(capsys, "check", "nowhere", "--json")
    assert (done.code, done.objects[0]["ok"]) == (1, False)
    assert done.objects[0]["findings"]["room_active"]["status"] == "failed"


def test_the_server_of_the_option(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--url`` is checked, not the one of the environment; a mistake in it is blamed on it."""
    monkeypatch.setenv("MEETING_BASE_URL", "https://meet.invalid")
    assert call(capsys, "check", "--url", server.url).code == 0
    done = call(capsys, "check", "--url", f"http://127.0.0.1:{free_port()}")
    assert (done.code, "address      failed       Connection refused" in done.out) == (1, True)
    done = call(capsys, "check", "--url", "x")
    assert (done.code, "error: --url is not an http(s) URL" in done.err) == (2, True)
    monkeypatch.setenv("MEETING_BASE_URL", "x")
    assert "error: MEETING_BASE_URL is not an" in call(capsys, "check").err


# --- authorities and proxies ---------------------------------------------------------------------


@every_command
def test_a_proxy_of_yours(credentials: None, capsys: Capture, command: str) -> None:
    """``--proxy`` counts for loopback and plain http, too: it was asked for. It makes a tunnel."""
    with Peer(answering(reply())) as server, Peer(relaying(server.port)) as proxy:
        url = f"http://127.0.0.1:{free_port()}"
        done = call(capsys, *command.split(), "--url", url, "--proxy", proxy.url)
    assert done.code == 0, done
    tunnel = f"CONNECT {url.removeprefix('http://')} ".encode()
    assert proxy.requests
    assert all(one.head.startswith(tunnel) for one in proxy.requests)


@every_command
def test_one_by_option_and_one_by_variable(
    secure: Peer,
    certificate: tuple[Path, Path],
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    """An option replaces its own variable, not the other."""
    with Peer(relaying(secure.port)) as proxy:
        monkeypatch.setenv("MEETING_PROXY", proxy.url)
        arguments = [*command.split(), "--url", "https://127.0.0.1"]
        done = call(capsys, *arguments, "--ca-file", certificate[1])
        assert (done.code, bool(proxy.requests)) == (0, True)
        monkeypatch.setenv("MEETING_PROXY", f"http://127.0.0.1:{free_port()}")
        monkeypatch.setenv("MEETING_CA_FILE", str(certificate[1]))
        assert call(capsys, *arguments, "--proxy", proxy.url).code == 0


MISTAKES = [
    ("--ca-file", "nope.pem", "cannot be loaded: No such file or directory"),
    ("--ca-file", "a.pdf", "cannot be loaded: "),
    ("--proxy", "socks5://127.0.0.1", "is not the URL of a plain HTTP proxy"),
]


VARIABLES = [
    ("HTTPS_PROXY=socks5://127.0.0.1:1", [], "is not the URL of a plain HTTP proxy"),
    (
        "MEETING_CA_FILE=a.pdf",
        ["--proxy", "http://127.0.0.1:1"],
        "MEETING_CA_FILE cannot be",
    ),
]


@every_command
@pytest.mark.parametrize(("variable", "options", "told"), VARIABLES)
@pytest.mark.usefixtures("credentials")
def test_mistakes_in_variables(
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    variable: str,
    options: list[str],
    told: str,
) -> None:
    """Exit code 2, and the message once, however many documents there are."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nroom02,b.pdf\nroom03,c.pdf\n")
    monkeypatch.setenv(*variable.split("="))
    done = call(capsys, *command.split(), "--url", "https://meet.invalid", *options)
    assert (done.code, done.err.count(told)) == (2, 1), done.err


@every_command
def test_mistakes(server: MeetingServer, credentials: None, capsys: Capture, command: str) -> None:
    """Told by the option's name and value before anything is sent."""
    for option, value, told in MISTAKES:
        done = call(capsys, *command.split(), option, value)
        (line,) = done.err.splitlines()
        assert (done.code, server.requests, PDF) == (2, [], Path("a.pdf").read_bytes())
        assert f"{option} {told}" in line
        assert value in line
