"""The EAGLE3 head: one decoder layer that reads the target's features and the next token's embedding.

An entry at position t holds the feature of position t and the embedding of token t+1; it predicts
token t+2. Its output before the norm is the feature of the next draft's entry. Parameter names are those of
the published heads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from config import BOS, EOS, HEAD, PAD, TARGET
from export import save_tensors, write_json
from model import MLP, rope_tables, rotate
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F


class HeadAttention(nn.Module):
    """Attention whose input is twice as wide as its output; projections only."""

    def __init__(self) -> None:
        super().__init__()
        h, d = TARGET.hidden_size, TARGET.head_dim
        self.q_proj = nn.Linear(2 * h, HEAD.num_heads * d, bias=False)
        self.k_proj = nn.Linear(2 * h, HEAD.num_kv_heads * d, bias=False)
        self.v_proj = nn.Linear(2 * h, HEAD.num_kv_heads * d, bias=False)
        self.o_proj = nn.Linear(HEAD.num_heads * d, h, bias=False)


class HeadLayer(nn.Module):
    """The published heads call it midlayer."""

    def __init__(self) -> None:
        super().__init__()
        h, eps = TARGET.hidden_size, TARGET.rms_norm_eps
        self.self_attn = HeadAttention()
        self.mlp = MLP(h, HEAD.intermediate_size)
        self.input_layernorm = nn.RMSNorm(h, eps=eps)
        self.hidden_norm = nn.RMSNorm(h, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(h, eps=eps)


@dataclass
class Unrolling:
    """Some root positions of each row, drafting side by side, and the keys and values that they see.

    Root t sees the entries of step 0 at positions up to t (`keys`, `values`), and of the later steps
    only those of its own chain (`own`): what it will see when it drafts.
    """

    roots: Tensor  # [batch, roots], positions
    keys: Tensor  # [batch, heads, length, head_dim]
    values: Tensor
    bias: Tensor  # [batch, 1, roots, length], -inf for positions after the root
    own: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # [batch, heads, roots, head_dim]
    step: int = 0


class Eagle3Head(nn.Module):
    """The head; `start` reads a sequence, each `step` drafts one token at every root."""

    cos: Tensor
    sin: Tensor
    d2t: Tensor
    t2d: Tensor

    def __init__(self) -> None:
        super().__init__()
        h = TARGET.hidden_size
        self.fc = nn.Linear(3 * h, h, bias=False)
        self.midlayer = HeadLayer()
        self.norm = nn.RMSNorm(h, eps=TARGET.rms_norm_eps)
        self.lm_head = nn.Linear(h, HEAD.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(HEAD.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(TARGET.vocab_size, dtype=torch.bool))
        cos, sin = rope_tables(TARGET, TARGET.max_positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def set_draft_vocab(self, keep: Tensor) -> None:
        """Draft these target token ids (sorted); d2t is stored as offsets."""
        self.d2t.copy_(keep - torch.arange(len(keep)))
        self.t2d.fill_(False)[keep] = True

    @property
    def draft_ids(self) -> Tensor:
        """The target token id of each draft token."""
        return self.d2t + torch.arange(len(self.d2t))

    def start(self, emb: Tensor, feature: Tensor, roots: Tensor) -> Unrolling:
        """Keys and values of the whole sequences [batch, length, hidden], seen from `roots`."""
        length = feature.shape[1]
        positions = torch.arange(length)[None].expand(len(feature), -1)
        y = self._input(emb, feature)
        bias = torch.zeros(*roots.shape, length).masked_fill(
            torch.arange(length) > roots[..., None], float("-inf")
        )
        return Unrolling(roots, self._keys(y, positions), self._values(y), bias[:, None])

    def step(self, emb: Tensor, feature: Tensor, seen: Unrolling) -> tuple[Tensor, Tensor]:
        """One entry at every root [batch, roots, hidden]: the next step's feature, and the draft logits."""
        layer, length = self.midlayer, seen.keys.shape[2]
        y = self._input(emb, feature)
        positions = seen.roots + seen.step
        if seen.step:
            seen.own.append((self._keys(y, positions), self._values(y)))
        seen.step += 1
        query = self._rotated(layer.self_attn.q_proj(y), positions) * TARGET.head_dim**-0.5
        scores = [query @ seen.keys.transpose(-1, -2) + seen.bias]
        scores += [(query * key).sum(-1, keepdim=True) for key, _ in seen.own]
        weights = torch.cat(scores, -1).softmax(-1)
        out = weights[..., :length] @ seen.values
        for i, (_, value) in enumerate(seen.own):
            out = out + weights[..., length + i, None] * value
        x = feature + layer.self_attn.o_proj(out.transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        return x, self.lm_head(self.norm(x))

    def _input(self, emb: Tensor, feature: Tensor) -> Tensor:
        return torch.cat((self.midlayer.input_layernorm(emb), self.midlayer.hidden_norm(feature)), -1)

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, TARGET.head_dim)).transpose(1, 2)
        return heads

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(self._heads(x), self.cos[positions][:, None], self.sin[positions][:, None])

    def _keys(self, y: Tensor, positions: Tensor) -> Tensor:
        keys = self._rotated(self.midlayer.self_attn.k_proj(y), positions)
        return keys.repeat_interleave(HEAD.num_heads // HEAD.num_kv_heads, 1)

    def _values(self, y: Tensor) -> Tensor:
        values = self._heads(self.midlayer.self_attn.v_proj(y))
        return values.repeat_interleave(HEAD.num_heads // HEAD.num_kv_heads, 1)

    def draft(self, embeddings: Tensor, features: Tensor, tokens: Tensor, count: int) -> list[int]:
        """Greedy drafts after `tokens` [n]; `features` [n - 1, 3 * hidden] lack only the last token's."""
        feature, emb = self.fc(features)[None], embeddings[tokens[1:]][None]
        seen = self.start(emb, feature, torch.tensor([[len(tokens) - 2]]))
        feature, emb = feature[:, -1:], emb[:, -1:]
        drafts: list[int] = []
        for _ in range(count):
            feature, logits = self.step(emb, feature, seen)
            drafts.append(int(self.draft_ids[logits[0, -1].argmax()]))
            emb = embeddings[torch.tensor([[drafts[-1]]])]
        return drafts


def head_config() -> dict[str, Any]:
    """config.json of the head."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": TARGET.vocab_size,
        "draft_vocab_size": HEAD.draft_vocab_size,
        "hidden_size": TARGET.hidden_size,
        "target_hidden_size": TARGET.hidden_size,
        "intermediate_size": HEAD.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": HEAD.num_heads,
        "num_key_value_heads": HEAD.num_kv_heads,
        "head_dim": TARGET.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": TARGET.rms_norm_eps,
        "rope_theta": TARGET.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": TARGET.max_positions,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(HEAD.aux_layers)},
    }


def save_head(head: Eagle3Head, directory: Path) -> None:
    """config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", head_config())
    save_tensors(head.state_dict(), directory / "model.safetensors")


def load_head(directory: Path) -> Eagle3Head:
    """The head as saved, in float32."""
    head = Eagle3Head()
    head.load_state_dict(load_file(directory / "model.safetensors"))
    return head.eval()


def soft_cross_entropy(logits: Tensor, target_logits: Tensor) -> Tensor:
    """Cross-entropy with the target's distribution over the draft vocabulary, per row."""
    return -(target_logits.softmax(-1) * F.log_softmax(logits, -1)).sum(-1)
