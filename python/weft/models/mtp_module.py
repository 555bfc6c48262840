"""Multi-token-prediction (MTP) modules: decoder layers over a hidden state and a later token's embedding.

Modules are numbered from m = 0. At position i, module m reads a hidden state of that position and the token at
i + m + 1. It predicts the token at i + m + 2. The hidden state of module 0 is the target's last; that of a later module
is the output of module m - 1. Both are read after the norm that precedes the logits, or before it (`MtpLayout`).
Modules share the target's embedding and output projection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.core.files import read_json
from weft.errors import ModelError
from weft.models.base import Model, PagedKV
from weft.models.config import MTP_KEY, ModelConfig, fit_target
from weft.models.fields import Fields
from weft.models.layers import DecoderLayer, LayerViews, norms
from weft.models.memory import LayerMemory, Pages
from weft.models.mtp_layout import APART, INSIDE, MtpLayout
from weft.models.residual import Residual
from weft.models.weights import META, Checkpoint, read_config
from weft.ops.attention import KVLayer, Rows
from weft.ops.linear import Linear
from weft.ops.rows import copy_rows_, join_norms
from weft.registry import MODELS, load

_SUFFIX = "MTP"


class MtpModule:
    """One MTP module, on rows of tokens [N]."""

    def __init__(
        self, config: ModelConfig, weights: Checkpoint, layout: MtpLayout, prefix: str, layer: DecoderLayer
    ) -> None:
        hidden = config.hidden_size
        norm = norms(config, weights, prefix)
        self.embedding_norm = norm(layout.embedding_norm)
        self.hidden_norm = norm(layout.hidden_norm)
        projection = weights.take_matrix(f"{prefix}{layout.projection}.weight", hidden, 2 * hidden)
        if not layout.embedding_first:
            projection = projection.roll(hidden, 1)  # swap the halves: `join_norms` puts the embedding first
        self.projection = Linear(projection)
        self.layer = layer
        self.output_norm = norm(layout.output_norm)
        self.gives_normed = layout.reads_normed
        for name in layout.copies:
            weights.drop(f"{prefix}{name}")

    def __call__(
        self,
        embedding: Tensor | Linear,
        tokens: Tensor,
        hidden: Tensor,
        rows: Rows,
        kv: KVLayer,
        out: Tensor | None = None,
    ) -> Tensor:
        """Run the module on `tokens` [N] and `hidden` [N, H], and write their KV to `kv`. Returns the output [N, H],
        in a new tensor or `out`. It is what the next module reads, and is normed if `gives_normed`."""
        both = join_norms(embedding, tokens, self.embedding_norm, hidden, self.hidden_norm, rows.live)
        x = self.projection(both, out=None if self.gives_normed else out, live=rows.live)
        stream = Residual(x, rows.live)
        self.layer.add_to_(stream, rows, LayerViews(kv))
        x = stream.settle()
        if self.gives_normed:
            return self.output_norm(x, out, rows.live)
        if out is not None and out is not x:
            copy_rows_(out, x, rows.live)
        return x

    def normed(self, output: Tensor, live: Tensor | None) -> Tensor:
        """An output [B, H] after the output norm, for the logits."""
        return output if self.gives_normed else self.output_norm(output, live=live)


class MtpModules:
    """The MTP modules of a checkpoint, in order, for one target. All methods but `load` and `allocate_kv` are device
    functions.

    `combine` reads the hidden states of the target's layers `aux_layers`. `d2t` is None because drafts use the target's
    vocabulary.
    """

    d2t: Tensor | None = None

    def __init__(
        self, config: ModelConfig, modules: list[MtpModule], layout: MtpLayout, target: Model
    ) -> None:
        self.config = config
        self.modules = modules
        self.aux_layers: tuple[int, ...] = (target.config.num_layers + layout.reads_normed,)
        self.draft_vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.dtype = config.dtype
        self.device = target.device
        self._target = target

    @classmethod
    def load(cls, path: str | Path, target: Model) -> MtpModules:
        """Load the modules from a directory of their own or from a target's checkpoint, in the dtype and on the device
        of `target`. Raises `ModelError` if they do not fit `target`."""
        directory = Path(path)
        where = str(directory / "config.json")
        data = read_json(directory / "config.json")
        count = Fields(data, where).integer(MTP_KEY)
        for device in (META, target.device):  # the headers first
            with torch.inference_mode(), Checkpoint(directory, target.config, device) as weights:
                layout = _layout(weights, target.config.num_layers)
                config = _apart_config(data, where) if layout is APART else read_config(directory)[1]
                config = fit_target(config, target.config, where)
                prefixes = [layout.prefix(module, target.config.num_layers) for module in range(count)]
                rotary = config.rope.table(
                    config.head_dim, config.max_position_embeddings, device, config.max_seq_len
                )
                decoder = load("models", config.architecture)
                modules = [
                    MtpModule(
                        config,
                        weights,
                        layout,
                        prefix,
                        decoder.make_layer(config, weights, prefix, config.num_layers + module, rotary),
                    )
                    for module, prefix in enumerate(prefixes)
                ]
                for prefix in [""] if layout is APART else prefixes:
                    weights.finish(prefix)
        return cls(config, modules, layout, target)

    def allocate_kv(self, num_pages: int, page_size: int) -> PagedKV:
        """Allocate KV with one layer per module."""
        config = self.config
        memory = LayerMemory(Pages(config.num_kv_heads, config.head_dim, config.head_dim))
        return PagedKV([memory] * len(self.modules), num_pages, page_size, self.dtype, self.device)

    def combine(self, aux: Tensor, live: Tensor | None = None) -> Tensor:
        """The hidden states [B, T, H] that the first module reads: `aux` itself."""
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
        """Run module number `module` (from 0) on entries of `hidden` [B, T, H] and their tokens, int64 [B, T].

        Returns its output [B, T, H], in a new tensor or `out`, which may be `hidden`.
        """
        flat = hidden.reshape(-1, self.hidden_size)
        embedding, layer = self._target.embedding, kv.layers[module]
        assert layer is not None
        flat_out = None if out is None else out.view(flat.shape)
        made = self.modules[module](embedding, tokens.reshape(-1), flat, rows, layer, flat_out)
        return made.view(hidden.shape)

    def logits(
        self, x: Tensor, out: Tensor | None = None, live: Tensor | None = None, module: int = 0
    ) -> Tensor:
        """Logits [B, vocab_size] for outputs [B, H] of `forward` by module number `module`, in a new tensor or
        `out`."""
        return self._target.logits(self.modules[module].normed(x, live), out, is_normed=True, live=live)


def _layout(weights: Checkpoint, num_layers: int) -> MtpLayout:
    """Find the layout of the modules by the name of the first module's projection. Raises `ModelError` if there is
    none."""
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
    """Parse the config of a directory that contains only MTP modules. Its `architectures` is the name of the layers'
    architecture, followed by "MTP"."""
    names = data.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    known = sorted(f"{model}{_SUFFIX}" for model in MODELS)
    if name not in known:
        raise ModelError(f"{where}: 'architectures' is {names!r}; it must name one of {', '.join(known)}")
    model = name.removesuffix(_SUFFIX)
    data = {"num_hidden_layers": data[MTP_KEY], **data, "architectures": [model]}
    config: ModelConfig = load("models", model).parse_config(data, where)
    return config
