"""The EAGLE3 head: one decoder layer over target features and token embeddings.

The entry at position p reads the token at p + 1 and a feature that combines the target's hidden states at p. Later
drafts have no hidden states of the target yet. Their feature is the head's output for the previous entry, before the
final norm or, in some heads, after it (`Eagle3Config`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from weft.core.files import read_json
from weft.errors import ModelError
from weft.models.base import Model, PagedKV
from weft.models.checkpoint import META, Checkpoint
from weft.models.decoder import rotary_tables
from weft.models.eagle3_config import Eagle3Config, parse_eagle3
from weft.models.layers import MLP, Attention, norms
from weft.ops.attention import Rows
from weft.ops.linear import Linear, Norm
from weft.ops.packing import PackingThreads
from weft.ops.quantized import Matrix
from weft.ops.rows import embeddable, join_norms


class Eagle3Head:
    """The EAGLE3 head for one target. All methods but `load` and `allocate_kv` are device functions.

    `d2t` is int64 [draft_vocab_size]: draft id i is target id i + d2t[i]. It is None if both vocabularies have one size
    and the checkpoint has no `d2t`.
    `combine` reads the input hidden states of the target's layers `aux_layers`. A checkpoint without an embedding or an
    output projection shares the target's.
    """

    def __init__(self, config: Eagle3Config, weights: Checkpoint, target: Model) -> None:
        start = "model." if "model.fc.weight" in weights else ""
        names = f"{start}midlayer.", f"{start}layers.0."
        name = next((name for name in names if f"{name}hidden_norm.weight" in weights), names[0])
        layer = replace(config.layer, qk_norm=f"{name}self_attn.q_norm.weight" in weights)
        hidden = layer.hidden_size
        self.config = layer
        self.aux_layers = config.aux_layers
        self.draft_vocab_size = config.draft_vocab_size
        self.hidden_size = hidden
        self.dtype = layer.dtype
        self.device = weights.device
        self.d2t = _take_d2t(weights, start, config.draft_vocab_size, layer.vocab_size)
        self._target = target
        self._embedding: Matrix | Linear = target.embedding
        self._head: Linear | None = None
        own_embedding: Matrix | None = None
        if f"{start}embed_tokens.weight" in weights or hidden != config.target_hidden_size:
            own_embedding = weights.take_in_order([f"{start}embed_tokens.weight"], layer.vocab_size, hidden)[
                0
            ]
            self._embedding = embeddable(own_embedding)
        is_whole = config.draft_vocab_size == layer.vocab_size and "lm_head.weight" not in weights
        if is_whole and own_embedding is not None and layer.tie_word_embeddings:
            self._head = self._embedding = Linear(own_embedding)
        elif not is_whole or hidden != config.target_hidden_size:
            self._head = Linear(weights.take_matrix("lm_head.weight", config.draft_vocab_size, hidden))
        self._combine = _Combine(config, weights, start)
        norm = norms(layer, weights, name)
        self._input_norm = norm("input_layernorm")
        self._hidden_norm = norm("hidden_norm")
        self._post_attention_norm = norm("post_attention_layernorm")
        self._adds_to_normed = config.norm_before_residual
        rotary = rotary_tables(layer, self.device)[0]
        self._attention = Attention(layer, weights, f"{name}self_attn.", rotary, input_size=2 * hidden)
        self._mlp = MLP(layer, weights, f"{name}mlp.")
        self._norm = norms(layer, weights, start)("norm")
        self._gives_normed = config.norm_output

    @classmethod
    def load(cls, path: str | Path, target: Model) -> Eagle3Head:
        """Load the head from a directory, in the dtype and on the device of `target`. Raises `ModelError` if it does
        not fit `target`."""
        directory = Path(path)
        where = directory / "config.json"
        config = parse_eagle3(read_json(where), target.config, str(where))
        for device in (META, target.device):  # the headers first
            with (
                torch.inference_mode(),
                Checkpoint(directory, target.config, device) as weights,
                PackingThreads(target.config.rounding),
            ):
                head = cls(config, weights, target)
                weights.finish()
        return head

    def allocate_kv(self, num_pages: int, page_size: int, dtype: torch.dtype | None = None) -> PagedKV:
        """Allocate KV for the head's layer, in `dtype` (default: that of activations)."""
        memories = self.config.layer_memories[:1]
        return PagedKV(memories, num_pages, page_size, dtype or self.dtype, self.device)

    def combine(self, aux: Tensor, live: Tensor | None = None) -> Tensor:
        """Features [B, T, H] for the target's hidden states `aux` [B, T, len(aux_layers) * target's H]."""
        return self._combine(aux.reshape(-1, aux.shape[-1]), live).view(*aux.shape[:-1], -1)

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
        residual = both[:, self.hidden_size :] if self._adds_to_normed else before
        x = self._attention.output(heads, residual=residual, live=live)
        inner = self._mlp.up(x, self._post_attention_norm, live=live)
        place = None if out is None else out.view(x.shape)
        if self._gives_normed:
            self._mlp.output(inner, residual=x, out=x, live=live)
            return self._norm(x, place, live).view(features.shape)
        place = x if place is None else place
        return self._mlp.output(inner, residual=x, out=place, live=live).view(features.shape)

    def logits(self, x: Tensor, out: Tensor | None = None, live: Tensor | None = None) -> Tensor:
        """Logits [B, draft_vocab_size] for outputs [B, H] of `forward`, in a new tensor or `out`."""
        norm = None if self._gives_normed else self._norm
        if self._head is not None:
            return self._head(x, norm, out=out, live=live)
        return self._target.logits(x if norm is None else norm(x, live=live), out, is_normed=True, live=live)


class _Combine:
    """Makes features [N, H] of the target's hidden states at some layers, concatenated to rows."""

    def __init__(self, config: Eagle3Config, weights: Checkpoint, start: str) -> None:
        hidden, eps = config.layer.hidden_size, config.layer.rms_norm_eps
        width, count = config.target_hidden_size, len(config.aux_layers)

        def norm(name: str, size: int) -> Norm:
            return Norm(weights.take(f"{start}{name}.weight", size), eps)

        bias = weights.take(f"{start}fc.bias", hidden) if config.fc_bias else None
        self._fc = Linear(weights.take_matrix(f"{start}fc.weight", hidden, count * width), bias)
        self._norm = norm("input_norm", count * width) if config.norm_before_fc else None
        self._norms = [norm(f"fc_norm.{i}", width) for i in range(count)] if config.fc_norm else []

    def __call__(self, rows: Tensor, live: Tensor | None) -> Tensor:
        if self._norms:
            parts, rows = rows.chunk(len(self._norms), 1), torch.empty_like(rows)
            for part, norm, place in zip(parts, self._norms, rows.chunk(len(self._norms), 1), strict=True):
                norm(part, place, live)
        return self._fc(rows, self._norm, live=live)


def _take_d2t(weights: Checkpoint, prefix: str, draft_vocab_size: int, vocab_size: int) -> Tensor | None:
    weights.drop(f"{prefix}t2d")
    name = f"{prefix}d2t"
    if name not in weights and draft_vocab_size == vocab_size:
        return None
    d2t = weights.take_raw(name, draft_vocab_size)
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
