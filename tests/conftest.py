"""Settings of all tests: one thread each, and the cases of a product that are `slow` or `full`."""

from __future__ import annotations

import gc
import os
from collections import Counter, defaultdict
from collections.abc import Generator

import pytest

from support.products import CHOSEN, marks

# Models in the tests are tiny: one thread is faster for them than many, and leaves the other cores to their work.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without the garbage collector, and keep it away from what is collected.

    Thousands of tests and the imported packages live to the end. Each full collection would walk them in vain, for a
    third of a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, object, object]:
    """Mark the cases of products before pytest deselects by marker, and order the tests that remain."""
    _mark_products(items)
    result = yield
    _order(items)
    return result


def _mark_products(items: list[pytest.Item]) -> None:
    products: dict[tuple[str, tuple[int, int | None]], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and (chosen := getattr(item.function, CHOSEN, None)):
            products[item.nodeid.partition("[")[0], chosen].append(item)
    for (_, chosen), cases in products.items():
        settings = [{name: repr(value) for name, value in case.callspec.params.items()} for case in cases]
        for case, mark in zip(cases, marks(settings, *chosen), strict=True):
            if mark:
                case.add_marker(mark)


def _order(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, and then those with many tests. Each process of the tests takes file after
    file, so the processes end at about the same time."""
    sizes = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path not in slow, -sizes[item.path]))


@pytest.fixture(scope="module")
def quick_collection() -> None:
    """For modules that call `gc.collect` often: it walks what they make, and not what the tests before them left."""
    gc.collect()
    gc.freeze()
