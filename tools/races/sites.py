"""Finds the calls in weft that wait, or that record an event to wait for.

The code is searched, so that new calls are included. A call counts by its name: those in `BASE`, and those of functions
that only make such calls, such as `GrammarStream.join`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import weft

ROOT = Path(weft.__file__).parent
PACKAGES = ("engine", "guided", "runtime")

BASE = frozenset(
    {
        *("record", "wait", "synchronize", "publish", "commit_owed"),
        *("event_record", "stream_wait_event"),
        *("event_synchronize", "stream_synchronize", "ctx_synchronize"),
    }
)

NOT_HERE: Mapping[str, str] = {
    "runtime/cuda.py": "runs on CUDA alone",
    "runtime/cuda_capture.py": "runs on CUDA alone",
}
"""Files with calls that a check on a CPU can't reach, and the reason."""

NOT_SEEN: Mapping[str, str] = dict.fromkeys(
    ("GrammarStream.commit_ahead", "GrammarStream.extend_ahead"),
    "offers work to kernel threads, which take it only while they are awake: no schedule controls that",
)
"""Functions with calls whose removal no schedule shows, and the reason."""

CLOSING = frozenset({"close"})
"""Functions that close objects. Each wait in them is a site of its own."""


@dataclass(frozen=True)
class Site:
    """A call. `function` is the qualified name of the outermost function that contains it. If `is_statement`, its value
    is unused."""

    path: str
    function: str
    line: int
    column: int
    text: str
    is_statement: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}: {self.text}"


def sites() -> list[Site]:
    """Return all calls in the order of the code."""
    trees = parsed()
    names = ordering_names(trees.values())
    found = [site for path, tree in trees.items() for site in _sites_of(path, tree, names)]
    found = [site for site in found if site.function not in NOT_SEEN]
    return sorted(found, key=lambda site: (site.path, site.line, site.column))


def parsed() -> dict[str, ast.Module]:
    """Return the modules' syntax trees by path in the package."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for path in paths
        if str(path.relative_to(ROOT)) not in NOT_HERE
    }


def ordering_names(trees: Iterator[ast.Module] | object) -> frozenset[str]:
    """Return `BASE` and the names of functions that only make calls of such names."""
    modules: list[ast.Module] = list(trees)  # type: ignore[call-overload]
    functions = [n for tree in modules for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    names = BASE
    while True:
        more = {f.name for f in functions if _only_orders(f, names)} - CLOSING
        if more <= names:
            return names
        names |= more


def is_ordering(node: ast.AST, names: frozenset[str]) -> bool:
    """Whether a node is a call that waits or records. `join` of a string constant is not one."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id in names
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in names:
        return False
    return not isinstance(node.func.value, ast.Constant)


def _only_orders(function: ast.FunctionDef, names: frozenset[str]) -> bool:
    body = [
        statement
        for statement in function.body
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    ]
    return bool(body) and all(
        isinstance(statement, ast.Expr | ast.Return)
        and statement.value is not None
        and is_ordering(statement.value, names)
        for statement in body
    )


def _sites_of(path: str, tree: ast.Module, names: frozenset[str]) -> Iterator[Site]:
    def visit(node: ast.AST, scope: tuple[str, ...], in_function: bool) -> Iterator[Site]:
        for child in ast.iter_child_nodes(node):
            inner, is_inside = scope, in_function
            if isinstance(child, ast.ClassDef | ast.FunctionDef) and not in_function:
                inner, is_inside = (*scope, child.name), isinstance(child, ast.FunctionDef)
            if in_function and isinstance(child, ast.Call) and is_ordering(child, names):
                is_statement = isinstance(node, ast.Expr)
                where = child.lineno, child.col_offset
                yield Site(path, ".".join(scope), *where, ast.unparse(child), is_statement)
            yield from visit(child, inner, is_inside)

    return visit(tree, (), False)
