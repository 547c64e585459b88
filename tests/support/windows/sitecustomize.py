"""Takes away what CPython on Windows does not have; put this folder on ``PYTHONPATH``.

The system is still Linux and says so. So this shows what would be missing, not what else differs:
for that, ``.ci/windows`` runs tests with CPython for Windows. What tests of Linux use, and the
package does not (``fork``, ``fcntl``, ``poll``; see ``test_house.py``), stays.
"""

import asyncio.base_events
import asyncio.selector_events
import asyncio.unix_events
import fcntl
import os
import select
import selectors
import signal
import socket
import stat
import sys
import time

MISSING = {
    socket: "TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT SOCK_CLOEXEC SOCK_NONBLOCK MSG_NOSIGNAL"
    " MSG_DONTWAIT TCP_USER_TIMEOUT TCP_CORK TCP_INFO TCP_QUICKACK TCP_DEFER_ACCEPT",
    os: "RWF_NOWAIT RWF_HIPRI RWF_DSYNC RWF_SYNC pread preadv O_CLOEXEC"
    " sched_getaffinity posix_fadvise memfd_create eventfd splice",
    select: "PIPE_BUF",
    signal: "SIGHUP",
}
for _module, _names in MISSING.items():
    for _name in _names.split():
        if hasattr(_module, _name):
            delattr(_module, _name)
            if _name in getattr(_module, "__all__", ()):
                _module.__all__.remove(_name)


def _lacking(kind: type, name: str) -> None:
    """Let an event loop lack a method, except for asyncio itself."""
    method = getattr(kind, name)

    def call(*arguments: object) -> object:
        if not sys._getframe(1).f_globals["__name__"].startswith("asyncio."):
            raise NotImplementedError
        return method(*arguments)

    setattr(kind, name, call)


for _name in ("add_reader", "remove_reader", "add_writer", "remove_writer"):
    _lacking(asyncio.selector_events.BaseSelectorEventLoop, _name)
for _name in ("add_signal_handler", "remove_signal_handler"):
    _lacking(asyncio.unix_events._UnixSelectorEventLoop, _name)
setattr(selectors, "DefaultSelector", selectors.SelectSelector)  # noqa: B010 - a type

TICK = 1 / 64
"""Seconds: the step of Windows' monotonic clock."""

_exact = time.monotonic
time.monotonic = lambda: _exact() // TICK * TICK

_dup = os.dup


def _reopened(number: int) -> int:
    """Duplicate a descriptor; that of a file gets a position of its own, as by ``ReOpenFile``."""
    access = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    if access != os.O_WRONLY and stat.S_ISREG(os.fstat(number).st_mode):
        return os.open(f"/proc/self/fd/{number}", access)
    return _dup(number)


os.dup = _reopened

sys.is_like_windows = True  # type: ignore[attr-defined]  # for tests.support.systems
