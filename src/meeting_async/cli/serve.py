"""``meeting-async serve``: the development server, for experiments with any client."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType

import attrs

from meeting_async._batch.local_checks import check_room_id
from meeting_async._config import settings_from
from meeting_async._policies import parse_size
from meeting_async.cli.console import PROGRAM, Output
from meeting_async.cli.results import ExitCode
from meeting_async.cli.words import size
from meeting_async.errors import ConfigurationError

DEFAULT_ROOMS = ("room01", "room02", "room03")

FORM_BYTES = 20 * 1024**2
"""Room for all of a request but the document; servers of this kind allow 50 MB for a 30 MB file."""


@attrs.frozen
class _Credentials:
    """Key and secret, from the environment or for development."""

    key: str
    secret: str = attrs.field(repr=False)
    is_secret_given: bool = False

    @classmethod
    def from_environment(cls) -> _Credentials:
        settings = settings_from(os.environ)
        key, secret = settings.get("api_key", "devkey"), settings.get("api_secret")
        if secret is None:
            return cls(key, "devsecret")
        try:
            return cls(key, bytes(secret).decode(), is_secret_given=True)
        except UnicodeDecodeError as error:
            field, problem = "MEETING_API_SECRET_FILE", "holds what is not UTF-8 text"
            raise ConfigurationError(field, "(hidden)", problem, "give another") from error


def serve(
    output: Output,
    *,
    host: str,
    port: int,
    rooms: Sequence[str],
    max_size: str,
    lock_seconds: float,
    processing_seconds: float,
    quiet: bool,
) -> int:
    """Serve until Ctrl-C or SIGTERM, which are the usual ends and no failure."""
    from meeting_async.testing import MeetingServer

    credentials, limit = _Credentials.from_environment(), parse_size(max_size, field="--max-size")
    server = MeetingServer(
        api_key=credentials.key,
        api_secret=credentials.secret,
        max_size_whiteboard_file=limit,
        max_body_size=limit + FORM_BYTES,
        lock_seconds=lock_seconds,
        processing_seconds=processing_seconds,
        on_request=None if quiet else lambda request: output.note(f"{_now()} {request}"),
    )
    rooms = tuple(dict.fromkeys(rooms)) or DEFAULT_ROOMS
    for room_id in rooms:
        check_room_id(room_id)
        server.add_room(room_id)

    def welcome(url: str) -> None:
        output.say("\n".join(_welcome(url, rooms, credentials, size(limit))))

    try:
        with _ending_on_sigterm():
            server.serve_forever(host, port, on_ready=welcome)
    except KeyboardInterrupt:
        pass  # it was not listening yet
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        output.note(f"error: cannot listen on {host}:{port}: {reason}")
        return ExitCode.FAILED
    output.note("stopped")
    return output.code()


def _now() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM, with which service managers stop programs, do what Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _welcome(
    url: str, rooms: Sequence[str], credentials: _Credentials, limit: str
) -> Iterator[str]:
    room = shlex.quote(rooms[0])
    yield f"Meeting server on {url} (Ctrl-C stops it)"
    yield f"Active rooms, each with a presenter: {', '.join(rooms)}. Documents up to {limit}."
    yield ""
    yield "For the shell that uploads:"
    yield ""
    yield f"export MEETING_BASE_URL={url}"
    yield f"export MEETING_API_KEY={shlex.quote(credentials.key)}"
    if credentials.is_secret_given:  # it may be a real one, and terminals and logs remember
        yield 'export MEETING_API_SECRET="${MEETING_API_SECRET:?is the one that serve was given}"'
    else:
        yield f"export MEETING_API_SECRET={credentials.secret}"
    yield ""
    yield "Then, with this command line:"
    yield ""
    yield "echo Welcome > hello.txt"
    yield f"{PROGRAM} upload {room} hello.txt"
    yield ""
    yield "Or with curl:"
    yield ""
    yield from _curl(rooms[0])


def _curl(room_id: str) -> Iterator[str]:
    room = shlex.quote(room_id)
    yield 'sign() { printf %s "$1" | openssl dgst -sha256 -hmac "$MEETING_API_SECRET" -r; }'
    yield "echo Welcome > hello.txt"
    yield f"signature=$(sign {room})"
    yield 'curl -sS "$MEETING_BASE_URL/auth/room/uploadWhiteboardFile" -F document=@hello.txt \\'
    yield f'  -H "API-KEY: $MEETING_API_KEY" -H "Room-Id: "{room} \\'
    yield '  -H "HASH-SIGNATURE: ${signature%% *}"'
    yield f"body={shlex.quote(json.dumps({'room_id': room_id}))}"
    yield 'signature=$(sign "$body")'
    yield 'curl -sS "$MEETING_BASE_URL/auth/room/getActiveRoomInfo" -d "$body" \\'
    yield '  -H "API-KEY: $MEETING_API_KEY" -H "Content-Type: application/json" \\'
    yield '  -H "HASH-SIGNATURE: ${signature%% *}"'
