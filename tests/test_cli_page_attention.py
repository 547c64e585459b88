"""What the page of a batch says first: the documents that need somebody, grouped by reason."""

from __future__ import annotations

from _html import by_class, by_id, parse, text_of
from _page_reports import ending, one_of_each, outcome, page_of, refusal, report_of
from meeting_async import errors
from meeting_async._report import BatchReport


def attention(report: BatchReport) -> list[str]:
    """Return the headings and the groups that are listed under it."""
    section = by_id(parse(page_of(report)), "attention")
    found = () if section is None else section.iter()
    return [text_of(element) for element in found if element.tag in {"h3", "summary"}]


def test_the_most_urgent_comes_first() -> None:
    """Unknown before refused before failed before what was not tried; the good is left out."""
    report = one_of_each()
    report.stopped_by = ValueError()
    assert attention(report) == [
        "The batch was stopped",
        "May or may not have arrived: 1",
        (
            "Upload outcome unknown: no reply within 330 s after the document was out "
            "1 document in 1 room"
        ),
        "Refused: 1",
        "Request refused: no presenter (HTTP 400 BAD) 1 document in 1 room",
        "Failed: 1",
        "Connect failed: connection refused 1 document in 1 room",
        "Not tried: 1",
        "Connect failed: connection refused 1 document in 1 room",
    ]


def test_nothing_needs_attention() -> None:
    """Then there is no such section."""
    assert attention(report_of([outcome(), outcome(1, status="skipped", error=None)])) == []


def test_what_stopped_the_batch() -> None:
    """In full, with its hints, escaped."""
    error = errors.TransportError("<nobody> answers")
    error.add_note("Is the & address right?")
    root = parse(page_of(report_of([], stopped_by=error), total=5))
    (stop,) = by_class(root, "stop")
    assert [text_of(line) for line in stop] == [
        *("The batch was stopped", "<nobody> answers", "Is the & address right?")
    ]


def test_one_reason_is_told_once() -> None:
    """The same refusal in many rooms is one group, the largest first; it is cut and shut."""
    skipped = [
        ending(
            i, "skipped", refusal(f"r{i}", 404, "ROOM_NOT_FOUND", "no room"), room_id=f"r{i % 7}"
        )
        for i in range(120)
    ]
    other = ending(120, "skipped", errors.DocumentEmpty("e.pdf"), document="e.pdf")
    root = parse(page_of(report_of([other, *skipped])))
    groups = [*root.iter("details")]
    assert [text_of(next(group.iter("summary"))) for group in groups] == [
        "Room not found: no room (HTTP 404 ROOM_NOT_FOUND) 120 documents in 7 rooms",
        "Document empty 1 document in 1 room",
    ]
    assert [group.get("open") for group in groups] == [None, ""]
    items = [text_of(item) for item in groups[0].iter("li")]
    assert items[0] == "r0: deck.pdf"
    assert items[100:] == ["and 20 more, all in the table"]
