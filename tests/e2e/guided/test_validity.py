"""Every guided answer that ends is valid, by validators that are not weft's: over 2,000 of them, with every drafter."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xgrammar as xgr

from e2e.conftest import Checkpoint, compile_reference, make_guide
from support.engine.drafters import DRAFTERS, save_random_drafters
from support.grammar.guides import GUIDES
from weft import LLM, EngineConfig, SamplingParams
from weft.tiny.records import example, schema_only

MAX_TOKENS = 72
RECORDS, OTHERS = 50, 70
"""In one run: prompts of weft-tiny with the schemas that they ask for, and other guides."""

FINISHED = 80
TEMPERATURES = (0.0, 1.0)

assert len(DRAFTERS) * len(TEMPERATURES) * FINISHED >= 2000


@dataclass(frozen=True)
class Question:
    """A prompt, and the guide of its answer: an entry of GUIDES."""

    prompt: str
    guide: tuple[str, Any]


def questions(seed: int) -> list[Question]:
    """A mixture, another one for each seed."""
    rng = random.Random(seed)
    records = [rng.choice((example, schema_only))(rng, "heldout") for _ in range(RECORDS)]
    own = [Question(record.prompt, ("json_schema", record.schema)) for record in records]
    others = [Question(rng.choice(records).prompt, guide) for guide in rng.sample(GUIDES, OTHERS)]
    return rng.sample(own + others, RECORDS + OTHERS)


def is_valid(text: str, guide: tuple[str, Any], tiny: Checkpoint) -> bool:
    """Whether a whole answer is what the guide asks for."""
    kind, argument = guide
    if kind == "regex":
        return re.fullmatch(argument, text) is not None
    if kind == "choice":
        return text in argument
    if kind == "ebnf":
        matcher = xgr.GrammarMatcher(compile_reference(tiny.compiler, guide))
        return bool(matcher.accept_string(text) and matcher.accept_token(tiny.tokenizer.eos_token_id))
    value = json.loads(text)
    if kind == "json":
        return isinstance(value, dict | list)
    return bool(jsonschema.Draft202012Validator(argument).is_valid(value))


@pytest.fixture(scope="module")
def drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with random drafters that fit weft-tiny, as DRAFTERS names them."""
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_answers_are_valid(tiny: Checkpoint, drafters: Path, drafter: str, temperature: float) -> None:
    seed = list(DRAFTERS).index(drafter) * 2 + TEMPERATURES.index(temperature)
    asked = questions(seed)
    speculation = DRAFTERS[drafter](drafters, 1 + seed % 5)
    engine = EngineConfig(max_batch=8, max_seq_len=512, graphs="split" if seed % 4 == 3 else "one")
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        outputs = llm.generate(
            [question.prompt for question in asked],
            guide=[make_guide(question.guide) for question in asked],
            sampling=[
                SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature, seed=1000 * seed + i)
                for i in range(len(asked))
            ],
        )
    assert [output.error for output in outputs if output.error is not None] == []
    finished = [(o, q) for o, q in zip(outputs, asked, strict=True) if o.finish_reason == "stop"]
    invalid = [(q.guide, o.text) for o, q in finished if not is_valid(o.text, q.guide, tiny)]
    assert invalid == []
    assert all(output.stats.guided_valid for output, _ in finished)
    assert len(finished) >= FINISHED
