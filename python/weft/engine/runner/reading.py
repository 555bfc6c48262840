"""Parts of prompts, which one forward reads, on the device.

Suffixes: B rows, R of them whose prompts end, N tokens of all rows, F width of the auxiliary hidden states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.engine.device.state import DecodeParts, StepBuffers
from weft.engine.runner.opening import PromptRow
from weft.ops.attention import Rows
from weft.runtime.interface import Runtime, Stream
from weft.spec.base import Span

MOST_ROWS = 64
"""Rows of one forward at most: there are logits of as many."""

_NUMBERS = 7
_SLOTS, _BASE, _FIRST, _STARTS, _END_SLOTS, _END_BASE, _LAST = range(_NUMBERS)


@dataclass(frozen=True)
class PromptPart:
    """Positions start..stop-1 of a prompt."""

    row: PromptRow
    start: int
    stop: int

    @property
    def count(self) -> int:
        """How many."""
        return self.stop - self.start

    @property
    def ends(self) -> bool:
        """Whether the prompt ends with it, so that the first token is sampled."""
        return self.stop == self.row.length


def parts_together(
    shares: Iterable[tuple[PromptRow, int]], num_tokens: int, num_rows: int
) -> Iterator[list[PromptPart]]:
    """Of each row that many more tokens, in parts that are read together: at most `num_tokens` of `num_rows` rows."""
    together: list[PromptPart] = []
    room = num_tokens
    for row, count in shares:
        start, end = row.position, row.position + count
        while start < end:
            part = PromptPart(row, start, min(end, start + room))
            together.append(part)
            start, room = part.stop, room - part.count
            if not room or len(together) == num_rows:
                yield together
                together, room = [], num_tokens
    if together:
        yield together


@dataclass(frozen=True)
class Reading:
    """What one forward reads, on the device but for `together`.

    Row b, of slot `slots_B[b]`, has tokens `starts[b]`..`starts[b+1]-1` of `tokens_N`, from position `base_B[b]` on;
    its reading began at `first_B[b]`. `after_N` are the tokens after them, those after a prompt's end once they are
    sampled. `last_R` are the tokens with which prompts end; `step` has a row for each of these.
    """

    together: tuple[PromptPart, ...]
    slots_B: Tensor
    base_B: Tensor
    first_B: Tensor
    starts: Tensor
    tokens_N: Tensor
    after_N: Tensor
    aux_NF: Tensor
    last_R: Tensor
    step: StepBuffers

    @property
    def ended(self) -> list[PromptPart]:
        """The parts with which prompts end."""
        return [part for part in self.together if part.ends]

    @property
    def spans(self) -> tuple[Span, ...]:
        """Each part's positions."""
        return tuple(Span(part.start, part.stop, part.row.first) for part in self.together)

    @property
    def span(self) -> Span:
        """The first part's positions."""
        return self.spans[0]

    @property
    def context(self) -> Mapping[str, Tensor]:
        """Memory for outputs of the positions, where one prompt is read alone."""
        return self.together[0].row.context if len(self.together) == 1 else {}

    def rows(self, page_table: Tensor) -> Rows:
        """The rows for attention, of slots with these pages."""
        width = max(part.count for part in self.together)
        starts = self.starts if len(self.together) > 1 else None
        return Rows(page_table.index_select(0, self.slots_B), self.base_B, width, starts=starts)

    def alone(self, number: int) -> Reading:
        """The same of one row only. For device functions."""
        begin = sum(part.count for part in self.together[:number])
        part, place = self.together[number], self._place(number)
        num_ended = int(part.ends)

        def own(tensor: Tensor) -> Tensor:
            return tensor.narrow(0, number, 1)

        return replace(
            self,
            together=(part,),
            slots_B=own(self.slots_B),
            base_B=own(self.base_B),
            first_B=own(self.first_B),
            starts=self.starts.narrow(0, number, 2) - begin,
            tokens_N=self.tokens_N.narrow(0, begin, part.count),
            after_N=self.after_N.narrow(0, begin, part.count),
            aux_NF=self.aux_NF.narrow(0, begin, part.count),
            last_R=self.last_R.narrow(0, place, num_ended) - begin,
            step=self.step.narrow(place, num_ended),
        )

    def leave_out(self, number: int, dummy: int) -> None:
        """Sample nothing for a row. For device functions."""
        if self.together[number].ends:
            self.step.slots_B.narrow(0, self._place(number), 1).fill_(dummy)

    def _place(self, number: int) -> int:
        """How many prompts end in rows before this one."""
        return sum(part.ends for part in self.together[:number])


class ReadingBuffers:
    """What crosses the nodes of a reading of at most `num_tokens` tokens of `num_rows` rows."""

    def __init__(self, parts: DecodeParts, num_tokens: int, max_rows: int) -> None:
        config, device = parts.model.config, parts.state.length.device
        self.num_tokens, self.num_rows = num_tokens, min(max_rows, MOST_ROWS)
        # Even, so that every row of it begins where loads may be wide.
        length = self.num_rows + 2 - self.num_rows % 2
        self._numbers = torch.zeros(_NUMBERS, length, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(2, num_tokens + num_tokens % 2, dtype=torch.int64, device=device)
        width = len(parts.aux_layers) * config.hidden_size
        self._aux = torch.zeros(num_tokens, width, dtype=config.dtype, device=device)
        slots = self._numbers[_END_SLOTS].narrow(0, 0, self.num_rows)
        step = StepBuffers.allocate(slots, 1, parts.model, parts.state, None)
        base = self._numbers[_END_BASE].narrow(0, 0, self.num_rows)
        self._step = replace(step, verified=replace(step.verified, base_B=base))
        self._steps: dict[int, StepBuffers] = {}  # by how many rows

    def begin(self, runtime: Runtime, stream: Stream, together: Sequence[PromptPart]) -> Reading:
        """Issue the sending of parts, and say where they are."""
        num_rows, num_tokens = len(together), sum(part.count for part in together)
        num_ended = sum(part.ends for part in together)
        numbers = runtime.pinned(tuple(self._numbers.shape), torch.int64)
        tokens = runtime.pinned((2, num_tokens), torch.int64)
        _write(together, numbers, tokens)
        stream.launch(_send, self._numbers, numbers, self._tokens.narrow(1, 0, num_tokens), tokens)

        def row(number: int, count: int) -> Tensor:
            return self._numbers[number].narrow(0, 0, count)

        return Reading(
            tuple(together),
            slots_B=row(_SLOTS, num_rows),
            base_B=row(_BASE, num_rows),
            first_B=row(_FIRST, num_rows),
            starts=row(_STARTS, num_rows + 1),
            tokens_N=self._tokens[0].narrow(0, 0, num_tokens),
            after_N=self._tokens[1].narrow(0, 0, num_tokens),
            aux_NF=self._aux.narrow(0, 0, num_tokens),
            last_R=row(_LAST, num_ended),
            step=self._step_of(num_ended),
        )

    def _step_of(self, num_rows: int) -> StepBuffers:
        if num_rows not in self._steps:
            self._steps[num_rows] = self._step.narrow(0, num_rows)
        return self._steps[num_rows]


def _write(together: Sequence[PromptPart], numbers: Tensor, tokens: Tensor) -> None:
    """Write parts to pinned memory, `numbers` [7, ...] and `tokens` [2, N]."""
    values, (text, after) = numbers.numpy(), tokens.numpy()
    begin = ended = 0
    for b, part in enumerate(together):
        row, end = part.row, begin + part.count
        values[:_STARTS, b] = row.slot, part.start, row.first
        values[_STARTS, b + 1] = end
        text[begin:end] = row.tokens[part.start : part.stop]
        following = row.tokens[part.start + 1 : part.stop + 1]
        after[begin : begin + len(following)] = following
        if part.ends:
            values[_END_SLOTS:, ended] = row.slot, row.length - 1, end - 1
            ended += 1
        begin = end


def _send(to_numbers: Tensor, numbers: Tensor, to_tokens: Tensor, tokens: Tensor) -> None:
    to_numbers.copy_(numbers, non_blocking=True)
    to_tokens.copy_(tokens, non_blocking=True)
