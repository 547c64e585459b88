"""The command line (extra ``cli``): what ``meeting-async`` and ``python -m meeting_async`` start.

This file is a shim that imports nothing heavy, so that a missing extra gets one clear line.
"""

import sys
from collections.abc import Sequence

from meeting_async.cli._console import complain

_LIBRARIES = frozenset({"cyclopts", "rich"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with ``argv`` (default: this process's) and return the exit code."""
    try:
        from meeting_async.cli._app import run

        return run(sys.argv[1:] if argv is None else argv)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _LIBRARIES:
            raise
        complain(f'this needs {missing}: pip install "meeting-async[cli]"')
        return 2
    except KeyboardInterrupt as error:
        complain(": ".join(["interrupted", *map(str, error.args)]))
        return 130
