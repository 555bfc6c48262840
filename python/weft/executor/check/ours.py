"""What `weft.executor` has: its classes, and the names in them, as they are when the program runs."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from weft import executor
from weft.errors import WeftError
from weft.executor.check.api import Parameter, load

PACKAGE = "weft.executor"


@dataclass(frozen=True)
class Own:
    """A name in a class of weft's: `what` is "field", "property", "method" or "member". `default` is a field's as text,
    None where it must be given; `is_settable`: it may be assigned.
    """

    what: str
    default: str | None = None
    is_settable: bool = False
    returns: str | None = None


@cache
def find(name: str) -> Any:
    """What is called so in `weft.executor`, with dots for what it is in; None where nothing is."""
    held: Any = executor
    for part in name.split("."):
        try:
            held = getattr(held, part)
        except (AttributeError, WeftError):  # what is refused may say so
            return _submodule(name) if "." not in name else None
    return held


def _submodule(name: str) -> Any:
    if name not in load().submodules:
        return None
    try:
        return importlib.import_module(f"{PACKAGE}.{name}")
    except ImportError:
        return None


def class_of(name: str) -> type | None:
    """The class, also where weft has it outside the class that holds it in TensorRT-LLM; None where there is none."""
    for one in (name, name.rpartition(".")[2]):
        if inspect.isclass(held := find(one)):
            return held
    return None


@cache
def is_enumeration(name: str) -> bool:
    """Whether the class is a set of members, on either side."""
    theirs, mine = load().find(name), class_of(name)
    return (theirs is not None and bool(theirs.members)) or (mine is not None and issubclass(mine, Enum))


@cache
def classes() -> tuple[str, ...]:
    """The names of weft's public classes."""
    return tuple(name for name in executor.__all__ if inspect.isclass(find(name)))


@cache
def names(cls: type) -> dict[str, Own]:
    """Every public name of a class of weft's, fields first and in their order."""
    if issubclass(cls, Enum):
        members = {name: Own("member") for name in cls.__members__}
        return members | _described(cls, skip={*dir(Enum), *dir(int), *members})
    found = _described(cls, skip=set())
    if is_dataclass(cls):
        held = {one.name: Own("field", default_of(cls, one.name), is_settable=True) for one in fields(cls)}
        found = held | {name: own for name, own in found.items() if name not in held}
    elif (made := cls.__dict__.get("__init__")) is not None:
        for parameter in list(inspect.signature(made).parameters.values())[1:]:
            if parameter.kind is not parameter.VAR_KEYWORD and parameter.name not in found:
                found[parameter.name] = Own("field", _text(parameter.default))
    return found


def _described(cls: type, skip: set[str]) -> dict[str, Own]:
    found = {}
    for name in dir(cls):
        held = inspect.getattr_static(cls, name)
        if (name.startswith("_") and name not in ("__enter__", "__exit__")) or name in skip:
            continue
        if isinstance(held, property):
            found[name] = Own("property", None, held.fset is not None, _returned(held.fget))
        elif isinstance(held, staticmethod | classmethod) or inspect.isroutine(held):
            found[name] = Own("method", returns=_returned(getattr(cls, name)))
        else:
            found[name] = Own("constant")
    return found


def default_of(cls: type, name: str) -> str | None:
    """A field's default as text, with `Class()` for one that is made each time; None where it must be given."""
    one = next(one for one in fields(cls) if one.name == name)
    if one.default_factory is not MISSING:
        return _text(one.default_factory())
    return None if one.default is MISSING else _text(one.default)


def _text(value: Any) -> str | None:
    if value is inspect.Parameter.empty:
        return None
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}()"
    return repr(value)


def _returned(function: Any) -> str | None:
    """The annotation of what a function gives, where it names a public class of weft's."""
    said = getattr(function, "__annotations__", {}).get("return")
    return said if isinstance(said, str) else None


@cache
def parameters(name: str, method: str | None = None) -> tuple[Parameter, ...] | None:
    """What the constructor of the class (or a method of it) takes; None where that can't be told."""
    cls = class_of(name)
    if cls is None or issubclass(cls, Enum):
        return None
    if method is None and is_dataclass(cls):
        made = [one for one in fields(cls) if one.init]
        return tuple(
            Parameter(one.name, default_of(cls, one.name), keyword_only=bool(one.kw_only)) for one in made
        )
    function = getattr(cls, method or "__init__", None)
    if not callable(function):
        return None
    taken = list(inspect.signature(function).parameters.values())
    if method is None or not isinstance(inspect.getattr_static(cls, method), staticmethod | classmethod):
        taken = taken[1:]
    if any(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in taken):
        return None
    return tuple(
        Parameter(one.name, _text(one.default), keyword_only=one.kind is one.KEYWORD_ONLY) for one in taken
    )
