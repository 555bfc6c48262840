"""Compares each name in TensorRT-LLM and weft. The checker and docs/executor-fields.md use the verdicts."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from weft.executor.types import refused
from weft.migration import ours
from weft.migration.absent import ABSENT, BY_USE, PARTLY
from weft.migration.api import load

REFUSED: dict[str, str] = refused.REFUSED
OTHERWISE: dict[str, str] = refused.OTHERWISE
NO_EFFECT: dict[str, str] = refused.NO_EFFECT
_RENAMED: dict[str, str] = refused.RENAMED


class State(StrEnum):
    """The result of comparing a name in TensorRT-LLM and weft. `OWN`: only weft has it. `ABSENT`: only TensorRT-LLM
    has it. `UNKNOWN`: neither has it."""

    HAS = "has"
    NO_EFFECT = "no effect"
    OTHERWISE = "otherwise"
    REFUSED = "refused"
    ABSENT = "absent"
    OLDER = "older"
    OWN = "own"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Verdict:
    """The state of a name. `why` is the difference, the reason, or the newest name if the state is OLDER. NO_EFFECT
    means that weft accepts the name and is right to ignore it."""

    state: State
    why: str = ""


def short(name: str) -> str:
    """Return the last part of a class's name."""
    return name.rpartition(".")[2]


def _of(table: dict[str, str], cls: str, name: str) -> str | None:
    return table.get(f"{short(cls)}.{name}") or table.get(f"{cls}.{name}")


@cache
def judge_class(name: str) -> Verdict:
    """Return the verdict on a class, function, submodule or attribute of the API's module."""
    api = load()
    if ours.class_of(name) is not None or ours.find(name) is not None:
        if (how := OTHERWISE.get(short(name))) is not None:
            return Verdict(State.OTHERWISE, how)
        known = api.find(name) or name in (*api.functions, *api.submodules, *api.attributes)
        return Verdict(State.HAS if known else State.OWN)
    last = short(name)
    if last in _RENAMED:
        return Verdict(State.ABSENT, _RENAMED[last])
    why = ABSENT.get(name) or ABSENT.get(f"{name.rpartition('.')[0]}.*")
    known = api.find(name) or name in (*api.functions, *api.submodules, *api.attributes)
    return Verdict(State.ABSENT if known or why else State.UNKNOWN, why or "")


@cache
def judge(cls: str, name: str) -> Verdict:
    """Return the verdict on a name in a class: a field, a method or a member."""
    theirs, mine = load().find(cls), ours.class_of(cls)
    own = ours.names(mine).get(name) if mine is not None else None
    is_theirs = theirs is not None and (name in theirs.names() or f"{theirs.name}.{name}" in load().classes)
    newest = _of(load().older_names, cls, name)
    if newest is not None and own is None:
        return Verdict(State.OLDER, newest)
    if own is None and not _is_nested(cls, name):
        why = _of(ABSENT, cls, name) or _of(REFUSED, cls, name)
        return Verdict(State.ABSENT if is_theirs or why else State.UNKNOWN, why or "")
    if (why := _of(REFUSED, cls, name) or _of(BY_USE, cls, name)) is not None:
        return Verdict(State.REFUSED, why)
    if (why := PARTLY.get(f"{short(cls)}.{name}", ("",))[0]) != "":
        return Verdict(State.REFUSED, why)
    if (why := _of(NO_EFFECT, cls, name)) is not None:
        return Verdict(State.NO_EFFECT, why)
    if (how := _of(OTHERWISE, cls, name)) is not None:
        return Verdict(State.OTHERWISE, how)
    return Verdict(State.HAS if is_theirs or newest is not None else State.OWN)


def _is_nested(cls: str, name: str) -> bool:
    """Whether weft's class `cls` has a nested class `name`."""
    return ours.class_of(cls) is not None and isinstance(ours.find(f"{short(cls)}.{name}"), type)


def values_of(cls: str, name: str) -> tuple[str, ...]:
    """Return the values that weft accepts for a refused field, besides its default."""
    return PARTLY.get(f"{short(cls)}.{name}", ("", ()))[1]


@cache
def other_default(cls: str, name: str) -> str | None:
    """Return a text about a parameter whose defaults in weft and TensorRT-LLM differ; None if they are the same."""
    theirs, mine = load().find(cls), ours.parameters(cls)
    parameter = theirs.parameter(name) if theirs is not None else None
    own = next((one for one in mine or () if one.name == name), None)
    if parameter is None or own is None or judge(cls, name).state is State.REFUSED:
        return None
    here, there = own.default, parameter.default
    if here is None or there is None or _same(here, there):
        return None
    return f"left out it is {here}, in TensorRT-LLM {there}"


_EMPTY = ("None", "()", "[]", "{}", "''")


def _same(here: str, there: str) -> bool:
    if here in _EMPTY and there in _EMPTY:
        return True
    try:
        return bool(ast.literal_eval(here) == ast.literal_eval(there))
    except (ValueError, SyntaxError):
        return here == there
