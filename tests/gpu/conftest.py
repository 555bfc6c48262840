"""Which cases are the first tier on a GPU (`smoke` in `tools/gpu/go.py`, marker `gpu_smoke`): two minutes that say
whether the rest is worth running. A few cases of every test, and of the engine's, which are slow, those named here.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest

from support.engine.drafters import save_random_drafters
from support.engine.drafting_requests import references
from support.engine.oracle import Reference
from support.engine.references import Checkpoint, load
from weft.config import package_model_path
from weft.tiny.records import Record, example

MOST = 6
"""Cases of a test that is not named below, evenly among its own."""
NAMED = {
    "test_tokens_are_the_cpus_without_speculation": (
        *("eagle3-one-3-3", "mtp-one-3-3", "draft_model-one-3-3", "ngram-one-3-3", "forced+eagle3-one-8-8"),
        *("eagle3-split-3-3", "ngram-split-3-3"),
    ),
    "test_long_answers_are_the_cpus": ("eagle3-3-one", "plain-3-none"),
    "test_the_way_changes_no_token": ("eagle3-few pages", "none-equal progress"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests: dict[tuple[str, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("gpu") and "gpu" in item.path.parts:
            tests[item.path.name, item.originalname].append(item)
    for (_, name), cases in tests.items():
        if name in NAMED:
            chosen = [case for case in cases if case.callspec.id in NAMED[name]]
        else:
            step = max(1, len(cases) / MOST)
            chosen = [cases[int(i * step)] for i in range(min(MOST, len(cases)))]
        for case in chosen:
            case.add_marker("gpu_smoke")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    rng = random.Random(31)
    return [example(rng, "heldout") for _ in range(24)]


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return load(package_model_path())


@pytest.fixture(scope="module")
def prompts(records: list[Record]) -> list[str]:
    return [record.prompt for record in records]


@pytest.fixture(scope="module")
def random_drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.fixture(scope="module")
def reference(tiny: Checkpoint, prompts: list[str]) -> list[Reference]:
    """Plain decoding on the CPU."""
    return references(tiny, prompts)
