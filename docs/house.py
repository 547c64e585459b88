"""Draw the house from its imports: ``python docs/house.py`` puts it into ``docs/contributing.md``.

A part is a module or folder of ``src/meeting_async``. It stands one floor above the highest part
that it imports when it runs; imports inside functions and for type checkers do not count. What a
part is for is the first line of its docstring, up to what explains or adds to it.
"""

from __future__ import annotations

import ast
import itertools
import re
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
    """Return the parts, floor by floor, with the highest floor first."""
    purposes = {_part(path): _purpose(path) for path in _files()}
    floors = _floors(_imports(purposes.keys()))
    rows = itertools.groupby(sorted(floors, key=lambda part: (-floors[part], part)), floors.get)
    return "\n".join(_floor(number, parts, purposes) for number, parts in rows)


def _floor(number: int | None, parts: Iterable[str], purposes: Mapping[str, str]) -> str:
    lines = [f"{part:14} {purposes[part]}" for part in parts]
    short = [textwrap.shorten(line, WIDTH, placeholder=" …") for line in lines]
    padded = [line.replace(" ", " " * (15 - line.index(" ")), 1) for line in short]
    return "".join(f"{'' if index else number:>2}  {line}\n" for index, line in enumerate(padded))


def _files() -> Iterator[Path]:
    """Yield the file that stands for each part: a module, or the first one of a folder."""
    for path in sorted(PACKAGE.iterdir()):
        if (path / "__init__.py").is_file():
            yield path / "__init__.py"
        elif path.suffix == ".py":
            yield path


def _part(path: Path) -> str:
    return (
        path.relative_to(PACKAGE).parts[0].removesuffix(".py").replace("__init__", PACKAGE_ITSELF)
    )


def _purpose(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    line = docstring.partition("\n")[0].replace("``", "")
    return re.split(r"[.:](?: |$)|, (?:and|one|so|through) ", line)[0]


def _imports(parts: Collection[str]) -> dict[str, set[str]]:
    """Return which parts each part imports; a name of the package itself is one of its part."""
    found: dict[str, set[str]] = {part: set() for part in parts}
    for path in PACKAGE.rglob("*.py"):
        names = set(_names(ast.parse(path.read_text("utf-8"))))
        targets = {name if name in parts else PACKAGE_ITSELF for name in names}
        found[_part(path)] |= targets - {_part(path)}
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

    def floor(part: str) -> int:
        if part not in floors:
            floors[part] = 1 + max((floor(target) for target in imports[part]), default=-1)
        return floors[part]

    for part in imports:
        floor(part)
    return floors


if __name__ == "__main__":
    main()
