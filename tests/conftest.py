"""What all tests share: one thread each, and which cases of a product `make test` runs."""

from __future__ import annotations

import os
from collections import defaultdict

import pytest

from support.pairwise import representatives

# Models in the tests are tiny: one thread is faster for them than many, and leaves the other cores to their work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

MEETING = {"pairwise": 2, "each_value": 1}
"""Marks of products, and how many values meet in the cases that `make test` runs of them. The others get `full`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    products: dict[tuple[str, int], list[pytest.Function]] = defaultdict(list)
    for item in items:
        for mark, count in MEETING.items():
            if isinstance(item, pytest.Function) and item.get_closest_marker(mark):
                products[item.nodeid.partition("[")[0], count].append(item)
    for (_, count), cases in products.items():
        settings = [{name: repr(value) for name, value in case.callspec.params.items()} for case in cases]
        chosen = representatives(settings, count)
        for number, case in enumerate(cases):
            if number not in chosen:
                case.add_marker("full")
