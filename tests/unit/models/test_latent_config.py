"""Configs of models with latent attention: sizes, choices of experts, and values that weft's modules refuse."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from weft.errors import ModelError
from weft.models.architectures import parse_config
from weft.models.config import ModelConfig
from weft.models.latent import LatentConfig
from weft.models.memory import token_bytes
from weft.ops.routing import Choice, Scores

DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
"""The config.json of DeepSeek-V3, but for its quantization."""

DEEPSEEK_V2_LITE = {
    **DEEPSEEK_V3,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_experts_per_tok": 6,
    "q_lora_rank": None,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_group": 1,
    "topk_method": "greedy",
}


def parse(data: dict[str, Any], **changes: Any) -> ModelConfig:
    return parse_config({**data, **changes}, "config.json")[1]


def test_deepseek_v3_keeps_latents() -> None:
    config = parse(DEEPSEEK_V3)
    assert isinstance(config, LatentConfig) and not config.why_generic
    assert token_bytes(config.layer_memories, config.dtype) == 61 * (512 + 64) * 2
    growth = 0.1 * 3.6888794541139363 + 1  # of the logarithm of 40
    assert config.attention_scale == pytest.approx(192**-0.5 * growth**2)
    assert config.rope.scaling.attention_factor == 1
    assert config.mixture is not None and config.mixture.dense_layers == (0, 1, 2)
    assert config.mixture.choice == Choice(8, Scores.SIGMOID, True, 2.5, 8, 4, 2, 1)
    assert config.num_mtp_modules == 1


def test_deepseek_v2_chooses_by_softmax() -> None:
    config = parse(DEEPSEEK_V2_LITE)
    assert isinstance(config, LatentConfig) and not config.why_generic
    assert config.query_size == 0
    assert config.mixture is not None
    assert config.mixture.choice == Choice(6, Scores.SOFTMAX, num_shared=2)
    grouped = parse(DEEPSEEK_V2_LITE, topk_method="group_limited_greedy", n_group=8, topk_group=3)
    assert grouped.mixture is not None
    assert grouped.mixture.choice == Choice(6, num_groups=8, num_top_groups=3, num_shared=2)


def test_there_may_be_no_shared_experts() -> None:
    config = parse(DEEPSEEK_V3, n_shared_experts=None, first_k_dense_replace=0)
    assert config.mixture is not None
    assert (config.mixture.choice.num_shared, config.mixture.shared) == (0, "")
    assert config.mixture.dense_layers == ()


@pytest.mark.parametrize(
    ("data", "changes", "key"),
    [
        (DEEPSEEK_V3, {"topk_method": "greedy"}, "topk_method"),
        (DEEPSEEK_V3, {"scoring_func": "softmax"}, "scoring_func"),
        (DEEPSEEK_V3, {"moe_layer_freq": 2}, "moe_layer_freq"),
        (DEEPSEEK_V2_LITE, {"norm_topk_prob": True}, "norm_topk_prob"),
        (DEEPSEEK_V2_LITE, {"mlp_bias": True}, "mlp_bias"),
    ],
)
def test_other_values_are_left_to_transformers(
    data: dict[str, Any], changes: dict[str, Any], key: str
) -> None:
    assert f"{key!r} is {changes[key]!r}" in parse(data, **changes).why_generic


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qk_rope_head_dim": 63}, "'qk_rope_head_dim' is 63; rotary embedding needs an even one"),
        ({"kv_lora_rank": None}, "'kv_lora_rank' is missing"),
        ({"n_group": 7}, "'n_group' is 7; 256 experts can't be divided into these groups"),
        ({"n_group": 256}, "'n_group' is 256; 256 experts"),
        ({"topk_group": 9}, "'topk_group' is 9; there are 8 groups"),
        ({"num_experts_per_tok": 129}, "'num_experts_per_tok' is 129; the chosen groups have 128 experts"),
        ({"first_k_dense_replace": -1}, "'first_k_dense_replace' is -1; it must be 0 or a positive integer"),
        ({"quantization_config": {"quant_method": "hqq"}}, "says that it is quantised with HQQ; use"),
    ],
)
def test_wrong_values_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse(DEEPSEEK_V3, **changes)


def test_glm_names_the_kind_of_each_layer() -> None:
    changes = {"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite"}
    config = parse(DEEPSEEK_V3, **changes)
    assert config.mixture is not None and config.mixture.dense_layers == (0,)
    kinds = ["sparse", *["dense"] * 60]
    config = parse(DEEPSEEK_V3, **changes, mlp_layer_types=kinds)
    assert config.mixture is not None and config.mixture.dense_layers == tuple(range(1, 61))
    with pytest.raises(ModelError, match=r"'mlp_layer_types' is .*; it must name one of dense, sparse"):
        parse(DEEPSEEK_V3, **changes, mlp_layer_types=kinds[1:])


def test_a_null_turns_off_a_scale_of_minicpm3() -> None:
    oracle = transformers.MiniCPM3Config(hidden_size=80, scale_depth=None, dim_model_base=None)
    data = {**oracle.to_dict(), "architectures": ["MiniCPM3ForCausalLM"]}
    config = parse(data)
    assert (config.residual_scale, config.logit_scale) == (1, 1)
    assert parse(data, scale_depth=None, dim_model_base=None) == config
