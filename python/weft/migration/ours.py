"""What `weft.executor` has: its classes, and the names in them, as they are when the program runs."""

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
    return repr(value).removeprefix("datetime.")


def _returned(function: Any) -> str | None:
    """The annotation of what a function gives, where it names a public class of weft's."""
    said = getattr(function, "__annotations__", {}).get("return")
    return said if isinstance(said, str) else None


@cache
def forms(name: str, method: str | None = None) -> tuple[tuple[Parameter, ...], ...]:
    """What the constructor of the class (or a method) takes, in each of its forms; none where that can't be told."""
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
    """All parameters of all forms, each once; None where that can't be told."""
    found = forms(name, method)
    by_name = {one.name: one for form in reversed(found) for one in form}
    names = dict.fromkeys(one.name for form in found for one in form)
    return tuple(by_name[one] for one in names) if found else None


def _forms(function: Any) -> list[list[inspect.Parameter]]:
    """The signatures of a function: those of its overloads, or its own."""
    several = get_overloads(function) or [function]
    return [list(inspect.signature(one).parameters.values()) for one in several]
