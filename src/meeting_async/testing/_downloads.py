"""Answering ``/download/uploadedFile/{sid}/{name}``: documents that were received whole.

No key is needed. A document is there from its arrival to the end of the session, whether or not
its conversion ends well; a later one of the same name replaces it.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

from meeting_async.testing._files import media_type_of
from meeting_async.testing._messages import STORED_FILE, Reply, http_date
from meeting_async.testing._rooms import Rooms

_PATH = re.compile(f".*{STORED_FILE}/([^/]+)/([^/]+)", re.IGNORECASE)
"""Session and name are decoded like a query: ``+`` is a blank."""


def answer_download(rooms: Rooms, target: str, *, with_content: bool) -> Reply:
    """Answer HEAD, or GET if the content is kept; ``target`` is the path as it was sent."""
    settings = rooms.settings
    if settings.stored_files == "redirected":
        return Reply(307, headers=(("location", f"/storage{target}"),))
    named = _PATH.fullmatch(target)
    sid, name = map(unquote_plus, named.groups() if named else ("", ""))
    saved = rooms.stored(sid, name)
    if settings.stored_files == "absent" or saved is None or saved.file is None:
        return Reply.plain(404)
    content = saved.file.content
    if with_content and content is None:
        return Reply.text(501, "the content is not kept: MeetingServer(keep_content=True)")
    pairs = (
        ("content-type", media_type_of(name)),
        ("content-length", str(saved.file.size)),
        ("content-disposition", "attachment"),
        ("last-modified", http_date(saved.saved + settings.stored_files_clock)),
    )
    return Reply(200, content if with_content and content else b"", pairs)
