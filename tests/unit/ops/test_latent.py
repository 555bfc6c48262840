"""Multi-head latent attention on the CPU: its products in float64, and whole layers of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from support.activations import NEEDS_AMX
from support.latent import LatentLayer, Sizes
from weft.errors import InputError
from weft.models.memory import Pages
from weft.ops.attention import Heads, Rows, attend
from weft.ops.formats import Activations
from weft.ops.latent import LatentQueries, LatentValues
from weft.ops.linear import Linear, Norm

SIZES = (
    Sizes(4, 48, 32, 16, 64, 32),
    Sizes(3, 0, 24, 8, 70, 33),
    Sizes(5, 33, 130, 4, 31, 129, torch.float16),
    Sizes(16, 96, 128, 64, 512, 128, torch.bfloat16),
    Sizes(2, 0, 1, 2, 1, 1),
)
ROUNDED = [Activations.BFLOAT16, pytest.param(Activations.TWO_BFLOAT16, marks=NEEDS_AMX)]


@pytest.mark.parametrize("count", [1, 5, 17, 230])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products_are_those_in_float64(sizes: Sizes, count: int) -> None:
    layer = LatentLayer(sizes)
    x, attended = layer.rows(count), layer.attended(count)
    got, wanted = layer.queries(Activations.FLOAT32)(x), layer.expected_queries(x)
    torch.testing.assert_close(got.double(), wanted, atol=2e-5, rtol=1e-5)
    got, wanted = layer.values(Activations.FLOAT32)(attended), layer.expected_values(attended)
    torch.testing.assert_close(got.double(), wanted, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 9, 230])
@pytest.mark.parametrize("activations", ROUNDED)
def test_products_of_rounded_rows_are_those_in_float64(activations: Activations, count: int) -> None:
    layer = LatentLayer(SIZES[3])
    x, attended = layer.rows(count), layer.attended(count)
    # Of a product's results, some are near the middle of two numbers in bfloat16 and become the other one.
    tolerance = 5e-3 if activations is Activations.BFLOAT16 else 2e-4
    wanted = layer.expected_queries(x, activations)
    torch.testing.assert_close(
        layer.queries(activations)(x).double(), wanted, atol=tolerance, rtol=tolerance / 2
    )
    wanted = layer.expected_values(attended, activations)
    torch.testing.assert_close(layer.values(activations)(attended).double(), wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("activations", [Activations.FLOAT32, *ROUNDED])
@pytest.mark.parametrize("sizes", [SIZES[0], SIZES[3]], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_has_the_same_bits_alone_and_among_others(
    sizes: Sizes, activations: Activations, threads: int
) -> None:
    if activations is not Activations.FLOAT32 and sizes.dtype is not torch.bfloat16:
        pytest.skip("weights in bfloat16 only")
    layer = LatentLayer(sizes)
    queries, values = layer.queries(activations), layer.values(activations)
    x, attended = layer.rows(205), layer.attended(205)
    torch.set_num_threads(threads)
    try:
        all_queries, all_values = queries(x), values(attended)
        for row in (0, 6, 100, 204):
            assert torch.equal(queries(x[row, None])[0], all_queries[row])
            assert torch.equal(values(attended[row, None])[0], all_values[row])
        assert torch.equal(queries(x[190:199]), all_queries[190:199])
        assert torch.equal(values(attended[190:199]), all_values[190:199])
    finally:
        torch.set_num_threads(1)


def test_weights_of_16_bits_give_the_bits_of_the_same_in_float32() -> None:
    layer, wide = LatentLayer(SIZES[3]), LatentLayer(SIZES[3])
    assert wide.q_up is not None
    wide.q_up, wide.k_up, wide.v_up = wide.q_up.float(), wide.k_up.float(), wide.v_up.float()
    x, attended = layer.rows(7), layer.attended(7)
    assert torch.equal(layer.queries(Activations.FLOAT32)(x), wide.queries()(x))
    assert torch.equal(layer.values(Activations.FLOAT32)(attended), wide.values()(attended))


@pytest.mark.parametrize("activations", [Activations.FLOAT32, *ROUNDED])
@pytest.mark.parametrize("live", [0, 1, 7, 200, 300])
@pytest.mark.parametrize("query", [0, 40])
def test_rows_that_are_not_live_are_neither_read_nor_written(
    live: int, activations: Activations, query: int
) -> None:
    layer = LatentLayer(Sizes(2, query, 24, 8, 70, 33, torch.bfloat16))
    queries, values = layer.queries(activations), layer.values(activations)
    x, attended = layer.rows(230), layer.attended(230)
    wanted_queries, wanted_values = queries(x), values(attended)
    count, live = torch.tensor([live]), min(live, 230)
    x[live:], attended[live:] = float("nan"), float("nan")
    out = torch.full_like(wanted_queries, 7.0)
    q_up = (None, (), None) if queries.q_up is None else queries.q_up.packed
    q_norm, norm = None if queries.q_norm is None else queries.q_norm.weight, layer.kv_norm
    torch.ops.weft.latent_queries(
        x,
        *q_up,
        q_norm,
        1e-6,
        queries.k_up.memory,
        queries.k_up.activations,
        norm.weight,
        norm.eps,
        24,
        8,
        out,
        count,
    )
    assert torch.equal(out[:live], wanted_queries[:live]) and bool((out[live:] == 7).all())
    out = torch.full_like(wanted_values, 7.0)
    torch.ops.weft.latent_values(attended, values.v_up.memory, values.v_up.activations, out, count)
    assert torch.equal(out[:live], wanted_values[:live]) and bool((out[live:] == 7).all())
    assert torch.equal(queries(x, count)[:live], wanted_queries[:live])
    assert torch.equal(values(attended, count)[:live], wanted_values[:live])


@pytest.mark.parametrize("sizes", SIZES[:2], ids=str)
def test_rows_may_lie_apart(sizes: Sizes) -> None:
    layer = LatentLayer(sizes)
    x, attended = layer.rows(9), layer.attended(9)
    for made, rows in ((layer.queries(), x), (layer.values(), attended)):
        wide = torch.full((9, rows.shape[1] + 11), float("nan"))
        wide[:, 5:-6] = rows
        assert torch.equal(made(wide[:, 5:-6]), made(rows))


def test_queries_may_come_from_parts() -> None:
    layer = LatentLayer(SIZES[0])
    assert layer.q_up is not None
    parts = layer.q_up.split((100, 92))
    whole = layer.queries()
    joined = LatentQueries(parts, layer.k_up, layer.q_norm, layer.kv_norm, layer.sizes.rotated)
    assert torch.equal(joined(layer.rows(3)), whole(layer.rows(3)))


def test_wrong_sizes_are_refused() -> None:
    layer = LatentLayer(SIZES[0])
    with pytest.raises(InputError, match=r"4 heads of 32 \+ 8 elements need as many outputs"):
        LatentQueries(layer.q_up, layer.k_up, layer.q_norm, layer.kv_norm, 8)
    with pytest.raises(InputError, match="only compressed queries have a norm"):
        LatentQueries(None, layer.k_up, layer.q_norm, layer.kv_norm, 16)
    with pytest.raises(InputError, match="queries have 192 elements, not 5"):
        LatentQueries(None, layer.k_up, None, layer.kv_norm, 16)(torch.zeros(2, 85))
    with pytest.raises(InputError, match="queries have 48 elements, not 5"):
        layer.queries()(torch.zeros(2, 85))
    with pytest.raises(InputError, match="rows have 256 elements, not 9"):
        layer.values()(torch.zeros(2, 9))
    with pytest.raises(InputError, match=r"activations are torch\.float32, not torch\.float64"):
        layer.values()(torch.zeros(2, 256, dtype=torch.float64))
    with pytest.raises(InputError, match="the last dimension must be contiguous"):
        layer.values()(torch.zeros(256, 2).t())
    with pytest.raises(InputError, match="multiplies F32 by rows in TWO_BFLOAT16"):
        LatentValues(layer.v_up, activations=Activations.TWO_BFLOAT16)


@pytest.mark.parametrize("query", [24, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_is_that_of_transformers(query: int | None, dtype: torch.dtype) -> None:
    """A prompt in two parts and single tokens, against transformers' attention over the whole text. Weights have
    `dtype`, activations are float32 in both."""
    module, config = transformers_layer(query, dtype)
    text = torch.randn(1, 40, 48, generator=torch.Generator().manual_seed(1))
    wanted = transformers_attention(module, config, text)
    layer = AbsorbedLayer(module, config, dtype)
    got = torch.cat(
        [layer(text[0, begin:end], begin) for begin, end in ((0, 20), (20, 38), (38, 39), (39, 40))]
    )
    torch.testing.assert_close(got, wanted, atol=5e-6, rtol=1e-5)


def transformers_layer(query: int | None, dtype: torch.dtype) -> tuple[Any, Any]:
    """A DeepSeek-V3 attention with random weights that `dtype` has, in float32."""
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.8}
    config = DeepseekV3Config(
        hidden_size=48, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=query, kv_lora_rank=32,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=20, max_position_embeddings=64,
        rope_parameters={**rope, "original_max_position_embeddings": 16}, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(3)
    module = DeepseekV3Attention(config, 0).eval()
    with torch.no_grad():
        for name, weight in module.named_parameters():
            weight.copy_(torch.rand_like(weight) + 0.5 if "norm" in name else weight.to(dtype).float())
    return module, config


def rotation(config: Any, length: int) -> tuple[Tensor, Tensor]:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding

    cos, sin = DeepseekV3RotaryEmbedding(config)(torch.zeros(1, 1, 1), torch.arange(length)[None])
    return cos, sin


@torch.no_grad()
def transformers_attention(module: Any, config: Any, text: Tensor) -> Tensor:
    """Its outputs for one text [1, T, hidden]."""
    length = text.shape[1]
    mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
    out: Tensor = module(text, rotation(config, length), mask)[0]
    return out[0]


class AbsorbedLayer:
    """The same attention by weft's operations, over pages."""

    def __init__(self, module: Any, config: Any, dtype: torch.dtype) -> None:
        weights = {name: weight.detach().to(dtype) for name, weight in module.named_parameters()}
        heads, nope, rotated = config.num_attention_heads, config.qk_nope_head_dim, config.qk_rope_head_dim
        latent = config.kv_lora_rank
        kv_up = weights["kv_b_proj.weight"].unflatten(0, (heads, -1))
        kv_norm = Norm(module.kv_a_layernorm.weight.detach(), module.kv_a_layernorm.variance_epsilon)
        first, q_up, q_norm = weights.get("q_proj.weight"), None, None
        if first is None:
            first, q_up = weights["q_a_proj.weight"], weights["q_b_proj.weight"]
            q_norm = Norm(module.q_a_layernorm.weight.detach(), module.q_a_layernorm.variance_epsilon)
        self.down = Linear([first, weights["kv_a_proj_with_mqa.weight"]], activations=Activations.FLOAT32)
        self.queries = LatentQueries(
            q_up, kv_up[:, :nope], q_norm, kv_norm, rotated, activations=Activations.FLOAT32
        )
        self.values = LatentValues(kv_up[:, nope:], activations=Activations.FLOAT32)
        self.out = Linear(weights["o_proj.weight"], activations=Activations.FLOAT32)
        cos, sin = rotation(config, 64)
        table = torch.stack((cos[0, :, : rotated // 2], sin[0, :, : rotated // 2]), -1).contiguous()
        self.heads = Heads(heads, table, module.scaling, first_rotated=latent)
        pages = Pages(1, latent + rotated, latent, values_in_keys=True)
        self.layer = pages.of(torch.full((6, 8, pages.width), float("nan")))
        self.page_table = torch.tensor([[4, 2, 5, 1, 3]], dtype=torch.int32)

    def __call__(self, x: Tensor, position: int) -> Tensor:
        rows = Rows(self.page_table, torch.tensor([position]), len(x))
        return self.out(self.values(attend(self.queries(self.down(x)), self.layer, rows, self.heads)))
