"""Reads `api.json`, which describes TensorRT-LLM's classes: their constructors, attributes, methods and members."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Parameter:
    """A parameter. `default` and `holds` (the class of its value) are Python source, or None if there is none. `later`:
    TensorRT-LLM's C++ has the parameter, but the bindings from which `api.json` was made do not."""

    name: str
    default: str | None = None
    holds: str | None = None
    keyword_only: bool = False
    later: bool = False


@dataclass(frozen=True)
class Method:
    """A method. `returns` is its return type as Python source."""

    name: str
    parameters: tuple[Parameter, ...]
    returns: str | None
    static: bool = False


@dataclass(frozen=True)
class Attribute:
    """An attribute of instances. `holds` is the type of its value, or None if that is no type of the API."""

    name: str
    holds: str | None = None
    later: bool = False


@dataclass(frozen=True)
class ApiClass:
    """A class. `name` includes the class or submodule that contains it.

    A constructor is a tuple of parameters; a class may have several. A method is a tuple of signatures. `is_open`:
    programs may add attributes to the instances.
    """

    name: str
    constructors: tuple[tuple[Parameter, ...], ...] = ()
    attributes: dict[str, Attribute] = field(default_factory=dict)
    methods: dict[str, tuple[Method, ...]] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    is_open: bool = False

    @property
    def short(self) -> str:
        """The last part of the dotted name."""
        return self.name.rpartition(".")[2]

    def parameter(self, name: str) -> Parameter | None:
        """Return the constructor parameter of this name, from the first constructor that has it."""
        for parameters in self.constructors:
            for one in parameters:
                if one.name == name:
                    return one
        return None

    def names(self) -> Iterator[str]:
        """Yield every name of the class once: constructor parameters, attributes, methods, members, constants."""
        parameters = (one.name for constructor in self.constructors for one in constructor)
        yield from dict.fromkeys(
            (*parameters, *self.attributes, *self.methods, *self.members, *self.constants)
        )


@dataclass(frozen=True)
class Api:
    """TensorRT-LLM's module. `older_names` maps "Class.name" to the newest name of the same thing."""

    module: str
    classes: dict[str, ApiClass]
    functions: dict[str, Method]
    attributes: tuple[str, ...]
    submodules: tuple[str, ...]
    older_names: dict[str, str]
    read: dict[str, Any]

    def find(self, name: str) -> ApiClass | None:
        """Return the class with this full name or, if there is none, the class with this last part; None if neither."""
        return self.classes.get(name) or self._by_short_name().get(name)

    def _by_short_name(self) -> dict[str, ApiClass]:
        return {one.short: one for one in self.classes.values()}


@cache
def load() -> Api:
    """Load `api.json`."""
    data = json.loads(files("weft.migration").joinpath("api.json").read_text(encoding="utf-8"))
    return Api(
        module=data["module"],
        classes={name: _class(name, said) for name, said in data["classes"].items()},
        functions={method.name: method for method in map(_method, data["functions"])},
        attributes=tuple(data["attributes"]),
        submodules=tuple(data["submodules"]),
        older_names=data["older_names"],
        read=data["read"],
    )


def _class(name: str, said: dict[str, Any]) -> ApiClass:
    later = said.get("later", [])
    if "members" in said:
        members = (*said["members"], *later)
        return ApiClass(name, members=members, methods=_methods((), said.get("static_methods", ())))
    # Later parameters are keyword-only, since their position is unknown.
    added = tuple(
        Parameter(one.name, one.default, one.holds, keyword_only=True, later=True)
        for one in (_parameters(["*", *later]) if later else ())
    )
    constructors = tuple((*_parameters(init), *added) if any(init) else () for init in said.get("init", ()))
    attributes = [_attribute(text) for group in ("read_write", "read_only") for text in said.get(group, ())]
    attributes += [Attribute(one.name, one.holds, later=True) for one in added]
    return ApiClass(
        name,
        constructors,
        {one.name: one for one in attributes},
        _methods(said.get("methods", ()), said.get("static_methods", ())),
        constants=tuple(said.get("constants", ())),
        is_open=said.get("open", False),
    )


def _attribute(text: str) -> Attribute:
    name, _, holds = text.partition(": ")
    return Attribute(name, holds or None)


def _methods(bound: Any, static: Any) -> dict[str, tuple[Method, ...]]:
    made: dict[str, tuple[Method, ...]] = {}
    for text in (*bound, *static):
        method = _method(text, static=text in static)
        made[method.name] = (*made.get(method.name, ()), method)
    return made


def _method(text: str, static: bool = False) -> Method:
    made = _function(text)
    returns = ast.unparse(made.returns) if made.returns is not None else None
    return Method(made.name, _of(made.args), returns, static)


def _parameters(texts: list[str]) -> tuple[Parameter, ...]:
    return _of(_function(f"f({', '.join(texts)})").args)


def _function(text: str) -> ast.FunctionDef:
    (made,) = ast.parse(f"def {text}: ...").body
    assert isinstance(made, ast.FunctionDef)
    return made


def _of(arguments: ast.arguments) -> tuple[Parameter, ...]:
    def text(node: ast.expr | None) -> str | None:
        return None if node is None else ast.unparse(node)

    absent: list[ast.expr | None] = [None] * (len(arguments.args) - len(arguments.defaults))
    defaults = [*absent, *arguments.defaults]
    placed = [
        Parameter(one.arg, text(default), text(one.annotation))
        for one, default in zip(arguments.args, defaults, strict=True)
    ]
    named = [
        Parameter(one.arg, text(default), text(one.annotation), keyword_only=True)
        for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return (*placed, *named)
