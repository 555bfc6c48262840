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
    slots: list[int] = field(default_factory=list)
    sampled: dict[str, Tensor] = field(default_factory=dict)


class DebugTap:
    """A `StepTap` that keeps the tensors `names` of each step. A step's input is N tokens of R sequences: first those
    that only read a part of their prompt, then those that sample. The latter are S sequences with the same number of
    positions. If its prompt ends, a sequence has the rest of the prompt before them.

    - `input_ids` int64 [N]; `position_ids` int64 [N], from 0. A missing draft has the id -1.
    - `sequence_length` int64 [R]: the number of tokens of the text in the KV cache after the step, without drafts.
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

    def launched(self, buffers: StepBuffers, slots: Sequence[int], parts: Sequence[PromptPart]) -> None:
        """Record an iteration that reads `parts`. The first sampling rows of `buffers` belong to `slots`."""
        step = self._steps[-1]
        step.parts += [part for part in parts if part.stop < part.prompt.length]  # the last token is sampled
        if slots:
            sources = {"tokens": buffers.tokens_BT, "base": buffers.verified.base_B}
            if "logits" in self.names:
                sources["logits"] = buffers.logits_BTV
            step.slots = [*slots]
            step.sampled = {name: self._copy(t.narrow(0, 0, len(slots))) for name, t in sources.items()}

    def take(self) -> dict[str, Tensor]:
        """Remove the oldest step and return its tensors by name, or an empty dict if it launched nothing. The step's
        work must be done."""
        step = self._steps.popleft()
        if not step.parts and not step.slots:
            return {}
        # A sequence's entries are (first position, its tokens), in order.
        reading: dict[int, list[tuple[int, Tensor]]] = {}
        for part in step.parts:
            tokens = torch.tensor(part.prompt.tokens[part.start : part.stop])
            reading.setdefault(part.prompt.slot, []).append((part.start, tokens))
        bases = step.sampled["base"].tolist() if step.slots else []
        ending = [
            [*reading.pop(slot, []), (base, tokens)]
            for slot, base, tokens in zip(step.slots, bases, step.sampled.get("tokens", ()), strict=True)
        ]
        entries = [entry for entries in (*reading.values(), *ending) for entry in entries]
        lengths = [start + len(tokens) for ((start, tokens),) in (each[-1:] for each in reading.values())]
        tensors = {
            "input_ids": torch.cat([tokens for _, tokens in entries]),
            "position_ids": torch.cat(
                [torch.arange(start, start + len(tokens)) for start, tokens in entries]
            ),
            "sequence_length": torch.tensor([*lengths, *(base + 1 for base in bases)]),
        }
        if "logits" in step.sampled:
            tensors["logits"] = step.sampled["logits"].flatten(0, 1)
        return {name: tensors[name] for name in sorted(self.names) if name in tensors}

    def _copy(self, source: Tensor) -> Tensor:
        kept = self._runtime.pinned(tuple(source.shape), source.dtype)
        self._stream.launch(_copy, kept, source)
        return kept


def _copy(kept: Tensor, source: Tensor) -> None:
    kept.copy_(source, non_blocking=True)
