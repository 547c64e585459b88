"""Wires: TCP in clear and TLS."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from support.sending import Wire


@pytest.fixture
def wire(request: pytest.FixtureRequest) -> Wire:
    """Run a test in clear and encrypted."""
    if request.param == "tcp":
        return None, True
    server, client = request.getfixturevalue("tls")
    return server, client


@pytest.fixture
def full() -> Iterator[str]:
    """Provide an address whose queue of connections is full, so that no attempt is answered."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"
