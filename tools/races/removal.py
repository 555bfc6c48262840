"""Removes one call from the running program. Its function gets new code without the call."""

from __future__ import annotations

import ast
import builtins
import gc
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from races.sites import ROOT, Site
from weft import _core

UNWAITED = "_weft_test_unwaited"
WAITS = ("event_synchronize", "stream_synchronize", "ctx_synchronize")


def remove(site: Site) -> None:
    """Remove the call from this process. If its value is used, the call is made, but waits for nothing."""
    path = ROOT / site.path
    tree = _Without(site).visit(ast.parse(path.read_text()))
    module = compile(ast.fix_missing_locations(tree), str(path), "exec")
    (code,) = _codes(module, site.function)
    changed = 0
    for function in gc.get_objects():
        if type(function) is not FunctionType or function.__code__.co_qualname != site.function:
            continue
        if function.__code__.co_filename == str(path):
            function.__code__ = code
            changed += 1
    assert changed, f"no function is {site.function} of {path}"
    setattr(builtins, UNWAITED, _unwaited)


class _Without(ast.NodeTransformer):
    """Removes one call from a module's syntax tree."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def _is_it(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and (node.lineno, node.col_offset, ast.unparse(node)) == (
            self._site.line,
            self._site.column,
            self._site.text,
        )

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if self._is_it(node.value) else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not self._is_it(node):
            return self.generic_visit(node)
        nothing = ast.arguments([], [], None, [], [], None, [])
        return ast.Call(ast.Name(UNWAITED, ast.Load()), [ast.Lambda(nothing, node)], [])


def _codes(code: CodeType, qualname: str) -> list[CodeType]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    found = [each for each in inner if each.co_qualname == qualname]
    return found + [each for outer in inner for each in _codes(outer, qualname)]


def _unwaited(call: Callable[[], Any]) -> Any:
    """Run `call()` so that it waits for nothing on this thread."""
    mine, kept = threading.get_ident(), {name: getattr(_core, name) for name in WAITS}

    def unless_mine(name: str) -> Callable[..., Any]:
        return lambda *args: None if threading.get_ident() == mine else kept[name](*args)

    for name in WAITS:
        setattr(_core, name, unless_mine(name))
    try:
        return call()
    finally:
        for name in WAITS:
            setattr(_core, name, kept[name])
