"""Functions in processes of their own, forked from one that has imported what is slow."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any
from unittest.mock import patch

CONTEXT: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
"""Where nothing forks, each process begins anew."""

_IMPORTED = ["anyio._backends._asyncio", "anyio._backends._trio", "jinja2", "rich.live"]


def forked(function: Callable[..., object], *arguments: Any) -> BaseProcess:
    """Start a function of this folder in a process of its own."""
    CONTEXT.set_forkserver_preload(["support.killed_processes", "support.queue_worker", *_IMPORTED])
    process: BaseProcess = CONTEXT.Process(target=function, args=arguments)
    with patch.object(tempfile, "tempdir", "/tmp"):  # a socket's path has 107 bytes at most
        process.start()
    return process
