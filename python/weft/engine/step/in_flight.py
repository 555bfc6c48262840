"""What a step launched, until the host has read it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.engine.device.results import StepResults
from weft.engine.scheduling.running import Running
from weft.engine.sequence import Request
from weft.engine.step.moving import Moving
from weft.engine.step.opening import PromptRow
from weft.engine.step.step import Plan


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
    decoding: list[Running] = field(default_factory=list)
    first: list[Running] = field(default_factory=list)
    reading: list[Running] = field(default_factory=list)
    prompts: dict[Running, PromptRow] = field(default_factory=dict)
    unopened: list[tuple[Request, BaseException]] = field(default_factory=list)
    failures: list[tuple[list[Request], BaseException]] = field(default_factory=list)
    results: StepResults | None = None
    began: float = field(default_factory=time.perf_counter)
    is_launched: bool = False
    epoch: int = 0
    masks_drafts: bool = False
    moving: Moving | None = None

    def __iter__(self) -> Iterator[Running]:
        yield from self.decoding
        yield from self.first
        yield from self.reading

    @property
    def requests(self) -> list[Request]:
        """All of them, each once."""
        return [running.request for running in self]

    def decode(self, plan: Plan, rows: list[Running], masks_drafts: bool) -> None:
        """Note requests that decode; each gets a token at least."""
        self.plan, self.decoding, self.masks_drafts = plan, rows, masks_drafts
        self.is_launched = True
        for running in rows:
            running.in_flight += 1
            running.num_promised += 1

    def read(self, running: Running, row: PromptRow, is_last: bool) -> None:
        """Note a part of a prompt; the last part gives the first token."""
        (self.first if is_last else self.reading).append(running)
        self.prompts[running] = row
        self.is_launched = True
        running.in_flight += 1
        running.num_promised += is_last

    def end(self) -> list[Running]:
        """The batch is over. Gives the requests that left meanwhile and that no other batch names."""
        for running in (*self.decoding, *self.first):
            running.num_promised -= 1
        left: list[Running] = []
        for running in self:
            running.in_flight -= 1
            if running.has_left and not running.in_flight:
                left.append(running)
        return left
