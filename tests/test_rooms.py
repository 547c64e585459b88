"""The turnstile: one upload per room at a time, in order, and shut while a lock may be our own."""

import gc
import logging
import time
import tracemalloc
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import attrs
import httpx
import pytest

from _fakes import (
    Act,
    EventRecorder,
    FakeTransport,
    Take,
    accepted,
    busy,
    failing,
    hanging,
    record,
    reply,
)
from meeting_async import (
    Event,
    HttpxTransport,
    LockPolicy,
    MeetingClient,
    Queued,
    RetryPolicy,
    RoomGate,
    Turnstile,
)
from meeting_async._rooms import OnWait, common_turnstile, room_name
from meeting_async.errors import (
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    ProcessingFailed,
    RequestRefused,
    RoomBusy,
    UploadInterrupted,
    UploadOutcomeUnknown,
)
from meeting_async.testing import MeetingServer

pytestmark = pytest.mark.anyio

PDF = b"%PDF-1.7\nslides\n%%EOF\n"
InVirtualTime = Callable[..., Any]


async def settle() -> None:
    """Let every other task run until it waits."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


class Visitors:
    """Tasks that pass a turnstile, one open at a time, and say so."""

    def __init__(self, turnstile: Turnstile) -> None:
        self.turnstile = turnstile
        self.inside: list[str] = []
        self.order: list[str] = []
        self.leave: dict[str, anyio.Event] = {}
        self.scopes: dict[str, anyio.CancelScope] = {}

    async def visit(self, name: str, room_id: str = "room01") -> None:
        """Go in and stay until told to leave."""
        self.leave[name] = anyio.Event()
        with anyio.CancelScope() as self.scopes[name]:
            async with self.turnstile.turn(room_id):
                self.inside.append(name)
                self.order.append(name)
                try:
                    await self.leave[name].wait()
                finally:
                    self.inside.remove(name)


def remembers_nothing(turnstile: Turnstile) -> bool:
    """Whether every collection in a turnstile is empty."""
    return not any(attrs.asdict(turnstile, recurse=False).values())


# --- the turnstile by itself ---------------------------------------------------------------------


async def test_a_room_is_entered_in_order_of_arrival_and_alone() -> None:
    """Twenty visitors of one room go through one by one, first come, first served."""
    visitors = Visitors(Turnstile())
    names = [f"v{number}" for number in range(20)]
    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(visitors.visit, name)
            await settle()
        for name in names:
            assert visitors.inside == [name]
            visitors.leave[name].set()
            await settle()
    assert visitors.order == names


async def test_rooms_do_not_know_each_other() -> None:
    """A room that is taken stops nobody on the way to another one."""
    visitors = Visitors(Turnstile())
    async with anyio.create_task_group() as group:
        group.start_soon(visitors.visit, "a", "room01")
        group.start_soon(visitors.visit, "b", "room02")
        await settle()
        assert sorted(visitors.inside) == ["a", "b"]
        assert visitors.turnstile.must_wait("room01")
        assert not visitors.turnstile.must_wait("room03")
        group.cancel_scope.cancel()


@pytest.mark.parametrize("cancelled", ["first", "second", "third"])
async def test_a_cancelled_visitor_leaves_no_hole(cancelled: str) -> None:
    """Inside, next in line or behind: whoever goes away, the others go through in order."""
    visitors = Visitors(Turnstile())
    names = ["first", "second", "third", "fourth"]
    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(visitors.visit, name)
            await settle()
        visitors.scopes[cancelled].cancel()
        await settle()
        for name in names:
            visitors.leave[name].set()
            await settle()
    assert [name for name in visitors.order if name != cancelled] == [
        name for name in names if name != cancelled
    ]
    assert not visitors.turnstile.must_wait("room01")
    assert remembers_nothing(visitors.turnstile)


async def test_an_error_inside_lets_the_next_one_in() -> None:
    """What is raised inside comes out as it is, and the room is free."""
    turnstile = Turnstile()
    with pytest.raises(ZeroDivisionError):
        async with turnstile.turn("room01"):
            raise ZeroDivisionError
    assert not turnstile.must_wait("room01")
    async with turnstile.turn("room01"):
        assert turnstile.must_wait("room01")


def test_a_shut_room_opens_to_the_second(in_virtual_time: InVirtualTime) -> None:
    """A shut room lets the next one in when its time is over, and not before; others are open."""

    async def main() -> None:
        turnstile = Turnstile()
        await turnstile.shut("room01", 300)
        assert turnstile.shut_for("room01") == 300
        assert turnstile.must_wait("room01")
        assert turnstile.shut_for("room02") == 0
        async with turnstile.turn("room02"):
            assert anyio.current_time() == 0
        await anyio.sleep(100)
        assert turnstile.shut_for("room01") == 200
        async with turnstile.turn("room01"):
            assert anyio.current_time() == 300
        assert turnstile.shut_for("room01") == 0
        assert not turnstile.must_wait("room01")

    in_virtual_time(main)


def test_a_room_that_is_shut_twice_opens_when_both_times_are_over(
    in_virtual_time: InVirtualTime,
) -> None:
    """Two uploads of unknown outcome: the lock may be that of either, whichever is told last."""

    async def main() -> None:
        turnstile = Turnstile()
        await turnstile.shut("room01", 300)
        await turnstile.shut("room01", 100)
        assert turnstile.shut_for("room01") == 300
        await anyio.sleep(250)
        await turnstile.shut("room01", 100)
        assert turnstile.shut_for("room01") == 100

    in_virtual_time(main)


def test_who_gives_up_before_a_shut_room_leaves_it_shut(in_virtual_time: InVirtualTime) -> None:
    """Cancelled while the room is shut: the next in line still waits for the same moment."""

    async def main() -> None:
        turnstile = Turnstile()
        await turnstile.shut("room01", 300)
        with anyio.move_on_after(100) as scope:
            async with turnstile.turn("room01"):
                pytest.fail("the room is shut")
        assert scope.cancelled_caught
        assert anyio.current_time() == 100
        async with turnstile.turn("room01"):
            assert anyio.current_time() == 300

    in_virtual_time(main)


def test_shutting_again_counts_from_then(in_virtual_time: InVirtualTime) -> None:
    """The latest word on a room counts; rooms shut for different times open one by one."""

    async def main() -> None:
        turnstile = Turnstile()
        await turnstile.shut("long", 500)
        await turnstile.shut("room01", 100)
        await anyio.sleep(50)
        await turnstile.shut("room01", 300)
        async with turnstile.turn("room01"):
            assert anyio.current_time() == 350
        async with turnstile.turn("long"):
            assert anyio.current_time() == 500

    in_virtual_time(main)


def test_ten_thousand_rooms_leave_nothing_behind(in_virtual_time: InVirtualTime) -> None:
    """Rooms that were used, waited for, given up or shut are forgotten when they idle."""

    async def visit(turnstile: Turnstile, room_id: str) -> None:
        with anyio.move_on_after(2):
            async with turnstile.turn(room_id):
                await anyio.sleep(3 if room_id.endswith("7") else 1)

    async def main() -> None:
        turnstile = Turnstile()
        async with anyio.create_task_group() as group:
            for number in range(10_000):
                group.start_soon(visit, turnstile, f"room{number}")
                if number % 100 == 0:
                    group.start_soon(visit, turnstile, f"room{number}")
        for number in range(1_000):
            await turnstile.shut(f"room{number}", 300)
        await anyio.sleep(301)
        async with turnstile.turn("another"):
            pass
        assert remembers_nothing(turnstile)

    in_virtual_time(main)


async def test_a_refusal_to_wait_gives_the_place_up() -> None:
    """What ``on_wait`` raises comes out as it is, and those behind move up."""
    visitors = Visitors(Turnstile())
    order: list[str] = []

    async def refuse(_shut_for: float) -> None:
        raise ZeroDivisionError

    async with anyio.create_task_group() as group:
        group.start_soon(visitors.visit, "first")
        await settle()
        with pytest.raises(ZeroDivisionError):
            async with visitors.turnstile.turn("room01", refuse):
                order.append("never")
        visitors.leave["first"].set()
    assert not order
    assert remembers_nothing(visitors.turnstile)


async def test_ten_thousand_idle_rooms_take_no_memory() -> None:
    """Less than a byte for each room that was used."""
    turnstile = common_turnstile()

    async def use(rooms: int) -> None:
        for number in range(rooms):
            async with turnstile.turn(f"https://meet.test:443/auth room{number}"):
                pass

    await use(100)
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        await use(10_000)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 10_000


@pytest.mark.alone
async def test_ten_thousand_shut_rooms_slow_no_turn() -> None:
    """A turn takes about as long as with none, by the fastest of several rounds."""

    async def seconds(turnstile: Turnstile) -> float:
        rounds = []
        for _ in range(7):
            began = time.perf_counter()
            for _ in range(200):
                async with turnstile.turn("room01"):
                    pass
            rounds.append(time.perf_counter() - began)
        return min(rounds)

    crowded = Turnstile()
    for number in range(10_000):
        await crowded.shut(f"room{number + 2}", 300)
    assert await seconds(crowded) < 3 * await seconds(Turnstile())


# --- all clients of one event loop ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "room"),
    [
        ("https://meet.test/auth", "https://meet.test:443/auth r"),
        ("HTTPS://MEET.test:443/auth", "https://meet.test:443/auth r"),
        ("http://127.0.0.1:8080/auth", "http://127.0.0.1:8080/auth r"),
        ("http://localhost/auth", "http://localhost:80/auth r"),
        ("https://meet.test/b/auth", "https://meet.test:443/b/auth r"),
        ("https://[::1]/auth", "https://::1:443/auth r"),
    ],
)
def test_a_room_has_one_name(base: str, room: str) -> None:
    """Capitals and the default port make no other server; paths and ports do."""
    assert room_name(base, "r") == room


def test_clients_of_one_server_take_turns(in_virtual_time: InVirtualTime) -> None:
    """In order of arrival, however each writes the server's address."""

    async def main() -> None:
        transport = FakeTransport(then=lambda _: accepted(replying=5))
        urls = ["https://meet.test", "https://MEET.test:443/auth/"]
        clients = [connected(transport, base_url=url) for url in urls]
        async with clients[0], clients[1], anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(upload, clients[number % 2], f"{number}.pdf")
                await anyio.sleep(0.1)
        assert anyio.current_time() == 30
        assert names(transport) == [f"{number}.pdf" for number in range(6)]
        assert not transport.collisions

    in_virtual_time(main)


def test_an_unknown_outcome_holds_other_clients_back(in_virtual_time: InVirtualTime) -> None:
    """Of the same server, even when the one that saw it is gone; other servers are open."""

    async def main() -> None:
        async with connected(FakeTransport(lost())) as first:
            await lost_after_the_boundary(first)
        del first
        gc.collect()
        transport = FakeTransport(accepted(), accepted())
        async with connected(transport, base_url="https://other.test") as other:
            assert await upload(other) == 0
        async with connected(transport) as second:
            assert await upload(second) == 300

    in_virtual_time(main)


def test_a_turnstile_of_ones_own(in_virtual_time: InVirtualTime) -> None:
    """``room_gate=Turnstile()`` stands beside the common line."""

    async def main() -> None:
        async with connected(FakeTransport(lost())) as first:
            await lost_after_the_boundary(first)
        async with connected(FakeTransport(accepted()), room_gate=Turnstile()) as second:
            assert await upload(second) == 0

    in_virtual_time(main)


def test_a_client_in_a_second_loop_gets_its_turnstile(in_virtual_time: InVirtualTime) -> None:
    """What the first loop knew was of its own time; the second one starts anew, and works."""
    client = connected(FakeTransport(lost(), accepted(replying=5), accepted()))

    async def first() -> Turnstile:
        await lost_after_the_boundary(client)
        return common_turnstile()

    async def second() -> Turnstile:
        async with client, anyio.create_task_group() as group:
            group.start_soon(upload, client)
            await settle()
            assert await upload(client) == 5
        return common_turnstile()

    assert in_virtual_time(first) is not in_virtual_time(second)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_turnstile_goes_with_its_loop(backend: str) -> None:
    """Even one that still remembers a shut room."""

    async def main() -> weakref.ref[Turnstile]:
        assert common_turnstile() is common_turnstile()
        await common_turnstile().shut("room01", 300)
        return weakref.ref(common_turnstile())

    turnstile = anyio.run(main, backend=backend)
    gc.collect()
    assert turnstile() is None


# --- gates that misbehave ------------------------------------------------------------------------


class Misbehaving:
    """A gate that raises, wraps, swallows or hangs where it should not."""

    def __init__(self, how: str) -> None:
        self.how = how

    @asynccontextmanager
    async def turn(self, room: str, on_wait: OnWait | None = None) -> AsyncGenerator[None, None]:
        """Let everybody in, and spoil the way out."""
        if self.how == "raises on the way in":
            raise OSError("no way in")
        try:
            yield
        except BaseException as error:
            if self.how == "swallows":
                return
            if self.how == "wraps" and isinstance(error, Exception):
                raise ExceptionGroup("of a task group", [error]) from None
            raise
        finally:
            if self.how == "raises on the way out":
                raise OSError("no way out")

    async def shut(self, room: str, seconds: float) -> None:
        """Fail to shut."""
        if self.how == "raises when it shuts":
            raise OSError("cannot shut")
        if self.how == "hangs when it shuts":
            await anyio.sleep_forever()


ON_THE_WAY_OUT = ["raises on the way out", "wraps", "swallows"]
ANYWHERE = [*ON_THE_WAY_OUT, "raises when it shuts", "hangs when it shuts"]


@pytest.mark.parametrize("how", ANYWHERE)
def test_no_gate_changes_an_unknown_outcome(
    in_virtual_time: InVirtualTime, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets to see just that, and the log tells of the gate, unless it swallowed."""

    async def main() -> None:
        gate: RoomGate = Misbehaving(how)
        async with connected(FakeTransport(lost()), room_gate=gate) as client:
            await lost_after_the_boundary(client)
        assert anyio.current_time() == (10 if how == "hangs when it shuts" else 0)

    in_virtual_time(main)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [vars(record)["action"] for record in warnings] == ["room_gate"] * (how != "swallows")


@pytest.mark.parametrize("how", ANYWHERE)
async def test_no_gate_changes_an_acceptance(how: str) -> None:
    """An accepted upload is one, so that nobody sends it again."""
    transport = FakeTransport(accepted())
    async with connected(transport, room_gate=Misbehaving(how)) as client:
        await upload(client)
    assert len(transport.exchanges) == 1


@pytest.mark.parametrize("how", ON_THE_WAY_OUT)
async def test_no_gate_changes_a_cancellation(how: str) -> None:
    """A cancelled upload is cancelled."""
    transport = FakeTransport(hanging(take=Take.NOTHING))
    async with connected(transport, room_gate=Misbehaving(how)) as client:
        with anyio.move_on_after(0.05) as scope:
            await upload(client)
            pytest.fail("the upload was cancelled")
    assert scope.cancelled_caught


async def test_what_is_raised_on_the_way_in_reaches_the_caller() -> None:
    """As it is, and nothing is sent."""
    transport = FakeTransport()
    async with connected(transport, room_gate=Misbehaving("raises on the way in")) as client:
        with pytest.raises(OSError, match="no way in"):
            await upload(client)
    assert transport.exchanges == []


# --- through the client --------------------------------------------------------------------------


def connected(transport: FakeTransport, **settings: Any) -> MeetingClient:
    """Make a client of the scripted transport whose lock waits are exact."""
    settings = {"base_url": "https://meet.test", "lock": LockPolicy(jitter=0), **settings}
    return MeetingClient(api_key="key", api_secret="secret", transport=transport, **settings)


async def upload(client: MeetingClient, name: str = "deck.pdf", **how: Any) -> float:
    """Upload to room01 and return the loop's time when it was accepted."""
    await client.upload_whiteboard_file("room01", PDF, filename=name, **how)
    return anyio.current_time()


def names(transport: FakeTransport) -> list[str]:
    """List the names of the documents in the order sent."""
    heads = [bytes(exchange.sent).partition(b"\r\n\r\n")[0] for exchange in transport.exchanges]
    return [head.partition(b'filename="')[2].partition(b'"')[0].decode() for head in heads]


async def lost_after_the_boundary(client: MeetingClient) -> None:
    """Make an upload of unknown outcome."""
    with pytest.raises(UploadOutcomeUnknown):
        await upload(client, "lost.pdf")


def lost() -> Act:
    """Lose the reply to a complete upload."""
    return failing(ConnectionLost("reset"), take=Take.EVERYTHING)


def test_a_later_job_waits_until_the_window_ends(in_virtual_time: InVirtualTime) -> None:
    """After an unknown outcome the next job's body goes out 300 s later, not into our own lock."""

    async def main() -> None:
        transport, recorder = FakeTransport(lost(), accepted()), EventRecorder()
        async with connected(transport, on_event=recorder) as client:
            await lost_after_the_boundary(client)
            await anyio.sleep(40)
            assert await upload(client) == 300
        assert [exchange.began for exchange in transport.exchanges] == [0, 300]
        assert [event.shut_for for event in recorder.of(Queued)] == [260]

    in_virtual_time(main)


def test_a_job_that_was_queued_before_waits_as_well(in_virtual_time: InVirtualTime) -> None:
    """A sibling that stood in line when the outcome became unknown is held back, too."""

    async def main() -> None:
        transport = FakeTransport(
            failing(ConnectionLost("reset"), take=Take.EVERYTHING, replying=10), accepted()
        )
        async with connected(transport) as client, anyio.create_task_group() as group:
            group.start_soon(lost_after_the_boundary, client)
            await anyio.sleep(1)
            assert await upload(client) == 310
        assert not transport.collisions

    in_virtual_time(main)


def test_the_window_follows_the_lock_policy(in_virtual_time: InVirtualTime) -> None:
    """``LockPolicy.window`` says for how long our own lock may live."""

    async def main() -> None:
        transport = FakeTransport(lost(), accepted())
        async with connected(transport, lock=LockPolicy(window=60)) as client:
            await lost_after_the_boundary(client)
            assert await upload(client) == 60

    in_virtual_time(main)


async def test_who_does_not_wait_is_told() -> None:
    """With ``max_wait=0`` a room that is shut, or taken by a sibling, is ``RoomBusy`` at once."""
    transport = FakeTransport(lost(), hanging())
    async with connected(transport) as client, anyio.create_task_group() as group:
        await lost_after_the_boundary(client)
        with anyio.fail_after(5), pytest.raises(RoomBusy) as caught:
            await upload(client, max_wait=0)
        assert (caught.value.room_id, caught.value.waited) == ("room01", 0)
        assert "from here" in caught.value.reason
        assert caught.value.attempts == ()

        group.start_soon(
            partial(client.upload_whiteboard_file, "room02", PDF, filename="deck.pdf", max_wait=0)
        )
        await settle()
        with anyio.fail_after(5), pytest.raises(RoomBusy):
            await client.upload_whiteboard_file("room02", PDF, filename="deck.pdf", max_wait=0)
        group.cancel_scope.cancel()
    assert len(transport.exchanges) == 2


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        (failing(ConnectionLost("reset"), take=Take.DOCUMENT), UploadInterrupted),
        (failing(ConnectFailed("refused"), take=Take.NOTHING), ConnectFailed),
        (failing(RuntimeError("foreign"), take=Take.DOCUMENT), RuntimeError),
        (reply(400, b"no"), RequestRefused),
        (reply(500, record("INTERNAL_SERVER_ERROR")), ProcessingFailed),
        (busy(), RoomBusy),
    ],
    ids=["partial", "never sent", "foreign", "refused", "failed", "busy"],
)
async def test_a_known_outcome_leaves_the_room_open(ending: Act, error: type[Exception]) -> None:
    """Only what may have reached the room shuts it."""
    transport = FakeTransport(ending, accepted())
    async with connected(transport, retry=RetryPolicy(max_attempts=1)) as client:
        with pytest.raises(error):
            await upload(client, max_wait=0)
        await upload(client, max_wait=0)


def test_the_window_counts_from_the_unknown_attempt(in_virtual_time: InVirtualTime) -> None:
    """What comes after the lost attempt does not prolong the lock that it may have left."""

    async def main() -> None:
        transport = FakeTransport(lost(), accepted())
        async with connected(transport, delivery="at_least_once") as client:
            with pytest.raises(UploadOutcomeUnknown) as caught:
                await upload(client, deadline=100)
            assert anyio.current_time() == 100
            assert caught.value.lock_free_in == pytest.approx(200)
            assert await upload(client) == 300

    in_virtual_time(main)


def test_a_refusal_after_the_window_leaves_the_room_open(in_virtual_time: InVirtualTime) -> None:
    """A lock of ours that has ended by now does not hold the next job."""

    async def main() -> None:
        transport = FakeTransport(lost(), reply(400, b"no"), accepted())
        async with connected(transport, delivery="at_least_once") as client:
            with pytest.raises(UploadOutcomeUnknown) as caught:
                await upload(client)
            assert anyio.current_time() == 300
            assert caught.value.lock_free_in == 0
            assert await upload(client) == 300

    in_virtual_time(main)


def test_a_derived_client_stands_in_the_same_line(in_virtual_time: InVirtualTime) -> None:
    """``with_options`` shares the turnstile: an unknown outcome of one holds back the other."""

    async def main() -> None:
        transport = FakeTransport(lost(), accepted())
        async with connected(transport) as client:
            await lost_after_the_boundary(client.with_options(delivery="at_most_once"))
            assert await upload(client.with_options(allow_images=True)) == 300

    in_virtual_time(main)


def test_a_deadline_in_the_queue_gives_the_place_up(in_virtual_time: InVirtualTime) -> None:
    """Who runs out of time in line sends nothing, and the one behind moves up."""

    async def main() -> None:
        transport = FakeTransport(accepted(replying=60), accepted())
        async with connected(transport) as client, anyio.create_task_group() as group:
            group.start_soon(upload, client, "first.pdf")
            await anyio.sleep(1)
            group.start_soon(partial(expire, client, "second.pdf", deadline=10))
            await anyio.sleep(1)
            group.start_soon(upload, client, "third.pdf")
        assert names(transport) == ["first.pdf", "third.pdf"]
        assert transport.exchanges[1].began == 60

    in_virtual_time(main)


async def expire(client: MeetingClient, name: str, deadline: float) -> None:
    """Run into the deadline."""
    with pytest.raises(DeadlineExceeded, match="its turn"):
        await upload(client, name, deadline=deadline)
    assert anyio.current_time() == 11


@pytest.mark.parametrize("patience", [0.9, 0.0], ids=["slow observer", "quick observer"])
def test_an_observer_does_not_change_the_order(
    in_virtual_time: InVirtualTime, patience: float
) -> None:
    """First come, first served, also when an observer dawdles over the first one's events."""

    async def on_event(event: Event) -> None:
        slow = isinstance(event, Queued) and event.document == "second.pdf"
        await anyio.sleep(patience if slow else 0)

    async def main() -> None:
        transport = FakeTransport(accepted(replying=0.5), accepted(), accepted())
        client = connected(transport, on_event=on_event)
        async with client, anyio.create_task_group() as group:
            for name in ("first.pdf", "second.pdf", "third.pdf"):
                group.start_soon(upload, client, name)
                await anyio.sleep(0.1)
        assert names(transport) == ["first.pdf", "second.pdf", "third.pdf"]

    in_virtual_time(main)


def test_200_jobs_on_20_rooms_never_meet_a_409(in_virtual_time: InVirtualTime) -> None:
    """Siblings never collide on the real server's lock, and each room gets its files in order."""

    async def main(server: MeetingServer) -> float:
        async with in_process(server) as client:
            async with anyio.create_task_group() as group:
                for number in range(200):
                    data, name = PDF + b"%d" % number, f"{number:03}.pdf"
                    await line_up(group, client, f"room{number % 20:02}", data, name)
            return anyio.current_time()

    server = MeetingServer(processing_seconds=7)
    for number in range(20):
        server.add_room(f"room{number:02}")
    seconds = in_virtual_time(main, server)
    assert [request.status for request in server.requests] == [200] * 200
    for number, room in enumerate(server.rooms.values()):
        expected = [f"{job:03}.pdf" for job in range(number, 200, 20)]
        assert [file.name for file in room.received] == expected
    assert seconds == pytest.approx(70)  # ten turns of 7 s: all rooms at work at the same time


def test_jobs_of_a_locked_room_wait_while_others_go_on(in_virtual_time: InVirtualTime) -> None:
    """A room that somebody else has locked holds up its own jobs only, in order."""

    async def main(server: MeetingServer) -> None:
        server.rooms["locked"].lock(100)
        async with in_process(server) as client, anyio.create_task_group() as group:
            for number in range(3):
                for room_id in ("locked", "free"):
                    await line_up(group, client, room_id, PDF, f"{number}.pdf")
            await anyio.sleep(50)
            assert len(server.rooms["free"].received) == 3
            assert not server.rooms["locked"].received

    server = MeetingServer()
    for room_id in ("locked", "free"):
        server.add_room(room_id)
    in_virtual_time(main, server)
    assert [file.name for file in server.rooms["locked"].received] == ["0.pdf", "1.pdf", "2.pdf"]


def in_process(server: MeetingServer) -> MeetingClient:
    """Make a client of the server that runs in the same loop."""
    transport = HttpxTransport(httpx.AsyncClient(transport=httpx.ASGITransport(app=server)))
    return MeetingClient(
        "https://meet.test",
        api_key=server.api_key,
        api_secret=server.api_secret,
        transport=transport,
    )


async def line_up(
    group: anyio.abc.TaskGroup, client: MeetingClient, room_id: str, data: bytes, name: str
) -> None:
    """Start an upload and let it take its place in line."""
    group.start_soon(partial(client.upload_whiteboard_file, room_id, data, filename=name))
    await settle()
