"""Infers the value of each expression of a program, and reports findings about the names in it."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from weft.migration import ours
from weft.migration.api import load
from weft.migration.arguments import Argument, Call, form_of
from weft.migration.calls import about_constructor, about_method
from weft.migration.members import Members
from weft.migration.python_calls import COPIES, changed, of_builtin, of_method
from weft.migration.scope import Scope
from weft.migration.values import (
    CONTAINERS,
    Class,
    Constant,
    Defined,
    Function,
    Instance,
    Keywords,
    Listed,
    Made,
    Method,
    Tupled,
    Value,
    doubted,
    element_of,
    of_type,
    one_of,
    read_type,
)


class Reader(Members):
    """Infers the values of expressions in a scope."""

    # -- expressions

    def read(self, node: ast.expr | None, scope: Scope) -> Value | None:
        """Return the value of the expression, or None if it is unknown."""
        if node is None:
            return None
        reading = getattr(self, f"_{type(node).__name__.lower()}", None)
        if reading is not None:
            value: Value | None = reading(node, scope)
            return value
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.read(child, scope)
        return None

    def _name(self, node: ast.Name, scope: Scope) -> Value | None:
        held = scope.find(node.id)
        if isinstance(held, Class) and node.id in self.starred:
            self.in_module(self.starred[node.id], node.id, node)
        return held

    def _constant(self, node: ast.Constant, scope: Scope) -> Value | None:
        return Constant(node.value)

    def _unaryop(self, node: ast.UnaryOp, scope: Scope) -> Value | None:
        value = self.read(node.operand, scope)
        if (
            isinstance(node.op, ast.USub)
            and isinstance(value, Constant)
            and isinstance(value.value, int | float)
        ):
            return Constant(-value.value)
        return None

    def _await(self, node: ast.Await, scope: Scope) -> Value | None:
        return self.read(node.value, scope)

    def _starred(self, node: ast.Starred, scope: Scope) -> Value | None:
        return self.read(node.value, scope)

    def _namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Value | None:
        value = self.read(node.value, scope)
        scope.bind(node.target.id, value)
        return value

    def _ifexp(self, node: ast.IfExp, scope: Scope) -> Value | None:
        self.read(node.test, scope)
        return one_of(self.read(node.body, scope), self.read(node.orelse, scope))

    def _boolop(self, node: ast.BoolOp, scope: Scope) -> Value | None:
        held = [self.read(one, scope) for one in node.values]
        return one_of(held[0], held[1]) if len(held) == 2 else None

    def _list(self, node: ast.List | ast.Set, scope: Scope) -> Value | None:
        held = [self.read(one, scope) for one in node.elts]
        whole = Tupled(tuple(held))
        return whole if held and all(isinstance(one, Constant) for one in held) else Listed(element_of(whole))

    _set = _list

    def _tuple(self, node: ast.Tuple, scope: Scope) -> Value | None:
        return Tupled(tuple(self.read(one, scope) for one in node.elts))

    def _dict(self, node: ast.Dict, scope: Scope) -> Value | None:
        entries: list[tuple[str, ast.AST, Value | None]] = []
        is_whole = True
        for key, value in zip(node.keys, node.values, strict=True):
            held = self.read(value, scope)
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                entries.append((key.value, key, held))
            elif key is None and isinstance(held, Keywords):
                entries += held.entries
                is_whole = is_whole and held.is_whole
            else:
                self.read(key, scope)
                is_whole = False
        return Keywords(tuple(entries), is_whole)

    def _listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, scope: Scope) -> Value | None:
        return Listed(self.read(node.elt, self._through(node.generators, scope)))

    _setcomp = _generatorexp = _listcomp

    def _dictcomp(self, node: ast.DictComp, scope: Scope) -> Value | None:
        inner = self._through(node.generators, scope)
        self.read(node.key, inner)
        self.read(node.value, inner)
        return None

    def _through(self, generators: Iterable[ast.comprehension], scope: Scope) -> Scope:
        inner = Scope(scope)
        for one in generators:
            self.bind(one.target, element_of(self.read(one.iter, inner)), inner)
            for test in one.ifs:
                self.read(test, inner)
        return inner

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Value | None:
        inner = Scope(scope)
        for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            inner.bind(one.arg, None)
        self.read(node.body, inner)
        return None

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Value | None:
        held, at = self.read(node.value, scope), self.read(node.slice, scope)
        if isinstance(node.slice, ast.Slice):
            return held
        if isinstance(held, Tupled) and isinstance(at, Constant) and isinstance(at.value, int):
            return held.parts[at.value] if -len(held.parts) <= at.value < len(held.parts) else None
        if isinstance(held, Class):  # Enumeration["NAME"]
            return Instance(held.name)
        return element_of(held)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Value | None:
        return self.attribute(self.read(node.value, scope), node.attr, node)

    # -- assignments

    def bind(self, target: ast.expr, value: Value | None, scope: Scope) -> None:
        """Bind the target of an assignment to the value."""
        if isinstance(target, ast.Name):
            scope.bind(target.id, value)
        elif isinstance(target, ast.Attribute):
            self.write(self.read(target.value, scope), target.attr, target, value)
        elif isinstance(target, ast.Tuple | ast.List):
            for at, one in enumerate(target.elts):
                known = isinstance(value, Tupled) and at < len(value.parts)
                part = value.parts[at] if known and isinstance(value, Tupled) else element_of(value)
                self.bind(one, part, scope)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, None, scope)
        elif isinstance(target, ast.Subscript):
            self._into(target, value, scope)
        else:
            self.read(target, scope)

    def _into(self, target: ast.Subscript, value: Value | None, scope: Scope) -> None:
        held, at = self.read(target.value, scope), self.read(target.slice, scope)
        if not isinstance(target.value, ast.Name) or not isinstance(held, Keywords):
            return
        if isinstance(at, Constant) and isinstance(at.value, str):
            entries = (*held.entries, (at.value, target.slice, value))
            scope.bind(target.value.id, Keywords(entries, held.is_whole))

    # -- calls

    def _call(self, node: ast.Call, scope: Scope) -> Value | None:
        if isinstance(node.func, ast.Name) and scope.find(node.func.id) is None:
            call = self.call_of(node, scope)
            return self._by_text(node.func.id, call) or of_builtin(node.func.id, call)
        held = self.read(node.func.value, scope) if isinstance(node.func, ast.Attribute) else None
        if isinstance(node.func, ast.Attribute):
            called = self.attribute(held, node.func.attr, node.func)
        else:
            called = self.read(node.func, scope)
        call = self.call_of(node, scope)
        if isinstance(called, Class):
            return self._made(called, call)
        if isinstance(called, Method):
            return self._given(called, call)
        if isinstance(called, Function):
            return read_type(load().functions[called.name].returns or "")
        if isinstance(called, Defined):
            return Made(called.name) if called.is_class else self.known.returned.get(called)
        if isinstance(node.func, ast.Attribute):
            after = changed(node.func.attr, held, call)
            if after is not None and isinstance(node.func.value, ast.Name):
                scope.bind(node.func.value.id, after)
            return of_method(node.func.attr, held, call)
        return None

    def call_of(self, node: ast.Call, scope: Scope) -> Call:
        """Read the arguments of the call. Known dicts after `**` are unpacked. After a `*`, positional arguments are
        unknown."""
        arguments, is_open = [], False
        for one in node.args:
            value = self.read(one, scope)
            is_open = is_open or isinstance(one, ast.Starred)
            if not is_open:
                arguments.append(Argument(one, None, value))
        for keyword in node.keywords:
            value = self.read(keyword.value, scope)
            if keyword.arg is not None:
                arguments.append(Argument(keyword, keyword.arg, value))
            elif isinstance(value, Keywords):
                arguments += [Argument(at, name, held) for name, at, held in value.entries]
                is_open = is_open or not value.is_whole
            else:
                is_open = True
        return Call(node, tuple(arguments), is_open)

    def _made(self, cls: Class, call: Call) -> Value | None:
        mine, api = ours.class_of(cls.name), load().find(cls.name)
        if not self._is_absent(cls.name) and not (api is not None and api.members):
            for said in about_constructor(cls.name, call, cls.is_ours):
                self.say(said)
        if (api is not None and api.members) or (mine is not None and not ours.parameters(cls.name)):
            return Instance(cls.name, is_sure=False, is_plain=not call.node.args and not call.node.keywords)
        return Instance(cls.name, is_plain=not call.node.args and not call.node.keywords)

    def _given(self, method: Method, call: Call) -> Value | None:
        if not self._is_absent(method.cls):
            for said in about_method(method.cls, method.name, call):
                self.say(said)
        if method.name in COPIES:
            return Instance(method.cls)
        api = load().find(method.cls)
        forms = api.methods.get(method.name) if api is not None else None
        if forms is None:
            mine = ours.class_of(method.cls)
            own = ours.names(mine).get(method.name) if mine is not None else None
            return read_type(own.returns) if own is not None and own.returns else None
        form, is_sure = form_of(forms, call)
        value = read_type(form.returns or "")
        return value if is_sure and method.is_sure else doubted(value)

    def _by_text(self, name: str, call: Call) -> Value | None:
        """Evaluate getattr and setattr with a constant name.

        A getattr with a default gets no findings, because the program itself tests whether the name exists.
        """
        held, attribute = [*(one.value for one in call.placed), None, None][:2]
        if not isinstance(attribute, Constant) or not isinstance(attribute.value, str):
            return None
        node = call.placed[1].node
        if name == "setattr" and len(call.placed) == 3:
            self.write(held, attribute.value, node, call.placed[2].value)
        if name == "getattr" and len(call.placed) == 2:
            return self.attribute(held, attribute.value, node)
        return None

    # -- annotations

    def annotated(self, node: ast.expr | None, scope: Scope) -> Value | None:
        """Return the value that an annotation declares. Names in annotations are checked like all other names."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.copy_location(ast.parse(node.value, mode="eval").body, node)
            except SyntaxError:
                return None
            ast.fix_missing_locations(node)
        match node:
            case ast.Name() | ast.Attribute():
                held = self.read(node, scope)
                if isinstance(held, Class):
                    return Instance(held.name)
                if isinstance(held, Defined) and held.is_class:
                    return Made(held.name)
                return of_type(node) if isinstance(node, ast.Name) and node.id in ("int", "str") else None
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return one_of(self._arm(left, scope), self._arm(right, scope))
            case ast.Subscript(value=outer, slice=inner):
                name = outer.id if isinstance(outer, ast.Name) else getattr(outer, "attr", "")
                if name == "Optional":
                    return self.annotated(inner, scope)
                if name in CONTAINERS:
                    return Listed(self.annotated(inner, scope))
                for one in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
                    self.annotated(one, scope)
        return None

    def _arm(self, node: ast.expr, scope: Scope) -> Value | None:
        if isinstance(node, ast.Constant) and node.value is None:
            return Constant(None)
        return self.annotated(node, scope)
