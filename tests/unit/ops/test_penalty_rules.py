"""Penalties as a request chooses them, and biases of any size: from what its slot is written with to what is drawn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.kernels.penalties import trtllm_reference
from support.kernels.random_slots import DTYPES
from support.kernels.rows import rows_params
from weft import SamplingParams
from weft.core.request import MAX_BAD_WORD_TOKENS, PenaltyRule, TokenRules
from weft.engine.device.sampling import SlotSampling, write_tables
from weft.errors import InputError
from weft.ops.slots import SlotParams, sample_slots_
from weft.runtime import CpuRuntime

INF, NAN = float("inf"), float("nan")


def write_slot(
    params: SlotParams,
    asked: SamplingParams,
    rules: TokenRules,
    prompt: list[int],
    vocab: int,
    answer: list[int] | None = None,
) -> None:
    """Make slot 0 that of a request."""
    sampling = SlotSampling(CpuRuntime(), asked, prompt, vocab, answer=answer or (), rules=rules)
    params.records[0] = torch.from_numpy(sampling.record)
    write_tables(params, sampling, 0)


def penalise(logits: Tensor, params: SlotParams, committed: int) -> None:
    """Change one row of logits [1, V] in slot 0, after so many tokens of its text."""
    slot = torch.zeros(1, dtype=torch.int64)
    sample_slots_(logits, slot, slot + committed - 1, slot[None], params)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.3, 1.0, 2.5]), st.integers(0, 12))
def test_penalties_after_temperature_are_tensorrt_llms(seed: int, temperature: float, ignored: int) -> None:
    """Of the whole row, from what its slot is written with to what it is sampled from."""
    g = torch.Generator().manual_seed(seed)
    vocab, prompt = 33, torch.randint(0, 12, (9,), generator=g).tolist()
    answer, drafts = (torch.randint(0, 12, (n,), generator=g).tolist() for n in (5, 3))
    bias = torch.randn(vocab, generator=g)
    penalties = 1.4, 0.7, 0.3
    asked = SamplingParams(
        temperature=temperature,
        repetition_penalty=penalties[0],
        presence_penalty=penalties[1],
        frequency_penalty=penalties[2],
    )
    params = rows_params(2, vocab, bad_words=MAX_BAD_WORD_TOKENS, max_length=40)
    rule = PenaltyRule(counts_prompt=True, prompt_ignore_length=ignored, after_temperature=True)
    write_slot(params, asked, TokenRules(bias=bias, penalties=rule), prompt, vocab, answer)
    logits = torch.randn(4, vocab, generator=g) * 3
    inputs = torch.tensor([[answer[-1], *drafts]])
    left = logits.clone()
    length = torch.tensor([len(prompt) + len(answer) - 1])
    sample_slots_(left, torch.zeros(1, dtype=torch.int64), length, inputs, params)
    for t in range(4):
        said = [*answer, *drafts[:t]]
        expected = trtllm_reference(logits[t], temperature, penalties, bias, prompt, said, ignored)
        torch.testing.assert_close(left[t].double() / temperature, expected, atol=1e-4, rtol=1e-5)


def test_without_the_rule_the_prompt_counts_for_repetition_alone() -> None:
    asked = SamplingParams(temperature=2.0, repetition_penalty=2.0, presence_penalty=1.0)
    params = rows_params(2, 40, bad_words=MAX_BAD_WORD_TOKENS, max_length=20)
    rows = []
    for rule in (
        PenaltyRule(),
        PenaltyRule(counts_prompt=True),
        PenaltyRule(counts_prompt=True, prompt_ignore_length=1),
    ):
        write_slot(params, asked, TokenRules(penalties=rule), [3, 4], 40, [5])
        logits = torch.full((1, 40), 8.0)
        penalise(logits, params, committed=3)
        rows.append(logits[0, 3:7].tolist())
    assert rows == [[4.0, 4.0, 3.0, 8.0], [3.0, 3.0, 3.0, 8.0], [4.0, 3.0, 3.0, 8.0]]
    greedy, late = SamplingParams(presence_penalty=1.0), PenaltyRule(after_temperature=True)
    write_slot(params, greedy, TokenRules(penalties=late), [3, 4], 40, [5])
    logits = torch.full((1, 40), 8.0)
    penalise(logits, params, committed=3)
    assert logits[0, 3:7].tolist() == [8.0, 8.0, 7.0, 8.0]


@pytest.mark.parametrize("rule", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_finite_bias_leaves_numbers(dtype: torch.dtype, rule: bool) -> None:
    """The likeliest are those with the largest bias, all alike, whatever the temperature; -inf forbids."""
    most = torch.finfo(torch.float32).max
    params = rows_params(1, 64, temperature=0.4, seed=1, bad_words=MAX_BAD_WORD_TOKENS, max_length=40)
    bias = torch.zeros(64)
    bias[:8], bias[8:16], bias[16:20] = most, -most, -INF
    asked = SamplingParams(temperature=0.4, repetition_penalty=1000.0, presence_penalty=-1e4)
    rules = TokenRules(bias=bias, penalties=PenaltyRule(after_temperature=rule))
    write_slot(params, asked, rules, [60], 64)
    slot, drawn = torch.zeros(1, dtype=torch.int64), set()
    for position in range(400):
        logits = (torch.randn(1, 64) * 20).to(dtype)
        drawn.add(int(sample_slots_(logits, slot, slot + position, slot[None], params)))
        assert not logits.isnan().any() and logits.isfinite().sum() == 60
    assert drawn == set(range(8))
    params.bias[0, :60] = -INF
    params.bias[0, 60:] = -most
    logits = torch.zeros(1, 64, dtype=dtype)
    assert int(sample_slots_(logits, slot, slot, slot[None], params)) >= 60


def test_both_biases_are_added_and_stay_finite() -> None:
    most = torch.finfo(torch.float32).max
    whole = torch.tensor([most, -most, -INF, 1.0, 0.0])
    asked = SamplingParams(logit_bias={0: 1e4, 1: -1e4, 2: 5.0, 3: 2.0, 4: -INF})
    row = SlotSampling(CpuRuntime(), asked, [1], 5, rules=TokenRules(bias=whole))
    assert row.bias is not None
    assert row.bias.tolist() == [most, -most, -INF, 3.0, -INF]
    for value in (INF, NAN):
        with pytest.raises(InputError, match="NaN or \\+inf"):
            TokenRules(bias=torch.tensor([0.0, value]))
