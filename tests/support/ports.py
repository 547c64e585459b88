"""Ports on which nobody listens."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path


def free_port() -> int:
    """Return a loopback port on which nobody listens, and that the kernel gives to nobody."""
    first = 20_001  # below what other systems give away
    with contextlib.suppress(OSError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    end = first if first > 20_000 else 65_536  # some machines give away nearly all
    while True:
        port = random.SystemRandom().randrange(10_000, end)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
