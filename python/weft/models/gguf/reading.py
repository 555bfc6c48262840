"""Converts a GGUF file to a model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from weft.core.files import write_whole
from weft.errors import ModelError
from weft.models.config import DTYPES, parse_decoder
from weft.models.gguf.fields import Metadata, config_json
from weft.models.gguf.layout import check_layout
from weft.models.gguf.names import EMBEDDING, OUTPUT, Entry, entries
from weft.models.gguf.rotation import in_halves
from weft.models.gguf.tokenizer import tokenizer_config_json, tokenizer_json


def gguf_to_directory(file: Path, directory: Path, dtype: str = "bfloat16") -> Path:
    """Convert a GGUF file with a Llama to a model directory: config.json, model.safetensors and the tokenizer's files.

    Quantized weights are dequantized. All weights are stored in `dtype`: "float32", "float16" or "bfloat16". Returns
    the directory.

    Raises `ModelError` or `TokenizerError` if the model or the tokenizer can't be converted.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype is {dtype!r}; it must be {', '.join(map(repr, DTYPES))}")
    reader = _open(file)
    fields = Metadata(reader, file)
    packed = {tensor.name: tensor for tensor in reader.tensors}
    if EMBEDDING not in packed:
        raise ModelError(f"{file}: has no tensor {EMBEDDING!r}")
    vocab_size = int(packed[EMBEDDING].shape[-1])
    files = {
        "config.json": config_json(fields, vocab_size, OUTPUT not in packed, dtype),
        "tokenizer.json": tokenizer_json(fields),
        "tokenizer_config.json": tokenizer_config_json(fields),
    }
    weights = _weights(packed, files["config.json"], file, DTYPES[dtype])
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    for name, contents in files.items():
        write_whole(directory / name, json.dumps(contents, indent=1, ensure_ascii=False).encode())
    return directory


def _open(file: Path) -> Any:
    import gguf  # slow to import

    try:
        check_layout(file)
        return gguf.GGUFReader(file)
    except ModelError:
        raise
    except OSError as error:
        raise ModelError(f"{file}: can't be read: {error.strerror or error}") from error
    except (ValueError, IndexError, KeyError, OverflowError) as error:  # the package checks little
        raise ModelError(f"{file}: can't be read as GGUF; is it one, and not cut short? ({error})") from error


def _weights(
    packed: dict[str, Any], config: dict[str, Any], file: Path, dtype: torch.dtype
) -> dict[str, Tensor]:
    wanted = list(entries(parse_decoder(config, str(file))))
    unknown = sorted(packed.keys() - {entry.gguf for entry in wanted})
    if unknown:
        raise ModelError(
            f"{file}: holds tensors that a plain Llama has no place for: {', '.join(unknown[:3])}"
        )
    return {entry.directory: _tensor(packed, entry, file, dtype) for entry in wanted}


def _tensor(packed: dict[str, Any], entry: Entry, file: Path, dtype: torch.dtype) -> Tensor:
    tensor = packed.get(entry.gguf)
    if tensor is None:
        raise ModelError(f"{file}: has no tensor {entry.gguf!r}")
    import gguf.quants

    try:
        rows = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise ModelError(f"{file}: tensor {entry.gguf!r} can't be unpacked: {error}") from error
    if rows.shape != entry.shape:
        raise ModelError(
            f"{file}: tensor {entry.gguf!r} has shape {list(rows.shape)}; its metadata want {list(entry.shape)}"
        )
    if entry.heads:
        rows = in_halves(rows, entry.heads)
    return torch.from_numpy(np.array(rows, dtype=np.float32)).to(dtype)
