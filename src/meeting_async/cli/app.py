"""The commands, the help text, and what happens when a command ends with an error.

A command imports most of its code only when it is called, so that ``--help`` is fast.
"""

from __future__ import annotations

import difflib
import re
import signal
import traceback
from collections.abc import Collection, Sequence
from itertools import takewhile

from cyclopts import App, CycloptsError, Parameter

from meeting_async._system import ENDING_SIGNALS
from meeting_async.cli.batch import batch
from meeting_async.cli.check import check
from meeting_async.cli.console import PROGRAM, Output, prepared_streams, version
from meeting_async.cli.demo import demo
from meeting_async.cli.options import DEFAULTS
from meeting_async.cli.queue import queue
from meeting_async.cli.room import room
from meeting_async.cli.serve import serve
from meeting_async.cli.upload import upload

_HELP = f"""\
Put documents into live meeting rooms.

Server and credentials come from the environment: MEETING_BASE_URL,
MEETING_API_KEY and MEETING_API_SECRET (or MEETING_API_SECRET_FILE). Optional:
MEETING_MAX_SIZE_WHITEBOARD_FILE, such as 30MiB, MEETING_TIMEOUT in seconds,
MEETING_ALLOW_PLAINTEXT=1, MEETING_CA_FILE, MEETING_CERT_FILE and MEETING_PROXY.

Do address, key and secret work? {PROGRAM} check
Without a server, try: {PROGRAM} demo
To run a server on this machine: {PROGRAM} serve
For completion in your shell: {PROGRAM} --install-completion

Exit codes:
   0  everything was accepted
   1  something was refused or failed
   2  bad arguments or configuration, or a missing file; nothing was sent
   3  it is unknown whether a document arrived
  75  a room stayed busy, or documents are still queued
 130  interrupted before everything was delivered
 141  the output could not be written, and the rest was not sent
"""


app: App = App(
    name=PROGRAM,
    help=_HELP,
    help_format="plaintext",  # other formats import a parser, which is slow
    version=version,
    default_parameter=Parameter(negative=(), show_default=False, json_list=False),
)
app.register_install_completion_command(help="Install completion for the current shell.")
for _command in (demo, serve, check, room, batch, queue):
    app.command(_command)
app.command(upload, usage=f"Usage: {PROGRAM} upload [OPTIONS] ROOM_ID FILE...")


def run(argv: Sequence[str]) -> int:
    """Run a command line and return the exit code."""
    debug, server = "--debug" in argv, ""
    if list(argv[:2]) != ["queue", "worker"]:  # it has handlers of its own
        _catch_signals()
    output = Output(as_json=any(word.partition("=")[0] == "--json" for word in argv))
    with prepared_streams(output, debug=debug):
        try:
            _check_options(argv)
            command, given, wanted = app.parse_args(argv, exit_on_error=False, print_error=False)
            server = given.arguments.get("common", DEFAULTS).server
            code = command(*given.args, **given.kwargs, **dict.fromkeys(wanted, output))
        except KeyboardInterrupt:
            uploads = argv[:1] in (["upload"], ["batch"])
            output.note("interrupted: nothing was sent" if uploads else "interrupted")
            return 130
        except ImportError:
            raise
        except Exception as error:  # noqa: BLE001 - every error is reported in one line
            if debug:
                traceback.print_exc()
            return _ended_by(error, argv, output, server)
    return code if isinstance(code, int) else output.code()


def _catch_signals() -> None:
    """Let SIGTERM and its kind do what Ctrl-C does, unless the parent process ignores them."""
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


_ELSEWHERE = {
    ("upload", name): f"`{PROGRAM} batch FOLDER` sends a folder (FOLDER/ROOM_ID/file)"
    for name in ("-r", "-R", "--recursive")
}
"""What to use instead of an option of other programs, by command and option."""


def _check_options(argv: Sequence[str]) -> None:
    """Refuse options that do not exist, which would be taken for paths, up to ``--``."""
    commands, apps, words = app.parse_commands(argv)
    if not commands or commands[-1].startswith("-") or apps[-1].default_command is None:
        return  # --help, for example
    known = {*apps[-1].help_flags, *apps[-1].version_flags}
    known.update(*(one.names for one in apps[-1].assemble_argument_collection()))
    for word in takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0]
        if re.match(r"--|-[A-Za-z]", name) and name not in known:
            raise CycloptsError(msg=f"Unknown option: {name}. {_instead(commands, name, known)}")


def _instead(commands: Sequence[str], name: str, known: Collection[str]) -> str:
    if text := _ELSEWHERE.get((" ".join(commands), name)):
        return text
    near = difflib.get_close_matches(name, known)
    return f"Did you mean {near[0]}?" if near else "Write a path as ./-name."


def _ended_by(error: Exception, argv: Sequence[str], output: Output, server: str) -> int:
    """Print the error that ended a command and what to do, and return the exit code."""
    from meeting_async.cli.results import code_of, error_object
    from meeting_async.cli.words import hints, message_of
    from meeting_async.errors import MeetingError

    if isinstance(error, CycloptsError):
        commands = [name for name in argv[:1] if name in app]
        # The address of a database may have a password.
        text = re.sub(r"(://[^\s:@]*):\S*@", r"\1:...@", str(error))
        if output.as_json:
            usage = {"type": "UsageError", "message": text, "status": None, "status_code": None}
            output.say_object("error", {"error": usage, "exit_code": 2})
        output.note(f"error: {text}")
        output.note(f"hint: see `{' '.join([PROGRAM, *commands])} --help`")
        return 2
    code = code_of(error)
    if output.as_json:
        output.say_object("error", {"error": error_object(error), "exit_code": code})
    if isinstance(error, MeetingError):
        output.note(f"error: {message_of(error)}")
    else:
        output.note(f"error: {type(error).__name__}: {error} (--debug shows where)")
    for hint in hints(error, server):
        output.note(f"hint: {hint}")
    return code
