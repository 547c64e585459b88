"""The commands: what can be said on the command line, and where it goes.

Each command is a thin function that imports its work when it is called, so that ``--help`` does
not wait for it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

import meeting_async
from meeting_async.cli._console import PROGRAM, complain, prepared_streams
from meeting_async.cli._extras import MissingExtra
from meeting_async.cli._outcomes import ExitCode, classify, explained
from meeting_async.errors import InvalidInput, MeetingError

_HELP = """\
Put documents into live meeting rooms.

Server and credentials come from the environment: MEETING_BASE_URL,
MEETING_API_KEY and MEETING_API_SECRET (or MEETING_API_SECRET_FILE).
If need be MEETING_MAX_SIZE_WHITEBOARD_FILE, such as 30MiB, and
MEETING_ALLOW_PLAINTEXT=1.

Exit codes:
   0  everything was accepted
   1  something was refused or failed
   2  bad arguments or configuration, or a missing file
   3  it is unknown whether a document arrived
  75  a room stayed busy
"""

app = App(
    name=PROGRAM,
    help=_HELP,
    help_format="plaintext",  # needs no parser, which would take a while to import
    version=lambda: meeting_async.__version__,
    default_parameter=Parameter(negative=(), show_default=False),
    suppress_keyboard_interrupt=False,
)
app.meta.suppress_keyboard_interrupt = False

Seconds = Annotated[float, Parameter(validator=Number(gte=0))]
PositiveSeconds = Annotated[float, Parameter(validator=Number(gt=0))]
Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535), show_default=True)]


def _called(application: App, tokens: Sequence[str]) -> int:
    """Let cyclopts parse and call, and nothing else; ``--help`` returns nothing."""
    code = application(
        list(tokens), exit_on_error=False, print_error=False, result_action="return_value"
    )
    return ExitCode.OK if code is None else int(code)


def run(argv: Sequence[str]) -> int:
    """Obey a command line and return the exit code."""
    try:
        return _called(app.meta, argv)
    except CycloptsError as error:
        complain(f"error: {error}")
        complain(f"hint: see {PROGRAM} --help")
        return ExitCode.USAGE


@app.meta.default
def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    debug: Annotated[bool, Parameter(help="Show tracebacks and the library's log.")] = False,
) -> int:
    with prepared_streams(debug=debug):
        try:
            return _called(app, tokens)
        except CycloptsError:
            raise
        except Exception as error:  # noqa: BLE001 - the last resort
            if debug:
                traceback.print_exc()
            return _ended_by(error)


@app.command
def demo() -> int:
    """Watch documents reach the rooms of an embedded server, one locked at first."""
    from meeting_async.cli._demo import demo as perform

    return perform()


@app.command
def serve(
    *,
    host: Annotated[str, Parameter(show_default=True)] = "127.0.0.1",
    port: Port = 8080,
    room: tuple[str, ...] = (),
    max_size: Annotated[str, Parameter(show_default=True)] = "30MiB",
    lock_seconds: Annotated[PositiveSeconds, Parameter(show_default=True)] = 300.0,
    processing_seconds: Annotated[Seconds, Parameter(show_default=True)] = 0.0,
) -> int:
    """Run a meeting server for experiments, until Ctrl-C.

    Key and secret come from MEETING_API_KEY and MEETING_API_SECRET; without
    them, from development defaults.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        room: An active room with a presenter; may be repeated. Default: room01, room02, room03.
        max_size: Largest document, as bytes or with KiB, MiB, GiB.
        lock_seconds: How long an upload may hold its room's lock.
        processing_seconds: How long the conversion of a document takes.

    """
    from meeting_async.cli import _serve

    options = _serve.Options(
        host=host,
        port=port,
        rooms=room,
        max_size=max_size,
        lock_seconds=lock_seconds,
        processing_seconds=processing_seconds,
    )
    return _serve.serve(options)


@app.command
def batch(
    source: Annotated[str, Parameter(allow_leading_hyphen=True)],  # "-" is stdin
    /,
    *,
    concurrency: Annotated[int, Parameter(validator=Number(gte=1), show_default=True)] = 32,
    journal: str | None = None,
    wait_active: PositiveSeconds | None = None,
    on_unknown: Annotated[Literal["report", "resend"], Parameter(show_default=True)] = "report",
    max_wait: Seconds | None = None,
    json: bool = False,
    report: str | None = None,
    check: bool = False,
) -> int:
    """Put many documents into many rooms, in the order of each room.

    SOURCE is a folder ROOM_ID/file..., or a manifest ("-": stdin) that is
    checked as a whole before anything is sent: CSV whose first line names the
    columns room_id, document (path or link) and if need be filename and key,
    or a JSON object with these fields on each line. Relative paths start at the
    manifest's folder.

    Ctrl-C lets the uploads in flight end; a second one cuts them off.

    Args:
        source: Manifest, "-" or folder.
        concurrency: Uploads at the same time; those that wait for a room do not count.
        journal: File that knows what was accepted, so that the same command goes on later.
        wait_active: Seconds to wait for a room that is not active; otherwise it is skipped.
        on_unknown: "resend" sends again what may have arrived: a room may get it twice.
        max_wait: Seconds to wait for a busy room, for each document; 330 unless told otherwise.
        json: Print an object for each document, and a summary.
        report: HTML file to write the report to.
        check: Only check the manifest and the documents.

    """
    from meeting_async.cli import _batch

    if source != "-" and source.startswith("-"):
        raise InvalidInput("SOURCE", repr(source), "looks like an option", "see --help, or use ./")
    options = _batch.Options(
        concurrency=concurrency,
        journal=journal,
        wait_active=wait_active,
        on_unknown=on_unknown,
        max_wait=max_wait,
        as_json=json,
        report=report,
        check=check,
    )
    return _batch.batch(source, options)


@app.command(name="room")
def show_room(room_id: str, /, *, json: bool = False) -> int:
    """Show what the server says about an active room.

    Args:
        room_id: The room.
        json: Print the server's reply instead of a summary.

    """
    from meeting_async.cli._room import room

    return room(room_id, as_json=json)


@app.command
def upload(
    room_id: str,
    file_or_url: list[str],
    /,
    *,
    max_wait: Seconds | None = None,
    no_wait: bool = False,
    deadline: PositiveSeconds | None = None,
    filename: str | None = None,
    json: bool = False,
) -> int:
    """Put documents into the whiteboard files of an active room, in turn.

    While another upload holds the room, this waits: 330 s unless told otherwise.

    Args:
        room_id: The room.
        file_or_url: Paths, or links that the server downloads itself.
        max_wait: Seconds to wait for the room, for each document.
        no_wait: Do not wait for a busy room: exit code 75.
        deadline: Seconds for everything, for each document.
        filename: What the room sees instead of the file's own name (a single file only).
        json: Print an object for each document.

    """
    from meeting_async.cli import _upload

    if no_wait and max_wait:
        raise InvalidInput("--no-wait", f"--max-wait {max_wait:g}", "contradicts it", "give one")
    options = _upload.Options(
        filename=filename,
        max_wait=0.0 if no_wait else max_wait,
        deadline=deadline,
        as_json=json,
    )
    return _upload.upload(room_id, file_or_url, options)


def _ended_by(error: Exception) -> ExitCode:
    """Tell in a line what ended a command, and return the exit code for it."""
    match error:
        case MissingExtra():
            complain(str(error))
            return ExitCode.USAGE
        case MeetingError():
            for line in explained(error):
                complain(line)
            return classify(error)[1]
        case BrokenPipeError():  # nobody reads any more, as with `| head`: no news
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.UNREAD
        case _:
            complain(f"error: {type(error).__name__}: {error} (--debug shows where)")
            return ExitCode.FAILED
