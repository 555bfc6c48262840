"""Drafters under guides that LLGuidance compiles give the tokens of decoding without speculation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import Checkpoint, make_guide
from e2e.drafters import DRAFTERS, save_random_drafters
from e2e.drafting_requests import GUIDED, MAX_TOKENS, ROWS, params, references
from e2e.oracle import Reference, assert_same
from weft import LLM, EngineConfig, Guide, Output

EXACT = [None, "regex", "ebnf", "choice"]
"""Kinds of guides whose masks are the same whatever compiles them."""

OWN = [
    Guide.lark('start: "<" WORD ("," WORD)* ">"\nWORD: /[a-z]{1,6}/'),
    Guide.json_schema({"allOf": [{"type": "integer", "minimum": 10}, {"maximum": 5000}]}),
    Guide.regex(r"(?i)(north|south) \p{Lu}{2,5}"),
    Guide.after("!", Guide.lark('start: "(" start ")" | /[0-9]+/')),
]
"""What XGrammar does not have."""


@pytest.fixture(scope="module")
def random_drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.fixture(scope="module")
def expected(tiny: Checkpoint, prompts: list[str]) -> list[Reference]:
    return references(tiny, prompts)


@pytest.fixture(scope="module")
def plain(tiny: Checkpoint, prompts: list[str], expected: list[Reference]) -> list[Output]:
    """Without speculation, eagerly. Where masks are the same, the tokens are those of transformers with XGrammar."""
    engine = EngineConfig(max_batch=1, max_seq_len=512, graphs="none", grammar="llguidance")
    with LLM(tiny.path, device="cpu", engine=engine) as llm:
        outputs = answers(llm, prompts)
    for output, reference, (guide, temperature) in zip(outputs, expected, ROWS, strict=False):
        entry = GUIDED[guide]
        if (entry[0] if entry is not None else None) in EXACT:
            assert_same(output.token_ids, reference, f"{entry}, temperature {temperature}")
    return outputs


def answers(llm: LLM, prompts: list[str]) -> list[Output]:
    guides = [make_guide(entry) if (entry := GUIDED[guide]) is not None else None for guide, _ in ROWS]
    temperatures = [temperature for _, temperature in ROWS] + [0.0, 1.0, 0.7, 1.0]
    guides += OWN
    return llm.generate(
        prompts[: len(guides)],
        guide=guides,
        sampling=[params(i, temperature) for i, temperature in enumerate(temperatures)],
    )


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("graphs", ["one", "split"])
@pytest.mark.parametrize("drafter", ["eagle3", "eagle3-unguided", "forced+ngram", "random mtp"])
def test_tokens_are_those_without_speculation(
    tiny: Checkpoint,
    prompts: list[str],
    plain: list[Output],
    random_drafters: Path,
    drafter: str,
    graphs: Any,
    batch: int,
) -> None:
    engine = EngineConfig(max_batch=batch, max_seq_len=512, graphs=graphs, grammar="llguidance")
    with LLM(
        tiny.path, device="cpu", speculation=DRAFTERS[drafter](random_drafters, 3), engine=engine
    ) as llm:
        outputs = answers(llm, prompts)
    for output, reference in zip(outputs, plain, strict=True):
        assert output.error is None
        assert output.token_ids == reference.token_ids
        assert len(output.token_ids) <= MAX_TOKENS
