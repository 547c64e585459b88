"""The options that several commands share, and the client made from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from meeting_async.cli.console import Output

if TYPE_CHECKING:
    from meeting_async import MeetingClient

_JSON_HELP = 'Print JSON, one object per line; its "type" says what it describes.'
_QUIET_HELP = "Print only failures (with --json all results)."
_TIMEOUT_HELP = "Time limit in seconds for each document, instead of MEETING_TIMEOUT."

Printed = Annotated[Output, Parameter(parse=False)]
"""Where a command prints; not an option of the command line."""

if TYPE_CHECKING:
    File = str
else:

    class File(Path):
        """A path as it was typed, a ``str``; for the type ``Path`` shells complete file names."""

        def __new__(cls, text: str) -> str:  # noqa: D102 - makes no object of this class
            return text


Quiet = Annotated[bool, Parameter(alias="-q", help="Print no progress.")]
Seconds = Annotated[float, Parameter(validator=Number(gte=0))]
PositiveSeconds = Annotated[float, Parameter(validator=Number(gt=0))]
DryRun = Annotated[bool, Parameter(name=("--dry-run", "--check"))]
Json = Annotated[bool, Parameter(help=_JSON_HELP)]


@Parameter(name="*")
@dataclass(frozen=True)
class Server:
    """Options of all commands that use the settings of a server."""

    url: str | None = None
    "Address of the server, instead of MEETING_BASE_URL."
    quiet: Quiet = False
    debug: bool = False
    "Show tracebacks and the library's log."

    @property
    def server(self) -> str:
        """Base URL from ``--url`` or the environment; ``""`` if neither is set."""
        return self.url or os.environ.get("MEETING_BASE_URL", "")

    def client(self, **settings: Any) -> MeetingClient:
        """Make a client from the environment and the options."""
        from meeting_async import MeetingClient
        from meeting_async.errors import ConfigurationError

        given = {name: value for name, value in self._variables().items() if value}
        if self.url is not None:
            settings["base_url"] = self.url
        try:
            return MeetingClient.from_env({**os.environ, **given}, **settings)
        except ConfigurationError as error:
            if error.field in {*given, *settings}:
                error.field = _OPTIONS.get(error.field, error.field)
            raise

    def _variables(self) -> dict[str, str | None]:
        """Return the variables that options replace; nothing, or an empty text, replaces none."""
        return {}


_OPTIONS = {
    "base_url": "--url",
    "MEETING_CA_FILE": "--ca-file",
    "MEETING_CERT_FILE": "--cert",
    "MEETING_PROXY": "--proxy",
    "MEETING_DELIVERY": "--delivery",
}
"""Options that may have a mistake, by what they replace."""


@dataclass(frozen=True)
class Asking(Server):
    """Options of all commands that talk to a server."""

    ca_file: File | None = None
    "File with the certificate of your own authority (PEM), instead of MEETING_CA_FILE."
    cert: File | None = None
    "File with your client certificate and its key (PEM), instead of MEETING_CERT_FILE."
    proxy: str | None = None
    "HTTP proxy, http://host:port. Others can see it: give a password by MEETING_PROXY."
    timeout: PositiveSeconds | None = None
    "Time limit in seconds, instead of MEETING_TIMEOUT."
    json: Json = False

    def _variables(self) -> dict[str, str | None]:
        return {
            "MEETING_CA_FILE": self.ca_file,
            "MEETING_CERT_FILE": self.cert,
            "MEETING_PROXY": self.proxy,
            "MEETING_TIMEOUT": None if self.timeout is None else str(self.timeout),
        }


@dataclass(frozen=True)
class Common(Asking):
    """Options of all commands that upload."""

    quiet: Annotated[bool, Parameter(alias="-q", help=_QUIET_HELP)] = False
    timeout: Annotated[float | None, Parameter(validator=Number(gt=0), help=_TIMEOUT_HELP)] = None
    delivery: Literal["at_most_once", "at_least_once", "exactly_once"] | None = None
    "What becomes of a document of unknown outcome, instead of MEETING_DELIVERY."

    def _variables(self) -> dict[str, str | None]:
        return {**super()._variables(), "MEETING_DELIVERY": self.delivery}


@dataclass(frozen=True)
class Checking(Asking):
    """Options of ``check``."""

    quiet: Annotated[bool, Parameter(alias="-q", help="Print only what failed.")] = False


DEFAULTS = Common()


def max_size() -> int | None:
    """Return the largest document in bytes that the environment allows, if it sets a limit."""
    from meeting_async import _config

    return _config.max_size(_config.Environment(os.environ))
