"""A self-signed certificate for 127.0.0.1, made by the openssl command."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path


def make_certificate(directory: Path, name: str = "peer") -> tuple[Path, Path]:
    """Return the paths of a key and of its certificate."""
    openssl = shutil.which("openssl")
    assert openssl, "the TLS tests need the openssl command"
    key, cert = directory / f"{name}.key", directory / f"{name}.crt"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([openssl, *command.split(), *names, *files], check=True, capture_output=True)
    return key, cert


def make_contexts(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the server's and the client's side of one certificate."""
    key, cert = make_certificate(directory)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=str(cert))
