"""Every Python example of every page in ``docs`` runs and prints what the page says."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from _redis import BINARY, redis_running

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("**/*.md"))

EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)")

FILES = {
    "deck.pdf": b"%PDF-1.7\n".ljust(1180, b"%"),
    # The certificate of an authority that never signed anything, and whose key is gone:
    # openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500
    "corporate-ca.pem": b"""\
-----BEGIN CERTIFICATE-----
MIIBmTCCAT+gAwIBAgIUObnjeviYtciorIw1ge7mbYlOKSUwCgYIKoZIzj0EAwIw
ITEfMB0GA1UEAwwWRXhhbXBsZSBDb3Jwb3JhdGlvbiBDQTAgFw0yNjExMjExNDMz
MjRaGA8yMTI2MTAyODE0MzMyNFowITEfMB0GA1UEAwwWRXhhbXBsZSBDb3Jwb3Jh
dGlvbiBDQTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABDELCYnLSpxqmmogsDbj
S/wJmjxyvX3eU01Cv7iYwNf2fHbLl3DYCIWeE7KohUmK6SUl2U0T/OVydFspYFWY
w/qjUzBRMB0GA1UdDgQWBBSEiyvtEFoE6fY8LWtYHACIKl9THTAfBgNVHSMEGDAW
gBSEiyvtEFoE6fY8LWtYHACIKl9THTAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49
BAMCA0gAMEUCIA5tJFXarcuF3VJaUZQJg8w5WPxcWY62RKJi8GiXhwlIAiEAr3uu
VItl+mXouj976Gia9/JtzOzhtNnfgDf0KvMGH/8=
-----END CERTIFICATE-----
""",
}
"""What the examples find in their directory."""


def examples(page: str) -> list[tuple[str, str]]:
    """Return each Python block of a page with the output that directly follows it."""
    return EXAMPLE.findall(page)


def blocks(page: str) -> int:
    """Count the Python blocks, however their fences are written."""
    return len(re.findall(r"^[ \t]*(?:```+|~~~+)[ \t]*(?:python|py)\b", page, re.MULTILINE))


def broken_links(page: str, folder: Path) -> list[str]:
    """Return the links to files that are not there, or to headings that no page has."""
    found = []
    for path, heading in LINK.findall(page):
        target = folder / path
        text = page if not path else target.read_text("utf-8") if target.is_file() else None
        if text is None or (heading and heading not in anchors(text)):
            found.append(f"{path}#{heading}")
    return found


def anchors(page: str) -> set[str]:
    """Return what headings can be linked as: lower case, words joined by hyphens."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@contextlib.contextmanager
def redis_if_needed(code: str) -> Iterator[dict[str, str]]:
    """Yield the environment, with a Redis server for an example that names ``REDIS_URL``."""
    if "REDIS_URL" not in code:
        yield dict(os.environ)
        return
    if BINARY is None:
        pytest.skip("there is no redis-server (Debian: redis-server)")
    with redis_running() as redis:
        yield {**os.environ, "REDIS_URL": f"redis://127.0.0.1:{redis.port}"}


def every_example() -> list[object]:
    """Return all examples as parameters, named after their pages."""
    return [
        pytest.param(code, output, id=f"{path.stem}-{number}")
        for path in PAGES
        for number, (code, output) in enumerate(examples(path.read_text("utf-8")), 1)
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_each_example_has_its_output(path: Path) -> None:
    """No Python block stands without the output it is checked against."""
    page = path.read_text("utf-8")
    assert len(examples(page)) == blocks(page)


def is_test_module(code: str) -> bool:
    """Tell tests, which pytest runs, from programs."""
    return re.search(r"^(?:async )?def test_", code, re.MULTILINE) is not None


def run(code: str, folder: Path) -> tuple[str, str]:
    """Run an example as a program of its own, with warnings as errors; return what it prints.

    Of a test module that is one line per test, as ``pytest -rA`` says at its end.
    """
    command = [sys.executable, "-W", "error", "-c", code]
    if is_test_module(code):
        (folder / "test_slides.py").write_text(code, encoding="utf-8")
        plugins = ["-p", "anyio", "-p", "meeting_async", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", "-W", "error", "-rA", *plugins]
    with redis_if_needed(code) as environment:
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # our plugins are not a user's
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    if is_test_module(code):
        results = re.findall(r"^(?:PASSED|FAILED|ERROR) .*\n", done.stdout, re.MULTILINE)
        return "".join(results), done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize(("code", "output"), every_example())
def test_example(code: str, output: str, tmp_path: Path) -> None:
    """The example prints its output."""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    assert run(code, tmp_path) == (output, "")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    """Files and headings that a page links to are there."""
    assert broken_links(path.read_text("utf-8"), path.parent) == []


def test_there_are_examples() -> None:
    """The checks above have something to check."""
    assert {"rooms", "signers", "transports"} <= {path.stem for path in PAGES}
    assert len(every_example()) >= 2


@pytest.mark.parametrize(
    "page",
    [
        "```python\nprint(1)\n```\n\nwithout output\n",
        "```python\nprint(1)\n```\n\nwords between\n\n```text\n1\n```\n",
        "1. in a list\n\n   ```python\n   print(1)\n   ```\n",
        "```py\nprint(1)\n```\n\n```text\n1\n```\n",
        "~~~python\nprint(1)\n~~~\n",
    ],
)
def test_an_example_that_would_not_run_is_noticed(page: str) -> None:
    """The check for outputs can fail."""
    assert len(examples(page)) != blocks(page)


def test_a_test_that_fails_is_noticed(tmp_path: Path) -> None:
    """The output of a test module says of each test what became of it."""
    code = "def test_good():\n    pass\n\n\ndef test_bad():\n    assert not 1\n"
    assert run(code, tmp_path) == (
        "PASSED test_slides.py::test_good\nFAILED test_slides.py::test_bad - assert not 1\n",
        "",
    )


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    """The check for links can fail, for files and for headings of this and of other pages."""
    (tmp_path / "there.md").write_text("# A heading, or `two`\n")
    good = "# Here\n[a](there.md) [b](there.md#a-heading-or-two) [c](#here) [d](https://x.test/y)"
    assert broken_links(good, tmp_path) == []
    bad = "# Here\n[a](gone.md) [b](there.md#gone) [c](#gone)"
    assert broken_links(bad, tmp_path) == ["gone.md#", "there.md#gone", "#gone"]
