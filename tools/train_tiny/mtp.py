"""The MTP module of DeepSeek-V3's form: a projection of embedding and hidden state, then one decoder layer.

The feature is a normed hidden state: the target's last one after its final norm in step 0, the module's own
after `shared_head.norm` in the later steps. Embeddings and output projection are the target's and are not stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from config import MTP, TARGET
from hf import save_tensors, write_json
from model import MLP, Llama
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from unroll import Projections, Unrolling


class SharedHead(nn.Module):
    """The norm in front of the target's output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(TARGET.hidden_size, eps=TARGET.rms_norm_eps)


class MtpLayer(nn.Module):
    """One module's parameters, under their published names."""

    def __init__(self) -> None:
        super().__init__()
        h, eps = TARGET.hidden_size, TARGET.rms_norm_eps
        self.enorm = nn.RMSNorm(h, eps=eps)
        self.hnorm = nn.RMSNorm(h, eps=eps)
        self.eh_proj = nn.Linear(2 * h, h, bias=False)
        self.input_layernorm = nn.RMSNorm(h, eps=eps)
        self.self_attn = Projections(h)
        self.post_attention_layernorm = nn.RMSNorm(h, eps=eps)
        self.mlp = MLP(h, MTP.intermediate_size)
        self.shared_head = SharedHead()


class Mtp(nn.Module):
    """One module, used recurrently. `start` reads a sequence, and each `step` drafts one token at every root."""

    draft_ids: Tensor
    embeddings: Tensor

    def __init__(self, embeddings: Tensor) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MtpLayer()])
        self.register_buffer("embeddings", embeddings.detach(), persistent=False)
        self.register_buffer("draft_ids", torch.arange(TARGET.vocab_size), persistent=False)

    @property
    def layer(self) -> MtpLayer:
        """The module."""
        layer = self.layers[0]
        assert isinstance(layer, MtpLayer)
        return layer

    def start_from(self, target: Llama) -> None:
        """Start from the target's last layer and final norm, with a projection that keeps the scale of its inputs."""
        layer, last = self.layer, target.layers[-1]
        for name in ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"):
            getattr(layer, name).load_state_dict(getattr(last, name).state_dict())
        layer.shared_head.norm.load_state_dict(target.norm.state_dict())
        nn.init.normal_(layer.eh_proj.weight, std=(2 * TARGET.hidden_size) ** -0.5)

    def features(self, last: Tensor, kept: list[Tensor]) -> Tensor:
        """Return the target's last hidden state unchanged."""
        return last

    def start(self, emb: Tensor, feature: Tensor, roots: Tensor) -> Unrolling:
        """Compute keys and values of whole sequences [batch, length, hidden], seen from `roots`."""
        y = self.layer.input_layernorm(self._mixed(emb, feature))
        return Unrolling.start(self.layer.self_attn, y, roots)

    def step(self, emb: Tensor, feature: Tensor, seen: Unrolling) -> tuple[Tensor, Tensor]:
        """Process one entry at every root [batch, roots, hidden]. Returns the next step's feature and the draft
        logits."""
        layer = self.layer
        x = self._mixed(emb, feature)
        x = x + seen.attend(layer.input_layernorm(x))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        feature = layer.shared_head.norm(x)
        return feature, F.linear(feature, self.embeddings)

    def _mixed(self, emb: Tensor, feature: Tensor) -> Tensor:
        layer = self.layer
        mixed: Tensor = layer.eh_proj(torch.cat((layer.enorm(emb), layer.hnorm(feature)), -1))
        return mixed.float()


def mtp_config() -> dict[str, Any]:
    """Return config.json of the module."""
    return {
        "architectures": ["LlamaForCausalLMMTP"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": TARGET.vocab_size,
        "hidden_size": TARGET.hidden_size,
        "intermediate_size": MTP.intermediate_size,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": TARGET.num_heads,
        "num_key_value_heads": TARGET.num_kv_heads,
        "head_dim": TARGET.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": TARGET.rms_norm_eps,
        "rope_theta": TARGET.rope_theta,
        "max_position_embeddings": TARGET.max_positions,
    }


def save_mtp(module: Mtp, directory: Path) -> None:
    """Write config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", mtp_config())
    save_tensors(module.state_dict(), directory / "model.safetensors")


def load_mtp(directory: Path, embeddings: Tensor) -> Mtp:
    """Load the module in float32, with the target's embeddings."""
    module = Mtp(embeddings)
    module.load_state_dict(load_file(directory / "model.safetensors"))
    return module.eval()
