"""The promises of docs/delivery.md, against a server that may lie; in virtual time."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter, defaultdict
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from adversary import (
    EARLY,
    FAULTS,
    KINDS,
    LATE,
    LIES,
    MIDWAY,
    NO_ANSWERS,
    NO_SERVER,
    OPPOSITE,
    OWN_THROTTLE,
    QUESTION_FAULTS,
    SIGHTS,
    TRUTH,
    WHO,
    Adversary,
    Step,
)
from meeting_async import Finished, MeetingClient, UploadJob, UploadReceipt, Verdict
from meeting_async.errors import (
    ConnectFailed,
    DocumentMisplaced,
    MeetingError,
    ProcessingFailed,
    RequestRefused,
    RoomBusy,
    UploadOutcomeUnknown,
)
from meeting_async.testing import run_in_virtual_time
from support.tables import crossed, in_turn

pytestmark = pytest.mark.usefixtures("log_is_not_kept")

SMALL, MEDIUM, LARGE = 300, 70_000, 270_000
"""Bytes: sent without a form before it; with one; several chunks."""

WITHOUT_A_FORM = 64 * 1024
"""Bytes: a larger document is preceded by an empty form."""

GRACE = 0.25
"""Seconds by which a call may outlast its timeout."""

MIN_SECONDS_APART = 0.25
"""Between two attempts of a call."""


@attrs.frozen
class Upload:
    """What a caller asks for."""

    name: str
    room: str
    size: int
    begins: float
    max_wait: float | None
    timeout: float | None
    on_event: str

    @property
    def content(self) -> bytes:
        """Bytes that no other upload has."""
        return (f"%PDF {self.name} ".encode() * (self.size // 8))[: self.size]


@attrs.frozen
class Schedule:
    """What everybody does."""

    uploads: list[Upload]
    delivery: Any
    server: dict[str, Any]
    """The settings of an :class:`Adversary`."""
    once_per: Any = "session"
    """``"room"``: each is a batch of its own."""


EXCHANGE = 0.01
"""Seconds that a small request takes here at most."""


@attrs.define
class Ended:
    """What a caller saw."""

    upload: Upload
    seconds: float
    receipt: Any = None
    error: Exception | None = None
    finished: list[Finished] = attrs.field(factory=list)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Draw what everybody does."""
    seconds = st.floats(0, 20, allow_nan=False)
    rooms = ["room1", "room2"]
    uploads = [
        Upload(
            name=f"{number}.pdf",
            room=draw(st.sampled_from(rooms)),
            size=draw(st.sampled_from([SMALL, MEDIUM, LARGE])),
            begins=draw(seconds),
            max_wait=draw(st.sampled_from([None, None, 0, 0.1, 3, 40])),
            timeout=draw(st.sampled_from([None, None, 0.2, 2, 30, 400])),
            on_event=draw(st.sampled_from(["listens", "raises"])),
        )
        for number in range(draw(st.integers(1, 5)))
    ]
    lock = st.tuples(seconds, st.sampled_from([0.3, 5, 60, 299]))
    said: st.SearchStrategy[list[str]] = st.just([]) | st.lists(
        st.sampled_from([TRUTH, *QUESTION_FAULTS]), max_size=6
    )
    server = st.fixed_dictionaries({
        "faults": st.just([]) | st.lists(st.sampled_from([TRUTH, *FAULTS]), max_size=12),
        "processing": st.sampled_from([0.1, 2, 100, 290]),
        "cut_at": st.sampled_from([0.01, 0.5, 0.99]),
        "locked_at": st.fixed_dictionaries(dict.fromkeys(rooms, st.lists(lock, max_size=2))),
        "answers_questions": st.booleans(),
        "seconds_per_byte": st.sampled_from([0, 1e-5]),
        "checks": said,
        "answers": said,
        "sights": st.just([]) | st.lists(st.sampled_from([TRUTH, *SIGHTS]), max_size=12),
        "absent": st.sampled_from([[], [], [], [], ["room1"]]),
        "restarts": st.lists(seconds, max_size=3),
        "ends": st.just([]) | st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 6))),
        "people": st.sampled_from([0, 0, 0, 3000]),
        "is_endless": st.sampled_from([*[False] * 19, True]),
    })  # fmt: skip
    delivery = draw(st.sampled_from(["at_most_once", "at_least_once", *["exactly_once"] * 2]))
    return Schedule(uploads, delivery, draw(server), draw(st.sampled_from(["session", "room"])))


async def play(schedule: Schedule) -> tuple[Adversary, list[Ended]]:
    """Let everybody do what the schedule says."""
    adversary, ended = Adversary(**schedule.server), list[Ended]()
    client = MeetingClient(
        "https://meet.example.com",
        api_key="k",
        api_secret="s",
        transport=adversary,
        delivery=schedule.delivery,
    )
    async with client, anyio.create_task_group() as group:
        for upload in schedule.uploads:
            group.start_soon(_upload, client, upload, ended, schedule.once_per)
    await anyio.sleep(LATE)
    adversary.deliver_kept()
    return adversary, ended


async def _upload(client: MeetingClient, upload: Upload, ended: list[Ended], once_per: Any) -> None:
    await anyio.sleep(upload.begins)
    WHO.set(upload.name)
    began, result = anyio.current_time(), Ended(upload, 0)

    def on_event(event: object) -> None:
        if isinstance(event, Finished):
            result.finished.append(event)
        if upload.on_event == "raises":
            raise ZeroDivisionError

    how: dict[str, Any] = {"max_wait": upload.max_wait, "timeout": upload.timeout}
    content, name = upload.content, upload.name
    try:
        if once_per == "session":
            result.receipt = await client.upload_whiteboard_file(
                upload.room, content, filename=name, on_event=on_event, **how
            )
        else:
            job = UploadJob(upload.room, content, filename=name)
            many = client.upload_many([job], once_per=once_per, on_event=on_event, **how)
            async with many as batch:
                (outcome,) = (await batch.wait()).outcomes
            result.receipt, result.error = outcome.receipt, outcome.error
    except MeetingError as error:
        result.error = error
    result.seconds = anyio.current_time() - began
    ended.append(result)


def check(schedule: Schedule, adversary: Adversary, ended: list[Ended]) -> None:
    """Hold what happened against docs/delivery.md."""
    assert len(ended) == len(schedule.uploads)
    sessions = defaultdict[str, list[str]](list)
    for arrival in adversary.stored:
        upload = next(upload for upload in schedule.uploads if upload.name == arrival.name)
        assert (arrival.room, arrival.content) == (upload.room, upload.content)
        sessions[arrival.name].append(arrival.session)
    for result in ended:
        check_outcome(schedule, result, sessions[result.upload.name])
        check_verdict(result)
        check_early(schedule, adversary, result)
        check_limits(adversary, result)
        check_end(adversary, result)
    check_pace(adversary)
    check_steps(schedule, adversary)


def check_outcome(schedule: Schedule, result: Ended, stored: list[str]) -> None:
    """Every document reaches its room once, or the caller is told exactly what is known.

    What has gone with its session is sent to the next one, if that is wanted.
    """
    if schedule.delivery != "at_least_once":
        assert len(stored) == len({*stored}), "a document is in a session twice"
    is_once = schedule.delivery == "at_most_once"
    if is_once or (schedule.delivery, schedule.once_per) == ("exactly_once", "room"):
        assert len(stored) <= 1, "a document is in its room twice"
    if result.receipt is not None:
        assert stored, "accepted, and not there"
        assert result.receipt.document == result.upload.name
        assert not result.receipt.found or result.receipt.session in stored
    else:
        assert not isinstance(result.error, DocumentMisplaced)
    if not (result.receipt or isinstance(result.error, UploadOutcomeUnknown)):
        assert not stored, f"in the room, and the caller was told: {result.error!r}"


def check_verdict(result: Ended) -> None:
    """A call ends once, and its last event says how."""
    assert len(result.finished) == 1, "a call ends once"
    (finished,) = result.finished
    assert finished.error is result.error
    assert (finished.verdict is Verdict.ACCEPTED) == (result.receipt is not None)
    is_unknown = isinstance(result.error, UploadOutcomeUnknown)
    assert (finished.verdict is Verdict.UNKNOWN) == is_unknown
    for kind, verdict in VERDICTS.items():
        if isinstance(result.error, kind):
            assert finished.verdict is verdict


VERDICTS: dict[type[MeetingError], Verdict] = {
    RoomBusy: Verdict.BUSY,
    RequestRefused: Verdict.REFUSED,
    ProcessingFailed: Verdict.FAILED,
}


def check_early(schedule: Schedule, adversary: Adversary, result: Ended) -> None:
    """A success whose head came before the last byte of the form leaves the outcome unknown."""
    if schedule.delivery == "at_most_once" and result.upload.name in adversary.early:
        assert isinstance(result.error, UploadOutcomeUnknown), "what was said early counted"


def check_limits(adversary: Adversary, result: Ended) -> None:
    """A call ends within its timeout; waiting never exceeds max_wait."""
    upload = result.upload
    if upload.timeout is not None:
        assert result.seconds <= upload.timeout + GRACE
    if upload.max_wait is None or adversary.faults or adversary.checks or adversary.answers:
        return  # sending and asking again is not waiting for the room
    steps = [step for step in adversary.steps if step.who == upload.name]
    sent = [step.at for step in steps if step.what == "document"]
    if not sent:
        return
    locked = [step.at for step in steps if step.says == "locked"]
    began = locked[0] if locked else adversary.made + upload.begins  # the queue counts, too
    busy = EXCHANGE * len(steps) + upload.size * adversary.seconds_per_byte * (len(sent) - 1)
    assert sent[-1] - began <= upload.max_wait + busy


def check_end(adversary: Adversary, result: Ended) -> None:
    """Where only questions go wrong, and nobody else is there, the truth decides."""
    upload, wrong = result.upload, [*adversary.checks, *adversary.answers]
    wrong = [fault for fault in wrong if fault != TRUTH]
    if {*adversary.faults} - {TRUTH} or adversary.is_endless or any(adversary.locked_at.values()):
        return
    if adversary.processing > 100 or not adversary.answers_questions or any(adversary.dead):
        return  # locks may follow each other until the upload gives up
    is_short = len(wrong) <= 3 and wrong.count("silence") <= 1
    is_limited = upload.max_wait is not None or upload.timeout is not None
    if {*adversary.checks} <= {TRUTH, OPPOSITE} and not {*adversary.answers} - {TRUTH}:
        if upload.room in adversary.absent:
            assert isinstance(result.error, RequestRefused) or (is_limited and result.error)
        elif not is_limited:
            assert result.receipt is not None, f"the room was there and free: {result.error!r}"
    elif {*wrong} <= {*NO_ANSWERS} and is_short and not is_limited and not adversary.absent:
        assert result.receipt is not None, f"some questions had no answer: {result.error!r}"


def check_pace(adversary: Adversary) -> None:
    """At most one attempt in 0.25 s for each call, and none before the server wants one."""
    by_name: dict[tuple[str, str], list[Step]] = defaultdict(list)
    come_back: dict[str, float] = {}
    for step in adversary.steps:
        assert step.at >= come_back.get(step.who, 0), "before the server wanted to be asked again"
        come_back[step.who] = step.come_back
        by_name[step.what, step.who].append(step)
    for (what, _), steps in by_name.items():
        for before, after in itertools.pairwise(steps):
            apart = after.at - before.at + 1e-6  # floats are rounded
            assert apart >= MIN_SECONDS_APART, f"{what}: again at once"


def check_steps(schedule: Schedule, adversary: Adversary) -> None:
    """Check, form, document: in each attempt, and on each instance of the server."""
    sizes = {upload.name: upload.size for upload in schedule.uploads}
    past: dict[str, list[Step]] = defaultdict(list)
    is_truthful, has_failed = adversary.answers_questions, False
    in_need: set[str] = set()
    lost, is_proven = Counter[str](), False
    for step in adversary.steps:
        assert step.was_asked, f"a {step.what} to an instance that was not asked about its room"
        is_truthful &= step.is_true
        if step.what == "check":
            (in_need.add if has_failed else in_need.discard)(step.who)
        if step.what == "document":
            is_taken = any(earlier.says in {"doubt", "locked"} for earlier in past[step.who])
            is_large = sizes[step.who] > WITHOUT_A_FORM
            needs_form = is_large or is_taken or (has_failed and step.who in in_need)
            # Two documents got 409 right after *free*, and no form ever did: it stops asking.
            needs_form &= is_truthful and (is_proven or lost[step.who] < 2)
            check_document(past[step.who], step, needs_form=needs_form)
        if step.what == "document answer" and step.says == "locked":
            lost[step.who] += 1
        is_proven |= step.what == "form answer" and step.says == "locked"
        if step.says == "failed" or (step.what == "form answer" and step.says):
            has_failed = step.says == "failed"
        past[step.who].append(step)


def check_document(past: list[Step], step: Step, *, needs_form: bool) -> None:
    """Directly before a document its room was checked, and found to be free if that is needed."""
    form = past[-1] if past and past[-1].what == "form answer" else None
    check = past[-3 if form else -1] if past else step
    assert check.what == "check answer", "a document before a check in the same attempt"
    assert check.says, "sent although the check had no answer"
    assert step.at - check.at < MIN_SECONDS_APART, "the document does not follow at once"
    assert form or not needs_form, "sent without a form before it"
    assert form or check.says == "active", "sent to a room that was denied"
    assert not form or form.says == "free", f"sent after a form that said {form.says!r}"


NO_CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
"""Without shrinking, which takes longer than a test may: run it by hand to get a small example."""


def one(
    number: int = 0,
    room: int = 1,
    size: int = LARGE,
    begins: float = 0,
    max_wait: float | None = None,
    timeout: float | None = None,
) -> Upload:
    """Make an upload without limits of its own, unless it is given some."""
    return Upload(f"{number}.pdf", f"room{room}", size, begins, max_wait, timeout, "listens")


def alone(
    *faults: str,
    size: int = LARGE,
    uploads: list[Upload] | None = None,
    delivery: str = "at_most_once",
    once_per: str = "session",
    **facts: Any,
) -> Schedule:
    """Let one upload meet some faults, and none of the limits that a caller may set."""
    server = {"faults": faults, "processing": 2, "seconds_per_byte": 1e-6, **facts}
    return Schedule(uploads or [one(size=size)], delivery, server, once_per)


IN_TURN = [one(max_wait=0), one(1, begins=1)]
"""The first does not wait for the room."""
SEVERAL = [one(number, number % 3, [SMALL, LARGE][number % 2], number * 5.0) for number in range(6)]
HURRIED = [one(timeout=2)]

EXAMPLES: dict[str, Schedule] = {
    "nothing happens": alone(),
    "nothing happens to a small one": alone(size=SMALL),
    **{f"success {how}": alone(how) for how in EARLY},
    **{f"success {how}, small": alone(how, size=SMALL) for how in EARLY},
    **{f"success {how}, twice": alone(how, delivery="at_least_once") for how in EARLY},
    "reset in the boundary": alone("reset in the boundary"),
    **{f"check: {how}": alone(checks=[how]) for how in QUESTION_FAULTS},
    **{f"check for 4 s: {how}": alone(checks=[how] * 4) for how in NO_ANSWERS},
    **{f"check in a hurry: {how}": alone(checks=[how] * 4, uploads=HURRIED) for how in NO_ANSWERS},
    **{f"form: {how}": alone(answers=[how]) for how in QUESTION_FAULTS},
    **{f"form for 4 s: {how}": alone(answers=[how] * 3) for how in NO_ANSWERS},
    **{f"form between 409s: {how}": alone(*["409"] * 3, answers=[TRUTH, how, TRUTH, how])
       for how in NO_ANSWERS},
    **{f"form after {how}": alone("502", answers=[TRUTH, how], delivery="at_least_once")
       for how in [*NO_ANSWERS, OWN_THROTTLE, OPPOSITE]},
    **{f"check after 502: {how}": alone("502", checks=[TRUTH, how], delivery="at_least_once")
       for how in [*NO_ANSWERS, *NO_SERVER, OPPOSITE]},
    **{f"cut refusal: {how}": alone(how) for how in MIDWAY},
    **{f"lost, then sent again, small: {how}": alone(how, size=SMALL, delivery="at_least_once")
       for how in LIES},
    **{f"found out after {how}": alone(how, delivery="exactly_once", uploads=SEVERAL[:3])
       for how in [*LIES, *EARLY]},
    **{f"not told: {how}": alone("reset", "reset", delivery="exactly_once", sights=[how] * 60)
       for how in SIGHTS},
    **{f"told after all: {how}": alone("502", delivery="exactly_once", sights=[how] * 3)
       for how in SIGHTS},
    **{f"not told, and denied: {how}": alone("reset", delivery="exactly_once", sights=[how] * 60,
                                             checks=[TRUTH, *[OPPOSITE] * 60])
       for how in SIGHTS},
    **{f"a session ends before {kind} {number}, {sights} not shown": alone(
           TRUTH, "502", delivery="exactly_once", once_per="room", uploads=SEVERAL[::3],
           sights=[TRUTH, *["503"] * sights], ends=[(kind, number)])
       for sights, most in ((0, [1, 1, 2, 2]), (30, [6, 5, 2, 20]))
       for kind, last in zip(KINDS, most, strict=True) for number in range(1, last + 1)},
    **{f"gone with its session, then {how}": alone(
           TRUTH, "502", *faults, delivery="exactly_once", uploads=SEVERAL[::3],
           ends=[("sight", 2)])
       for how, faults in {"lost": ["early, dropped"] * 9, "refused": ["refuse"],
                           "failed": ["fail"]}.items()},
    "restarts that nobody sees": alone(uploads=SEVERAL, restarts=[4, 9, 14, 19, 24]),
    "restarts, and a failure": alone("fail", uploads=SEVERAL, restarts=[4, 14]),
    "failures": alone(TRUTH, "fail", "fail", uploads=SEVERAL),
    "closes after each answer": alone(checks=[TRUTH, "closed"] * 3, answers=["closed", TRUTH] * 2),
    "3,000 people": alone(people=3000),
    "3,000 people, small": alone(people=3000, size=SMALL),
    "nobody there": alone(absent=["room1"]),
    "nobody there, and the check is wrong": alone(absent=["room1"], checks=[OPPOSITE]),
    "free and 409 in turn": alone(*[TRUTH, "409"] * 3, answers=[OPPOSITE, TRUTH] * 3),
    "locked, and called free": alone(locked_at={"room1": [(0, 60)]}, answers=[OPPOSITE] * 6),
    "one gives up, another follows": alone(locked_at={"room1": [(0, 60)]}, uploads=IN_TURN),
}  # fmt: skip


@in_turn("schedule", EXAMPLES.items(), loop="backend")
def test_promises_by_example(backend: str, schedule: Schedule) -> None:
    """What proxies made of questions and answers, one kind of trouble at a time."""
    adversary, ended = run_in_virtual_time(play, schedule, backend=backend)
    check(schedule, adversary, ended)
    assert adversary.ended == len(adversary.ends), "no session has ended: the row shows nothing"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=100, deadline=None, phases=PHASES, suppress_health_check=NO_CHECKS)
@given(schedule=schedules())
def test_promises_hold_whatever_a_proxy_says(backend: str, schedule: Schedule) -> None:
    """Each document is accepted once, or the error says what is known of it."""
    check(schedule, *run_in_virtual_time(play, schedule, backend=backend))


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=300, deadline=None, phases=PHASES, suppress_health_check=NO_CHECKS)
@given(schedule=schedules())
def test_promises_hold_six_hundred_times(backend: str, schedule: Schedule) -> None:
    """The same, six hundred times."""
    check(schedule, *run_in_virtual_time(play, schedule, backend=backend))


# --- a document that is always too late ----------------------------------------------------------

CHANCE, LOTS = random.Random(1), 2000
"""More answers than anybody gets."""
SAYS: dict[str, list[str]] = {
    "free": [],
    "409": [OPPOSITE] * LOTS,
    "in turn": [OPPOSITE, TRUTH] * LOTS,
    "free after one 409": [OPPOSITE],
    "free after ten": [OPPOSITE] * 10,
    **{f"{share} % at random": CHANCE.choices([TRUTH, OPPOSITE], [share, 100 - share], k=LOTS)
       for share in (5, 50, 90)},
}  # fmt: skip
"""What forms are told while every document gets 409."""


LIMITS = {"an hour": (3600, 2700, 3601, "trio"), "no limit": (None, 225, 335, "asyncio")}
"""``max_wait``, the seconds that are waited at least and at most, and an event loop."""


@crossed(says=SAYS, size={"small": SMALL, "medium": MEDIUM, "large": LARGE}, limit=LIMITS)
def test_an_hour_costs_two_hundred_documents(
    says: list[str], size: int, limit: tuple[float | None, float, float, str]
) -> None:
    """At most, as the adversary counts; an upload that may wait gives up neither sooner nor later.

    Without ``max_wait`` that is 300 s and 30 s after its first 409.
    """
    max_wait, least, most, backend = limit
    waiting = alone(uploads=[one(size=size, max_wait=max_wait)], is_endless=True, answers=says)
    adversary, (ended,) = run_in_virtual_time(play, waiting, backend=backend)
    check(waiting, adversary, [ended])
    assert isinstance(ended.error, RoomBusy)
    assert least <= ended.seconds <= most


# --- a dead server -------------------------------------------------------------------------------

ALWAYS = (0, 10_000)
CALLS = {"at once": [0] * 10, "one after another": range(10), "late": [0, 30, 50, *[55] * 7]}
LATER = {"no limit": (None, None), "later ones wait 5 s": (None, 5), "all wait 5 s": (5, 5)}
"""``max_wait`` of the first upload, and of those behind it."""
OUTAGES: dict[str, tuple[dict[str, Any], list[Upload], list[type]]] = {
    **{f"{calls}, {how}": (
        {"dead": ALWAYS},
        [one(number, begins=begins, max_wait=LATER[how][number > 0])
         for number, begins in enumerate(CALLS[calls])],
        [ConnectFailed] * 10)
       for calls, how in itertools.product(CALLS, LATER)},
    "it dies during an upload": (
        {"dead": (1, 10_000), "seconds_per_byte": 2e-5},
        [one(), one(1, begins=0.5), one(2, begins=0.5, max_wait=20), one(3, begins=0.5, timeout=9)],
        [UploadReceipt, ConnectFailed, ConnectFailed, MeetingError],
    ),
    "it is over": (
        {"dead": (0, 3), "seconds_per_byte": 4e-4},
        [one(), one(1, begins=0.1, max_wait=2), one(2, begins=20, max_wait=2)],
        [UploadReceipt, ConnectFailed, RoomBusy],
    ),
}  # fmt: skip


@in_turn("outage", OUTAGES.items(), loop="backend")
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_all_uploads_to_a_room_are_told_of_an_outage(
    backend: str, outage: tuple[dict[str, Any], list[Upload], list[type]], size: int
) -> None:
    """Each in time, with ``ConnectFailed``; a room that nobody has is not busy.

    An upload that had begun is delivered; when the server is back, waiting is waiting again.
    """
    server, uploads, expected = outage
    if "seconds_per_byte" not in server:
        uploads = [attrs.evolve(upload, size=size) for upload in uploads]
    schedule = alone(uploads=uploads, **server)
    adversary, ended = run_in_virtual_time(play, schedule, backend=backend)
    check(schedule, adversary, ended)
    ended.sort(key=lambda result: result.upload.name)
    for result, kind in zip(ended, expected, strict=True):
        assert isinstance(result.receipt or result.error, kind)
        if isinstance(result.error, ConnectFailed):
            assert result.seconds <= 61.5 + (ended[0].seconds if ended[0].receipt else 0)
            assert (result.error.room_id, result.error.document) == ("room1", result.upload.name)
            assert re.search(r"after .*\d s.*; nothing was sent$", str(result.error))


MANY = 200
"""Uploads that meet a dead server."""


def test_a_server_that_comes_back_is_not_flooded() -> None:
    """Neither while it is dead nor when it returns do many come in one instant; all arrive."""
    uploads = [one(number, number, SMALL) for number in range(MANY)]
    schedule = alone(uploads=uploads, dead=(0, 30), processing=0)
    adversary, ended = run_in_virtual_time(play, schedule)
    check(schedule, adversary, ended)
    assert all(result.receipt for result in ended)
    before = Counter(int(step.at * 4) for step in adversary.steps if 1 < step.at < 30)
    assert max(before.values()) < MANY / 2
    after: dict[int, set[str]] = defaultdict(set)
    for step in adversary.steps:
        if step.at >= 30:
            after[int(step.at * 10)].add(step.who)
    assert max(map(len, after.values())) < MANY / 5, "a fifth of them in a tenth of a second"
