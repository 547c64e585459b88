"""The page of a batch in a real browser: nothing runs, nothing sticks out, everything is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from _browser import Browser, Tab, needs_browser
from _html import by_class, parse
from _page_reports import (
    attempt,
    ending,
    one_of_each,
    outcome,
    page_of,
    refusal,
    report_of,
    term,
    unknown,
)
from meeting_async._jobs import UploadOutcome
from meeting_async.cli._console import printable

pytestmark = [needs_browser, pytest.mark.timeout(120)]

WIDE, NARROW = 1280, 390

BAIT = (
    "<script>window.caught=1</script>",
    '"><img src=x onerror="window.caught=1">',
    "'><svg onload='window.caught=1'>",
    "</title></style></script></svg><script>window.caught=1</script>",
    "<iframe srcdoc='<script>parent.caught=1</script>'>",
    "javascript:window.caught=1",
    "\u202efdp.\u2066exe",
    "\x1b[2J\x00\ud800",
    "סיכום.pdf",
    "w" * 255,
    "https://files.example.com/" + "a-b/" * 50,
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Run a browser for all tests of this file."""
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="module")
def baited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a page whose every name and message would like to be more than text."""
    outcomes: list[UploadOutcome] = []
    for bait in BAIT:
        count = len(outcomes)
        error = refusal(bait, 400, bait, bait)
        error.add_note(bait)
        tries = (attempt(verdict="partial", reason=bait), attempt(2, 2.0, verdict="refused"))
        facts: dict[str, Any] = {"room_id": bait, "document": bait}
        outcomes += [
            outcome(count, bait, bait),
            ending(count + 1, "refused", error, attempts=tries, seconds=3.0, **facts),
            ending(count + 2, "unknown", unknown(bait, bait, 1), started=3.0, **facts),
        ]
    report = report_of(outcomes, stopped_by=ValueError("".join(BAIT)))
    html = page_of(report, title=BAIT[3], server=BAIT[1])
    return written(html, tmp_path_factory.mktemp("baited"))


def written(html: str, folder: Path) -> Path:
    """Write a page as a command would."""
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def rows_of(tab: Tab, expression: str) -> list[str]:
    """Return something of each row of the table that is shown."""
    rows = '[...document.querySelectorAll("#outcomes tbody tr:not([hidden])")]'
    found: list[str] = tab.evaluate(f"{rows}.map(row => {expression})")
    return found


# --- what may happen in it -----------------------------------------------------------------------


def test_names_do_nothing(browser: Browser, baited: Path) -> None:
    """No script but its own runs, nothing is loaded, and the console stays empty."""
    tab = browser.open(baited, width=WIDE)
    assert tab.complaints() == []
    assert tab.requests() == [baited.as_uri()]
    assert tab.evaluate("typeof window.caught") == "undefined"
    assert tab.evaluate("document.scripts.length") == 1
    assert tab.evaluate('document.querySelectorAll("img, iframe, object, embed").length') == 0
    assert rows_of(tab, "row.cells[2].textContent") == [
        printable(bait) for bait in BAIT for _ in range(3)
    ]


def test_the_policy_holds_what_got_in(browser: Browser, tmp_path: Path) -> None:
    """Were something not escaped it would not run; and this file notices if something does."""
    html = page_of(one_of_each()).replace("</main>", f"{BAIT[0]}{BAIT[1]}</main>")
    tab = browser.open(written(html, tmp_path), width=WIDE)
    assert tab.evaluate("typeof window.caught") == "undefined"
    assert len(tab.complaints()) >= 2
    bare = re.sub(r"<meta http-equiv.*?>", "", html)
    tab = browser.open(written(bare, tmp_path), width=WIDE)
    assert tab.evaluate("window.caught") == 1


# --- how it looks --------------------------------------------------------------------------------

EVERYTHING_IS_LAID_OUT = """
document.styleSheets[0].insertRule("* { content-visibility: visible !important }");
"""
"""Else what is not in sight is not, and what sticks out of it is cut off."""


def widths(tab: Tab) -> list[int]:
    """Return how wide the page is, and how much of it there is place for."""
    tab.evaluate(EVERYTHING_IS_LAID_OUT)
    root = "document.documentElement"
    found: list[int] = tab.evaluate(f"[{root}.scrollWidth, {root}.clientWidth]")
    return found


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_nothing_sticks_out(browser: Browser, baited: Path, width: int) -> None:
    """At the width of a desktop and of a phone, with names as long as names can be."""
    assert widths(browser.open(baited, width=width)) == [width, width]


def test_sticking_out_is_noticed(browser: Browser, tmp_path: Path) -> None:
    """The check above can fail, also for what is far down in the table."""
    wide = f"<td><nobr>{'wide ' * 400}</nobr></td></tr></tbody>"
    html = page_of(report_of(term(100, 10))).replace("</tr>\n</tbody>", wide)
    found = widths(browser.open(written(html, tmp_path), width=NARROW))
    assert found[0] > found[1] == NARROW


CONTRAST = """
(() => {
    const part = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const light = colour => {
        const [r, g, b] = colour.match(/\\d+/g).map(value => part(value / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
    };
    const page = light(getComputedStyle(document.body).backgroundColor);
    return [...document.querySelectorAll("main *")].filter(e => e.textContent.trim()).map(e => {
        const style = getComputedStyle(e);
        const own = light(e.namespaceURI.endsWith("svg") ? style.fill : style.color);
        return [Math.max(own, page) / Math.min(own, page), e.outerHTML.slice(0, 80)];
    }).filter(([ratio, tag]) => ratio < 4.5 && !/^<(svg|rect|circle|title)/.test(tag));
})()
"""


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_light_and_dark(browser: Browser, tmp_path: Path, width: int) -> None:
    """Both are drawn, they differ, and text can be read in either (WCAG 2.2, 1.4.3: 4.5 to 1)."""
    path = written(page_of(report_of([*one_of_each().outcomes, *term(20, 5)])), tmp_path)
    pictures = set()
    for dark in (False, True):
        tab = browser.open(path, width=width, dark=dark)
        assert tab.evaluate(CONTRAST) == []
        picture = tab.screenshot(tmp_path / f"{width}-{dark}.png", height=2000)
        assert picture.startswith(b"\x89PNG")
        assert int.from_bytes(picture[16:20]) == width
        pictures.add(picture)
        back = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    assert len(pictures) == 2


PLACES = """
(() => {
    const left = (row, shape) => [...document.querySelectorAll(`${row} ${shape}`)].map(
        found => Math.round(found.getBoundingClientRect().left * 10) / 10);
    return [left(".axis", "line"), left(".row", ".send")];
})()
"""


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_bars_stand_below_their_times(browser: Browser, tmp_path: Path, width: int) -> None:
    """A bar that begins at a tick of the axis is drawn below it, whatever the width."""
    whole = [outcome(i, f"room{i}", started=float(second)) for i, second in enumerate((9, 6, 2, 0))]
    tab = browser.open(written(page_of(report_of(whole)), tmp_path), width=width)
    ticks, bars = tab.evaluate(PLACES)
    assert len(ticks) == 6  # of a batch of 10 s, every 2 s
    assert bars[1:] == pytest.approx([ticks[3], ticks[1], ticks[0]], abs=0.6)
    assert bars[0] == pytest.approx((ticks[4] + ticks[5]) / 2, abs=0.6)


# --- what can be done with it --------------------------------------------------------------------


def test_the_table_can_be_filtered(browser: Browser, tmp_path: Path) -> None:
    """By outcome, and by any words."""
    tab = browser.open(written(page_of(one_of_each()), tmp_path), width=WIDE)
    assert rows_of(tab, "row.id") == ["n1", "n2", "n3", "n4", "n5", "n6"]
    choose = 'form.dispatchEvent(new Event("input")), form.querySelector("output").value'
    find = 'form = document.getElementById("filter"), form.hidden === false && '
    assert tab.evaluate(f'{find}(form.outcome.value = "skipped"), {choose}') == "1 of 6"
    assert rows_of(tab, "row.id") == ["n5"]
    words = '(form.outcome.value = "", form.words.value = " ROOM03  failed ")'
    assert tab.evaluate(f"{find}{words}, {choose}") == "2 of 6"
    assert rows_of(tab, "row.id") == ["n4", "n5"]
    assert tab.complaints() == []


def test_the_table_can_be_sorted(browser: Browser, tmp_path: Path) -> None:
    """Numbers as numbers, there and back."""
    sizes = [5_000_000, 900, None, 20_000]
    report = report_of(outcome(i, size=size) for i, size in enumerate(sizes))
    tab = browser.open(written(page_of(report), tmp_path), width=WIDE)
    button = 'document.querySelectorAll("#outcomes th button")[3]'
    tab.evaluate(f"{button}.click()")
    assert rows_of(tab, "row.id") == ["n3", "n2", "n4", "n1"]
    tab.evaluate(f"{button}.click()")
    assert rows_of(tab, "row.id") == ["n1", "n4", "n2", "n3"]
    assert tab.evaluate(f"{button}.parentNode.ariaSort") == "descending"
    assert tab.evaluate(f"{button}.ariaLabel") == "Sort by Size"


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_table_stays_a_table(browser: Browser, tmp_path: Path, width: int) -> None:
    """For those who listen to it, however its rows are laid out; each drawing has its sentence."""
    html = page_of(one_of_each())
    tab = browser.open(written(html, tmp_path), width=width)
    tab.evaluate(EVERYTHING_IS_LAID_OUT)
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    heard = [(node["role"]["value"], node.get("name", {}).get("value")) for node in nodes]
    roles = [role for role, _ in heard]
    assert roles.count("columnheader") == 8
    assert roles.count("rowheader") == 6
    assert roles.count("row") == 7
    rooms = {row.get("aria-label") for row in by_class(parse(html), "row")}
    assert len(rooms) == 3
    assert rooms <= {name for role, name in heard if role == "image"}


def seconds_of_layout(tab: Tab) -> float:
    """Return for how long the page was being laid out so far."""
    return tab.metric("LayoutDuration") + tab.metric("RecalcStyleDuration")


def test_ten_thousand_documents(browser: Browser, tmp_path: Path) -> None:
    """A thousand rooms: all documents are there, and as many rooms as are drawn."""
    tab = browser.open(written(page_of(report_of(term(1000, 10))), tmp_path), width=WIDE)
    assert len(rows_of(tab, "0")) == 10_000
    assert tab.evaluate('document.querySelectorAll("svg.row").length') == 200
    assert tab.complaints() == []


def test_what_is_out_of_sight_is_not_laid_out(browser: Browser, tmp_path: Path) -> None:
    """A long page opens several times as quickly as all of it could be laid out."""
    tab = browser.open(written(page_of(report_of(term(300, 10))), tmp_path), width=WIDE)
    quick = seconds_of_layout(tab)
    tab.evaluate(EVERYTHING_IS_LAID_OUT)
    assert tab.evaluate("document.documentElement.scrollHeight") > 90_000
    assert seconds_of_layout(tab) > 2 * quick
