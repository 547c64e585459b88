"""The promises of the README, against a server that may lie; in virtual time."""

from __future__ import annotations

import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from meeting_async import Finished, MeetingClient, Verdict
from meeting_async.errors import ConnectFailed, MeetingError, UploadOutcomeUnknown
from meeting_async.testing import run_in_virtual_time
from support.adversary import FAULTS, TRUTH, Adversary

SMALL, MEDIUM, LARGE = 300, 70_000, 270_000
"""Bytes: its own question; worth a question; worth a look."""

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
    faults: list[str]
    processing: float
    cut_at: float
    locks: dict[str, list[tuple[float, float]]]
    delivery: str
    answers_questions: bool
    seconds_per_byte: float


EXCHANGE = 0.02
"""Seconds that small requests take here."""


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
    return Schedule(
        uploads=uploads,
        faults=draw(st.just([]) | st.lists(st.sampled_from([TRUTH, *FAULTS]), max_size=12)),
        processing=draw(st.sampled_from([0.1, 2, 100, 290])),
        cut_at=draw(st.sampled_from([0.01, 0.5, 0.99])),
        locks={room: draw(st.lists(lock, max_size=2)) for room in rooms},
        delivery=draw(st.sampled_from(["at_most_once", "at_least_once"])),
        answers_questions=draw(st.booleans()),
        seconds_per_byte=draw(st.sampled_from([0, 1e-5])),
    )


async def play(schedule: Schedule) -> tuple[Adversary, list[Ended]]:
    """Let everybody do what the schedule says."""
    adversary = Adversary(
        iter(schedule.faults),
        processing=schedule.processing,
        cut_at=schedule.cut_at,
        locked_at=schedule.locks,
        answers_questions=schedule.answers_questions,
        seconds_per_byte=schedule.seconds_per_byte,
    )
    ended: list[Ended] = []
    client = MeetingClient(
        "https://meet.example.com",
        api_key="k",
        api_secret="s",
        transport=adversary,
        delivery=schedule.delivery,  # type: ignore[arg-type]  # one of the two
    )
    async with client, anyio.create_task_group() as group:
        for upload in schedule.uploads:
            group.start_soon(_upload, client, upload, ended)
    return adversary, ended


async def _upload(client: MeetingClient, upload: Upload, ended: list[Ended]) -> None:
    await anyio.sleep(upload.begins)
    began, result = anyio.current_time(), Ended(upload, 0)

    def on_event(event: object) -> None:
        if isinstance(event, Finished):
            result.finished.append(event)
        if upload.on_event == "raises":
            raise ZeroDivisionError

    try:
        result.receipt = await client.upload_whiteboard_file(
            upload.room,
            upload.content,
            filename=upload.name,
            max_wait=upload.max_wait,
            timeout=upload.timeout,
            on_event=on_event,
        )
    except MeetingError as error:
        result.error = error
    result.seconds = anyio.current_time() - began
    ended.append(result)


def check(schedule: Schedule, adversary: Adversary, ended: list[Ended]) -> None:
    """Hold what happened against the README."""
    assert len(ended) == len(schedule.uploads)
    counts = Counter(arrival.name for arrival in adversary.stored)
    for arrival in adversary.stored:
        upload = next(upload for upload in schedule.uploads if upload.name == arrival.name)
        assert (arrival.room, arrival.content) == (upload.room, upload.content)
    for result in ended:
        check_outcome(schedule, result, counts[result.upload.name])
        check_limits(schedule, adversary, result)
        assert len(result.finished) == 1, "a call ends once"
    check_pace(adversary)


def check_outcome(schedule: Schedule, result: Ended, stored: int) -> None:
    """Every document reaches its room once, or the caller is told exactly what is known."""
    finished = result.finished[0].verdict
    if schedule.delivery == "at_most_once":
        assert stored <= 1, "a document is in its room twice"
    if result.receipt is not None:
        assert stored >= 1, "accepted, and not there"
        assert result.receipt.document == result.upload.name
        assert finished is Verdict.ACCEPTED
    elif isinstance(result.error, UploadOutcomeUnknown):
        assert finished is Verdict.UNKNOWN
    else:
        assert stored == 0, f"in the room, and the caller was told: {result.error!r}"
        assert finished not in {Verdict.ACCEPTED, Verdict.UNKNOWN}


def check_limits(schedule: Schedule, adversary: Adversary, result: Ended) -> None:
    """A call ends within its timeout; waiting never exceeds max_wait."""
    upload = result.upload
    if upload.timeout is not None:
        assert result.seconds <= upload.timeout + GRACE
    if upload.max_wait is None or schedule.faults:  # sending again is not waiting for the room
        return
    forms = [at for at, name in adversary.forms if name == upload.name]
    refused = [at for at, name in adversary.refusals if name == upload.name]
    if refused:
        assert max(forms) - min(refused) <= upload.max_wait + EXCHANGE
    elif forms:
        began = adversary.made + upload.begins
        assert min(forms) - began <= upload.max_wait + EXCHANGE, "the queue counts, too"


def check_pace(adversary: Adversary) -> None:
    """At most one attempt in 0.25 s for each call."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for at, name in adversary.forms:
        by_name[name].append(at)
    for times in by_name.values():
        for before, after in itertools.pairwise(times):
            assert after - before >= MIN_SECONDS_APART


@pytest.fixture(autouse=True)
def log_is_not_kept() -> Iterator[None]:
    """Else pytest keeps every record of thousands of schedules, and what their errors hold."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


NO_CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
"""Without shrinking, which takes longer than a test may: run it by hand to get a small example."""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=250, deadline=None, phases=PHASES, suppress_health_check=NO_CHECKS)
@given(schedule=schedules())
def test_promises(backend: str, schedule: Schedule) -> None:
    """Whatever a proxy says after the server has accepted: once, or told what is known."""
    check(schedule, *run_in_virtual_time(play, schedule, backend=backend))


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=5000, deadline=None, phases=PHASES, suppress_health_check=NO_CHECKS)
@given(schedule=schedules())
def test_promises_at_length(backend: str, schedule: Schedule) -> None:
    """The same, ten thousand times."""
    check(schedule, *run_in_virtual_time(play, schedule, backend=backend))


MANY = 1000
"""Uploads that meet a dead server."""


async def dead_server(back_at: float) -> tuple[Adversary, list[Ended], list[float]]:
    """Let many uploads meet a server to which nobody gets through until a moment."""
    adversary = Adversary(iter(()), processing=0)
    tries: list[float] = []
    answer = adversary.send

    async def send(request: Any) -> Any:
        tries.append(anyio.current_time() - adversary.made)
        if tries[-1] < back_at:
            raise ConnectFailed("nobody listens")
        return await answer(request)

    adversary.send = send  # type: ignore[method-assign]  # nobody listens
    client = MeetingClient(
        "https://meet.example.com", api_key="k", api_secret="s", transport=adversary
    )
    ended: list[Ended] = []
    async with client, anyio.create_task_group() as group:
        for number in range(MANY):
            upload = Upload(f"{number}.pdf", f"room{number}", SMALL, 0, None, None, "listens")
            group.start_soon(_upload, client, upload, ended)
    return adversary, ended, tries


def test_a_dead_server_is_given_up() -> None:
    """A thousand uploads are told within max_outage (60 s) plus one backoff (20 s at most)."""
    _, ended, tries = run_in_virtual_time(dead_server, 10_000)
    assert len(ended) == MANY
    assert {type(result.error) for result in ended} == {ConnectFailed}
    assert max(result.seconds for result in ended) <= 60 + 20
    assert max(Counter(int(at * 4) for at in tries if at > 1).values()) < MANY / 2


def test_a_server_that_comes_back_is_not_flooded() -> None:
    """When the server returns, waiting uploads do not start in one instant, and all arrive."""
    adversary, ended, tries = run_in_virtual_time(dead_server, 30)
    assert len(adversary.stored) == MANY
    assert all(result.receipt for result in ended)
    after = Counter(int(at * 10) for at in tries if at >= 30)
    assert max(after.values()) < 100, "a tenth of them in a tenth of a second"
