"""The decoders on a GPU: eager equals captured equals the CPU's oracle."""

from __future__ import annotations

import pytest
import torch

from support.engine.toy import CapturedLoop, EagerLoop, Tables, oracle
from support.grammar.grammars import some_guides
from weft.grammar import Guide
from weft.runtime import get
from weft.runtime.interface import Runtime

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

FIRSTS = [5, 17, 29, 41, 53]
ORDER = [3, 0, 4, 2, 1]


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return get("cuda")


@pytest.fixture(scope="module")
def guides() -> list[Guide | None]:
    json_schema, ab, lower, _, nested, _ = some_guides()
    return [ab, None, json_schema, nested, lower]


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Tables.make()


@pytest.fixture(scope="module")
def expected(tables: Tables, guides: list[Guide | None]) -> list[list[int]]:
    return [oracle(tables, guide, first) for guide, first in zip(guides, FIRSTS, strict=True)]


@pytest.mark.parametrize("guided_drafts", [True, False])
@pytest.mark.parametrize("max_drafts", [0, 1, 3])
def test_eager_equals_captured_equals_the_oracle(
    runtime: Runtime,
    tables: Tables,
    guides: list[Guide | None],
    expected: list[list[int]],
    max_drafts: int,
    guided_drafts: bool,
) -> None:
    eager = EagerLoop(runtime, tables, guides, ORDER, max_drafts, guided_drafts)
    assert eager.run(FIRSTS) == expected
    for capture in (True, False):
        loop = CapturedLoop(runtime, tables, guides, ORDER, max_drafts, guided_drafts)
        assert loop.run(FIRSTS, capture) == expected
        assert loop.decoder.state.num_failed == 0
