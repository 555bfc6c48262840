"""Families that transformers' code runs, in the whole engine, against transformers' own forwards.

Each family runs with each of `SETTINGS`. `make test` runs one setting for each family without states, and several for
hybrids; CI runs more, and `make test-every` all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pytest

from support.engine.family_runs import Family, Setting, run
from support.families import FAMILIES, HYBRIDS, OWN
from support.products import covering

SETTINGS = [
    Setting(**values)
    for values in covering(
        {
            "drafter": ["none", "eagle3", "ngram", "beams", "lookahead", "given", "forced", "draft_model"],
            "graphs": ["one", "none"],
            "batch": [8, 1],
            "overlap": [False, True],
            "few_pages": [False, True],
        },
        lambda values: values["batch"] > 1 or not values["few_pages"],
    )
]
STRIDE = 5
"""Consecutive families begin this far apart in `SETTINGS`, so that few families have all settings."""


def cases(families: dict[str, Any], quick: int, in_ci: int) -> Iterator[Any]:
    """Each family with each setting. Of the settings of a family, `make test` runs the first `quick` and CI the first
    `in_ci`, counted from a place that rotates."""
    for number, family in enumerate(families):
        for i, setting in enumerate(SETTINGS):
            place = (i - STRIDE * number) % len(SETTINGS)
            marks = () if place < quick else (pytest.mark.slow if place < in_ci else pytest.mark.full,)
            yield pytest.param(family, setting, id=f"{family}-{setting}", marks=marks)


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Family]:
    """Makes a family's checkpoint, and keeps a few."""

    @lru_cache(2)
    def made(name: str) -> Family:
        settings = {**OWN, **FAMILIES, **HYBRIDS}[name]
        return Family.make(name, settings, tmp_path_factory.mktemp("family"))

    return made


@pytest.mark.parametrize(("family", "setting"), [*cases({**OWN, **FAMILIES}, 1, 3), *cases(HYBRIDS, 2, 6)])
def test_answers_are_those_of_transformers(
    make: Callable[[str], Family], family: str, setting: Setting, record_property: Callable[..., None]
) -> None:
    results = run(make(family), setting)
    record_property("family", {"name": family, **results.as_data()})
