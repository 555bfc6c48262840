"""The executor's answers by TensorRT-LLM's rules, computed by references of the tests' own; and tenants apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.engine.references import Checkpoint, load
from support.engine.sampling_oracle import decode
from support.executor import PROMPT, answer, request, until_final
from weft import SamplingParams, Speculation, package_model_path
from weft.core.request import PenaltyRule
from weft.executor import Executor, OutputConfig, SamplingConfig
from weft.executor.types import KvCacheConfig

NEAR = 2e-3
LENGTH = 16

ASKED: list[tuple[SamplingConfig, SamplingParams, PenaltyRule]] = [
    (
        SamplingConfig(presence_penalty=3.0, frequency_penalty=0.5, temperature=2.0),
        SamplingParams(LENGTH, presence_penalty=3.0, frequency_penalty=0.5, temperature=2.0, top_k=1, seed=0),
        PenaltyRule(counts_prompt=True, after_temperature=True),
    ),
    (
        SamplingConfig(presence_penalty=4.0, prompt_ignore_length=5),
        SamplingParams(LENGTH, presence_penalty=4.0, temperature=1.0, top_k=1, seed=0),
        PenaltyRule(counts_prompt=True, prompt_ignore_length=5, after_temperature=True),
    ),
    (
        SamplingConfig(top_k=20, temperature=1.5, repetition_penalty=1.3, frequency_penalty=0.4, seed=9),
        SamplingParams(
            LENGTH, top_k=20, temperature=1.5, repetition_penalty=1.3, frequency_penalty=0.4, seed=9
        ),
        PenaltyRule(counts_prompt=True, after_temperature=True),
    ),
    (
        SamplingConfig(top_p=0.95, top_p_decay=0.8, top_p_min=0.2, temperature=3.0),
        SamplingParams(LENGTH, top_p=0.95, top_p_decay=0.8, top_p_min=0.2, temperature=3.0, seed=0),
        PenaltyRule(counts_prompt=True, after_temperature=True),
    ),
    (
        SamplingConfig(no_repeat_ngram_size=2),
        SamplingParams(LENGTH, no_repeat_ngram_size=2),
        PenaltyRule(counts_prompt=True, after_temperature=True),
    ),
]


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return load(package_model_path())


@pytest.mark.parametrize("case", range(len(ASKED)))
@pytest.mark.parametrize("drafts", [False, True])
def test_tokens_are_those_of_the_rules(
    make: Callable[..., Executor], tiny: Checkpoint, case: int, drafts: bool
) -> None:
    config, params, rule = ASKED[case]
    executor = make(speculation=Speculation.ngram(num_draft_tokens=3) if drafts else None)
    tokens = answer(executor, request(LENGTH, sampling_config=config))
    with torch.inference_mode():
        expected = decode(tiny.model, PROMPT, None, set(), params, rule=rule)
    for place, (got, wanted) in enumerate(zip(tokens, expected.tokens, strict=True)):
        if got != wanted:
            assert expected.gaps[place] < NEAR, f"token {place}: {tokens} instead of {expected.tokens}"
            break


def reused(executor: Executor, **fields: Any) -> int:
    """Blocks of the prompt that a request finds."""
    one = request(4, output_config=OutputConfig(return_perf_metrics=True), **fields)
    (response,) = until_final(executor, executor.enqueue_request(one))
    metrics = response.result.request_perf_metrics
    assert metrics is not None
    return metrics.kv_cache_metrics.num_reused_blocks


def test_a_tenant_never_finds_anothers_prefix(make: Callable[..., Executor]) -> None:
    executor = make(kv_cache_config=KvCacheConfig(tokens_per_block=4))
    assert reused(executor) == 0
    assert reused(executor) > 0
    for salt in (0, 1, 2**64 - 1):
        assert reused(executor, cache_salt_id=salt) == 0
        assert reused(executor, cache_salt_id=salt) > 0


def test_a_found_prefix_comes_back_from_the_host(make: Callable[..., Executor]) -> None:
    """The device has room for one request; what another takes the place of is found on the host again."""
    cache = KvCacheConfig(max_tokens=64, tokens_per_block=4, host_cache_size=1 << 22)
    executor = make(kv_cache_config=cache, max_seq_len=48, max_batch_size=1)
    first = answer(executor, request(4))
    other = [(token + 7) % 1000 for token in PROMPT]
    for _ in range(3):
        until_final(executor, executor.enqueue_request(type(request(4))(other, 4)))
        other = [(token + 11) % 1000 for token in other]
    assert reused(executor) > 0
    assert answer(executor, request(4)) == first
