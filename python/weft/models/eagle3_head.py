"""The EAGLE3 head in the published format: one decoder layer over target features and token embeddings.

The entry at position p reads the token at p + 1 and a feature that combines the target's hidden states at p. Later
drafts have no hidden states of the target yet. Their feature is the head's output for the previous entry, before the
final norm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.core.files import read_json
from weft.errors import ModelError
from weft.models.base import Model, PagedKV
from weft.models.config import ModelConfig, fit_target, parse_decoder
from weft.models.fields import Fields
from weft.models.layers import MLP, Attention, norms
from weft.models.memory import LayerMemory, Pages
from weft.models.weights import META, Checkpoint
from weft.ops.attention import Rows
from weft.ops.linear import Linear
from weft.ops.rows import join_norms


class Eagle3Head:
    """The EAGLE3 head for one target. All methods but `load` and `allocate_kv` are device functions.

    `d2t` is int64 [draft_vocab_size]: draft id i is target id i + d2t[i]. It is None if both vocabularies have one size
    and the checkpoint has no `d2t`.
    `combine` reads the input hidden states of the target's layers `aux_layers`.
    """

    def __init__(
        self,
        config: ModelConfig,
        aux_layers: tuple[int, ...],
        draft_vocab_size: int,
        weights: Checkpoint,
        target: Model,
    ) -> None:
        hidden = config.hidden_size
        self.config = config
        self.aux_layers = aux_layers
        self.draft_vocab_size = draft_vocab_size
        self.hidden_size = hidden
        self.dtype = config.dtype
        self.device = weights.device
        self.d2t = _take_d2t(weights, draft_vocab_size, config.vocab_size)
        self._embedding = target.embedding
        if "embed_tokens.weight" in weights:
            self._embedding = weights.take_matrix("embed_tokens.weight", config.vocab_size, hidden)
        self._combine = Linear(weights.take_matrix("fc.weight", hidden, len(aux_layers) * hidden))
        norm = norms(config, weights, "midlayer.")
        self._input_norm = norm("input_layernorm")
        self._hidden_norm = norm("hidden_norm")
        self._post_attention_norm = norm("post_attention_layernorm")
        rotary = config.rope.table(
            config.head_dim, config.max_position_embeddings, self.device, config.max_seq_len
        )
        self._attention = Attention(config, weights, "midlayer.self_attn.", rotary, input_size=2 * hidden)
        self._mlp = MLP(config, weights, "midlayer.mlp.")
        self._norm = norms(config, weights, "")("norm")
        self._head = Linear(weights.take_matrix("lm_head.weight", draft_vocab_size, hidden))

    @classmethod
    def load(cls, path: str | Path, target: Model) -> Eagle3Head:
        """Load the head from a directory, in the dtype and on the device of `target`. Raises `ModelError` if it does
        not fit `target`."""
        directory = Path(path)
        where = directory / "config.json"
        data = read_json(where)
        config = fit_target(parse_decoder(data, str(where)), target.config, str(where))
        aux_layers = _aux_layers(data, target.config.num_layers, str(where))
        fields = Fields(data, str(where))
        fields.must_be("num_hidden_layers", 1)
        fields.must_be("norm_before_residual", False)
        fields.must_be("target_hidden_size", config.hidden_size)
        draft_vocab_size = fields.integer("draft_vocab_size", config.vocab_size)
        for device in (META, target.device):  # the headers first
            with torch.inference_mode(), Checkpoint(directory, target.config, device) as weights:
                head = cls(config, aux_layers, draft_vocab_size, weights, target)
                weights.finish()
        return head

    def allocate_kv(self, num_pages: int, page_size: int) -> PagedKV:
        """Allocate KV for the head's layer."""
        config = self.config
        memory = LayerMemory(Pages(config.num_kv_heads, config.head_dim, config.head_dim))
        return PagedKV([memory], num_pages, page_size, self.dtype, self.device)

    def combine(self, aux: Tensor, live: Tensor | None = None) -> Tensor:
        """Features [B, T, H] for the target's hidden states `aux` [B, T, len(aux_layers) * H]."""
        return self._combine(aux.reshape(-1, aux.shape[-1]), live=live).view(*aux.shape[:-1], -1)

    def forward(
        self, tokens: Tensor, features: Tensor, kv: PagedKV, rows: Rows, *, out: Tensor | None = None
    ) -> Tensor:
        """Run the layer on `features` [B, T, H] and the token after each, int64 [B, T].

        Returns the next features [B, T, H], in a new tensor or `out`, which may be `features`.
        """
        before, tokens, live = features.reshape(-1, self.hidden_size), tokens.reshape(-1), rows.live
        both = join_norms(self._embedding, tokens, self._input_norm, before, self._hidden_norm, live)
        layer = kv.layers[0]
        assert layer is not None
        heads = self._attention.attend(self._attention.qkv(both, live=live), rows, layer)
        x = self._attention.output(heads, residual=before, live=live)
        out = x if out is None else out.view(x.shape)
        inner = self._mlp.up(x, self._post_attention_norm, live=live)
        return self._mlp.output(inner, residual=x, out=out, live=live).view(features.shape)

    def logits(self, x: Tensor, out: Tensor | None = None, live: Tensor | None = None) -> Tensor:
        """Logits [B, draft_vocab_size] for outputs [B, H] of `forward`, in a new tensor or `out`."""
        return self._head(x, self._norm, out=out, live=live)


def _aux_layers(data: dict[str, Any], num_layers: int, where: str) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    eagle = data.get("eagle_config") or {}
    if not isinstance(eagle, dict):
        raise ModelError(f"{where}: 'eagle_config' is {eagle!r}; it must be an object")
    ids = eagle.get(key, [2, num_layers // 2, num_layers - 3])
    if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i <= num_layers for i in ids):
        raise ModelError(
            f"{where}: 'eagle_config.{key}' is {ids!r}; "
            f"it must list layers of the target, each 0 to {num_layers}"
        )
    return tuple(ids)


def _take_d2t(weights: Checkpoint, draft_vocab_size: int, vocab_size: int) -> Tensor | None:
    weights.drop("t2d")
    if "d2t" not in weights and draft_vocab_size == vocab_size:
        return None
    d2t = weights.take_raw("d2t", draft_vocab_size)
    if d2t.is_floating_point():
        raise ModelError(f"{weights.directory}: 'd2t' is {d2t.dtype}; it must hold integers")
    d2t = d2t.to(torch.int64)
    ids = torch.arange(draft_vocab_size) + d2t
    wrong = torch.nonzero((ids < 0) | (ids >= vocab_size)).flatten()
    if wrong.numel():
        i = int(wrong[0])
        raise ModelError(
            f"{weights.directory}: 'd2t' sends draft id {i} to {int(ids[i])}; "
            f"the target has ids 0 to {vocab_size - 1}"
        )
    return d2t.to(weights.device)
