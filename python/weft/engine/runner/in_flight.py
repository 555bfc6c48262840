"""What a step launched, until the host has read it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.engine.device.results import StepResults
from weft.engine.runner.moving import Moving
from weft.engine.runner.opening import PromptRow
from weft.engine.runner.step import Plan
from weft.engine.sequence import Sequence


@dataclass(slots=True)
class InFlightBatch:
    """`decoding` go on under `plan`, `first` get their first token, `reading` read a part of their prompt; `prompts`
    are the rows of both. `unopened` are requests that can't have a slot, by their own fault; `failures` are requests
    that could not be launched, and why: that may be the fault of what is in flight.

    `is_launched`: whether anything in it was. `masks_drafts`: whether the grammar has a say in the drafts; `began`:
    when it was launched, in seconds; `epoch`: of the last snapshot that was left for the grammar by then, its own if it
    has one. `moving` are the moves of pages before it.
    """

    plan: Plan | None = None
    decoding: list[Sequence] = field(default_factory=list)
    first: list[Sequence] = field(default_factory=list)
    reading: list[Sequence] = field(default_factory=list)
    prompts: dict[Sequence, PromptRow] = field(default_factory=dict)
    unopened: list[tuple[Sequence, BaseException]] = field(default_factory=list)
    failures: list[tuple[list[Sequence], BaseException]] = field(default_factory=list)
    results: StepResults | None = None
    began: float = field(default_factory=time.perf_counter)
    is_launched: bool = False
    epoch: int = 0
    masks_drafts: bool = False
    moving: Moving | None = None

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.decoding
        yield from self.first
        yield from self.reading

    @property
    def sequences(self) -> list[Sequence]:
        """All of them, each once."""
        return [*self]

    def decode(self, plan: Plan, rows: list[Sequence], masks_drafts: bool) -> None:
        """Note requests that decode; each gets a token at least."""
        self.plan, self.decoding, self.masks_drafts = plan, rows, masks_drafts
        self.is_launched = True
        for sequence in rows:
            sequence.in_flight += 1
            sequence.num_promised += 1

    def read(self, sequence: Sequence, row: PromptRow, is_last: bool) -> None:
        """Note a part of a prompt; the last part gives the first token."""
        (self.first if is_last else self.reading).append(sequence)
        self.prompts[sequence] = row
        self.is_launched = True
        sequence.in_flight += 1
        sequence.num_promised += is_last

    def end(self) -> list[Sequence]:
        """The batch is over. Gives the requests that left meanwhile and that no other batch names."""
        for sequence in (*self.decoding, *self.first):
            sequence.num_promised -= 1
        left: list[Sequence] = []
        for sequence in self:
            sequence.in_flight -= 1
            if sequence.has_left and not sequence.in_flight:
                left.append(sequence)
        return left
