"""``delivery="exactly_once"``: what became of a document is found out, if the server shows it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import anyio
import attrs
import httpx
import pytest

from meeting_async import Document, LockPolicy, MeetingClient, UploadReceipt
from meeting_async.errors import (
    DocumentMisplaced,
    MeetingError,
    UploadInterrupted,
    UploadOutcomeUnknown,
)
from meeting_async.evidence import Answer, Finding, Send, Sought, StoredFiles
from meeting_async.testing import MeetingServer, Room, run_in_virtual_time
from meeting_async.transports import HttpxTransport, Reply, Request

PDF = b"%PDF-1.7"
NAME = "a+b ü%20.pdf"


@attrs.define
class World:
    """A server and a client in one process, on virtual time."""

    server: MeetingServer
    room: Room
    client: MeetingClient

    @property
    def listed(self) -> list[str]:
        """What the room shows, in this session."""
        return [file.name for file in self.room.received]

    def asked(self, path: str) -> int:
        """How often a path was asked for."""
        return sum(path in request.path for request in self.server.requests)


def in_world(act: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    """Run something; the server takes 3 s for a document, and every form arrives in the end."""
    server = MeetingServer(processing_seconds=3)

    async def main() -> None:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app=server))
        keys: dict[str, Any] = {"api_key": server.api_key, "api_secret": server.api_secret}
        how = {"delivery": "exactly_once", **settings}
        transport = HttpxTransport(http)
        async with MeetingClient("http://127.0.0.1", transport=transport, **keys, **how) as client:
            await act(World(server, server.add_room("room01"), client))

    run_in_virtual_time(main)


async def upload(world: World, name: str = NAME) -> tuple[Any, float]:
    """Upload a document; return receipt or error, and how many seconds it took."""
    result: Any
    began = anyio.current_time()
    try:
        result = await world.client.upload_whiteboard_file("room01", PDF, filename=name)
    except MeetingError as error:
        result = error
    seconds = anyio.current_time() - began
    await anyio.sleep(120)  # until all that may come has come
    return result, seconds


def lose(**how: Any) -> Callable[[World], None]:
    """Lose the answer to the next form."""
    return lambda world: world.server.lose_next_reply(**how)


def storing(**how: Any) -> Callable[[World], None]:
    """Lose it, with such a storage."""

    def script(world: World) -> None:
        for name, value in how.items():
            setattr(world.server, name, value)
        world.server.lose_next_reply()

    return script


# What happens to the form; what is known in the end, how often the document is listed, and seconds.
FATES: dict[str, tuple[Callable[[World], None], Any, int, tuple[float, float]]] = {
    "nothing": (lambda _: None, "answered", 1, (3, 3.5)),
    "answer lost": (lose(), "found", 1, (3, 5)),
    "form lost": (lose(when="instead"), "answered", 1, (65, 80)),
    "kept by a proxy for 40 s": (lose(arrives_after=40), "found", 1, (40, 60)),
    "kept by a proxy for 60 s": (lose(arrives_after=60), "found", 1, (60, 80)),
    "storage late by 20 s": (storing(stored_files_after=20), "found", 1, (20, 30)),
    "storage elsewhere": (storing(stored_files="redirected"), "HTTP 307", 1, (65, 80)),
    "storage with another clock": (
        storing(stored_files_clock=-3600),
        "was stored before",
        1,
        (65, 80),
    ),
}


@pytest.mark.parametrize("fate", FATES)
def test_what_became_of_a_document(fate: str) -> None:
    """Found, or sent again once nothing can deliver it any more; else unknown, with the reason."""
    script, expected, listed, (least, most) = FATES[fate]

    async def act(world: World) -> None:
        await world.client.upload_whiteboard_file("room01", PDF, filename="first.pdf")
        script(world)
        result, seconds = await upload(world)
        assert world.listed.count(NAME) == listed
        assert least <= seconds <= most
        if isinstance(result, UploadReceipt):
            assert (result.found, result.session) == (True, world.room.sid)
            assert bool(result.status_code) is (expected == "answered")
        else:
            assert type(result) is UploadOutcomeUnknown
            assert f"what became of it cannot be told: {expected}" in str(result) or (
                expected in str(result)
            )

    in_world(act)


@pytest.mark.parametrize(
    ("mode", "found", "heads"),
    [("exactly_once", True, 1), ("at_most_once", None, 0), ("at_least_once", None, 0)],
)
def test_exactly_once_costs_one_question(mode: str, *, found: bool | None, heads: int) -> None:
    """One question for each document; the other modes ask nothing more."""

    async def act(world: World) -> None:
        receipt, _ = await upload(world)
        assert receipt.found is found
        assert receipt.session == world.room.sid
        assert world.asked("/download/") == heads

    in_world(act, delivery=mode)


def test_not_found_means_nothing_before_a_document_was_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From a server that shows no files: said once, accepted stays accepted, unknown unknown."""

    async def act(world: World) -> None:
        world.server.stored_files = "absent"
        for _ in range(3):
            receipt, seconds = await upload(world)
            assert receipt.found is False
        assert seconds <= 3.5
        world.server.lose_next_reply(when="instead")
        error, _ = await upload(world, "lost.pdf")
        assert "this server has shown no document so far" in str(error)
        assert "lost.pdf" not in world.listed

    in_world(act)
    assert sum("shows no stored files" in record.message for record in caplog.records) == 1


def test_a_document_in_another_room_is_noticed() -> None:
    """It was accepted, but is not in its room; it is never sent again by itself."""

    async def act(world: World) -> None:
        await upload(world, "first.pdf")
        world.server.stored_files = "absent"
        error, seconds = await upload(world)
        assert type(error) is DocumentMisplaced
        assert (error.session, error.room_id) == (world.room.sid, "room01")
        assert "accepted" in str(error)
        assert seconds <= 10
        assert world.listed.count(NAME) == 1

    in_world(act)


def test_another_document_of_that_name_is_not_taken_for_it() -> None:
    """Neither an older one, also by another clock, nor one of the second before or another size."""

    async def act(world: World) -> None:
        world.server.processing_seconds = 0
        await world.client.upload_whiteboard_file("room01", PDF, filename=NAME)
        world.server.lose_next_reply(when="instead")
        with pytest.raises(UploadOutcomeUnknown, match="was stored before"):
            await world.client.upload_whiteboard_file("room01", PDF, filename=NAME)
        await anyio.sleep(100)
        world.server.lose_next_reply()
        receipt = await world.client.upload_whiteboard_file("room01", PDF, filename=NAME)
        assert receipt.found is True
        await anyio.sleep(100)
        world.server.lose_next_reply(when="instead")
        with pytest.raises(UploadOutcomeUnknown, match="has '8' bytes, not 9"):
            await world.client.upload_whiteboard_file("room01", PDF + b"!", filename=NAME)
        await anyio.sleep(100)
        world.server.stored_files_clock = 3600
        world.server.lose_next_reply(when="instead")
        with pytest.raises(UploadOutcomeUnknown, match="at a time to come"):
            await world.client.upload_whiteboard_file("room01", PDF, filename=NAME)
        assert world.listed == [NAME, NAME]

    in_world(act)


@pytest.mark.parametrize(
    "how", ["timeout", "cancelled", "max_wait", "at_most_once", "at_least_once"]
)
def test_a_late_document_of_that_name_is_not_taken_for_it(how: str) -> None:
    """Nobody knows what became of the one before; once it can no longer come, all can be told."""

    async def first(world: World) -> None:
        options: Any = {"timeout": {"timeout": 5.0}, "max_wait": {"max_wait": 0}}.get(how, {})
        mode: Any = how if how.startswith("at_") else "exactly_once"
        client = world.client.with_options(delivery=mode)
        with suppress(UploadOutcomeUnknown, TimeoutError), anyio.fail_after(30):
            await client.upload_whiteboard_file("room01", PDF, filename=NAME, **options)

    async def act(world: World) -> None:
        await world.client.upload_whiteboard_file("room01", PDF, filename="shown.pdf")
        world.server.lose_next_reply(arrives_after=50)
        await first(world)
        began = anyio.current_time()
        answered = await world.client.upload_whiteboard_file("room01", PDF, filename=NAME)
        assert answered.status_code == "SUCCESS"
        assert anyio.current_time() - began < 5
        world.server.lose_next_reply(when="instead")
        with pytest.raises(UploadOutcomeUnknown, match="an earlier upload of that name"):
            await world.client.upload_whiteboard_file("room01", PDF, filename=NAME)
        await anyio.sleep(70)
        assert world.listed.count(NAME) == (3 if how == "at_least_once" else 2)
        world.server.lose_next_reply()
        receipt = await world.client.upload_whiteboard_file("room01", PDF, filename=NAME)
        assert receipt.found is True

    in_world(act)


def test_a_session_that_ends_meanwhile() -> None:
    """What may have arrived in it is gone with it: the document goes into the new one."""

    async def act(world: World) -> None:
        await upload(world, "first.pdf")
        world.server.lose_next_reply()

        async def renew() -> None:
            await anyio.sleep(0.5)
            world.server.stored_files_after = 3600
            await anyio.sleep(30)
            world.room.end()
            world.server.add_room("room01")
            world.server.stored_files_after = 0

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(renew)
            receipt, _ = await upload(world)
        assert receipt.session == world.room.sid
        assert world.listed == [NAME]

    in_world(act)


@pytest.mark.parametrize("another", [True, False])
def test_a_session_that_ends_after_the_answer(*, another: bool) -> None:
    """Its files go with it: what was accepted in it is not misplaced."""

    async def act(world: World) -> None:
        await upload(world, "first.pdf")
        world.server.stored_files_after = 3600

        async def renew() -> None:
            await anyio.sleep(4)
            world.room.end()
            if another:
                world.room = world.server.add_room("room01")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(renew)
            receipt, _ = await upload(world)
        assert (receipt.status_code, receipt.found) == ("SUCCESS", False)

    in_world(act)


class Slowly:
    """Evidence as it is, whose answer is old when it comes."""

    async def find(self, sought: Sought, send: Send, /) -> Finding:
        """Ask at once."""
        found = await StoredFiles().find(sought, send)
        await anyio.sleep(6)
        return found


@pytest.mark.parametrize("has_shown", [True, False])
def test_an_answer_about_an_accepted_document_that_comes_late(
    caplog: pytest.LogCaptureFixture, *, has_shown: bool
) -> None:
    """It tells what the server showed when it was asked, which was too early."""

    async def act(world: World) -> None:
        if has_shown:
            await upload(world, "first.pdf")
        world.server.stored_files_after = 4
        receipt, _ = await upload(world)
        assert (receipt.status_code, receipt.found) == ("SUCCESS", False)

    in_world(act, evidence=Slowly())
    assert "shows no stored files" not in caplog.text


class AtTheSecondLook:
    """Evidence that finds a document in its own session, if it is asked twice at once."""

    def __init__(self) -> None:
        self.session, self.asked_at = "", -math.inf

    async def find(self, sought: Sought, send: Send, /) -> Finding:
        """Find it if it was asked right before."""
        before, self.asked_at = self.asked_at, anyio.current_time()
        self.session = self.session or sought.session
        is_second = self.asked_at - before < 0.5 and sought.session == self.session
        return Finding(Answer.FOUND if is_second else Answer.UNTOLD, "who knows")


def test_what_is_found_at_the_second_look_is_there() -> None:
    """Also if another session runs by then."""

    async def act(world: World) -> None:
        world.server.lose_next_reply()
        session = world.room.sid

        async def renew() -> None:
            await anyio.sleep(30)
            world.room.end()
            world.server.add_room("room01")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(renew)
            receipt, _ = await upload(world)
        assert (receipt.found, receipt.session) == (True, session)

    in_world(act, evidence=AtTheSecondLook())


def test_a_stream_that_was_lost_is_not_sent_again() -> None:
    """It cannot be read a second time; that it is not there is certain."""

    async def act(world: World) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield PDF

        await upload(world, "first.pdf")
        world.server.lose_next_reply(when="instead")
        stream = Document.from_stream(chunks(), NAME, size=len(PDF), replayable=False)
        with pytest.raises(UploadInterrupted, match="not there") as caught:
            await world.client.upload_whiteboard_file("room01", stream)
        assert "cannot be read a second time" in caught.value.__notes__[0]

    in_world(act)


def test_what_a_session_has_taken_along_is_not_certain() -> None:
    """It was perhaps there: if it is not sent again, nobody says that it was not."""

    async def act(world: World) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield PDF

        async def renew() -> None:
            await anyio.sleep(0.5)
            assert [file.name for file in world.room.accepted] == ["first.pdf", NAME]
            world.room.end()
            world.server.add_room("room01")

        await upload(world, "first.pdf")
        world.server.lose_next_reply()
        world.server.stored_files_after = 1
        stream = Document.from_stream(chunks(), NAME, size=len(PDF), replayable=False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(renew)
            with pytest.raises(UploadOutcomeUnknown, match="its session has ended"):
                await world.client.upload_whiteboard_file("room01", stream)

    in_world(act)


def test_its_own_earlier_attempts_are_no_other_document() -> None:
    """Refused with 409, and sent again in the same second: what is there then is this document."""

    async def act(world: World) -> None:
        world.server.reply_next(409)
        world.server.lose_next_reply()
        receipt, _ = await upload(world)
        assert receipt.found is True
        assert world.listed == [NAME]

    in_world(act, lock=LockPolicy(probe=False))


def test_a_form_that_arrives_in_the_next_session() -> None:
    """It is looked for there, too, before it is sent again."""

    async def act(world: World) -> None:
        await upload(world, "first.pdf")
        world.server.lose_next_reply(arrives_after=40)

        async def renew() -> None:
            await anyio.sleep(20)
            world.room.end()
            world.room = world.server.add_room("room01")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(renew)
            receipt, _ = await upload(world)
        assert world.listed == [NAME]
        assert (receipt.found, receipt.session) == (True, world.room.sid)

    in_world(act)


@pytest.mark.parametrize("stored_files", ["shared", "redirected"])
def test_a_session_that_is_not_named_is_no_other_session(stored_files: Any) -> None:
    """A check that denies the room proves nothing: what cannot be told is not sent again."""

    async def act(world: World) -> None:
        await upload(world, "first.pdf")
        world.server.stored_files = "redirected"
        world.server.lose_next_reply()

        async def deny() -> None:
            await anyio.sleep(30)
            world.server.refuse_next("ROOM_NOT_FOUND", path="/room/getActiveRoomInfo", times=1000)
            await anyio.sleep(37)
            world.server.stored_files = stored_files

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deny)
            result, _ = await upload(world)
        assert world.listed.count(NAME) == 1
        if stored_files == "shared":
            assert result.found is True
        else:
            assert type(result) is UploadOutcomeUnknown
        assert result.session == world.room.sid

    in_world(act)


def test_without_waiting_it_is_looked_for_once() -> None:
    """``max_wait=0`` is about the room's lock: what arrived is found; the error says the rest."""

    async def act(world: World) -> None:
        how: dict[str, Any] = {"filename": NAME, "max_wait": 0}
        world.server.lose_next_reply()
        receipt = await world.client.upload_whiteboard_file("room01", PDF, **how)
        assert receipt.found is True
        await anyio.sleep(60)
        world.server.lose_next_reply(when="instead")
        how["filename"] = "lost.pdf"
        with pytest.raises(UploadOutcomeUnknown, match="HTTP 404, and no time was left"):
            await world.client.upload_whiteboard_file("room01", PDF, **how)

    in_world(act)


SENT = 1_700_000_000
"""Unix time by the server's clock, before the document was sent."""


@pytest.mark.parametrize(
    ("saved", "date", "answer", "reason"),
    [
        (SENT, SENT, Answer.FOUND, "200"),
        (SENT + 10, SENT + 9, Answer.FOUND, "200"),  # a server may renew its Date once a second
        (SENT - 1, SENT + 9, Answer.UNTOLD, "before this one was sent"),
        (SENT + 13, SENT + 10, Answer.UNTOLD, "at a time to come, by another clock"),
        (None, SENT + 10, Answer.UNTOLD, "at an unknown time"),
        (SENT, None, Answer.UNTOLD, "at an unknown time"),
    ],
)
@pytest.mark.anyio
async def test_when_a_file_of_that_name_was_stored(
    saved: int | None, date: int | None, answer: Answer, reason: str
) -> None:
    """Since the document was sent, and not after the server's own time; else it is another one."""
    times = {b"Last-Modified": saved, b"Date": date}
    told = {name: formatdate(at, usegmt=True) for name, at in times.items() if at is not None}
    headers = [(b"Content-Length", b"9"), *((name, at.encode()) for name, at in told.items())]

    async def send(_request: Request) -> Reply:
        return Reply(200, tuple(headers))

    where: dict[str, Any] = {"base_url": "http://127.0.0.1", "room_id": "room01", "session": "s"}
    sought = Sought(**where, name=NAME, size=9, since=SENT)
    found = await StoredFiles().find(sought, send)
    assert (found.answer, found.reason.endswith(reason)) == (answer, True)


class Told:
    """Evidence of one's own."""

    def __init__(self, *findings: Any) -> None:
        self.findings, self.sought = list(findings), list[Sought]()

    async def find(self, sought: Sought, send: Send, /) -> Finding:
        """Say what is scripted."""
        self.sought.append(sought)
        finding = self.findings.pop(0) if self.findings else Finding(Answer.UNTOLD, "no more")
        if isinstance(finding, Exception):
            raise finding
        return finding


def test_evidence_given_by_the_caller() -> None:
    """``evidence=`` is called with what is sought; an error of it counts as *cannot be told*."""
    told = Told(RuntimeError("broken"), Finding(Answer.FOUND))

    async def act(world: World) -> None:
        world.server.lose_next_reply()
        receipt, _ = await upload(world)
        assert receipt.found is True
        (sought, _) = told.sought
        assert (sought.name, sought.size, sought.session) == (NAME, len(PDF), world.room.sid)
        assert sought.base_url == "http://127.0.0.1"

    in_world(act, evidence=told)


def test_limits_hold_while_it_is_looked_for() -> None:
    """``timeout`` and ``max_wait`` end it with what is known then."""

    async def act(world: World) -> None:
        await upload(world, "first.pdf")
        for limit in ("timeout", "max_wait"):
            world.server.lose_next_reply(when="instead")
            how: dict[str, Any] = {limit: 20.0}
            began = anyio.current_time()
            with pytest.raises(UploadOutcomeUnknown):
                await world.client.upload_whiteboard_file("room01", PDF, filename=NAME, **how)
            assert anyio.current_time() - began <= 20.25
        world.server.stored_files_after = 3600
        receipt = await world.client.upload_whiteboard_file(
            "room01", PDF, filename=NAME, timeout=5.0
        )
        assert (receipt.found, receipt.seconds <= 5.25) == (False, True)

    in_world(act)
