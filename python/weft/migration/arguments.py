"""The arguments of a call, and the choice of the signature that they match."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from weft.migration.api import Method, Parameter
from weft.migration.values import Constant, Instance, Listed, Plain, Tupled, Value
from weft.migration.verdict import State, judge, short


@dataclass(frozen=True)
class Argument:
    """An argument with its syntax node. `name` is None for a positional argument; `value` is None if it is unknown."""

    node: ast.AST
    name: str | None
    value: Value | None


@dataclass(frozen=True)
class Call:
    """The arguments of a call. `is_open`: there are further, unknown arguments, such as `**options`."""

    node: ast.Call
    arguments: tuple[Argument, ...]
    is_open: bool = False

    @property
    def placed(self) -> list[Argument]:
        return [one for one in self.arguments if one.name is None]

    @property
    def named(self) -> list[Argument]:
        return [one for one in self.arguments if one.name is not None]


def form_of(forms: Sequence[Method], call: Call) -> tuple[Method, bool]:
    """Return the method signature that a call matches, and whether the match is certain."""
    # First by the names of keyword arguments, then by the number of positional ones. A filter that leaves nothing is
    # ignored. The last criterion is the first argument's type, which tells the forms of `await_responses` apart.
    names = {one.name for one in call.named}
    fitting = [form for form in forms if names <= {one.name for one in form.parameters}] or list(forms)
    fitting = [form for form in fitting if len(form.parameters) >= len(call.placed)] or fitting
    if len(fitting) == 1 or not call.placed:
        return fitting[0], True
    first = call.placed[0].value
    wanted = None
    if isinstance(first, Listed | Tupled):
        wanted = "ids"
    elif isinstance(first, Plain) and first.cls == "timedelta":
        wanted = "timeout"
    elif isinstance(first, Plain | Constant):
        wanted = "id"
    for form in fitting:
        if form.parameters[0].name == wanted:
            return form, True
    return next((form for form in fitting if form.parameters[0].name == "id"), fitting[0]), False


def constructor_of(cls: str, forms: Sequence[Sequence[Parameter]], call: Call) -> Sequence[Parameter]:
    """Return the parameters of the constructor that a call matches. If several match, prefer one that weft has."""
    names = {str(one.name) for one in call.named}
    known = {one.name for form in forms for one in form}
    fitting = [
        form
        for form in forms
        if names & known <= {one.name for one in form}
        and len(call.placed) <= sum(not one.keyword_only for one in form)
    ]
    if len(fitting) > 1 and not call.is_open:
        fitting = [form for form in fitting if _is_enough(form, call, names)] or fitting
    if len(fitting) > 1:
        fitting = [form for form in fitting if _is_of_its_kind(form, call)] or fitting
    if len(fitting) > 1:
        fitting = [form for form in fitting if _is_here(cls, form)] or fitting
    return (fitting or forms)[0]


def _is_enough(form: Sequence[Parameter], call: Call, names: set[str]) -> bool:
    given = names | {one.name for one in form[: len(call.placed)]}
    return all(one.name in given for one in form if one.default is None and not one.later)


def _is_of_its_kind(form: Sequence[Parameter], call: Call) -> bool:
    """Whether the positional arguments can have the types of their parameters."""
    for parameter, argument in zip(form, call.placed, strict=False):
        value, holds = argument.value, parameter.holds
        if isinstance(value, Instance) and holds not in (None, short(value.cls)):
            return False
        kind = type(value.value).__name__ if isinstance(value, Constant) else getattr(value, "cls", None)
        if kind == "bytes" and parameter.name.endswith("model_path"):
            return False
        if kind in ("str", "Path") and (parameter.name == "engine_buffer" or holds is not None):
            return False
    return True


def _is_here(cls: str, form: Sequence[Parameter]) -> bool:
    return all(judge(cls, one.name).state is not State.ABSENT for one in form if not one.later)
