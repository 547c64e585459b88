"""The report of a batch as a page: what it says, that it needs nothing, that nothing gets in."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _html import by_class, by_id, parse, skeleton, text_of
from _page_reports import (
    BEGAN,
    LOST,
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
from _properties import fuzz
from meeting_async._report import BatchReport
from meeting_async.cli._console import printable
from meeting_async.cli._page import headline

# --- in a sentence -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "total", "sentence"),
    [
        ([], 0, "There was nothing to send."),
        (["accepted"], 1, "The document is in its room."),
        (["resumed"], 1, "The document is in its room."),
        (["refused"], 1, "The document was refused."),
        (["failed"], 1, "The document did not reach its room."),
        (["skipped"], 1, "The document was not tried."),
        (["unknown"], 1, "The document may or may not have arrived in its room."),
        ([], 1, "The document was not begun."),
        (["accepted"] * 2, 0, "All 2 documents are in their rooms."),
        (["accepted"] * 3, 3, "All 3 documents are in their rooms."),
        (["accepted"] * 2 + ["resumed"], 3, "All 3 documents are in their rooms."),
        (["failed"] * 2, 2, "None of the 2 documents is known to be in its room; 2 failed."),
        (
            ["accepted", "unknown", "skipped", "skipped"],
            1200,
            (
                "1 of 1,200 documents is in its room; 1 may or may not have arrived, "
                "2 were not tried, 1,196 were not begun."
            ),
        ),
        (
            ["accepted", "resumed", "refused", "failed"],
            4,
            "2 of 4 documents are in their rooms; 1 was refused, 1 failed.",
        ),
    ],
)
def test_the_headline(statuses: list[Any], total: int, sentence: str) -> None:
    """How it went, in plain English with the right number of everything."""
    report = report_of(
        outcome(i, status="skipped", error=None)
        if status == "resumed"
        else outcome(i, status=status, error=None if status == "accepted" else LOST)
        for i, status in enumerate(statuses)
    )
    assert headline(report, total) == sentence
    root = parse(page_of(report, total=total))
    assert [text_of(found) for found in root.iter("h1")] == [sentence]


# --- the whole page ------------------------------------------------------------------------------


def test_the_page_needs_nothing() -> None:
    """No address in it leads out of it, nor does its style load anything."""
    html = page_of(one_of_each())
    root = parse(html)
    links = [value for e in root.iter() for name, value in e.items() if name in {"href", "src"}]
    inner = [link for link in links if link != "data:,"]
    assert inner
    for link in inner:
        assert link[0] == "#"
        assert by_id(root, link[1:]) is not None, link
    assert not re.search(r"url\(|@import|style=|\son\w+=", html)


def test_only_its_own_style_and_script_may_run() -> None:
    """The policy comes before both and names them by what they are."""
    root = parse(page_of(one_of_each()))
    metas = {meta.get("http-equiv", meta.get("name", "")): meta for meta in root.iter("meta")}
    policy = metas["Content-Security-Policy"].get("content", "")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for tag in ("style", "script"):
        (element,) = root.iter(tag)
        digest = base64.b64encode(hashlib.sha256(text_of(element).encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    order = [element.tag for element in root.iter() if element.tag in {"meta", "style", "script"}]
    assert order.index("style") > [*root.iter("meta")].index(metas["Content-Security-Policy"])


def test_what_the_page_says_of_itself() -> None:
    """Language, encoding, a title; what was sent where, and when."""
    root = parse(page_of(one_of_each(), title="<term>.csv", server="https://meet.example.com"))
    assert root.get("lang") == "en"
    assert next(root.iter("meta")).get("charset") == "utf-8"
    assert text_of(next(root.iter("title"))).startswith("<term>.csv: 2 of 6 documents are in")
    (about,) = by_class(root, "about")
    assert text_of(about) == "<term>.csv to https://meet.example.com, 2026-09-01 06:00:00 UTC"
    assert next(root.iter("time")).get("datetime") == "2026-09-01T06:00:00+00:00"


def test_a_time_without_a_zone() -> None:
    """It is told as it is."""
    (about,) = by_class(parse(page_of(report_of([]), began=BEGAN.replace(tzinfo=None))), "about")
    assert text_of(about).endswith(", 2026-09-01 06:00:00")


def test_the_numbers() -> None:
    """Each count under its name; what an earlier run delivered was not skipped."""
    root = parse(page_of(one_of_each()))
    names = [text_of(name) for name in root.iter("dt")]
    numbers = dict(zip(names, map(text_of, root.iter("dd")), strict=True))
    assert numbers == {
        "accepted": "1",
        "in an earlier run": "1",
        "unknown": "1",
        "refused": "1",
        "failed": "1",
        "not tried": "1",
        "took": "8.0 s",
        "delivered": "1,000 bytes",
        "rate": "125 bytes/s",
        "sent more than once, 33.3% of all bytes sent": "1,000 bytes",
        "waited, all documents together": "2.0 s",
        "room was taken (409)": "1 time",
    }


def test_the_table() -> None:
    """A row for each document, in the order of the input, whatever order they ended in."""
    outcomes = [*one_of_each().outcomes, outcome(6, size=None, document="https://files.example/x")]
    root = parse(page_of(report_of(reversed(outcomes))))
    table = by_id(root, "outcomes")
    assert table is not None
    head, *rows = [[text_of(cell) for cell in row] for row in table.iter("tr")]
    assert head == [*("#", "Room", "Document", "Size", "Outcome", "Attempts", "Seconds", "Message")]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5", "6", "7"]
    assert rows[0][1:] == [
        *("room01", "deck.pdf", "1,000 bytes", "✓ accepted", "2", "4.00", "file uploaded")
    ]
    assert [row[4] for row in rows[1:]] == [
        *("? unknown", "✕ refused", "✕ failed", "○ skipped", "✓ resumed", "✓ accepted")
    ]
    assert rows[2][7] == str(refusal("room02", 400, "BAD", "no presenter"))
    assert [row[7] for row in rows[4:6]] == [
        *("Connect failed: connection refused", "accepted in an earlier run")
    ]
    assert rows[6][2:4] == ["https://files.example/x", ""]


# --- little to tell ------------------------------------------------------------------------------


def test_a_batch_of_nothing() -> None:
    """A page, without a timeline or a table."""
    root = parse(page_of(report_of([])))
    assert [by_id(root, name) for name in ("attention", "timeline", "outcomes")] == [None] * 3
    assert [*by_class(root, "note")] == []


def test_totals_only() -> None:
    """Without outcomes the numbers are there, and the page says why the rest is not."""
    report = BatchReport(keep=False, seconds=1.0)
    report.add(outcome())
    root = parse(page_of(report))
    assert [by_id(root, name) for name in ("timeline", "outcomes")] == [None, None]
    (note,) = by_class(root, "note")
    assert "kept its totals only" in text_of(note)
    assert next(root.iter("dd")).text == "1"


# --- what is hostile -----------------------------------------------------------------------------

HOSTILE = (
    *("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onload='alert(1)"),
    *("</title><script>", "</style><b>", "</script><b>", "--><!--", "]]>", "&lt;b&gt;", "&#60;"),
    *(
        "\u202efdp.exe",
        "\u2066x",
        "\x1b[2J",
        "\x00",
        "\ud800",
        "\ufffe",
        "a\r\nb",
        "`${1}`",
        "</svg>",
    ),
)
hostile = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=5), min_size=1).map("".join)


def page_with(room: str, name: str, msg: str) -> str:
    """Make a page that shows a room, a name and a message everywhere it can."""
    tried = (attempt(verdict="partial", reason=msg), attempt(2, 2.0, body_seconds=0.5))
    error = refusal(room, 400, msg, msg)
    error.add_note(msg)
    outcomes = [
        outcome(0, f"1{room}", name, attempts=tried, seconds=3.0),
        ending(1, "refused", error, room_id=f"2{room}", document=name, attempts=tried),
        ending(2, "unknown", unknown(room, name, 1), room_id=f"3{room}", document=name),
    ]
    return page_of(report_of(outcomes, stopped_by=ValueError(msg)), title=name, server=msg)


PLAIN = skeleton(parse(page_with("room", "name", "msg")))


@settings(fuzz, max_examples=60)
@given(room=hostile, name=hostile, msg=hostile)
def test_names_and_messages_stay_text(room: str, name: str, msg: str) -> None:
    """Whatever they contain, the page has the same elements and attributes, and shows them."""
    html = page_with(room, name, msg)
    assert html == html.encode().decode()
    root = parse(html)
    assert skeleton(root) == PLAIN
    table = by_id(root, "outcomes")
    assert table is not None
    row = [*table.iter("tr")][2]
    assert [text_of(row[1]), text_of(row[2])] == [printable(f"2{room}"), printable(name)]
    assert printable(msg) in text_of(row[7]) or "\\" in text_of(row[7])


# --- ten thousand --------------------------------------------------------------------------------


def test_ten_thousand_documents() -> None:
    """A thousand rooms: a page within seconds of work, of a size that browsers take."""
    report = report_of(term(1000, 10))
    began = time.process_time()
    html = page_of(report)
    if sys.gettrace() is None:  # a coverage tool makes it many times slower
        assert time.process_time() - began < 3.0
    assert len(html.encode()) < 6_000_000
    assert html.count('<tr id="n') == 10_000
    assert html.count('<svg class="row"') == 200
