"""``python -m meeting_async``: the command line, where the script is not on the path."""

import sys

from meeting_async.cli import main

if __name__ == "__main__":
    sys.exit(main())
