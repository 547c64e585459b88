"""The rooms of a batch over time: bars where the attempts say, rows in the order of interest."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from _html import SVG, by_class, by_id, drawings, parse, text_of
from _page_reports import attempt, outcome, page_of, report_of, term, unknown
from _properties import fuzz
from meeting_async import errors
from meeting_async._jobs import UploadOutcome
from meeting_async.cli import _timeline
from meeting_async.cli._amounts import moment
from meeting_async.cli._bars import bars_of, rows_of
from meeting_async.cli._timeline import MOST_ROWS, MOST_TICKS, step_of

LOST = errors.ConnectFailed("connection refused")
BUSY = {"verdict": "busy", "status": 409}

# Taken at 1.5 s and free at the second try; then one that gave up after its only attempt; then
# one that was sent and never answered. In a batch of 10 s.
LITERAL = [
    outcome(
        0,
        started=1.0,
        seconds=5.0,
        attempts=(attempt(1, 0.5, 1.0, **BUSY), attempt(2, 2.5, 2.5, body_seconds=1.0)),
    ),
    outcome(
        1,
        document="b.pdf",
        status="failed",
        error=LOST,
        started=6.0,
        seconds=2.0,
        attempts=(attempt(1, 0.0, 0.5, verdict="never sent", reason="refused"),),
    ),
    outcome(
        2,
        document="c.pdf",
        status="unknown",
        error=unknown("room01", "c.pdf", 1000),
        started=8.5,
        seconds=1.5,
        attempts=(attempt(1, 0.0, 1.5, verdict="unknown", status=None, body_seconds=0.25),),
    ),
]


def svg_rows(html: str) -> list[Element]:
    """Return the drawing of each room."""
    return [drawing for drawing in drawings(html) if drawing.get("class") == "row"]


def rooms_of(html: str) -> list[str]:
    """Return the rooms in the order of their rows."""
    return [text_of(room) for room in by_class(parse(html), "room")]


# --- bars ----------------------------------------------------------------------------------------


def test_bars_are_where_the_attempts_say() -> None:
    """Waits before, between and after the attempts; an attempt splits when its body is out."""
    (row,) = svg_rows(page_of(report_of(LITERAL, seconds=10.0)))
    bars = [
        (rect.get("class"), rect.get("x"), rect.get("width")) for rect in row.iter(f"{SVG}rect")
    ]
    assert bars == [
        ("wait", "10%", "5%"),
        ("wait", "25%", "10%"),
        ("wait", "65%", "15%"),
        ("busy", "15%", "10%"),
        ("send", "35%", "10%"),
        ("work", "45%", "15%"),
        ("lost", "60%", "5%"),
        ("send", "85%", "2.5%"),
        ("work", "87.5%", "12.5%"),
    ]
    marks = [(mark.get("class"), mark.get("cx")) for mark in row.iter(f"{SVG}circle")]
    assert marks == [("bad", "80%"), ("unknown", "100%")]


def test_each_bar_says_what_it_is() -> None:
    """As the tooltip of the bar, and in a sentence for those who do not see the row."""
    (row,) = svg_rows(page_of(report_of(LITERAL, seconds=10.0)))
    titles = [text_of(shape[0]) for shape in row if shape.tag != f"{SVG}use"]
    assert titles[3:5] == [
        "deck.pdf, attempt 1: room taken (409) for 1.0 s from 1.5 s on",
        "deck.pdf, attempt 2: sending for 1.0 s from 3.5 s on",
    ]
    assert titles[6] == "b.pdf, attempt 1: refused: in vain for 500 ms from 6.0 s on"
    assert titles[-1] == "c.pdf: may or may not have arrived"
    assert row.get("role") == "img"
    assert row.get("aria-label") == (
        "room01: 1 of 3 documents in the room, sending 1.2 s, processing 2.8 s, waiting 3.0 s, "
        "room taken (409) 1.0 s, in vain 500 ms; over after 10.0 s"
    )


def test_kinds_differ_in_more_than_colour() -> None:
    """No two kinds of bar have both height and outline in common."""
    html = page_of(report_of(LITERAL, seconds=10.0))
    (legend,) = by_class(parse(html), "legend")
    style = next(parse(html).iter("style")).text or ""
    assert len([*legend]) == 7
    looks = {
        (rect.get("height"), f".{name}{{fill" in style, f".{name}{{stroke-dasharray" in style)
        for rect in legend.iter("rect")
        for name in [rect.get("class")]
    }
    assert len(looks) == 5


def test_the_legend_tells_what_is_there() -> None:
    """And nothing else."""
    (legend,) = by_class(parse(page_of(report_of([outcome()]))), "legend")
    assert [text_of(item) for item in legend] == ["sending", "processing, until the answer"]


def test_what_is_too_short_to_see_is_drawn() -> None:
    """At about a pixel; a wait too short to be one is not."""
    short = outcome(started=2.0, seconds=0.0104, attempts=(attempt(1, 0.0004, 0.01),))
    (row,) = svg_rows(page_of(report_of([short], seconds=18_000.0)))
    assert [(r.get("class"), r.get("width")) for r in row.iter(f"{SVG}rect")] == [("send", "0.1%")]


times = st.floats(0, 1000, allow_nan=False)


@fuzz
@given(begin=times, gaps=st.lists(st.tuples(times, times, st.floats(0, 1)), max_size=5), rest=times)
def test_bars_cover_an_upload(
    begin: float, gaps: list[tuple[float, float, float]], rest: float
) -> None:
    """Without overlaps, and without holes but those too short to count."""
    clock, tries = 0.0, []
    for number, (gap, seconds, share) in enumerate(gaps, 1):
        tries.append(attempt(number, clock + gap, seconds, body_seconds=seconds * share))
        clock += gap + seconds
    whole = outcome(started=begin, seconds=clock + rest, attempts=tuple(tries))
    reached = begin
    for bar in bars_of(whole):
        assert reached - 1e-6 <= bar.start <= reached + 0.0011
        assert bar.end >= bar.start
        reached = bar.end
    assert reached == pytest.approx(begin + whole.seconds, abs=0.0011)


@fuzz
@given(started=times, seconds=times, status=st.sampled_from(["accepted", "failed", "unknown"]))
def test_every_drawing_is_xml(started: float, seconds: float, status: Any) -> None:
    """Whatever the times, even none: well-formed, and within the row."""
    error = None if status == "accepted" else LOST
    tries = (attempt(1, 0.0, seconds / 2), attempt(2, seconds / 2, seconds / 2))
    facts: dict[str, Any] = {"started": started, "seconds": seconds, "attempts": tries}
    lone = outcome(status=status, error=error, **facts)
    rows = [row for row in drawings(page_of(report_of([lone]))) if row.get("class") == "row"]
    for shape in (shape for row in rows for shape in row.iter(f"{SVG}rect")):
        x, width = (float(shape.get(name, "")[:-1]) for name in ("x", "width"))
        assert 0 <= x <= x + width <= 100.001


# --- rows ----------------------------------------------------------------------------------------


def at(room_id: str, end: float, **facts: Any) -> UploadOutcome:
    """Return an upload of a second to a room, over at ``end``."""
    return outcome(0, room_id, started=end - 1.0, **facts)


def test_rooms_come_in_the_order_of_interest() -> None:
    """The room that ended last, those with trouble, the others; each group from its end."""
    tried = {"attempts": (attempt(verdict="partial"),), "seconds": 1.0}
    bad = {"status": "failed", "error": LOST, **tried}
    outcomes = [
        *(at("calm", 5.0), at("bad", 2.0, **bad), at("late", 9.0), at("worse", 3.0, **bad)),
        *(at("calmer", 4.0), at("bad", 2.5)),
    ]
    assert [row.room_id for row in rows_of(outcomes)] == ["late", "worse", "bad", "calm", "calmer"]
    assert rooms_of(page_of(report_of(outcomes))) == ["late", "worse", "bad", "calm", "calmer"]


def test_a_room_in_which_nothing_was_tried_has_no_row() -> None:
    """It would be an empty one; without any room there is no timeline."""
    doomed = outcome(1, "doomed", status="skipped", error=LOST)
    assert rooms_of(page_of(report_of([outcome(), doomed]))) == ["room01"]
    assert by_id(parse(page_of(report_of([doomed]))), "timeline") is None
    waited = attrs.evolve(doomed, seconds=2.0)
    assert rooms_of(page_of(report_of([outcome(), waited]))) == ["doomed", "room01"]


def test_a_check_before_the_first_attempt_is_marked() -> None:
    """A document that was refused unsent takes no time, and yet is what is wrong with the room."""
    unsent = outcome(1, status="refused", error=errors.DocumentEmpty("x"), started=0.5)
    (row,) = svg_rows(page_of(report_of([outcome(), unsent])))
    assert [(c.get("class"), c.get("cx")) for c in row.iter(f"{SVG}circle")] == [("bad", "50%")]
    assert "1 of 2" in text_of(next(iter(by_class(parse(page_of(report_of([unsent, outcome()]))),
                                                  "trouble"))))  # fmt: skip


def test_many_rooms_are_cut_and_counted() -> None:
    """The page says how many are left out, and where they are."""
    html = page_of(report_of(term(MOST_ROWS + 34, 1)))
    assert len(svg_rows(html)) == MOST_ROWS
    (note,) = by_class(parse(html), "note")
    assert "Drawn are the first 200 of 234 rooms; the other 34 are in the table only." in " ".join(
        text_of(note).split()
    )
    (note,) = by_class(parse(page_of(report_of(term(MOST_ROWS, 1)))), "note")
    assert "Drawn" not in text_of(note)


def test_many_bars_end_the_timeline_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rooms with very many documents count for more."""
    monkeypatch.setattr(_timeline, "MOST_BARS", 100)
    assert len(svg_rows(page_of(report_of(term(10, 20))))) in {2, 3}


# --- the axis ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("span", "labels"),
    [
        (0.2, ["0", "50 ms", "100 ms", "150 ms", "200 ms"]),
        (3.0, ["0", "0.5 s", "1 s", "1.5 s", "2 s", "2.5 s", "3 s"]),
        (75.0, ["0", "10 s", "20 s", "30 s", "40 s", "50 s", "1 min", "1 min 10 s"]),
        (18_000.0, ["0", "1 h", "2 h", "3 h", "4 h", "5 h"]),
        (10_000.0, ["0", "30 min", "1 h", "1 h 30 min", "2 h", "2 h 30 min"]),
        (864_000.0, ["0", "48 h", "96 h", "144 h", "192 h", "240 h"]),
    ],
)
def test_ticks_are_numbers_that_people_count_in(span: float, labels: list[str]) -> None:
    """From a fifth of a second to ten days."""
    html = page_of(report_of([outcome(seconds=span / 2)], seconds=span))
    (axis,) = (drawing for drawing in drawings(html) if drawing.get("class") == "axis")
    ticks = [*axis.iter(f"{SVG}text")]
    assert [tick.text for tick in ticks] == labels
    step = 100 * step_of(span) / span
    for number, (tick, line) in enumerate(zip(ticks, axis.iter(f"{SVG}line"), strict=True)):
        assert tick.get("x") == line.get("x1") == line.get("x2")
        assert float(tick.get("x", "")[:-1]) == pytest.approx(number * step, abs=0.001)


@fuzz
@given(span=st.floats(_timeline.LEAST_SPAN, 1e8))
def test_no_axis_is_crowded(span: float) -> None:
    """At most eight steps, and at least one."""
    step = step_of(span)
    assert span / step <= MOST_TICKS * (1 + 1e-9)
    assert span / step > 1
    assert moment(step, span)


def test_the_axis_goes_to_the_end_of_the_batch() -> None:
    """Also if the batch went on after its last document, or its own time is not known yet."""
    whole = [outcome(started=1.0)]
    (row,) = svg_rows(page_of(report_of(whole, seconds=4.0)))
    assert [rect.get("x") for rect in row.iter(f"{SVG}rect")] == ["25%", "35%"]
    report = attrs.evolve(report_of(whole), seconds=0.0)
    report.add(whole[0])
    (row,) = svg_rows(page_of(report))
    assert [rect.get("x") for rect in row.iter(f"{SVG}rect")] == ["50%", "70%"]
