"""A batch as it is shown: rooms, sums, estimates, a picture and lines. No server and no loop."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from _properties import fuzz
from _terminal import Terminal, lines_of
from meeting_async import (
    Attempt,
    AttemptStarted,
    BytesSent,
    Event,
    Finished,
    Queued,
    RetryScheduled,
    UploadOutcome,
    WaitingForRoom,
    WaitingUntilActive,
    errors,
)
from meeting_async.cli._batch_display import (
    MARGIN,
    BatchLines,
    BatchPicture,
    batch_display_on,
    fitted,
)
from meeting_async.cli._batch_rooms import BatchRooms
from meeting_async.cli._batch_tally import (
    ENOUGH_DOCUMENTS,
    ENOUGH_SECONDS,
    SAMPLES,
    Queues,
    Tally,
    readable_time,
)
from meeting_async.cli._console import console_on


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what would tell rich how to draw."""
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def event(kind: type[Event], room_id: str = "room01", **facts: Any) -> Event:
    """Make an event of an upload."""
    common: Mapping[str, Any] = {"operation": "room/uploadWhiteboardFile", "document": "deck.pdf"}
    return kind(**{"call": 1, "room_id": room_id, **common, **facts})


def sent(room_id: str, share: float, *, total: int = 1000) -> Event:
    """Tell how much of a document is out."""
    return event(BytesSent, room_id, attempt=1, sent=int(share * total), total=total)


def locked(room_id: str, attempt: int = 1) -> Event:
    """Tell that a room is locked."""
    return event(WaitingForRoom, room_id, attempt=attempt, retry_in=8.0, waited=1.0, max_wait=330.0)


def begin(room_id: str, attempt: int = 1) -> Event:
    """Tell that an attempt begins."""
    return event(AttemptStarted, room_id, attempt=attempt)


def end(room_id: str) -> Event:
    """Tell that an upload is over."""
    return event(Finished, room_id, verdict="accepted", attempts=1, seconds=1.0)


def outcome(index: int = 0, room_id: str = "room01", **facts: Any) -> UploadOutcome:
    """Make an outcome of an upload that was tried, and took two seconds."""
    attempt = Attempt(1, 0.0, 2.0, "accepted", 200, "accepted", 1000)
    given_facts = {"status": "accepted", "attempts": (attempt,), "seconds": 2.0, **facts}
    return UploadOutcome(index=index, room_id=room_id, document="deck.pdf", **given_facts)


# --- rooms ---------------------------------------------------------------------------------------

STORIES = [
    ([begin("r")], "sending 0 %"),
    ([begin("r", 2)], "sending 0 % (attempt 2)"),
    ([begin("r"), sent("r", 0.4399)], "sending 43 %"),
    ([begin("r"), sent("r", 0.9999)], "sending 99 %"),
    ([begin("r"), sent("r", 1.0)], "processing"),
    ([begin("r", 3), sent("r", 1.0)], "processing (attempt 3)"),
    ([begin("r"), locked("r", 3)], "waiting for the lock (attempt 3, next in 7 s)"),
    ([event(Queued, "r", shut_for=0.0)], "waiting for its turn"),
    ([event(Queued, "r", shut_for=9.0)], "shut after an unknown outcome, goes on in 8 s"),
    (
        [event(RetryScheduled, "r", attempt=1, retry_in=0.5, verdict="partial", reason="reset")],
        "attempt 2 in 0 s: reset",
    ),
    (
        [event(WaitingUntilActive, "r", retry_in=2.0, waited=0.0, max_wait=60.0)],
        "waiting for the room to become active",
    ),
    ([locked("r"), begin("r", 2)], "sending 0 % (attempt 2)"),
    ([begin("r"), event(Event, "r")], "sending 0 %"),
]


@pytest.mark.parametrize(("story", "words"), STORIES, ids=[words for _, words in STORIES])
def test_what_a_room_is_doing(story: list[Event], words: str) -> None:
    """In a few words, a second after the last event."""
    rooms = BatchRooms()
    for happened in story:
        rooms.hear(happened, 100.0)
    (row,) = rooms.visible(9)
    assert row.words(101.0) == words
    assert rooms.moving == row.is_moving


def test_rooms_come_and_go() -> None:
    """With their documents; calls that are no uploads say nothing."""
    rooms = BatchRooms()
    rooms.hear(event(AttemptStarted, document=None, attempt=1), 0.0)
    rooms.hear(event(AttemptStarted, room_id=None, attempt=1), 0.0)  # type: ignore[arg-type]
    rooms.hear(end("unheard"), 0.0)
    assert (rooms.active, rooms.moving) == (0, 0)
    rooms.hear(begin("a"), 0.0)
    rooms.hear(locked("b"), 0.0)
    assert (rooms.active, rooms.moving) == (2, 1)
    rooms.hear(end("a"), 0.0)
    rooms.hear(end("b"), 0.0)
    assert (rooms.active, rooms.moving, rooms.visible(9)) == (0, 0, [])


def test_an_outcome_is_told_later_than_the_next_document_begins() -> None:
    """Then the room shows the next document; but a wait for a room ends without an event."""
    rooms = BatchRooms()
    rooms.hear(end("a"), 0.0)
    rooms.hear(begin("a"), 0.0)
    rooms.over("a")
    assert rooms.active == 1
    rooms.hear(locked("a"), 0.0)
    rooms.over("a")
    assert rooms.active == 1
    rooms.hear(event(WaitingUntilActive, "b", retry_in=2.0, waited=0.0, max_wait=60.0), 0.0)
    rooms.over("b")
    rooms.over("c")
    assert [row.room_id for row in rooms.visible(9)] == ["a"]


def test_trouble_comes_first_and_oldest_first() -> None:
    """And stays where it is while it tries again; the others get half of the space."""
    rooms = BatchRooms()
    for name in "abcdef":
        rooms.hear(begin(name), 0.0)
    rooms.hear(locked("e"), 0.0)
    rooms.hear(locked("b"), 0.0)
    rooms.hear(begin("e", 2), 0.0)
    assert [row.room_id for row in rooms.visible(9)] == [*"ebacdf"]
    assert [row.room_id for row in rooms.visible(3)] == [*"eac"]
    for name in "dfc":
        rooms.hear(locked(name), 0.0)
    assert [row.room_id for row in rooms.visible(4)] == [*"ebda"]
    assert [row.room_id for row in rooms.visible(0)] == []


def test_bytes_are_counted_once_for_each_time_they_are_sent() -> None:
    """In pieces, and again in another attempt."""
    rooms = BatchRooms()
    for happened in (begin("a"), sent("a", 0.5), sent("a", 1.0), locked("a"), begin("a", 2)):
        rooms.hear(happened, 0.0)
    rooms.hear(sent("a", 0.25), 0.0)
    assert rooms.bytes_sent == 1250


# --- sums and estimates --------------------------------------------------------------------------


@fuzz
@given(st.lists(st.sampled_from("abc")), st.data())
def test_the_longest_queue_is_always_known(rooms: list[str], data: st.DataObject) -> None:
    """In whatever order documents end."""
    tally = Tally.of(rooms, size=0, now=0.0)
    left = list(rooms)
    for room in data.draw(st.permutations(rooms)):
        assert tally.queues.longest == max(map(left.count, "abc"))
        tally.queues.shorten(room)
        left.remove(room)
    assert tally.queues.longest == 0
    tally.queues.shorten("unheard of")


def tally_of(documents: int, rooms: int = 1000) -> Tally:
    """Begin a batch at second 100."""
    return Tally.of((f"room{n % rooms}" for n in range(documents)), size=documents * 10, now=100.0)


def test_no_estimate_before_something_is_known() -> None:
    """Neither right after the beginning, nor from documents that were not even tried."""
    tally = tally_of(100)
    for index in range(50):
        tally.add(outcome(index, status="skipped", attempts=()), 10)
    assert (tally.done, tally.resumed, tally.size_done) == (50, 50, 500)
    assert tally.time_left(200.0) is None
    for index in range(ENOUGH_DOCUMENTS - 1):
        tally.add(outcome(index), 10)
    assert tally.time_left(200.0) is None
    tally.add(outcome(), 10)
    assert tally.time_left(100.0 + ENOUGH_SECONDS / 2) is None
    assert tally.time_left(200.0) is not None


def test_time_left_follows_the_speed() -> None:
    """Of the last half minute, once there is one."""
    tally = tally_of(1000)
    for index in range(100):
        tally.add(outcome(index, f"room{index}"), 10)
        tally.sample(100.0 + index / 10, index * 1000)
    assert tally.time_left(110.0) == pytest.approx(90.0)
    assert tally.speed(110.0, 99_000) == pytest.approx(9_900)
    for index in range(100, 400):  # ten times slower
        tally.add(outcome(index, f"room{index}"), 10)
        tally.sample(110.0 + (index - 100), index * 1000)
    assert tally.time_left(410.0) == pytest.approx(600, rel=0.05)
    assert tally.speed(410.0, 400_000) == pytest.approx(1000, rel=0.05)


def test_the_longest_queue_sets_the_least() -> None:
    """Documents of a room go one after another, however fast the other rooms are."""
    tally = Tally.of(["hot"] * 50 + [f"room{n}" for n in range(50)], size=0, now=100.0)
    for index in range(50):
        tally.add(outcome(index, f"room{index}"), 0)
    assert tally.time_left(105.0) == pytest.approx(50 * 2.0)


def test_nothing_left_takes_no_time() -> None:
    """And a batch without documents is over."""
    tally = tally_of(ENOUGH_DOCUMENTS)
    for index in range(ENOUGH_DOCUMENTS):
        tally.add(outcome(index, f"room{index}"), 10)
    assert tally.time_left(200.0) == 0.0


def test_samples_are_few() -> None:
    """However often they are taken, and however long the batch takes."""
    tally = tally_of(10)
    for tick in range(10_000):
        tally.sample(100.0 + tick / 8, tick)
    assert len(tally._samples) == SAMPLES
    assert tally.speed(100.0, 0) is None
    assert Queues().longest == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (250, "4 min 10 s"), (7505, "2 h 5 min")],
)
def test_readable_time(seconds: float, text: str) -> None:
    """As exact as an estimate can be."""
    assert readable_time(seconds) == text


# --- the picture ---------------------------------------------------------------------------------


def drawn(picture: BatchPicture, terminal: Terminal) -> list[str]:
    """Draw one frame and return its lines."""
    console = console_on(terminal.stream)
    with console.capture() as capture:
        console.print(picture.frame())
    return [line.rstrip() for line in lines_of(capture.get())]


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """Open a terminal of 24 lines of 80 columns."""
    opened = Terminal()
    yield opened
    if not opened.stream.closed:
        opened.close()


def test_the_picture_has_a_bar_and_a_line_for_each_room(terminal: Terminal) -> None:
    """With all that is known, and no more."""
    tally = Tally.of(["room01"] * 3 + ["room02"], size=4 * 2**20, now=time.monotonic())
    picture = BatchPicture(console_on(terminal.stream), tally, BatchRooms())
    picture(begin("room01"))
    picture(sent("room01", 0.43))
    picture(locked("room02", 3))
    picture.over(outcome(), 2**20)
    picture.over(outcome(1, status="skipped", attempts=()), 0)
    picture.over(outcome(2, status="unknown", error=errors.MeetingError()), 0)
    picture.note("finishing 1 upload")
    head, sums, locked_room, sending, note = drawn(picture, terminal)
    assert head == f"3 of 4 documents  {'━' * 16}╸{'━' * 5}  75 %  time left —"
    assert sums == "1 accepted  1 accepted before  1 unknown   1.0 MiB of 4.0 MiB  — MiB/s"
    assert locked_room == "room02  deck.pdf  waiting for the lock (attempt 3, next in 8 s)"
    assert sending == "room01  deck.pdf  sending 43 %"
    assert note == "finishing 1 upload"


def test_the_picture_fits_the_terminal(terminal: Terminal) -> None:
    """However many rooms there are, and however long their names."""
    tally = tally_of(100)
    picture = BatchPicture(console_on(terminal.stream), tally, BatchRooms())
    for number in range(50):
        name = f"room{number:02}{'-漢' * number}"
        picture(event(WaitingForRoom, name, document=name + ".pdf", attempt=12, retry_in=300.0,
                      waited=1.0, max_wait=9.0))  # fmt: skip
    lines = drawn(picture, terminal)
    rows = console_on(terminal.stream).size.height - MARGIN
    assert len(lines) == 2 + rows + 1
    assert lines[-1] == f"and {50 - rows} more rooms"
    assert lines[2].endswith("waiting for the lock (attempt 12, next in 300 s)")
    assert max(map(cell_len, lines)) <= 80
    assert "room17-漢-漢-…  room17-漢-漢-…  " in lines[2 + 17]


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [("ab", 4, "ab  "), ("abcd", 4, "abcd"), ("abcde", 4, "abc…"), ("漢字漢", 4, "漢 …")],
)
def test_fitted(text: str, width: int, shown: str) -> None:
    """By columns, not characters."""
    assert fitted(text, width) == shown


def test_nothing_in_a_picture_steers_the_terminal(terminal: Terminal) -> None:
    """Names and reasons come from elsewhere."""
    picture = BatchPicture(console_on(terminal.stream), tally_of(1), BatchRooms())
    evil = "[red]\x1b[2J\u202e"
    picture(event(RetryScheduled, evil, document=evil, attempt=1, retry_in=1.0, verdict="partial",
                  reason=evil))  # fmt: skip
    shown = drawn(picture, terminal)[2]
    assert shown.count("[red]\ufffd[2J\ufffd") == 3


def test_frames_while_events_come(terminal: Terminal) -> None:
    """Another thread draws; nothing is raised, and nothing is lost."""
    rooms = BatchRooms()
    picture = BatchPicture(console_on(terminal.stream), tally_of(4000), rooms)
    frames = 0
    stop = threading.Event()

    def draw() -> None:
        nonlocal frames
        while not stop.is_set():
            picture.frame()
            frames += 1

    thread = threading.Thread(target=draw)
    thread.start()
    for number in range(4000):
        picture(begin(f"room{number}"))
        picture(sent(f"room{number}", 1.0))
        if number >= 100:
            picture(end(f"room{number - 100}"))
    stop.set()
    thread.join()
    assert frames > 0
    assert (rooms.active, rooms.moving, rooms.bytes_sent) == (100, 100, 4_000_000)


def test_a_picture_vanishes(terminal: Terminal) -> None:
    """What it showed is erased, and the cursor is back."""
    picture = batch_display_on(
        console_on(terminal.stream), tally_of(1), BatchRooms(), is_plain=False
    )
    assert isinstance(picture, BatchPicture)
    with picture:
        picture(begin("room01"))
        picture.tick()
    shown = terminal.close()
    assert "room01" in shown
    assert "\x1b[?25h" in shown
    assert lines_of(shown.rpartition("\x1b[2K")[2]) == []


def test_an_event_costs_the_same_however_many_rooms_there_are(terminal: Terminal) -> None:
    """And so does a frame: only what is seen is drawn."""

    def measured(count: int) -> tuple[float, float]:
        picture = BatchPicture(console_on(terminal.stream), tally_of(1), BatchRooms())
        for number in range(count):
            picture(locked(f"room{number}"))
        return _seconds(lambda: picture(locked("room5"))), _seconds(picture.frame)

    few, many = measured(50), measured(20_000)
    assert many[0] < 10 * few[0]
    assert many[1] < 10 * few[1]


def _seconds(function: Callable[[], object]) -> float:
    """Return what the quickest of many calls takes."""
    times = []
    for _ in range(50):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


# --- lines ---------------------------------------------------------------------------------------


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One when asked for, never broken; a dumb terminal gets them, too, and so does who asks."""
    now = 100.0
    monkeypatch.setattr("meeting_async.cli._batch_display.time.monotonic", lambda: now)
    monkeypatch.setenv("COLUMNS", "20")
    stream = io.StringIO()
    lines = batch_display_on(console_on(stream), tally_of(1000), BatchRooms(), is_plain=False)
    assert isinstance(lines, BatchLines)
    with lines:
        lines(begin("room01"))
        lines(sent("room01", 1.0))
        lines(locked("room02"))
        lines.note("is printed by somebody else")
        lines.tick()
        now = 110.0
        for index in range(10):
            lines.over(outcome(index, f"room{index}", status="failed" if index else "accepted"), 10)
        lines.over(outcome(10, "room10", status="skipped", attempts=()), 10)
        lines.tick()
    first, second = stream.getvalue().splitlines()
    assert first == (
        "0 of 1,000 documents: 0 accepted; 0 bytes of 9.8 KiB, — MiB/s, time left —; "
        "1 under way, 1 waiting"
    )
    assert second == (
        "11 of 1,000 documents: 1 accepted, 1 accepted before, 9 failed; 110 bytes of 9.8 KiB, "
        "100 bytes/s, time left 16 min 29 s; 1 under way, 1 waiting"
    )


def test_who_asks_for_lines_gets_them(terminal: Terminal) -> None:
    """Such as whoever writes objects to the same terminal."""
    console = console_on(terminal.stream)
    display = batch_display_on(console, tally_of(1), BatchRooms(), is_plain=True)
    assert isinstance(display, BatchLines)


def test_the_picture_of_the_documentation_needs_nothing_else() -> None:
    """Rich would have it load a font from a network."""
    svg = (Path(__file__).parent.parent / "docs" / "batch" / "display.svg").read_text("utf-8")
    assert "waiting for the lock" in svg.replace("&#160;", " ")
    assert "@font-face" not in svg
    assert {*re.findall(r"https?://[^\s\"<]+", svg)} <= {
        "http://www.w3.org/2000/svg", "https://www.textualize.io"
    }  # fmt: skip
    assert {*re.findall(r"url\((.)", svg)} == {"#"}
