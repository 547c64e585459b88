"""The command line (extra ``cli``): what ``meeting-async`` and ``python -m meeting_async`` start.

This file is a shim that imports nothing heavy, so that a missing extra gets one clear line.
"""

import sys
from collections.abc import Sequence

_LIBRARIES = frozenset({"cyclopts", "rich"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with ``argv`` (default: this process's) and return the exit code."""
    try:
        from meeting_async.cli._app import run
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _LIBRARIES:
            raise
        hint = 'pip install "meeting-async[cli]"'
        sys.stderr.write(f"meeting-async: the command line needs {missing}: {hint}\n")
        return 2
    return run(sys.argv[1:] if argv is None else argv)
