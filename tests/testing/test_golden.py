"""Golden requests: what is refused, JSON calls that succeed, and the log of requests.

Each is sent on a plain socket, and handed to the application in process; no HTTP client and none
of the library's own code takes part. In the end the official and the community SDK send theirs.
"""

from __future__ import annotations

import itertools
import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from meeting_async.testing import MeetingServer
from support.documents import PDF
from support.programs import run_to_its_end
from support.raw_http import (
    BODY_LIMIT,
    END,
    FORM,
    INFO,
    LIMIT,
    UPLOAD,
    World,
    call,
    document,
    link,
    part,
    request,
    sign,
    talk,
    upload,
)

NO_HEADER, BAD_KEY = (401, "MISSING_REQUIRED_PARAMETER"), (401, "INVALID_API_KEY")
BAD_SIGNATURE = (401, "INVALID_TOKEN_OR_SIGNATURE")
INVALID, INVALID_CALL = (400, "INVALID_PARAMETERS"), (200, "INVALID_PARAMETERS")
FAILED, TOO_LARGE = (400, "INTERNAL_SERVER_ERROR"), (413, "INVALID_PARAMETERS")
CLOSING = BODY_TOO_LARGE, BAD_FORM, LONG_HEAD = [
    (413, "Request Entity Too Large"),
    (400, "Bad Request"),
    (431, "Request Header Fields Too Large"),
]
NOT_FOUND = (404, "Not Found")

NO_FIELD = part('name="probe"', b"1") + END
NAMED = b'{"room_id": "room01"}'
CAPITALS = FORM.replace("multipart/form-data", "Multipart/Form-Data")


def refuses(world: World, raw: bytes, code: tuple[int, str]) -> None:
    """Check an answer that is no success."""
    answer = world.talk(raw)
    assert answer.code == code, raw[:400]
    assert (answer.headers.get("connection") == "close") == (code in CLOSING)
    if answer.body.startswith(b"{"):
        assert set(answer.record) == {"status", "msg", "status_code"}
        assert answer.record["status"] is False


MISTAKES: list[tuple[tuple[int, str], dict[str, Any]]] = [
    (LONG_HEAD, {"X": "x" * 4096}),
    (BODY_TOO_LARGE, {"body": bytes(BODY_LIMIT + 1)}),
    (BAD_FORM, {"body": b"junk"}),
    (NO_HEADER, {"API_KEY": None}),
    (BAD_KEY, {"API_KEY": "devkex"}),
    (NO_HEADER, {"HASH_SIGNATURE": None}),
    (NO_HEADER, {"Room_Id": None}),
    (BAD_SIGNATURE, {"HASH_SIGNATURE": "0" * 64}),
    (FAILED, {"room": "room 1"}),
    ((400, "ROOM_NOT_FOUND"), {"room": "room02"}),
    ((400, "ROOM_NOT_ACTIVE"), {"active": False}),
    ((400, "USER_NOT_ACTIVE"), {"presenter": False}),
    ((409, "CONFLICT"), {"locked": True}),
    (INVALID, {"body": b""}),
    (INVALID, {"body": link("deck.pdf")}),
    (TOO_LARGE, {"body": document(PDF.ljust(LIMIT + 1))}),
    (INVALID, {"body": document(b"{}")}),
]
"""An upload's mistakes, in the order in which the server examines it."""


def test_the_first_of_two_mistakes_is_named(world: World) -> None:
    """Whatever else is wrong; an upload without a mistake is taken afterwards."""
    for (code, mistake), (_, other) in itertools.combinations_with_replacement(MISTAKES, 2):
        changes = other | mistake
        world.room.active, world.room.presenter = (
            changes.pop(name, True) for name in ("active", "presenter")
        )
        if changes.pop("locked", False):
            world.do(lambda: world.room.lock(60))
        refuses(world, upload(**changes), code)
        assert world.room.accepted == ()
        world.room.unlock()
    world.room.active = world.room.presenter = True
    assert world.talk(upload()).status == 200


ROOM = {"room_id": "room01"}
FRESH = {"room_id": "fresh", "metadata": {"room_title": "Fresh", "room_features": {}}}
ADA = {"name": "Ada", "user_id": "ada"}
CHAT, NOTICE = {"chat_msg": {"message": "Hello"}}, {"notification_msg": {"text": "Hello"}}
UNUSABLE = [
    *(b"", b"null", b"[]", b"no json", b'"room01"', b"\xff", b"[" * 2000),
    *(b"{}", b'{"room_id": ""}', b'{"room_id": null}', b'{"room_id": 1}', b'{"roomId": 1}'),
    *(b'{"roomid": "a"}', NAMED[:-1] + b", " + NAMED[1:], NAMED[:-1] + b', "roomId": "room01"}'),
]
WITH_ROOM = ["getActiveRoomInfo", "isRoomActive", "endRoom", "create", "getJoinToken"]
BAD_CALLS: dict[str, list[dict[str, Any]]] = {
    "create": [
        *({**FRESH, "room_id": name} for name in ("two words", "raum-ä", "")),
        *({"room_id": "fresh"} | more for more in ({}, {"metadata": "{}"})),
        {"room_id": "fresh", "metadata": {"room_title": "Fresh"}},
        {"room_id": "fresh", "metadata": {"room_features": {}}},
        {"room_id": "fresh", "metadata": {"room_title": "", "room_features": {}}},
    ],
    "getJoinToken": [
        {**ROOM, "user_info": user}
        for user in (None, {}, {"name": "Ada"}, {"user_id": "ada"}, "Ada", ADA | {"user_id": "u.1"})
    ],
    "broadcastToRoom": [
        *(CHAT, ROOM, ROOM | CHAT | NOTICE, ROOM | {"chat_msg": {}}, ROOM | {"chat_msg": "Hello"}),
        {"room_id": "nowhere", "notification_msg": {"text": ""}},
    ],
    "fetchPastRooms": [{"limit": "many"}, {"from": -1}],
}
WITHOUT_A_PATH = [
    *((INFO, "GET"), (UPLOAD, "GET"), (UPLOAD, "PUT"), ("/auth", "POST")),
    *(("/auth/recording/fetch", "POST"), ("/auth/healthCheck", "GET")),
]
"""Methods and paths below /auth: key and signature are examined first, for all of them."""
SIGNED = {"API-KEY": "devkey", "HASH-SIGNATURE": sign(b"")}


def nowhere(**changes: str) -> list[bytes]:
    """Send a signed request to each path that does not exist."""
    signed = SIGNED | {name.replace("_", "-"): value for name, value in changes.items()}
    return [request(path, b"", signed, method) for path, method in WITHOUT_A_PATH]


REFUSED: dict[tuple[int, str], list[bytes]] = {
    NO_HEADER: [
        *(upload(API_KEY="", HASH_SIGNATURE="no"), upload(b"", API_KEY=None)),
        *(call(INFO, NAMED, API_KEY=None), call(INFO, b"{}", HASH_SIGNATURE=None)),
        *(request(path, b"", {}, method) for path, method in [*WITHOUT_A_PATH, (INFO, "POST")]),
    ],
    BAD_KEY: [call(INFO, NAMED, API_KEY="x"), *nowhere(API_KEY="no")],
    BAD_SIGNATURE: [
        upload(HASH_SIGNATURE=sign(b"room01").upper()),
        upload(Room_Id="room02"),
        upload(Content_Type=CAPITALS),
        upload(path=INFO, HASH_SIGNATURE=sign(document())),
        call(INFO, b"{}", HASH_SIGNATURE=sign(b"{ }")),
        call(INFO, b"{}", HASH_SIGNATURE=sign(b"room01"), Room_Id="room01"),
        *nowhere(HASH_SIGNATURE="no"),
    ],
    NOT_FOUND: [
        *nowhere(),
        request("/room/getActiveRoomInfo", b"", {}, "POST"),
        *(request(path, b"", {}, "GET") for path in ("/", "/files/9/x.pdf")),
    ],
    # Forms that do not parse, on every path.
    BAD_FORM: [
        upload(body, path=path, Content_Type=content_type, API_KEY=None)
        for path in (UPLOAD, INFO)
        for body, content_type in [
            (document()[: -len(END)], FORM),
            (document()[: -len(b"--\r\n")], FORM),
            (b"--XX\r\nContent-Disposition: form-data", FORM),
            (document(), FORM + "X" * 300),
            (document(), "multipart/form-data"),
            (b"x" * BODY_LIMIT, FORM),
        ]
    ],
    # No form; no file in it; two files, of which the first counts.
    INVALID: [
        upload(NAMED, Room_Id=None, Content_Type=None, HASH_SIGNATURE=sign(NAMED)),
        upload(Content_Type=CAPITALS, HASH_SIGNATURE=sign(document())),
        upload(b"{}", Content_Type="text/plain", HASH_SIGNATURE=sign(b"{}")),
        *(upload(body) for body in (NO_FIELD, END, part('name="document"', PDF) + END)),
        upload(part('name="document_link"; filename="x"', b"http://127.0.0.1/") + END),
        upload(link("deck.pdf")[: -len(END)] + link("http://127.0.0.1:1/x.pdf")),
        *(upload(link(text)) for text in ("deck:1.pdf", "http://[::")),
        upload(document(b"a,b\n1,2")[: -len(END)] + document()),
    ],
    TOO_LARGE: [upload(document(PDF.ljust(LIMIT + 1))[: -len(END)] + document())],
    BODY_TOO_LARGE: [upload(link("x" * 70_000))],
    # Links that lead nowhere.
    FAILED: [
        upload(link(text))
        for text in ("http://127.0.0.1:1/x.pdf", "/deck.pdf", "http:///x.pdf", "file:///etc/passwd")
    ],
    INVALID_CALL: [
        *(call(f"/auth/room/{name}", body) for name in WITH_ROOM for body in UNUSABLE),
        *(call(f"/auth/room/{name}", body) for name in BAD_CALLS for body in BAD_CALLS[name]),
        call(INFO, b"", Content_Type=None, Content_Length=None),
    ],
    # Nothing to show is no success, and has no result.
    (200, "NOT_FOUND"): [
        *(call("/auth/room/fetchPastRooms", body) for body in ({}, {"room_ids": ["nowhere"]})),
    ],
    (200, "ROOM_NOT_FOUND"): [
        *(call(INFO, {"room_id": name}) for name in (" room01", "room01 ", "\troom01")),
        *(
            call(f"/auth/room/{name}", {"room_id": "nowhere", "user_info": ADA} | CHAT)
            for name in ("getActiveRoomInfo", "endRoom", "getJoinToken", "broadcastToRoom")
        ),
    ],
}


@pytest.mark.parametrize("code", REFUSED, ids=lambda code: f"{code[0]} {code[1]}")
def test_what_is_refused(world: World, code: tuple[int, str]) -> None:
    """In the words of the interface; the room has no file and no lock, and no room is added."""
    for raw in REFUSED[code]:
        refuses(world, raw, code)
        assert (world.room.accepted, world.room.locked) == ((), False)
    assert list(world.server.rooms) == ["room01"]
    assert world.talk(upload()).status == 200


TAKEN: dict[str, bytes] = {
    "blanks around a header": upload(Room_Id="  room01 "),
    "tabs around a header": upload(Room_Id="\troom01\t"),
    "a query": call(INFO + "?room_id=nowhere&x", NAMED),
    "a query after a form": upload(path=UPLOAD + "?document_link=http://127.0.0.1:1/x.pdf"),
}
"""Requests that mean the same without what is odd about them."""


@pytest.mark.parametrize("odd", TAKEN)
def test_what_makes_no_difference(world: World, odd: str) -> None:
    """Blanks around a header are no part of it; a query is neither signed nor read."""
    assert world.talk(TAKEN[odd]).code == (200, "SUCCESS")
    assert world.server.requests[0].room_id == "room01"


def test_a_presenter_and_odd_room_ids_are_settings() -> None:
    """The real server looks for no presenter; another one may take any id."""
    server = MeetingServer(presenter_required=False, strict_room_ids=False)
    server.add_room("raum 1/ä", presenter=False)
    with server.run() as url:
        assert talk(url, upload(room="raum 1/ä")).status == 200
        answer = talk(url, upload(link("http://127.0.0.1/" + "x" * 10**6), room="raum 1/ä"))
    assert answer.code == FAILED  # no URL has more than 64 KiB


# --- what succeeds -------------------------------------------------------------------------------


def camel(value: Any) -> Any:
    """Write the fields of an object in camelCase, as the JavaScript SDK does."""
    if not isinstance(value, dict):
        return value
    names = {name: name.title().replace("_", "") for name in value}
    return {names[name][0].lower() + names[name][1:]: camel(value[name]) for name in value}


@pytest.mark.parametrize("spell", [dict, camel])
def test_active_room_info(world: World, spell: Any) -> None:
    """The room with its people: integers as text, metadata as JSON text, flags 0 and 1."""
    world.room.participants = ["Ada"]
    for path in (INFO, INFO.upper(), INFO.lower() + "/", INFO + "//"):
        record = world.talk(call(path, spell({**ROOM, "not_known": 1}))).record
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
    known = {"sid", "identity", "name", "state", "metadata", "joined_at", "version"}
    assert known <= set(people[0])
    assert [json.loads(one["metadata"])["is_presenter"] for one in people] == [True, False]


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
    for message in ({"chat_msg": {"message": "Hello"}}, {"notification_msg": {"text": "Hello"}}):
        assert ask("broadcastToRoom", {"room_id": "fresh"} | message)["status"] is True
    assert ask("endRoom", {"room_id": "fresh"})["status"] is True
    assert ask("endRoom", {"room_id": "fresh"})["status_code"] == "ROOM_NOT_FOUND"
    result = ask("fetchPastRooms", {"room_ids": ["fresh"], "order_by": "ASC"})["result"]
    assert result["total_rooms"] == "1"
    (past,) = result["rooms_list"]
    assert (past["room_id"], past["room_sid"]) == ("fresh", created["room_info"]["sid"])
    assert ask("create", FRESH)["room_info"]["sid"] != past["room_sid"]


def test_no_active_room(world: World) -> None:
    """`isRoomActive` is a success all the same; a page of past rooms is a part of the list."""
    past = "/auth/room/fetchPastRooms"
    for number in range(3):
        body = {**FRESH, "room_id": f"fresh-{number}"}
        for path in ("create", "endRoom"):
            assert world.talk(call(f"/auth/room/{path}", body)).record["status"] is True
    page = world.talk(call(past, {"from": 1, "limit": "1"})).record["result"]
    assert [room["room_id"] for room in page["rooms_list"]] == ["fresh-1"]
    assert page["total_rooms"] == "3"
    page = world.talk(call(past, {"from": 3, "limit": 101})).record["result"]
    assert (page["total_rooms"], page["limit"], page["rooms_list"]) == ("3", 100, [])
    world.room.active = False
    assert world.talk(call("/auth/room/getActiveRoomsInfo", {})).code == (200, "NOT_FOUND")
    for room_id, code in (("room01", "ROOM_NOT_ACTIVE"), ("nowhere", "ROOM_NOT_FOUND")):
        record = world.talk(call("/auth/room/isRoomActive", {"room_id": room_id})).record
        assert record.pop("msg")
        assert record == {"status": True, "status_code": code, "is_active": False}


def test_the_health_check(world: World) -> None:
    """A load balancer is answered without a key, in plain text."""
    for path in ("/healthCheck", "/healthcheck/"):
        answer = world.talk(request(path, b"", {}, "GET"))
        assert answer.code == (200, "Healthy")
        assert answer.headers["content-type"].startswith("text/plain")


def test_every_request_is_recorded_without_secrets(world: World) -> None:
    """Method, path, room, status, code and body size; as text it is one line."""
    raws = [upload(), call(INFO, {"roomId": "room02"}), upload(X="x" * 5000)]
    for raw in raws:
        world.talk(raw)
    requests = world.server.requests
    assert [(r.method, r.room_id, r.status, r.status_code) for r in requests] == [
        ("POST", "room01", 200, "SUCCESS"),
        ("POST", "room02", 200, "ROOM_NOT_FOUND"),
        ("POST", "room01", 431, ""),
    ]
    assert [r.body_bytes for r in requests] == [len(document()), len('{"roomId": "room02"}'), 0]
    assert str(requests[0]).startswith(f"POST {UPLOAD} room01 'deck.pdf' 200 SUCCESS 141 bytes 0.")
    shown = repr([world.server, requests, world.room])
    shown += "".join(map(str, requests))
    assert not any(s in shown for s in ("devkey", "devsecret", sign(b"room01")))


# --- the requests of others ----------------------------------------------------------------------
# The JavaScript SDK of this version sends snake_case; what later ones send in camelCase is above.

JAVASCRIPT = """
const {PlugNmeet} = require('plugnmeet-sdk-js');
const api = new PlugNmeet(process.argv[2], 'devkey', 'devsecret');
const room = {room_id: 'fresh'};
const user = {name: 'Ada', user_id: 'ada', is_admin: true, is_hidden: false};
const title = {room_title: 'Fresh', room_features: {allow_webcams: true}};
(async () => {
  const done = [
    await api.isRoomActive(room),
    await api.createRoom({...room, metadata: title}),
    await api.getJoinToken({...room, user_info: user}),
    await api.getActiveRoomInfo(room),
    await api.getActiveRoomsInfo(),
    await api.getActiveRoomInfo({room_id: 'nowhere'}),
  ];
  console.log(JSON.stringify(done));
})();
"""


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_javascript_sdk(tmp_path: Path) -> None:
    """Creates a room with a presenter, to which a document can be uploaded."""
    if not (shutil.which("npm") and shutil.which("node")):
        pytest.skip("needs Node.js with npm")
    command = ["npm", "install", "--ignore-scripts", "--no-fund", "plugnmeet-sdk-js@1.4.1"]
    run_to_its_end(command, tmp_path, seconds=240)
    (tmp_path / "calls.cjs").write_text(JAVASCRIPT)
    server = MeetingServer()
    with server.run() as url:
        printed = run_to_its_end(["node", "calls.cjs", url], tmp_path)
        assert talk(url, upload(room="fresh")).status == 200
    before, created, token, info, rooms, missing = json.loads(printed)
    assert before["status"] is True
    assert [reply["status"] for reply in (created, token, info, rooms)] == [True] * 4
    assert info["room"]["room_info"]["room_title"] == "Fresh"
    assert missing["status"] is False


@pytest.mark.nightly
@pytest.mark.anyio
async def test_the_python_sdk() -> None:
    """Its unset fields are null, which is protobuf JSON for "not set"."""
    sdk = import_module("plugnmeet_sdk.PlugNMeet")  # it has no types
    data = import_module("plugnmeet_sdk.schemas.data")
    requests = import_module("plugnmeet_sdk.schemas.requests")
    server = MeetingServer()
    with server.run() as url:
        api = sdk.PlugNMeet(url, "devkey", "devsecret")
        room = requests.RoomStatusRequest("room01")
        assert (await api.isRoomActive(room))[1]["status"] is True
        server.add_room("room01")
        status, info = await api.getActiveRoomInfo(requests.GetActiveRoomInfoRequest("room01"))
        assert (status, info["room"]["room_info"]["room_id"]) == (200, "room01")
        user = data.UserInfo("Ada", "ada", is_admin=False, user_metadata=None)
        status, token = await api.getJoinToken(requests.JoinRoomRequest("room01", user))
        assert (status, token["status"]) == (200, True)
        assert (await api.endRoom(requests.EndRoomRequest("room01")))[1]["status"] is True
        _, past = await api.fetchPastRoomsInfo(requests.FetchPastRoomsInfoRequest(["room01"]))
        assert past["result"]["total_rooms"] == "1"
