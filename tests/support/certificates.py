"""Certificates made by the openssl command: self-signed for 127.0.0.1, or of an authority.

``python -m support.certificates FOLDER`` makes those for a machine without that command.
"""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

from support.programs import run_to_its_end

READY_MADE = os.environ.get("READY_MADE_CERTIFICATES")
"""Where ``peer`` and ``client`` are, if the command cannot be run, as in Wine."""


def make_certificate(directory: Path, name: str = "peer") -> tuple[Path, Path]:
    """Return the paths of a key and of its certificate."""
    key, cert = directory / f"{name}.key", directory / f"{name}.crt"
    if READY_MADE:
        for path in (key, cert):
            shutil.copy(Path(READY_MADE, path.name), path)
        return key, cert
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    _openssl("req", "-x509", *_NEW_KEY, "-days", "2", *names, "-keyout", key, "-out", cert)
    return key, cert


class Authority:
    """An authority of one's own, whose certificate is in ``file``."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self._directory = directory
        self.file = directory / "authority.pem"
        # From Python 3.13 on an authority must say that it signs certificates.
        usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        names = ["-days", "2", "-subj", "/CN=Our own authority", *usage]
        _openssl("req", "-x509", *_NEW_KEY, *names, "-keyout", self._key, "-out", self.file)

    def intermediate(self, directory: Path) -> Authority:
        """Return an authority whose certificate this one has signed."""
        made = Authority(directory)
        request = directory / "authority.csr"
        _openssl("req", "-new", "-key", made._key, "-subj", "/CN=Between", "-out", request)
        self._sign(request, made.file, _EXTENSIONS + "\n".join(_OF_AUTHORITIES), days=2)
        return made

    @property
    def _key(self) -> Path:
        return self._directory / "authority.key"

    def sign(
        self, names: str, *, days: int = 2, sends_authority: bool = False, is_strict: bool = True
    ) -> ssl.SSLContext:
        """Return a server's side of TLS with a certificate for ``names``; -1 day: expired.

        ``is_strict``: it has all that Python 3.13 demands.
        """
        extensions = _EXTENSIONS if is_strict else "authorityKeyIdentifier=none\n"
        key, certificate = self._issue("server", f"{extensions}subjectAltName={names}\n", days)
        if sends_authority:
            certificate.write_bytes(certificate.read_bytes() + self.file.read_bytes())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context

    def client(self) -> Path:
        """Return a file with a client's certificate and its key."""
        key, certificate = self._issue("client", _EXTENSIONS)
        certificate.write_bytes(certificate.read_bytes() + key.read_bytes())
        return certificate

    def _issue(self, name: str, extensions: str, days: int = 2) -> tuple[Path, Path]:
        key, request, certificate = (
            self._directory / f"{name}.{kind}" for kind in ("key", "csr", "pem")
        )
        _openssl("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        self._sign(request, certificate, extensions, days)
        return key, certificate

    def _sign(self, request: Path, certificate: Path, extensions: str, days: int) -> None:
        file = request.with_suffix(".ext")
        file.write_text(extensions)
        ours = ["-CA", self.file, "-CAkey", self._key, "-CAcreateserial", *_valid_for(days)]
        files = ["-extfile", file, "-in", request, "-out", certificate]
        _openssl("x509", "-req", *ours, *files)


_EXTENSIONS = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
_OF_AUTHORITIES = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"]


def _valid_for(days: int) -> list[object]:
    """Return options; since OpenSSL 3.4 the past has its own, and later -days refuses it."""
    about = subprocess.run(["openssl", "x509", "-help"], capture_output=True, check=False)
    if days < 0 and b"-not_after" in about.stdout + about.stderr:
        return ["-not_before", "20200101000000Z", "-not_after", "20200201000000Z"]
    return ["-days", days]


_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def _openssl(*words: object) -> None:
    openssl = shutil.which("openssl")
    assert openssl, "the TLS tests need the openssl command"
    run_to_its_end([openssl, *map(str, words)])


if __name__ == "__main__":
    for _name in ("peer", "client"):
        make_certificate(Path(sys.argv[1]), _name)
