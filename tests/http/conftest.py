"""Wires: TCP in clear and TLS; a certificate; an address that does not answer."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.certificates import make_certificate
from support.sending import Wire


@pytest.fixture
def wire(request: pytest.FixtureRequest) -> Wire:
    """Run a test in clear and encrypted."""
    if request.param == "tcp":
        return None, True
    server, client = request.getfixturevalue("tls")
    return server, client


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a key and its certificate."""
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def server(files: tuple[Path, Path]) -> ssl.SSLContext:
    """Provide the server's side, which trusts the certificate, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[1], files[0])
    context.load_verify_locations(files[1])
    return context


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
