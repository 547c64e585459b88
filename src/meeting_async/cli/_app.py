"""The commands: what can be said on the command line, and where it goes.

Each command is a thin function that imports its work when it is called, so that ``--help`` does
not wait for it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

import meeting_async
from meeting_async.cli._console import PROGRAM, complain, prepared_streams
from meeting_async.cli._outcomes import ExitCode, classify, explained
from meeting_async.errors import MeetingError

_ENVIRONMENT = """\
The server and the credentials come from the environment: `MEETING_BASE_URL`, `MEETING_API_KEY`,
`MEETING_API_SECRET` (or `MEETING_API_SECRET_FILE`), optionally
`MEETING_MAX_SIZE_WHITEBOARD_FILE` (such as `30MiB`) and `MEETING_ALLOW_PLAINTEXT`.

Exit codes: 0 everything accepted, 1 something refused or failed, 2 bad arguments or configuration,
3 it is unknown whether a document arrived, 75 a room stayed busy.
"""

_WHOLE = {"exit_on_error": False, "print_error": False, "result_action": "return_value"}

app = App(
    name=PROGRAM,
    help=f"Put documents into live meeting rooms.\n\n{_ENVIRONMENT}",
    version=lambda: meeting_async.__version__,
    default_parameter=Parameter(negative=(), show_default=False),
    suppress_keyboard_interrupt=False,
)
app.meta.suppress_keyboard_interrupt = False

Seconds = Annotated[float, Parameter(validator=Number(gte=0))]
PositiveSeconds = Annotated[float, Parameter(validator=Number(gt=0))]
Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535), show_default=True)]


def run(argv: Sequence[str]) -> int:
    """Obey a command line and return the exit code."""
    try:
        return app.meta(list(argv), **_WHOLE) or ExitCode.OK
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
            return app(tokens, **_WHOLE) or ExitCode.OK
        except CycloptsError:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if debug:
                traceback.print_exc()
            return _ended_by(error)


def _ended_by(error: BaseException) -> ExitCode:
    """Tell in a line what ended a command, and return the exit code for it."""
    from meeting_async.cli._serve import MissingExtra

    match error:
        case KeyboardInterrupt():
            complain(": ".join(["interrupted", *map(str, error.args)]))
            return ExitCode.INTERRUPTED
        case MissingExtra():
            complain(str(error))
            return ExitCode.USAGE
        case MeetingError():
            for line in explained(error):
                complain(line)
            return classify(error)[1]
        case _:
            complain(f"error: {type(error).__name__}: {error} (--debug shows where)")
            return ExitCode.FAILED
