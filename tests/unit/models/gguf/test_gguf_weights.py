"""The tensors of GGUF files as a model takes them: blocks as they are, or their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import pytest
import torch
from torch import Tensor

from support.families import config_of, make_network
from support.gguf_files import write
from weft.client.model_facts import ModelFacts, weights_line
from weft.config import model_directory
from weft.errors import ModelError
from weft.models.architectures import read_config
from weft.models.checkpoint import META, Checkpoint
from weft.models.config import ModelConfig
from weft.models.dtypes import with_dtype
from weft.models.gguf.header import KINDS
from weft.models.gguf.names import DENSE, QUANTIZED
from weft.models.loading import load_model
from weft.models.stored import MappedFiles, gguf_tensors
from weft.ops.formats import Format
from weft.ops.quantized import Quantized
from weft.ops.rows import embed

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {"hidden_size": 256, "moe_intermediate_size": 256, "num_hidden_layers": 1}
NAME, EXPERT = "model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.experts.{}.down_proj.weight"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def network() -> Any:
    return make_network(config_of("qwen3_moe", {**SIZES, "head_dim": 64}))


def stored(file: Path, name: str) -> Any:
    """A tensor as the package gguf reads it."""
    return next(tensor for tensor in gguf.GGUFReader(file).tensors if tensor.name == name)


def numbers(tensor: Any) -> Tensor:
    return torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type)))


def config(file: Path, dtype: str = "auto") -> ModelConfig:
    return with_dtype(read_config(model_directory(file))[1], dtype, CPU)


def test_types_have_the_sizes_of_the_package() -> None:
    named = {int(number): (number.name, *size) for number, size in gguf.GGML_QUANT_SIZES.items()}
    assert {number: tuple(kind) for number, kind in KINDS.items()} == named
    for kind in KINDS.values():
        if kind.name in QUANTIZED:
            block = Format[kind.name].block
            assert (block.inputs, block.bytes) == (kind.inputs, kind.num_bytes)
        else:
            assert (kind.inputs == 1) == (kind.name in DENSE)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_matrices_are_the_blocks_of_the_file(kind: str, network: Any, tmp_path: Path) -> None:
    file = write(network, tmp_path / "model.gguf", kind)
    one, all_of_them = stored(file, "blk.0.attn_output.weight"), stored(file, "blk.0.ffn_down_exps.weight")
    with Checkpoint(file, config(file), CPU) as weights:
        matrix = weights.take_matrix(NAME, 256, 256)
        experts = [weights.take_matrix(EXPERT.format(i), 256, 256) for i in range(6)]
        assert isinstance(matrix, Quantized) and matrix.format is Format[kind]
        assert np.array_equal(matrix.data.numpy(), one.data)
        for expert, rows in zip(experts, all_of_them.data, strict=True):
            assert isinstance(expert, Quantized) and np.array_equal(expert.data.numpy(), rows)
        assert weights.num_bytes == one.n_bytes + all_of_them.n_bytes
        assert weights.matrix_formats == {Format[kind]} and not weights.matrix_dtypes
        dense = weights.take_dense(NAME, 256, 256)
        assert dense.dtype is (torch.bfloat16 if kind == "MXFP4" else torch.float16), "that holds the factors"
        assert torch.equal(dense, numbers(one).to(dense.dtype))
        assert torch.equal(weights.take_float(NAME, 256, 256), numbers(one))
    headers = Checkpoint(file, config(file), META)
    matrix = headers.take_matrix(NAME, 256, 256)
    assert isinstance(matrix, Quantized) and matrix.is_meta and headers.num_bytes == one.n_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_with_a_dtype_matrices_are_numbers(dtype: str, network: Any, tmp_path: Path) -> None:
    file = write(network, tmp_path / "model.gguf", "Q6_K")
    expected = numbers(stored(file, "blk.0.attn_output.weight")).to(getattr(torch, dtype))
    with Checkpoint(file, config(file, dtype), CPU) as weights:
        for matrix in (weights.take_matrix(NAME, 256, 256), weights.take_dense(NAME, 256, 256)):
            assert isinstance(matrix, Tensor) and matrix.dtype is expected.dtype
            assert torch.equal(matrix, expected)
        assert weights.num_bytes == 2 * expected.nbytes and not weights.matrix_formats


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_dense_matrices_keep_their_dtype_and_norms_are_float32(
    kind: str, network: Any, tmp_path: Path
) -> None:
    file = write(network, tmp_path / "model.gguf", kind)
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    with Checkpoint(file, config(file), CPU) as weights:
        matrix = weights.take_matrix(NAME, 256, 256)
        assert isinstance(matrix, Tensor) and matrix.dtype is dtype
        assert torch.equal(matrix.float(), numbers(stored(file, "blk.0.attn_output.weight")))
        norm = weights.take("model.norm.weight", 256)
        assert torch.equal(norm, numbers(stored(file, "output_norm.weight")))


def test_blocks_are_read_by_memory_map(network: Any, tmp_path: Path) -> None:
    file = write(network, tmp_path / "model.gguf", "Q4_K")
    with MappedFiles(gguf_tensors(file)) as files:
        rows = files.take("model.embed_tokens.weight")
        assert rows.dtype is torch.uint8 and rows.shape == (network.config.vocab_size, 144)
        assert np.array_equal(rows.numpy(), stored(file, "token_embd.weight").data)


@pytest.mark.parametrize("kind", ["F16", "Q4_K"])
def test_embeddings_do_not_follow_the_file(kind: str, network: Any, tmp_path: Path) -> None:
    """Somebody may write another model to the file of one that runs."""
    file = write(network, tmp_path / "model.gguf", kind)
    embedding = load_model(model_directory(file)).embedding
    assert isinstance(embedding, Tensor | Quantized)  # and no `Linear`, which would be tied
    tokens = torch.arange(16)
    before = embed(embedding, tokens, torch.float32)
    with file.open("r+b") as opened:
        opened.write(bytes(file.stat().st_size))
    assert torch.equal(embed(embedding, tokens, torch.float32), before)


def test_wrong_shapes_are_refused_by_name(network: Any, tmp_path: Path) -> None:
    file = write(network, tmp_path / "model.gguf", "Q8_0")
    with (
        Checkpoint(file, config(file), CPU) as weights,
        pytest.raises(
            ModelError, match=rf"{file}: tensor '{NAME}' has shape \[256, 256\]; .* wants \[256, 512\]"
        ),
    ):
        weights.take_matrix(NAME, 256, 512)


def test_the_report_counts_blocks(network: Any, tmp_path: Path) -> None:
    file = write(network, tmp_path / "model.gguf", "Q4_K")
    facts = ModelFacts.read(model_directory(file), CPU)
    assert facts.headers.num_parameters == sum(each.numel() for each in network.parameters())
    assert facts.weight_bytes < 1.15 * file.stat().st_size
    assert "with matrices in Q4_K and float32" in weights_line(facts)  # the router is float32
