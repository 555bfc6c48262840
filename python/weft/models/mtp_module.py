"""Multi-token-prediction (MTP) modules: each a decoder layer over a hidden state and a later token's embedding.

Module k's entry at position i reads a hidden state of position i (the target's last one after its final norm for k = 1,
module k-1's output for the others) and the token at i + k, and its output predicts the token at i + k + 1. Outputs are
normed, as the target's are. Embeddings and output projection are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.core.files import read_json
from weft.errors import ModelError
from weft.models.base import KVShape, Model, PagedKV
from weft.models.config import MTP_KEY, Fields, ModelConfig, fit_target
from weft.models.layers import DecoderLayer, norms
from weft.models.mtp_layout import APART, INSIDE, MtpLayout
from weft.models.weights import Checkpoint, read_config
from weft.ops.attention import Rows
from weft.ops.linear import Linear
from weft.ops.rows import join_norms
from weft.registry import MODELS, load

_SUFFIX = "MTP"


class MtpModule:
    """One module, on rows of tokens."""

    def __init__(
        self, config: ModelConfig, weights: Checkpoint, layout: MtpLayout, prefix: str, rotary: Tensor
    ) -> None:
        hidden = config.hidden_size
        norm = norms(config, weights, prefix)
        self.embedding_norm = norm(layout.embedding_norm)
        self.hidden_norm = norm(layout.hidden_norm)
        projection = weights.take_matrix(f"{prefix}{layout.projection}.weight", hidden, 2 * hidden)
        if not layout.embedding_first:
            projection = projection.roll(hidden, 1)
        self.projection = Linear(projection)
        self.layer = DecoderLayer(config, weights, prefix, rotary)
        self.output_norm = norm(layout.output_norm)
        for name in layout.copies:
            weights.drop(f"{prefix}{name}")

    def __call__(
        self,
        embedding: Tensor,
        tokens: Tensor,
        hidden: Tensor,
        rows: Rows,
        cache: Tensor,
        out: Tensor | None = None,
    ) -> Tensor:
        """[N, H], new or `out`, of tokens [N] and hidden states [N, H], writing KV to `cache`."""
        both = join_norms(embedding, tokens, self.embedding_norm, hidden, self.hidden_norm)
        x = self.projection(both)
        self.layer.add_to_(x, rows, cache)
        return self.output_norm(x, out)


class MtpModules:
    """The modules of a checkpoint, in order, for one target. All methods but `load` and `allocate_kv` are device
    functions.

    `aux_layers` is what `combine` takes of the target. `d2t` is None: drafts are of the target's vocabulary.
    """

    d2t: Tensor | None = None

    def __init__(self, config: ModelConfig, modules: list[MtpModule], target: Model) -> None:
        self.config = config
        self.modules = modules
        self.aux_layers: tuple[int, ...] = (target.config.num_layers + 1,)
        self.draft_vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.dtype = config.dtype
        self.device = target.device
        self._target = target

    @classmethod
    def load(cls, path: str | Path, target: Model) -> MtpModules:
        """The modules in their own directory or in a target's checkpoint, in `target`'s dtype on its device;
        `ModelError` if they do not fit `target`.
        """
        directory = Path(path)
        where = str(directory / "config.json")
        data = read_json(directory / "config.json")
        count = Fields(data, where).integer(MTP_KEY)
        with torch.inference_mode(), Checkpoint(directory, target.config, target.device) as weights:
            layout = _layout(weights, target.config.num_layers)
            config = _apart_config(data, where) if layout is APART else read_config(directory)[1]
            config = fit_target(config, target.config, where)
            prefixes = [layout.prefix(module, target.config.num_layers) for module in range(count)]
            rotary = config.rope.table(config.head_dim, config.max_position_embeddings, target.device)
            modules = [MtpModule(config, weights, layout, prefix, rotary) for prefix in prefixes]
            for prefix in [""] if layout is APART else prefixes:
                weights.finish(prefix)
        return cls(config, modules, target)

    def allocate_kv(self, num_pages: int, page_size: int) -> PagedKV:
        """KV with a layer for each module."""
        config = self.config
        shape = KVShape(len(self.modules), num_pages, page_size, config.num_kv_heads, config.head_dim)
        return PagedKV(shape, self.dtype, self.device)

    def combine(self, aux: Tensor) -> Tensor:
        """The hidden states [B, T, H] that the first module reads, of the target's at `aux_layers`: the same."""
        return aux

    def forward(
        self,
        tokens: Tensor,
        hidden: Tensor,
        kv: PagedKV,
        rows: Rows,
        module: int = 0,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Run one module, numbered from 0, over entries of `hidden` [B, T, H] and their tokens [B, T] int64: its output
        [B, T, H], new or `out`, which may be `hidden`.
        """
        flat = hidden.reshape(-1, self.hidden_size)
        embedding, cache = self._target.embedding, kv.layers[module]
        flat_out = None if out is None else out.view(flat.shape)
        made = self.modules[module](embedding, tokens.reshape(-1), flat, rows, cache, flat_out)
        return made.view(hidden.shape)

    def logits(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """[B, H] (what `forward` gave) -> [B, vocab_size], new or `out`."""
        return self._target.logits(x, out, is_normed=True)


def _layout(weights: Checkpoint, num_layers: int) -> MtpLayout:
    """The layout by which the checkpoint names its first module."""
    wanted = []
    for layout in (APART, *INSIDE):
        name = f"{layout.prefix(0, num_layers)}{layout.projection}.weight"
        if name in weights:
            return layout
        wanted.append(repr(name))
    raise ModelError(
        f"{weights.directory}: no MTP module here; its first would have one of {', '.join(wanted)}"
    )


def _apart_config(data: Mapping[str, Any], where: str) -> ModelConfig:
    """The config of modules that have their own directory: `architectures` is their layers' with "MTP" appended."""
    names = data.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    known = sorted(f"{model}{_SUFFIX}" for model in MODELS)
    if name not in known:
        raise ModelError(f"{where}: 'architectures' is {names!r}; it must name one of {', '.join(known)}")
    model = name.removesuffix(_SUFFIX)
    data = {"num_hidden_layers": data[MTP_KEY], **data, "architectures": [model]}
    config: ModelConfig = load("models", model).parse_config(data, where)
    return config
