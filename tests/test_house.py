"""The house: which file may import which, what the package shows, which file is tested where."""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import meeting_async

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "meeting_async"

FLOORS = {
    **dict.fromkeys(("errors", "_attempts", "_budget", "_events", "_limits"), 0),
    **dict.fromkeys(("_policies", "_records"), 0),
    **dict.fromkeys(("_early", "_multipart", "_pace", "_queues", "_signing"), 1),
    **dict.fromkeys(("_verdicts", "_wire"), 1),
    **dict.fromkeys(("_threads", "_sources", "_ahead", "_descriptors", "_files", "_handles"), 2),
    **dict.fromkeys(("_spool", "_streams", "_recognition", "_factories", "_documents"), 2),
    **dict.fromkeys(("_observer", "_operations", "_outage", "_rooms", "_delivery", "_ledger"), 2),
    **dict.fromkeys(("_borrowed", "_connections", "_dialing", "_exchange", "_failures"), 2),
    **dict.fromkeys(("_proxies", "_routes", "_sockets", "_stack", "_tls"), 2),
    **dict.fromkeys(("_redis", "_transport", "httpx2", "redis"), 2),
    **dict.fromkeys(("_cancelling", "_jobs", "_report", "_slots"), 2),
    **dict.fromkeys(("_batch", "_calls", "_client", "_database", "_environment"), 3),
    **dict.fromkeys(
        ("_errand", "_identity", "_intake", "_journal", "_outbox", "_presence", "_terms"), 3
    ),
    **dict.fromkeys(("__init__", "__main__", "cli", "testing"), 4),
}
"""A module may import from its own floor and from those below it."""

SANS_IO = {
    *("errors", "_attempts", "_budget", "_events", "_limits", "_policies", "_records"),
    *("_early", "_multipart", "_pace", "_queues", "_signing", "_verdicts", "_wire"),
}
IO = {
    *("anyio", "asyncio", "concurrent", "h11", "httpcore", "httpx", "multiprocessing", "os"),
    *("pathlib", "random", "requests", "secrets", "select", "selectors", "signal", "socket"),
    *("sniffio", "ssl", "subprocess", "tempfile", "tenacity", "threading", "time", "trio"),
}
"""What no sans-I/O file imports: loops, networks, files, clocks, dice."""

Graph = dict[str, set[str]]


def rooms() -> dict[str, list[Path]]:
    """Return the files of each module; a subpackage is one module."""
    found: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        found.setdefault(name, []).append(path)
    return found


def imported(tree: ast.AST, path: Path) -> Iterator[str]:
    """Yield the full names a file imports when it runs; imports for types only do not count."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from imported(ast.Module(node.orelse, []), path)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _imported_from(node, path)
        else:
            yield from imported(node, path)


def _imported_from(node: ast.ImportFrom, path: Path) -> Iterator[str]:
    package = ["meeting_async", *path.relative_to(SOURCE).parts[:-1]]
    base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
    module = ".".join(filter(None, [base, node.module]))
    yield from (f"{module}.{alias.name}" for alias in node.names)


def targets(path: Path, known: set[str]) -> set[str]:
    """Return the modules of this package that a file imports."""
    found = set()
    for name in imported(ast.parse(path.read_text("utf-8")), path):
        top, _, rest = name.partition(".")
        if top == "meeting_async":
            module = rest.partition(".")[0]
            found.add(module if module in known else "__init__")
    return found


def import_graph() -> Graph:
    """Return which module imports which."""
    found = rooms()
    return {
        name: {other for path in paths for other in targets(path, set(found))} - {name}
        for name, paths in found.items()
    }


def upward(graph: Graph) -> set[tuple[str, str]]:
    """Return the arrows that point to a floor above,."""
    return {
        (name, other)
        for name, others in graph.items()
        for other in others
        if FLOORS[other] > FLOORS[name]
    }


GRAPH = import_graph()


def test_every_module_has_its_floor() -> None:
    """A new file says where it belongs."""
    assert set(GRAPH) == set(FLOORS)


def test_the_graph_is_read_right() -> None:
    """Some arrows that must be in it, and each way to write an import."""
    assert GRAPH["_signing"] == {"_records", "errors"}
    assert {"_wire", "errors"} <= GRAPH["_client"]
    assert {"errors", "_client", "_records"} <= GRAPH["__init__"]
    tree = ast.parse(
        "import a.b\nfrom . import _x\nfrom ._y import z\nfrom .. import _w\n"
        "def f():\n    from meeting_async._v import u\n"
        "if TYPE_CHECKING:\n    import t\nelse:\n    import s\n"
    )
    assert list(imported(tree, SOURCE / "cli" / "file.py")) == [
        *("a.b", "meeting_async.cli._x", "meeting_async.cli._y.z", "meeting_async._w"),
        *("meeting_async._v.u", "s"),
    ]


def test_imports_point_downwards() -> None:
    """No file imports from a floor above its own."""
    assert upward(GRAPH) == set()


@pytest.mark.parametrize(
    ("low", "high"), [("errors", "_wire"), ("_wire", "_rooms"), ("_rooms", "cli")]
)
def test_an_upward_arrow_is_noticed(low: str, high: str) -> None:
    """The check above can fail."""
    assert upward({**GRAPH, low: GRAPH[low] | {high}}) == {(low, high)}


def test_imports_make_no_circle() -> None:
    """Within a floor, too."""
    assert set(graphlib.TopologicalSorter(GRAPH).static_order()) == set(FLOORS)


def test_a_circle_is_noticed() -> None:
    """The check above can fail."""
    circle = {**GRAPH, "_wire": GRAPH["_wire"] | {"_verdicts"}}
    with pytest.raises(graphlib.CycleError):
        list(graphlib.TopologicalSorter(circle).static_order())


def test_the_development_server_shares_nothing_with_the_client() -> None:
    """One bug must not hide another: signatures, forms and replies are read by separate code."""
    assert GRAPH["testing"] == set()
    assert [name for name, others in GRAPH.items() if "testing" in others] in ([], ["cli"])


def foreign(name: str) -> set[str]:
    """Return the packages outside this one that a module imports."""
    paths = rooms()[name]
    return {
        full.partition(".")[0]
        for path in paths
        for full in imported(ast.parse(path.read_text("utf-8")), path)
    } - {"meeting_async"}


@pytest.mark.parametrize("name", sorted(SANS_IO))
def test_floors_0_and_1_do_no_io(name: str) -> None:
    """No loop, no network, no file, no clock, no dice: all of that is passed in."""
    assert FLOORS[name] <= 1
    assert foreign(name) & IO == set()


def test_every_low_module_is_sans_io() -> None:
    """The list above is complete."""
    assert {name for name, floor in FLOORS.items() if floor <= 1} == SANS_IO


def test_httpx_is_the_transports_business() -> None:
    """Nobody else of the client knows it, nor what it is made of."""
    users = {name for name in FLOORS if foreign(name) & {"httpx", "httpcore", "h11"}}
    assert users - {"cli", "testing"} == {"_failures", "_stack", "_transport"}


def test_foreign_packages_are_declared() -> None:
    """What the core imports are the standard library and the declared dependencies."""
    declared = {"anyio", "attrs", "httpx", "tenacity"}
    provided = {"attr", "h11", "httpcore"}  # by attrs and by httpx
    core = set(FLOORS) - {"_redis", "cli", "httpx2", "redis", "testing"}
    used = {package for name in core for package in foreign(name)}
    assert used - set(sys.stdlib_module_names) <= declared | provided


# --- what the package shows ----------------------------------------------------------------------


def test_all_is_a_sorted_table_of_contents() -> None:
    """``__all__`` has every public name once, and nothing that is not there."""
    names = meeting_async.__all__
    assert names == sorted(names)
    assert len(names) == len(set(names))
    for name in names:
        assert getattr(meeting_async, name) is not None


def test_all_equals_the_public_names() -> None:
    """In a fresh interpreter, in which nobody has imported the extras."""
    code = "import meeting_async as m; print(*sorted(n for n in vars(m) if n[0] != '_'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [*done.stdout.split(), "__version__"] == [
        *(name for name in meeting_async.__all__ if name != "__version__"),
        "__version__",
    ]


def test_everything_can_be_imported_with_a_star() -> None:
    """The lazy version included."""
    found: dict[str, object] = {}
    exec("from meeting_async import *", found)
    assert set(meeting_async.__all__) <= set(found)


def test_unknown_names_are_unknown() -> None:
    """A lazy version must not make every name look lazy."""
    with pytest.raises(AttributeError, match="'meeting_async' has no attribute 'MeetingServer'"):
        _ = meeting_async.MeetingServer


def project() -> dict[str, object]:
    """Return the project's table."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert isinstance(table, dict)
    return table


def test_version_is_the_projects() -> None:
    """One number, in one place."""
    assert meeting_async.__version__ == project()["version"]


def test_runtime_dependencies_are_the_four() -> None:
    """Everything else is an extra."""
    dependencies = project()["dependencies"]
    assert isinstance(dependencies, list)
    assert [str(line).partition(">")[0] for line in dependencies] == [
        *("anyio", "attrs", "httpx", "tenacity")
    ]


def test_types_are_shipped() -> None:
    """PEP 561."""
    spec = importlib.util.find_spec("meeting_async")
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").is_file()


# --- which file is tested where ------------------------------------------------------------------


def test_every_module_has_its_own_tests() -> None:
    """``tests/test_x.py`` covers ``_x.py`` by itself."""
    core = {name for name, floor in FLOORS.items() if floor < 4}
    wanted = {f"test_{name.removeprefix('_')}.py" for name in core}
    there = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    assert wanted - there == set()
