"""The EAGLE3 head: one decoder layer that reads three of the target's hidden states and the next token's embedding.

Its output before the norm is the feature of the next draft's entry. Parameter names are those of the
published heads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from config import BOS, EAGLE3, EOS, PAD, TARGET
from hf import save_tensors, write_json
from model import MLP
from safetensors.torch import load_file
from torch import Tensor, nn
from unroll import Projections, Unrolling


class HeadLayer(nn.Module):
    """The head's decoder layer, "midlayer" in published heads. Its attention's input is twice as wide as its output."""

    def __init__(self) -> None:
        super().__init__()
        h, eps = TARGET.hidden_size, TARGET.rms_norm_eps
        self.self_attn = Projections(2 * h)
        self.mlp = MLP(h, EAGLE3.intermediate_size)
        self.input_layernorm = nn.RMSNorm(h, eps=eps)
        self.hidden_norm = nn.RMSNorm(h, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(h, eps=eps)


class Eagle3Head(nn.Module):
    """The head. `start` reads a sequence, and each `step` drafts one token at every root."""

    d2t: Tensor
    t2d: Tensor

    def __init__(self) -> None:
        super().__init__()
        h = TARGET.hidden_size
        self.fc = nn.Linear(3 * h, h, bias=False)
        self.midlayer = HeadLayer()
        self.norm = nn.RMSNorm(h, eps=TARGET.rms_norm_eps)
        self.lm_head = nn.Linear(h, EAGLE3.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(EAGLE3.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(TARGET.vocab_size, dtype=torch.bool))
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def set_draft_vocab(self, keep: Tensor) -> None:
        """Set the target token ids that the head drafts, sorted. d2t is stored as offsets."""
        self.d2t.copy_(keep - torch.arange(len(keep)))
        self.t2d.fill_(False)[keep] = True

    def take_over(self, other: Eagle3Head) -> None:
        """Copy the weights of another head. Tokens that are not in its draft vocabulary keep their weights."""
        own = {k: v for k, v in other.state_dict().items() if k not in ("d2t", "t2d", "lm_head.weight")}
        self.load_state_dict(own, strict=False)
        rows = {int(token): row for row, token in enumerate(other.draft_ids)}
        with torch.no_grad():
            for row, token in enumerate(self.draft_ids.tolist()):
                if token in rows:
                    self.lm_head.weight[row] = other.lm_head.weight[rows[token]]

    @property
    def draft_ids(self) -> Tensor:
        """The target token id of each draft token."""
        return self.d2t + torch.arange(len(self.d2t))

    def features(self, last: Tensor, kept: list[Tensor]) -> Tensor:
        """Combine the three hidden states of the target into a feature."""
        combined: Tensor = self.fc(torch.cat(kept, -1)).float()
        return combined

    def start(self, emb: Tensor, feature: Tensor, roots: Tensor) -> Unrolling:
        """Compute keys and values of whole sequences [batch, length, hidden], seen from `roots`."""
        return Unrolling.start(self.midlayer.self_attn, self._input(emb, feature), roots)

    def step(self, emb: Tensor, feature: Tensor, seen: Unrolling) -> tuple[Tensor, Tensor]:
        """Process one entry at every root [batch, roots, hidden]. Returns the next step's feature and the draft
        logits."""
        layer = self.midlayer
        x = feature + seen.attend(self._input(emb, feature))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        return x, self.lm_head(self.norm(x))

    def _input(self, emb: Tensor, feature: Tensor) -> Tensor:
        return torch.cat((self.midlayer.input_layernorm(emb), self.midlayer.hidden_norm(feature)), -1)


def head_config() -> dict[str, Any]:
    """Return config.json of the head."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": TARGET.vocab_size,
        "draft_vocab_size": EAGLE3.draft_vocab_size,
        "hidden_size": TARGET.hidden_size,
        "target_hidden_size": TARGET.hidden_size,
        "intermediate_size": EAGLE3.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": TARGET.num_heads,
        "num_key_value_heads": TARGET.num_kv_heads,
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
        "eagle_aux_hidden_state_layer_ids": list(EAGLE3.aux_layers),
    }


def save_head(head: Eagle3Head, directory: Path) -> None:
    """Write config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", head_config())
    save_tensors(head.state_dict(), directory / "model.safetensors")


def load_head(directory: Path) -> Eagle3Head:
    """Load the head in float32."""
    head = Eagle3Head()
    head.load_state_dict(load_file(directory / "model.safetensors"))
    return head.eval()
