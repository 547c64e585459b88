"""What is remembered of an attempt; receipts and errors carry it."""

from __future__ import annotations

import attrs


@attrs.frozen
class Attempt:
    """One attempt of a call, as it is remembered."""

    number: int
    """1 for the first."""
    started: float
    """Seconds after the call began."""
    seconds: float
    """How long the attempt took."""
    verdict: str
    """A row of the verdict table, for example ``"busy"``."""
    status: int | None
    """HTTP status, when there was a reply."""
    reason: str
    """What was seen, in a few words."""
    bytes_sent: int = 0
    """Bytes of the document that were handed to the network."""
    body_seconds: float | None = None
    """How long it took until the whole document was out; ``None`` if it never was."""
