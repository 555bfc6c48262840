"""Random drafters, and what requests give without any."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine.drafters import save_random_drafters
from support.engine.protocol_requests import GUIDES, SAMPLINGS, make_llm
from support.engine.references import Checkpoint
from weft import LLM


@pytest.fixture(scope="module")
def drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with random drafters that fit weft-tiny, as DRAFTERS names them."""
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.fixture(scope="module")
def plain() -> Iterator[LLM]:
    """Decoding without speculation, one request at a time."""
    with make_llm(max_batch=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(plain: LLM, prompts: list[str]) -> list[list[int]]:
    """The tokens of GUIDES and SAMPLINGS, each by itself."""
    rows = zip(prompts, GUIDES, SAMPLINGS, strict=False)
    return [plain.generate(p, guide=g, sampling=s).token_ids for p, g, s in rows]
