"""Reads a GGUF file's metadata, and makes the equivalent config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from weft.errors import ModelError

ARCHITECTURE = "llama"
DEFAULT_THETA = 10000.0

T = TypeVar("T")


class Metadata:
    """The metadata of an open GGUF file. For a value of another type, or a required key that is missing, methods raise
    `ModelError` with the file's name."""

    def __init__(self, reader: Any, where: Path) -> None:
        self._fields = reader.fields
        self.where = where

    def get(self, key: str, kind: type[T], default: Any = None) -> Any:
        """The value of a key, of type `kind`, or the default. An integer is accepted as a float."""
        field = self._fields.get(key)
        return default if field is None else self._checked(key, self._contents(key, field), kind)

    def need(self, key: str, kind: type[T]) -> T:
        """The value of a required key."""
        found: T | None = self.get(key, kind)
        if found is None:
            raise ModelError(f"{self.where}: has no {key!r}")
        return found

    def listed(self, key: str, kind: type[T]) -> list[T]:
        """The values of a required list, all of type `kind`."""
        found = self.need(key, list)
        for value in found:
            self._checked(key, value, kind)
        return found

    def _contents(self, key: str, field: Any) -> Any:
        try:
            return field.contents()
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.where}: {key!r} holds a text that is no UTF-8: {error.reason}") from None

    def _checked(self, key: str, value: Any, kind: type[T]) -> T:
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ModelError(
                f"{self.where}: {key!r} is of type {type(value).__name__}; it must be {kind.__name__}"
            )
        return value


def config_json(fields: Metadata, vocab_size: int, tied: bool, dtype: str) -> dict[str, Any]:
    """Make the contents of config.json. `tied`: the output projection shares the embedding's weights. Raises
    `ModelError` unless the architecture is Llama, with a rotary embedding that is not scaled and covers whole heads."""
    architecture = fields.need("general.architecture", str)
    if architecture != ARCHITECTURE:
        raise ModelError(f"{fields.where}: holds a {architecture!r}; only {ARCHITECTURE!r} can be converted")
    size = {key: fields.need(f"llama.{name}", int) for key, name in _SIZES.items()}
    head_dim = fields.get(
        "llama.attention.key_length", int, size["hidden_size"] // max(size["num_attention_heads"], 1)
    )
    _check_rotation(fields, head_dim)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": dtype,
        "vocab_size": vocab_size,
        **size,
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", int, size["num_attention_heads"]),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _short(fields.need("llama.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": fields.get("llama.rope.freq_base", float, DEFAULT_THETA),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id", int),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id", int),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id", int),
    }


_SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}


def _check_rotation(fields: Metadata, head_dim: int) -> None:
    rotated = fields.get("llama.rope.dimension_count", int, head_dim)
    scaling = fields.get("llama.rope.scaling.type", str, "none")
    if rotated != head_dim or scaling != "none":
        raise ModelError(
            f"{fields.where}: its rotary embedding covers {rotated} of {head_dim} numbers of a head, with the scaling "
            f"{scaling!r}; only whole ones without scaling can be converted"
        )


def _short(value: float) -> float:
    """Round a float32 to 7 digits: 1e-05 for 9.999999747378752e-06."""
    return float(f"{value:.7g}")
