"""How checkpoints name the tensors of multi-token-prediction (MTP) modules.

A module is a decoder layer, whose tensors have a layer's usual names, and around it two norms, a projection of
embedding and hidden state, and a norm of what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MtpLayout:
    """Names after a module's prefix. `embedding_first` tells the halves of the projection's input. `copies` are
    tensors that repeat the target's own.
    """

    pattern: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    output_norm: str
    embedding_first: bool
    copies: tuple[str, ...] = ()

    def prefix(self, module: int, num_layers: int) -> str:
        """What the names of module number `module` (from 0) beside `num_layers` decoder layers begin with."""
        return self.pattern.format(module=module, layer=num_layers + module)


APART = MtpLayout("layers.{module}.", "enorm", "hnorm", "eh_proj", "shared_head.norm", True)
"""A directory of modules alone."""

DEEPSEEK = MtpLayout(
    "model.layers.{layer}.",
    *("enorm", "hnorm", "eh_proj", "shared_head.norm"),
    embedding_first=True,
    copies=("embed_tokens.weight", "shared_head.head.weight"),
)
"""After the layers of the target's own checkpoint, as DeepSeek-V3 has them."""

MIMO = MtpLayout(
    "model.mtp_layers.{module}.",
    *("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
    embedding_first=False,
)
"""Beside the layers of the target's own checkpoint, as MiMo's."""

INSIDE = (DEEPSEEK, MIMO)
"""The layouts of modules in their target's checkpoint."""
