"""What is planted to go wrong while an executor serves."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.planting import at_every_run
from weft.engine.engine import Engine
from weft.engine.sequence import Sequence
from weft.executor import Executor
from weft.grammar.guide import Guide


class PlantedError(Exception):
    """What everything planted raises."""


class AnyToken:
    """A matcher that allows every token but the end, and whose subclasses go wrong after `place` tokens."""

    def __init__(self, place: int, end_id: int) -> None:
        self.place, self.end_id = place, end_id
        self.count = 0

    def accept(self, token: int) -> bool:
        self.count += 1
        return True

    def fill(self, row: NDArray[np.int32]) -> None:
        row[:] = -1
        row.view(np.uint32)[self.end_id // 32] &= ~np.uint32(1 << self.end_id % 32)

    def rollback(self, count: int) -> None:
        self.count -= count

    def is_terminated(self) -> bool:
        return False


class RaisesInAccept(AnyToken):
    def accept(self, token: int) -> bool:
        if self.count == self.place:
            raise PlantedError("planted in accept")
        return super().accept(token)


class RaisesInFill(AnyToken):
    def fill(self, row: NDArray[np.int32]) -> None:
        if self.count == self.place:
            raise PlantedError("planted in fill")
        super().fill(row)


class RaisesInEnd(AnyToken):
    def is_terminated(self) -> bool:
        if self.count == self.place:
            raise PlantedError("planted in is_terminated")
        return False


class Refuses(AnyToken):
    """Its mask promises what it does not take."""

    def accept(self, token: int) -> bool:
        return self.count < self.place and super().accept(token)


class DeadEnd(AnyToken):
    def fill(self, row: NDArray[np.int32]) -> None:
        if self.count < self.place:
            super().fill(row)


def _raises() -> Any:
    raise PlantedError("planted in the factory")


def broken_guides(rng: random.Random, end_id: int) -> dict[str, tuple[Guide, str]]:
    """Guides by name whose requests fail, and what is said then."""
    made: dict[str, tuple[Guide, str]] = {
        "broken factory": (Guide.matcher(_raises), "planted in the factory"),
        "no matcher": (Guide.matcher(object), "can't be a matcher"),
    }
    for kind, error in [
        (RaisesInAccept, "planted in accept"),
        (RaisesInFill, "planted in fill"),
        (RaisesInEnd, "planted in is_terminated"),
        (Refuses, "token"),
        (DeadEnd, "follow|no token"),
    ]:
        for place in rng.sample(range(8), 2):
            made[f"{kind.__name__} at {place}"] = Guide.matcher(_maker(kind, place, end_id)), error
    return made


def _maker(kind: type[AnyToken], place: int, end_id: int) -> Callable[[], AnyToken]:
    return lambda: kind(place, end_id)


def raising_processor(place: int, *, allows_capture: bool) -> Callable[..., None]:
    """A logits post-processor that raises in its call of this number, from 0."""
    calls = itertools.count()

    def raises(*_: object) -> None:
        if next(calls) == place:
            raise PlantedError("planted in a processor")

    raises.allows_capture = allows_capture  # type: ignore[attr-defined]
    return raises


class FailingForward:
    """In the place of a model's forward: every now and then it raises, when it runs or a graph does that captured it.
    `touched` are the requests that were served then."""

    def __init__(self, executor: Executor, rng: random.Random, share: float) -> None:
        self.engine: Engine = executor.client.engine
        self.touched: set[int] = set()
        self.num_raised = 0
        self._rng, self._share = rng, share
        self._forward = self.engine.parts.model.forward
        self._calls_left = -1

    def raise_in(self, number: int) -> None:
        """Raise in the run of this number from now on, too."""
        self._calls_left = number

    def stop(self) -> None:
        """Raise no more, in the graphs that hold it either."""
        self._share, self._calls_left = 0.0, -1

    def __call__(self, *args: Any) -> Any:
        at_every_run(self._strike)
        return self._forward(*args)

    def _strike(self) -> None:
        self._calls_left -= 1
        if self._calls_left == 0 or self._rng.random() < self._share:
            self.num_raised += 1
            self.touched |= {request.id for request in self._served()}
            raise PlantedError(f"planted in forward, number {self.num_raised}")

    def _served(self) -> list[Sequence]:
        flights = [request for flight in self.engine.output.in_flight for request in flight.requests]
        return [*self.engine.running, *flights]
