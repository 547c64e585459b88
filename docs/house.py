"""Draw the house from its imports: ``python docs/house.py`` puts it into ``docs/contributing.md``.

A room is a module or folder of ``src/meeting_async``. It stands one floor above the highest room
that it imports when it runs; imports inside functions and for type checkers do not count. What a
room is for is the first line of its docstring.
"""

from __future__ import annotations

import ast
import itertools
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

PAGE = Path(__file__).parent / "contributing.md"
FENCE = "```text\n"
"""The first such block of the page is the picture."""
PACKAGE = Path(__file__).parent.parent / "src" / "meeting_async"
PACKAGE_ITSELF = "(package)"
WIDTH = 90
"""Columns of the picture."""


def main() -> None:
    """Put the picture into the page."""
    page = PAGE.read_text("utf-8")
    head, fence, rest = page.partition(FENCE)
    PAGE.write_text(head + fence + picture() + rest[rest.index("```\n") :], "utf-8")


def picture() -> str:
    """Return the rooms, floor by floor, with the highest floor first."""
    purposes = {_room(path): _purpose(path) for path in _files()}
    floors = _floors(_imports(purposes.keys()))
    rows = itertools.groupby(sorted(floors, key=lambda room: (-floors[room], room)), floors.get)
    return "\n".join(_floor(number, rooms, purposes) for number, rooms in rows)


def _floor(number: int | None, rooms: Iterable[str], purposes: Mapping[str, str]) -> str:
    lines = [f"{room:14} {purposes[room]}" for room in rooms]
    short = [textwrap.shorten(line, WIDTH, placeholder=" …") for line in lines]
    padded = [line.replace(" ", " " * (15 - line.index(" ")), 1) for line in short]
    return "".join(f"{'' if index else number:>2}  {line}\n" for index, line in enumerate(padded))


def _files() -> Iterator[Path]:
    """Yield the file that stands for each room: a module, or the first one of a folder."""
    for path in sorted(PACKAGE.iterdir()):
        if (path / "__init__.py").is_file():
            yield path / "__init__.py"
        elif path.suffix == ".py":
            yield path


def _room(path: Path) -> str:
    return (
        path.relative_to(PACKAGE).parts[0].removesuffix(".py").replace("__init__", PACKAGE_ITSELF)
    )


def _purpose(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return docstring.partition("\n")[0].replace("``", "")


def _imports(rooms: Collection[str]) -> dict[str, set[str]]:
    """Return which rooms each room imports; a name of the package itself is one of its room."""
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for path in PACKAGE.rglob("*.py"):
        names = set(_names(ast.parse(path.read_text("utf-8"))))
        targets = {name if name in rooms else PACKAGE_ITSELF for name in names}
        found[_room(path)] |= targets - {_room(path)}
    return found


def _names(node: ast.AST) -> Iterator[str]:
    """Yield what a file imports from the package; imports inside functions do not count."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.ImportFrom) and child.module == "meeting_async":
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and (child.module or "").startswith(
            "meeting_async."
        ):
            yield str(child.module).split(".")[1]
        yield from _names(child)


def _floors(imports: dict[str, set[str]]) -> dict[str, int]:
    floors: dict[str, int] = {}

    def floor(room: str) -> int:
        if room not in floors:
            floors[room] = 1 + max((floor(target) for target in imports[room]), default=-1)
        return floors[room]

    for room in imports:
        floor(room)
    return floors


if __name__ == "__main__":
    main()
