"""The EAGLE3 head: one decoder layer that reads the target's features and the next token's embedding.

An entry at position t holds the feature of position t and the embedding of token t+1; it predicts
token t+2. Its output before the norm is the feature of the next draft's entry. Parameter names are those of
the published heads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from config import BOS, EOS, HEAD, PAD, TARGET
from export import save_tensors, write_json
from model import MLP, rope_tables, rotate


class HeadAttention(nn.Module):
    """Attention whose input is twice as wide as its output; projections only."""

    def __init__(self) -> None:
        super().__init__()
        h, d = TARGET.hidden_size, TARGET.head_dim
        self.q_proj = nn.Linear(2 * h, HEAD.num_heads * d, bias=False)
        self.k_proj = nn.Linear(2 * h, HEAD.num_kv_heads * d, bias=False)
        self.v_proj = nn.Linear(2 * h, HEAD.num_kv_heads * d, bias=False)
        self.o_proj = nn.Linear(HEAD.num_heads * d, h, bias=False)

    def project(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v as [batch, heads, length, head_dim]; k and v repeated for their groups, no RoPE yet."""
        b, t, _ = y.shape
        q, k, v = (p(y).view(b, t, -1, TARGET.head_dim).transpose(1, 2).float() for p in (self.q_proj, self.k_proj, self.v_proj))
        groups = HEAD.num_heads // HEAD.num_kv_heads
        return q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)


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


class Eagle3Head(nn.Module):
    """`chain` holds the keys and values that the steps of one unrolling share."""

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

    def forward(self, emb: Tensor, feature: Tensor, chain: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Draft step k = len(chain) for all root positions at once; returns (next feature, draft logits).

        Root t is at position t + k. It sees the entries of step 0 at positions up to t, and those of steps 1 to k
        of its own chain: what it will see when it drafts.
        """
        layer, k = self.midlayer, len(chain)
        b, t, _ = feature.shape
        q, key, value = layer.self_attn.project(torch.cat((layer.input_layernorm(emb), layer.hidden_norm(feature)), -1))
        cos, sin = self.cos[k : k + t], self.sin[k : k + t]
        q, key = rotate(q, cos, sin) * TARGET.head_dim**-0.5, rotate(key, cos, sin)
        chain.append((key, value))
        first_key, first_value = chain[0]
        future = torch.full((t, t), float("-inf")).triu(1)
        scores = [q @ first_key.transpose(-1, -2) + future] + [(q * own).sum(-1, keepdim=True) for own, _ in chain[1:]]
        weights = torch.cat(scores, -1).softmax(-1)
        out = weights[..., :t] @ first_value
        for i, (_, own_value) in enumerate(chain[1:]):
            out = out + weights[..., t + i : t + i + 1] * own_value
        x = feature + layer.self_attn.o_proj(out.transpose(1, 2).reshape(b, t, -1))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        return x, self.lm_head(self.norm(x))

    def draft(self, embeddings: Tensor, features: Tensor, tokens: Tensor, count: int) -> list[int]:
        """Greedy drafts after `tokens` [n]; `features` [n - 1, 3 * hidden] are those of all but the last token."""
        chain: list[tuple[Tensor, Tensor]] = []
        roots = self.fc(features)[None]
        emb = embeddings[tokens[1:]][None]
        drafts: list[int] = []
        for _ in range(count):
            roots, logits = self(emb, roots, chain)
            drafts.append(int(self.draft_ids[logits[0, -1].argmax()]))
            # Only the last root's chain goes on; the others get any token, nobody reads them.
            emb = embeddings[torch.full((1, roots.shape[1]), drafts[-1])]
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
