"""What differs between Linux, macOS and Windows. All other code asks here, and names no system.

What a system may lack is looked up by its name: Pythons of one system differ, too.
"""

from __future__ import annotations

import asyncio
import errno
import ntpath
import os
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

IS_WINDOWS: bool = os.name == "nt"

# --- sockets -------------------------------------------------------------------------------------


def _known(module: object, *names: str) -> list[int]:
    """Return the values of those names that this Python has."""
    return [getattr(module, name) for name in names if hasattr(module, name)]


SOCKET_OPTIONS: list[tuple[int, int, int]] = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),  # as every event loop sets it
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    # Seconds of silence before the first probe. macOS has the second name.
    *((socket.IPPROTO_TCP, it, 60) for it in _known(socket, "TCP_KEEPIDLE", "TCP_KEEPALIVE")[:1]),
    *((socket.IPPROTO_TCP, it, 30) for it in _known(socket, "TCP_KEEPINTVL")),
]
"""During a conversion there are minutes of silence, and NAT drops idle connections."""

RESET: bytes = struct.pack("hh" if IS_WINDOWS else "ii", 1, 0)
"""``SO_LINGER`` on, for 0 s: closing resets the connection and drops what was not sent yet."""

NO_NAME: frozenset[int] = frozenset(
    [*_known(socket, "EAI_NONAME", "EAI_NODATA"), *([11004] if IS_WINDOWS else [])]  # WSANO_DATA
)
"""Codes of ``getaddrinfo`` for a name that does not exist."""

NO_DESCRIPTOR: frozenset[int] = frozenset(_known(errno, "EMFILE", "ENFILE", "WSAEMFILE"))
"""Error numbers of a process, or a machine, that may open nothing more."""

EXHAUSTED: frozenset[int] = NO_DESCRIPTOR.union(_known(errno, "ENOBUFS", "ENOMEM", "WSAENOBUFS"))
"""The same, and no memory for a socket."""


def can_watch(loop: Any, sock: socket.socket) -> bool:
    """Return whether an event loop can tell when a socket is ready. Windows' usual one cannot."""
    try:
        loop.remove_reader(sock.fileno())
    except AttributeError:  # of trio, whose own way anyio knows
        return True
    except NotImplementedError:
        return False
    return True


SELECTOR_LOOP: Mapping[str, Any] = {"loop_factory": asyncio.SelectorEventLoop} if IS_WINDOWS else {}
"""Options of ``anyio.run``, for libraries that need an event loop that can, such as psycopg."""

# --- files ---------------------------------------------------------------------------------------

READ_FLAGS: int = os.O_RDONLY | sum(_known(os, "O_CLOEXEC", "O_BINARY"))
"""How a document is opened."""

NO_WAIT: int = sum(_known(os, "O_NONBLOCK"))
"""A further flag, with which opening a file waits for nobody."""


if sys.platform == "win32":
    import ctypes
    import msvcrt

    _reopen = ctypes.WinDLL("kernel32", use_last_error=True).ReOpenFile
    _reopen.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32]
    _reopen.restype = ctypes.c_void_p
    _GENERIC_READ, _SHARE_ALL, _INVALID = 0x80000000, 0x7, ctypes.c_void_p(-1).value
    _file_type = ctypes.WinDLL("kernel32").GetFileType
    _file_type.argtypes = [ctypes.c_void_p]
    _PIPE = 3

    def duplicate(number: int) -> int:
        """Return another descriptor of an open file, with a position of its own."""
        handle = _reopen(msvcrt.get_osfhandle(number), _GENERIC_READ, _SHARE_ALL, 0)
        if handle in {None, _INVALID}:
            raise ctypes.WinError(ctypes.get_last_error())
        return msvcrt.open_osfhandle(handle, READ_FLAGS)

    def is_false_file(number: int) -> bool:
        """Return whether a descriptor that can seek is a pipe: they say they can until 3.12.

        Nothing is asked of a disk, unlike by ``fstat``.
        """
        return bool(_file_type(msvcrt.get_osfhandle(number)) == _PIPE)

    def socket_error(code: int) -> OSError:
        """Return the error for what ``SO_ERROR`` says, with the system's text."""
        return ctypes.WinError(code, ctypes.FormatError(code).strip(" .\r\n"))

else:

    def duplicate(number: int) -> int:
        """Return another descriptor of an open file. Read it with :func:`read_at` only."""
        return os.dup(number)

    def is_false_file(_number: int) -> bool:
        """Return whether a descriptor that can seek is a pipe: on Windows they say they can."""
        return False

    def socket_error(code: int) -> OSError:
        """Return the error for what ``SO_ERROR`` says, with the system's text."""
        return OSError(code, os.strerror(code))


def read_at(number: int, limit: int, offset: int) -> bytes:
    """Read up to ``limit`` bytes at an offset.

    Where that moves the descriptor's position, nobody else may read from it meanwhile.
    """
    pread: Callable[[int, int, int], bytes] | None = getattr(os, "pread", None)
    if pread is not None:
        return pread(number, limit, offset)
    os.lseek(number, offset, os.SEEK_SET)
    return os.read(number, limit)


def read_nowait(number: int, buffer: memoryview, offset: int) -> int | None:
    """Read into a buffer and return how much; ``None`` if that may block, or nothing can tell."""
    flag: int | None = getattr(os, "RWF_NOWAIT", None)
    if flag is None:
        return None
    preadv: Callable[..., int] = getattr(os, "preadv")  # noqa: B009 - some systems have none
    try:
        return preadv(number, [buffer], offset, flag)
    except OSError:
        return None


def change_time(status: os.stat_result) -> int:
    """Return when anything of a file changed last, which nobody can set (nanoseconds).

    Windows: 0. There a path has the time when its file was made in the place of this time, and from
    Python 3.12 on an open file has another one.
    """
    return 0 if IS_WINDOWS else status.st_ctime_ns


LONG_PATH = 240
"""Characters. Where long paths are not switched on, Windows takes 259, and 247 for a folder."""


def openable(path: str) -> str:
    r"""Return a path as the system can open it: on Windows a long one begins with ``\\?\``."""
    if not IS_WINDOWS:
        return path
    full = os.path.abspath(path)  # noqa: PTH100 - links stay as they are
    if len(full) < LONG_PATH or full.startswith("\\\\?\\"):
        return path
    return "\\\\?\\UNC" + full[1:] if full.startswith("\\\\") else "\\\\?\\" + full


_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\.|$)")


def name_problem(path: str, *, on_windows: bool = IS_WINDOWS) -> str:
    """Return why no file can be made at a path, ``""`` if its name is usable.

    On Windows a colon names a hidden stream of a file, and ``nul`` is a device in each folder.
    """
    if not on_windows:
        return ""
    if "\0" in path:  # some functions end the name there
        return "has an embedded null character"
    name = re.split(r"[/\\]", ntpath.splitdrive(path)[1])[-1]
    if bad := re.search(r'[<>:"|?*]', name):
        return f"has {bad[0]} in its name, which Windows does not allow"
    if _DEVICES.match(name):
        return f"has the name of a device, {name}"
    return ""


def spelled_once(path: str, *, on_windows: bool = IS_WINDOWS) -> str:
    r"""Return a path with ``/``, without ``./``, in NFC. Elsewhere ``\\`` is part of a name."""
    made = PureWindowsPath(path) if on_windows else PurePosixPath(path)
    return unicodedata.normalize("NFC", made.as_posix())


def without_drive(path: str, *, on_windows: bool = IS_WINDOWS) -> str:
    """Return a path without its drive: ``C:deck.pdf`` is a name on other systems only."""
    return ntpath.splitdrive(path)[1] if on_windows else path


def other_spellings(path: str) -> list[str]:
    """Return how the same path may be written on this system or another one."""
    once = spelled_once(path)
    forms = dict.fromkeys([path, once, *(() if once.isascii() else (_apart(once), _apart(path)))])
    return [each for form in forms for each in (form, form.replace("/", "\\")) if each != once]


_apart = partial(unicodedata.normalize, "NFD")  # as a Mac does


REPLACE_SECONDS = 2.0
"""How long a file is waited for that another program has open: a virus scanner, a viewer."""


def replace(new: str, place: str) -> None:
    """Put a file in the place of another, whole. On Windows nobody may have that one open."""
    end = time.monotonic() + REPLACE_SECONDS
    while True:
        try:
            os.replace(new, place)  # noqa: PTH105
        except PermissionError:
            if not IS_WINDOWS or time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def in_use(error: BaseException) -> str:
    """Return what may help where a file could not be used, ``""`` if nothing is known.

    On Windows a program such as Excel keeps others from a file that it has open, and Python's
    ``NamedTemporaryFile`` even its own.
    """
    name: str = getattr(error, "sqlite_errorname", "")
    is_denied = isinstance(error, PermissionError) or name.startswith(("SQLITE_CANT", "SQLITE_IO"))
    return (
        " (if it is open, in a program or in this one, close it there)"
        if IS_WINDOWS and is_denied
        else ""
    )


# --- processes -----------------------------------------------------------------------------------

ENDING_SIGNALS: list[int] = _known(signal, "SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
"""Signals that ask a program to end: Ctrl-C, a service manager, a closed terminal, Ctrl-Break."""


def after_fork(function: Callable[[], object]) -> None:
    """Have a function called in each process that is forked from this one, where one can be."""
    _after_fork.append(function)


def notice_fork() -> None:
    """Call these functions, if this process was forked and they were not called yet.

    Python does so itself, except if a C program has forked and does not tell it, as uWSGI.
    """
    if _process != [os.getpid()]:
        _process[:] = [os.getpid()]
        for function in _after_fork:
            function()


_after_fork: list[Callable[[], object]] = []
_process = [os.getpid()]
getattr(os, "register_at_fork", lambda **_: None)(after_in_child=notice_fork)


PIPE_BYTES: int | None = getattr(select, "PIPE_BUF", None)
"""Bytes that a pipe takes without blocking once it is ready; ``None``: pipes cannot be polled."""


def is_closed_pipe(error: object) -> bool:
    """Return whether a write failed because the reader has gone, as ``| head`` does."""
    closed = {errno.EPIPE, errno.EINVAL} if IS_WINDOWS else {errno.EPIPE}
    return getattr(error, "errno", None) in closed


def command_line(words: Iterable[str]) -> str:
    """Return words as they are typed into a shell of this system."""
    return subprocess.list2cmdline(words) if IS_WINDOWS else shlex.join(words)
