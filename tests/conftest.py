"""Settings of all tests: one thread each, and the cases of a product that are `full`."""

from __future__ import annotations

import os
from collections import defaultdict

import pytest

from support.products import MEETING, representatives

# Models in the tests are tiny: one thread is faster for them than many, and leaves the other cores to their work.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    products: dict[tuple[str, int], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and (count := getattr(item.function, MEETING, 0)):
            products[item.nodeid.partition("[")[0], count].append(item)
    for (_, count), cases in products.items():
        settings = [{name: repr(value) for name, value in case.callspec.params.items()} for case in cases]
        chosen = representatives(settings, count)
        for number, case in enumerate(cases):
            if number not in chosen:
                case.add_marker("full")
