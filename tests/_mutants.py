"""Mutants of a module, and a process that runs a set of tests on each of them.

A mutant differs from the module in one place: a comparison is flipped, ``min`` stands for ``max``,
a member of an enumeration for another. Run as a program with a folder that holds a copy of the
package (``src``) and of the tests (``tests``)::

    python tests/_mutants.py FOLDER MODULE TEST_FILE [TEST_FILE ...]

it reads mutants as JSON from its standard input, one to a line, puts each in the module's place,
runs the tests until one fails, and prints whether one did.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import attrs
import pytest

FLIPS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""Each comparison with what it can be mistaken for: its neighbour at the edge, and its opposite."""


@attrs.frozen
class Mutant:
    """A module with one place changed."""

    line: int
    standing: str
    """What stands there."""
    change: str
    """What stands there instead."""
    _write: Callable[[], str] = attrs.field(repr=False)

    @property
    def source(self) -> str:
        """The module with the change."""
        return self._write()

    @property
    def name(self) -> str:
        """What becomes of what, wherever it stands."""
        return f"{self.standing} -> {self.change}"


Change = tuple[str, Callable[[ast.AST], None]]
"""What shall stand there, and how to get there from the node."""


def comparisons(node: ast.AST) -> Iterator[Change]:
    """Flip the operators of a comparison, and exchange ``min`` with ``max``."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for flip in FLIPS[type(operator)]:
                apply = _set_operator(place, flip)
                mutated = copy.deepcopy(node)
                apply(mutated)
                yield ast.unparse(mutated), apply
    other = {"min": "max", "max": "min"}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in other:
        yield other[node.func.id], _set_function(other[node.func.id])


def members(enumeration: str, names: list[str]) -> Callable[[ast.AST], Iterator[Change]]:
    """Put every other member in the place of each member of an enumeration."""

    def changes(node: ast.AST) -> Iterator[Change]:
        if not isinstance(node, ast.Attribute) or ast.unparse(node.value) != enumeration:
            return
        for name in names:
            if name != node.attr:
                yield name, _set_member(name)

    return changes


def _set_operator(place: int, flip: type[ast.cmpop]) -> Callable[[ast.AST], None]:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.Compare)
        node.ops[place] = flip()

    return change


def _set_function(name: str) -> Callable[[ast.AST], None]:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.Call)
        node.func = ast.Name(name, ast.Load())

    return change


def _set_member(name: str) -> Callable[[ast.AST], None]:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.Attribute)
        node.attr = name

    return change


def mutants(
    source: str, places: set[str], changes: Callable[[ast.AST], Iterator[Change]]
) -> list[Mutant]:
    """Make every mutant of a module that differs within one of its functions, classes or tables.

    Keys of a table are left alone.
    """
    tree, made = ast.parse(source), []
    for number, node in enumerate(_nodes(tree, places)):
        for change, apply in changes(node):
            write = partial(_written, source, places, number, apply)
            made.append(Mutant(getattr(node, "lineno", 0), ast.unparse(node), change, write))
    return made


def _written(source: str, places: set[str], number: int, apply: Callable[[ast.AST], None]) -> str:
    tree = ast.parse(source)
    apply(list(_nodes(tree, places))[number])
    return ast.unparse(tree)


def _nodes(tree: ast.Module, places: set[str]) -> Iterator[ast.AST]:
    for statement in tree.body:
        if _name(statement) in places:
            value = getattr(statement, "value", None)
            roots = value.values if isinstance(value, ast.Dict) else [statement]
            for root in roots:
                yield from ast.walk(root)


def _name(statement: ast.stmt) -> str:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return statement.name
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    target = statement.target if isinstance(statement, ast.AnnAssign) else target
    return target.id if isinstance(target, ast.Name) else ""


# --- the process ---------------------------------------------------------------------------------


def notices(tests: list[str]) -> bool:
    """Run tests on the package as it is now, until one fails; tell whether one did."""
    own = ("meeting_async", "test_", "_properties")
    for name in [name for name in sys.modules if name.startswith(own)]:
        del sys.modules[name]
    importlib.invalidate_caches()
    settings = ["-x", "-q", "--noconftest", "--assert=plain", "--timeout=20", "--tb=no"]
    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main([*settings, "-p", "no:cacheprovider", "-p", "no:randomly", *tests])
    return code != pytest.ExitCode.OK


def main(folder: str, module: str, *names: str) -> None:
    """Read mutants, answer each with ``true`` if a test notices it."""
    path = Path(folder, "src", "meeting_async", f"{module}.py")
    sys.path[:0] = [str(Path(folder, "src")), str(Path(folder, "tests"))]
    sys.dont_write_bytecode = True  # a mutant must not be taken for the one before it
    for line in sys.stdin:
        path.write_text(json.loads(line), "utf-8")
        tests = [str(Path(folder, "tests", name)) for name in names]
        print(json.dumps(notices(tests)), flush=True)  # noqa: T201 - that is its answer


if __name__ == "__main__":
    main(*sys.argv[1:])
