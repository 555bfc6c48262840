"""Inspects `weft.executor` at run time: its classes and their names."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, get_overloads

from weft import executor
from weft.errors import WeftError
from weft.migration.api import Parameter, load

PACKAGE = "weft.executor"


@dataclass(frozen=True)
class Own:
    """A name in one of weft's classes. `what` is "field", "property", "method", "member" or "constant". `default` is a
    field's default as Python source, or None if the field is required. `is_settable`: programs may assign it. `returns`
    is the type of a property or of a method's result."""

    what: str
    default: str | None = None
    is_settable: bool = False
    returns: str | None = None


@cache
def find(name: str) -> Any:
    """Return the object with this dotted name in `weft.executor`, or None."""
    held: Any = executor
    for part in name.split("."):
        try:
            held = getattr(held, part)
        except (AttributeError, WeftError):  # a refused name may raise with its reason
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
    """Return weft's class for this name of TensorRT-LLM, or None. A class that is nested there may be at weft's top
    level."""
    for one in (name, name.rpartition(".")[2]):
        if inspect.isclass(held := find(one)):
            return held
    return None


@cache
def is_enumeration(name: str) -> bool:
    """Whether the class is an enumeration in weft or TensorRT-LLM."""
    theirs, mine = load().find(name), class_of(name)
    return (theirs is not None and bool(theirs.members)) or (mine is not None and issubclass(mine, Enum))


@cache
def classes() -> tuple[str, ...]:
    """The names of weft's public classes."""
    return tuple(name for name in executor.__all__ if inspect.isclass(find(name)))


@cache
def names(cls: type) -> dict[str, Own]:
    """Return every public name of one of weft's classes. Fields come first, in order of declaration."""
    if issubclass(cls, Enum):
        members = {name: Own("member") for name in cls.__members__}
        return members | _described(cls, skip={*dir(Enum), *dir(int), *members})
    found = _described(cls, skip=set())
    if is_dataclass(cls):
        held = {one.name: Own("field", default_of(cls, one.name), is_settable=True) for one in fields(cls)}
        found = held | {name: own for name, own in found.items() if name not in held}
    elif "__init__" in cls.__dict__:
        taken = {one.name: one for form in reversed(_forms(cls.__dict__["__init__"])) for one in form[1:]}
        for one in [one for form in _forms(cls.__dict__["__init__"]) for one in form[1:]]:
            if one.name not in found:
                found[one.name] = Own("field", _text(taken[one.name].default))
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
    """Return a field's default as Python source, or None if the field is required. A dataclass is `Class()`."""
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
    return repr(value).removeprefix("datetime.")


def _returned(function: Any) -> str | None:
    """Return the return annotation of a function, or None if it is not a string."""
    said = getattr(function, "__annotations__", {}).get("return")
    return said if isinstance(said, str) else None


@cache
def forms(name: str, method: str | None = None) -> tuple[tuple[Parameter, ...], ...]:
    """Return the signatures of a class's constructor or method; empty if they are unknown."""
    cls = class_of(name)
    if cls is None or issubclass(cls, Enum):
        return ()
    if method is None and is_dataclass(cls):
        made = [one for one in fields(cls) if one.init]
        return (
            tuple(
                Parameter(one.name, default_of(cls, one.name), keyword_only=bool(one.kw_only)) for one in made
            ),
        )
    function = inspect.getattr_static(cls, method or "__init__", None)
    is_bound = not isinstance(function, staticmethod)
    if isinstance(function, staticmethod | classmethod):
        function = function.__func__
    if not inspect.isfunction(function):
        return ()
    found = []
    for form in _forms(function):
        taken = form[1:] if is_bound else form
        if not any(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in taken):
            found.append(
                tuple(
                    Parameter(one.name, _text(one.default), keyword_only=one.kind is one.KEYWORD_ONLY)
                    for one in taken
                )
            )
    return tuple(found)


def parameters(name: str, method: str | None = None) -> tuple[Parameter, ...] | None:
    """Return the parameters of all signatures of a constructor or method, each name once; None if they are unknown."""
    found = forms(name, method)
    by_name = {one.name: one for form in reversed(found) for one in form}
    names = dict.fromkeys(one.name for form in found for one in form)
    return tuple(by_name[one] for one in names) if found else None


def _forms(function: Any) -> list[list[inspect.Parameter]]:
    """Return the signatures of a function: those of its overloads or, without overloads, its own."""
    several = get_overloads(function) or [function]
    return [list(inspect.signature(one).parameters.values()) for one in several]
