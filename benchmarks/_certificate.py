"""A throw-away certificate for 127.0.0.1, which all clients check the sink's against."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import attrs

MISSING = None if shutil.which("openssl") else "openssl is not on PATH, so there is no TLS"
"""Why there can be no certificate."""

_COMMAND = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
_NAMES = ["-subj", "/CN=benchmark", "-addext", "subjectAltName=IP:127.0.0.1"]


@attrs.frozen
class Certificate:
    """A certificate that signs itself, so that it is also what clients trust."""

    certificate: str
    """Path of the PEM file."""
    key: str
    """Path of the PEM file; without a password."""


def made(directory: Path) -> Certificate:
    """Make one."""
    paths = Certificate(str(directory / "certificate.pem"), str(directory / "key.pem"))
    files = ["-out", paths.certificate, "-keyout", paths.key]
    subprocess.run([*_COMMAND.split(), *_NAMES, *files], check=True, capture_output=True)
    return paths
