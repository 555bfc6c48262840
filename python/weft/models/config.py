"""The config of a decoder, parsed from config.json. An unsupported value raises an error that names its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from weft.errors import InputError, ModelError
from weft.models.fields import Fields
from weft.models.memory import LayerMemory, Pages
from weft.models.quantized.method import Method
from weft.models.quantized.parse import GENERAL, parse_quantization
from weft.models.rope import FULL, PLAIN_ROPE, SLIDING, Rope, parse_rope
from weft.ops.activation import SWIGLU, Activation, Function
from weft.ops.attention import Window
from weft.ops.cached import CACHED
from weft.ops.formats import Activations
from weft.ops.routing import Choice

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

MTP_KEY = "num_nextn_predict_layers"
QWENS_MTP_KEY = "mtp_num_hidden_layers"
MTP_KEYS = (MTP_KEY, QWENS_MTP_KEY)
"""The keys of the number of multi-token-prediction modules; the second one is Qwen3.5's."""

QWENS_FULL_LAYERS = 28
"""The default of `max_window_layers` in Qwen models."""


class NormNames(NamedTuple):
    """The names of a layer's norms, before and after each of its two parts. None: there is no such norm."""

    before_mixer: str | None = "input_layernorm"
    after_mixer: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


LLAMAS_NORMS = NormNames()


@dataclass(frozen=True)
class MixtureConfig:
    """A mixture of experts in place of a layer's MLP.

    `intermediate_size` is that of an expert. `dense_layers` have an MLP instead. The other fields are names in the
    checkpoint: `name` of the mixture, `router` in it, `shared` of the MLP that each token passes, its gate
    `shared_gate`, and `choice_bias` of the experts. Empty: there is none. `projections` are the names of an expert's
    gate, up and down, or of two tensors that have all experts' gates above ups, and downs."""

    num_experts: int
    intermediate_size: int
    choice: Choice
    dense_layers: tuple[int, ...] = ()
    name: str = "mlp"
    router: str = "gate"
    projections: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    shared: str = ""
    shared_gate: str = ""
    choice_bias: str = ""


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and switches of a decoder.

    attention_bias: queries, keys and values have biases. output_bias: attention's output projection has one.
    qk_norm: each head's query and key are normed, or with `qk_norm_spans_heads` those of all heads together.
    gated_attention: the results of attention are multiplied by gates.
    sink_logits, attention_softcap: as in `weft.ops.attention.Heads`.
    attention_scale: the factor of scores; None means `head_dim` ** -0.5.
    norm_names: which norms a layer has. norm_offset: a number added to the weights of norms.
    gated_mlp: MLPs have gates. mixture: the experts of layers that have some in place of an MLP.
    fused_qkv, fused_gate_up: a checkpoint has `qkv_proj`, and `gate_up_proj`.
    adjacent_pairs: elements 2i and 2i + 1 of a head are rotated together, otherwise i and i + R for its R pairs.
    embedding_scale, residual_scale, logit_scale: factors of embeddings, of the outputs of a layer's parts, of logits.
    logit_softcap: above 0, a logit x becomes c * tanh(x / c).
    rope: the rotation of queries and keys. ropes: that of each layer, None for none; () means `rope` for all.
    windows: by layer, the largest number of keys that a query sees, its own included; 0 means all. () if no layer has a
        window.
    memories: what each layer keeps. () means `pages` for all.
    num_mtp_modules: the number of multi-token-prediction modules in the checkpoint.
    dtype: of activations and logits, and on CUDA of the weights. The CPU computes in float32. Cached keys and values
        may have another one (`cache_dtype`).
    weight_dtype: of the weights on a CPU. None: 16-bit weights keep their stored dtype.
    quantization: how the checkpoint is quantised, if it is.
    dequantizes: the caller asks for a dtype.
    rounding: how products on a CPU round their input rows. None: as is fastest for a weight's format.
    roundings: how they do, in a model that is loaded on a CPU.
    data: the content of config.json, for models that transformers runs. why_generic: why it runs them.
    has_narrow_weights: a matrix in memory has fewer bits than float32.
    max_seq_len: a bound of the texts that the model will read, if it is known.
    keeps_formats: the checkpoint mixes formats, and each tensor keeps its own unless the caller asks for a dtype.
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
    rope: Rope = PLAIN_ROPE
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    qk_norm_spans_heads: bool = False
    gated_attention: bool = False
    sink_logits: bool = False
    attention_scale: float | None = None
    attention_softcap: float = 0.0
    norm_names: NormNames = LLAMAS_NORMS
    norm_offset: float = 0.0
    activation: Activation = SWIGLU
    gated_mlp: bool = True
    fused_qkv: bool = False
    fused_gate_up: bool = False
    adjacent_pairs: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    mixture: MixtureConfig | None = None
    ropes: tuple[Rope | None, ...] = ()
    windows: tuple[int, ...] = ()
    memories: tuple[LayerMemory, ...] = ()
    num_mtp_modules: int = 0
    dtype: torch.dtype = torch.float32
    weight_dtype: torch.dtype | None = None
    quantization: Method | None = None
    dequantizes: bool = False
    rounding: Activations | None = None
    roundings: frozenset[Activations] = frozenset()
    data: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    why_generic: str = ""
    has_narrow_weights: bool = False
    max_seq_len: int | None = None
    keeps_formats: bool = False

    @property
    def pages(self) -> Pages:
        """The pages of a layer: what it keeps of each position, unless `memories` says otherwise. It has no window."""
        return Pages(self.num_kv_heads, self.head_dim, self.head_dim)

    @property
    def layer_memories(self) -> tuple[LayerMemory, ...]:
        """The memory of each layer, in order."""
        if self.memories:
            return self.memories
        windows = self.windows or (0,) * self.num_layers
        return tuple(LayerMemory(replace(self.pages, window=Window(size))) for size in windows)

    @property
    def layer_ropes(self) -> tuple[Rope | None, ...]:
        """The rotation of each layer."""
        return self.ropes or (self.rope,) * self.num_layers

    @property
    def has_states(self) -> bool:
        """Whether a layer keeps a state."""
        return any(memory.state is not None for memory in self.memories)


def cache_dtype(config: ModelConfig, device: torch.device, name: str = "auto") -> torch.dtype:
    """The dtype of cached keys and values for a setting `kv_cache_dtype`, with the config of a model on `device`.

    "auto" is bfloat16 on the CPU if the weights have 16 bits or fewer, and float32 if not; on CUDA it is the model's
    dtype. Raises `InputError` for a dtype that the device's kernels do not read."""
    is_cpu = device.type == "cpu"
    if name == "auto":
        return torch.bfloat16 if is_cpu and config.has_narrow_weights else config.dtype
    dtype = CACHED[name]
    if not is_cpu and dtype.itemsize > 1 and dtype is not config.dtype:
        default = str(config.dtype).removeprefix("torch.")
        raise InputError(
            f"kv_cache_dtype is {name!r}; on {device.type} a model of {default} caches keys and values in its dtype "
            '("auto"), in "fp8" or "int8"'
        )
    return dtype


ACTIVATIONS = {
    "silu": SWIGLU,
    "swish": SWIGLU,
    "gelu": Activation(Function.GELU),
    "gelu_pytorch_tanh": Activation(Function.GELU_TANH),
    "gelu_new": Activation(Function.GELU_TANH),
    "relu": Activation(Function.RELU),
    "relu2": Activation(Function.RELU_SQUARED),
}
"""transformers' names of activations."""


def parse_activation(fields: Fields) -> Activation:
    """Parse the activation of MLPs, by default SiLU."""
    key = "hidden_activation" if fields.data.get("hidden_activation") else "hidden_act"
    name = fields.data.get(key) or "silu"
    if name not in ACTIVATIONS:
        raise fields.unsupported(key, f"is {name!r}; weft knows {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def parse_dtype(fields: Fields) -> torch.dtype:
    """Parse the dtype from `dtype`, or from `torch_dtype` in older files. The default is float32."""
    key = "dtype" if fields.data.get("dtype") else "torch_dtype"
    name = fields.data.get(key) or "float32"
    if name not in DTYPES:
        raise fields.error(key, f"is {name!r}; weft runs {', '.join(DTYPES)}")
    return DTYPES[name]


def parse_layer_types(fields: Fields, num_layers: int, full_every: int = 0) -> list[str] | None:
    """The kind of each layer, `FULL` or `SLIDING`, which `layer_types` names. Without this key each `full_every`-th
    layer is `FULL`; None if that is 0."""
    kinds = fields.layer_kinds("layer_types", SLIDING, FULL)
    if kinds is not None or not full_every:
        return kinds
    period = fields.integer("sliding_window_pattern", full_every)
    return [SLIDING if (layer + 1) % period else FULL for layer in range(num_layers)]


def parse_windows(fields: Fields, num_layers: int, full_every: int = 0) -> tuple[int, ...]:
    """The attention window of each layer, 0 for none; () if the config has no window. Layers of the kind `SLIDING` have
    one; `full_every` is that of `parse_layer_types`. Without kinds all layers have one, except the first
    `max_window_layers` layers of a Qwen model."""
    data = fields.data
    # Only Qwen's configs have these keys. Their windows start at a later layer, and are off by default.
    is_late = "use_sliding_window" in data or "max_window_layers" in data
    if data.get("sliding_window") is None or not fields.flag("use_sliding_window", not is_late):
        return ()
    window, kinds = fields.integer("sliding_window"), parse_layer_types(fields, num_layers, full_every)
    if kinds is None:
        first = data.get("max_window_layers", QWENS_FULL_LAYERS if is_late else 0)
        if first != 0:
            first = fields.integer("max_window_layers", QWENS_FULL_LAYERS)
        return tuple(window if layer >= first else 0 for layer in range(num_layers))
    return tuple(window if kind == SLIDING else 0 for kind in kinds)


def parse_decoder(
    data: Mapping[str, Any],
    where: str,
    *,
    windowed: bool = False,
    full_every: int = 0,
    partial_rotary: bool = False,
    two_ropes: bool = False,
    config_class: type[ModelConfig] = ModelConfig,
    quantizations: Sequence[str] = GENERAL,
    **traits: Any,
) -> ModelConfig:
    """Parse the config of a decoder. `traits` are fields of `config_class` that the architecture fixes; the others are
    those of Llama. The rest of the arguments tell which keys the architecture uses.

    windowed: `sliding_window`.
    full_every: without `layer_types`, each layer of this number has no window; 0 if all have one.
    partial_rotary: `partial_rotary_factor`.
    two_ropes: layers with windows have a rotation of their own, which `parse_rope` reads.
    quantizations: the methods of quantised checkpoints that the architecture reads.
    """
    fields = Fields(data, where)
    quantization = parse_quantization(fields, quantizations)
    hidden_size, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise fields.error(
            "num_key_value_heads", f"is {num_kv_heads}; it must divide the {num_heads} attention heads"
        )
    head_dim = traits.get("head_dim") or fields.integer("head_dim", max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise fields.error("head_dim", f"is {head_dim}; rotary embedding needs an even one")
    max_position = fields.integer("max_position_embeddings", 2048)
    num_layers = fields.integer("num_hidden_layers")
    windows = parse_windows(fields, num_layers, full_every) if windowed else ()
    bias = fields.flag("attention_bias")
    values: dict[str, Any] = {
        "architecture": str((data.get("architectures") or ["?"])[0]),
        "vocab_size": fields.integer("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": fields.integer("intermediate_size"),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": max_position,
        "rms_norm_eps": fields.number("rms_norm_eps", 1e-6),
        "tie_word_embeddings": fields.flag("tie_word_embeddings"),
        "attention_bias": bias,
        "output_bias": bias,
        "mlp_bias": fields.flag("mlp_bias"),
        "activation": parse_activation(fields),
        "windows": windows if any(windows) else (),
        "num_mtp_modules": next((fields.integer(key) for key in MTP_KEYS if data.get(key)), 0),
        "dtype": parse_dtype(fields),
        "quantization": quantization,
        "keeps_formats": quantization is not None,
        **traits,
    }
    if "rope" not in traits:
        kinds = parse_layer_types(fields, num_layers, full_every) if two_ropes else None
        values |= _parse_ropes(fields, head_dim, max_position, kinds, partial_rotary)
    # Published configs often keep the unscaled length when they add YaRN.
    values["max_position_embeddings"] = max(max_position, values["rope"].scaling.num_positions)
    return config_class(**values)


def _parse_ropes(
    fields: Fields, head_dim: int, max_position: int, kinds: list[str] | None, partial: bool
) -> dict[str, Any]:
    """The rotation of layers, or that of each layer if there are `kinds` with rotations of their own."""
    if kinds is None:
        return {"rope": parse_rope(fields, head_dim, max_position, partial=partial)}
    ropes = {
        kind: parse_rope(fields, head_dim, max_position, layer_type=kind, partial=partial)
        for kind in {FULL, *kinds}
    }
    return {"rope": ropes[FULL], "ropes": tuple(ropes[kind] for kind in kinds)}


def fit_target(
    config: ModelConfig,
    target: ModelConfig,
    where: str,
    keys: tuple[str, ...] = ("hidden_size", "vocab_size"),
) -> ModelConfig:
    """Fit the config of a drafter's layers to `target`: use its dtype and its longest text, and at least its
    maximum length. Raises `ModelError` if a value under `keys` differs from the target's."""
    for key in keys:
        value, needed = getattr(config, key), getattr(target, key)
        if value != needed:
            raise ModelError(
                f"{where}: {key!r} is {value}; a drafter of this target ({target.architecture}) has {needed}"
            )
    length = max(config.max_position_embeddings, target.max_position_embeddings)
    return replace(config, dtype=target.dtype, max_position_embeddings=length, max_seq_len=target.max_seq_len)
