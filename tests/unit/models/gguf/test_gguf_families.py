"""GGUF files as models: the logits of each architecture are those of transformers' network that a file is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.families import FAMILIES, config_of, make_network
from support.gguf_files import write
from weft.config import model_directory
from weft.models.base import Model, PagedKV
from weft.models.gguf.names import QUANTIZED
from weft.models.loading import load_model
from weft.ops.attention import Rows

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "original_max_position_embeddings": 64,
    "truncate": False,
}
WINDOWED = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied": {"tie_word_embeddings": True},
    "llama biases": {"attention_bias": True, "mlp_bias": True},
    "llama3": {"rope_parameters": LLAMA3},
    "llama linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}},
    "llama yarn": FAMILIES["llama yarn"],
    "mistral": {"sliding_window": None},
    "mixtral": {"sliding_window": None},
    "qwen2": {},
    "qwen2_moe": {"shared_expert_intermediate_size": 48},
    "qwen3": {},
    "qwen3_moe": {"norm_topk_prob": True},
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {**FAMILIES["gemma2"], "query_pre_attn_scalar": 16, "tie_word_embeddings": True},
    "gemma3_text": {
        **FAMILIES["gemma3_text"],
        "query_pre_attn_scalar": 16,
        "num_hidden_layers": 7,
        "layer_types": WINDOWED,
    },
    "phi3": {},
    "phi3 longrope": FAMILIES["phi3 longrope"],
    "granite": FAMILIES["granite"],
    "olmo2": {},
    "olmo3": FAMILIES["olmo3"],
    "smollm3": {},
    "gpt_oss": {"rope_parameters": YARN},
}
TOKENS = torch.arange(3, 43)[None]


@torch.inference_mode()
def logits_of(model: Model) -> Tensor:
    kv = PagedKV.for_model(model, 11, 4)
    rows = Rows(torch.arange(1, 11, dtype=torch.int32)[None], torch.tensor([0]), TOKENS.shape[1])
    return model.logits(model.forward(TOKENS, kv, rows).last)


def network_of(case: str) -> Any:
    family = case.split(" ")[0].removesuffix("3") if case.startswith("llama") else case
    settings = dict(CASES[case])
    network = make_network(config_of(family, settings))
    with torch.no_grad():  # norms and biases as a trained model has them
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return network


KINDS = [*QUANTIZED, "F16", "BF16"]
QUANTIZED_CASES = {
    "llama": {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 2},
    "qwen3_moe": {"hidden_size": 256, "moe_intermediate_size": 256, "num_hidden_layers": 1},
    "gpt_oss": {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", QUANTIZED_CASES)
def test_quantised_files_have_the_logits_of_their_numbers(
    family: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    network = make_network(config_of(family, QUANTIZED_CASES[family]))
    file = write(network, tmp_path / "blocks.gguf", kind)
    plain = write(network, tmp_path / "numbers.gguf", kind, is_dequantized=True)
    found, expected = (
        logits_of(load_model(model_directory(each), dtype="float32")) for each in (file, plain)
    )
    assert torch.equal(found, expected)
    kept = load_model(model_directory(file), activation_dtype="float32")
    assert kept.config.quantization is not None and not kept.config.dequantizes
    assert torch.equal(logits_of(kept), expected)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    network = network_of(case)
    file = write(network, tmp_path / "model.gguf")
    model = load_model(model_directory(file))
    assert not model.config.why_generic
    with torch.inference_mode():
        expected = network(TOKENS).logits
    difference = (logits_of(model) - expected).abs().max() / expected.abs().max()
    assert difference < 2e-6
