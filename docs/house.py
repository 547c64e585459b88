"""Draw the house from its imports: ``python docs/house.py`` puts it into ``docs/contributing.md``.

A part is a module or folder of ``src/meeting_async``. It stands one floor above the highest part
that it imports when it runs; imports inside functions and for type checkers do not count.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Iterator
from pathlib import Path

PAGE = Path(__file__).parent / "contributing.md"
FENCE = "```text\n"
"""The first such block of the page is the picture."""
PACKAGE = Path(__file__).parent.parent / "src" / "meeting_async"
PACKAGE_ITSELF = "(package)"


def main() -> None:
    """Put the picture into the page."""
    page = PAGE.read_text("utf-8")
    head, fence, rest = page.partition(FENCE)
    PAGE.write_text(head + fence + picture() + rest[rest.index("```\n") :], "utf-8")


def picture() -> str:
    """Return the parts, floor by floor, with the highest floor first."""
    floors = _floors(_imports({_part(path) for path in _files()}))
    rows = itertools.groupby(sorted(floors, key=lambda part: (-floors[part], part)), floors.get)
    return "".join(f"{number:>2}  {', '.join(parts)}\n" for number, parts in rows)


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
