"""Answering ``/auth/room/uploadWhiteboardFile`` once the whole form is there.

The checks are in the order of plugNmeet-server: key, signature, Room-Id, room, presenter, lock,
link or document, size, kind by content, conversion. Where ``docs/interface.md`` does not specify
it: with both fields the link is used and the document ignored; of several documents or links the
first one is used; a document or link in the wrong kind of part (a file without a name, a link
with one) counts as missing; a room without a presenter is refused with ``USER_NOT_ACTIVE``.

A conversion goes on even if the client does not wait for it. Only in process can a client cancel
the handler while it downloads a link; then nothing is accepted and the room is free.

The server sends HEAD to a link, then downloads it. The link must be direct and public, so redirects
are not followed and no credentials are sent. Proxies of the environment are not used, so that links
to this machine always work. A download takes real time, also with a virtual clock.
"""

from __future__ import annotations

import re
from functools import partial
from urllib.parse import urlsplit

import anyio
import httpx
from anyio.to_thread import run_sync

from meeting_async.testing._calls import PLAIN_ID
from meeting_async.testing._files import (
    OFFICE_KINDS,
    Part,
    declared_kind,
    fate_of,
    kind_of,
    safe_name,
)
from meeting_async.testing._messages import Refused, Reply, success
from meeting_async.testing._rooms import CONVERSION_FAILED, ReceivedFile, Room, Rooms
from meeting_async.testing._settings import Settings

HEAD_SECONDS = 5.0
DOWNLOAD_SECONDS = 180.0


async def answer_upload(rooms: Rooms, room_id: str, body: bytes | list[Part]) -> Reply:
    """Check an upload, lock the room, accept the file, wait for its conversion."""
    room = _room(rooms, room_id)
    listed_in = rooms.list_for(room)
    lock = room.acquire()
    try:
        part = await _file(rooms.settings, body)
        file, problem = _received(part, rooms)
    except BaseException:
        room.release(lock)
        raise
    lock.saved, lock.saved_by = rooms.clock.date(), rooms.contacts
    room.accept(lock, file, problem=problem, listed_in=listed_in)
    moment, problem = lock.until, lock.problem
    reply_after = rooms.settings.reply_after
    if reply_after is not None and file.at + reply_after < moment:
        moment, problem = file.at + reply_after, ""
    await rooms.clock.sleep_until(moment)
    if problem:
        raise Refused("INTERNAL_SERVER_ERROR", problem)
    return success("file uploaded successfully")


def _room(rooms: Rooms, room_id: str) -> Room:
    if not room_id:
        raise Refused("INVALID_PARAMETERS", "Room-Id header is required")
    if rooms.settings.strict_room_ids and not PLAIN_ID.fullmatch(room_id):
        problem = "the room id has characters other than A-Z a-z 0-9 - _"
        raise Refused("INTERNAL_SERVER_ERROR", problem, 400)
    room = rooms.active(room_id, for_upload=True)
    if rooms.settings.presenter_required and not room.presenter:
        raise Refused("USER_NOT_ACTIVE", "no presenter is in the room")
    return room


async def _file(settings: Settings, form: list[Part] | bytes) -> Part:
    parts = [] if isinstance(form, bytes) else form
    files = [part for part in parts if part.field == "document" and part.filename]
    links = [part for part in parts if part.field == "document_link" and not part.filename]
    if links and links[0].content:
        return await _linked(settings, links[0].content.decode(errors="replace"))
    if not files:
        raise Refused("INVALID_PARAMETERS", "one of document and document_link is required")
    if files[0].size > settings.max_size_whiteboard_file:
        raise Refused("INVALID_PARAMETERS", "the file is too large", 413)
    return files[0]


def _received(part: Part, rooms: Rooms) -> tuple[ReceivedFile, str]:
    """Return the file, and why its conversion fails; ``""`` if it does not."""
    strict = rooms.settings.strict_pdf
    kind, name = kind_of(part, strict_pdf=strict), safe_name(part.filename)
    fate = fate_of(kind, name, rooms.settings.accepted_kinds)
    if fate == "refused":
        raise Refused("INVALID_PARAMETERS", f"the file is not a supported document: {kind}")
    file = ReceivedFile(
        name=part.filename,
        stored_name=name,
        size=part.size,
        sha256=part.sha256,
        content_type=part.content_type,
        kind=kind,
        via="document" if part.field == "document" else "document_link",
        at=rooms.clock.now(),
        content=part.content,
    )
    if kind in OFFICE_KINDS and rooms.office_is_busy():
        return file, "failed to convert file to PDF"
    problem = "failed to count PDF pages" if kind == "broken pdf" else CONVERSION_FAILED
    return file, problem if fate == "failed" else ""


# --- links -------------------------------------------------------------------------------------


async def _linked(settings: Settings, link: str) -> Part:
    if not _is_url(link):
        raise Refused("INVALID_PARAMETERS", "document_link is not a URL")
    # Making a client reads certificates, which takes tens of milliseconds.
    make = partial(httpx.AsyncClient, timeout=None, trust_env=False, follow_redirects=False)
    try:
        async with await run_sync(make) as client:
            return await _download(client, settings, link)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        problem = f"the link cannot be downloaded: {type(error).__name__}"
        raise Refused("INTERNAL_SERVER_ERROR", problem, 400) from error


def _is_url(link: str) -> bool:
    """Return whether this is a URL, or at least an absolute path."""
    try:
        urlsplit(link)
    except ValueError:
        return False
    return re.match("([A-Za-z][A-Za-z0-9+.-]*:)?/", link) is not None


async def _download(client: httpx.AsyncClient, settings: Settings, link: str) -> Part:
    with anyio.fail_after(HEAD_SECONDS):
        asked = (await client.head(link)).raise_for_status()
    content_type = asked.headers.get("content-type", "")
    if declared_kind(content_type) not in settings.accepted_kinds:
        problem = f"the link is not a supported document: {content_type!r}"
        raise Refused("INTERNAL_SERVER_ERROR", problem, 400)
    name = httpx.URL(link).path.rpartition("/")[2]
    part = Part("document_link", name, content_type, settings.keep_content)
    # The limit counts the bytes of the document: they must not be compressed on the way.
    as_it_is = {"accept-encoding": "identity"}
    with anyio.fail_after(DOWNLOAD_SECONDS):
        async with client.stream("GET", link, headers=as_it_is) as reply:
            reply.raise_for_status()
            async for chunk in reply.aiter_raw():
                part.write(chunk)
                if part.size > settings.max_size_whiteboard_file:
                    raise Refused("INTERNAL_SERVER_ERROR", "the linked file is too large", 400)
    return part
