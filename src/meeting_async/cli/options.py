"""The options that several commands share, and the client made from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from meeting_async.cli.console import PROGRAM, Output

if TYPE_CHECKING:
    from meeting_async import MeetingClient

_JSON_HELP = 'Print JSON, one object per line; its "type" says what it describes.'

Printed = Annotated[Output, Parameter(parse=False)]
"""Where a command prints; not an option of the command line."""

Quiet = Annotated[bool, Parameter(alias="-q")]
Seconds = Annotated[float, Parameter(validator=Number(gte=0))]
PositiveSeconds = Annotated[float, Parameter(validator=Number(gt=0))]
Json = Annotated[bool, Parameter(help=_JSON_HELP)]


@Parameter(name="*")
@dataclass(frozen=True)
class Server:
    """Options of all commands that use the settings of a server."""

    url: str | None = None
    "Address of the server, instead of MEETING_BASE_URL."
    quiet: Quiet = False
    "Print no progress and no successful uploads (with --json all results)."
    debug: bool = False
    "Show tracebacks and the library's log."

    @property
    def server(self) -> str:
        """Base URL from ``--url`` or the environment; ``""`` if neither is set."""
        return self.url or os.environ.get("MEETING_BASE_URL", "")

    def client(self, **settings: Any) -> MeetingClient:
        """Make a client from the environment and ``--url``."""
        from meeting_async import MeetingClient

        if self.url is not None:
            settings["base_url"] = self.url
        return MeetingClient.from_env(**settings)


@dataclass(frozen=True)
class Common(Server):
    """Options of all commands that talk to a server."""

    timeout: PositiveSeconds | None = None
    "Time limit in seconds; with several documents, for each of them."
    json: Json = False


DEFAULTS = Common()


def max_size() -> int | None:
    """Return the largest document in bytes that the environment allows, if it sets a limit."""
    from meeting_async._config import Environment, settings_from

    return settings_from(Environment(os.environ)).get("max_size_whiteboard_file")


def refuse_options(command: str, words: Sequence[str]) -> None:
    """Raise ``InvalidInput`` for a misspelled option, which would be read as a path."""
    from meeting_async.errors import InvalidInput

    for word in words:
        if word != "-" and word.startswith("-"):
            fix = f"see `{PROGRAM} {command} --help`; write a path as ./-name"
            raise InvalidInput("argument", repr(word), "looks like an option", fix)
