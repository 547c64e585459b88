"""Programs that start quickly: forks of one interpreter that has imported what is slow.

What it has imported is of other projects; a program imports this package itself, and has a
``__main__``, a folder, an environment and an end of its own.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs


@attrs.frozen
class Interpreter:
    """Runs programs one after the other."""

    process: subprocess.Popen[str] | None
    """What forks; ``None`` on Windows, where each program is a process from its start."""

    def run(
        self, code: str, folder: Path, environment: Mapping[str, str] = os.environ
    ) -> tuple[int, str, str]:
        """Run a program; return its exit status, and what it wrote to stdout and stderr."""
        if self.process is None:
            command = [sys.executable, "-W", "error", "-c", code]
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, check=False
            )
            return done.returncode, _text(done.stdout), _text(done.stderr)
        assert self.process.stdin
        assert self.process.stdout
        names = [str(folder / f".{name}") for name in ("stdout", "stderr")]
        order = {
            "code": code,
            "folder": str(folder),
            "environment": dict(environment),
            "files": names,
        }
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        stdout, stderr = (Path(name).read_text("utf-8") for name in names)
        return status, stdout, stderr


def _text(printed: bytes) -> str:
    # A path in a traceback may not be UTF-8 on Windows.
    return printed.decode(errors="backslashreplace").replace("\r\n", "\n")


@contextmanager
def interpreter(*modules: str) -> Iterator[Interpreter]:
    """Start one that imports some modules; in its programs warnings are errors."""
    if not hasattr(os, "fork"):
        yield Interpreter(None)
        return
    command = [sys.executable, "-W", "error", __file__, *modules]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield Interpreter(process)


def serve() -> str | None:
    """Fork for each order; return the code in the fork."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # else each program looks through all of that when it ends
    for line in iter(sys.stdin.readline, ""):
        order: dict[str, Any] = json.loads(line)
        if child := os.fork():
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            print(status, flush=True)  # noqa: T201 - how the other process learns it
            continue
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        for descriptor, name in enumerate([os.devnull, *order["files"]]):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if descriptor else os.O_RDONLY
            os.dup2(os.open(name, flags, 0o600), descriptor)
        sys.path[0], sys.argv[:] = "", ["-c"]
        return str(order["code"])
    return None


if __name__ == "__main__" and (_code := serve()) is not None:
    sys.modules["__main__"] = _main = types.ModuleType("__main__")  # where pickle looks for classes
    exec(compile(_code, "<string>", "exec", dont_inherit=True), vars(_main))
