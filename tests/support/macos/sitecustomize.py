"""Takes away what CPython on macOS does not have; put this folder on ``PYTHONPATH``.

The system is still Linux and says so. So this shows what would be missing, not what else differs.
"""

import errno
import os
import selectors
import socket
import sys

MISSING = {
    socket: "TCP_KEEPIDLE SOCK_CLOEXEC SOCK_NONBLOCK MSG_NOSIGNAL TCP_USER_TIMEOUT TCP_CORK"
    " TCP_INFO TCP_QUICKACK TCP_DEFER_ACCEPT",
    os: "RWF_NOWAIT RWF_HIPRI RWF_DSYNC RWF_SYNC sched_getaffinity posix_fadvise memfd_create"
    " pidfd_open eventfd splice copy_file_range",
    selectors: "EpollSelector",  # `select.epoll` stays: trio takes this system for Linux
}
for _module, _names in MISSING.items():
    for _name in _names.split():
        if hasattr(_module, _name):
            delattr(_module, _name)
            if _name in getattr(_module, "__all__", ()):
                _module.__all__.remove(_name)
if hasattr(os, "process_cpu_count"):  # from Python 3.13, where it would ask for the affinity
    setattr(os, "process_cpu_count", os.cpu_count)  # noqa: B010 - as it is there
setattr(socket, "TCP_KEEPALIVE", 4)  # noqa: B010 - the other name of TCP_KEEPIDLE; here its number
setattr(selectors, "DefaultSelector", selectors.SelectSelector)  # noqa: B010 - a type


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Let there be no ``/proc``, and no address of loopback but the first."""
    if event in {"open", "os.listdir", "os.scandir"}:
        if str(arguments[0]).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), arguments[0])
    elif event in {"socket.bind", "socket.connect"}:
        where = arguments[1]
        host = str(where[0]) if isinstance(where, tuple) else ""
        if host.startswith("127.") and host != "127.0.0.1":
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))


sys.addaudithook(_refuse)
