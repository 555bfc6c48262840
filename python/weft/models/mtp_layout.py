"""Names of the tensors of multi-token-prediction (MTP) modules in checkpoints.

A module is a decoder layer, whose tensors have the usual names, with more parts. These are norms of the embedding and
the hidden state, a projection of both to the hidden size, and an output norm.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MtpLayout:
    """Names of a module's tensors, which follow the module's prefix. `embedding_first`: the first half of the
    projection's input is the embedding, otherwise it is the hidden state. `copies` are copies of the target's
    tensors."""

    pattern: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    output_norm: str
    embedding_first: bool
    copies: tuple[str, ...] = ()

    def prefix(self, module: int, num_layers: int) -> str:
        """The prefix of the names of module `module` (from 0) of a target with `num_layers` decoder layers."""
        return self.pattern.format(module=module, layer=num_layers + module)


APART = MtpLayout("layers.{module}.", "enorm", "hnorm", "eh_proj", "shared_head.norm", True)
"""The layout of modules that have a directory of their own."""

DEEPSEEK = MtpLayout(
    "model.layers.{layer}.",
    *("enorm", "hnorm", "eh_proj", "shared_head.norm"),
    embedding_first=True,
    copies=("embed_tokens.weight", "shared_head.head.weight"),
)
"""The layout of DeepSeek-V3: in the target's checkpoint, modules are numbered as layers, after the last decoder
layer."""

MIMO = MtpLayout(
    "model.mtp_layers.{module}.",
    *("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
    embedding_first=False,
)
"""The layout of MiMo: modules are numbered from 0 under a prefix of their own in the target's checkpoint."""

INSIDE = (DEEPSEEK, MIMO)
"""The layouts of modules inside the target's checkpoint."""
