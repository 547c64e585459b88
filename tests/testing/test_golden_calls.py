"""Golden requests: JSON calls, paths and the log of requests.

Each is sent on a plain socket, and handed to the application in process; no HTTP client and none
of the library's own code takes part.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.raw_http import (
    INFO,
    UPLOAD,
    World,
    call,
    document,
    request,
    sign,
    upload,
)

# --- JSON calls -------------------------------------------------------------------------------

ROOM = {"room_id": "room01"}
FRESH = {"room_id": "fresh", "metadata": {"room_title": "Fresh", "room_features": {}}}
ADA = {"name": "Ada", "user_id": "ada"}


def camel(value: Any) -> Any:
    """Write the fields of an object in camelCase, as the JavaScript SDK does."""
    if not isinstance(value, dict):
        return value
    names = {name: name.title().replace("_", "") for name in value}
    return {names[name][0].lower() + names[name][1:]: camel(value[name]) for name in value}


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"no json", b'"room01"', b"\xff", b"[" * 2000]
    + [json.dumps(value).encode() for value in ({}, {"room_id": ""}, {"room_id": None})]
    + [json.dumps(value).encode() for value in ({"room_id": 1}, {"roomId": 1}, {"roomid": "a"})],
)
def test_unusable_json(world: World, body: bytes) -> None:
    """HTTP 200 with status false, for every call that names a room."""
    for path in ("getActiveRoomInfo", "isRoomActive", "endRoom", "create", "getJoinToken"):
        assert world.talk(call(f"/auth/room/{path}", body)).code == (200, "INVALID_PARAMETERS")


@pytest.mark.parametrize("spell", [dict, camel])
def test_active_room_info(world: World, spell: Any) -> None:
    """The room with its people: integers as text, metadata as JSON text, flags 0 and 1."""
    world.room.participants = ["Ada"]
    record = world.talk(call(INFO, spell({**ROOM, "not_known": 1}))).record
    assert (record["status"], record["status_code"]) == (True, "SUCCESS")
    info, people = record["room"]["room_info"], record["room"]["participants_info"]
    assert set(info) == {
        *("room_title", "room_id", "sid", "joined_participants", "is_running", "is_recording"),
        *("is_active_rtmp", "webhook_url", "is_breakout_room", "parent_room_id"),
        *("creation_time", "metadata"),
    }
    assert (info["room_id"], info["joined_participants"], info["is_running"]) == ("room01", "2", 1)
    assert info["creation_time"].isdecimal()
    assert json.loads(info["metadata"])["room_title"] == "room01"
    assert [person["name"] for person in people] == ["Presenter", "Ada"]
    assert {"sid", "identity", "name", "state", "metadata", "joined_at", "version"} <= set(
        people[0]
    )


def test_a_room_that_is_not_there_or_not_active(world: World) -> None:
    """HTTP 200 with status false; `isRoomActive` is a success all the same."""
    world.room.active = False
    for room_id, code in (("room01", "ROOM_NOT_ACTIVE"), ("nowhere", "ROOM_NOT_FOUND")):
        body = {"room_id": room_id, "user_info": ADA}
        for path in ("getActiveRoomInfo", "endRoom", "getJoinToken"):
            answer = world.talk(call(f"/auth/room/{path}", body))
            assert (answer.code, answer.record["status"]) == ((200, code), False)
        record = world.talk(call("/auth/room/isRoomActive", body)).record
        assert record == {"status": True, "msg": record["msg"], "status_code": code} | {
            "is_active": False
        }


@pytest.mark.parametrize("spell", [dict, camel])
def test_a_room_from_its_creation_to_its_end(world: World, spell: Any) -> None:
    """Create, active without people, a presenter by token, an upload, the end, the past."""

    def ask(name: str, body: object) -> Any:
        return world.talk(call(f"/auth/room/{name}", spell(body))).record

    created = ask("create", FRESH)
    assert (created["status"], created["room_info"]["room_title"]) == (True, "Fresh")
    assert ask("isRoomActive", {"room_id": "fresh"})["is_active"] is True
    assert ask("create", FRESH)["room_info"]["sid"] == created["room_info"]["sid"]
    assert world.talk(upload(room="fresh")).code == (400, "USER_NOT_ACTIVE")
    for extra in ({}, {"is_admin": True}):
        token = ask("getJoinToken", {"room_id": "fresh", "user_info": ADA | extra})
        assert (token["status"], isinstance(token["token"], str)) == (True, True)
    assert world.talk(upload(room="fresh")).status == 200
    rooms = ask("getActiveRoomsInfo", {})["rooms"]
    assert [room["room_info"]["room_id"] for room in rooms] == ["room01", "fresh"]
    assert rooms[1]["room_info"]["joined_participants"] == "2"
    assert ask("endRoom", {"room_id": "fresh"})["status"] is True
    assert ask("endRoom", {"room_id": "fresh"})["status_code"] == "ROOM_NOT_FOUND"
    result = ask("fetchPastRooms", {"room_ids": ["fresh"], "order_by": "ASC"})["result"]
    assert result["total_rooms"] == "1"
    (past,) = result["rooms_list"]
    assert (past["room_id"], past["room_sid"]) == ("fresh", created["room_info"]["sid"])
    assert ask("create", FRESH)["room_info"]["sid"] != past["room_sid"]


@pytest.mark.parametrize(
    "body",
    [
        {**FRESH, "room_id": "two words"},
        {**FRESH, "room_id": "raum-ä"},
        {"room_id": "fresh"},
        {"room_id": "fresh", "metadata": "{}"},
        {"room_id": "fresh", "metadata": {"room_title": "Fresh"}},
        {"room_id": "fresh", "metadata": {"room_features": {}}},
        {"room_id": "fresh", "metadata": {"room_title": "", "room_features": {}}},
    ],
)
def test_rooms_are_created_by_the_rules(world: World, body: object) -> None:
    """An id of plain characters, a title, features; else INVALID_PARAMETERS and no room."""
    assert world.talk(call("/auth/room/create", body)).code == (200, "INVALID_PARAMETERS")
    assert list(world.server.rooms) == ["room01"]


@pytest.mark.parametrize(
    "user", [None, {}, {"name": "Ada"}, {"user_id": "ada"}, "Ada", ADA | {"user_id": "u.1"}]
)
def test_a_token_needs_a_user(world: World, user: object) -> None:
    """With a name and an id of plain characters; else INVALID_PARAMETERS."""
    answer = world.talk(call("/auth/room/getJoinToken", {**ROOM, "user_info": user}))
    assert answer.code == (200, "INVALID_PARAMETERS")


def test_lists_that_are_empty(world: World) -> None:
    """No active room and no past one are no successes; a page is a part of the list."""
    rooms, past = "/auth/room/getActiveRoomsInfo", "/auth/room/fetchPastRooms"
    assert world.talk(call(past, {})).code == (200, "NOT_FOUND")
    assert world.talk(call(past, {"limit": "many"})).code == (200, "INVALID_PARAMETERS")
    for number in range(3):
        body = {**FRESH, "room_id": f"fresh-{number}"}
        for path in ("create", "endRoom"):
            assert world.talk(call(f"/auth/room/{path}", body)).record["status"] is True
    page = world.talk(call(past, {"from": 1, "limit": 1})).record["result"]
    assert [room["room_id"] for room in page["rooms_list"]] == ["fresh-1"]
    assert page["total_rooms"] == "3"
    world.room.active = False
    assert world.talk(call(rooms, {})).code == (200, "ROOM_NOT_FOUND")


# --- paths and methods ------------------------------------------------------------------------


@pytest.mark.parametrize("path", [INFO.upper(), INFO.lower() + "/", INFO + "//"])
def test_paths_have_no_case_and_no_last_slash(world: World, path: str) -> None:
    """All of them are the same call."""
    assert world.talk(call(path, ROOM)).code == (200, "SUCCESS")


@pytest.mark.parametrize(
    ("path", "method"),
    [
        (INFO, "GET"),
        (UPLOAD, "GET"),
        (UPLOAD, "PUT"),
        ("/auth", "POST"),
        ("/auth/recording/fetch", "POST"),
        ("/auth/healthCheck", "GET"),
    ],
)
def test_a_path_below_auth_that_is_not_there(world: World, path: str, method: str) -> None:
    """The key and the signature are examined first, for other methods than POST too; then 404."""
    signed = {"API-KEY": "devkey", "HASH-SIGNATURE": sign(b"")}
    for headers, answer in (
        ({}, (401, "MISSING_REQUIRED_PARAMETER")),
        ({**signed, "API-KEY": "no"}, (401, "INVALID_API_KEY")),
        ({**signed, "HASH-SIGNATURE": "no"}, (401, "INVALID_TOKEN_OR_SIGNATURE")),
        (signed, (404, "Not Found")),
    ):
        assert world.talk(request(path, b"", headers, method)).code == answer


@pytest.mark.parametrize(
    ("path", "method"),
    [("/room/getActiveRoomInfo", "POST"), ("/", "GET"), ("/files/9/x.pdf", "GET")],
)
def test_what_is_not_there(world: World, path: str, method: str) -> None:
    """404 in plain text, without a key."""
    assert world.talk(request(path, b"", {}, method)).code == (404, "Not Found")


@pytest.mark.parametrize("path", ["/healthCheck", "/healthcheck/"])
def test_the_health_check(world: World, path: str) -> None:
    """A load balancer is answered without a key, in plain text."""
    answer = world.talk(request(path, b"", {}, "GET"))
    assert answer.code == (200, "Healthy")
    assert answer.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize("spell", [dict, camel])
def test_a_broadcast(world: World, spell: Any) -> None:
    """It needs a room and one of two messages; then the room, which must be there."""
    chat, notice = {"chat_msg": {"message": "Hello"}}, {"notification_msg": {"text": "Hello"}}
    expected: list[tuple[dict[str, Any], str]] = [
        (ROOM | chat, "SUCCESS"),
        (ROOM | notice, "SUCCESS"),
        ({"room_id": "nowhere"} | chat, "ROOM_NOT_FOUND"),
        (chat, "INVALID_PARAMETERS"),
        (ROOM, "INVALID_PARAMETERS"),
        (ROOM | chat | notice, "INVALID_PARAMETERS"),
        (ROOM | {"chat_msg": {}}, "INVALID_PARAMETERS"),
        (ROOM | {"chat_msg": "Hello"}, "INVALID_PARAMETERS"),
        ({"room_id": "nowhere", "notification_msg": {"text": ""}}, "INVALID_PARAMETERS"),
    ]
    for body, code in expected:
        answer = world.talk(call("/auth/room/broadcastToRoom", spell(body)))
        assert answer.code == (200, code), body
        assert answer.record["status"] is (code == "SUCCESS")


def test_a_call_without_a_body(world: World) -> None:
    """Neither a body nor a key: the key is named; with a signature over nothing, the body."""
    assert world.talk(request(INFO, b"", {})).code == (401, "MISSING_REQUIRED_PARAMETER")
    bare = call(INFO, b"", Content_Type=None, Content_Length=None)
    assert world.talk(bare).code == (200, "INVALID_PARAMETERS")


def test_every_request_is_recorded_without_secrets(world: World) -> None:
    """Method, path, room, status, code and body size; as text it is one line."""
    world.talk(upload())
    world.talk(call(INFO, {"roomId": "room02"}))
    world.talk(upload(X="x" * 5000))
    requests = world.server.requests
    assert [(r.method, r.room_id, r.status, r.status_code) for r in requests] == [
        ("POST", "room01", 200, "SUCCESS"),
        ("POST", "room02", 200, "ROOM_NOT_FOUND"),
        ("POST", "room01", 431, ""),
    ]
    assert [r.body_bytes for r in requests] == [len(document()), len('{"roomId": "room02"}'), 0]
    assert str(requests[0]).startswith(f"POST {UPLOAD} room01 200 SUCCESS 141 bytes 0.")
    shown = repr([world.server, requests, world.room])
    shown += "".join(map(str, requests))
    assert not any(s in shown for s in ("devkey", "devsecret", sign(b"room01")))
