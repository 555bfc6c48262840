"""Mixtures of experts of transformers' models: weft's function gives the values of transformers' code, or refuses."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig

from support.experts import routed
from weft.errors import ModelError
from weft.models.generic.calls import NAME, Calls
from weft.models.generic.experts import pack_experts
from weft.ops.activation import Activation, Function
from weft.ops.formats import DENSE_FORMATS, Activations
from weft.ops.packing import PackingThreads

HIDDEN, EXPERTS, INNER = 48, 8, 40
SILU = Activation(Function.SILU)
CLAMPED = Activation(Function.SILU, slope=1.702, limit=7.0, shift=1.0)
DBRX = {"d_model": HIDDEN, "ffn_config": {"ffn_hidden_size": INNER, "moe_num_experts": EXPERTS}}


def experts_of(family: str, name: str, **settings: Any) -> nn.Module:
    """An experts module of transformers with random weights."""
    names = "num_experts", "num_local_experts", "n_routed_experts"
    sizes = {"hidden_size": HIDDEN, "moe_intermediate_size": INNER, "intermediate_size": INNER}
    sizes |= dict.fromkeys(names, EXPERTS)
    known = {**sizes, **settings}
    defaults = AutoConfig.for_model(family).to_dict()
    config = AutoConfig.for_model(
        family, **{key: value for key, value in known.items() if key in defaults or key in settings}
    )
    package = family.removesuffix("_text")
    modeling = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    torch.manual_seed(3)
    config = getattr(config, "ffn_config", config)  # of DBRX
    module: nn.Module = getattr(modeling, name)(config)
    for parameter in module.parameters():
        parameter.requires_grad_(False).normal_(0, 0.3)
    module.config = config
    return module


def run(module: nn.Module, implementation: str, rows: int) -> Tensor:
    module.config._experts_implementation = implementation
    x, index, weights = routed(rows, EXPERTS, 3, HIDDEN)
    result: Tensor = module(4 * x, index, weights)
    return result.view(x.shape)


KNOWN = [
    ("mixtral", "MixtralExperts", {}, SILU),
    ("qwen3_moe", "Qwen3MoeExperts", {}, SILU),
    ("deepseek_v3", "DeepseekV3Experts", {}, SILU),
    ("gpt_oss", "GptOssExperts", {}, CLAMPED),
    ("lfm2_moe", "Lfm2MoeExperts", {}, SILU),
    ("dbrx", "DbrxExperts", DBRX, SILU),
    ("longcat_flash", "LongcatFlashExperts", {"zero_expert_num": 3, "n_routed_experts": 5}, SILU),
    ("nemotron_h", "NemotronHExperts", {}, Activation(Function.RELU_SQUARED)),
    ("deepseek_v4", "DeepseekV4Experts", {"swiglu_limit": 3.0}, Activation(Function.SILU, limit=3.0)),
    ("hy_v4", "HYV4Experts", {"swiglu_limit": 2.0}, Activation(Function.SILU, limit=2.0)),
    ("mixtral", "MixtralExperts", {"hidden_act": "gelu"}, Activation(Function.GELU)),
    ("mixtral", "MixtralExperts", {"hidden_act": "gelu_pytorch_tanh"}, Activation(Function.GELU_TANH)),
    ("mixtral", "MixtralExperts", {"hidden_act": "quick_gelu"}, Activation(Function.SILU, slope=1.702)),
    ("mixtral", "MixtralExperts", {"hidden_act": "relu"}, Activation(Function.RELU)),
]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("family", "name", "settings", "activation"),
    [pytest.param(*case, id=f"{case[1]}-{case[3].function.name.lower()}") for case in KNOWN],
)
def test_values_are_transformers(
    family: str,
    name: str,
    settings: dict[str, Any],
    activation: Activation,
    dtype: torch.dtype | None,
) -> None:
    module = experts_of(family, name, **settings)
    if dtype is not None:  # transformers' code gets the rounded weights in float32
        for key, parameter in module.named_parameters():
            if not key.endswith("bias"):
                parameter.copy_(parameter.to(dtype))
    expected = [run(module, "eager", rows) for rows in (1, 9, 40)]
    with PackingThreads(Activations.FLOAT32):
        packed = pack_experts(module, dtype)
    assert packed.activation == activation
    assert packed.up.parts[0] is DENSE_FORMATS[dtype or torch.float32]
    assert not list(module.parameters())
    for rows, values in zip((1, 9, 40), expected, strict=True):
        scale = values.abs().max()
        torch.testing.assert_close(run(module, NAME, rows) / scale, values / scale, rtol=0, atol=1e-5)


def test_rows_that_are_not_live_are_left_out() -> None:
    module = experts_of("mixtral", "MixtralExperts")
    pack_experts(module)
    expected = run(module, NAME, 9)
    live = torch.tensor([4])
    with Calls(live=live, count=9):
        assert torch.equal(run(module, NAME, 9)[:4], expected[:4])
        live.fill_(9)
        assert torch.equal(run(module, NAME, 9), expected)


@pytest.mark.parametrize(
    ("family", "name", "settings", "message"),
    [
        ("llama4_text", "Llama4TextExperts", {}, "Llama4TextExperts: this class does not call"),
        (
            "muse_spark_text",
            "MuseSparkExperts",
            {"num_attention_heads": 4},
            "MuseSparkExperts: weft has no norm after each expert",
        ),
        ("inkling2_text", "Inkling2Experts", {}, r"Inkling2Experts: .* activation \(Inkling2Softcapped"),
        ("mixtral", "MixtralExperts", {"hidden_act": "mish"}, r"MixtralExperts: .* activation \(Mish"),
        (
            "mixtral",
            "MixtralExperts",
            {"hidden_act": "gelu_10"},
            r"MixtralExperts: .* activation \(ClippedGELU",
        ),
    ],
)
def test_unknown_forms_are_refused_by_name(
    family: str, name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        pack_experts(experts_of(family, name, **settings))


def test_unknown_tensors_are_refused_by_name() -> None:
    module = experts_of("mixtral", "MixtralExperts")
    module.register_buffer("scale", torch.ones(1))
    with pytest.raises(ModelError, match=r"has the tensors \['down_proj', 'gate_up_proj', 'scale'\]"):
        pack_experts(module)
    module = experts_of("mixtral", "MixtralExperts")
    module.down_proj = nn.Parameter(torch.ones(2, 2, 2).to(torch.uint8), requires_grad=False)
    with pytest.raises(ModelError, match=r"'down_proj' is torch\.uint8; load the weights dequantized"):
        pack_experts(module)


def test_a_module_that_is_not_packed_is_refused() -> None:
    with pytest.raises(ModelError, match="MixtralExperts: call pack_experts"):
        run(experts_of("mixtral", "MixtralExperts"), NAME, 1)
