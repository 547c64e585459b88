"""Answering ``/auth/room/uploadWhiteboardFile`` once the whole form is there.

The order of examination is a real server's: key, signature, Room-Id, room, presenter, lock, link
or document, size, type by content, conversion. What the interface leaves open is decided so: with
both fields the link is taken and the document ignored; a document or link in the wrong kind of
part (a file without name, a link with one) counts as missing; a room without presenter is refused
with ``USER_NOT_ACTIVE``; a file that is too large or of a wrong kind with ``INVALID_PARAMETERS``.

A conversion goes on whether or not the client waits for it. Only in process can a client cancel
the handler while it downloads a link; then nothing is accepted and the room is free.
"""

from starlette.requests import Request
from starlette.responses import Response

from ._files import Intake, ReceivedFile, safe_name
from ._forms import Form, Part
from ._keys import authenticate, header
from ._kinds import is_document, media_type
from ._links import Download, LinkError, download
from ._replies import UPLOADED, Refusal, failure, success
from ._rooms import Outcome, Room, Upload
from ._state import State


async def answer_upload(state: State, request: Request, form: Form) -> Response:
    """Examine the upload, take the room's lock, accept the file, wait for its conversion."""
    authenticate(state.settings, request, header(request, b"room-id"))
    room = _room(state, header(request, b"room-id").decode(errors="backslashreplace"))
    lock = room.acquire()
    if lock is None:
        raise Refusal(409, "CONFLICT", "another upload for this room is in progress")
    try:
        file = await _file(state, form)
    except BaseException:
        room.release(lock)
        raise
    return await _conversion(state, room.accept(lock, file))


def _room(state: State, room_id: str) -> Room:
    if not room_id:
        raise Refusal(400, "MISSING_REQUIRED_PARAMETER", "Room-Id header is required")
    room = state.rooms.get(room_id)
    if room is None:
        raise Refusal(400, "ROOM_NOT_FOUND", "there is no such room")
    if not room.active:
        raise Refusal(400, "ROOM_NOT_ACTIVE", "the room is not active")
    if not room.presenter:
        raise Refusal(400, "USER_NOT_ACTIVE", "no presenter is in the room")
    return room


async def _file(state: State, form: Form) -> ReceivedFile:
    if form.fault:
        raise Refusal(400, "INVALID_PARAMETERS", form.fault)
    if form.document_link:
        return await _linked(state, form.document_link)
    if form.document is None:
        raise Refusal(
            400, "MISSING_REQUIRED_PARAMETER", "one of document and document_link is required"
        )
    return _uploaded(state, form.document)


async def _linked(state: State, link: str) -> ReceivedFile:
    settings = state.settings
    try:
        found = await download(
            link,
            max_size=settings.max_size_whiteboard_file,
            keep_content=settings.keep_content,
        )
    except LinkError as error:
        raise Refusal(400, "INTERNAL_SERVER_ERROR", str(error)) from error
    return _received(state, found)


def _uploaded(state: State, part: Part) -> ReceivedFile:
    if part.intake.size > state.settings.max_size_whiteboard_file:
        raise Refusal(413, "INVALID_PARAMETERS", "the file is too large")
    return _received(state, part)


def _received(state: State, source: Part | Download) -> ReceivedFile:
    return ReceivedFile(
        name=source.filename,
        stored_name=safe_name(source.filename),
        size=source.intake.size,
        sha256=source.intake.sha256,
        content_type=source.content_type,
        media_type=_document_type(source.intake),
        via="document_link" if isinstance(source, Download) else "document",
        at=state.clock.now(),
        content=source.intake.content,
    )


def _document_type(intake: Intake) -> str:
    kind = media_type(intake.head)
    if kind.startswith("image/"):
        raise Refusal(400, "INVALID_PARAMETERS", f"images are not supported: {kind}")
    if not is_document(kind):
        raise Refusal(400, "INVALID_PARAMETERS", "the file is not a supported document")
    return kind


async def _conversion(state: State, upload: Upload) -> Response:
    patience = state.settings.reply_after
    if patience is not None and upload.file.at + patience < upload.ends_at:
        await state.clock.sleep_until(upload.file.at + patience)
        return success(UPLOADED)
    await state.clock.sleep_until(upload.ends_at)
    if upload.outcome is Outcome.CONVERTED:
        return success(UPLOADED)
    return failure(500, "INTERNAL_SERVER_ERROR", f"the conversion {upload.outcome.value}")
