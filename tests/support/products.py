"""Few cases of a product of parameters: those in which every two values meet, or in which each value comes once.

`make test` and CI run these of a test under `@pairwise` or `@each_value`. `tests/conftest.py` marks the others `full`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Run = dict[str, Any]


Test = TypeVar("Test", bound=Callable[..., Any])
MEETING = "values_that_meet"


def pairwise(test: Test) -> Test:
    """Every two values of the test's parameters meet in the cases that are not `full`."""
    setattr(test, MEETING, 2)
    return test


def each_value(test: Test) -> Test:
    """Each value of the test's parameters comes once in the cases that are not `full`."""
    setattr(test, MEETING, 1)
    return test


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
