"""The text model inside a model that reads images, too: its config and its weights. The other parts are left aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from weft.models.base import WeightSource
from weft.models.fields import Fields
from weft.models.matrices import Matrices
from weft.ops.quantized import Matrix

KEY = "text_config"
OLD, NEW, PLAIN = "language_model.model.", "model.language_model.", "model."
"""Beginnings of tensors' names, before and since transformers 4.52, and in a model of text only."""


def text_config(data: Mapping[str, Any], where: str, is_tied: bool) -> tuple[dict[str, Any], str]:
    """The config of the text model, and its place in errors. `is_tied`: the default of `tie_word_embeddings`."""
    text = data.get(KEY)
    if not isinstance(text, dict):
        raise Fields(data, where).error(KEY, f"is {text!r}; it must be an object")
    # The outer values count.
    keys = "architectures", "dtype", "torch_dtype", "quantization_config"
    outer = {key: data[key] for key in keys if data.get(key)}
    tied = data.get("tie_word_embeddings")
    return {**text, **outer, "tie_word_embeddings": is_tied if tied is None else tied}, f"{where}: {KEY}"


class TextWeights:
    """The weights of the text model in `weights`, by the names that they have in a model of text only. `others` are
    the beginnings of the names of the other parts' tensors. `is_tied`: there is no output projection."""

    def __init__(self, weights: WeightSource, others: Sequence[str], is_tied: bool) -> None:
        self.directory, self.device = weights.directory, weights.device
        self._weights = weights
        starts = (NEW, OLD, PLAIN)
        self._start = next((start for start in starts if f"{start}embed_tokens.weight" in weights), NEW)
        for name in others:
            weights.drop_all(name)
            weights.drop_all(f"model.{name}")
        if is_tied:
            weights.drop_all(self._name("lm_head."))

    def take(self, name: str, *shape: int) -> Tensor:
        return self._weights.take(self._name(name), *shape)

    def take_matrix(self, name: str, *shape: int) -> Matrix:
        return self._weights.take_matrix(self._name(name), *shape)

    def take_dense(self, name: str, *shape: int) -> Tensor:
        return self._weights.take_dense(self._name(name), *shape)

    def take_in_order(self, names: Sequence[str], *shape: int) -> Matrices:
        return self._weights.take_in_order([self._name(name) for name in names], *shape)

    def take_matrices(self, name: str, *shape: int) -> Matrices:
        return self._weights.take_matrices(self._name(name), *shape)

    def take_float(self, name: str, *shape: int) -> Tensor:
        return self._weights.take_float(self._name(name), *shape)

    def take_all(self) -> dict[str, Tensor]:
        return self._weights.take_all()

    def drop_all(self, prefix: str) -> None:
        self._weights.drop_all(self._name(prefix))

    def __contains__(self, name: str) -> bool:
        return self._name(name) in self._weights

    def _name(self, name: str) -> str:
        """The name in the checkpoint."""
        if self._start == OLD:
            return f"language_model.{name}"
        return self._start + name.removeprefix(PLAIN) if name.startswith(PLAIN) else name
