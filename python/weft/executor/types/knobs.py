"""Settings for debug tensors, and TensorRT-LLM's kernel settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.executor.types.fields import NotNegative, Several, Tensor, Text
from weft.executor.types.plain import Plain
from weft.executor.types.settings import Settings


class DebugConfig(Settings):
    """Selects the tensors that `Executor.get_latest_debug_tensors` returns: those in `debug_tensor_names`, and
    optionally all inputs (`input_ids`, `position_ids`, `sequence_length`) or outputs (`logits`) of an iteration.

    They are kept for the last `debug_tensors_max_iterations` iterations. With 0 they are written to files, each as
    `tllm_debug/PP_1/TP_1/iteration_N/NAME.npy` in the system's temporary folder.

    In each tensor, prompt chunks come first, then requests that decode. Shapes: `input_ids` and `position_ids`
    [tokens], `sequence_length` [requests], `logits` [sampled positions, vocab_size]. The logits are taken after
    processors, penalties and masks. An executor with such a config launches one iteration at a time.
    """

    debug_input_tensors: bool = False
    debug_output_tensors: bool = False
    debug_tensor_names: Several[Text] | None = None
    debug_tensors_max_iterations: NotNegative = 0


@dataclass
class DebugTensorsPerIteration(Plain):
    """The tensors of iteration `iter` by name, on the CPU."""

    iter: int = 0
    debug_tensors: dict[str, Tensor] = field(default_factory=dict)


class ExtendedRuntimePerfKnobConfig(Settings):
    """Settings of TensorRT-LLM's kernels. They change no result there and have no effect here."""

    multi_block_mode: bool = True
    enable_context_fmha_fp32_acc: bool = False
    cuda_graph_mode: bool = False
    cuda_graph_cache_size: NotNegative = 0
