"""The commands: what can be said on the command line, and where it goes.

Each command is a thin function that imports its work when it is called, so that ``--help`` does
not wait for it.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from meeting_async.cli.console import PROGRAM, Output, OutputLost, prepared_streams
from meeting_async.errors import InvalidInput, MeetingError

if TYPE_CHECKING:
    from meeting_async import MeetingClient
    from meeting_async.cli.delivery import Options

_HELP = f"""\
Put documents into live meeting rooms.

Server and credentials come from the environment: MEETING_BASE_URL,
MEETING_API_KEY and MEETING_API_SECRET (or MEETING_API_SECRET_FILE); as needed
also MEETING_MAX_SIZE_WHITEBOARD_FILE, such as 30MiB, and
MEETING_ALLOW_PLAINTEXT=1.

Try it without a server: {PROGRAM} demo. With a server on this machine:
{PROGRAM} serve. Completion for your shell: {PROGRAM} --install-completion.

Exit codes:
   0  everything was accepted
   1  something was refused or failed
   2  bad arguments or configuration, or a missing file; nothing was sent
   3  it is unknown whether a document arrived
  75  a room stayed busy
 130  interrupted before everything was delivered
 141  the output could not be written, and the rest was not sent
"""

_JSON_HELP = "Print JSON, an object on each line; its type is document, summary, mistake or error."


def _version() -> str:
    import meeting_async

    return meeting_async.__version__


app: App = App(
    name=PROGRAM,
    help=_HELP,
    help_format="plaintext",  # needs no parser, which would take a while to import
    version=_version,
    default_parameter=Parameter(negative=(), show_default=False),
    suppress_keyboard_interrupt=False,
)
app.register_install_completion_command(help="Install completion for the shell that is running.")

Seconds = Annotated[float, Parameter(validator=Number(gte=0))]
PositiveSeconds = Annotated[float, Parameter(validator=Number(gt=0))]
Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535), show_default=True)]


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """What all commands that talk to a server take."""

    url: str | None = None
    "Address of the server, instead of MEETING_BASE_URL."
    timeout: PositiveSeconds | None = None
    "Seconds for everything; of several documents, for each."
    json: Annotated[bool, Parameter(help=_JSON_HELP)] = False
    quiet: Annotated[bool, Parameter(alias="-q")] = False
    "Say nothing but results of --json, and what went wrong."
    debug: bool = False
    "Show tracebacks and the library's log."


_OUTPUT: ContextVar[Output] = ContextVar("output")
"""That of the command that runs."""


def run(argv: Sequence[str]) -> int:
    """Obey a command line and return the exit code."""
    debug = "--debug" in argv
    output = Output(as_json="--json" in argv)
    _OUTPUT.set(output)
    with prepared_streams(output, debug=debug):
        try:
            code = app(
                [*argv], exit_on_error=False, print_error=False, result_action="return_value"
            )
        except KeyboardInterrupt:
            output.note("interrupted: nothing was sent")
            return 130
        except ImportError:
            raise
        except Exception as error:  # noqa: BLE001 - the last resort
            if debug:
                traceback.print_exc()
            return _ended_by(error, argv, output)
    return output.code() if code is None else int(code)


def _ended_by(error: Exception, argv: Sequence[str], output: Output) -> int:
    """Tell in a line what ended a command, and return the exit code for it."""
    if isinstance(error, OutputLost):
        return output.code()
    if isinstance(error, CycloptsError):
        commands = [name for name in argv[:1] if name in app]
        output.note(f"error: {error}")
        output.note(f"hint: see `{' '.join([PROGRAM, *commands])} --help`")
        return 2
    from meeting_async.cli.results import code_of, error_object
    from meeting_async.cli.words import hints, message_of

    code = code_of(error)
    if output.as_json:
        output.say_object("error", {"error": error_object(error), "exit_code": int(code)})
    if isinstance(error, MeetingError):
        output.note(f"error: {message_of(error)}")
    else:
        output.note(f"error: {type(error).__name__}: {error} (--debug shows where)")
    for hint in hints(error, _server_in(argv)):
        output.note(f"hint: {hint}")
    return code


def _server_in(argv: Sequence[str]) -> str:
    given = [after for before, after in pairwise(argv) if before == "--url"]
    given += [word.removeprefix("--url=") for word in argv if word.startswith("--url=")]
    return given[0] if given else os.environ.get("MEETING_BASE_URL", "")


def _client(common: Common) -> MeetingClient:
    from meeting_async import MeetingClient

    if common.url is None:
        return MeetingClient.from_env()
    return MeetingClient.from_env(base_url=common.url)


def _options(common: Common, **options: Any) -> Options:
    from meeting_async.cli.delivery import Options

    server = common.url or os.environ.get("MEETING_BASE_URL", "")
    return Options(server=server, timeout=common.timeout, quiet=common.quiet, **options)


def _max_size() -> int | None:
    from meeting_async._config import settings_from

    return settings_from(os.environ).get("max_size_whiteboard_file")


@app.command
def demo(*, debug: bool = False) -> int:
    """Watch documents reach the rooms of an embedded server, one locked at first.

    Args:
        debug: Show tracebacks and the library's log.

    """
    from meeting_async.cli.demo.stage import demo as perform

    return perform(_OUTPUT.get())


@app.command
def serve(
    *,
    host: Annotated[str, Parameter(show_default=True)] = "127.0.0.1",
    port: Port = 8080,
    room: tuple[str, ...] = (),
    max_size: Annotated[str, Parameter(show_default=True)] = "30MiB",
    lock_seconds: Annotated[PositiveSeconds, Parameter(show_default=True)] = 300.0,
    processing_seconds: Annotated[Seconds, Parameter(show_default=True)] = 0.0,
    quiet: Annotated[bool, Parameter(alias="-q")] = False,
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
        quiet: Do not print a line for each request.

    """
    from meeting_async.cli import serve as serving

    return serving.serve(
        _OUTPUT.get(),
        host=host,
        port=port,
        rooms=room,
        max_size=max_size,
        lock_seconds=lock_seconds,
        processing_seconds=processing_seconds,
        quiet=quiet,
    )


@app.command(name="room")
def show_room(room_id: str, /, *, common: Common | None = None) -> int:
    """Show what the server says about an active room.

    Args:
        room_id: The room.
        common: What all commands take.

    """
    from meeting_async.cli.room import room

    common = common or Common()
    output, client = _OUTPUT.get(), _client(common)
    return room(client, room_id, output, timeout=common.timeout, quiet=common.quiet)


@app.command(usage=f"Usage: {PROGRAM} upload [OPTIONS] ROOM_ID FILE...")
def upload(
    room_id: str,
    file: Annotated[list[str], Parameter(allow_leading_hyphen=True)],
    /,
    *,
    filename: str | None = None,
    max_wait: Seconds | None = None,
    common: Common | None = None,
) -> int:
    """Put documents into the whiteboard files of an active room, in their order.

    While another upload holds the room, this waits; 300 s and a little at most,
    unless --max-wait says otherwise.

    Ctrl-C lets the upload in flight end; a second one cuts it off.

    Args:
        room_id: The room.
        file: Paths, links that the server downloads itself, or "-" for stdin.
        filename: What the room shows instead of the file's own name (single document only).
        max_wait: Seconds to wait for a busy room, for each document; 0 does not wait.
        common: What all commands take.

    """
    from meeting_async.cli.upload import upload as perform

    _refuse_options("upload", file)
    common = common or Common()
    options = _options(common, max_wait=max_wait, detailed=True)
    output = _OUTPUT.get()
    return perform(_client(common), room_id, file, filename, options, output, max_size=_max_size())


@app.command
def batch(
    source: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    journal: str | None = None,
    report: str | None = None,
    check: bool = False,
    concurrency: Annotated[int, Parameter(validator=Number(gte=1), show_default=True)] = 32,
    max_wait: Seconds | None = None,
    wait_active: PositiveSeconds | None = None,
    on_unknown: Annotated[Literal["report", "resend"], Parameter(show_default=True)] = "report",
    common: Common | None = None,
) -> int:
    """Put many documents into many rooms, in the order of each room.

    SOURCE is a folder ROOM_ID/file..., or a manifest ("-": stdin) that is
    checked as a whole before anything is sent: CSV whose first line names the
    columns room_id, document (path or link) and as needed filename and key,
    or a JSON object with these fields on each line. Relative paths start at the
    manifest's folder.

    Ctrl-C lets the uploads in flight end; a second one cuts them off.

    Args:
        source: Manifest, "-" or folder.
        journal: File that remembers what was accepted, so that the same command goes on later.
        report: HTML file to write the report to.
        check: Only check the manifest and the documents; no server is needed.
        concurrency: Uploads at the same time; those that wait for a room do not count.
        max_wait: Seconds to wait for a busy room, for each document; 0 does not wait.
        wait_active: Seconds to wait for a room that is not active; otherwise it is skipped.
        on_unknown: "resend" sends again what may have arrived: a room may show it twice.
        common: What all commands take.

    """
    from meeting_async.cli.batch import command

    _refuse_options("batch", [source])
    common = common or Common()
    output = _OUTPUT.get()
    if check:
        return command.check(source, output, max_size=_max_size())
    options = _options(
        common,
        concurrency=concurrency,
        journal=journal,
        wait_active=wait_active,
        on_unknown=on_unknown,
        max_wait=max_wait,
        report=report,
        resumption=command.resumption(journal),
    )
    return command.batch(_client(common), source, options, output, max_size=_max_size())


def _refuse_options(command: str, words: Sequence[str]) -> None:
    """Find misspelled options where a path may begin with a hyphen, as stdin does."""
    for word in words:
        if word != "-" and word.startswith("-"):
            fix = f"see `{PROGRAM} {command} --help`; a path is written ./-name"
            raise InvalidInput("argument", repr(word), "looks like an option", fix)
