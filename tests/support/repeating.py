"""Pages that repeat what they were sent: wrong base URLs and debug modes of proxies lead there.

A :class:`Repeater` is a script for a peer. It makes each reply out of the signature and the key of
its request, and remembers them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs

from support.peer import Connection, Received

KEY, SECRET = "key-0f-the/app+1", "secret-0f-the-app"
NOT_SECRET = "r-17-is-no-secret"
"""The value of a header X-Request-Id."""
GREETING = "hello there"
"""What a page says besides."""

STATUSES = [200, 302, 400, 401, 409, 413, 429, 500, 502, 503]
PLACES = [
    "page", "msg", "status_code", "field", "key of a field", "header", "content type",
    "retry after", "location", "reason phrase",
]  # fmt: skip
"""Where a reply repeats what the request has sent."""


def page(
    place: str, status: int, values: list[str], *, change: Callable[[str], str] = str
) -> tuple[list[tuple[str, str]], bytes, str]:
    """Make headers, content and reason phrase of a reply that repeats values in a place."""
    values = [change(value) for value in values]
    line = f"{GREETING}: {', '.join(values)}"
    name = "SUCCESS" if status == 200 else "NAME"
    record: dict[str, Any] = {"status": status == 200, "msg": GREETING, "status_code": name}
    headers, kind = [("X-Request-Id", NOT_SECRET)], "application/json"
    if place in {"msg", "status_code"}:
        record[place] = line
    elif place == "field":
        record["request"] = {"headers": [values], "room": {"metadata": json.dumps(values)}}
        record["room"] = {"room_info": {"metadata": json.dumps(values), "room_title": line}}
    elif place == "key of a field":
        record["request"] = dict.fromkeys(values, 1)
    elif place == "header":
        headers += [(f"X-Debug-{number}", value) for number, value in enumerate(values)]
    elif place == "content type":
        kind = f"application/json; seen={';'.join(values)}"
    elif place == "retry after":
        headers.append(("Retry-After", values[0]))
    elif place == "location":
        headers.append(("Location", f"https://login.example.com/?back={'&'.join(values)}"))
    content = json.dumps(record).encode()
    if place == "page":
        kind = "text/html"
        content = f"<html><pre>{GREETING} {'<br>'.join(values)}".encode("utf-8", "replace")
    return [("Content-Type", kind), *headers], content, line if place == "reason phrase" else "OK"


def as_bytes(status: int, made: tuple[list[tuple[str, str]], bytes, str]) -> bytes:
    """Put a reply on the wire."""
    headers, content, phrase = made
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers)]
    lines += [f"Content-Length: {len(content)}", "", ""]
    return "\r\n".join(lines).encode() + content


PLAIN = (
    b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 65\r\n\r\n'
    b'{"status":true,"msg":"fine ......","status_code":"SUCCESS","a":1}'
)  # fmt: skip


Answer = Callable[[list[str]], bytes]
"""Makes a reply that repeats values."""


@attrs.define
class Repeater:
    """Serves connections, and knows which secrets came through them."""

    answers: Sequence[Answer]
    """One for each room in turn, however often something is asked about it."""
    repeats: str = "document"
    """Which are meant: ``"check"``, ``"probe"`` (an empty form), ``"document"`` (any other) or
    ``"all"``."""
    is_early: bool = False
    """Whether the answer comes before the body is read."""
    seen: set[str] = attrs.field(factory=lambda: {KEY})

    def __call__(self, connection: Connection) -> None:
        while connection.read_head():
            if not self.is_early or connection.request.length < 1000:
                connection.read_body()
            kind = _kind(connection.request)
            if self.repeats not in {kind, "all"}:
                connection.send(PLAIN)
                continue
            connection.send(self.answer(connection.request))
            if self.is_early:
                connection.closed_within(2)
                return

    def answer(self, request: Received) -> bytes:
        """Make the reply to a request that is meant."""
        return of_its_room(self.answers, request)(self.note(request))

    def note(self, request: Received) -> list[str]:
        """Remember the secrets of a request, and return them."""
        names = (b"HASH-SIGNATURE", b"API-KEY", b"Authorization")
        values = [value.decode() for name in names for value in request.values(name)]
        self.seen.add(values[0])
        self.seen |= {value.removeprefix("Bearer ") for value in values[2:]}
        return values


def _kind(request: Received) -> str:
    if b"getActiveRoomInfo" in request.head:
        return "check"
    is_form = b"uploadWhiteboardFile" in request.head and len(request.body) > 0
    return "probe" if is_form and b'name="document' not in request.body else "document"


T = TypeVar("T")


def of_its_room(found: Sequence[T], request: Received) -> T:
    """Return what belongs to the room of a request, whose id ends in a number."""
    number = re.search(rb"(?:room|class)(\d+)", request.head + bytes(request.body[:1000]))
    assert number
    return found[int(number[1]) % len(found)]


def repeating(place: str, status: int, **how: Any) -> Answer:
    """Answer with a page."""
    return lambda values: as_bytes(status, page(place, status, values, **how))
