"""``meeting-async demo``: the library at work against an embedded server, over real HTTP.

``stage`` is what happens and what is said of it; ``documents`` makes the documents.
"""

from __future__ import annotations

from meeting_async.cli.options import Printed


def demo(*, debug: bool = False, output: Printed) -> int:
    """Watch documents reach the rooms of an embedded server, one locked at first.

    Args:
        debug: Show tracebacks and the library's log.
        output: Where to print.

    """
    from meeting_async.cli.demo.stage import perform

    return perform(output)
