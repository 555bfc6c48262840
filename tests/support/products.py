"""Few cases of a product of parameters: those in which every two values meet, or in which each value comes once.

A test says by a decorator which cases `make test`, CI and `make test-every` run; `tests/conftest.py` marks the others.
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
    """`make test` runs each value of the parameters once, CI every two values together, `make test-every` all cases."""
    setattr(test, CHOSEN, (1, 2))
    return test


def each_value(test: Test) -> Test:
    """`make test` and CI run each value of the test's parameters once, `make test-every` all cases."""
    setattr(test, CHOSEN, (1, 1))
    return test


def rest_slow(test: Test) -> Test:
    """`make test` runs each value of the test's parameters once, CI all cases."""
    setattr(test, CHOSEN, (1, None))
    return test


def marks(cases: Sequence[Mapping[str, Any]], quick: int, in_ci: int | None) -> list[str]:
    """The marker of each case: `quick` and `in_ci` values meet in the cases that each runs. None: CI runs all."""
    kept = sorted(representatives(cases, in_ci)) if in_ci is not None else list(range(len(cases)))
    fast = {kept[number] for number in representatives([cases[number] for number in kept], quick)}
    return ["" if i in fast else "slow" if i in kept else "full" for i in range(len(cases))]


def runs_as_cases(runs: Sequence[Run]) -> list[Any]:
    """Pytest's parameters of runs: those in which each value comes once, and the others as `slow`."""
    settings = [{name: repr(value) for name, value in run.items()} for run in runs]
    return [
        pytest.param(run, id="-".join(map(str, run.values())), marks=[pytest.mark.slow] if mark else [])
        for run, mark in zip(runs, marks(settings, 1, None), strict=True)
    ]


def meetings(run: Mapping[str, Any], count: int) -> set[Any]:
    """The combinations of `count` values in a run, each of another setting."""
    return set(itertools.combinations(sorted(run.items()), count))


def covering(settings: Mapping[str, Sequence[Any]], can_be: Callable[[Run], bool]) -> list[Run]:
    """Runs that cover every pair of values that `can_be`. The result depends on nothing else.

    Each pair of the first two settings' values gets one run, the one with the most new pairs, then the most new
    triples. Runs for the missing pairs follow.
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
    """The indices of few cases that hold every combination of `count` values that all cases hold.

    Each next case adds the most new combinations. A tie goes to the case whose values were used least.
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
