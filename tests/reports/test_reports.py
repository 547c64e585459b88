"""The page of a report: what it says and how it looks, and the file that a program writes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import stat
from datetime import datetime, timedelta, timezone
from html import unescape
from pathlib import Path
from typing import Any

import attrs
import pytest

from meeting_async import BatchReport, UploadOutcome, Verdict, errors
from meeting_async.cli.results import ExitCode, summary_object
from meeting_async.errors import InvalidInput
from meeting_async.reports import _page as pages
from meeting_async.reports import html_report, write_report
from meeting_async.reports._groups import headline
from meeting_async.reports._page import page
from support.programs import dom_of, needs_browser
from support.reports import LOST, STOPPED, attempt, outcome, report_of, text_of
from support.systems import NO_SUCH_FILE, OWNER_ONLY

BEGAN = datetime(2026, 9, 1, 23, 59, 50, tzinfo=timezone(timedelta(hours=2), "CEST"))


def absent(index: int, room_id: str, status: str = "skipped") -> UploadOutcome:
    """Return what becomes of a document whose room is not there."""
    error = errors.RoomNotFound(404, "ROOM_NOT_FOUND", "no such room")
    error.operation, error.room_id = "room/uploadWhiteboardFile", room_id
    return outcome(index, room_id, status=status, error=error)


def unknown(index: int, room_id: str, document: str) -> UploadOutcome:
    """Return what becomes of silence after the last byte."""
    error = errors.UploadOutcomeUnknown("no reply within 330 s", 9, 9, 300.0)
    error.room_id, error.document = room_id, document
    silent = attempt(seconds=2.0, verdict=Verdict.UNKNOWN, status=None, body_seconds=1.5)
    facts = {"error": error, "attempts": (silent,), "seconds": 2.0}
    return outcome(index, room_id, document, "unknown", **facts)


def one_of_each() -> BatchReport:
    """Return a report in which everything that can happen has happened."""
    busy = attempt(verdict=Verdict.BUSY, status=409)
    refusal = errors.RequestRefused(400, "BAD", "no presenter")
    return report_of(
        [
            outcome(0, attempts=(busy, attempt(2, 3.0)), seconds=4.0),
            unknown(1, "room01", "b.pdf"),
            outcome(2, "room02", status="refused", error=refusal),
            outcome(3, "room03", status="failed", error=LOST),
            outcome(4, "room03", status="skipped", error=LOST),
            outcome(5, "room04", status="skipped"),
            absent(6, "room05", "refused"),
            absent(7, "room05"),
            outcome(8, "room06", status="skipped", error=STOPPED),
        ],
        seconds=20.0,
    )


def term(rooms: int, documents: int) -> list[UploadOutcome]:
    """Make up the start of a term: all is accepted, and of three documents one waited before."""
    found: list[UploadOutcome] = []
    for index in range(rooms * documents):
        room, number = divmod(index, documents)
        busy = [attempt(verdict=Verdict.BUSY, status=409, seconds=0.3)] * (index % 3 == 0)
        last = attempt(len(busy) + 1, 4.0 * len(busy), 0.5 + index % 4, body_seconds=0.4)
        facts: dict[str, Any] = {"attempts": (*busy, last), "started": 5.0 * number + room / 20}
        facts["seconds"], facts["size"] = last.started + last.seconds, 9 ** (index % 8)
        name = f"Übungsblatt {number + 1} {'(final) ' * (index % 3)}.pdf"
        found.append(outcome(index, f"course-{room + 101}", name, **facts))
    return found


FACTS: dict[str, Any] = {
    "title": "term.csv", "server": "https://meet.example.com", "began": BEGAN
}  # fmt: skip


def _page(made: BatchReport, documents: int | None = None, **facts: Any) -> str:
    count = made.total if documents is None else documents
    sums = headline(made, count, interrupted=facts.pop("interrupted", False))
    return page(made, headline=sums, documents=count, **{**FACTS, **facts})


STATES: dict[str, dict[str, Any]] = {
    "a": {},  # accepted
    "s": {"status": "skipped", "error": STOPPED},
    "c": {"status": "failed", "error": STOPPED},  # cut
    "f": {"status": "failed", "error": LOST},
}
HEADLINES = [
    ("aaa", 3, False, "3 of 3 documents delivered."),
    ("a", 1, False, "1 of 1 document delivered."),
    ("a", 1, True, "1 of 1 document delivered."),
    ("as", 5, True, "Interrupted: 1 of 5 documents delivered; 4 left to send."),
    ("ac", 2, True, "Interrupted: 1 of 2 documents delivered; 1 left to send."),
    ("f", 2, False, "0 of 2 documents delivered; 1 failed, 1 left to send."),
]
OF_EACH = (
    "2 of 9 documents delivered (1 by an earlier run); 1 may or may not have arrived, "
    "2 without an active room, 1 refused, 1 failed, 1 not tried, 1 left to send."
)


def test_the_headline_says_how_it_went() -> None:
    """In one sentence; a batch that was interrupted is not called failed.

    The sums count every document, of a batch that ends early also those that were never read.
    """
    parts = ("accepted", "already_delivered", "refused", "failed", "unknown", "skipped")
    assert f"<h1>{OF_EACH}</h1>" in _page(one_of_each())
    for states, documents, interrupted, sentence in HEADLINES:
        made = report_of(outcome(n, **STATES[state]) for n, state in enumerate(states))
        assert f"<h1>{sentence}</h1>" in _page(made, documents, interrupted=interrupted)
        sums = summary_object(made, documents, interrupted=interrupted, code=ExitCode.FAILED)
        assert sum(sums[part] for part in parts) == documents


def test_an_interrupted_batch_is_not_a_failed_one() -> None:
    """What is left to send is neither attention nor failure."""
    stopped = [outcome(n, status=s, error=STOPPED) for n, s in ((2, "failed"), (3, "skipped"))]
    html = _page(report_of([outcome(0), outcome(1), *stopped]), 9, interrupted=True)
    text = text_of(html)
    assert "Interrupted" in text.partition("left to send.")[2]
    assert "Needs attention" not in text
    assert "<details>\n<summary>2 documents left to send" in html
    assert not re.search(r'class="(failed|refused|unknown)(?! none)', html)
    assert "Needs attention" in text_of(_page(one_of_each()))


def test_everything_is_told() -> None:
    """The most urgent first, with what to do; every document is in a table."""
    html = _page(one_of_each())
    text = text_of(html)
    titles = [
        "May or may not have arrived", "Without an active room", "Refused", "Failed",
        "Not tried", "Left to send",
    ]  # fmt: skip
    places = [text.index(title, text.index("Needs attention")) for title in titles]
    assert places == sorted(places)
    assert "<details open>\n<summary>6 documents not known to be in their rooms" in html
    said = dict(re.findall(r'<tr id="n(\d)".*<td>(.*?)</td></tr>', html))
    assert (said["1"], said["4"]) == ("file uploaded", str(LOST))
    assert said["5"] == "Connect failed: connection refused"  # it was not tried itself


def _numbers(html: str) -> dict[str, str]:
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html))


def test_the_totals() -> None:
    """Each with its name; what never happened is 0."""
    assert _numbers(_page(one_of_each())) == {
        "accepted": "1", "by an earlier run": "1", "may or may not have arrived": "1",
        "without an active room": "2", "refused": "1", "failed": "1", "not tried": "1",
        "left to send": "1", "took": "20.0 s", "sent, 150 bytes/s": "2.9 KiB",
        "sent more than once": "1,000 bytes", "a room was locked": "1 time",
    }  # fmt: skip
    calm = _numbers(_page(report_of([outcome()])))
    assert (calm["sent more than once"], calm["a room was locked"]) == ("0", "0")


def test_a_room_counts_all_its_documents() -> None:
    """Those of an earlier run, those that were left out, and those that were never read, too.

    Rooms with failures come first, then the last to end.
    """
    made = report_of(
        [
            outcome(0, "resumed", status="skipped"),
            *(outcome(n, "resumed") for n in range(1, 4)),
            outcome(4, "resumed", started=5.0, seconds=6.0),
            outcome(5, "lost"),
            outcome(6, "lost", status="failed", error=LOST),
            *(outcome(n, "lost", status="skipped", error=LOST) for n in (7, 8)),
            outcome(9, "begun", started=8.5),
            outcome(10, "earlier", status="skipped"),
        ]
    )
    rooms = ["resumed"] * 5 + ["lost"] * 4 + ["begun"] * 3 + ["earlier"]
    text = text_of(_page(made, 13, rooms=rooms)).partition("Rooms over time")[2]
    found = re.findall(r"(\w+) (\d of \d) ", text)
    assert found == [("lost", "1 of 4"), ("resumed", "5 of 5"), ("begun", "1 of 3")]
    assert "5 of 5" in text_of(_page(made))  # a queue knows the rooms of outcomes only


def test_missing_rooms_are_grouped() -> None:
    """A room is one line, however many documents it was to get."""
    rooms = [absent(n, f"course-{n // 5}") for n in range(50)]
    section = _page(report_of([outcome(50), *rooms])).partition('class="rooms"')[2]
    assert section.partition("</section>")[0].count("<li>") == 10
    assert "5 documents" in section


def test_what_was_accepted_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that need nobody's attention; very many are not listed at all."""
    accepted = report_of([outcome(n) for n in range(8)])
    assert "<details>\n<summary>8 documents in their rooms" in _page(accepted)
    monkeypatch.setattr(pages, "MOST_ROWS", 3)
    assert "and 5 more" in text_of(_page(accepted))


def test_times_are_local() -> None:
    """Those of the machine that ran the batch; another day is named."""
    late = [outcome(0, started=1.0), outcome(1, started=20.0)]
    text = text_of(_page(report_of(late)))
    assert "Tuesday 01 September 2026, 23:59:50 CEST" in text
    assert " 23:59:51 " in text
    assert " 02 Sep 00:00:10 " in text


def test_nothing_in_a_page_is_hostile() -> None:
    """Names are escaped and cannot turn the direction of writing; nothing is loaded or run."""
    bad = "<script>alert(1)</script>\"'&\x1b[0m\u202efdp.exe\n"
    error = attrs.evolve(LOST, reason=bad)
    made = report_of([outcome(0, bad, bad), outcome(1, bad, bad, "failed", error=error)])
    html = _page(made, title=bad, server=bad)
    text_of(html)
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
@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(tmp_path: Path, width: int, dark: bool) -> None:
    """Nothing sticks out of the window, the style is applied, and colours follow the system."""
    long = [outcome(n, "r" * 60, "d" * 200 + ".pdf", "failed", error=LOST) for n in (240, 241)]
    made = report_of([*term(30, 8), *long, *(absent(n, f"room-{n}") for n in range(242, 260))])
    (tmp_path / "report.html").write_text(_page(made))
    (tmp_path / "frame.html").write_text(_FRAME.format(width=width, page="report.html"))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    size = f"--window-size={width + 40},900"
    shown = dom_of((tmp_path / "frame.html").as_uri(), tmp_path, size, scheme)
    body = re.search(r"<body>(.*)</body>", shown, re.DOTALL)
    assert body is not None, shown
    seen = json.loads(unescape(body[1]))
    assert seen["wide"] == []
    assert seen["scroll"] <= width
    assert seen["background"] == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    assert seen["folded"] == [True, False]
    assert seen["bars"] > 200


# --- from Python ---------------------------------------------------------------------------------


def test_a_program_has_the_same_page() -> None:
    """Without the command's hints; an error has the names of a program, and the server is optional.

    The batch began as long ago as it took.
    """
    wrong = errors.ConfigurationError("api_key", "", "is not set", "pass it")
    made = report_of(
        [outcome(0, started=1.0, seconds=3600.0), absent(1, "room02")], stopped_by=wrong
    )
    html = html_report(made, title="Term <1>")
    text = text_of(html)
    assert "1 of 2 documents delivered; 1 without an active room." in text
    assert "api_key is not set: pass it" in text
    assert not re.search("meeting-async|--[a-z]|MEETING_", text)
    assert " to " not in text.partition("1 of 2")[0]
    assert "Term <1> to https://meet.example.com" in text_of(
        html_report(made, title="Term <1>", server="https://meet.example.com")
    )
    (began,) = re.findall(r'<time datetime="(.*?)">', html)
    age = datetime.now().astimezone() - datetime.fromisoformat(began)
    assert age.total_seconds() == pytest.approx(made.seconds, abs=60)


@pytest.mark.parametrize("form", [str, Path])
def test_a_report_is_written(tmp_path: Path, form: type[str | Path]) -> None:
    """It replaces an earlier one, and only its owner may read it."""
    path = tmp_path / "r.html"
    for count in (1, 2):
        write_report(report_of([outcome(n) for n in range(count)]), form(path), title="Term")
        assert f"<h1>{count} of {count} document" in path.read_text("utf-8")
        assert stat.S_IMODE(path.stat().st_mode) == OWNER_ONLY
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("own.html", "is your own file, and not a report"),
        ("folder", "is a folder"),
        ("nowhere/r.html", f"cannot be written: {NO_SUCH_FILE}"),
    ],
)
def test_no_other_file_is_replaced(tmp_path: Path, name: str, told: str) -> None:
    """The error has the path; the file is as it was."""
    (tmp_path / "own.html").write_text("<title>Algebra</title>")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidInput, match=f"path {told}") as raised:
        write_report(report_of([outcome(0)]), tmp_path / name, title="Term")
    assert raised.value.value == repr(str(tmp_path / name))
    assert (tmp_path / "own.html").read_text() == "<title>Algebra</title>"
    assert len([*tmp_path.iterdir()]) == 2
