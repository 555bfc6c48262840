"""Names of the tensors of multi-token-prediction (MTP) modules in checkpoints.

A module is a decoder layer, whose tensors have the usual names, with more parts. These are norms of the embedding and
the hidden state, a projection of both to the hidden size, and an output norm.

Families differ in the hidden state that their modules were trained on: the target's last one after its final norm, or
before it. The module's norm of the hidden state hides a wrong choice. The drafts stay fluent, but fewer are accepted.

- DeepSeek-V3 and GLM-4.5: after the norm. DeepSeek's report and `README_WEIGHTS.md` do not say. The code that comes
  with checkpoints of DeepSeek-R1, `modeling_deepseek.py`, gives modules the output of the decoder, whose last operation
  is the norm (ROCm/ATOM, pull request 1764). Megatron-LM does the same: with modules, `transformer_block.py` has the
  final norm in the stage of the last decoder layer. So do vLLM (`deepseek_mtp.py`) and SGLang (`deepseek_nextn.py`,
  `glm4_moe_nextn.py`). ATOM measured a module that also reads its own output after the norm: tokens for each forward
  rose from 2.84 to 2.94 (DeepSeek-R1, pull request 1764), and accepted lengths from 3.04 to 3.46 (GLM-5.2, pull request
  1742). llama.cpp's pull request 24025 says the opposite of both families, without a measurement.
- Qwen3-Next and Qwen3.5: after the norm. vLLM's `qwen3_next_mtp.py` reads it there, and llama.cpp's pull request 24025
  measured more accepted drafts than before the norm.
- MiMo: before the norm. In vLLM's `mimo.py`, which comes from MiMo's authors (pull request 17433), the decoder has no
  final norm, and the logits begin with it. exllamav3's pull request 238 reads it there, too. SGLang's `mimo.py` reads
  it after the norm.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MtpLayout:
    """Names of a module's tensors, which follow the module's prefix. `layer_pattern` is the prefix of its decoder
    layer, by default the same. `embedding_first`: the first half of the projection's input is the embedding, otherwise
    it is the hidden state. `copies` are copies of the target's tensors. `reads_normed`: modules read hidden states
    after the norm that precedes the logits, otherwise before it. This holds for the target's hidden state and for the
    output of a module."""

    pattern: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    output_norm: str
    embedding_first: bool
    copies: tuple[str, ...] = ()
    reads_normed: bool = True
    layer_pattern: str = ""

    def prefix(self, module: int, num_layers: int) -> str:
        """The prefix of the names of module `module` (from 0) of a target with `num_layers` decoder layers."""
        return self.pattern.format(module=module, layer=num_layers + module)

    def layer_prefix(self, module: int, num_layers: int) -> str:
        """The prefix of the names of the module's decoder layer. Arguments as in `prefix`."""
        return (self.layer_pattern or self.pattern).format(module=module, layer=num_layers + module)

    def first_name(self, num_layers: int) -> str:
        """The name of the first module's projection, which tells the layout."""
        return f"{self.prefix(0, num_layers)}{self.projection}.weight"


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
    reads_normed=False,
)
"""The layout of MiMo: modules are numbered from 0 under a prefix of their own in the target's checkpoint."""

QWEN = MtpLayout(
    "mtp.",
    *("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"),
    embedding_first=True,
    layer_pattern="mtp.layers.{module}.",
)
"""The layout of Qwen3-Next and Qwen3.5: modules differ in their decoder layers and share all else."""

INSIDE = (DEEPSEEK, MIMO, QWEN)
"""The layouts of modules inside the target's checkpoint."""
