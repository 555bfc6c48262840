"""Whose the log-probabilities are, as an engine is made: against the rows of a reference, with each drafter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from support.engine.references import Checkpoint
from support.engine.requests import make_request, run
from support.kernels.penalties import trtllm_reference
from support.products import each_value
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.config import Logprobs
from weft.core.request import PenaltyRule, TokenRules
from weft.errors import InputError

SPECULATIONS = {
    "none": Speculation.none(),
    "eagle3": Speculation.eagle3(num_draft_tokens=3),
    "mtp": Speculation.mtp(num_draft_tokens=2),
    "ngram": Speculation.ngram(num_draft_tokens=4),
    "given": Speculation.given(num_draft_tokens=5),
}
PENALTIES = {"repetition_penalty": 1.2, "presence_penalty": 0.8, "frequency_penalty": 0.3}
RULE = PenaltyRule(counts_prompt=True, after_temperature=True)
MIXES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "top-k": {"temperature": 2.0, "top_k": 4},
    "top-k of one": {"temperature": 0.5, "top_k": 1},
    "top-k, top-p": {"temperature": 1.3, "top_k": 20, "top_p": 0.7},
    "top-p": {"temperature": 1.5, "top_p": 0.8},
    "min-p": {"temperature": 1.5, "min_p": 0.1},
    "penalties": {"temperature": 0.7, "top_k": 9, **PENALTIES},
    "n-grams": {"temperature": 1.2, "top_k": 5, "no_repeat_ngram_size": 1},
}
LETTERS = Guide.regex("[a-z ]{10,}")


def rows_of(
    tiny: Checkpoint, prompt: list[int], answer: list[int], sampling: SamplingParams, rule: PenaltyRule
) -> Tensor:
    """What is sampled from at each token of an answer, as logits / temperature, before any truncation: [n, V]."""
    with torch.inference_mode():
        logits = tiny.model(torch.tensor([[*prompt, *answer]])).logits[0].float()
    heat, vocab = sampling.temperature or 1.0, logits.shape[1]
    penalties = sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty
    rows = []
    for n in range(len(answer)):
        row = logits[len(prompt) + n - 1]
        assert rule is RULE or penalties == (1, 0, 0)
        row = trtllm_reference(row, heat, penalties, torch.zeros(vocab), prompt, answer[:n])
        if sampling.no_repeat_ngram_size == 1:
            row[[*prompt, *answer[:n]]] = -math.inf
        if sampling.min_p:
            row[row - row.max() < math.log(sampling.min_p)] = -math.inf
        rows.append(row)
    return torch.stack(rows)


def expected_logprob(row: Tensor, token: int, kind: Logprobs, sampling: SamplingParams) -> float:
    """TensorRT-LLM's: of the whole vocabulary, or of the top-k's, and after min-p either way."""
    top_k = sampling.top_k if sampling.temperature else 1
    if kind == "normalized" and top_k:
        return float(row[token] - row.topk(top_k).values.logsumexp(0))
    return float(row.log_softmax(0)[token])


@each_value
@pytest.mark.parametrize("kind", ["sampled", "normalized"])
@pytest.mark.parametrize("speculation", sorted(SPECULATIONS))
@pytest.mark.parametrize("graphs", ["one", "none"])
def test_they_are_those_of_what_is_sampled_from(
    tiny: Checkpoint, prompts: list[str], kind: Logprobs, speculation: str, graphs: Any
) -> None:
    engine = EngineConfig(
        max_batch=4, max_seq_len=512, graphs=graphs, logprobs=kind, kv_cache_dtype="float32"
    )
    with LLM(tiny.path, device="cpu", speculation=SPECULATIONS[speculation], engine=engine) as llm:
        asked = [
            (SamplingParams(max_tokens=14, seed=i, logprobs=3, **mix), i)
            for i, mix in enumerate(MIXES.values())
        ]
        requests = [
            make_request(
                llm,
                prompts[i],
                sampling,
                rules=TokenRules(penalties=RULE),
                given=[5, 6, 7] if speculation == "given" else (),
            )
            for sampling, i in asked
        ]
        run(llm, requests)
    for request, (sampling, _), mix in zip(requests, asked, MIXES, strict=True):
        output = request.output
        assert output.error is None and output.logprobs is not None
        rows = rows_of(tiny, request.prompt, output.token_ids, sampling, RULE)
        for row, token, found in zip(rows, output.token_ids, output.logprobs, strict=True):
            assert found.logprob == pytest.approx(expected_logprob(row, token, kind, sampling), abs=2e-3), mix
            whole = float(row.log_softmax(0)[token])
            assert found.unnormalized == pytest.approx(whole, abs=2e-3), mix
            for other, value in found.top.items():
                likely = expected_logprob(row, other, kind, sampling)
                assert value == -math.inf or value == pytest.approx(likely, abs=2e-3), mix
    greedy, one = requests[0].output.logprobs, requests[2].output.logprobs
    assert greedy is not None and one is not None
    if kind == "normalized":
        assert {found.logprob for found in (*greedy, *one)} == {0.0}
        assert all(list(found.top.values())[1:] == [-math.inf] * 2 for found in greedy)
    else:
        assert any(found.logprob < 0 for found in one)


@pytest.mark.parametrize("kind", ["sampled", "normalized"])
def test_a_guide_leaves_its_own(tiny: Checkpoint, prompts: list[str], kind: Logprobs) -> None:
    """What it forbids has no probability, and what is left sums to 1."""
    engine = EngineConfig(max_batch=2, max_seq_len=512, logprobs=kind)
    with LLM(
        tiny.path, device="cpu", speculation=Speculation.eagle3(num_draft_tokens=3), engine=engine
    ) as llm:
        sampling = SamplingParams(max_tokens=10, temperature=1.4, top_k=5, seed=4, logprobs=5)
        free, guided = llm.generate([prompts[0]] * 2, guide=[None, LETTERS], sampling=sampling)
        assert free.logprobs is not None and guided.logprobs is not None
        for found in (*free.logprobs, *guided.logprobs):
            total = sum(math.exp(value) for value in found.top.values())
            assert total == pytest.approx(1.0, abs=1e-5) if kind == "normalized" else total < 1 + 1e-5
        letters = {
            token for token in range(len(llm.tokenizer)) if llm.tokenizer.decode([token]).strip().isalpha()
        }
        assert any(found.forbidden or set(found.top) <= letters for found in guided.logprobs)


def test_raw_is_the_default_and_others_are_refused(tiny: Checkpoint, prompts: list[str]) -> None:
    with pytest.raises(InputError, match="logprobs is 'own'; it must be \"raw\""):
        EngineConfig(logprobs="own")  # type: ignore[arg-type]
    assert EngineConfig().logprobs == "raw"
