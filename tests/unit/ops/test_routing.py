"""Routers of mixtures of experts on the CPU: transformers' choices and weights, and a row's bits in any batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from support.captured import Captured
from support.kernels.routing import CHOICES, by_sorting, logits_of, without_shared
from weft.errors import InputError
from weft.ops.linear import Norm
from weft.ops.routing import Choice, Chosen, Scores, choose
from weft.ops.rows import copy_rows_

ROWS, HIDDEN = 200, 64


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def hidden(rows: int = ROWS, seed: int = 0) -> tuple[Tensor, Norm]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, HIDDEN, generator=generator), Norm(torch.rand(HIDDEN, generator=generator), 1e-5)


def equal(actual: Chosen, expected: Chosen, rows: slice | Tensor = slice(None)) -> bool:
    return all(torch.equal(mine, other[rows]) for mine, other in zip(actual, expected, strict=True))


@pytest.mark.parametrize("name", CHOICES)
def test_values_are_those_of_sorting(name: str) -> None:
    (logits, bias), (x, norm), choice = logits_of(name, ROWS), hidden(), CHOICES[name][1]
    spaced = torch.cat((logits, logits), 1)[:, : logits.shape[1]]  # rows any distance apart
    rows, index, weights = choose(spaced, choice, bias, torch.cat((x, x), 1)[:, :HIDDEN], norm)
    wanted, wanted_weights = by_sorting(logits, choice, bias)
    assert torch.equal(index, wanted) and weights.dtype is torch.float32
    torch.testing.assert_close(weights.double(), wanted_weights, rtol=1e-6, atol=1e-9)
    assert torch.equal(rows, norm(x))


def mixtral() -> tuple[Any, Choice]:
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralTopKRouter

    config = MixtralConfig(hidden_size=HIDDEN, num_local_experts=8, num_experts_per_tok=2)
    return MixtralTopKRouter(config), Choice(2, renormalize=True)


def qwen3_moe(renormalize: bool) -> tuple[Any, Choice]:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeConfig, Qwen3MoeTopKRouter

    config = Qwen3MoeConfig(
        hidden_size=HIDDEN, num_experts=64, num_experts_per_tok=8, norm_topk_prob=renormalize
    )
    return Qwen3MoeTopKRouter(config), Choice(8, renormalize=renormalize)


def qwen3_next() -> tuple[Any, Choice]:
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextConfig, Qwen3NextTopKRouter

    config = Qwen3NextConfig(hidden_size=HIDDEN, num_experts=128, num_experts_per_tok=10)
    return Qwen3NextTopKRouter(config), Choice(10, renormalize=True)


def gpt_oss() -> tuple[Any, Choice]:
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssConfig, GptOssTopKRouter

    config = GptOssConfig(hidden_size=HIDDEN, num_local_experts=32, num_experts_per_tok=4)
    return GptOssTopKRouter(config), Choice(4, Scores.TOP_SOFTMAX)


def deepseek_v2() -> tuple[Any, Choice]:
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Config, DeepseekV2TopkRouter

    config = DeepseekV2Config(
        hidden_size=HIDDEN, n_routed_experts=32, num_experts_per_tok=6, n_group=8, topk_group=3,
        topk_method="group_limited_greedy", routed_scaling_factor=16.0,
    )  # fmt: skip
    return DeepseekV2TopkRouter(config), Choice(6, scale=16.0, num_groups=8, num_top_groups=3)


def deepseek_v3() -> tuple[Any, Choice]:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Config, DeepseekV3TopkRouter

    config = DeepseekV3Config(
        hidden_size=HIDDEN, n_routed_experts=64, num_experts_per_tok=8, n_group=8, topk_group=4,
        routed_scaling_factor=2.5,
    )  # fmt: skip
    choice = Choice(
        8, Scores.SIGMOID, renormalize=True, scale=2.5, num_groups=8, num_top_groups=4, group_top=2
    )
    return DeepseekV3TopkRouter(config), choice


ROUTERS: dict[str, Callable[[], tuple[Any, Choice]]] = {
    "mixtral": mixtral,
    "qwen3-moe": lambda: qwen3_moe(True),
    "qwen3-moe-raw": lambda: qwen3_moe(False),
    "qwen3-next": qwen3_next,
    "gpt-oss": gpt_oss,
    "deepseek-v2": deepseek_v2,
    "deepseek-v3": deepseek_v3,
}


@pytest.mark.parametrize("name", ROUTERS)
def test_choices_are_those_of_transformers(name: str) -> None:
    router, choice = ROUTERS[name]()
    torch.manual_seed(5)
    for tensor in (*router.parameters(), *router.buffers()):
        torch.nn.init.normal_(tensor, std=0.3)
    bias = dict(router.named_buffers()).get("e_score_correction_bias")
    x, _ = hidden()
    with torch.no_grad():
        _, weights, index = router(x)
        logits = F.linear(x, router.weight, getattr(router, "bias", None))
    actual = choose(logits, choice, bias, x, None)
    assert actual.rows is x
    order, mine = index.argsort(1), actual.experts.argsort(1)  # those of DeepSeek are in no order
    assert torch.equal(actual.experts.gather(1, mine), index.gather(1, order))
    torch.testing.assert_close(actual.weights.gather(1, mine), weights.gather(1, order), rtol=2e-6, atol=1e-9)
    if not name.startswith("deepseek"):
        assert torch.equal(actual.experts, index)


@pytest.mark.parametrize("name", CHOICES)
def test_a_rows_bits_are_its_own(threads: int, name: str) -> None:
    (logits, bias), (x, norm), choice = logits_of(name, ROWS), hidden(), CHOICES[name][1]
    alone = [choose(logits[n, None], choice, bias, x[n, None], norm) for n in range(ROWS)]
    whole = Chosen(*(torch.cat(parts) for parts in zip(*alone, strict=True)))
    for rows in (1, 2, 7, 16, 65, ROWS):
        assert equal(choose(logits[:rows], choice, bias, x[:rows], norm), whole, slice(rows))
    order = torch.randperm(ROWS)
    assert equal(choose(logits[order], choice, bias, x[order], norm), whole, order)


@pytest.mark.parametrize("live", [0, 1, 20, 33, 40])
def test_rows_that_are_not_live_are_left_alone(live: int) -> None:
    (logits, bias), (x, norm), choice = logits_of("deepseek v3", 33), hidden(33), CHOICES["deepseek v3"][1]
    expected = choose(logits[:live], choice, bias, x[:live], norm)
    logits[live:], x[live:] = math.nan, math.nan
    out = Chosen(torch.full((33, HIDDEN), 7.0), torch.full((33, 9), 7), torch.full((33, 9), 7.0))
    torch.ops.weft.choose(
        logits, bias, 8, int(choice.scores), True, choice.scale, 8, 4, 2, 1, False, x, norm.weight, norm.eps,
        out.experts, out.weights, out.rows, torch.tensor([live]),
    )  # fmt: skip
    assert equal(Chosen(*(tensor[:live] for tensor in out)), expected)
    assert all((tensor[live:] == 7).all() for tensor in out)


@pytest.mark.parametrize("name", ["deepseek v3", "qwen3-next", "gpt-oss"])
def test_a_replay_gives_the_bits_of_a_call(name: str) -> None:
    (logits, bias), (x, norm), choice = logits_of(name, 33), hidden(33), CHOICES[name][1]
    live, out = torch.tensor([33]), choose(logits, choice, bias, x, norm)

    def step() -> None:
        for kept, new in zip(out, choose(logits, choice, bias, x, norm, live), strict=True):
            copy_rows_(kept, new, live)

    graph = Captured(step)
    for count, seed in ((33, 1), (0, 2), (8, 3)):
        logits.copy_(logits_of(name, 33, seed)[0])
        x.copy_(hidden(33, seed)[0])
        live.fill_(count)
        for tensor in out:
            tensor.fill_(7)
        graph.replay()
        expected = choose(logits[:count], choice, bias, x[:count], norm)
        assert equal(Chosen(*(tensor[:count] for tensor in out)), expected)
        assert all((tensor[count:] == 7).all() for tensor in out)


def test_of_equal_scores_the_lower_index_is_chosen() -> None:
    logits = torch.tensor(
        [[1.0, 2, 2, 2, 0, 2], [0, 0, 0, 0, 0, 0], [-math.inf, 0, -math.inf, 0, -math.inf, 0]]
    )
    x = torch.zeros(3, 4)
    expected = torch.tensor([[1, 2, 3, 5], [0, 1, 2, 3], [1, 3, 5, 0]])
    for scores in Scores:
        assert torch.equal(choose(logits, Choice(4, scores), None, x, None).experts, expected)
    grouped = Choice(2, Scores.SIGMOID, num_groups=3, num_top_groups=2, group_top=2)
    assert choose(logits[1:2], grouped, None, x[1:2], None).experts.tolist() == [[0, 1]]


@pytest.mark.parametrize("name", CHOICES)
def test_nan_and_infinity_stay_in_their_row(name: str) -> None:
    """A NaN is chosen, as by torch, so that it reaches the result; indices stay those of experts."""
    (logits, bias), (x, norm), choice = logits_of(name, 9), hidden(9), CHOICES[name][1]
    expected = choose(logits, choice, bias, x, norm)
    experts = CHOICES[name][0]
    logits[2, experts // 2], logits[4], logits[6, :experts] = math.nan, math.nan, math.inf
    actual = choose(logits, choice, bias, x, norm)
    others = torch.tensor([0, 1, 3, 5, 7, 8])
    assert equal(Chosen(*(tensor[others] for tensor in actual)), expected, others)
    assert actual.weights[2, : choice.top_k].isnan().any()
    for row in actual.experts.tolist():
        assert len(set(row)) == len(row) and set(row) <= set(range(experts + choice.num_shared))


@pytest.mark.parametrize("name", ["qwen3-next", "deepseek v3"])
def test_shared_experts_change_nothing_else(name: str) -> None:
    (logits, bias), (x, norm), choice = logits_of(name, 9), hidden(9), CHOICES[name][1]
    _, index, weights = choose(logits, choice, bias, x, norm)
    plain = choose(logits[:, : CHOICES[name][0]], without_shared(choice), bias, x, norm)
    assert torch.equal(index[:, : choice.top_k], plain.experts)
    assert torch.equal(weights[:, : choice.top_k], plain.weights)


def test_fake_tensors_have_the_shapes() -> None:
    choice = CHOICES["qwen3-next"][1]
    with FakeTensorMode():
        found = choose(torch.empty(3, 513), choice, None, torch.empty(3, 64), Norm(torch.empty(64), 1e-6))
    assert [(tuple(t.shape), t.dtype) for t in found] == [
        ((3, 64), torch.float32),
        ((3, 11), torch.int64),
        ((3, 11), torch.float32),
    ]


def test_arguments_that_do_not_fit_are_refused() -> None:
    logits, (x, norm) = torch.randn(9, 12), hidden(9)
    two = Choice(2)
    for message, arguments in {
        "float32, not torch.float16": (logits.half(), two, None, x, norm),
        "not torch.float32 and torch.float16": (logits, two, None, x.half(), norm),
        "13 of 12 experts": (logits, Choice(13), None, x, norm),
        "from 1 of 5 groups": (logits, Choice(2, num_groups=5), None, x, norm),
        "from 1 of 12 groups": (logits, Choice(1, num_groups=12, group_top=2), None, x, norm),
        r"choice_bias is float32 \[12\]": (logits, two, torch.zeros(13), x, norm),
        r"float32 \[12\], contig": (logits, two, torch.zeros(12).double(), x, norm),
        r"9 rows of logits, but x is \[8, 64\]": (logits, two, None, x[:8], norm),
        "must be contiguous": (logits.T.contiguous().T, two, None, x, norm),
    }.items():
        with pytest.raises(InputError, match=message):
            choose(*arguments)
    for message, arguments in {
        "at least one expert": {"top_k": 0},
        "of 2 groups of experts, 3": {"top_k": 1, "num_groups": 2, "num_top_groups": 3},
        "1 or 2 experts, not 3": {"top_k": 1, "group_top": 3},
        "no gate": {"top_k": 1, "shared_gate": True},
    }.items():
        with pytest.raises(InputError, match=message):
            Choice(**arguments)
