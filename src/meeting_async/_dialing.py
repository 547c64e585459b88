"""From a host's name to a connected non-blocking socket, on any event loop that anyio knows."""

from __future__ import annotations

import ipaddress
import itertools
import os
import socket
from collections.abc import Sequence
from typing import Any

import anyio

Address = tuple[int, int, int, str, Any]
"""One row of ``getaddrinfo``: family, type, protocol, canonical name, socket address."""

HESITATION_SECONDS = 0.25
"""How long one address may take before the next one is tried, too (RFC 8305 section 5)."""

SOCKET_OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),  # as every event loop sets it
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
] + [
    (socket.IPPROTO_TCP, option, seconds)
    for option, seconds in (
        (getattr(socket, "TCP_KEEPIDLE", None), 60),
        (getattr(socket, "TCP_KEEPINTVL", None), 30),
    )
    if option is not None
]
"""A conversion is minutes of silence, and address translators forget silent connections."""


async def dial(host: str, port: int) -> socket.socket:
    """Connect to the first of a host's addresses that answers.

    Raises:
        OSError: The name is unknown, or none of its addresses could be reached.

    """
    addresses = await _addresses(host, port)
    if len(addresses) == 1:
        return await _connected(addresses[0])
    race = _Race()
    try:
        await race.run(_interleaved(addresses))
    except BaseException:
        race.close_all_but(0)
        raise
    race.close_all_but(1)
    if not race.connected:
        raise race.failures[0]
    return race.connected[0]


async def _addresses(host: str, port: int) -> Sequence[Address]:
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        return await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family = socket.AF_INET if literal.version == 4 else socket.AF_INET6
    return [(family, socket.SOCK_STREAM, 0, "", (host, port))]


def _interleaved(addresses: Sequence[Address]) -> list[Address]:
    """Alternate between the families, so that a broken one costs one hesitation (section 4)."""
    first = [address for address in addresses if address[0] == addresses[0][0]]
    other = [address for address in addresses if address[0] != addresses[0][0]]
    pairs = itertools.zip_longest(first, other)
    return [address for pair in pairs for address in pair if address is not None]


class _Race:
    """Attempts at several addresses, each begun when the one before failed or hesitated."""

    def __init__(self) -> None:
        self.connected: list[socket.socket] = []
        self.failures: list[OSError] = []

    async def run(self, addresses: Sequence[Address]) -> None:
        """Return when one attempt succeeded or all failed."""
        async with anyio.create_task_group() as attempts:
            for address in addresses:
                failed = anyio.Event()
                attempts.start_soon(self._attempt, address, failed, attempts.cancel_scope)
                with anyio.move_on_after(HESITATION_SECONDS):
                    await failed.wait()

    def close_all_but(self, count: int) -> None:
        """Close what is not needed: two attempts may succeed at the same time."""
        while len(self.connected) > count:
            self.connected.pop().close()

    async def _attempt(
        self, address: Address, failed: anyio.Event, race: anyio.CancelScope
    ) -> None:
        try:
            self.connected.append(await _connected(address))
        except OSError as error:
            self.failures.append(error)
            failed.set()
        else:
            race.cancel()


async def _connected(address: Address) -> socket.socket:
    family, kind, protocol, _, where = address
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        for option in SOCKET_OPTIONS:
            sock.setsockopt(*option)
        try:
            sock.connect(where)
        except BlockingIOError:
            await anyio.wait_writable(sock)
            _raise_error_of(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _raise_error_of(sock: socket.socket) -> None:
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
