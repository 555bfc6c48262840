"""The Llama to train, with Hugging Face's parameter names, and the layers of the heads.

It replaces the model of transformers: fused attention and norms, and logits only for positions in the loss, make a
training step on two cores about twice as fast.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from config import LlamaConfig
from torch import Tensor, nn
from torch.nn import functional as F


def rope_tables(config: LlamaConfig, length: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin of shape [length, head_dim], for the half-split rotation."""
    dim = config.head_dim
    inverse = config.rope_theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE to [..., length, head_dim]."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Attention(nn.Module):
    """Grouped-query causal self-attention."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        h, d = config.hidden_size, config.head_dim
        self.head_dim = d
        self.q_proj = nn.Linear(h, config.num_heads * d, bias=False)
        self.k_proj = nn.Linear(h, config.num_kv_heads * d, bias=False)
        self.v_proj = nn.Linear(h, config.num_kv_heads * d, bias=False)
        self.o_proj = nn.Linear(config.num_heads * d, h, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend causally over each whole row of x."""
        b, t, _ = x.shape
        q, k, v = (
            p(x).view(b, t, -1, self.head_dim).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        with torch.autocast("cpu", enabled=False):  # its bfloat16 gradient is several times slower on a CPU
            out = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True)
        mixed: Tensor = self.o_proj(out.transpose(1, 2).reshape(b, t, -1))
        return mixed


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the MLP to the last dimension."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Apply attention, then the MLP, each with a residual connection."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Llama(nn.Module):
    """The decoder. `logits` is separate from `hidden`, so that it is computed for the needed positions only."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        cos, sin = rope_tables(config, config.max_positions)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def hidden(self, tokens: Tensor, keep: Sequence[int] = ()) -> tuple[Tensor, list[Tensor]]:
        """Return the last layer's output (before the norm), and the states entering the layers in `keep`."""
        x = self.embed_tokens(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        kept = []
        for i, layer in enumerate(self.layers):
            if i in keep:
                kept.append(x)
            x = layer(x, cos, sin)
        return x, kept

    def logits(self, x: Tensor) -> Tensor:
        """Apply the norm and the tied output projection."""
        return F.linear(self.norm(x), self.embed_tokens.weight)

    def hf_state(self) -> dict[str, Tensor]:
        """Return the parameters under Hugging Face's names."""
        return {f"model.{name}": value for name, value in self.state_dict().items()}
