"""The trace of a beam search: the model's tensors and the likeliest continuations of every beam in every step.

A hypothesis finds its rows by its path. A row belongs to every hypothesis that descends from its beam, so the rows of
all beams are kept. Other threads may read the trace while the engine's thread adds rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from weft.core.request import LOGITS
from weft.engine.device.tensors import GrowingRows
from weft.engine.features.beam.search import Continuation

TOP_BYTES = 100
"""The estimated bytes of one kept continuation: a float and its dict entry."""


class Trace:
    """A `BeamTrace` that keeps each row's tensors, and its `num_top` likeliest continuations (None: none of them)."""

    def __init__(self, num_top: int | None = None) -> None:
        self._num_top = num_top
        self._starts: list[int] = []  # the first row of each step
        self._num_rows = 0
        self._growing: dict[str, GrowingRows] = {}
        self._tensors: dict[str, Tensor] = {}
        self._tops: list[dict[int, float]] = []

    def add(self, gathered: Sequence[Mapping[str, Tensor]], offers: Sequence[Sequence[Continuation]]) -> None:
        """Add a step: for each beam its tensors [1, ...] by name, and its continuations, likeliest first."""
        for name in gathered[0]:
            rows = torch.cat([of_beam[name] for of_beam in gathered])
            self._tensors[name] = self._growing.setdefault(name, GrowingRows()).append(rows)
        if self._num_top is not None:
            self._tops += [dict(offer[: self._num_top]) for offer in offers]
        self._starts.append(self._num_rows)
        self._num_rows += len(gathered)

    @property
    def num_bytes(self) -> int:
        """The approximate size of the tensors and continuations in bytes."""
        tensors = sum(tensor.nbytes for tensor in [*self._tensors.values()])
        return tensors + TOP_BYTES * (self._num_top or 0) * len(self._tops)

    def generation_logits(self, path: Sequence[int]) -> Tensor | None:
        return self._gather(LOGITS, path) if LOGITS in self._tensors else None

    def additional(self, path: Sequence[int]) -> dict[str, Tensor]:
        return {name: self._gather(name, path) for name in [*self._tensors] if name != LOGITS}

    def top_log_probs(self, path: Sequence[int]) -> list[dict[int, float]] | None:
        if self._num_top is None:
            return None
        return [dict(self._tops[row]) for row in self._rows(path)]

    def _rows(self, path: Sequence[int]) -> list[int]:
        return [self._starts[step] + beam for step, beam in enumerate(path)]

    def _gather(self, name: str, path: Sequence[int]) -> Tensor:
        return self._tensors[name].index_select(0, torch.tensor(self._rows(path), dtype=torch.int64))
