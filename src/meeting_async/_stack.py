"""What is needed of httpx and httpcore, or of a fork of both that kept their names."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType
from typing import Any, Protocol

import attrs
import httpcore
import httpx

from meeting_async._failures import Failures


class Core(Protocol):
    """A module such as httpcore: its classes, all public."""

    AsyncConnectionPool: Any
    AsyncHTTPConnection: Any
    ConnectError: Any
    ConnectTimeout: Any
    Origin: Any
    Proxy: Any
    ReadError: Any
    ReadTimeout: Any
    Request: Any
    URL: Any
    WriteError: Any
    WriteTimeout: Any


@attrs.frozen(eq=False)
class Stack:
    """A library for HTTP clients, and what it is built on."""

    client: ModuleType
    """Such as httpx."""
    core: Core
    """Such as httpcore."""
    failures: Failures
    """What their exceptions mean."""


def stack(client: ModuleType, core: Core) -> Stack:
    """Put two modules together; a SOCKS proxy brings exceptions of a third."""
    modules: list[object] = [client, core]
    if importlib.util.find_spec("socksio"):
        modules.append(importlib.import_module("socksio"))
    return Stack(client, core, Failures(*modules))


HTTPX = stack(httpx, httpcore)
"""What the core is built on."""
