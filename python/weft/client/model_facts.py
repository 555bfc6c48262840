"""Facts about a model directory: how it would run, its sizes, and the parts that are there.

They come from config.json, the headers of the weights and the tokenizer's files. No weights are read, and no memory is
allocated for them. Each function reports one fact.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from weft.config import EngineConfig, ResolvedConfig
from weft.engine.kv.size import DEVICE_FRACTION, SHARED_FRACTION
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.models.architectures import how_it_runs, read_config
from weft.models.base import Model
from weft.models.checkpoint import Checkpoint
from weft.models.config import ModelConfig, cache_dtype
from weft.models.decoder import Decoder
from weft.models.dtypes import with_dtype
from weft.models.eagle3_head import Eagle3Head
from weft.models.loading import check_weights
from weft.models.memory import token_bytes
from weft.models.mixture import Mixture
from weft.models.mtp_module import MtpModules, has_modules
from weft.models.progress import size_of
from weft.models.states import slot_bytes
from weft.tokenizer.files import load_tokenizer
from weft.tokenizer.formats import reasoning_markers, tool_style_of
from weft.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelFacts:
    """A model directory whose config and weights fit together. `model` has no contents: its tensors are on the device
    "meta". `headers` are those of the tensors that it takes. `device` is the device that the model is meant for."""

    path: Path
    device: torch.device
    model: Model
    headers: Checkpoint

    @classmethod
    def read(cls, path: Path, device: torch.device, dtype: str = "auto") -> ModelFacts:
        """Check a directory as `load_model` does, with the same arguments and errors."""
        model_class, config = read_config(path)
        model, headers = check_weights(model_class, with_dtype(config, dtype, device), path)
        return cls(path, device, model, headers)

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def weight_dtypes(self) -> str:
        """The formats and the dtypes of the matrices in memory."""
        formats = sorted(each.name for each in self.headers.matrix_formats)
        dtypes = sorted(str(each).removeprefix("torch.") for each in self.headers.matrix_dtypes)
        return " and ".join([*formats, *dtypes])

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in memory, without the padding of packed matrices."""
        return self.headers.num_bytes

    @property
    def mixtures(self) -> list[Mixture]:
        """The mixtures of experts in layers of weft's own modules."""
        layers = self.model.layers if isinstance(self.model, Decoder) else []
        return [layer.mlp for layer in layers if isinstance(layer.mlp, Mixture)]

    @property
    def active_parameters(self) -> int:
        """The number of parameters without those of experts that a token does not choose."""
        idle = sum(
            mixture.experts.parameters_of_one * (mixture.config.num_experts - mixture.config.choice.top_k)
            for mixture in self.mixtures
        )
        return self.headers.num_parameters - idle

    def token_bytes(self, kv_cache_dtype: str) -> int:
        """Bytes of the keys and values of a token, with `EngineConfig.kv_cache_dtype`."""
        return token_bytes(self.config.layer_memories, cache_dtype(self.config, self.device, kv_cache_dtype))

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of a sequence without drafts; 0 for a model without states."""
        return slot_bytes(self.config.layer_memories, 0, False)

    def num_sequences(self, engine: ResolvedConfig, free_bytes: int) -> int:
        """The number of sequences of `max_seq_len` tokens that fit in the share of the free memory that an engine uses
        by default, once the weights are in it."""
        fraction = SHARED_FRACTION if self.device.type == "cpu" else DEVICE_FRACTION
        num_pages = engine.pages_for(engine.max_seq_len, 0)
        each = num_pages * engine.page_size * self.token_bytes(engine.kv_cache_dtype) + self.state_bytes
        room = int((free_bytes - self.weight_bytes) * fraction)
        return max(room, 0) // max(each, 1)


def runner_line(facts: ModelFacts) -> str:
    """How the model would run, and why."""
    module, reason = how_it_runs(facts.model)
    return f"runs by: {module}; {reason}"


def shape_line(facts: ModelFacts) -> str:
    """The sizes in the config."""
    config = facts.config
    pages = (memory.pages for memory in config.layer_memories)
    sizes = sorted({layer.window.size for layer in pages if layer is not None} - {0})
    window = f" (windows of {', '.join(map(str, sizes))})" if sizes else ""
    heads = (
        f"{config.num_heads} heads ({config.num_kv_heads} for keys)"
        if config.num_kv_heads
        else "no attention"
    )
    return (
        f"model: {config.architecture}, {config.num_layers} layers, hidden {config.hidden_size}, {heads}, "
        f"vocabulary {config.vocab_size}, {config.max_position_embeddings} "
        f"positions{window}"
    )


def weights_line(facts: ModelFacts) -> str:
    """The number of parameters, and their bytes on the disk and in memory."""
    headers = facts.headers
    files = f"{headers.num_files} file{'s' if headers.num_files != 1 else ''}"
    widened = ""
    if headers.num_widened:
        reason = "their groups have different sizes or no order"
        widened = f"; {headers.num_widened} quantised matrices are dequantised: {reason}"
    return (
        f"weights: {headers.num_parameters / 1e6:,.0f} million parameters, {size_of(headers.stored_bytes)} in {files}; "
        f"{size_of(facts.weight_bytes)} in memory, with matrices in {facts.weight_dtypes}{widened}"
    )


def experts_line(facts: ModelFacts) -> str:
    """The mixtures of experts, and the parameters that a token uses. Empty for a model without mixtures."""
    mixture, count = facts.config.mixture, len(facts.mixtures)
    if mixture is None or not count:
        return ""
    num_shared = mixture.choice.num_shared
    shared = f" and {num_shared} shared" if num_shared else ""
    return (
        f"experts: {mixture.num_experts}{shared} in {count} of {facts.config.num_layers} layers, "
        f"{mixture.choice.top_k}{shared} for each token: {facts.active_parameters / 1e6:,.0f} million active parameters"
    )


def cache_line(facts: ModelFacts, engine: ResolvedConfig) -> str:
    """The bytes of keys, values and states."""
    state = f"; {size_of(facts.state_bytes)} of state a sequence" if facts.state_bytes else ""
    dtype = cache_dtype(facts.config, facts.device, engine.kv_cache_dtype)
    each = facts.token_bytes(engine.kv_cache_dtype)
    return (
        f"cache: {size_of(each)} a token in {str(dtype).removeprefix('torch.')}, {size_of(each * engine.page_size)} a "
        f"page of {engine.page_size} tokens{state}"
    )


def room_line(facts: ModelFacts, engine: ResolvedConfig, free_bytes: int) -> str:
    """The number of sequences that fit in the free memory."""
    free = f"{size_of(free_bytes)} free on {facts.device}"
    if facts.weight_bytes > free_bytes:
        return f"room: none for the weights: {free}"
    count = facts.num_sequences(engine, free_bytes)
    return f"room: {count:,} sequences of {engine.max_seq_len:,} tokens beside the weights, with {free}"


def tokenizer_line(facts: ModelFacts, tokenizer: Tokenizer) -> str:
    """The tokenizer's sizes and end tokens. Raises `TokenizerError` for a tokenizer that does not fit the model."""
    vocab_size = facts.config.vocab_size
    vocabulary = Vocabulary.from_huggingface(tokenizer, model_path=facts.path, vocab_size=vocab_size)
    return (
        f"tokenizer: {len(tokenizer):,} tokens, {len(vocabulary.special_ids)} of them special, end tokens "
        f"{list(vocabulary.end_ids)}"
    )


def template_line(tokenizer: Tokenizer) -> str:
    """The formats that the chat template shows."""
    template = tokenizer.chat_template
    if not template:
        return "chat template: none; chat needs one"
    style, pair = tool_style_of(template), reasoning_markers(template)
    calls = f"calls in the style {style}" if style else "calls in no style that weft knows"
    return f"chat template: {calls}, {f'reasoning from {pair[0]} to {pair[1]}' if pair else 'no reasoning'}"


def drafter_lines(facts: ModelFacts) -> list[str]:
    """The drafters in the directory. Raises `ModelError` for one that does not fit the model."""
    path, target = facts.path, facts.model
    lines = [
        "EAGLE3 head: none (no eagle3/ in the directory)",
        "MTP layers: none (no mtp/)",
        "draft model: none (no draft/)",
    ]
    if (path / "eagle3").is_dir():
        head = Eagle3Head.load(path / "eagle3", target)
        lines[0] = (
            f"EAGLE3 head: draft vocabulary {head.draft_vocab_size}, reads layers {list(head.aux_layers)}"
        )
    has_own = (path / "mtp").is_dir()
    if has_own or has_modules(facts.headers, facts.config):
        modules = MtpModules.load(path / "mtp" if has_own else path, target)
        lines[1] = f"MTP layers: {len(modules.modules)}, in {'mtp/' if has_own else 'the weights'}"
    if (path / "draft").is_dir():
        draft = ModelFacts.read(path / "draft", facts.device)
        lines[2] = f"draft model: {draft.config.architecture}, {size_of(draft.weight_bytes)} in memory"
    return lines


def fact_lines(facts: ModelFacts, free_bytes: int) -> list[str]:
    """All facts, one a line. Raises `ModelError` or `TokenizerError` for parts that do not fit together."""
    tokenizer = load_tokenizer(facts.path)
    config = facts.config
    engine = EngineConfig().resolved(config.max_position_embeddings, 0, facts.device.type, config.has_states)
    experts = experts_line(facts)
    return [
        runner_line(facts),
        shape_line(facts),
        weights_line(facts),
        *([experts] if experts else []),
        cache_line(facts, engine),
        room_line(facts, engine, free_bytes),
        tokenizer_line(facts, tokenizer),
        template_line(tokenizer),
        *drafter_lines(facts),
    ]
