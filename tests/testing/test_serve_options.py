"""``meeting-async serve``: its differences from a real server are options."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from support.command_line import finish, start
from support.raw_http import PDF, call, document, talk, upload

FRESH = {"room_id": "fresh", "metadata": {"room_title": "Fresh", "room_features": {}}}
HELLO = document(b"Hello\n", "hello.txt")


@contextmanager
def serving(*options: str) -> Iterator[Iterator[str]]:
    """Start a server with these options; the value yields its URL once it listens."""
    environ = {name: value for name, value in os.environ.items() if name[:8] != "MEETING_"}
    process = start("serve", "--port", 0, "--quiet", *options, env=environ)
    assert process.stdout is not None
    found = (re.search(r"^export MEETING_BASE_URL=(\S+)", line) for line in process.stdout)
    try:
        yield (url[1] for url in found if url)
    finally:
        process.send_signal(signal.SIGTERM)
        assert finish(process).code == 0


def test_a_presenter_and_strict_pdfs_are_options() -> None:
    """By default a presenter is needed and a PDF may be a header only; options change both."""
    seen = []
    with ExitStack() as stack:  # they start at the same time
        options: list[tuple[str, ...]] = [(), ("--no-presenter-required", "--strict-pdf")]
        for server in [stack.enter_context(serving(*given)) for given in options]:
            url = next(server)
            assert talk(url, call("/auth/room/create", FRESH)).status == 200
            pdf = talk(url, upload(document(PDF), room="room01"))
            seen.append((talk(url, upload(HELLO, room="fresh")).code, pdf.status))
    assert seen == [((400, "USER_NOT_ACTIVE"), 200), ((200, "SUCCESS"), 500)]
