"""The config of a decoder, parsed from config.json. An unsupported value raises an error that names its key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from weft.errors import ModelError
from weft.models.memory import LayerMemory, Pages
from weft.ops.attention import Window

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

MTP_KEY = "num_nextn_predict_layers"

QWENS_FULL_LAYERS = 28
"""The default of `max_window_layers` in Qwen models."""


@dataclass(frozen=True)
class Rope:
    """The parameters of rotary embedding: `theta`, and the scaling of its frequencies, "none", "linear" or "llama3".
    The other fields are parameters of the scaling."""

    theta: float = 10000.0
    scaling: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    def frequencies(self, head_dim: int, device: torch.device | str = "cpu") -> Tensor:
        """Radians per position, float32 [head_dim / 2]."""
        plain = 1.0 / self.theta ** (
            torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
        )
        if self.scaling != "llama3":
            return plain / self.factor
        turns = self.original_max_position * plain / (2 * math.pi)
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        smooth = smooth.clamp(0.0, 1.0)
        return plain * (smooth + (1.0 - smooth) / self.factor)

    def table(self, head_dim: int, length: int, device: torch.device | str = "cpu") -> Tensor:
        """Cosines and sines of each position, float32 [length, head_dim / 2, 2]."""
        # The result is allocated first: a table that does not fit in memory fails before its parts use memory.
        table = torch.empty(length, head_dim // 2, 2, dtype=torch.float32, device=device)
        if table.is_meta:  # torch would import its compiler for the operations below
            return table
        positions = torch.arange(length, dtype=torch.float32, device=device)
        angles = torch.outer(positions, self.frequencies(head_dim, device))
        return torch.stack((angles.cos(), angles.sin()), -1, out=table)


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and flags of a decoder.

    `dtype` is the dtype of activations, KV and logits, and on CUDA of the weights. The CPU computes in float32, with
    weights in `weight_dtype`. If it is None, 16-bit weights keep their stored dtype.

    `attention_bias` means biases in the query, key and value projections, `output_bias` a bias in attention's output
    projection. `windows[i]` is the largest number of keys that a query of layer i sees, its own included; 0 means all.
    `windows` is () if no layer has a window. `memories[i]` is what layer i keeps; () means keys and values of
    `num_kv_heads` heads of `head_dim` for every layer. `num_mtp_modules` counts the multi-token-prediction modules in
    the checkpoint. `data` is the content of config.json, for models that transformers runs, and
    `why_generic` says why it does. `max_seq_len` bounds the texts that the model will read, if that is known.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope: Rope = Rope()
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int, ...] = ()
    memories: tuple[LayerMemory, ...] = ()
    num_mtp_modules: int = 0
    dtype: torch.dtype = torch.float32
    weight_dtype: torch.dtype | None = None
    data: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    why_generic: str = ""
    max_seq_len: int | None = None

    @property
    def layer_memories(self) -> tuple[LayerMemory, ...]:
        """The memory of each layer, in order."""
        if self.memories:
            return self.memories
        windows = self.windows or (0,) * self.num_layers
        sizes = self.num_kv_heads, self.head_dim, self.head_dim
        return tuple(LayerMemory(Pages(*sizes, window=Window(size))) for size in windows)

    @property
    def has_states(self) -> bool:
        """Whether a layer keeps a state."""
        return any(memory.state is not None for memory in self.memories)


class UnsupportedConfig(ModelError):
    """Raised for a valid value that weft's own modules do not implement. Another way to run the model may."""


MOST = 2**31 - 1
"""The largest integer that a config may contain."""


class Fields:
    """Typed access to a config's keys. `where` names the file in errors."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data = data
        self.where = where

    def error(self, key: str, message: str) -> ModelError:
        return ModelError(f"{self.where}: {key!r} {message}")

    def integer(self, key: str, default: int | None = None) -> int:
        """The value of `key`, a positive integer up to `MOST`. Raises `ModelError` for another value, or if the key is
        missing and there is no default."""
        value = self.data.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing; it must be a positive integer")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
            raise self.error(key, f"is {repr(value)[:40]}; it must be a positive integer up to {MOST}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """The value of `key`, a positive number. Raises `ModelError` for another value, or if the key is missing and
        there is no default."""
        value = self.data.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing; it must be a positive number")
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.error(key, f"is {value!r}; it must be a positive number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r}; it must be true or false")
        return value

    def must_be(self, key: str, *allowed: Any) -> None:
        """Raise `UnsupportedConfig` for a value that weft does not implement. A missing or null key is allowed."""
        value = self.data.get(key)
        if value is not None and value not in allowed:
            wanted = " or ".join(map(repr, allowed)) or "models without it"
            raise self.unsupported(key, f"is {value!r}; weft runs {wanted}")

    def unsupported(self, key: str, message: str) -> UnsupportedConfig:
        return UnsupportedConfig(f"{self.where}: {key!r} {message}")


def parse_rope(fields: Fields, max_position: int) -> Rope:
    """Parse the rotary embedding from `rope_parameters` (transformers 5), or from `rope_theta` and `rope_scaling`."""
    key = "rope_parameters" if fields.data.get("rope_parameters") else "rope_scaling"
    data = fields.data.get(key) or {}
    if not isinstance(data, dict):
        raise fields.error(key, f"is {data!r}; it must be an object")
    scaling = Fields(data, f"{fields.where}: {key}")
    theta = scaling.number("rope_theta", fields.number("rope_theta", 10000.0))
    for source in (fields, scaling):
        source.must_be("partial_rotary_factor", 1, 1.0)
    kind = data.get("rope_type") or data.get("type") or "default"
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", scaling.number("factor"))
    if kind == "llama3":
        return Rope(
            theta,
            "llama3",
            scaling.number("factor"),
            scaling.number("low_freq_factor"),
            scaling.number("high_freq_factor"),
            scaling.integer("original_max_position_embeddings", max_position),
        )
    raise fields.unsupported(key, f"has rope_type {kind!r}; weft knows 'default', 'linear' and 'llama3'")


def parse_dtype(fields: Fields) -> torch.dtype:
    """Parse the dtype from `dtype`, or from `torch_dtype` in older files. The default is float32."""
    key = "dtype" if fields.data.get("dtype") else "torch_dtype"
    name = fields.data.get(key) or "float32"
    if name not in DTYPES:
        raise fields.error(key, f"is {name!r}; weft runs {', '.join(DTYPES)}")
    return DTYPES[name]


def parse_windows(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """The attention window of each layer, 0 for none; () if the config has no window. `layer_types` selects the
    layers with a window. Without it all layers have one, except the first `max_window_layers` layers of a Qwen
    model."""
    data = fields.data
    # Only Qwen's configs have these keys. Their windows start at a later layer, and are off by default.
    is_late = "use_sliding_window" in data or "max_window_layers" in data
    if data.get("sliding_window") is None or not fields.flag("use_sliding_window", not is_late):
        return ()
    window, kinds = fields.integer("sliding_window"), data.get("layer_types")
    if kinds is None:
        first = data.get("max_window_layers", QWENS_FULL_LAYERS if is_late else 0)
        if first != 0:
            first = fields.integer("max_window_layers", QWENS_FULL_LAYERS)
        return tuple(window if layer >= first else 0 for layer in range(num_layers))
    known = {"sliding_attention": window, "full_attention": 0}
    if not isinstance(kinds, list) or len(kinds) != num_layers or not set(kinds) <= set(known):
        raise fields.error(
            "layer_types", f"is {kinds!r}; it must name one of {', '.join(known)} for each layer"
        )
    return tuple(known[kind] for kind in kinds)


def parse_decoder(data: Mapping[str, Any], where: str, windowed: bool = False, **traits: bool) -> ModelConfig:
    """Parse the config of a Llama-like decoder. `traits` are flags of `ModelConfig` that the architecture fixes.
    `windowed`: whether the architecture uses `sliding_window`."""
    fields = Fields(data, where)
    fields.must_be("hidden_act", "silu", "swish")
    refuse_quantized(fields)
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise fields.error(
            "num_key_value_heads", f"is {num_kv_heads}; it must divide the {num_heads} attention heads"
        )
    head_dim = fields.integer("head_dim", max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise fields.error("head_dim", f"is {head_dim}; rotary embedding needs an even one")
    max_position = fields.integer("max_position_embeddings", 2048)
    num_layers = fields.integer("num_hidden_layers")
    windows = parse_windows(fields, num_layers) if windowed else ()
    bias = fields.flag("attention_bias")
    flags: dict[str, Any] = {
        "attention_bias": bias,
        "output_bias": bias,
        "mlp_bias": fields.flag("mlp_bias"),
        **traits,
    }
    return ModelConfig(
        architecture=str((data.get("architectures") or ["?"])[0]),
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_position,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=parse_rope(fields, max_position),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        windows=windows if any(windows) else (),
        num_mtp_modules=fields.integer(MTP_KEY) if data.get(MTP_KEY) else 0,
        dtype=parse_dtype(fields),
        **flags,
    )


def refuse_quantized(fields: Fields) -> None:
    """Raise `ModelError` for the config of a quantized checkpoint."""
    settings = fields.data.get("quantization_config")
    if settings is not None:
        method = settings.get("quant_method") if isinstance(settings, dict) else None
        named = f"says {method!r}" if isinstance(method, str) else "is there"
        raise fields.error(
            "quantization_config",
            f"{named}: quantised checkpoints are not supported; use the original one, in bfloat16",
        )


def fit_target(
    config: ModelConfig,
    target: ModelConfig,
    where: str,
    keys: tuple[str, ...] = ("hidden_size", "vocab_size"),
) -> ModelConfig:
    """Fit the config of a drafter's layers to `target`: use its dtype, and at least its maximum length. Raises
    `ModelError` if a value under `keys` differs from the target's."""
    for key in keys:
        own, wanted = getattr(config, key), getattr(target, key)
        if own != wanted:
            raise ModelError(
                f"{where}: {key!r} is {own}; what drafts for this target ({target.architecture}) has {wanted}"
            )
    length = max(config.max_position_embeddings, target.max_position_embeddings)
    return replace(config, dtype=target.dtype, max_position_embeddings=length)
