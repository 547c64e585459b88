"""The setting ``mixes_up_rooms``: documents in other rooms, as after a restart of a real server."""

from __future__ import annotations

import pytest

from meeting_async.testing import MeetingServer, run_in_virtual_time
from support.raw_http import INFO, call, document, link, part, talk, talk_in_process, upload

IDS = ("a", "b", "c")


@pytest.fixture
def server() -> MeetingServer:
    """Provide a server with three rooms that mixes them up."""
    server = MeetingServer(mixes_up_rooms=True)
    for room_id in IDS:
        server.add_room(room_id)
    return server


def put(url: str, room_id: str) -> None:
    """Upload a document that has the name of its room; it must be accepted."""
    answer = talk(url, upload(document(name=room_id), room=room_id))
    assert answer.code == (200, "SUCCESS")


def names(server: MeetingServer) -> list[list[str]]:
    """Return the names of the documents in each room."""
    return [[file.name for file in room.received] for room in server.rooms.values()]


def test_a_document_lands_in_the_room_of_the_last_contact(server: MeetingServer) -> None:
    """The first contact is right; a later one with another room is wrong, with 200 SUCCESS."""
    with server.run() as url:
        for room_id in "abbca":
            put(url, room_id)
    assert names(server) == [["a", "b"], ["b", "c"], ["a"]]


def test_a_room_that_was_asked_about_is_right(server: MeetingServer) -> None:
    """Whatever was contacted in between; those that were not asked about are still wrong."""
    with server.run() as url:
        for room_id in "ab":
            assert talk(url, call(INFO, {"roomId": room_id})).status == 200
        for room_id in "abac":
            put(url, room_id)
    assert names(server) == [["a", "a", "c"], ["b"], []]


@pytest.mark.parametrize("form", [part('name="probe"', b"1") + b"--XX--\r\n", link("deck.pdf")])
def test_a_question_by_form_is_a_contact_and_no_help(server: MeetingServer, form: bytes) -> None:
    """A refused form counts as a contact, so that asking with it does not help another room."""
    with server.run() as url:
        put(url, "a")
        assert talk(url, upload(form, room="b")).status == 400
        put(url, "c")
    assert names(server) == [["a"], ["c"], []]


def test_only_contacts_with_an_active_room_count(server: MeetingServer) -> None:
    """A wrong signature or a room that is not there leaves no trace."""
    server.rooms["c"].active = False
    with server.run() as url:
        put(url, "a")
        assert talk(url, upload(room="b", HASH_SIGNATURE="no")).status == 401
        assert talk(url, upload(room="c")).code == (400, "ROOM_NOT_ACTIVE")
        assert talk(url, upload(room="nowhere")).code == (400, "ROOM_NOT_FOUND")
        put(url, "b")
    assert names(server) == [["a", "b"], [], []]


def test_each_start_forgets(server: MeetingServer) -> None:
    """After a restart both the questions and the last contact are forgotten."""
    with server.run() as url:
        for room_id in "ab":
            assert talk(url, call(INFO, {"room_id": room_id})).status == 200
            put(url, room_id)
    with server.run() as url:
        put(url, "a")
        put(url, "b")
    assert names(server) == [["a", "a", "b"], ["b"], []]


def test_each_room_keeps_its_own_lock() -> None:
    """The room that was named is locked during the conversion, not the one that lists the file."""
    server = MeetingServer(mixes_up_rooms=True, processing_seconds=10)
    first, second = (server.add_room(room_id) for room_id in "ab")

    async def main() -> None:
        for room in (first, second):
            assert (await talk_in_process(server, upload(room=room.room_id))).status == 200
            assert not room.locked
        first.lock(60)
        assert (await talk_in_process(server, upload(room="b"))).status == 200
        assert (await talk_in_process(server, upload(room="a"))).status == 409

    run_in_virtual_time(main)
    assert (len(first.received), len(second.received)) == (2, 1)
