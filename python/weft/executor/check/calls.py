"""What a call gives to a constructor or a method, and what is to be said of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.executor.check import ours
from weft.executor.check.api import Method as ApiMethod
from weft.executor.check.api import Parameter, load
from weft.executor.check.findings import Kind
from weft.executor.check.values import Constant, Instance, Listed, Plain, Value, text_of
from weft.executor.check.verdict import State, judge, other_default, short

Said = tuple[ast.AST, Kind, str, str]
"""Where, what kind, of which name, and the text."""

_SEVERAL = "weft.executor has no Executor of an encoder and a decoder ({}), nor of an engine's buffer and its JSON ({})"


@dataclass(frozen=True)
class Argument:
    """A value that is given, with its place; `name` is None where it is given by position."""

    node: ast.AST
    name: str | None
    value: Value | None


@dataclass(frozen=True)
class Call:
    """The arguments of a call. `is_open`: there are others that can't be told."""

    node: ast.Call
    arguments: tuple[Argument, ...]
    is_open: bool = False

    @property
    def placed(self) -> list[Argument]:
        return [one for one in self.arguments if one.name is None]

    @property
    def named(self) -> list[Argument]:
        return [one for one in self.arguments if one.name is not None]


def about_constructor(cls: str, call: Call, is_ours: bool) -> Iterator[Said]:
    """What is to be said of making an instance. `is_ours`: the program means weft's class, and its order."""
    theirs, mine = load().find(cls), ours.parameters(cls)
    if mine is None:
        return
    order = (
        mine if is_ours or theirs is None or not theirs.constructors else _chosen(theirs.constructors, call)
    )
    if order is None:
        yield call.node, Kind.LACKING, short(cls), _several(cls)
        return
    given = set()
    places = [one for one in order if not one.keyword_only]
    for at, argument in enumerate(call.placed):
        if at >= len(places):
            if not call.is_open:
                text = f"{short(cls)} takes {len(places)} values by position; give the others by their names"
                yield argument.node, Kind.UNKNOWN, short(cls), text
            break
        given.add(places[at].name)
        yield from _about_place(cls, places[at], at, argument, is_ours)
    for argument in call.named:
        given.add(str(argument.name))
        yield from about_field(cls, str(argument.name), argument)
    if not call.is_open and not is_ours:
        yield from _about_left_out(cls, order, given, call)


def _several(cls: str) -> str:
    return _SEVERAL.format(judge(cls, "encoder_model_path").why, judge(cls, "engine_buffer").why)


def _about_place(
    cls: str, parameter: Parameter, at: int, argument: Argument, is_ours: bool
) -> Iterator[Said]:
    said = list(about_field(cls, parameter.name, argument))
    mine = [one.name for one in ours.parameters(cls) or () if not one.keyword_only]
    has_one_order = len(getattr(load().find(cls), "constructors", ())) < 2
    if said and (judge(cls, parameter.name).state is not State.ABSENT or has_one_order):
        yield from said
    elif not is_ours and has_one_order and (at >= len(mine) or mine[at] != parameter.name):
        text = f"{short(cls)}.{parameter.name} has another place here; give it by its name"
        yield argument.node, Kind.OTHERWISE, f"{short(cls)}.{parameter.name}", text


def _about_left_out(cls: str, order: Sequence[Parameter], given: set[str], call: Call) -> Iterator[Said]:
    for parameter in order:
        if parameter.name not in given and (how := other_default(cls, parameter.name)) is not None:
            name = f"{short(cls)}.{parameter.name}"
            theirs = load().find(cls)
            default = getattr(theirs.parameter(parameter.name) if theirs else None, "default", None)
            text = f"{name}: {how}; give {parameter.name}={default} for the same"
            yield call.node.func, Kind.OTHERWISE, name, text


def about_field(cls: str, name: str, argument: Argument) -> Iterator[Said]:
    """What is to be said of giving a value to a field, in a call or by an assignment."""
    verdict, said = judge(cls, name), f"{short(cls)}.{name}"
    if verdict.state is State.REFUSED:
        if not _is_default(cls, name, argument.value):
            default = _default(cls, name)
            alone = f" (its default, {default}, is taken)" if default is not None else ""
            yield argument.node, Kind.REFUSED, said, f"{said} is not supported: {verdict.why}{alone}"
    elif verdict.state is State.OTHERWISE:
        if not _is_default(cls, name, argument.value):
            yield argument.node, Kind.OTHERWISE, said, f"{said}: {verdict.why}"
    else:
        yield from about_name(cls, name, argument.node)


def about_name(cls: str, name: str, node: ast.AST) -> Iterator[Said]:
    """What is to be said of a name that one side lacks, or calls otherwise."""
    verdict, said = judge(cls, name), f"{short(cls)}.{name}"
    if verdict.state is State.OLDER:
        newest = judge(cls, verdict.why)
        here = ", and so it is here" if newest.state in (State.HAS, State.OTHERWISE) else ""
        text = f"{said} is an older name; the newest is {verdict.why}{here}"
        yield node, Kind.OLDER, said, text
        if newest.state in (State.REFUSED, State.ABSENT):
            text = f"{short(cls)}.{verdict.why} is not supported: {newest.why}"
            yield node, Kind.REFUSED, f"{short(cls)}.{verdict.why}", text
    elif verdict.state is State.ABSENT:
        why = f": {verdict.why}" if verdict.why else ""
        yield node, Kind.LACKING, said, f"weft.executor has no {said}{why}"
    elif verdict.state is State.UNKNOWN:
        yield node, Kind.UNKNOWN, said, f"neither TensorRT-LLM nor weft.executor has {said}"


def about_method(cls: str, method: str, call: Call) -> Iterator[Said]:
    """What is to be said of the names by which a method is given its values."""
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
            yield argument.node, Kind.UNKNOWN, said, text
            continue
        why = judge(f"{short(cls)}.{method}", str(argument.name)).why
        text = f"weft.executor has no {said}" + (f": {why}" if why else "")
        yield argument.node, Kind.LACKING, said, text


def form_of(forms: Sequence[ApiMethod], call: Call) -> tuple[ApiMethod, bool]:
    """Which of a method's signatures a call means, and whether that is sure."""
    names = {one.name for one in call.named}
    fitting = [form for form in forms if names <= {one.name for one in form.parameters}] or list(forms)
    fitting = [form for form in fitting if len(form.parameters) >= len(call.placed)] or fitting
    if len(fitting) == 1 or not call.placed:
        return fitting[0], True
    first = call.placed[0].value
    wanted = None
    if isinstance(first, Listed):
        wanted = "ids"
    elif isinstance(first, Plain) and first.cls == "timedelta":
        wanted = "timeout"
    elif isinstance(first, Plain | Constant):
        wanted = "id"
    for form in fitting:
        if form.parameters[0].name == wanted:
            return form, True
    return next((form for form in fitting if form.parameters[0].name == "id"), fitting[0]), False


def _chosen(constructors: Sequence[Sequence[Parameter]], call: Call) -> Sequence[Parameter] | None:
    """The constructor that a call means; None where it is one of several that can't be told apart."""
    names = {str(one.name) for one in call.named}
    known = {one.name for form in constructors for one in form}
    fitting = [
        form
        for form in constructors
        if names & known <= {one.name for one in form}
        and len(call.placed) <= sum(not one.keyword_only for one in form)
    ]
    if len(constructors) == 1 or not fitting:
        return constructors[0]
    if not call.is_open:
        fitting = [form for form in fitting if _is_enough(form, call, names)] or fitting[:1]
    if len(fitting) > 1 and len(call.placed) > 1:
        kind = call.placed[1].value
        for form in fitting:
            holds = form[1].holds
            if isinstance(kind, Instance) and holds == short(kind.cls):
                return form
        # Of an error's text, or a result, nothing is to be said; of directories and buffers there is.
        return None if len(call.placed) > 3 else fitting[0]
    return fitting[0]


def _is_enough(form: Sequence[Parameter], call: Call, names: set[str]) -> bool:
    given = names | {one.name for one in form[: len(call.placed)]}
    return all(one.name in given for one in form if one.default is None and not one.later)


def _default(cls: str, name: str) -> str | None:
    theirs = load().find(cls)
    parameter = theirs.parameter(name) if theirs is not None else None
    mine = next((one for one in ours.parameters(cls) or () if one.name == name), None)
    return mine.default if mine is not None else getattr(parameter, "default", None)


def _is_default(cls: str, name: str, value: Value | None) -> bool:
    """Whether a value is the field's default, on either side."""
    theirs = load().find(cls)
    parameter = theirs.parameter(name) if theirs is not None else None
    text = text_of(value)
    if text is None:
        return False
    defaults = (_default(cls, name), getattr(parameter, "default", None))
    return any(default is not None and _is_same(text, default) for default in defaults)


def _is_same(text: str, default: str) -> bool:
    try:
        one, other = ast.literal_eval(text), ast.literal_eval(default)
        return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
    except (ValueError, SyntaxError):
        return text.replace(" ", "") == default.replace(" ", "")
