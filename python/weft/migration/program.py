"""Checks a whole program, statement by statement."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from weft.errors import InputError
from weft.migration import elsewhere, ours
from weft.migration.api import load
from weft.migration.calls import Said
from weft.migration.findings import Finding, FindingKind
from weft.migration.infer import Reader
from weft.migration.members import Known
from weft.migration.scope import Scope
from weft.migration.values import Class, Constant, Defined, Made, Module, Value, element_of, one_of
from weft.migration.verdict import State, judge_class

_ROUNDS = 2
"""The number of passes before the one whose findings count. They collect return values and attributes, which a program
may define after their use."""


def check_file(path: str | Path) -> list[Finding]:
    """Return the findings in a program's file, by line. Raises `InputError` for a file that can't be read or parsed."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} can't be read: {error}; give a Python file in UTF-8") from error
    return check_source(text, str(path))


def check_source(text: str, name: str = "<text>") -> list[Finding]:
    """Return the findings in a program's text, by line. `name` is the file name in findings and errors. Raises
    `InputError` for text that can't be parsed."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        raise InputError(f"{name}:{line}: no Python that can be parsed: {error}") from error
    known = Known()
    try:
        for _ in range(_ROUNDS):
            Program(known).read_all(tree)
        last = Program(known)
        last.read_all(tree)
    except RecursionError as error:
        raise InputError(f"{name}: expressions within expressions, too many to read") from error
    return sorted({_finding(name, text, said) for said in last.said})


def _finding(file: str, text: str, said: Said) -> Finding:
    node, kind, name, words = said
    return Finding(file, getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1, kind, name, words)


class Program:
    """Reads the statements of a program in the order of execution. Function bodies are read after all module code."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.said: list[Said] = []
        self.reader = Reader(known, self.said.append)
        self._later: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Scope, str | None]] = []
        self._on_the_way: list[ast.alias] = []

    def read_all(self, tree: ast.Module) -> None:
        """Read the whole program."""
        self.block(tree.body, Scope())
        while self._later:
            self._body(*self._later.pop(0))
        # These are imports of parent packages. Only now it is known whether the program reaches the API through them.
        for alias in self._on_the_way:
            if self.reader.was_reached:
                text = f"write: {elsewhere.instead_of_import(alias.name, alias.asname)}"
                self.said.append((alias, FindingKind.IMPORT, alias.name, text))
            elif alias.name == elsewhere.BINDINGS or not self.said:
                self.said.append((alias, FindingKind.ELSEWHERE, alias.name, elsewhere.why_unused(alias.name)))

    def block(self, body: Sequence[ast.stmt], scope: Scope, within: str | None = None) -> None:
        """Read statements in order. `within` is "Class.function" for the body of a function, so that its return values
        are recorded."""
        for statement in body:
            self._statement(statement, scope, within)

    def _statement(self, node: ast.stmt, scope: Scope, within: str | None) -> None:
        reader = self.reader
        match node:
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, scope)
            case ast.ClassDef():
                self._class(node, scope)
            case ast.Assign(targets=targets, value=value):
                held = reader.read(value, scope)
                for target in targets:
                    reader.bind(target, held, scope)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                said = reader.annotated(annotation, scope)
                held = reader.read(value, scope)
                reader.bind(target, held if said is None or isinstance(held, Constant) else said, scope)
            case ast.AugAssign(target=target, value=value):
                reader.read(value, scope)
                if not isinstance(target, ast.Name):
                    reader.bind(target, None, scope)
            case ast.For() | ast.AsyncFor():
                element = element_of(reader.read(node.iter, scope))
                reader.bind(node.target, element, scope)
                self._ways([node.body, node.orelse], scope, within)
            case ast.While():
                reader.read(node.test, scope)
                self._ways([node.body, node.orelse], scope, within)
            case ast.If():
                reader.read(node.test, scope)
                self._ways([node.body, node.orelse], scope, within)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    held = reader.read(item.context_expr, scope)
                    if item.optional_vars is not None:
                        reader.bind(item.optional_vars, held, scope)
                self.block(node.body, scope, within)
            case ast.Try() | ast.TryStar():
                self._ways([[*node.body, *node.orelse], *(one.body for one in node.handlers)], scope, within)
                self.block(node.finalbody, scope, within)
            case ast.Match():
                reader.read(node.subject, scope)
                self._ways([one.body for one in node.cases], scope, within)
            case ast.Return(value=value):
                held = reader.read(value, scope)
                if within is not None:
                    self._returns(within, held)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        reader.read(child, scope)

    def _ways(self, bodies: Sequence[Sequence[ast.stmt]], scope: Scope, within: str | None) -> None:
        # Each branch starts with the names from before the statement. Afterwards the branches' names are merged.
        before, ways = dict(scope.names), []
        for body in bodies:
            scope.names = dict(before)
            self.block(body, scope, within)
            ways.append(scope.names)
        scope.names = {}
        scope.after(ways)

    # -- functions and classes

    def _function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, owner: str | None = None
    ) -> None:
        for decorator in node.decorator_list:
            self.reader.read(decorator, scope)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            self.reader.read(default, scope)
        if node.returns is not None:
            said = self.reader.annotated(node.returns, scope)
            if said is not None:
                self.known.returned[Defined(node.name, owner)] = said
        scope.bind(node.name, Defined(node.name, owner))
        self._later.append((node, scope, owner))

    def _body(self, node: ast.FunctionDef | ast.AsyncFunctionDef, around: Scope, owner: str | None) -> None:
        scope = Scope(around)
        taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for one in (node.args.vararg, node.args.kwarg):
            if one is not None:
                scope.bind(one.arg, None)
        for one in taken:
            scope.bind(one.arg, self.reader.annotated(one.annotation, scope))
        is_static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in node.decorator_list)
        if owner is not None and taken and not is_static:
            scope.bind(taken[0].arg, Made(owner))
        self.block(node.body, scope, f"{owner or ''}.{node.name}")

    def _returns(self, within: str, held: Value | None) -> None:
        owner, _, name = within.partition(".")
        key = Defined(name, owner or None)
        known = self.known.returned
        known[key] = one_of(known[key], held) if key in known else held

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        for base in (*node.bases, *(one.value for one in node.keywords), *node.decorator_list):
            self.reader.read(base, scope)
        inner = Scope(scope, is_class=True)
        functions = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        self.known.methods[node.name] = {one.name for one in functions if not _is_property(one)}
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._function(statement, inner, node.name)
            else:
                self._statement(statement, inner, None)
        for name, value in inner.names.items():
            if not isinstance(value, Defined):
                self.known.held.setdefault((node.name, name), value)
        for one in functions:
            if _is_property(one):
                returned = self.known.returned.get(Defined(one.name, node.name))
                self.known.held[(node.name, one.name)] = returned
        scope.bind(node.name, Defined(node.name, is_class=True))

    # -- imports

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for one in node.names:
                self._import_module(one, scope)
        elif node.level == 0 and node.module is not None:
            self._import_from(node, node.module, scope)
        else:
            for one in node.names:
                scope.bind(one.asname or one.name, None)

    def _import_module(self, alias: ast.alias, scope: Scope) -> None:
        path, root = alias.name, alias.name.split(".")[0]
        if root not in ("tensorrt_llm", "weft"):
            self._refuse_vllm(alias, path)
            scope.bind(alias.asname or root, None)
            return
        if elsewhere.is_theirs(path):
            if elsewhere.is_on_the_way(path):
                self._on_the_way.append(alias)
            elif elsewhere.is_executor(path):
                text = f"write: {elsewhere.instead_of_import(path, alias.asname)}"
                self.said.append((alias, FindingKind.IMPORT, path, text))
            else:
                self.said.append((alias, FindingKind.ELSEWHERE, path, elsewhere.why_elsewhere(path, "")))
        scope.bind(alias.asname or root, Module(path if alias.asname else root))

    def _import_from(self, node: ast.ImportFrom, path: str, scope: Scope) -> None:
        if path.split(".")[0] not in ("tensorrt_llm", "weft"):
            self._refuse_vllm(node, path)
            for one in node.names:
                scope.bind(one.asname or one.name, None)
            return
        if elsewhere.is_executor(path) and elsewhere.is_theirs(path):
            inner = elsewhere.within(path)
            names = ", ".join(one.name + (f" as {one.asname}" if one.asname else "") for one in node.names)
            text = f"write: from {elsewhere.OURS}{'.' + inner if inner else ''} import {names}"
            self.said.append((node, FindingKind.IMPORT, path, text))
        for one in node.names:
            if one.name == "*":
                self._import_all(path, scope)
                continue
            if (
                elsewhere.is_theirs(path)
                and elsewhere.is_executor(f"{path}.{one.name}")
                and not elsewhere.is_executor(path)
            ):
                alias = one.asname or one.name
                said = " as " + alias if alias != "executor" else ""
                self.said.append((one, FindingKind.IMPORT, path, f"write: from weft import executor{said}"))
            scope.bind(one.asname or one.name, self.reader.in_module(Module(path), one.name, one))

    def _refuse_vllm(self, node: ast.alias | ast.ImportFrom, path: str) -> None:
        # Without a finding, the last line for a program of vLLM is "nothing to change".
        if path.split(".")[0] == "vllm":
            text = "this command does not read vLLM's names; docs/from-vllm.md lists weft's names for them"
            self.said.append((node, FindingKind.ELSEWHERE, path, text))

    def _import_all(self, path: str, scope: Scope) -> None:
        if not elsewhere.is_executor(path):
            return
        is_ours = not elsewhere.is_theirs(path)
        for name in (*load().classes, *ours.classes()):
            if "." not in name and (judge_class(name).state is not State.OWN or is_ours):
                scope.bind(name, Class(name, is_ours))
                self.reader.starred[name] = Module(path)


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        getattr(one, "attr", getattr(one, "id", "")).endswith("property") for one in node.decorator_list
    )
