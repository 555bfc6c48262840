"""The few cases of a product that `make test` runs."""

from __future__ import annotations

import itertools

import pytest

from support.products import marks, meetings, representatives

CASES = [
    dict(zip(("drafter", "graphs", "batch"), values, strict=True))
    for values in itertools.product("abcdefg", ["one", "split"], [1, 3, 8])
]


@pytest.mark.parametrize(("count", "most"), [(1, 7), (2, 22), (3, 42)])
def test_so_many_values_meet_as_in_all(count: int, most: int) -> None:
    chosen = representatives(CASES, count)
    assert len(chosen) <= most
    met = set().union(*(meetings(CASES[number], count) for number in chosen))
    assert met == set().union(*(meetings(case, count) for case in CASES))


def test_each_value_comes_about_as_often_as_its_neighbours() -> None:
    chosen = [CASES[number] for number in sorted(representatives(CASES, 1))]
    assert [case["drafter"] for case in chosen] == list("abcdefg")
    for name, values in (("graphs", 2), ("batch", 3)):
        found = [case[name] for case in chosen]
        assert max(map(found.count, found)) - min(map(found.count, found)) <= 1
        assert len(set(found)) == values


@pytest.mark.parametrize("in_ci", [1, 2, None])
def test_the_rest_is_slow_or_full(in_ci: int | None) -> None:
    given = marks(CASES, 1, in_ci)
    num_in_ci = len(CASES) if in_ci is None else len(representatives(CASES, in_ci))
    assert (given.count(""), given.count("slow")) == (7, num_in_ci - 7)
    assert given.count("full") == len(CASES) - num_in_ci
    fast = [case for case, mark in zip(CASES, given, strict=True) if not mark]
    assert {case["drafter"] for case in fast} == set("abcdefg")
