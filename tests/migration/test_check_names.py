"""Every name of either side has a state, and a reason where a program must change; programs of good names pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.executor.types.refused import OLDER_NAMES
from weft.migration import FindingKind, check_source, ours
from weft.migration.absent import ABSENT, BY_USE, PARTLY
from weft.migration.api import Parameter, load
from weft.migration.verdict import (
    NO_EFFECT,
    OTHERWISE,
    REFUSED,
    State,
    judge,
    judge_class,
    other_default,
)

API = load()


def names() -> Iterator[tuple[str, str]]:
    """Every name in a class of TensorRT-LLM's."""
    for name, cls in API.classes.items():
        for one in cls.names():
            yield name, one


def test_what_is_read_of_theirs_is_whole() -> None:
    """Signatures parse, types are classes of the file, and what a constructor takes has a name once."""
    assert len(API.classes) == 71 and len(list(names())) == 448
    known = {*API.classes, *(cls.short for cls in API.classes.values()), "int", "str", "bool", "list"}
    for cls in API.classes.values():
        for constructor in cls.constructors:
            assert len({one.name for one in constructor}) == len(constructor)
        forms = [one for several in cls.methods.values() for one in several]
        said = [one.holds for constructor in cls.constructors for one in constructor]
        said += [one.holds for one in cls.attributes.values()] + [one.returns for one in forms]
        for text in filter(None, said):
            assert {part.strip() for part in text.replace("]", "").split("[")} <= known, text
    assert API.read["commits"] and API.read["date"]


@pytest.mark.parametrize("name", [*API.classes, *API.functions, *API.attributes, *API.submodules])
def test_every_class_of_theirs_is_known(name: str) -> None:
    verdict = judge_class(name)
    assert verdict.state in (State.HAS, State.OTHERWISE) or (verdict.state is State.ABSENT and verdict.why)


def test_every_name_of_theirs_is_known() -> None:
    """weft has it, or there is a reason; of a class that it lacks the class has the reason."""
    without = [
        f"{cls}.{name}"
        for cls, name in names()
        if ours.class_of(cls) is not None
        and judge(cls, name).state is not State.HAS
        and (judge(cls, name).state in (State.OWN, State.UNKNOWN) or not judge(cls, name).why)
    ]
    assert not without, "give each a place in weft.executor, or a reason in REFUSED or check/absent.py"


def test_every_name_of_ours_is_known() -> None:
    for name in ours.classes():
        assert judge_class(name).state in (State.HAS, State.OTHERWISE, State.OWN)
        for one in ours.names(ours.class_of(name)):  # type: ignore[arg-type]
            assert judge(name, one).state is not State.UNKNOWN


def test_older_names_are_of_the_newest() -> None:
    for older, newest in API.older_names.items():
        cls, _, name = older.partition(".")
        found = API.find(cls)
        assert found is not None and newest in found.names() and name not in found.names()
        assert judge(cls, name).state in (State.OLDER, State.HAS)


def test_older_names_are_those_of_the_errors() -> None:
    for older, said in OLDER_NAMES.items():
        assert said.split(",")[0] == API.older_names[older]


def test_reasons_are_of_names_that_there_are() -> None:
    """What weft has by now is out of the table of what it lacks."""
    for key in ABSENT:
        if key.endswith(".*"):
            within = [name for name in API.classes if name.startswith(key.removesuffix("*"))]
            lacking = [name for name in within if judge_class(name).state is State.ABSENT]
            assert lacking, f"weft has all of {key}; delete it from check/absent.py"
            continue
        *holders, name = key.split(".")
        holder = ".".join(holders)
        has = judge(holder, name).state if holder else judge_class(name).state
        if len(holders) == 2:  # a parameter of a method
            has = State.HAS if _takes(holders[0], holders[1], name) else State.ABSENT
            assert any(one.name == name for one in _theirs(holders[0], holders[1])), key
        assert has is State.ABSENT, f"weft has {key}; delete it from check/absent.py"
    for key in (*REFUSED, *OTHERWISE, *NO_EFFECT, *BY_USE, *PARTLY):
        holder, _, name = key.rpartition(".")
        mine = ours.class_of(holder) if holder else None
        assert not holder or (mine is not None and name in ours.names(mine)) or judge(holder, name).why, key


def _takes(cls: str, method: str, name: str) -> bool:
    return any(one.name == name for one in ours.parameters(cls, method) or ())


def _theirs(cls: str, method: str) -> list[Parameter]:
    return [one for form in API.classes[cls].methods[method] for one in form.parameters]


SUPPORTED = {
    name: [
        one
        for one in cls.constructors[0]
        if judge(name, one.name).state in (State.HAS, State.NO_EFFECT)
        and other_default(name, one.name) is None
    ]
    for name, cls in API.classes.items()
    if cls.constructors and len(cls.constructors) == 1 and judge_class(name).state is State.HAS
}
READABLE = {
    name: [
        one
        for one in (*cls.attributes, *cls.methods)
        if judge(name, one).state in (State.HAS, State.NO_EFFECT)
    ]
    for name, cls in API.classes.items()
    if judge_class(name).state is State.HAS and not cls.members
}


@st.composite
def programs(draw: st.DrawFn) -> str:
    """A program that makes instances with supported parameters, and reads and writes supported names."""
    lines = ["import weft.executor as trtllm", "def act(value):"]
    for at in range(draw(st.integers(1, 6))):
        name = draw(st.sampled_from(sorted(SUPPORTED)))
        chosen = draw(st.lists(st.sampled_from(SUPPORTED[name]), unique=True)) if SUPPORTED[name] else []
        values = ", ".join(f"{one.name}=value" for one in chosen)
        lines.append(f"    made_{at} = trtllm.{name}({values})")
        read = draw(st.lists(st.sampled_from(READABLE[name]), max_size=3)) if READABLE[name] else []
        lines += [f"    made_{at}.{one}" for one in read]
    return "\n".join(lines)


@settings(max_examples=60, deadline=None)
@given(text=programs())
def test_a_program_of_supported_names_has_no_findings(text: str) -> None:
    assert check_source(text) == []


@settings(max_examples=60, deadline=None)
@given(text=programs())
def test_with_their_import_it_has_that_and_defaults_alone(text: str) -> None:
    found = check_source(text.replace("weft.executor", "tensorrt_llm.bindings.executor"))
    assert found[0].kind is FindingKind.IMPORT
    assert {one.kind for one in found[1:]} <= {FindingKind.OTHERWISE}
    assert all("left out" in one.text for one in found[1:])


def test_there_is_enough_to_draw_from() -> None:
    assert len(SUPPORTED) >= 25 and sum(map(len, SUPPORTED.values())) >= 70
