"""Few runs in which every two values of different settings meet."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Run = dict[str, Any]


def meetings(run: Mapping[str, Any], count: int) -> set[Any]:
    """What meets in a run: so many values of as many settings."""
    return set(itertools.combinations(sorted(run.items()), count))


def covering(settings: Mapping[str, Sequence[Any]], can_be: Callable[[Run], bool]) -> list[Run]:
    """Runs that cover every pair of values which can be; always the same ones.

    The values of the first two settings meet once each, and the rest is chosen so that most pairs are new, and then
    most triples; at last comes what is still missing.
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
    """Numbers of few cases in which so many values of different settings meet as in all; always the same ones.

    Each next case has the most that is new. Of equals, the one whose values were had least comes first.
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
