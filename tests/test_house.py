"""The architecture: imports point one way, and decisions are made without input and output."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

import meeting_async

ROOT = Path(meeting_async.__file__).parent
FLOORS = [
    {"_clock", "_log", "_system", "_text"},
    {"errors"},
    {"_models", "_events", "_policies", "_threads"},
    {"_blocking", "_config", "_protocol"},
    {"_documents", "_http"},
    {"_delivery"},
    {"_batch"},
    {"_client"},
    {
        "__init__",
        "transports",
        "signers",
        "rooms",
        "journals",
        "evidence",
        "sync",
        "testing",
        "web",
    },
    {"manifests", "otel", "procrastinate", "redis", "reports"},
    {"cli"},
    {"__main__"},
]
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
PURE = {
    "_text",
    "errors",
    "_models",
    "_events",
    "_policies",
    "_protocol",
    "_delivery/decide",
    "_delivery/history",
    "_delivery/room_wait",
    "web/_answers",
}
EXTRA = {"reports": "cli"}
"""Rooms whose extra has another name."""

IO = {"anyio", "asyncio", "httptools", "httpx", "random", "socket", "tenacity", "time", "trio"}


def _modules(path: Path) -> set[str]:
    """Return the modules that a file imports when it runs."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        nodes += [inner for inner in ast.iter_child_nodes(node) if not isinstance(inner, ast.expr)]
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "meeting_async":
            found |= {f"meeting_async.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.fixture(scope="module")
def imports() -> list[tuple[str, str, str]]:
    """Return files, their rooms, and the modules that they import."""
    return [
        (file := str(path.relative_to(ROOT).with_suffix("")), file.partition("/")[0], module)
        for path in ROOT.rglob("*.py")
        for module in _modules(path)
    ]


def test_imports_point_one_way(imports: list[tuple[str, str, str]]) -> None:
    """A room imports only from lower floors, and has one; a batch is loaded when it is used."""
    assert {room for _, room, _ in imports} <= set(FLOOR)
    assert not [
        f"{file}: {module}"
        for file, room, module in imports
        if module.startswith("meeting_async.")
        and (target := module.split(".")[1]) in FLOOR
        and target != room
        and FLOOR[target] >= FLOOR[room]
    ]


def test_pure_rooms_do_no_io(imports: list[tuple[str, str, str]]) -> None:
    """Decisions need no loop, no clock and no randomness."""
    assert not [
        f"{file}: {module}"
        for file, room, module in imports
        if PURE & {room, file} and module.split(".")[0] in IO
    ]


SYSTEMS = re.compile(
    r"sys\.platform|os\.name\b|import platform"
    r"|(?:has|get)attr\((?:os|socket|signal|select|errno|stat|time|asyncio), "
)
"""What asks which system this is, or what it has."""


NOT_ON_WINDOWS = re.compile(
    r"import (fcntl|termios|resource|pwd|grp|pty)|os\.(fork|mkfifo|getuid|geteuid|kill)\b"
    r"|select\.(e?poll|kqueue)|signal\.SIG(HUP|KILL|STOP|USR)|AF_UNIX"
)


def test_a_system_is_asked_for_in_one_place() -> None:
    """What differs between Linux, macOS and Windows stands in one module; no other names one."""
    texts = {path.name: path.read_text("utf-8") for path in ROOT.rglob("*.py")}
    assert [name for name, text in texts.items() if SYSTEMS.search(text)] == ["_system.py"]
    assert [name for name, text in texts.items() if NOT_ON_WINDOWS.search(text)] == []


def test_imports_are_declared(imports: list[tuple[str, str, str]]) -> None:
    """What a room imports is installed with the package, or with its extra."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    always = {*sys.stdlib_module_names, "meeting_async", "trio"}  # if trio runs, it is there
    assert not [
        f"{file}: {module}"
        for file, room, module in imports
        if (name := module.split(".")[0]) not in always
        and not any(
            needed.replace("-", "_").startswith(name)
            for needed in project["dependencies"] + extras.get(EXTRA.get(room, room), [])
        )
    ]


@pytest.mark.parametrize(
    ("room", "package"),
    [
        ("otel", "opentelemetry"),
        ("procrastinate", "procrastinate"),
        ("redis", "redis.asyncio"),
        ("reports", "jinja2"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, room: str, package: str) -> None:
    """To import what an extra brings says what to install, if that is not there."""
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"meeting_async.{room}", raising=False)
    extra = EXTRA.get(room, room)
    with pytest.raises(ModuleNotFoundError, match=rf'pip install "\.\[{extra}\]" in a clone'):
        importlib.import_module(f"meeting_async.{room}")


def test_the_promises_have_their_files() -> None:
    """The table of ``tests/README.md``: every file is there, and no guarantee is missing in it."""
    tests = Path(__file__).parent
    table = (tests / "README.md").read_text("utf-8").partition("## Promises")[2]
    named = re.findall(r"`([a-z_/]+\.py)`", table)
    assert named
    assert [name for name in named if not (tests / name).is_file()] == []
    page = (tests.parent / "README.md").read_text("utf-8")
    guarantees = page.partition("## Guarantees")[2].partition("\n## ")[0]
    plain = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", guarantees)
    promised = re.findall(r"^\* \*\*(.*?)[.:]?\*\*", plain, re.MULTILINE)
    assert len(promised) >= 7
    assert [words for words in promised if f"**{words}" not in table] == []
