"""Selects few cases from a product of parameters, such that all pairs of values occur together, or each value occurs
once.

A decorator selects the cases of a test that `make test`, CI and `make test-every` run. `tests/conftest.py` marks the
others.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

Run = dict[str, Any]


Test = TypeVar("Test", bound=Callable[..., Any])
CHOSEN = "values_that_meet"


def pairwise(test: Test) -> Test:
    """`make test` runs each value of the parameters once, CI all pairs of values, and `make test-every` all cases."""
    setattr(test, CHOSEN, (1, 2))
    return test


def each_value(test: Test) -> Test:
    """`make test` and CI run each value of the parameters once, and `make test-every` all cases."""
    setattr(test, CHOSEN, (1, 1))
    return test


def rest_slow(test: Test) -> Test:
    """`make test` runs each value of the parameters once, and CI all cases."""
    setattr(test, CHOSEN, (1, None))
    return test


def every_third(values: Sequence[Any]) -> list[Any]:
    """`make test` runs every third of a parameter's values, and CI all of them."""
    return [
        value if number % 3 == 0 else pytest.param(value, marks=pytest.mark.slow)
        for number, value in enumerate(values)
    ]


def marks(cases: Sequence[Mapping[str, Any]], quick: int, in_ci: int | None) -> list[str]:
    """Return the marker of each case. The quick cases contain every combination of `quick` values, and CI's cases
    every combination of `in_ci` values. None: CI runs all."""
    kept = sorted(representatives(cases, in_ci)) if in_ci is not None else list(range(len(cases)))
    fast = {kept[number] for number in representatives([cases[number] for number in kept], quick)}
    return ["" if i in fast else "slow" if i in kept else "full" for i in range(len(cases))]


def runs_as_cases(runs: Sequence[Run]) -> list[Any]:
    """Make pytest's parameters from runs. A few runs contain each value once; the others are marked `slow`."""
    settings = [{name: repr(value) for name, value in run.items()} for run in runs]
    return [
        pytest.param(run, id="-".join(map(str, run.values())), marks=[pytest.mark.slow] if mark else [])
        for run, mark in zip(runs, marks(settings, 1, None), strict=True)
    ]


def meetings(run: Mapping[str, Any], count: int) -> set[Any]:
    """Return the combinations of `count` settings with their values in a run."""
    return set(itertools.combinations(sorted(run.items()), count))


def covering(settings: Mapping[str, Sequence[Any]], can_be: Callable[[Run], bool]) -> list[Run]:
    """Select runs that cover every pair of values that `can_be` allows. The result is deterministic.

    Each pair of the first two settings' values gets one run: the one with the most new pairs, then with the most new
    triples. Runs for the remaining pairs follow.
    """
    runs = [
        run
        for values in itertools.product(*settings.values())
        if can_be(run := dict(zip(settings, values, strict=True)))
    ]
    pairs, triples = [meetings(run, 2) for run in runs], [meetings(run, 3) for run in runs]
    missing, met = set().union(*pairs), set[Any]()
    first, second, *_ = settings
    groups = [
        [number for number, run in enumerate(runs) if (run[first], run[second]) == values]
        for values in itertools.product(settings[first], settings[second])
    ]
    chosen = []
    for group in itertools.chain(groups, itertools.repeat(range(len(runs)))):
        if not missing:
            break
        best = max(group, key=lambda number: (len(pairs[number] & missing), len(triples[number] - met)))
        chosen.append(runs[best])
        missing -= pairs[best]
        met |= triples[best]
    return chosen


def representatives(cases: Sequence[Mapping[str, Any]], count: int) -> set[int]:
    """Return the indices of few cases that contain every combination of `count` values that occurs in any case.

    The next case is always the one with the most new combinations. A tie goes to the case whose values were used
    least.
    """
    count = min(count, len(cases[0]))
    found = [meetings(case, count) for case in cases]
    missing, uses, chosen = set().union(*found), Counter[Any](), set[int]()
    while missing:
        best = max(
            range(len(cases)),
            key=lambda number: (
                len(found[number] & missing),
                -sum(uses[value] for value in cases[number].items()),
            ),
        )
        chosen.add(best)
        missing -= found[best]
        uses.update(cases[best].items())
    return chosen
