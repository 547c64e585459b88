"""The report of a batch: what it says, how it looks, and how it is written.

Nothing in it is hostile; it replaces nothing that is needed, is whole, and is its owner's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import pytest

from meeting_async import BatchReport
from meeting_async.cli.results import ExitCode, summary_object
from meeting_async.reports import _page as pages
from meeting_async.reports._groups import headline
from meeting_async.reports._page import page
from meeting_async.testing import MeetingServer
from support.command_line import call, held, names_in, shell
from support.limited_worker import LimitedWorker, limited_worker
from support.programs import dom_of, needs_browser
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
from support.systems import IS_WINDOWS, OWNER_ONLY, is_wine

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
    text = _text(html)
    assert "Interrupted" in text.partition("left to send.")[2]
    assert "Needs attention" not in text
    assert "<details>\n<summary>2 documents left to send" in html
    assert not re.search(r'class="(failed|refused|unknown)(?! none)', html)
    assert "Needs attention" in _text(_page(one_of_each()))


def test_everything_is_told() -> None:
    """The most urgent first, with what to do; every document is in a table."""
    html = _page(one_of_each())
    text = _text(html)
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
    text = _text(_page(made, 13, rooms=rooms)).partition("Rooms over time")[2]
    found = re.findall(r"(\w+) (\d of \d) ", text)
    assert found == [("lost", "1 of 4"), ("resumed", "5 of 5"), ("begun", "1 of 3")]
    assert "5 of 5" in _text(_page(made))  # a queue knows the rooms of outcomes only


@pytest.mark.parametrize("journal", [(), ("--journal", "my term.db")])
def test_how_to_send_the_rest(
    server: MeetingServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    journal: tuple[str, ...],
) -> None:
    """Once, as on stderr: without a journal the same command sends accepted documents again.

    With a journal it sends only what is missing; the hint is that command.
    """
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nnope,b.pdf\n")
    order = ["batch", "m.csv", "--report", "r.html", *journal]
    monkeypatch.setattr("sys.argv", ["meeting-async", *order])
    done = call(capsys, *order)
    told = done.err.splitlines()[-1].removeprefix("meeting-async: hint: ")
    quote = '"' if IS_WINDOWS else "'"
    name = f"{quote}my term.db{quote}"
    command = f"run `meeting-async batch m.csv --report r.html --journal {name}` again to "
    assert (done.code, told.startswith(command)) == (1, bool(journal))
    text = _text(Path("r.html").read_text())
    assert text.count(f"Hint: {told}") == 1
    assert text.count("again") == told.count("again")
    server.add_room("nope")
    done = call(capsys, *order)
    earlier = "2 of 2 documents delivered (1 by an earlier run)."
    assert (done.code, earlier in done.out) == (0, bool(journal))
    assert names_in(server, "room01") == ["a.pdf"] * (1 if journal else 2)
    assert "Hint:" not in _text(Path("r.html").read_text())


def test_a_room_may_have_an_earlier_version(
    server: MeetingServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page tells the reason, and not that it is safe to send the document again."""
    order = ("batch", "m.jsonl", "--journal", "j.db", "--report", "r.html")
    assert call(capsys, *order).code == 0
    os.utime("a.pdf", (1, 1))
    assert call(capsys, *order).code == 1
    text = _text(Path("r.html").read_text())
    assert "Each reason says what happened. Document changed: an earlier run" in text
    assert "safe" not in text
    assert names_in(server, "room01") == ["a.pdf"]


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


# --- where it is written -------------------------------------------------------------------------

Capture = pytest.CaptureFixture[str]

OLD = '<!DOCTYPE html><meta name="generator" content="meeting-async"><p>last week'
"""An earlier report."""


def contents() -> dict[str, bytes | str]:
    """Return what every file below the working directory holds, and where each link leads."""
    return {
        str(path): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in Path().rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    """Make manifests, a folder, and other names for them and for the documents."""
    Path("m.csv").write_text("room_id,document\nroom01,a.pdf\nroom02,b.pdf\nroom03,other.pdf\n")
    Path("m.jsonl").write_text('{"room_id": "room01", "document": "a.pdf"}\n')
    Path("pages.csv").write_text("room_id,document\nroom01,r.html\n")
    Path("term", "room01").mkdir(parents=True)
    Path("term", "room01", "week.pdf").write_bytes(b"%PDF-1.7")
    Path("other.pdf").symlink_to("c.pdf")
    if is_wine():  # which makes no links
        Path("other.pdf").write_bytes(b"%PDF-1.7")
    Path("here").symlink_to(tmp_path)
    Path("manifest.html").symlink_to("m.csv")
    Path("journal.html").symlink_to("j.db")
    Path("linked.db").symlink_to("j.db")
    Path("hard.html").hardlink_to("b.pdf")
    Path("index.html").write_text("<!DOCTYPE html>\n<title>Algebra</title>")
    Path("empty.html").touch()
    Path("r.html").write_text(OLD)
    Path("r.html").chmod(0o644)


# --- what it would replace -----------------------------------------------------------------------

NEEDED = [
    *(f"m.csv --report {place}" for place in ("m.csv", "here/m.csv", "manifest.html")),
    *(f"m.csv --report {place}" for place in ("a.pdf", "hard.html", "other.pdf")),
    *(f"m.csv --report {place}" for place in ("index.html", "nowhere/r.html", ".")),
    "m.csv --check --report a.pdf",
    "pages.csv --report here/r.html",  # an earlier report, and now a document
    "term --report here/term/room01/week.pdf",
    # A journal to be, and what will be beside it, though none of that is there yet.
    *(f"m.csv --journal j.db --report {place}" for place in ("j.db", "journal.html")),
    *(f"m.csv --journal linked.db --report {place}" for place in ("./j.db-wal", "here/j.db-shm")),
    "m.csv --journal linked.db --report j.db-journal",
]


def test_only_a_report_is_replaced(server: MeetingServer, capsys: Capture) -> None:
    """No source, document, journal or page of one's own, however it is written (findings 5.5).

    Exit code 2 before anything is sent, and no file has changed.
    """
    before = contents()
    for order in NEEDED:
        done = call(capsys, "batch", *order.split())
        assert (done.code, server.requests) == (2, []), order
        assert "--report" in done.err, order
        assert "Traceback" not in done.err
        assert contents() == before, order


@pytest.mark.skipif(sys.platform != "win32", reason="only there a file can be kept from others")
def test_a_program_has_a_file_open(server: MeetingServer, capsys: Capture) -> None:
    """Nothing is lost, and one line names the file and the fix."""
    fix = "(if it is open, in a program or in this one, close it there)"
    command = "batch m.csv --journal j.db --report r.html"
    for name in ("m.csv", "a.pdf", "r.html"):
        with held(name, readable=False):
            done = call(capsys, *command.split())
        assert (done.code, server.requests) == (2, [])
        assert all(word in done.err for word in ("error: ", name, fix))
    with held("r.html", readable=True):
        done = call(capsys, *command.split())
    assert (done.code, Path("r.html").read_text()) == (0, OLD)
    assert re.search(rf"r.html cannot be written: .*{re.escape(fix)}: the new report is ", done.err)
    [new] = Path().glob(".report-*.html")
    assert "3 of 3 documents delivered" in new.read_text()
    with held("j.db", readable=True):
        done = call(capsys, *command.split())
    assert (done.code, done.err.count(f"{fix}\n")) == (2, 1)
    assert "'j.db' cannot be used: " in done.err
    assert "(3 by an earlier run)" in call(capsys, *command.split()).out


@pytest.mark.skipif(sys.platform != "win32", reason="elsewhere these are names of files")
def test_names_that_windows_does_not_allow(server: MeetingServer, capsys: Capture) -> None:
    """Refused before anything is sent; none becomes a hidden stream, or goes to a device."""
    for option in ("--journal", "--report"):
        for name in ("nul", "con.html", "what?.html", "a.html:b"):
            done = call(capsys, "batch", "m.csv", option, name)
            assert (done.code, server.requests) == (2, [])
            assert f"error: {option} has " in done.err, name
    for name in ("con.pdf", "nul", "what?.pdf", "a.pdf:b", "a.pdf:Zone.Identifier"):
        Path("names.csv").write_bytes(f"room_id,document\r\nroom01,{name}\r\n".encode())
        done = call(capsys, "batch", "names.csv")
        assert (done.code, done.err.count(name), server.requests) == (2, 1, [])


# --- how it is written ---------------------------------------------------------------------------


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Take no permission away from new files."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("report", ["r.html", "new.html", "empty.html"])
def test_only_its_owner_may_read_it(server: MeetingServer, capsys: Capture, report: str) -> None:
    """A new one, and one that replaces an empty file or a report that all could read."""
    before = set(contents())
    assert call(capsys, "batch", "m.csv", "--report", report).code == 0
    assert stat.S_IMODE(os.stat(report).st_mode) == OWNER_ONLY
    assert Path(report).read_text().endswith("</html>\n")
    assert set(contents()) == before | {report}
    assert names_in(server, "room01") == ["a.pdf"]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("rest", ["/dev/stdout >out", ">(cat >out); sleep 0.2"])
def test_what_cannot_be_replaced_is_written(rest: str) -> None:
    """A pipe, and the command's own output, where the result follows (findings 5.7)."""
    done = shell(f"meeting-async batch m.csv --report {rest}")
    assert (done.code, "--report" in done.err) == (0, False)
    page = Path("out").read_text()
    assert page.count("3 of 3 documents delivered") >= 1
    assert page.strip().startswith("<!DOCTYPE html>")
    assert page.endswith("</html>\n") is (">(" in rest)


SLOW = ("anyio._backends._asyncio", "cyclopts", "jinja2", "rich.console", "rich.live", "rich.text")
"""What commands import, of other projects."""


@pytest.fixture(scope="module")
def worker() -> Iterator[LimitedWorker]:
    """Provide a process whose files cannot grow."""
    with limited_worker(*SLOW) as worker:
        yield worker


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("limit", [4096, pytest.param(0, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("report", ["r.html", pytest.param("new.html", marks=pytest.mark.nightly)])
def test_a_full_disk_leaves_the_old_report(worker: LimitedWorker, report: str, limit: int) -> None:
    """Whole, and nothing beside it; it is told, and everything was delivered."""
    before = contents()
    told = worker.run_command("batch", "m.csv", "--report", report, limit=limit)
    assert told.code == 0
    assert f"{report} cannot be written: " in told.stderr
    assert "Traceback" not in told.stderr
    assert contents() == before


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("limit", [0, pytest.param(4096, marks=pytest.mark.nightly)])
def test_a_kill_leaves_the_old_report(worker: LimitedWorker, limit: int) -> None:
    """Whole; what was written beside it until then only its owner can read."""
    before = contents()
    order = ("batch", "m.csv", "--report", "r.html")
    told = worker.run_command(*order, limit=limit, is_deadly=True, umask=0)
    assert told.status < 0
    after = contents()
    assert {name: after[name] for name in before} == before
    for name in set(after) - set(before):
        assert stat.S_IMODE(os.stat(name).st_mode) == 0o600
