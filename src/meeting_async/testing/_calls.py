"""Answering the signed JSON calls: one short function per method path.

The HTTP status is always 200, as on plugNmeet-server. Fields are read in both spellings of protobuf
JSON, ``room_id`` and ``roomId``; unknown ones are ignored.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

from meeting_async.testing._messages import Refused, Reply, success
from meeting_async.testing._rooms import Room, Rooms

Payload: TypeAlias = Mapping[str, object]
T = TypeVar("T")

PLAIN_ID = re.compile(r"[A-Za-z0-9_-]+")
"""Ids of rooms and users, because the server uses them as message subjects."""

MAX_PAST_ROOMS = 100
"""Rooms in one answer of ``fetchPastRooms``."""


def parse(body: object) -> Payload | None:
    """Read a JSON object in UTF-8 that names nothing twice; None for anything else."""
    try:
        text = body.decode() if isinstance(body, bytes) else ""
        payload = json.loads(text, object_pairs_hook=_named_once)
    except (ValueError, RecursionError):
        return None
    return payload if isinstance(payload, dict) else None


def _named_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Make an object, whose fields must differ in both spellings."""
    if len({_camel(name) for name, _ in pairs}) != len(pairs):
        raise ValueError("a field is given twice")
    return dict(pairs)


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda found: found[1].upper(), name)


def get(payload: Payload, name: str) -> object:
    """Return a field by its name in snake_case, whether it is written so or in camelCase."""
    return payload.get(name, payload.get(_camel(name)))


def answer_call(rooms: Rooms, path: str, body: object) -> Reply:
    """Answer a call to one of `CALLS` whose signature is right."""
    payload = parse(body)
    if payload is None:
        raise _invalid("the body must be a JSON object")
    return CALLS[path](rooms, payload)


def _invalid(problem: str) -> Refused:
    return Refused("INVALID_PARAMETERS", problem)


def _need(payload: Payload, name: str, kind: type[T]) -> T:
    value = get(payload, name)
    if not isinstance(value, kind) or value == "":
        raise _invalid(f"{name} is required and must be of type {kind.__name__}")
    return value


def _count(payload: Payload, name: str, default: int) -> int:
    value = str(get(payload, name) or default)  # 64-bit integers may be written as text
    if not re.fullmatch("[0-9]{1,9}", value):
        raise _invalid(f"{name} must be a number")
    return int(value)


def _create(rooms: Rooms, payload: Payload) -> Reply:
    room_id = _need(payload, "room_id", str)
    if not PLAIN_ID.fullmatch(room_id):
        raise _invalid("room_id may contain only letters, digits, - and _")
    metadata = _need(payload, "metadata", dict)
    title, _ = _need(metadata, "room_title", str), _need(metadata, "room_features", dict)
    room = rooms.get(room_id)
    room.open(title)
    return success(room_info=room.info())


def _get_join_token(rooms: Rooms, payload: Payload) -> Reply:
    room_id, user = _need(payload, "room_id", str), _need(payload, "user_info", dict)
    name, user_id = _need(user, "name", str), _need(user, "user_id", str)
    if not PLAIN_ID.fullmatch(user_id):
        raise _invalid("user_id may contain only letters, digits, - and _")
    room = rooms.active(room_id)
    # Nobody connects to this server: a user who gets a token counts as being in the room.
    room.join(name, as_presenter=get(user, "is_admin") is True)
    return success(token=secrets.token_urlsafe(32))


def _record(room: Room) -> dict[str, object]:
    return {"room_info": room.info(), "participants_info": room.participants_info()}


def _get_active_room_info(rooms: Rooms, payload: Payload) -> Reply:
    room_id = _need(payload, "room_id", str)
    rooms.contacts.asked.add(room_id)
    return success(room=_record(rooms.active(room_id)))


def _get_active_rooms_info(rooms: Rooms, _: Payload) -> Reply:
    active = [_record(room) for room in rooms.by_id.values() if room.active]
    if not active:
        raise Refused("NOT_FOUND", "no room is active")
    return success(rooms=active)


def _is_room_active(rooms: Rooms, payload: Payload) -> Reply:
    room_id = _need(payload, "room_id", str)
    try:
        rooms.active(room_id)
    except Refused as refused:
        return success(refused.msg, status_code=refused.status_code, is_active=False)
    return success("the room is active", is_active=True)


def _end_room(rooms: Rooms, payload: Payload) -> Reply:
    rooms.past.append(rooms.active(_need(payload, "room_id", str)).end())
    return success()


def _fetch_past_rooms(rooms: Rooms, payload: Payload) -> Reply:
    wanted = get(payload, "room_ids") or [past["room_id"] for past in rooms.past]
    start, limit = _count(payload, "from", 0), min(_count(payload, "limit", 20), MAX_PAST_ROOMS)
    order = get(payload, "order_by") or "DESC"
    found = [past for past in rooms.past if isinstance(wanted, list) and past["room_id"] in wanted]
    if not found:
        raise Refused("NOT_FOUND", "no room has ended")
    page = (found if order == "ASC" else found[::-1])[start : start + limit]
    result = {"total_rooms": str(len(found)), "from": start, "limit": limit}
    return success(result=result | {"order_by": order, "rooms_list": page})


def _broadcast_to_room(rooms: Rooms, payload: Payload) -> Reply:
    room_id = _need(payload, "room_id", str)
    texts = {"chat_msg": "message", "notification_msg": "text"}
    given = [name for name in texts if get(payload, name) is not None]
    if len(given) != 1:
        raise _invalid("one of chat_msg and notification_msg is required")
    _need(_need(payload, given[0], dict), texts[given[0]], str)
    rooms.active(room_id)
    return success()  # nobody connects to this server


CALLS: Mapping[str, Callable[[Rooms, Payload], Reply]] = {
    "/room/broadcasttoroom": _broadcast_to_room,
    "/room/create": _create,
    "/room/endroom": _end_room,
    "/room/fetchpastrooms": _fetch_past_rooms,
    "/room/getactiveroominfo": _get_active_room_info,
    "/room/getactiveroomsinfo": _get_active_rooms_info,
    "/room/getjointoken": _get_join_token,
    "/room/isroomactive": _is_room_active,
}
"""Method path (in lower case) to the function that answers it."""
