"""What a turn launched, until the host has read it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from weft.engine.device.results import StepResults
from weft.engine.device.tensors import Gather
from weft.engine.request import Request, Stage
from weft.engine.step.step import Plan


@dataclass(slots=True)
class Flight:
    """`rows` decode under `plan`, `first` get their first token, `reading` read a part of their prompt.

    `masks_drafts`: whether the grammar had a say in the drafts; `began`: when it was launched, in seconds.
    """

    plan: Plan | None = None
    rows: list[Request] = field(default_factory=list)
    first: list[Request] = field(default_factory=list)
    reading: list[Request] = field(default_factory=list)
    results: StepResults | None = None
    began: float = field(default_factory=time.perf_counter)
    masks_drafts: bool = False
    wants_logprobs: bool = False
    wants_outputs: bool = False

    @property
    def requests(self) -> list[Request]:
        """All of them, each once."""
        return [*self.rows, *self.first, *self.reading]

    @property
    def num_drafts(self) -> int:
        """How many drafts each row verifies."""
        return self.plan.num_drafts if self.plan is not None else 0

    @property
    def gathers(self) -> dict[int, Gather]:
        """What is gathered of each slot that has new tokens."""
        if not self.wants_outputs:
            return {}
        return {r.slot: r.gather for r in [*self.rows, *self.first] if r.gather.generated}

    def add(self, request: Request, to: list[Request], surely: int) -> None:
        """Note a request in one of the lists; the flight gives it at least `surely` tokens."""
        to.append(request)
        request.in_flight += 1
        request.surely += surely

    def add_rows(self, rows: list[Request]) -> None:
        """Note those that decode; each gets a token at least."""
        self.rows = rows
        for request in rows:
            request.in_flight += 1
            request.surely += 1

    def end(self) -> list[Request]:
        """The flight is over; those who are finished and in no other flight, so that what they hold is free."""
        for request in self.rows:
            request.surely -= 1
            request.in_flight -= 1
        for request in self.first:
            request.surely -= 1
            request.in_flight -= 1
        for request in self.reading:
            request.in_flight -= 1
        over = self.requests
        return [request for request in over if request.stage is Stage.FINISHED and not request.in_flight]
