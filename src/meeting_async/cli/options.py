"""The options that several commands share, and the client made from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

        if self.url is not None:
            settings["base_url"] = self.url
        try:
            return MeetingClient.from_env(**settings, **self._settings())
        except ConfigurationError as error:
            if error.field == "base_url" and self.url is not None:
                error.field = "--url"
            raise

    def _settings(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Asking(Server):
    """Options of all commands that talk to a server."""

    ca_file: File | None = None
    "File with the certificate of your own authority (PEM), instead of MEETING_CA_FILE."
    proxy: str | None = None
    "HTTP proxy, http://host:port. Others can see it: give a password by MEETING_PROXY."
    timeout: PositiveSeconds | None = None
    "Time limit in seconds, instead of MEETING_TIMEOUT."
    json: Json = False

    def _settings(self) -> dict[str, Any]:
        limit = {} if self.timeout is None else {"timeout": self.timeout}
        return {**limit, **self._transport()}

    def _transport(self) -> dict[str, Any]:
        """Make a transport for ``--ca-file`` and ``--proxy``; without them the environment counts.

        If one is given, the other may still come from its variable.
        """
        if self.ca_file is None and self.proxy is None:
            return {}
        from meeting_async._config import Environment, authorities, load_authorities
        from meeting_async.errors import ConfigurationError
        from meeting_async.transports import HttpTransport

        variables = Environment(os.environ)
        own = self.ca_file and load_authorities("--ca-file", self.ca_file)
        verify = own or authorities(variables) or True
        proxy = self.proxy or variables.get("MEETING_PROXY") or None
        try:
            return {"transport": HttpTransport(verify=verify, proxy=proxy)}
        except ConfigurationError as error:
            error.field = "--proxy" if self.proxy else "MEETING_PROXY"
            error.fix = "give http://host:port"
            raise


@dataclass(frozen=True)
class Common(Asking):
    """Options of all commands that upload."""

    quiet: Annotated[bool, Parameter(alias="-q", help=_QUIET_HELP)] = False
    timeout: Annotated[float | None, Parameter(validator=Number(gt=0), help=_TIMEOUT_HELP)] = None


@dataclass(frozen=True)
class Checking(Asking):
    """Options of ``check``."""

    quiet: Annotated[bool, Parameter(alias="-q", help="Print only what failed.")] = False


DEFAULTS = Common()


def max_size() -> int | None:
    """Return the largest document in bytes that the environment allows, if it sets a limit."""
    from meeting_async import _config

    return _config.max_size(_config.Environment(os.environ))
