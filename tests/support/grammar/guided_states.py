"""A `GuidedState` over a small vocabulary, which the test drives step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from support.grammar.grammars import END, CountdownMatcher, allowed, small_vocabulary
from weft.core.awake import AwakeWatch
from weft.grammar import Guide, Matcher, wrap_matcher
from weft.guided.state import GuidedShape, GuidedState

A, B, C = (3 + byte for byte in b"abc")
ABC_GUIDE = Guide.regex("(ab|a|abc)*c")


def state_of(num_slots: int = 4, max_drafts: int = 3, **options: Any) -> GuidedState:
    shape = GuidedShape(num_slots, max_drafts, small_vocabulary().vocab_size, [END])
    return GuidedState(shape, **options)


def countdown(length: int = 8) -> Matcher:
    return wrap_matcher(CountdownMatcher(length))


def row(state: GuidedState, slot: int, position: int = 0) -> list[int]:
    return allowed(state.masks_host[slot * (state.max_drafts + 1) + position].numpy())


def flags(state: GuidedState, slot: int) -> list[int]:
    width = state.max_drafts + 1
    return state.token_mask_host[slot * width : (slot + 1) * width].tolist()


def verify(state: GuidedState, slot: int, tokens: Sequence[int], accepted: int = 0) -> None:
    state.verified_host[slot, 0] = accepted
    state.verified_host[slot, 1 : len(tokens) + 1] = torch.tensor(tokens)


def iterate(
    state: GuidedState, slots: Sequence[int], attach: dict[int, Matcher | None] | None = None
) -> None:
    state.push(slots, attach or {})
    state.fetch()


def work_for(seconds: float) -> None:
    """Use this many seconds of CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Raises(CountdownMatcher):
    """A matcher that fails in one method, mostly after the first token."""

    def __init__(self, method: str) -> None:
        super().__init__(8)
        self.method = method

    def accept(self, token: int) -> bool:
        if self.method == "accept":
            raise RuntimeError("planted in accept")
        return super().accept(token)

    def fill(self, row: np.ndarray) -> None:
        if self.method == "fill" and self.taken:
            raise RuntimeError("planted in fill")
        if self.method == "empty" and self.taken:
            return
        if self.method == "slow" and self.taken:
            work_for(0.15)
        if self.method == "asleep" and self.taken:
            watch = AwakeWatch()  # time in which this process runs: it passes slowly on a busy machine
            while watch.seconds < 2.2:
                time.sleep(0.05)
        if self.method == "padding" and self.taken:
            row[-1] = np.int32(-(2**31))
            return
        super().fill(row)

    def rollback(self, count: int) -> None:
        if self.method == "rollback":
            raise RuntimeError("planted in rollback")
        super().rollback(count)
