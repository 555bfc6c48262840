"""TensorRT-LLM's names: `api.json` as classes with constructors, attributes, methods and members."""

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
    """A parameter. `default` and `holds` (the class of what it takes) are text as in Python, None where there is none;
    `later`: TensorRT-LLM's C++ has it, the bindings that were read do not.
    """

    name: str
    default: str | None = None
    holds: str | None = None
    keyword_only: bool = False
    later: bool = False


@dataclass(frozen=True)
class Method:
    """A method; `returns` is the type of what it gives, as text, where that is one of the API's."""

    name: str
    parameters: tuple[Parameter, ...]
    returns: str | None
    static: bool = False


@dataclass(frozen=True)
class Attribute:
    """An attribute of instances, and the type of what it holds where that is one of the API's."""

    name: str
    holds: str | None = None
    later: bool = False


@dataclass(frozen=True)
class ApiClass:
    """A class. `name` has the class or submodule that holds it in front; of one with several constructors each is a
    tuple of parameters, of a method with several signatures each has its place in the tuple. Where it `is_open`,
    programs may add attributes of their own.
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
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    def parameter(self, name: str) -> Parameter | None:
        """The constructor's parameter of this name; of several constructors the first that has it."""
        for parameters in self.constructors:
            for one in parameters:
                if one.name == name:
                    return one
        return None

    def names(self) -> Iterator[str]:
        """Every name of the class, once: parameters of constructors, attributes, methods, members, constants."""
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
        """The class of this name, with or without what holds it."""
        return self.classes.get(name) or self._by_short_name().get(name)

    def _by_short_name(self) -> dict[str, ApiClass]:
        return {one.short: one for one in self.classes.values()}


@cache
def load() -> Api:
    """What `api.json` says."""
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
    # What comes later is given by name, since nothing says where it will stand.
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
