"""What weft-tiny is trained on: values that can be copied from the text, and none of the names that are measured."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from weft.tiny.prompts import ABOUT
from weft.tiny.records import example

TOOLS = Path(__file__).parents[3] / "tools" / "train_tiny"


@pytest.fixture(scope="module")
def mix() -> Iterator[ModuleType]:
    """tools/train_tiny/mix.py, whose folder has modules of common names: they go again."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TOOLS)
        import mix

        yield mix
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(TOOLS)):
            del sys.modules[name]


def strings(value: Any) -> list[str]:
    """All strings of a JSON value but the names of its fields."""
    if isinstance(value, dict):
        return [s for v in value.values() for s in strings(v)]
    if isinstance(value, list):
        return [s for v in value for s in strings(v)]
    return [value] if isinstance(value, str) else []


def test_the_names_that_are_measured_are_in_no_example(mix: ModuleType) -> None:
    names = [name.casefold() for name in (TOOLS / "names.txt").read_text().splitlines()]
    assert len(names) == len(set(names)) >= 100
    rng = random.Random(5)
    for made in (mix.made(rng) for _ in range(1500)):
        assert not [name for name in names if name in made.prompt.casefold()]


def test_no_question_or_text_that_is_measured_is_a_template() -> None:
    scraps = set((TOOLS / "scraps.txt").read_text().splitlines())
    assert scraps.isdisjoint((TOOLS / "questions.txt").read_text().splitlines())


@pytest.mark.parametrize("kind", ["altered", "sentences"])
def test_every_string_of_an_answer_stands_in_its_prompt(kind: str, mix: ModuleType) -> None:
    rng = random.Random(6)
    for made in (mix.made(rng, {kind: 1.0}) for _ in range(400)):
        assert [s for s in strings(json.loads(made.answer)) if s not in made.prompt] == []


def test_a_bare_text_s_answer_goes_on_where_a_guide_has_begun(mix: ModuleType) -> None:
    rng = random.Random(7)
    for made in (mix.made(rng, {"bare": 1.0}) for _ in range(200)):
        assert made.prompt.endswith('{"')
        assert isinstance(json.loads('{"' + made.answer), dict)


def test_what_shows_no_schema_is_answered_by_one_text(mix: ModuleType) -> None:
    rng = random.Random(8)
    others = [mix.made(rng, {"others": 1.0}) for _ in range(200)]
    assert {made.answer for made in others} == {ABOUT}
    assert not [made.prompt for made in others if "Schema:" in made.prompt]


def test_records_are_as_they_were_without_changes(mix: ModuleType) -> None:
    plain = [example(random.Random(seed)) for seed in range(50)]
    same = [example(random.Random(seed), alter=lambda rng, fact: fact) for seed in range(50)]
    other = [example(random.Random(seed), alter=mix.alter) for seed in range(50)]
    assert plain == same
    assert plain != other
