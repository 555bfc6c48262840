"""The peak of memory while quantised models load: little more than their files, whose bits are copied once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from support.gguf_files import add_sizes, finish, tensors
from support.loading_peak import PEAK
from support.quantised import CASES
from weft import package_model_path
from weft.config import model_directory
from weft.models.gguf.tokenizer import add_tokenizer

SIZES = {
    "vocab_size": 20_000,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}
LAYERS = {"Q8_0": 12, "Q4_K": 24, "awq-128": 24, "fp8-blocks": 12}
"""The layers of a file of some 200 MB in each format."""


def network(num_layers: int, is_tied: bool) -> Any:
    """A Llama without contents."""
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                **SIZES, num_hidden_layers=num_layers, tie_word_embeddings=is_tied, dtype=torch.bfloat16
            )
        )


def write_gguf(kind: str, is_tied: bool, directory: Path) -> Path:
    """Write a file of random blocks. Returns its directory as a model."""
    llama, number = network(LAYERS[kind], is_tied), gguf.GGMLQuantizationType[kind]
    inputs, num_bytes = gguf.GGML_QUANT_SIZES[number]
    writer = gguf.GGUFWriter(directory / "model.gguf", "llama")
    add_sizes(writer, llama.config)
    add_tokenizer(writer, package_model_path(), SIZES["vocab_size"])
    rng = np.random.default_rng(0)
    for name, rows in tensors(llama.state_dict(), llama.config, "llama"):
        if rows.ndim == 1:
            writer.add_tensor(name, np.ones(rows.shape, np.float32))
        else:
            blocks = rng.integers(0, 256, (rows.shape[0], rows.shape[1] // inputs * num_bytes), np.uint8)
            writer.add_tensor(name, blocks, raw_dtype=number)
    return model_directory(finish(writer, directory / "model.gguf"))


def write_safetensors(kind: str, is_tied: bool, directory: Path) -> Path:
    """Write a checkpoint of random codes."""
    llama, case = network(LAYERS[kind], is_tied), CASES[kind]
    stored = {}
    for name, weight in llama.state_dict().items():
        if name == "lm_head.weight" and is_tied:
            continue
        if weight.dim() == 2 and ".layers." in name:
            stored |= case.write(name.removesuffix(".weight"), *weight.shape)
        else:
            stored[name] = torch.ones(weight.shape, dtype=torch.bfloat16)
    save_file(stored, directory / "model.safetensors")
    config = {**llama.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": case.settings}))
    return directory


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("kind", [*LAYERS])
def test_the_peak_is_little_more_than_the_file(
    kind: str, is_tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    write = write_safetensors if kind in CASES else write_gguf
    directory = write(kind, is_tied, tmp_path)
    num_bytes = next(tmp_path.glob("model.*")).stat().st_size
    run = subprocess.run(
        [sys.executable, "-c", PEAK, str(directory)], capture_output=True, text=True, timeout=300, check=True
    )
    assert 0.7 * num_bytes < int(run.stdout) < 1.15 * num_bytes
