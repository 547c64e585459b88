"""What the environment says of proxies, and which servers ``NO_PROXY`` excludes."""

from __future__ import annotations

import urllib.request

import pytest

from meeting_async._proxies import proxy_from_environment

PROXY = "http://proxy.invalid:3128"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin with an environment that names none."""
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)
    monkeypatch.delenv("REQUEST_METHOD", raising=False)


@pytest.mark.parametrize(
    ("variables", "scheme", "expected"),
    [
        ({}, "https", None),
        ({"HTTPS_PROXY": PROXY}, "https", PROXY),
        ({"HTTPS_PROXY": PROXY}, "http", None),
        ({"HTTP_PROXY": PROXY}, "http", PROXY),
        ({"HTTP_PROXY": PROXY}, "https", None),
        ({"https_proxy": PROXY}, "https", PROXY),
        ({"https_proxy": PROXY, "HTTPS_PROXY": "http://other.invalid"}, "https", PROXY),
        ({"ALL_PROXY": PROXY}, "http", PROXY),
        ({"ALL_PROXY": PROXY}, "https", PROXY),
        ({"ALL_PROXY": "http://other.invalid", "HTTPS_PROXY": PROXY}, "https", PROXY),
        ({"HTTPS_PROXY": ""}, "https", None),
        ({"HTTPS_PROXY": "", "ALL_PROXY": PROXY}, "https", PROXY),
        ({"HTTPS_PROXY": "proxy.invalid:3128"}, "https", PROXY),
        ({"HTTPS_PROXY": "socks5://proxy.invalid"}, "https", "socks5://proxy.invalid"),
        ({"HTTP_PROXY": PROXY, "REQUEST_METHOD": "GET"}, "http", None),  # httpoxy
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": ""}, "https", PROXY),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, "https", None),
    ],
)
def test_the_variables(
    variables: dict[str, str], scheme: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the scheme come before ``ALL_PROXY``, and lower case before upper case."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_from_environment(scheme, "meet.example.com", 443) == expected


NAMES = [
    ("meet.example.com", 443, "example.com", True),
    ("example.com", 443, "example.com", True),
    ("badexample.com", 443, "example.com", False),
    ("example.com.evil", 443, "example.com", False),
    ("example.com", 443, "meet.example.com", False),
    ("meet.example.com", 443, ".example.com", True),
    ("example.com", 443, ".example.com", True),
    ("meet.example.com", 443, "*.example.com", True),
    ("example.com", 443, "example.com.", True),
    ("example.com.", 443, "example.com", True),
    ("MEET.Example.COM", 443, "example.COM", True),
    ("localhost", 80, "localhost,127.0.0.1", True),
    ("localhost", 80, "", False),
    ("meet.example.com", 443, "*", True),
    ("meet.example.com", 443, "a.invalid, *", True),
    ("meet.example.com", 443, " , ,", False),
    ("meet.example.com", 443, ".", False),
    ("meet.example.com", 443, "a.invalid example.com", True),
    ("meet.example.com", 443, "a.invalid,b.invalid ,\texample.com", True),
    ("meet.example.com", 443, "example.com:443", True),
    ("meet.example.com", 444, "example.com:443", False),
    ("meet.example.com", 444, "example.com:443,example.com:444", True),
    ("meet.example.com", 444, "*:444", False),
]
ADDRESSES = [
    ("127.0.0.1", 80, "127.0.0.1", True),
    ("127.0.0.1", 80, "127.0.0.2", False),
    ("127.0.0.1", 80, "127.0.0.1:80", True),
    ("127.0.0.1", 81, "127.0.0.1:80", False),
    ("10.1.2.3", 80, "10.0.0.0/8", True),
    ("11.1.2.3", 80, "10.0.0.0/8", False),
    ("10.1.2.3", 80, "10.1.2.9/24", True),
    ("10.1.2.3", 80, "10.0.0.0/8:80", True),
    ("10.1.2.3", 81, "10.0.0.0/8:80", False),
    ("10.1.2.3", 80, "10", False),
    ("10.example.com", 80, "10.0.0.0/8", False),
    ("[::1]", 80, "::1", True),
    ("::1", 80, "[::1]", True),
    ("::1", 80, "::2", False),
    ("::1", 80, "[::1]:80", True),
    ("::1", 81, "[::1]:80", False),
    ("2001:db8::5", 80, "2001:db8::/32", True),
    ("2001:db9::5", 80, "2001:db8::/32", False),
    ("::1", 80, "127.0.0.1", False),
    ("127.0.0.1", 80, "::1", False),
]


@pytest.mark.parametrize(("host", "port", "excluded", "expected"), NAMES + ADDRESSES)
def test_what_is_excluded(
    host: str, port: int, excluded: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names with all below them, addresses, networks, each with or without a port, and ``*``."""
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", excluded)
    assert proxy_from_environment("https", host, port) == (None if expected else PROXY)


def test_settings_of_the_system_count_without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS and Windows, the exceptions stand in the system's settings."""
    asked = []

    def bypass(host: str) -> bool:
        asked.append(host)
        return host == "excluded.invalid"

    monkeypatch.setattr(urllib.request, "getproxies", lambda: {"https": PROXY})
    monkeypatch.setattr(urllib.request, "proxy_bypass", bypass)
    assert proxy_from_environment("https", "excluded.invalid", 443) is None
    assert proxy_from_environment("https", "meet.invalid", 443) == PROXY
    assert asked == ["excluded.invalid", "meet.invalid"]


def test_the_system_is_not_asked_beside_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """``NO_PROXY`` says it all where it is set."""
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", "other.invalid")
    monkeypatch.setattr(urllib.request, "proxy_bypass", lambda _host: True)
    assert proxy_from_environment("https", "meet.invalid", 443) == PROXY
