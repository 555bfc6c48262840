"""Drafting in a chain, shared by the EAGLE3 head and the MTP module.

An entry at position t consists of a feature of position t and the embedding of token t+1. It predicts token t+2. Step 0
reads the target's feature, and each later step the head's output of the step before. The head has its own keys and
values. An entry's position id is t.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import torch
from config import TARGET
from model import rope_tables, rotate
from torch import Tensor, nn
from torch.nn import functional as F


class Projections(nn.Module):
    """The q, k, v and o projections of an attention over inputs of `width`. The heads have the target's number and
    size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        h, d = TARGET.hidden_size, TARGET.head_dim
        self.q_proj = nn.Linear(width, TARGET.num_heads * d, bias=False)
        self.k_proj = nn.Linear(width, TARGET.num_kv_heads * d, bias=False)
        self.v_proj = nn.Linear(width, TARGET.num_kv_heads * d, bias=False)
        self.o_proj = nn.Linear(TARGET.num_heads * d, h, bias=False)


@dataclass
class Unrolling:
    """Root positions of each row that draft in parallel, and the keys and values that they attend to.

    Root t attends to the entries of step 0 at positions up to t (`keys`, `values`), and in later steps only to those of
    its own chain (`own`), as in drafting.
    """

    attention: Projections
    roots: Tensor  # [batch, roots], positions
    keys: Tensor  # [batch, heads, length, head_dim]
    values: Tensor
    bias: Tensor  # [batch, 1, roots, length], -inf for positions after the root
    own: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # [batch, heads, roots, head_dim]
    step: int = 0

    @classmethod
    def start(cls, attention: Projections, y: Tensor, roots: Tensor) -> Unrolling:
        """Compute the keys and values of whole sequences of attention inputs [batch, length, width], for `roots`."""
        length = y.shape[1]
        positions = torch.arange(length)[None].expand(len(y), -1)
        after = torch.arange(length) > roots[..., None]
        bias = torch.zeros(after.shape).masked_fill(after, float("-inf"))
        return cls(attention, roots, _keys(attention, y, positions), _values(attention, y), bias[:, None])

    def attend(self, y: Tensor) -> Tensor:
        """Run one step at every root. Returns the attention's output for inputs [batch, roots, width]."""
        length = self.keys.shape[2]
        positions = self.roots + self.step
        if self.step:  # step 0's entries are already part of the sequence
            self.own.append((_keys(self.attention, y, positions), _values(self.attention, y)))
        self.step += 1
        query = _rotated(self.attention.q_proj(y), positions) * TARGET.head_dim**-0.5
        scores = [query @ self.keys.transpose(-1, -2) + self.bias]
        scores += [(query * key).sum(-1, keepdim=True) for key, _ in self.own]
        weights = torch.cat(scores, -1).softmax(-1)
        out = weights[..., :length] @ self.values
        for i, (_, value) in enumerate(self.own):
            out = out + weights[..., length + i, None] * value
        mixed: Tensor = self.attention.o_proj(out.transpose(1, 2).flatten(2))
        return mixed


class Head(Protocol):
    """A drafter that reads the target's hidden states and then its own."""

    @property
    def draft_ids(self) -> Tensor:
        """The target token id of each logit."""

    def features(self, last: Tensor, kept: list[Tensor]) -> Tensor:
        """Return step 0's features from the target's normed last hidden state and the states entering its layers."""

    def start(self, emb: Tensor, feature: Tensor, roots: Tensor) -> Unrolling:
        """Read whole sequences [batch, length, hidden]."""

    def step(self, emb: Tensor, feature: Tensor, seen: Unrolling) -> tuple[Tensor, Tensor]:
        """Process one entry at every root [batch, roots, hidden]. Returns the next step's feature and the draft
        logits."""


def draft(head: Head, embeddings: Tensor, features: Tensor, tokens: Tensor, count: int) -> list[int]:
    """Return `count` greedy drafts after `tokens` [n]. `features` [n - 1, hidden] are those of all tokens but the
    last."""
    feature, emb = features[None], embeddings[tokens[1:]][None]
    seen = head.start(emb, feature, torch.tensor([[len(tokens) - 2]]))
    feature, emb = feature[:, -1:], emb[:, -1:]
    drafts: list[int] = []
    for _ in range(count):
        feature, logits = head.step(emb, feature, seen)
        drafts.append(int(head.draft_ids[logits[0, -1].argmax()]))
        emb = embeddings[torch.tensor([[drafts[-1]]])]
    return drafts


def soft_cross_entropy(logits: Tensor, target_logits: Tensor) -> Tensor:
    """Return the cross-entropy with the target's distribution over the same tokens, per row."""
    return -(target_logits.softmax(-1) * F.log_softmax(logits, -1)).sum(-1)


@cache
def _tables() -> tuple[Tensor, Tensor]:
    return rope_tables(TARGET, TARGET.max_positions)


def _heads(x: Tensor) -> Tensor:
    heads: Tensor = x.unflatten(-1, (-1, TARGET.head_dim)).transpose(1, 2)
    return heads


def _rotated(x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = _tables()
    return rotate(_heads(x), cos[positions][:, None], sin[positions][:, None])


def _keys(attention: Projections, y: Tensor, positions: Tensor) -> Tensor:
    keys = _rotated(attention.k_proj(y), positions)
    return keys.repeat_interleave(TARGET.num_heads // TARGET.num_kv_heads, 1)


def _values(attention: Projections, y: Tensor) -> Tensor:
    values = _heads(attention.v_proj(y))
    return values.repeat_interleave(TARGET.num_heads // TARGET.num_kv_heads, 1)
