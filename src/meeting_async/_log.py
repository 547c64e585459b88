"""The one logger of this library. Its records are described in ``docs/operations.md``."""

from __future__ import annotations

import logging

logger: logging.Logger = logging.getLogger("meeting_async")
logger.addHandler(logging.NullHandler())  # the program configures its logging
