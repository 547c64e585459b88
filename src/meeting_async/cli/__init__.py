"""The command line (extra ``cli``): what ``meeting-async`` and ``python -m meeting_async`` start.

``app`` defines the commands. ``upload`` and the folder ``batch`` decide what is sent; ``delivery``
sends it for both. This file itself imports only the standard library, so that a missing extra is
reported in one line instead of a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_EXTRAS = {
    "cyclopts": "cli", "rich": "cli", "jinja2": "cli", "python_multipart": "cli,testing",
    "procrastinate": "cli,procrastinate", "psycopg": "cli,procrastinate",
}  # fmt: skip
"""The extras that install a package, by the name of the package."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with ``argv`` (default: ``sys.argv``) and return the exit code."""
    try:
        from meeting_async.cli.app import run

        return run(sys.argv[1:] if argv is None else argv)
    except ImportError as error:
        return _incomplete(error)
    except KeyboardInterrupt:  # during the imports
        return 130


def _incomplete(error: ImportError) -> int:
    """Print which extra to install and return 2; re-raise an error of any other package."""
    from meeting_async.cli.console import Output

    package = str(error.name).partition(".")[0]
    if package not in _EXTRAS:
        raise error
    install = f'pip install ".[{_EXTRAS[package]}]" in a clone'
    Output().note(f"error: {package} is not installed: {install}")
    return 2
