"""A tap on an engine's iterations: copies of what goes into each and of the logits that come out.

Needs an engine without overlap: what a step launched is done when the step is. Costs nothing where there is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.engine.device.state import StepBuffers
from weft.engine.runner.reading import PromptPart
from weft.runtime.interface import Runtime, Stream

INPUTS = ("input_ids", "position_ids", "sequence_length")
OUTPUTS = ("logits",)


@dataclass
class _Step:
    parts: list[PromptPart] = field(default_factory=list)
    first_logits: list[Tensor] = field(default_factory=list)
    decoded: list[dict[str, Tensor]] = field(default_factory=list)


class DebugTap:
    """Keeps the tensors `names` of a step. In each, the parts of prompts come first, then the requests that decode; N
    tokens go in, of R requests, S of which get tokens.

    - `input_ids` int64 [N]; `position_ids` int64 [N], from 0.
    - `sequence_length` int64 [R]: tokens of the text that are read after the step, without its drafts.
    - `logits` [S * positions, vocab_size], in the model's dtype: what tokens were chosen from, after processors,
      penalties, bias and masks.
    """

    def __init__(self, runtime: Runtime, stream: Stream, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._runtime, self._stream = runtime, stream
        self._steps: deque[_Step] = deque()

    def begin(self) -> None:
        """A step launches."""
        self._steps.append(_Step())

    def read(self, parts: Sequence[PromptPart], step: StepBuffers) -> None:
        """Parts of prompts were given to one forward; `step` has a row for each prompt that ends with it."""
        self._steps[-1].parts += parts
        num_ended = sum(part.ends for part in parts)
        if num_ended and "logits" in self.names:
            self._steps[-1].first_logits.append(self._copy(step.logits_BTV.narrow(0, 0, num_ended)))

    def decode(self, buffers: StepBuffers, rows: int) -> None:
        """An iteration was launched, whose first `rows` rows are of requests."""
        sources = {"tokens": buffers.tokens_BT, "base": buffers.verified.base_B}
        if "logits" in self.names:
            sources["logits"] = buffers.logits_BTV
        copies = {name: self._copy(source.narrow(0, 0, rows)) for name, source in sources.items()}
        self._steps[-1].decoded.append(copies)

    def take(self) -> dict[str, Tensor]:
        """The tensors of the oldest step, which is done, by name; none where it launched nothing. Once for each."""
        step = self._steps.popleft()
        parts, first, decoded = step.parts, step.first_logits, step.decoded
        if not parts and not decoded:
            return {}
        # Padding places of drafts that are missing stand as -1.
        kept = [(one["tokens"], one["base"]) for one in decoded]
        ids = [torch.tensor(part.row.tokens[part.start : part.stop]) for part in parts]
        ids += [tokens.flatten() for tokens, _ in kept]
        positions = [torch.arange(part.start, part.stop) for part in parts]
        positions += [(base[:, None] + torch.arange(tokens.shape[1])).flatten() for tokens, base in kept]
        lengths = [torch.tensor([part.stop]) for part in parts] + [base + 1 for _, base in kept]
        logits = [
            one.flatten(0, 1) for one in (*first, *(one["logits"] for one in decoded if "logits" in one))
        ]
        found = {"input_ids": ids, "position_ids": positions, "sequence_length": lengths, "logits": logits}
        return {name: torch.cat(found[name]) for name in sorted(self.names) if found[name]}

    def _copy(self, source: Tensor) -> Tensor:
        kept = self._runtime.pinned(tuple(source.shape), source.dtype)
        self._stream.launch(_copy, kept, source)
        return kept


def _copy(kept: Tensor, source: Tensor) -> None:
    kept.copy_(source, non_blocking=True)
