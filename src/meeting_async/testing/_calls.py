"""Answering the signed JSON calls: one short function per method path.

Rooms that are not there or not active are answered with HTTP 200 and ``status`` false, as a real
server does.
"""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from ._keys import authenticate
from ._replies import Refusal, success
from ._rooms import Room
from ._state import State

Payload: TypeAlias = Mapping[str, object]


def answer_call(
    state: State, request: Request, body: bytes, answer: Callable[[State, Payload, str], Response]
) -> Response:
    """Check the signature over the exact ``body``, read it and hand it to ``answer``."""
    authenticate(state.settings, request, body)
    payload = parse(body)
    if payload is None:
        raise Refusal(400, "INVALID_PARAMETERS", "the body must be a JSON object")
    return answer(state, payload, _room_id(payload))


def parse(body: bytes) -> Payload | None:
    """Read a JSON object in UTF-8; None if it is anything else."""
    try:
        payload = json.loads(body.decode())
    except (ValueError, RecursionError):
        return None
    return payload if isinstance(payload, dict) else None


def _room_id(payload: Payload) -> str:
    room_id = payload.get("room_id", "")
    if not isinstance(room_id, str):
        raise Refusal(400, "INVALID_PARAMETERS", "room_id must be a string")
    if not room_id:
        raise Refusal(400, "MISSING_REQUIRED_PARAMETER", "room_id is required")
    return room_id


def _active(state: State, room_id: str) -> Room:
    room = state.rooms.get(room_id)
    if room is None:
        raise Refusal(200, "ROOM_NOT_FOUND", "there is no such room")
    if not room.active:
        raise Refusal(200, "ROOM_NOT_ACTIVE", "the room is not active")
    return room


def _get_active_room_info(state: State, _: Payload, room_id: str) -> Response:
    room = _active(state, room_id)
    record = {"room_info": room.info(), "participants_info": room.participants_info()}
    return success("success", room=record)


def _is_room_active(state: State, _: Payload, room_id: str) -> Response:
    room = state.rooms.get(room_id)
    is_active = room is not None and room.active
    return success("room is active" if is_active else "room is not active", is_active=is_active)


def _create(state: State, payload: Payload, room_id: str) -> Response:
    metadata = payload.get("metadata")
    title = metadata.get("room_title") if isinstance(metadata, dict) else None
    room = state.create_room(room_id, title=title if isinstance(title, str) else None)
    return success("success", room_info=room.info())


def _end_room(state: State, _: Payload, room_id: str) -> Response:
    _active(state, room_id).active = False
    return success("success")


#: Method path to the function that answers it.
CALLS: Mapping[str, Callable[[State, Payload, str], Response]] = MappingProxyType(
    {
        "/room/create": _create,
        "/room/endRoom": _end_room,
        "/room/getActiveRoomInfo": _get_active_room_info,
        "/room/isRoomActive": _is_room_active,
    }
)
