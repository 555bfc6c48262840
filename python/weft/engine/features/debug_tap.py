"""A tap on an engine's iterations: it copies their inputs and logits to the host.

It needs an engine without overlap, where a step's work is done when the step returns. It costs nothing when it is not
installed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.engine.device.state import StepBuffers
from weft.engine.runner.prompts import PromptPart
from weft.runtime.interface import Runtime, Stream

INPUTS = ("input_ids", "position_ids", "sequence_length")
OUTPUTS = ("logits",)


@dataclass
class _Step:
    parts: list[PromptPart] = field(default_factory=list)
    sampled: list[dict[str, Tensor]] = field(default_factory=list)


class DebugTap:
    """A `StepTap` that keeps the tensors `names` of each step. A step's input is N tokens in R rows: first the parts of
    prompts, then the sampling rows. A prompt's last token is in a sampling row.

    - `input_ids` int64 [N]; `position_ids` int64 [N], from 0. A missing draft has the id -1.
    - `sequence_length` int64 [R]: the number of tokens of the text in the KV cache after the row, without drafts.
    - `logits` [S * positions, vocab_size], in the model's dtype: the logits for sampling, after processors, penalties,
      bias and masks.
    """

    def __init__(self, runtime: Runtime, stream: Stream, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._runtime, self._stream = runtime, stream
        self._steps: deque[_Step] = deque()

    def begin(self) -> None:
        """Start the record of a step, before its launches."""
        self._steps.append(_Step())

    def launched(self, buffers: StepBuffers, num_rows: int, parts: Sequence[PromptPart]) -> None:
        """Record an iteration that reads `parts`. The first `num_rows` sampling rows of `buffers` are in use."""
        step = self._steps[-1]
        step.parts += parts
        if num_rows:
            sources = {"tokens": buffers.tokens_BT, "base": buffers.verified.base_B}
            if "logits" in self.names:
                sources["logits"] = buffers.logits_BTV
            step.sampled.append({name: self._copy(t.narrow(0, 0, num_rows)) for name, t in sources.items()})

    def take(self) -> dict[str, Tensor]:
        """Remove the oldest step and return its tensors by name, or an empty dict if it launched nothing. The step's
        work must be done."""
        step = self._steps.popleft()
        parts, sampled = step.parts, step.sampled
        if not parts and not sampled:
            return {}
        rows = [(copies["tokens"], copies["base"]) for copies in sampled]
        ids = [torch.tensor(part.prompt.tokens[part.start : part.stop]) for part in parts]
        ids += [tokens.flatten() for tokens, _ in rows]
        positions = [torch.arange(part.start, part.stop) for part in parts]
        positions += [(base[:, None] + torch.arange(tokens.shape[1])).flatten() for tokens, base in rows]
        lengths = [torch.tensor([part.stop]) for part in parts] + [base + 1 for _, base in rows]
        logits = [copies["logits"].flatten(0, 1) for copies in sampled if "logits" in copies]
        tensors = {"input_ids": ids, "position_ids": positions, "sequence_length": lengths, "logits": logits}
        return {name: torch.cat(tensors[name]) for name in sorted(self.names) if tensors[name]}

    def _copy(self, source: Tensor) -> Tensor:
        kept = self._runtime.pinned(tuple(source.shape), source.dtype)
        self._stream.launch(_copy, kept, source)
        return kept


def _copy(kept: Tensor, source: Tensor) -> None:
    kept.copy_(source, non_blocking=True)
