"""The report of a batch: what it says, that nothing in it is hostile, and how it looks."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import pytest

from meeting_async import BatchReport
from meeting_async.cli import report
from meeting_async.cli.report import page
from meeting_async.cli.results import headline
from support.reports import (
    BEGAN,
    LOST,
    STOPPED,
    absent,
    attempt,
    one_of_each,
    outcome,
    report_of,
    term,
)

FACTS: dict[str, Any] = {
    "title": "term.csv", "server": "https://meet.example.com", "began": BEGAN
}  # fmt: skip
VOID = {"link", "meta"}


def _page(made: BatchReport, documents: int | None = None, **facts: Any) -> str:
    count = made.total if documents is None else documents
    sums = headline(made, count, interrupted=facts.pop("interrupted", False))
    return page(made, headline=sums, documents=count, **{**FACTS, **facts})


class _Strict(HTMLParser):
    """Reads a page; each element must end, and in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        assert len({name for name, _ in attrs}) == len(attrs)
        assert not any(name.startswith("on") or name == "style" for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in {"rect", "line"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _text(html: str) -> str:
    reader = _Strict()
    reader.feed(html)
    reader.close()
    assert not reader.open
    body = html.partition("</head>")[2]
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))


def _headline(html: str) -> str:
    found = re.search(r"<h1>(.*)</h1>", html)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("made", "documents", "interrupted", "sentence"),
    [
        (
            report_of([outcome(n) for n in range(3)]),
            3,
            False,
            "3 of 3 documents delivered.",
        ),
        (report_of([outcome(0)]), 1, False, "1 of 1 document delivered."),
        (report_of([outcome(0)]), 1, True, "1 of 1 document delivered."),
        (
            report_of([outcome(0), outcome(1, status="skipped", error=STOPPED)]),
            5,
            True,
            "Interrupted: 1 of 5 documents delivered; 4 left to send.",
        ),
        (
            report_of([outcome(0), outcome(1, status="failed", error=STOPPED)]),
            2,
            True,
            "Interrupted: 1 of 2 documents delivered; 1 left to send.",
        ),
        (
            report_of([outcome(0, status="failed", error=LOST)]),
            2,
            False,
            "0 of 2 documents delivered; 1 failed, 1 left to send.",
        ),
        (
            one_of_each(),
            9,
            False,
            "2 of 9 documents delivered (1 by an earlier run); 1 may or may not have arrived, "  # noqa: ISC004 - one text
            "2 without an active room, 1 refused, 1 failed, 1 not tried, 1 left to send.",
        ),
    ],
)
def test_the_headline_says_how_it_went(
    made: BatchReport, documents: int, interrupted: bool, sentence: str
) -> None:
    """In one sentence; a batch that was interrupted is not called failed."""
    assert _headline(_page(made, documents, interrupted=interrupted)) == sentence


def test_an_interrupted_batch_is_not_a_failed_one() -> None:
    """What is left to send is neither attention nor failure."""
    stopped = [outcome(n, status=s, error=STOPPED) for n, s in ((2, "failed"), (3, "skipped"))]
    html = _page(report_of([outcome(0), outcome(1), *stopped]), 9, interrupted=True)
    text = _text(html)
    assert "Interrupted" in text.partition("left to send.")[2]
    assert "Needs attention" not in text
    assert "Run the same command again" in text
    assert not re.search(r'class="(failed|refused|unknown)(?! none)', html)
    assert "Needs attention" in _text(_page(one_of_each()))


def test_everything_is_told() -> None:
    """The most urgent first, with what to do; every document is in a table."""
    text = _text(_page(one_of_each()))
    titles = [
        "May or may not have arrived", "Without an active room", "Refused", "Failed",
        "Not tried", "Left to send",
    ]  # fmt: skip
    places = [text.index(title, text.index("Needs attention")) for title in titles]
    assert places == sorted(places)
    assert "6 documents not known to be in their rooms" in text
    assert "1 document left to send" in text
    assert "2 documents in their rooms" in text


def test_a_room_counts_all_its_documents() -> None:
    """Those of an earlier run, those that were left out, and those that were never read, too."""
    made = report_of(
        [
            outcome(0, "resumed", status="skipped"),
            *(outcome(n, "resumed") for n in range(1, 5)),
            outcome(5, "lost", status="failed", error=LOST),
            *(outcome(n, "lost", status="skipped", error=LOST) for n in range(6, 9)),
            outcome(9, "stopped"),
            outcome(10, "earlier", status="skipped"),
        ]
    )
    rooms = ["resumed"] * 5 + ["lost"] * 4 + ["stopped"] * 3 + ["earlier"]
    text = _text(_page(made, 13, rooms=rooms)).partition("Rooms over time")[2]
    found = dict(re.findall(r"(\w+) (\d of \d) ", text))
    assert found == {"resumed": "5 of 5", "lost": "0 of 4", "stopped": "1 of 3"}
    assert "5 of 5" in _text(_page(made))  # a queue knows the rooms of outcomes only


def test_missing_rooms_are_grouped() -> None:
    """A room is one line, however many documents it was to get."""
    rooms = [absent(n, f"course-{n // 50}") for n in range(500)]
    section = _page(report_of([outcome(500), *rooms])).partition('class="rooms"')[2]
    assert section.partition("</section>")[0].count("<li>") == 10
    assert "50 documents" in section


def test_what_was_accepted_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five hundred rows that need nobody's attention; very many are not listed at all."""
    accepted = report_of([outcome(n) for n in range(500)])
    assert "<details>\n<summary>500 documents in their rooms" in _page(accepted)
    monkeypatch.setattr(report, "MOST_ROWS", 495)
    assert "and 5 more" in _text(_page(accepted))


def test_times_are_local() -> None:
    """Those of the machine that ran the batch; another day is named."""
    late = [outcome(0, started=1.0), outcome(1, started=20.0)]
    text = _text(_page(report_of(late)))
    assert "Tuesday 01 September 2026, 23:59:50 CEST" in text
    assert " 23:59:51 " in text
    assert " 02 Sep 00:00:10 " in text


def test_nothing_in_a_page_is_hostile() -> None:
    """Names are escaped and cannot turn the direction of writing; nothing is loaded or run."""
    bad = "<script>alert(1)</script>\"'&\x1b[0m\u202efdp.exe\n"
    error = attrs.evolve(LOST, reason=bad)
    made = report_of([outcome(0, bad, bad), outcome(1, bad, bad, "failed", error=error)])
    html = _page(made, title=bad, server=bad)
    _text(html)
    assert not {"\x1b", "\u202e"} & set(html)
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in html


def test_bars_tell_what_a_room_saw() -> None:
    """Waiting and sending where they were in time; attempts in vain have colours of their own."""
    busy = attempt(verdict="busy", status=409, seconds=1.0)
    last = attempt(2, 3.0, 2.0)
    tried = outcome(0, started=5.0, attempts=(busy, last), seconds=5.0)
    html = _page(report_of([tried, outcome(1, "lost", status="failed", error=LOST)]))
    bars = re.findall(r'<rect class="(\w+)" x="([\d.]+)%" width="([\d.]+)%">', html)
    assert bars == [
        ("wait", "0.000", "0.000"),  # the room with trouble comes first
        ("wait", "50.000", "50.000"), ("busy", "50.000", "10.000"),
        ("accepted", "80.000", "20.000"),
    ]  # fmt: skip


# --- in a browser --------------------------------------------------------------------------------

BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")

_FRAME = """<!DOCTYPE html><meta charset="utf-8"><iframe id="f" width="{width}" height="800"
src="{page}"></iframe><script>
document.getElementById("f").onload = event => {{
  const inner = event.target.contentDocument, root = inner.documentElement;
  const wide = [...inner.querySelectorAll("body *:not(svg *):not(thead, thead *)")].filter(
    e => e.getBoundingClientRect().right > {width} + 1 && e.getBoundingClientRect().height > 1);
  document.body.textContent = JSON.stringify({{
    wide: wide.map(e => e.tagName + "." + e.className), scroll: root.scrollWidth,
    background: event.target.contentWindow.getComputedStyle(inner.body).backgroundColor,
    folded: [...inner.querySelectorAll("#documents details")].map(e => e.open),
    bars: inner.querySelectorAll("svg rect").length,
  }});
}}</script>"""


@pytest.mark.nightly
@pytest.mark.timeout(180)
@pytest.mark.skipif(BROWSER is None, reason="there is no browser (chromium-headless-shell)")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(tmp_path: Path, width: int, dark: bool) -> None:
    """Nothing sticks out of the window, the style is applied, and colours follow the system."""
    long = [outcome(n, "r" * 60, "d" * 200 + ".pdf", "failed", error=LOST) for n in (240, 241)]
    made = report_of([*term(30, 8), *long, *(absent(n, f"room-{n}") for n in range(242, 260))])
    (tmp_path / "report.html").write_text(_page(made))
    (tmp_path / "frame.html").write_text(_FRAME.format(width=width, page="report.html"))
    done = subprocess.run(
        [
            str(BROWSER), "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
            f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000",
            f"--window-size={width + 40},900", "--dump-dom",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            (tmp_path / "frame.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    body = re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)
    assert body is not None, done.stderr
    seen = json.loads(unescape(body[1]))
    assert seen["wide"] == []
    assert seen["scroll"] <= width
    assert seen["background"] == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    assert seen["folded"] == [True, False]
    assert seen["bars"] > 200
