"""Answering the signed JSON calls: one short function per method path.

The HTTP status is 200 whatever a call comes to, as a real server answers. Fields are read in both
spellings of protobuf JSON, ``room_id`` and ``roomId``; unknown ones are ignored.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from meeting_async.testing._files import Form
from meeting_async.testing._messages import Refused, Reply, method_path, refusal, success
from meeting_async.testing._rooms import Room
from meeting_async.testing._state import State

Payload: TypeAlias = Mapping[str, object]

ROOM_ID = re.compile(r"[A-Za-z0-9_-]+")
"""Ids that ``room/create`` accepts, as the server uses them as subjects of messages."""


def parse(body: bytes) -> Payload | None:
    """Read a JSON object in UTF-8; None if it is anything else."""
    try:
        payload = json.loads(body.decode())
    except (ValueError, RecursionError):
        return None
    return payload if isinstance(payload, dict) else None


def get(payload: Payload, name: str) -> object:
    """Return a field by its name in snake_case, whether it is written so or in camelCase."""
    camel = re.sub("_([a-z])", lambda found: found[1].upper(), name)
    return payload.get(name, payload.get(camel))


def room_id_of(payload: Payload) -> str | None:
    """Return the room that a call names."""
    room_id = get(payload, "room_id")
    return room_id if isinstance(room_id, str) and room_id else None


def answer_call(state: State, path: str, body: bytes | Form) -> Reply:
    """Answer a call to one of `CALLS` whose signature is right."""
    payload = None if isinstance(body, Form) else parse(body)
    if payload is None:
        raise _invalid("the body must be a JSON object")
    return CALLS[path](state, payload)


def _invalid(problem: str) -> Refused:
    return refusal(200, "INVALID_PARAMETERS", problem)


def _text(payload: Payload, name: str) -> str:
    value = get(payload, name)
    if not isinstance(value, str) or not value:
        raise _invalid(f"{name} is required and must be a string")
    return value


def _object(payload: Payload, name: str) -> Payload:
    value = get(payload, name)
    if not isinstance(value, dict):
        raise _invalid(f"{name} is required and must be an object")
    return value


def _count(payload: Payload, name: str, default: int) -> int:
    value = str(get(payload, name) or default)  # 64-bit integers may be written as text
    if not re.fullmatch("[0-9]{1,9}", value):
        raise _invalid(f"{name} must be a number")
    return int(value)


def _active(state: State, payload: Payload) -> Room:
    room_id = _text(payload, "room_id")
    code = state.why_not_active(room_id)
    if code:
        raise refusal(200, code, "the room is not active")
    return state.rooms[room_id]


def _create(state: State, payload: Payload) -> Reply:
    room_id = _text(payload, "room_id")
    if not ROOM_ID.fullmatch(room_id):
        raise _invalid("room_id may have letters, digits, - and _")
    metadata = _object(payload, "metadata")
    title = _text(metadata, "room_title")
    _object(metadata, "room_features")
    room = state.room(room_id)
    room.open(title)
    return success("success", room_info=room.info())


def _get_join_token(state: State, payload: Payload) -> Reply:
    room = _active(state, payload)
    user = _object(payload, "user_info")
    name, _ = _text(user, "name"), _text(user, "user_id")
    # Nobody connects to this server, so who gets a token is in the room.
    room.join(name, as_presenter=get(user, "is_admin") is True)
    return success("success", token=secrets.token_urlsafe(32))


def _get_active_room_info(state: State, payload: Payload) -> Reply:
    return success("success", room=_active(state, payload).record())


def _get_active_rooms_info(state: State, _: Payload) -> Reply:
    active = [room.record() for room in state.rooms.values() if room.active]
    if not active:
        raise refusal(200, "ROOM_NOT_FOUND", "no room is active")
    return success("success", rooms=active)


def _is_room_active(state: State, payload: Payload) -> Reply:
    code = state.why_not_active(_text(payload, "room_id"))
    text = "the room is not active" if code else "the room is active"
    record = {"status": True, "msg": text, "status_code": code or "SUCCESS", "is_active": not code}
    return Reply.from_json(200, record)


def _end_room(state: State, payload: Payload) -> Reply:
    state.past.append(_active(state, payload).end())
    return success("success")


def _fetch_past_rooms(state: State, payload: Payload) -> Reply:
    wanted = get(payload, "room_ids") or [past["room_id"] for past in state.past]
    start, limit = _count(payload, "from", 0), _count(payload, "limit", 20)
    order = get(payload, "order_by") or "DESC"
    found = [past for past in state.past if isinstance(wanted, list) and past["room_id"] in wanted]
    if not found:
        raise refusal(200, "NOT_FOUND", "no room has ended")
    page = (found if order == "ASC" else found[::-1])[start : start + limit]
    result = {"total_rooms": str(len(found)), "from": start, "limit": limit}
    return success("success", result=result | {"order_by": order, "rooms_list": page})


CALLS: Mapping[str, Callable[[State, Payload], Reply]] = MappingProxyType(
    {
        method_path(path): answer
        for path, answer in {
            "/room/create": _create,
            "/room/endRoom": _end_room,
            "/room/fetchPastRooms": _fetch_past_rooms,
            "/room/getActiveRoomInfo": _get_active_room_info,
            "/room/getActiveRoomsInfo": _get_active_rooms_info,
            "/room/getJoinToken": _get_join_token,
            "/room/isRoomActive": _is_room_active,
        }.items()
    }
)
"""Method path to the function that answers it."""
