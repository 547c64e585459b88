"""``meeting-async serve``: the development server, for experiments with any client."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from meeting_async._system import ENDING_SIGNALS, IS_WINDOWS
from meeting_async.cli.console import PROGRAM, Output
from meeting_async.cli.options import PositiveSeconds, Printed, Seconds

if TYPE_CHECKING:
    from meeting_async._models import Secret
    from meeting_async.testing import MeetingServer

FORM_BYTES = 20 * 1024**2
"""Bytes of a request besides the document; such servers allow 50 MB for a 30 MB file."""

DEVELOPMENT_SECRET = "devsecret"  # noqa: S105 - not a secret: it is printed

_SHOWN = Parameter(show_default=True)


def serve(
    *,
    host: Annotated[str, _SHOWN] = "127.0.0.1",
    port: Annotated[int, _SHOWN, Parameter(validator=Number(gte=0, lte=65535))] = 8080,
    room: tuple[str, ...] = (),
    max_size: Annotated[str, _SHOWN] = "30MiB",
    lock_seconds: Annotated[PositiveSeconds, _SHOWN] = 300.0,
    processing_seconds: Annotated[Seconds, _SHOWN] = 0.0,
    presenter_required: Annotated[
        bool, _SHOWN, Parameter(negative="--no-presenter-required")
    ] = True,
    strict_pdf: Annotated[bool, _SHOWN] = False,
    office_documents_clash: Annotated[bool, _SHOWN] = False,
    stored_files: Annotated[Literal["shared", "absent", "redirected"], _SHOWN] = "shared",
    holds_forms: Annotated[Seconds, _SHOWN] = 0.0,
    quiet: Annotated[bool, Parameter(alias="-q")] = False,
    output: Printed,
) -> int:
    """Run a meeting server for experiments, until Ctrl-C.

    Key and secret come from MEETING_API_KEY and MEETING_API_SECRET. If these are
    not set, development defaults are used.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0: any free port.
        room: Id of an active room (repeatable), with a presenter. Default: room01, room02, room03.
        max_size: Largest document, in bytes or with a unit (KiB, MiB, GiB).
        lock_seconds: Longest time in seconds for which an upload locks its room.
        processing_seconds: Seconds that the conversion of a document takes.
        presenter_required: Refuse uploads to rooms without a presenter. plugNmeet-server does not.
        strict_pdf: Fail PDFs without any object, such as "%PDF-1.7", as plugNmeet-server does.
        office_documents_clash: Fail an office document while another one is converted, in any room,
            as plugNmeet-server does.
        stored_files: Show received documents below /download/uploadedFile, none, or a redirect.
        holds_forms: Seconds for which a proxy keeps a document before the server gets it.
        quiet: Do not print a line for each request.
        output: Where to print.

    """
    from meeting_async._config import Environment, settings_from
    from meeting_async._policies import parse_size
    from meeting_async._protocol.requests import room_of
    from meeting_async._text import size
    from meeting_async.testing import MeetingServer

    settings = settings_from(Environment(os.environ))
    key, secret = settings.get("api_key", "devkey"), settings.get("api_secret")
    # It may be a real secret, and terminals and logs are stored: do not print it.
    shown = DEVELOPMENT_SECRET if secret is None else None
    limit = parse_size(max_size, field="--max-size")
    server = MeetingServer(
        api_key=key,
        api_secret=_text_of(secret),
        max_size_whiteboard_file=limit,
        max_body_size=limit + FORM_BYTES,
        lock_seconds=lock_seconds,
        processing_seconds=processing_seconds,
        presenter_required=presenter_required,
        strict_pdf=strict_pdf,
        office_documents_clash=office_documents_clash,
        stored_files=stored_files,
        holds_forms=holds_forms,
        on_request=None if quiet else lambda request: output.note(f"{_now()} {request}"),
    )
    rooms = tuple(dict.fromkeys(room)) or ("room01", "room02", "room03")
    for room_id in rooms:
        room_of(room_id)  # raises if the id cannot be used
        server.add_room(room_id)

    def welcome(url: str) -> None:
        output.say(_welcome(url, rooms, size(limit), key, shown))

    return _listen(server, host, port, welcome, output)


def _listen(
    server: MeetingServer, host: str, port: int, welcome: Callable[[str], None], output: Output
) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    signals = list[int]()
    output.results.is_hurried = output.notes.is_hurried = lambda: bool(signals)

    def interrupt(number: int, _frame: object) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is signal.default_int_handler:
            signal.signal(number, interrupt)
    try:
        server.serve_forever(host, port, welcome)
    except KeyboardInterrupt:
        pass  # Ctrl-C before the server listened
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if getattr(error, "errno", 0) == errno.EADDRINUSE:
            reason = "another program listens there; choose another port with --port"
        output.note(f"error: cannot listen on {host}:{port}: {reason}")
        return 1
    output.note("stopped")
    return output.code()


def _text_of(secret: Secret | None) -> str:
    from meeting_async.errors import ConfigurationError

    try:
        return DEVELOPMENT_SECRET if secret is None else bytes(secret).decode()
    except UnicodeDecodeError:
        field, problem = "MEETING_API_SECRET_FILE", "is not UTF-8 text"
        raise ConfigurationError(field, "(hidden)", problem, "give another file") from None


def _now() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")


def _welcome(url: str, rooms: Sequence[str], limit: str, key: str, secret: str | None) -> str:
    """Return what to type next, in a shell of this system; ``secret``: ``None`` if it is hidden."""
    commands = _in_powershell if IS_WINDOWS else _in_bash
    shell = "PowerShell" if IS_WINDOWS else "shell"
    return f"""\
Meeting server on {url} (Ctrl-C stops it)
Active rooms, each with a presenter: {", ".join(rooms)}. Documents up to {limit}.

# For the {shell} that uploads:

{commands(url, rooms[0], key, secret)}"""


_HIDDEN = "must be the secret that serve uses"


def _in_powershell(url: str, room: str, key: str, secret: str | None) -> str:
    def quoted(text: str) -> str:
        return "'" + text.replace("'", "''") + "'"

    hidden = f"# $env:MEETING_API_SECRET {_HIDDEN}"
    return f"""\
$env:MEETING_BASE_URL = {quoted(url)}
$env:MEETING_API_KEY = {quoted(key)}
{hidden if secret is None else f"$env:MEETING_API_SECRET = {quoted(secret)}"}

# Then:

Set-Content hello.txt Welcome
{PROGRAM} upload {quoted(room)} hello.txt
"""


def _in_bash(url: str, room: str, key: str, secret: str | None) -> str:
    body = shlex.quote(json.dumps({"room_id": room}))
    room, key = shlex.quote(room), shlex.quote(key)
    hidden = f'"${{MEETING_API_SECRET:?{_HIDDEN}}}"'
    return f"""\
export MEETING_BASE_URL={url}
export MEETING_API_KEY={key}
export MEETING_API_SECRET={hidden if secret is None else secret}

# Then, with this command line:

echo Welcome > hello.txt
{PROGRAM} upload {room} hello.txt

# Or with curl:

sign() {{ printf %s "$1" | openssl dgst -sha256 -hmac "$MEETING_API_SECRET" -r; }}
signature=$(sign {room})
curl -sS -w '\\n' "$MEETING_BASE_URL/auth/room/uploadWhiteboardFile" -F document=@hello.txt \\
  -H "API-KEY: $MEETING_API_KEY" -H "Room-Id: "{room} \\
  -H "HASH-SIGNATURE: ${{signature%% *}}"
body={body}
signature=$(sign "$body")
curl -sS -w '\\n' "$MEETING_BASE_URL/auth/room/getActiveRoomInfo" -d "$body" \\
  -H "API-KEY: $MEETING_API_KEY" -H "Content-Type: application/json" \\
  -H "HASH-SIGNATURE: ${{signature%% *}}"
"""
