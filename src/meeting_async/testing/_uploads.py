"""Answering ``/auth/room/uploadWhiteboardFile`` once the whole form is there.

The order of examination is a real server's: key, signature, Room-Id, room, presenter, lock, link
or document, size, kind by content, conversion. What ``docs/interface.md`` leaves open is decided
so: with both fields the link is taken and the document ignored; a document or link in the wrong
kind of part (a file without name, a link with one) counts as missing; a room without presenter is
refused with ``USER_NOT_ACTIVE``.

A conversion goes on whether or not the client waits for it. Only in process can a client cancel
the handler while it downloads a link; then nothing is accepted and the room is free.
"""

from __future__ import annotations

from meeting_async.testing._calls import ROOM_ID
from meeting_async.testing._files import (
    FAILING_KINDS,
    MAX_OFFICE_NAME_BYTES,
    OFFICE_KINDS,
    Form,
    Part,
    kind_of,
    safe_name,
)
from meeting_async.testing._links import LinkError, download
from meeting_async.testing._messages import Refused, Reply, Request, refusal, success
from meeting_async.testing._rooms import Outcome, ReceivedFile, Room, Upload
from meeting_async.testing._settings import Settings
from meeting_async.testing._state import State


async def answer_upload(state: State, request: Request) -> Reply:
    """Examine an upload, take the room's lock, accept the file, wait for its conversion."""
    room = _room(state, request.room_id.decode(errors="backslashreplace"))
    lock = room.acquire()
    if lock is None:
        raise refusal(409, "CONFLICT", "another upload for this room is in progress")
    try:
        part = await _part(state.settings, request.body)
        file = _received(state, part)
    except BaseException:
        room.release(lock)
        raise
    return await _conversion(state, room.accept(lock, file, fails=_fails(state.settings, file)))


def _room(state: State, room_id: str) -> Room:
    if not room_id:
        raise refusal(400, "MISSING_REQUIRED_PARAMETER", "Room-Id header is required")
    if state.settings.strict_room_ids and not ROOM_ID.fullmatch(room_id):
        raise refusal(400, "INTERNAL_SERVER_ERROR", "the room id has other than A-Z a-z 0-9 - _")
    code = state.why_not_active(room_id)
    if code:
        raise refusal(400, code, "the room is not active")
    room = state.rooms[room_id]
    if state.settings.presenter_required and not room.presenter:
        raise refusal(400, "USER_NOT_ACTIVE", "no presenter is in the room")
    return room


async def _part(settings: Settings, form: Form | bytes) -> Part:
    form = form if isinstance(form, Form) else Form()
    if form.problem:
        raise _invalid(form.problem)
    if form.document_link:
        return await _linked(settings, form.document_link)
    if form.document is None:
        raise _invalid("one of document and document_link is required")
    if form.document.intake.size > settings.max_size_whiteboard_file:
        raise refusal(413, "INVALID_PARAMETERS", "the file is too large")
    return form.document


async def _linked(settings: Settings, link: str) -> Part:
    try:
        return await download(
            link,
            kinds=settings.accepted_kinds,
            max_size=settings.max_size_whiteboard_file,
            keep_content=settings.keep_content,
        )
    except LinkError as error:
        raise refusal(400, "INTERNAL_SERVER_ERROR", str(error)) from error


def _received(state: State, part: Part) -> ReceivedFile:
    kind = kind_of(part.intake.head)
    if kind not in state.settings.accepted_kinds | FAILING_KINDS:
        raise _invalid(f"the file is no supported document, but: {kind}")
    return ReceivedFile(
        name=part.filename,
        stored_name=safe_name(part.filename),
        size=part.intake.size,
        sha256=part.intake.sha256,
        content_type=part.content_type,
        kind=kind,
        via="document" if part.field == "document" else "document_link",
        at=state.clock.now(),
        content=part.intake.content,
    )


def _fails(settings: Settings, file: ReceivedFile) -> bool:
    is_long = len(file.stored_name.encode()) > MAX_OFFICE_NAME_BYTES
    return file.kind not in settings.accepted_kinds or (is_long and file.kind in OFFICE_KINDS)


def _invalid(problem: str) -> Refused:
    return refusal(400, "INVALID_PARAMETERS", problem)


async def _conversion(state: State, upload: Upload) -> Reply:
    reply_after = state.settings.reply_after
    if reply_after is not None and upload.file.at + reply_after < upload.ends_at:
        await state.clock.sleep_until(upload.file.at + reply_after)
        return _uploaded()
    await state.clock.sleep_until(upload.ends_at)
    if upload.outcome is Outcome.CONVERTED:
        return _uploaded()
    raise refusal(500, "INTERNAL_SERVER_ERROR", f"the conversion {upload.outcome.value}")


def _uploaded() -> Reply:
    return success("file uploaded successfully")
