"""``meeting-async demo``: uploads to an embedded server, over real HTTP.

``stage`` runs the demo and prints the results; ``documents`` makes the documents.
"""

from __future__ import annotations

from meeting_async.cli.options import Printed


def demo(*, debug: bool = False, output: Printed) -> int:
    """Show uploads to the rooms of an embedded server; one room is locked at first.

    Args:
        debug: Show tracebacks and the library's log.
        output: Where to print.

    """
    from meeting_async.cli.demo.stage import perform

    return perform(output)
