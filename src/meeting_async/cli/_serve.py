"""``meeting-async serve``: the development server, for experiments with any client."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import attrs

from meeting_async import _wire
from meeting_async._environment import settings_from
from meeting_async._limits import parse_size
from meeting_async.cli._console import complain, say
from meeting_async.cli._extras import meeting_server
from meeting_async.cli._outcomes import ExitCode, readable_size
from meeting_async.errors import ConfigurationError

DEFAULT_ROOMS = ("room01", "room02", "room03")

FORM_BYTES = 20 * 1024**2
"""Room for all of a request but the document; servers of this kind allow 50 MB for a 30 MB file."""


@attrs.frozen(kw_only=True)
class Options:
    """What the command line says about the server; times are seconds."""

    host: str
    port: int
    rooms: Sequence[str]
    max_size: str
    lock_seconds: float
    processing_seconds: float


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
        if isinstance(secret, bytes):  # from MEETING_API_SECRET_FILE
            try:
                secret = secret.decode()
            except UnicodeDecodeError as error:
                field, problem = "MEETING_API_SECRET_FILE", "holds what is not UTF-8 text"
                raise ConfigurationError(field, "(hidden)", problem, "give another") from error
        return cls(key, secret, is_secret_given=True)


def serve(options: Options) -> ExitCode:
    """Serve until Ctrl-C or SIGTERM, which are the usual ends and no failure."""
    credentials = _Credentials.from_environment()
    max_size = parse_size(options.max_size, field="--max-size")
    server = meeting_server()(
        api_key=credentials.key,
        api_secret=credentials.secret,
        max_size_whiteboard_file=max_size,
        max_body_size=max_size + FORM_BYTES,
        lock_seconds=options.lock_seconds,
        processing_seconds=options.processing_seconds,
    )
    rooms = tuple(dict.fromkeys(options.rooms)) or DEFAULT_ROOMS
    for room_id in rooms:
        _wire.room_id_bytes(room_id)
        server.add_room(room_id)

    def welcome(url: str) -> None:
        say("\n".join(_welcome(url, rooms, credentials, options)))

    try:
        with _ending_on_sigterm():
            server.serve_forever(options.host, options.port, on_ready=welcome)
    except KeyboardInterrupt:
        pass  # before the server had begun to listen for it
    except (OSError, UnicodeError) as error:
        complain(f"error: cannot listen on {options.host}:{options.port}: {_reason(error)}")
        return ExitCode.FAILED
    complain("stopped")
    return ExitCode.OK


def _reason(error: OSError | UnicodeError) -> str:
    """Say what the system says, without the sentence in which :mod:`asyncio` may wrap it."""
    number = getattr(error, "errno", None) or 0  # of a name look-up it is below 0
    return os.strerror(number) if number > 0 else getattr(error, "strerror", None) or str(error)


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
    url: str, rooms: Sequence[str], credentials: _Credentials, options: Options
) -> Iterator[str]:
    size = readable_size(parse_size(options.max_size, field="--max-size"))
    yield f"Meeting server on {url} (Ctrl-C stops it)"
    yield f"Active rooms, each with a presenter: {', '.join(rooms)}. Documents up to {size}."
    yield ""
    yield "For the shell that uploads:"
    yield ""
    yield from _exports(url, credentials, options)
    yield ""
    yield "Then with this command line, or with any HTTP client:"
    yield ""
    room = shlex.quote(rooms[0])
    yield f"meeting-async upload {room} deck.pdf"
    yield ""
    yield from _curl(room)


def _exports(url: str, credentials: _Credentials, options: Options) -> Iterator[str]:
    yield f"export MEETING_BASE_URL={url}"
    yield f"export MEETING_API_KEY={shlex.quote(credentials.key)}"
    if credentials.is_secret_given:
        # It may be a real one, and terminals and logs remember.
        yield 'export MEETING_API_SECRET="${MEETING_API_SECRET:?is the one that serve was given}"'
    else:
        yield f"export MEETING_API_SECRET={credentials.secret}"
    if not _wire.is_loopback(options.host):
        yield "export MEETING_ALLOW_PLAINTEXT=1  # on other machines, as this is not https"


def _curl(room: str) -> Iterator[str]:
    yield f'signature=$(printf %s {room} | openssl dgst -sha256 -hmac "$MEETING_API_SECRET" -r)'
    yield 'curl -sS "$MEETING_BASE_URL/auth/room/uploadWhiteboardFile" -F document=@deck.pdf \\'
    yield f'  -H "API-KEY: $MEETING_API_KEY" -H "Room-Id: "{room} \\'
    yield '  -H "HASH-SIGNATURE: ${signature%% *}"'
