"""GPT-OSS as it is published, with experts in MXFP4, against transformers."""

from __future__ import annotations

import json
import weakref
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from weft.client.model_facts import ModelFacts
from weft.errors import ModelError
from weft.models.architectures import parse_config, read_config
from weft.models.base import Model, PagedKV
from weft.models.in_memory import WeightsInMemory, model_in_memory
from weft.models.loading import load_model
from weft.models.quantized import mxfp4
from weft.models.stored import count_parameters
from weft.ops.attention import Rows
from weft.ops.packing import MAX_THREADS
from weft.ops.quantized import Quantized

LAYERS, EXPERTS, HIDDEN, INNER = 2, 5, 64, 96
PUBLISHED: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "experts_per_token": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initial_context_length": 4096,
    "intermediate_size": INNER,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": 256,
    "model_type": "gpt_oss",
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "num_local_experts": EXPERTS,
    "pad_token_id": 0,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 12,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 101,
}
"""The keys of openai/gpt-oss-20b that matter here, with smaller sizes. It does not name a dtype."""


class Memory(bytearray):
    """The memory of a tensor, to which there may be weak references."""


def write(directory: Path, **changes: Any) -> dict[str, Tensor]:
    """Write a random checkpoint in the published format. Returns its tensors."""
    config = {**PUBLISHED, **changes}
    (directory / "config.json").write_text(json.dumps(config))
    known = {key: value for key, value in config.items() if key != "quantization_config"}
    torch.manual_seed(3)
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**known))
    tensors = {}
    for name, parameter in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            count, inputs, outputs = parameter.shape
            groups = count, outputs, inputs // 32
            tensors[f"{name}_blocks"] = torch.randint(256, (*groups, 16), dtype=torch.uint8)
            # About 1/16 of a number that is at most 6.
            tensors[f"{name}_scales"] = torch.randint(121, 125, groups, dtype=torch.uint8)
        else:
            random = torch.randn(parameter.shape) * 0.15 + (parameter.dim() == 1)
            tensors[name] = random.bfloat16()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return tensors


@torch.inference_mode()
def logits(model: Model, tokens: Tensor) -> Tensor:
    """The logits of a text that is read in two parts."""
    kv = PagedKV.for_model(model, 1 + -(-len(tokens) // 4), 4)
    table = torch.arange(1, kv.num_pages, dtype=torch.int32)[None]
    parts = []
    for begin, end in ((0, 30), (30, len(tokens))):
        rows = Rows(table, torch.tensor([begin]), end - begin)
        parts.append(model.logits(model.forward(tokens[None, begin:end], kv, rows).last)[0])
    return torch.cat(parts)


def numbers(blocks: Tensor, scales: Tensor) -> Tensor:
    """The numbers of a matrix of `blocks` [out, in / 32, 16], bfloat16, as weft reads them."""
    config = parse_config(PUBLISHED, "config.json")[1]
    tensors = {"experts_blocks": blocks[None], "experts_scales": scales[None]}
    source = WeightsInMemory(tensors, config, torch.device("cpu"), Path("here"))
    matrix = source.take_matrices("experts", 1, len(scales), 32 * scales.shape[1])[0]
    assert isinstance(matrix, Quantized)
    return matrix.dequantized(torch.bfloat16)


def test_numbers_are_those_of_transformers() -> None:
    """All bytes with all factors. transformers returns a matrix of 32 G rows for each [out, G, 16]."""
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).expand(255, 16, 16).contiguous()
    scales = torch.arange(255, dtype=torch.uint8)[:, None].expand(255, 16).contiguous()
    wanted = convert_moe_packed_tensors(blocks[None], scales[None])[0].t()
    assert torch.equal(numbers(blocks, scales), wanted)


def test_numbers_have_their_meaning() -> None:
    nibbles = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
    block = torch.tensor([[0x10 + 0x22 * i for i in range(7)] + [0xFE, *[0x0F] * 8]], dtype=torch.uint8)
    (first,) = numbers(block[None], torch.tensor([[129]], dtype=torch.uint8))
    assert first.tolist() == [4 * value for value in [*nibbles, *[-6.0, 0.0] * 8]]
    assert numbers(block[None], torch.tensor([[255]], dtype=torch.uint8)).isnan().all()


def test_a_published_checkpoint_gives_the_logits_of_transformers(tmp_path: Path) -> None:
    write(tmp_path)
    assert read_config(tmp_path)[1].dtype is torch.bfloat16
    model = load_model(tmp_path, activation_dtype="float32")
    assert model.config.why_generic == ""
    plain = transformers.Mxfp4Config(dequantize=True)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, quantization_config=plain, attn_implementation="eager"
    )
    oracle = oracle.eval().float()
    tokens = torch.randint(101, (50,))
    with torch.no_grad():
        wanted = oracle(tokens[None]).logits[0]
    torch.testing.assert_close(logits(model, tokens), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_weights_are_those_of_a_checkpoint_in_16_bits(dtype: str, tmp_path: Path) -> None:
    tensors = write(tmp_path)
    model = load_model(tmp_path, dtype=dtype, activation_dtype="float32")
    for name in [name for name in tensors if name.endswith("_blocks")]:
        whole = name.removesuffix("_blocks")
        tensors[whole] = convert_moe_packed_tensors(tensors.pop(name), tensors.pop(f"{whole}_scales"))
    plain = {key: value for key, value in PUBLISHED.items() if key != "quantization_config"}
    data = {**plain, "dtype": "bfloat16"}
    other = model_in_memory(tensors, data, dtype=dtype, activation_dtype="float32")
    tokens = torch.randint(101, (50,))
    assert torch.equal(logits(model, tokens), logits(other, tokens))


def test_few_matrices_are_in_memory_twice(tmp_path: Path) -> None:
    """The blocks of each are made once, and are gone after they are packed."""
    write(tmp_path, num_local_experts=60)
    made: list[weakref.ref[Memory]] = []
    alive = []

    def noted(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        memory = Memory(prod(shape))
        made.append(weakref.ref(memory))
        alive.append(sum(each() is not None for each in made))
        return torch.frombuffer(memory, dtype=dtype).view(*shape)

    with patch.object(mxfp4, "temporary", noted):
        load_model(tmp_path)
    assert len(made) == LAYERS * 60 * 2, "gates with ups, and downs"
    assert max(alive) <= 2 * MAX_THREADS + 2


def test_parameters_and_bytes_are_counted(tmp_path: Path) -> None:
    tensors = write(tmp_path)
    experts = LAYERS * EXPERTS * 3 * HIDDEN * INNER
    others = sum(t.numel() for name, t in tensors.items() if not name.endswith(("_blocks", "_scales")))
    assert count_parameters(tmp_path) == experts + others
    facts = ModelFacts.read(tmp_path, torch.device("cuda"))
    assert facts.headers.num_parameters == experts + others
    assert facts.weight_bytes == experts // 32 * 17 + 2 * others
    assert facts.weight_dtypes == "MXFP4 and bfloat16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"quantization_config": {"quant_method": "awq"}},
            "is quantised with 'awq', which weft does not read for this architecture",
        ),
        (
            {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}},
            "weft loads checkpoints with only experts in MXFP4",
        ),
        ({"architectures": ["LlamaForCausalLM"]}, "is quantised with 'mxfp4', which weft does not"),
        ({"num_local_experts": 6}, "'model.layers.0.mlp.router.weight' has shape"),
        ({"num_hidden_layers": 3, "layer_types": None}, "the weights have no layer 2"),
    ],
)
def test_other_checkpoints_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**PUBLISHED, **changes}))
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path)


def test_rows_must_be_whole_blocks(tmp_path: Path) -> None:
    write(tmp_path, intermediate_size=80)
    with pytest.raises(ModelError, match=r"down_proj' has rows of 80 numbers .* MXFP4 has blocks of 32"):
        load_model(tmp_path)
