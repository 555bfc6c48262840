"""Makes a transformers network from a config.json, and finds what memory its layers need, before any weight is read.

The network is made on the meta device, where tensors have shapes but no data. A forward there runs the network's own
code, so the attention calls that it makes are those that a real forward makes.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import masking_utils
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from weft.errors import ModelError
from weft.models.base import WeightSource
from weft.models.config import ModelConfig, parse_dtype
from weft.models.fields import Fields
from weft.models.generic.calls import NAME, PLANNING, Calls, Visible
from weft.models.generic.experts import take_calls
from weft.models.generic.mixers import replace_functions
from weft.models.generic.modules import pack_modules
from weft.models.memory import LayerMemory

POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
"""Keys of the largest number of positions."""

OWN_ATTENTION = "its layers have attention of their own, and not transformers' attention interface"

READS_VALUES = "its code reads values of tensors, which a captured forward can't"

UNBOUNDED = 1 << 20
"""The largest number of positions of a network whose config has no limit."""


def parse_config(data: Mapping[str, Any], where: str) -> ModelConfig:
    """The config of a network that transformers runs. Raises `ModelError` if transformers does not know the
    architecture, or if weft can't serve it."""
    network = meta_network(data, where)
    settings = network.config.get_text_config()
    memories = find_memories(network, where)
    head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
    if head is None:
        raise ModelError(f"{where}: {type(network).__name__} has no output over the vocabulary")

    def number(*names: str) -> int:
        return next((value for name in names if isinstance(value := getattr(settings, name, None), int)), 0)

    heads = number("num_attention_heads", "n_head")
    pages = next((memory.pages for memory in memories if memory.pages is not None), None)
    return ModelConfig(
        architecture=type(network).__name__,
        vocab_size=head.weight.shape[0],
        hidden_size=embedding.weight.shape[1],
        intermediate_size=number("intermediate_size", "n_inner", "ffn_dim"),
        num_layers=number("num_hidden_layers", "n_layer", "num_layers"),
        num_heads=heads,
        num_kv_heads=pages.num_heads if pages is not None else 0,
        head_dim=pages.key_size if pages is not None else 0,
        max_position_embeddings=number(*POSITIONS) or UNBOUNDED,
        tie_word_embeddings=bool(getattr(network.config, "tie_word_embeddings", False)),
        dtype=parse_dtype(Fields(data, where)),
        memories=tuple(memories),
        data=data,
    )


def network_class(data: Mapping[str, Any], where: str) -> type[Any]:
    """The transformers class of a config's architecture. Raises `ModelError`."""
    name, kind, version = data["architectures"][0], data.get("model_type"), transformers.__version__
    known = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    found: type[Any] | None = getattr(transformers, name, None) if kind in known else None
    if found is None or not hasattr(found, "from_pretrained"):
        custom = (
            "; its code is in the directory, and weft runs no code from there" if data.get("auto_map") else ""
        )
        raise ModelError(
            f"{where}: 'architectures' names {name}; neither weft nor transformers {version} has a causal language "
            f"model of that name and the 'model_type' {kind!r}{custom}; update transformers if the model is new"
        )
    return found


def network_config(data: Mapping[str, Any], where: str) -> Any:
    """transformers' config object. Raises `ModelError` for values that transformers refuses."""
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[data["model_type"]]
    try:
        values = config_class._decode_special_floats(copy.deepcopy(dict(data)))  # infinity, which JSON lacks
        return config_class.from_dict(values)
    except Exception as error:  # transformers raises many types
        raise ModelError(f"{where}: transformers refuses it: {error}") from error


def meta_network(data: Mapping[str, Any], where: str) -> Any:
    """The network without weights: its tensors have shapes only. Raises `ModelError`."""
    make, config = network_class(data, where), network_config(data, where)
    config._attn_implementation, config._experts_implementation = PLANNING, NAME
    try:
        with quiet(), torch.device("meta"):
            network = make(config)
    except KeyError as error:
        if PLANNING not in str(error):
            raise ModelError(f"{where}: transformers can't make this network: {error!r}") from error
        raise ModelError(f"{where}: weft can't run {make.__name__}: {OWN_ATTENTION}") from error
    except Exception as error:
        raise ModelError(f"{where}: transformers can't make this network: {error}") from error
    return network.eval()


def load_network(config: ModelConfig, weights: WeightSource) -> Any:
    """The network with its weights, and with weft's operations in place of its modules. On the device "meta" it has
    neither. Raises `ModelError` for weights that are missing, misshapen or not used; on "meta", for those that are
    misshapen and that transformers does not rename."""
    where, tensors = str(weights.directory), weights.take_all()
    if weights.device.type == "meta":
        return _checked_shapes(meta_network(config.data, where), tensors, where)
    stored = config.weight_dtype or parse_dtype(Fields(config.data, where))
    try:
        with quiet():
            network, report = network_class(config.data, where).from_pretrained(
                None,
                config=network_config(config.data, where),
                state_dict=tensors,
                dtype=stored,
                attn_implementation=NAME,
                experts_implementation=NAME,
                output_loading_info=True,
            )
    except Exception as error:
        raise ModelError(f"{where}: transformers can't load the weights: {error}") from error
    for key, message in (
        ("mismatched_keys", "have another shape than config.json wants"),
        ("missing_keys", "are missing"),
        ("unexpected_keys", "have no place in the architecture that config.json names"),
    ):
        names = sorted(name if isinstance(name, str) else name[0] for name in report[key])
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ModelError(
                f"{where}: tensors {', '.join(map(repr, names[:3]))}{more} {message}. "
                "Get the weights and the config.json of one model"
            )
    tensors.clear()  # from here on, a file's pages are needed only until the module with them is packed
    network.eval().requires_grad_(False).to(weights.device)
    stop_reading_values(network, config.max_seq_len or config.max_position_embeddings)
    pack_modules(network, config.dtype)
    return network


def _checked_shapes(network: Any, tensors: Mapping[str, Tensor], where: str) -> Any:
    """Return `network`. Raises `ModelError` if one of `tensors` has another shape than the parameter of its name."""
    for name, parameter in network.state_dict().items():
        if name in tensors and tensors[name].shape != parameter.shape:
            raise ModelError(
                f"{where}: tensor {name!r} has shape {list(tensors[name].shape)}; config.json wants "
                f"{list(parameter.shape)}. Get the weights and the config.json of one model"
            )
    return network


def find_memories(network: Any, where: str) -> list[LayerMemory]:
    """The memory of each call that the network's layers make, in order, by a forward without data."""
    tokens = torch.zeros(1, 1, dtype=torch.int64, device="meta")
    replace_functions(network)
    stop_reading_values(network)
    memories: list[LayerMemory] = []
    with torch.inference_mode(), Calls(plan=memories), _single_texts():
        try:
            network(input_ids=tokens, position_ids=tokens, use_cache=False)
        except Exception as error:  # transformers' code raises many types
            problem = f"its code failed: {type(error).__name__}: {error}"
            if isinstance(error, ModelError):
                problem = str(error)
            elif Visible.__name__ in str(error):
                problem = OWN_ATTENTION
            elif "meta tensor" in str(error):
                problem = READS_VALUES
            raise ModelError(f"{where}: weft can't run {type(network).__name__}: {problem}") from error
    return memories


@contextmanager
def _single_texts() -> Iterator[None]:
    """Context in which transformers does not look for several texts in a row, for which it would read positions."""
    find = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda _: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = find


def stop_reading_values(network: Any, max_seq_len: int | None = None) -> None:
    """Replace the parts of transformers' code that read values on the host, which a captured forward can't.

    Rotary embeddings then keep their frequencies. transformers chooses some at each forward, by the longest text in the
    batch, so that a text's tokens would depend on its neighbours. weft chooses by the longest text that it will read.
    """
    for module in network.modules():
        take_calls(module)
        if hasattr(module, "warn_if_padding_and_no_attention_mask"):
            module.warn_if_padding_and_no_attention_mask = lambda *_: None
        if "RotaryEmbedding" in type(module).__name__:
            kind = type(module)
            module.__class__ = type(kind.__name__, (kind,), {"forward": inspect.unwrap(kind.forward)})
            if max_seq_len is not None:
                _choose_frequencies(module, network.config.get_text_config(), max_seq_len)


def _choose_frequencies(module: Any, config: Any, max_seq_len: int) -> None:
    """Give a rotary embedding with longrope the frequencies for texts of at most `max_seq_len` tokens."""
    kinds = module.rope_type if isinstance(module.rope_type, dict) else {None: module.rope_type}
    for layer_type, kind in kinds.items():
        parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
        if kind == "longrope" and max_seq_len > parameters["original_max_position_embeddings"]:
            frequencies = getattr(module, "inv_freq" if layer_type is None else f"{layer_type}_inv_freq")
            longest = parameters["original_max_position_embeddings"] + 1
            make = ROPE_INIT_FUNCTIONS[kind]
            frequencies.copy_(make(config, frequencies.device, seq_len=longest, layer_type=layer_type)[0])


@contextmanager
def quiet() -> Iterator[None]:
    """Context in which transformers prints nothing."""
    log = transformers.logging
    verbosity, has_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if has_bars:
            log.enable_progress_bar()
