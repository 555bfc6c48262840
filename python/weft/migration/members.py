"""Resolves names in modules, classes and instances, and reports findings about them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from weft.migration import elsewhere, ours
from weft.migration.api import load
from weft.migration.arguments import Argument
from weft.migration.calls import Said, about_field, about_name
from weft.migration.findings import FindingKind
from weft.migration.values import (
    Class,
    Defined,
    Function,
    Instance,
    Made,
    Member,
    Method,
    Module,
    Value,
    one_of,
    read_type,
)
from weft.migration.verdict import State, judge, judge_class, short


@dataclass
class Known:
    """Facts about the program that outlive its scopes. `returned` holds the return values of its functions, `held` the
    attributes of its objects by class and name, and `methods` the method names of its classes."""

    returned: dict[Defined, Value | None] = field(default_factory=dict)
    held: dict[tuple[str, str], Value | None] = field(default_factory=dict)
    methods: dict[str, set[str]] = field(default_factory=dict)

    def add(self, table: dict[object, Value | None], key: object, value: Value | None) -> None:
        """Record a possible value for a key. A second value is merged with the first."""
        table[key] = one_of(table[key], value) if key in table else value


class Members:
    """Resolves attributes. `say` is called with each finding; the same finding may occur several times."""

    def __init__(self, known: Known, say: Callable[[Said], None]) -> None:
        self.known = known
        self.say = say
        self.starred: dict[str, Module] = {}
        """Names from `import *`, with their module. Each is checked where the program uses it."""
        self.was_reached = False
        """Whether the program reached the Executor API through another module of TensorRT-LLM."""

    def attribute(self, held: Value | None, name: str, node: ast.AST) -> Value | None:
        """Return the value of the attribute, or None if it is unknown."""
        if isinstance(held, Module):
            return self.in_module(held, name, node)
        if isinstance(held, Class):
            return self._in_class(held, name, node)
        if isinstance(held, Instance | Member):
            return self._in_instance(held, name, node)
        if isinstance(held, Made):
            if name in self.known.methods.get(held.cls, ()):
                return Defined(name, held.cls)
            return self.known.held.get((held.cls, name))
        if isinstance(held, Defined) and held.is_class:
            return Defined(name, held.name) if name in self.known.methods.get(held.name, ()) else None
        return None

    def in_module(self, module: Module, name: str, node: ast.AST) -> Value | None:
        """Return the value of a name in a module, and report findings about it. A name of another part of TensorRT-LLM
        is a finding too."""
        path = f"{module.path}.{name}"
        if not elsewhere.is_executor(module.path):
            if elsewhere.is_executor(path) or elsewhere.is_on_the_way(path):
                self.was_reached = self.was_reached or elsewhere.is_executor(path)
                return Module(path)
            if elsewhere.is_theirs(path):
                self.say((node, FindingKind.ELSEWHERE, path, elsewhere.why_elsewhere(module.path, name)))
            return None
        inner = elsewhere.within(path)
        if inner in load().submodules:
            self._judge_in_module(inner, node)
            return Module(path)
        self._judge_in_module(inner, node)
        if inner in load().functions:
            return Function(inner)
        api = load().find(inner)
        if api is not None or ours.class_of(inner) is not None:
            return Class(api.name if api is not None else inner, module.is_ours)
        return None

    def _judge_in_module(self, name: str, node: ast.AST) -> None:
        verdict = judge_class(name)
        why = f": {verdict.why}" if verdict.why else ""
        if verdict.state is State.ABSENT:
            self.say((node, FindingKind.LACKING, name, f"weft.executor has no {name}{why}"))
        elif verdict.state is State.OTHERWISE:
            self.say((node, FindingKind.OTHERWISE, name, f"{name}{why}"))
        elif verdict.state is State.UNKNOWN and not name.startswith("__"):
            text = f"neither TensorRT-LLM nor weft.executor has {name}"
            self.say((node, FindingKind.UNKNOWN, name, text))

    def _in_class(self, held: Class, name: str, node: ast.AST) -> Value | None:
        api = load().find(held.name)
        nested = load().classes.get(f"{held.name}.{name}")
        if nested is not None or ours.class_of(f"{held.name}.{name}") is not None:
            self._about(held.name, name, node)
            return Class(nested.name if nested is not None else f"{held.name}.{name}", held.is_ours)
        if name.startswith("__") or self._is_absent(held.name):
            pass
        elif judge(held.name, name).state is State.REFUSED and api is not None and name in api.members:
            why = judge(held.name, name).why
            said = f"{short(held.name)}.{name}"
            self.say((node, FindingKind.REFUSED, said, f"{said} is not supported: {why}"))
        else:
            self._about(held.name, name, node)
        mine = ours.class_of(held.name)
        own = ours.names(mine).get(name) if mine is not None else None
        if (api is not None and name in api.members) or (own is not None and own.what == "member"):
            return Member(held.name, name)
        if (api is not None and name in api.methods) or (own is not None and own.what == "method"):
            return Method(held.name, name, static=True)
        return None

    def _in_instance(self, held: Instance | Member, name: str, node: ast.AST) -> Value | None:
        api, mine = load().find(held.cls), ours.class_of(held.cls)
        own = ours.names(mine).get(name) if mine is not None else None
        is_theirs = api is not None and name in api.names()
        is_sure = not isinstance(held, Instance) or held.is_sure
        if name in ("name", "value") and ours.is_enumeration(held.cls):
            return None
        if not name.startswith("__") and not self._is_absent(held.cls) and (is_sure or is_theirs):
            self._about_read(held.cls, name, node)
        if api is not None and name in api.attributes:
            value = read_type(api.attributes[name].holds or "")
            return replace(value, is_sure=is_sure) if isinstance(value, Instance) else value
        if (api is not None and name in api.methods) or (own is not None and own.what == "method"):
            return Method(held.cls, name, is_sure=is_sure)
        return read_type(own.returns) if own is not None and own.returns else None

    def _is_absent(self, cls: str) -> bool:
        """Whether weft lacks the whole class. Then its members get no findings, because the class's name has one."""
        return ours.class_of(cls) is None

    def _about_read(self, cls: str, name: str, node: ast.AST) -> None:
        """Report findings about a field that the program reads. A field with another meaning is reported at the
        constructor if that takes the field, and only otherwise where it is read."""
        api = load().find(cls)
        is_given = api is not None and api.parameter(name) is not None
        if judge(cls, name).state is State.OTHERWISE and not is_given:
            said = f"{short(cls)}.{name}"
            self.say((node, FindingKind.OTHERWISE, said, f"{said}: {judge(cls, name).why}"))
        else:
            self._about(cls, name, node)

    def _about(self, cls: str, name: str, node: ast.AST) -> None:
        for said in about_name(cls, name, node):
            self.say(said)

    def write(self, held: Value | None, name: str, node: ast.AST, value: Value | None) -> None:
        """Report findings about an assignment to an attribute."""
        if isinstance(held, Made):
            self.known.add(self.known.held, (held.cls, name), value)  # type: ignore[arg-type]
        if not isinstance(held, Instance) or self._is_absent(held.cls):
            return
        mine = ours.class_of(held.cls)
        own = ours.names(mine).get(name) if mine is not None else None
        said = f"{short(held.cls)}.{name}"
        if own is not None and own.what == "property" and not own.is_settable:
            text = f"{said} can't be assigned here; give what it follows from to the constructor"
            self.say((node, FindingKind.LACKING, said, text))
            return
        for one in about_field(held.cls, name, Argument(node, name, value)):
            self.say(one)
