"""Multi-token-prediction (MTP) modules: decoder layers over a hidden state and a later token's embedding.

Modules are numbered from m = 0. At position i, module m reads a hidden state of that position and the token at
i + m + 1. It predicts the token at i + m + 2. The hidden state of module 0 is the target's last; that of a later module
is the output of module m - 1. Both are read after the norm that precedes the logits, or before it (`MtpLayout`).
Modules share the target's embedding and output projection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.core.files import read_json
from weft.errors import ModelError
from weft.models.architectures import read_config
from weft.models.base import Model, PagedKV
from weft.models.checkpoint import META, Checkpoint
from weft.models.config import MTP_KEY, ModelConfig, fit_target
from weft.models.decoder import Decoder, rotary_tables
from weft.models.fields import Fields
from weft.models.layers import DecoderLayer, LayerViews, norms
from weft.models.memory import LayerMemory
from weft.models.mtp_layout import APART, INSIDE, MtpLayout
from weft.models.residual import Residual
from weft.ops.attention import KVLayer, Rows
from weft.ops.linear import Linear
from weft.ops.packing import PackingThreads
from weft.ops.quantized import Matrix
from weft.ops.rows import copy_rows_, join_norms
from weft.registry import MODELS, load

_SUFFIX = "MTP"


class MtpModule:
    """One MTP module, on rows of tokens [N]."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Checkpoint,
        layout: MtpLayout,
        prefix: str,
        make_layer: Callable[[], DecoderLayer],
    ) -> None:
        hidden = config.hidden_size
        norm = norms(config, weights, prefix)
        self.embedding_norm = norm(layout.embedding_norm)
        self.hidden_norm = norm(layout.hidden_norm)
        name = f"{prefix}{layout.projection}.weight"
        if layout.embedding_first:
            self.projection = Linear(weights.take_matrix(name, hidden, 2 * hidden))
        else:  # swap the halves: `join_norms` puts the embedding first
            self.projection = Linear(weights.take_dense(name, hidden, 2 * hidden).roll(hidden, 1))
        self.layer = make_layer()
        self.output_norm = norm(layout.output_norm)
        self.gives_normed = layout.reads_normed
        for name in layout.copies:
            weights.drop(f"{prefix}{name}")

    def __call__(
        self,
        embedding: Matrix | Linear,
        tokens: Tensor,
        hidden: Tensor,
        rows: Rows,
        kv: KVLayer,
        out: Tensor | None = None,
    ) -> Tensor:
        """Run the module on `tokens` [N] and `hidden` [N, H], and write their KV to `kv`. Returns the output [N, H],
        in a new tensor or `out`. It is what the next module reads, and is normed if `gives_normed`."""
        both = join_norms(embedding, tokens, self.embedding_norm, hidden, self.hidden_norm, rows.live)
        product = self.projection(both, out=None if self.gives_normed else out, live=rows.live)
        stream = Residual(product, rows.live)
        self.layer.add_to_(stream, rows, LayerViews(kv))
        x = stream.settle()
        if self.gives_normed:
            return self.output_norm(x, out, rows.live)
        if out is not None and x is not out:
            copy_rows_(out, x, rows.live)
        return x if out is None else out

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
        for device in (META, target.device):  # the headers first
            with (
                torch.inference_mode(),
                Checkpoint(directory, target.config, device) as weights,
                PackingThreads(target.config.rounding),
            ):
                layout = _layout(weights, target.config.num_layers)
                is_apart = layout is APART
                family, config = _apart_config(data, where) if is_apart else read_config(directory)
                if not issubclass(family, Decoder):
                    raise ModelError(
                        f"{where}: {config.architecture} is run by transformers' code, which has no MTP modules"
                    )
                count = config.num_mtp_modules or Fields(data, where).integer(MTP_KEY)
                config = fit_target(config, target.config, where)
                num_layers = target.config.num_layers
                modules = _load_modules(config, weights, layout, family, count, num_layers)
                prefixes = {layout.prefix(module, num_layers) for module in range(count)}
                for prefix in {""} if is_apart else prefixes:
                    weights.finish(prefix)
        return cls(config, modules, layout, target)

    def allocate_kv(self, num_pages: int, page_size: int, dtype: torch.dtype | None = None) -> PagedKV:
        """Allocate KV with one layer per module, in `dtype` (default: that of activations)."""
        # A module's layer has attention without a window, whatever the target's layers have.
        memories = [LayerMemory(self.config.pages)] * len(self.modules)
        return PagedKV(memories, num_pages, page_size, dtype or self.dtype, self.device)

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


def _load_modules(
    config: ModelConfig,
    weights: Checkpoint,
    layout: MtpLayout,
    family: type[Decoder],
    count: int,
    num_layers: int,
) -> list[MtpModule]:
    """Load `count` modules for a target with `num_layers` decoder layers. `family` makes their decoder layers."""
    rotary = rotary_tables(config, weights.device)[-1]

    def load_module(module: int) -> MtpModule:
        prefix = layout.layer_prefix(module, num_layers)
        make_layer = partial(family.make_layer, config, weights, prefix, config.num_layers + module, rotary)
        return MtpModule(config, weights, layout, layout.prefix(module, num_layers), make_layer)

    return [load_module(module) for module in range(count)]


def has_modules(weights: Checkpoint, target: ModelConfig) -> bool:
    """Whether a target's checkpoint has modules that its config counts. Those of Qwen3-Next are counted even if a
    fine-tuned checkpoint lacks them."""
    return target.num_mtp_modules > 0 and any(
        layout.first_name(target.num_layers) in weights for layout in INSIDE
    )


def _layout(weights: Checkpoint, num_layers: int) -> MtpLayout:
    """Find the layout of the modules by the name of the first module's projection. Raises `ModelError` if there is
    none."""
    layouts = {layout.first_name(num_layers): layout for layout in (APART, *INSIDE)}
    found = next((layout for name, layout in layouts.items() if name in weights), None)
    if found is None:
        names = ", ".join(map(repr, layouts))
        raise ModelError(f"{weights.directory}: no MTP module here; its first would have one of {names}")
    return found


def _apart_config(data: Mapping[str, Any], where: str) -> tuple[type[Decoder], ModelConfig]:
    """The family and the parsed config of a directory that contains only MTP modules. Its `architectures` is the name
    of the layers' architecture, followed by "MTP"."""
    Fields(data, where).integer(MTP_KEY)
    names = data.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    known = sorted(f"{model}{_SUFFIX}" for model in MODELS)
    if name not in known:
        raise ModelError(f"{where}: 'architectures' is {names!r}; it must name one of {', '.join(known)}")
    model = name.removesuffix(_SUFFIX)
    data = {"num_hidden_layers": data[MTP_KEY], **data, "architectures": [model]}
    family: type[Decoder] = load("models", model)
    return family, family.parse_config(data, where)
