"""The values that the checker can infer for expressions: a module, a class, an instance, a list of instances, etc."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import Any

from weft.migration.api import load

CONTAINERS = frozenset(
    {
        "list",
        "List",
        "Sequence",
        "Iterable",
        "Iterator",
        "Generator",
        "Collection",
        "deque",
        "set",
        "frozenset",
    }
    | {"AsyncIterator", "AsyncIterable", "AsyncGenerator"}
)
"""The names of iterable types."""


@dataclass(frozen=True)
class Module:
    """A module of weft or TensorRT-LLM, by its full name. `is_ours`: it is weft's."""

    path: str

    @property
    def is_ours(self) -> bool:
        return self.path.split(".")[0] == "weft"


@dataclass(frozen=True)
class Class:
    """A class of the Executor API. `is_ours`: the program imports it from weft.executor."""

    name: str
    is_ours: bool = False


@dataclass(frozen=True)
class Instance:
    """An instance of a class of the API. `is_plain`: it was made without arguments. Unless `is_sure`, the class is a
    guess."""

    cls: str
    is_sure: bool = True
    is_plain: bool = False


@dataclass(frozen=True)
class Member:
    """A member of an enumeration."""

    cls: str
    name: str


@dataclass(frozen=True)
class Constant:
    """A literal constant in the program."""

    value: Any


@dataclass(frozen=True)
class Plain:
    """An instance of one of Python's own classes."""

    cls: str


@dataclass(frozen=True)
class Listed:
    """A list or another iterable. `of` is the value of its elements, or None if that is unknown."""

    of: Value | None


@dataclass(frozen=True)
class Tupled:
    """A tuple with a known number of parts, or a list of constants."""

    parts: tuple[Value | None, ...]


@dataclass(frozen=True)
class Keywords:
    """A dict with string keys. An entry is the key, its syntax node, and its value. `is_whole`: there are no other
    keys."""

    entries: tuple[tuple[str, ast.AST, Value | None], ...]
    is_whole: bool = True


@dataclass(frozen=True)
class Method:
    """A method of the API's class `cls`. `static`: the program takes it from the class, not from an instance. Unless
    `is_sure`, the class is a guess."""

    cls: str
    name: str
    static: bool = False
    is_sure: bool = True


@dataclass(frozen=True)
class Function:
    """A function of the API's module."""

    name: str


@dataclass(frozen=True)
class Defined:
    """A function or class that the program defines. `owner` is the class of a method."""

    name: str
    owner: str | None = None
    is_class: bool = False


@dataclass(frozen=True)
class Made:
    """An instance of a class that the program defines."""

    cls: str


Value = (
    Module
    | Class
    | Instance
    | Member
    | Constant
    | Plain
    | Listed
    | Tupled
    | Keywords
    | Method
    | Function
    | Defined
    | Made
)


def read_type(text: str) -> Value | None:
    """Return an instance of the type that a text names, as in `api.json` or in weft's annotations; None if unknown."""
    try:
        return of_type(ast.parse(text, mode="eval").body)
    except SyntaxError:
        return None


def of_type(node: ast.expr) -> Value | None:
    """Return an instance of the type that an expression names, or None if it is not a type of the API or Python's."""
    match node:
        case ast.Name(id="int" | "str" | "bool" | "float" as name):
            return Plain(name)
        case ast.Name(id=name):
            cls = load().find(name)
            return Instance(cls.name) if cls is not None else None
        case ast.Attribute(value=ast.Name(id=holder), attr=name):
            cls = load().find(f"{holder}.{name}")
            return Instance(cls.name) if cls is not None else None
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in CONTAINERS:
            return Listed(of_type(inner))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return one_of(of_type(left), of_type(right))
    return None


def one_of(first: Value | None, second: Value | None) -> Value | None:
    """Return the value of an expression that is one of two values: their common part, or None if there is none. The
    constant None is ignored, because it says nothing about the class."""
    if first == second or second == Constant(None):
        return first
    if first == Constant(None):
        return second
    if isinstance(first, Listed) and isinstance(second, Listed):
        if first.of is None or second.of is None:
            return Listed(first.of or second.of)
        return Listed(one_of(first.of, second.of))
    if isinstance(first, Instance) and isinstance(second, Instance) and first.cls == second.cls:
        return replace(first, is_sure=first.is_sure and second.is_sure, is_plain=False)
    if isinstance(first, Module) and isinstance(second, Module):
        return first if second.is_ours else second
    if isinstance(first, Class) and isinstance(second, Class) and first.name == second.name:
        return first if second.is_ours else second
    return None


def element_of(value: Value | None) -> Value | None:
    """Return the value of an iterable's elements, or None if it is unknown."""
    if isinstance(value, Listed):
        return value.of
    if isinstance(value, Tupled):
        joined: Value | None = value.parts[0] if value.parts else None
        for part in value.parts[1:]:
            joined = one_of(joined, part)
        return joined
    return None


def doubted(value: Value | None) -> Value | None:
    """Return the value with instances marked as not sure."""
    if isinstance(value, Listed):
        return Listed(doubted(value.of))
    return replace(value, is_sure=False) if isinstance(value, Instance) else value


def text_of(value: Value | None) -> str | None:
    """Return the value as Python source, as `api.json` writes defaults, or None if it is unknown."""
    match value:
        case Constant(value=held):
            return repr(held)
        case Member(cls=cls, name=name):
            return f"{cls.rpartition('.')[2]}.{name}"
        case Instance(cls=cls, is_plain=True):
            return f"{cls.rpartition('.')[2]}()"
        case Tupled(parts=parts):
            texts = [text_of(one) for one in parts]
            return None if None in texts else f"[{', '.join(str(one) for one in texts)}]"
        case Listed(of=None) | Keywords(entries=(), is_whole=True):
            return "()"
    return None
