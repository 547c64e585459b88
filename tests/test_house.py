"""The house: imports point one way, and pure rooms stay without input and output."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import meeting_async

ROOT = Path(meeting_async.__file__).parent
FLOORS = [
    {"_clock", "_log", "_text", "_threads"},
    {"errors"},
    {"_models", "_events", "_policies"},
    {"_protocol"},
    {"_documents", "_http"},
    {"_config", "_delivery"},
    {"_batch"},
    {"_client"},
    {"__init__", "transports", "signers", "rooms", "journals", "testing", "web"},
    {"otel", "procrastinate", "redis"},
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
    "web",
}
IO = {"anyio", "asyncio", "h11", "httpx", "random", "socket", "tenacity", "time", "trio"}


def _imports(path: Path) -> set[str]:
    """Return the modules that a file imports when it runs."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "meeting_async":
            found |= {f"meeting_async.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def _rooms() -> list[tuple[Path, str]]:
    return [
        (path, path.relative_to(ROOT).parts[0].removesuffix(".py")) for path in ROOT.rglob("*.py")
    ]


def test_imports_point_one_way() -> None:
    """A room imports only from lower floors; the client loads a batch when it is used."""
    wrong = [
        f"{path.relative_to(ROOT)}: {module}"
        for path, room in _rooms()
        for module in _imports(path)
        if module.startswith("meeting_async.")
        and (target := module.split(".")[1]) in FLOOR
        and target != room
        and FLOOR[target] >= FLOOR[room]
    ]
    assert not wrong


def test_every_room_has_a_floor() -> None:
    """A new room says where it belongs."""
    assert {room for _, room in _rooms()} <= set(FLOOR)


def test_pure_rooms_do_no_io() -> None:
    """Decisions need no loop, no clock and no randomness."""
    wrong = [
        f"{path.relative_to(ROOT)}: {module}"
        for path, room in _rooms()
        if room in PURE or str(path.relative_to(ROOT).with_suffix("")) in PURE
        for module in _imports(path)
        if module.split(".")[0] in IO
    ]
    assert not wrong


def test_imports_are_declared() -> None:
    """What a room imports is installed with the package, or with the extra of its name."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    wrong = [
        f"{path.relative_to(ROOT)}: {module}"
        for path, room in _rooms()
        for module in {name.split(".")[0] for name in _imports(path)}
        if module
        not in {*sys.stdlib_module_names, "meeting_async", "trio"}  # if trio runs, it is there
        and not any(
            needed.replace("-", "_").startswith(module)
            for needed in project["dependencies"] + extras.get(room, [])
        )
    ]
    assert not wrong
