"""A network namespace, and a link to it that can drop all packets of a connection."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator

import attrs
import pytest

DATABASE, SERVER = 1, 5
"""Last numbers of two addresses of this side. Each has its own partner, the next number."""

_NOWHERE = "02:00:00:00:00:ff"
"""Address of no interface: what is sent to it is dropped, and nobody says so."""


@attrs.frozen
class Namespace:
    """A network namespace whose programs reach two addresses of this machine."""

    name: str
    subnet: str

    def address(self, number: int) -> str:
        """Return one of the addresses of the link, such as that of ``DATABASE``."""
        return f"{self.subnet}.{number}"

    def command(self, *command: str) -> list[str]:
        """Return the command that runs a program inside."""
        return ["ip", "netns", "exec", self.name, *command]

    def drop(self) -> None:
        """Drop all packets to and from ``DATABASE``: no reset, and no answer of any kind."""
        self._neighbours(_NOWHERE, _NOWHERE)

    def restore(self) -> None:
        """Let packets arrive again."""
        self._neighbours("02:00:00:00:00:02", "02:00:00:00:00:01")

    def _neighbours(self, inside: str, outside: str) -> None:
        dev = ["dev", self.name, "nud", "permanent"]
        _ip("neigh", "replace", self.address(DATABASE + 1), "lladdr", inside, *dev)
        to_outside = [self.address(DATABASE), "lladdr", outside, *dev]
        _ip("-n", self.name, "neigh", "replace", *to_outside)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@contextlib.contextmanager
def namespace() -> Iterator[Namespace]:
    """Make a namespace and a link to it; skip the test where that is not possible."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("needs root and `ip` (Debian: apt install iproute2) for a network namespace")
    token = secrets.token_bytes(2)
    made = Namespace(f"test{token.hex()}", f"198.{18 + token[0] % 2}.{token[1]}")
    try:
        _ip("netns", "add", made.name)
    except OSError as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")
    try:
        _connect(made)
        made.restore()
        yield made
    finally:
        _ip("netns", "del", made.name)  # with both ends of the link, as soon as nothing runs there


def _connect(made: Namespace) -> None:
    name = made.name
    other = ["type", "veth", "peer", "name", name, "netns", name, "address", "02:00:00:00:00:02"]
    try:
        _ip("link", "add", name, "address", "02:00:00:00:00:01", *other)
    except OSError as error:
        pytest.skip(f"links between network namespaces cannot be made here: {error}")
    for number in (DATABASE, SERVER):
        _ip("addr", "add", f"{made.address(number)}/30", "dev", name)
        _ip("-n", name, "addr", "add", f"{made.address(number + 1)}/30", "dev", name)
    _ip("link", "set", name, "up")
    _ip("-n", name, "link", "set", name, "up")
