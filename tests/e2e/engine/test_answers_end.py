"""What ends an answer and what is told of it are those of decoding without speculation, with every drafter: ends inside
drafts, stop words, stop tokens, lower limits, log-probabilities. Drafts, batch and graphs: every two of them meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.engine.checkpoints import save_eagle3
from support.engine.drafters import DRAFTERS, save_random_drafters
from support.engine.references import Checkpoint
from support.products import Run, covering, runs_as_cases
from weft import LLM, EngineConfig, Guide, Output, SamplingParams, Speculation

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "count": {"type": "integer"}},
    "required": ["name", "count"],
}
LETTERS = Guide.regex("[a-z ]{200,}")
GUIDES = [Guide.json_schema(SCHEMA), Guide.choice(["yes", "north by northwest"]), LETTERS, None, LETTERS]
WARM: dict[str, Any] = {"temperature": 0.9, "seed": 3, "repetition_penalty": 1.3, "top_k": 20}
WHOLE = [
    SamplingParams(max_tokens=40),
    SamplingParams(max_tokens=40, min_tokens=30, logprobs=0),
    SamplingParams(max_tokens=16, logprobs=4, **WARM),
    SamplingParams(max_tokens=32, temperature=1.0, seed=5),
    SamplingParams(max_tokens=32),
]
RUNS = covering(
    {
        "drafter": list(DRAFTERS),
        "graphs": ["one", "split"],
        "num_drafts": [1, 3, 8],
        "batch": [1, 3, 8],
    },
    can_be=lambda run: True,
)
Rows = list[tuple[str, Guide | None, SamplingParams]]


@pytest.fixture(scope="module")
def random_drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.fixture(scope="module")
def plain() -> Iterator[LLM]:
    """Decoding without speculation, one request at a time."""
    with LLM(device="cpu", engine=EngineConfig(max_batch=1, max_seq_len=512, graphs="none")) as llm:
        yield llm


@pytest.fixture(scope="module")
def rows(plain: LLM, prompts: list[str]) -> Rows:
    """Requests: whole answers, and the same ones ended by what stands in them."""
    found: Rows = list(zip(prompts, GUIDES, WHOLE, strict=False))
    for prompt, guide, sampling in found[3:]:
        (whole,) = answers(plain, [(prompt, guide, sampling)])
        assert len(whole.token_ids) == 32
        word, token = whole.text[9:12], whole.token_ids[9]
        for ended in ({"stop": ["nowhere", word]}, {"stop_token_ids": [token]}):
            for at_least in ({}, {"min_tokens": 20}):
                given: dict[str, Any] = {
                    "max_tokens": 32,
                    "temperature": sampling.temperature,
                    "seed": sampling.seed,
                    **ended,
                    **at_least,
                }
                found.append((prompt, guide, SamplingParams(**given)))
    return found


@pytest.fixture(scope="module")
def expected(plain: LLM, rows: Rows) -> list[Output]:
    outputs = answers(plain, rows)
    assert {type(output.stopped_by) for output in outputs} == {type(None), str, int}
    assert {output.finish_reason for output in outputs} == {"stop", "length"}
    return outputs


def answers(llm: LLM, rows: Rows) -> list[Output]:
    prompts, guides, sampling = zip(*rows, strict=True)
    outputs: list[Output] = llm.generate(list(prompts), guide=list(guides), sampling=list(sampling))
    assert [output.error for output in outputs if output.error is not None] == []
    return outputs


@pytest.mark.parametrize("run", runs_as_cases(RUNS))
def test_answers_end_as_without_speculation(
    rows: Rows, expected: list[Output], random_drafters: Path, run: Run
) -> None:
    speculation = DRAFTERS[run["drafter"]](random_drafters, run["num_drafts"])
    engine = EngineConfig(max_batch=run["batch"], max_seq_len=512, graphs=run["graphs"])
    with LLM(device="cpu", speculation=speculation, engine=engine) as llm:
        outputs = answers(llm, rows)
    for row, output, other in zip(rows, outputs, expected, strict=True):
        assert told(output) == told(other), row
        assert len(output.drafted) == len(output.token_ids)
        assert (output.logprobs is None) == (other.logprobs is None)
        for one, two in zip(output.logprobs or (), other.logprobs or (), strict=True):
            assert one.logprob == pytest.approx(two.logprob, abs=1e-3)
            assert list(one.top.values()) == pytest.approx(list(two.top.values()), abs=1e-3)
    if run["drafter"] in ("eagle3", "mtp", "draft_model", "forced+eagle3") and run["num_drafts"] > 1:
        ended = [output for output in outputs if output.finish_reason == "stop"]
        assert any(output.drafted[-1] for output in ended), "no end was drafted"


def told(output: Output) -> tuple[Any, ...]:
    return output.token_ids, output.text, output.finish_reason, output.stopped_by


@pytest.fixture(scope="module")
def digits(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EAGLE3 head that can say digits alone."""
    path = tmp_path_factory.mktemp("digits") / "head"
    known = [i for i in range(len(tiny.tokenizer)) if tiny.tokenizer.decode([i]).isdecimal()]
    config = tiny.model.config
    save_eagle3(path, config.vocab_size, config.hidden_size, config.num_hidden_layers, draft_vocab=len(known))
    weights = load_file(path / "model.safetensors")
    weights["d2t"] = torch.tensor(known) - torch.arange(len(known))
    save_file(weights, path / "model.safetensors")
    return path


PRUNED = covering(
    {
        "num_drafts": [1, 3, 8],
        "graphs": ["one", "split", "none"],
        "before": ["nothing", "forced", "ngram", "forced and ngram"],
        "masked": [True, False],
        "batch": [1, 3, 8],
    },
    can_be=lambda run: True,
)


@pytest.mark.parametrize("run", runs_as_cases(PRUNED))
def test_a_pruned_vocabulary_behind_each_proposer(
    plain: LLM, prompts: list[str], digits: Path, run: Run
) -> None:
    """Letters that the head can't say, digits that it can, and both in turn beside forced text."""
    head = Speculation.eagle3(digits, num_draft_tokens=run["num_drafts"], guide_drafts=run["masked"])
    before = {
        "nothing": (),
        "forced": ("forced",),
        "ngram": ("ngram",),
        "forced and ngram": ("forced", "ngram"),
    }
    speculation = Speculation(
        (*before[run["before"]], *head.drafters), head.num_draft_tokens, head.path, head.guide_drafts
    )
    patterns = (
        "[a-z]{30}",
        "[0-9]{30}",
        "([a-z]{2}[0-9]{3})+",
        "Number [0-9]{4}, letter [a-z], no more",
        None,
    )
    rows: Rows = [
        (
            prompt,
            Guide.regex(pattern) if pattern is not None else None,
            SamplingParams(max_tokens=12, temperature=float(i % 2), seed=i),
        )
        for i, (prompt, pattern) in enumerate(zip(prompts, patterns, strict=False))
    ]
    engine = EngineConfig(max_batch=run["batch"], max_seq_len=512, graphs=run["graphs"])
    with LLM(device="cpu", speculation=speculation, engine=engine) as llm:
        outputs = answers(llm, rows)
    assert [told(output) for output in outputs] == [told(output) for output in answers(plain, rows)]
