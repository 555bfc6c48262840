"""Reports findings about the arguments of constructors and methods, and about assigned values."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from weft.migration import ours
from weft.migration.api import Parameter, load
from weft.migration.arguments import Argument, Call, constructor_of
from weft.migration.findings import FindingKind
from weft.migration.values import Value, text_of
from weft.migration.verdict import State, judge, other_default, short, values_of

Said = tuple[ast.AST, FindingKind, str, str]
"""A finding without its file: the syntax node, the kind, the name, and the text."""


def about_constructor(cls: str, call: Call, is_ours: bool) -> Iterator[Said]:
    """Yield findings about a constructor call. `is_ours`: the program calls weft's class, so that weft's parameter
    order applies."""
    theirs, mine = load().find(cls), ours.forms(cls)
    if not mine:
        return
    is_theirs = not is_ours and theirs is not None and bool(theirs.constructors)
    order = constructor_of(cls, theirs.constructors if theirs is not None and is_theirs else mine, call)
    given = set()
    places = [one for one in order if not one.keyword_only]
    for at, argument in enumerate(call.placed):
        if at >= len(places):
            if not call.is_open:
                text = f"{short(cls)} takes {len(places)} values by position; give the others by their names"
                yield argument.node, FindingKind.UNKNOWN, short(cls), text
            break
        given.add(places[at].name)
        yield from _about_place(cls, places[at], at, argument, is_ours)
    for argument in call.named:
        given.add(str(argument.name))
        yield from about_field(cls, str(argument.name), argument)
    if not call.is_open and not is_ours:
        yield from _about_left_out(cls, order, given, call)


def _about_place(
    cls: str, parameter: Parameter, at: int, argument: Argument, is_ours: bool
) -> Iterator[Said]:
    said = list(about_field(cls, parameter.name, argument))
    mine = [[one.name for one in form if not one.keyword_only] for form in ours.forms(cls)]
    if said:
        yield from said
    elif (
        not is_ours and len(mine) == 1 and _has_one_order(cls) and parameter.name not in mine[0][at : at + 1]
    ):
        text = f"{short(cls)}.{parameter.name} has another place here; give it by its name"
        yield argument.node, FindingKind.OTHERWISE, f"{short(cls)}.{parameter.name}", text


def _has_one_order(cls: str) -> bool:
    theirs = load().find(cls)
    return theirs is not None and len(theirs.constructors) == 1


def _about_left_out(cls: str, order: Sequence[Parameter], given: set[str], call: Call) -> Iterator[Said]:
    for parameter in order:
        if parameter.name not in given and (how := other_default(cls, parameter.name)) is not None:
            name = f"{short(cls)}.{parameter.name}"
            theirs = load().find(cls)
            default = getattr(theirs.parameter(parameter.name) if theirs else None, "default", None)
            text = f"{name}: {how}; give {parameter.name}={default} for the same"
            yield call.node.func, FindingKind.OTHERWISE, name, text


def about_field(cls: str, name: str, argument: Argument) -> Iterator[Said]:
    """Yield findings about a field that a call or an assignment sets."""
    verdict, said = judge(cls, name), f"{short(cls)}.{name}"
    if verdict.state is State.REFUSED:
        if not _is_default(cls, name, argument.value):
            default = _default(cls, name)
            alone = f" (its default, {default}, is taken)" if default is not None else ""
            yield argument.node, FindingKind.REFUSED, said, f"{said} is not supported: {verdict.why}{alone}"
    elif verdict.state is State.OTHERWISE:
        if not _is_default(cls, name, argument.value):
            yield argument.node, FindingKind.OTHERWISE, said, f"{said}: {verdict.why}"
    else:
        yield from about_name(cls, name, argument.node)


def about_name(cls: str, name: str, node: ast.AST) -> Iterator[Said]:
    """Yield findings about a name that weft lacks, that neither side has, or that is an older version's."""
    verdict, said = judge(cls, name), f"{short(cls)}.{name}"
    if verdict.state is State.OLDER:
        newest = judge(cls, verdict.why)
        here = ", and so it is here" if newest.state in (State.HAS, State.NO_EFFECT, State.OTHERWISE) else ""
        text = f"{said} is an older name; the newest is {verdict.why}{here}"
        yield node, FindingKind.OLDER, said, text
        if newest.state in (State.REFUSED, State.ABSENT):
            text = f"{short(cls)}.{verdict.why} is not supported: {newest.why}"
            yield node, FindingKind.REFUSED, f"{short(cls)}.{verdict.why}", text
    elif verdict.state is State.ABSENT:
        why = f": {verdict.why}" if verdict.why else ""
        yield node, FindingKind.LACKING, said, f"weft.executor has no {said}{why}"
    elif verdict.state is State.UNKNOWN:
        theirs = load().find(cls)
        added = "; attributes of a program's own can't be added here" if theirs and theirs.is_open else ""
        text = f"neither TensorRT-LLM nor weft.executor has {said}{added}"
        yield node, FindingKind.UNKNOWN, said, text


def about_method(cls: str, method: str, call: Call) -> Iterator[Said]:
    """Yield findings about the keyword arguments of a method."""
    mine = ours.parameters(cls, method)
    if mine is None:
        return
    here = {one.name for one in mine}
    theirs = load().find(cls)
    there = {one.name for form in getattr(theirs, "methods", {}).get(method, ()) for one in form.parameters}
    for argument in call.named:
        said = f"{short(cls)}.{method}({argument.name}=...)"
        if argument.name in here:
            continue
        if argument.name not in there:
            text = f"neither TensorRT-LLM nor weft.executor has {said}"
            yield argument.node, FindingKind.UNKNOWN, said, text
            continue
        why = judge(f"{short(cls)}.{method}", str(argument.name)).why
        text = f"weft.executor has no {said}" + (f": {why}" if why else "")
        yield argument.node, FindingKind.LACKING, said, text


def _default(cls: str, name: str) -> str | None:
    theirs = load().find(cls)
    parameter = theirs.parameter(name) if theirs is not None else None
    mine = next((one for one in ours.parameters(cls) or () if one.name == name), None)
    return mine.default if mine is not None else getattr(parameter, "default", None)


def _is_default(cls: str, name: str, value: Value | None) -> bool:
    """Whether a value equals the field's default in weft or TensorRT-LLM, or another value that weft accepts."""
    theirs = load().find(cls)
    parameter = theirs.parameter(name) if theirs is not None else None
    text = text_of(value)
    if text is None:
        return False
    defaults = (_default(cls, name), getattr(parameter, "default", None), *values_of(cls, name))
    return any(default is not None and _is_same(text, default) for default in defaults)


def _is_same(text: str, default: str) -> bool:
    try:
        one, other = ast.literal_eval(text), ast.literal_eval(default)
        if isinstance(one, tuple | list) and isinstance(other, tuple | list):
            return list(one) == list(other)
        return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
    except (ValueError, SyntaxError):
        return text.replace(" ", "") == default.replace(" ", "")
