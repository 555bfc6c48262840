"""Makes a model of tensors in memory instead of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.errors import ModelError
from weft.models.architectures import parse_config
from weft.models.base import Model
from weft.models.checkpoint import META, Checkpoint
from weft.models.config import ModelConfig
from weft.models.dtypes import with_dtype
from weft.models.loading import build_model
from weft.models.stored import DTYPES, MappedFiles, Stored
from weft.ops.packing import activations_named


class WeightsInMemory(Checkpoint):
    """A checkpoint whose tensors are in a mapping in memory."""

    def __init__(
        self, tensors: Mapping[str, Tensor], config: ModelConfig, device: torch.device, where: Path
    ) -> None:
        wrong = [name for name, tensor in tensors.items() if not isinstance(tensor, Tensor)]
        if wrong:
            raise ModelError(f"{where}: {wrong[0]!r} is a {type(tensors[wrong[0]]).__name__}, not a tensor")
        names = {dtype: name for name, dtype in DTYPES.items()}
        stored = {
            name: Stored(where, names.get(t.dtype, str(t.dtype)), tuple(t.shape), 0, t.nbytes)
            for name, t in tensors.items()
        }
        self._begin(where, config, device, stored)
        self._files = MappedFiles({})
        self._progress = None
        self._tensors = tensors

    def _read(self, name: str, is_advanced_later: bool = False) -> Tensor:
        """Tensor `name` as given, without a copy."""
        return self._tensors[name].detach()


def model_in_memory(
    tensors: Mapping[str, Tensor],
    config_json: Mapping[str, Any],
    device: str | torch.device = "cpu",
    dtype: str = "auto",
    where: Path = Path("weights in memory"),
    max_seq_len: int | None = None,
    activation_dtype: str = "auto",
) -> Model:
    """Make a model like `load_model`, from a checkpoint's tensors by name and the contents of its config.json.

    `where` names the source in errors. The model may share memory with tensors that already have the right device and
    dtype, such as the embedding.
    """
    device = torch.device(device)
    model_class, config = parse_config(config_json, f"{where}: config.json")
    config = replace(
        with_dtype(config, dtype, device),
        rounding=activations_named(activation_dtype, device),
        max_seq_len=max_seq_len,
    )
    with torch.inference_mode():
        build_model(model_class, config, WeightsInMemory(tensors, config, META, where))
        return build_model(model_class, config, WeightsInMemory(tensors, config, device, where))
