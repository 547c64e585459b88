"""What several commands take, and the client and settings that follow from it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from meeting_async.cli.console import PROGRAM, Output

if TYPE_CHECKING:
    from meeting_async import MeetingClient

_JSON_HELP = "Print JSON, an object on each line; its type is document, summary, mistake or error."

Printed = Annotated[Output, Parameter(parse=False)]
"""Where a command prints; not said on the command line."""

Quiet = Annotated[bool, Parameter(alias="-q")]
Seconds = Annotated[float, Parameter(validator=Number(gte=0))]
PositiveSeconds = Annotated[float, Parameter(validator=Number(gt=0))]


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """What all commands that talk to a server take."""

    url: str | None = None
    "Address of the server, instead of MEETING_BASE_URL."
    timeout: PositiveSeconds | None = None
    "Seconds for everything; of several documents, for each."
    json: Annotated[bool, Parameter(help=_JSON_HELP)] = False
    quiet: Quiet = False
    "Say nothing but results of --json, and what went wrong."
    debug: bool = False
    "Show tracebacks and the library's log."

    @property
    def server(self) -> str:
        """Base URL of the server, as it was given."""
        return self.url or os.environ.get("MEETING_BASE_URL", "")

    def client(self) -> MeetingClient:
        """Make the client."""
        from meeting_async import MeetingClient

        if self.url is None:
            return MeetingClient.from_env()
        return MeetingClient.from_env(base_url=self.url)


DEFAULTS = Common()


def max_size() -> int | None:
    """Return the configured limit of documents in bytes; no server is needed."""
    from meeting_async._config import settings_from

    return settings_from(os.environ).get("max_size_whiteboard_file")


def refuse_options(command: str, words: Sequence[str]) -> None:
    """Find misspelled options where a path may begin with a hyphen, as stdin does."""
    from meeting_async.errors import InvalidInput

    for word in words:
        if word != "-" and word.startswith("-"):
            fix = f"see `{PROGRAM} {command} --help`; a path is written ./-name"
            raise InvalidInput("argument", repr(word), "looks like an option", fix)
