"""Converts a GGUF file to a model directory in safetensors."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from weft.core.files import write_whole
from weft.errors import ModelError
from weft.models.architectures import parse_config
from weft.models.config import DTYPES, ModelConfig
from weft.models.gguf.config import config_json
from weft.models.gguf.directory import contents_of
from weft.models.gguf.header import Header
from weft.models.gguf.names import QUANTIZED, family_of, switches
from weft.models.gguf.parts import read_model_header
from weft.models.gguf.rotation import in_halves
from weft.models.stored import MappedFiles, gguf_tensors
from weft.ops.formats import Format
from weft.ops.quantized import Quantized

PARTS = ("attention_bias", "output_bias", "mlp_bias", "fused_qkv", "fused_gate_up")
"""The fields of a config that decide which tensors there are."""


def gguf_to_directory(file: Path, directory: Path, dtype: str = "bfloat16") -> Path:
    """Convert a GGUF file to a model directory: config.json, model.safetensors, generation_config.json and the
    tokenizer's files.

    Quantized weights are dequantized. All weights are stored in `dtype`: "float32", "float16" or "bfloat16". Returns
    the directory.

    Raises `ModelError` or `TokenizerError` if the model or the tokenizer can't be converted.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype is {dtype!r}; it must be {', '.join(map(repr, DTYPES))}")
    header = read_model_header(file)
    found = switches(header)
    given = {key: found[key] for key in ("attention_bias", "mlp_bias")} | {"dtype": dtype}
    _, config = parse_config({**config_json(header), **given}, f"{file}: config")
    if config.sink_logits or any(getattr(config, part) != found[part] for part in PARTS):
        raise ModelError(f"{file}: can't be converted; give the file itself as the model")
    contents = contents_of(file, given)
    weights = _weights(header, config)
    directory.mkdir(parents=True, exist_ok=True)
    rounded = {name: weights[name].to(DTYPES[dtype]).contiguous() for name in [*weights]}
    save_file(rounded, directory / "model.safetensors", metadata={"format": "pt"})
    for name, data in contents.items():
        write_whole(directory / name, data)
    return directory


def _weights(header: Header, config: ModelConfig) -> dict[str, Tensor]:
    """The tensors as a checkpoint has them: with the rows of heads in its order, and norms around its offset."""
    tensors = gguf_tensors(header.file)
    weights: dict[str, Tensor] = {}
    with MappedFiles(tensors) as files:
        for name, stored in tensors.items():
            tensor = files.take(name)
            if stored.dtype in QUANTIZED:
                tensor = Quantized(tensor, Format[stored.dtype], stored.shape[-1]).dequantized()
            if family_of(header).adjacent_pairs and name.endswith(("q_proj.weight", "q_proj.bias")):
                tensor = in_halves(tensor, config.num_heads)
            elif family_of(header).adjacent_pairs and name.endswith(("k_proj.weight", "k_proj.bias")):
                tensor = in_halves(tensor, config.num_kv_heads)
            elif config.norm_offset and name.endswith("norm.weight"):
                tensor = tensor.float() - config.norm_offset
            weights[name] = tensor
    return weights
