"""``check``; and ``--ca-file`` and ``--proxy``, with which every command reaches a server."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from meeting_async.testing import MeetingServer
from support.certificates import make_certificate
from support.command_line import call
from support.peer import Peer, answering, relaying, reply
from support.ports import free_port

Capture = pytest.CaptureFixture[str]

COMMANDS = ["check room01", "room room01", "upload room01 a.pdf", "batch m.csv"]


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export key and secret, and write a manifest."""
    monkeypatch.setenv("MEETING_API_KEY", "key")
    monkeypatch.setenv("MEETING_API_SECRET", "secret")
    rows = "".join(f"room0{number},a.pdf\n" for number in range(3))
    Path("m.csv").write_text(f"room_id,document\n{rows}")


# --- check ---------------------------------------------------------------------------------------


def test_a_line_for_each_step(server: MeetingServer, capsys: Capture) -> None:
    """Its name, ok, and what was seen; exit code 0."""
    done = call(capsys, "check", "room01")
    lines = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert (done.code, done.err) == (0, "")
    assert [*lines][:4] == ["name", "address", "proxy", "certificate"]
    assert lines["secret"].startswith("ok ")
    assert "room free    ok           no other upload" in done.out
    assert ": \n" not in done.out  # what is ok has nothing to fix
    assert not server.rooms["room01"].received


def test_what_failed_has_the_fix(
    server: MeetingServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its line; the steps after it are not called ok. Exit code 1; ``-q`` prints it alone."""
    monkeypatch.setenv("MEETING_API_SECRET", "wrong-secret")
    done = call(capsys, "check", "room01")
    assert done.code == 1
    assert "secret       failed       HTTP 401" in done.out
    assert "The API secret differs from the server's" in done.out
    assert "room free    not checked  an earlier step failed" in done.out
    assert "wrong-secret" not in done.out + done.err
    quiet = call(capsys, "check", "room01", "-q")
    assert (quiet.code, len(quiet.out.splitlines())) == (1, 1)


def test_check_with_json(server: MeetingServer, capsys: Capture) -> None:
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
    monkeypatch.delenv("MEETING_BASE_URL")
    assert "hint: `meeting-async serve` runs a server" in call(capsys, "check").err


# --- authorities and proxies ---------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_a_proxy_given_by_option(credentials: None, capsys: Capture, command: str) -> None:
    """``--proxy`` counts for loopback and plain http, too: it was asked for. It makes a tunnel."""
    with Peer(answering(reply())) as server, Peer(relaying(server.port)) as proxy:
        url = f"http://127.0.0.1:{free_port()}"
        done = call(capsys, *command.split(), "--url", url, "--proxy", proxy.url)
    assert done.code == 0, done
    tunnel = f"CONNECT {url.removeprefix('http://')} ".encode()
    assert proxy.requests
    assert all(one.head.startswith(tunnel) for one in proxy.requests)


def test_an_option_replaces_only_its_own_variable(
    credentials: None, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An option replaces its own variable, not the other."""
    key, certificate = make_certificate(tmp_path)  # no authority knows it
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificate)
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    with Peer(answering(reply()), tls=context) as secure, Peer(relaying(secure.port)) as proxy:
        monkeypatch.setenv("MEETING_PROXY", proxy.url)
        arguments = ("room", "room01", "--url", "https://127.0.0.1")
        done = call(capsys, *arguments, "--ca-file", certificate, "--cert", both)
        assert (done.code, bool(proxy.requests)) == (0, True)
        monkeypatch.setenv("MEETING_PROXY", f"http://127.0.0.1:{free_port()}")
        monkeypatch.setenv("MEETING_CA_FILE", str(certificate))
        monkeypatch.setenv("MEETING_CERT_FILE", str(both))
        assert call(capsys, *arguments, "--proxy", proxy.url).code == 0


NO_PROXY = "is not the URL of a plain HTTP proxy"
MISTAKES = {
    "authorities": ("", "--ca-file nope.pem", "--ca-file cannot be loaded: No such file or "),
    "certificate": ("", "--cert nope.pem", "--cert cannot be loaded: No such file or "),
    "certificate without a key": (
        "MEETING_CERT_FILE=a.pdf", "", "MEETING_CERT_FILE cannot be loaded: "
    ),
    "proxy": ("", "--proxy socks5://127.0.0.1", f"--proxy {NO_PROXY}"),
    "proxy of the system": ("HTTPS_PROXY=socks5://127.0.0.1:1", "", NO_PROXY),
    "authorities of a variable, and a proxy": (
        "MEETING_CA_FILE=a.pdf", "--proxy http://127.0.0.1:1", "MEETING_CA_FILE cannot be"
    ),
    "proxy of a variable, and an empty one": (
        "MEETING_PROXY=socks5://[::1]", "--proxy=", f"MEETING_PROXY {NO_PROXY}"
    ),
}  # fmt: skip
"""A variable and an option, of which one is wrong, and what is told."""


@pytest.mark.parametrize("command", ["check room01", "batch m.csv"])
@pytest.mark.parametrize(("variable", "option", "told"), MISTAKES.values(), ids=MISTAKES)
@pytest.mark.usefixtures("credentials")
def test_mistakes_of_check(
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    variable: str,
    option: str,
    told: str,
) -> None:
    """Exit code 2, and one line with name and value, however many documents there are."""
    if variable:
        monkeypatch.setenv(*variable.split("="))
    done = call(capsys, *command.split(), "--url", "https://meet.invalid", *option.split())
    (line,) = [line for line in done.err.splitlines() if told in line]
    assert (done.code, variable.partition("=")[2] in line) == (2, True), done.err
    assert variable or option.split()[1] in line
    assert "Httpx" not in line  # that is advice for programs
