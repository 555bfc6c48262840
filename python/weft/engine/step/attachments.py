"""Which slots get or lose a matcher with the next snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from weft.engine.scheduling.running import Running
from weft.grammar.base import Matcher
from weft.guided.lane import GrammarLane
from weft.runtime.buffers import PinnedRing
from weft.runtime.interface import Runtime, Stream


class Attachments:
    """What changes with the next push. Matchers of requests that have ended stay in their slots until then."""

    def __init__(self, runtime: Runtime, lane: GrammarLane) -> None:
        self._runtime, self._lane, self._state = runtime, lane, lane.state
        self._slots: dict[int, PinnedRing] = {}  # by how many
        self._next: dict[int, Matcher | None] = {}
        self._holds_ended = self._holds_program = False
        self.epoch = 0
        """The epoch of the last snapshot that was left."""

    def attach(self, slot: int, matcher: Matcher) -> None:
        """A slot gets a matcher."""
        self._next[slot] = matcher

    def release(self, running: Running) -> None:
        """A request gave its slots back."""
        if running.is_guided:
            self._next |= dict.fromkeys(running.slots)
            self._holds_ended = True
            self._holds_program |= running.has_program

    def push(self, slots: Sequence[int]) -> None:
        """Leave the next iteration's snapshot."""
        attach, self._next = self._next, {}
        self.epoch = self._lane.push(slots, attach)

    def begin(self, stream: Stream, attach: Mapping[int, Matcher | None]) -> None:
        """Give slots matchers at once, or take them away, and send their masks."""
        slots = [slot for slot, matcher in attach.items() if matcher is not None]
        if len(slots) not in self._slots:
            slots_B = torch.zeros(len(slots), dtype=torch.int64, device=self._lane.masks.device)
            self._slots[len(slots)] = PinnedRing(self._runtime, slots_B)
        ring = self._slots[len(slots)]
        ring.send(stream, torch.tensor(slots))
        self._next |= attach
        self.push(slots)
        self._lane.first_mask(stream, ring.device_tensor)
        self._lane.join(stream)  # a graph waits for its own stream alone

    def may_vacate(self, is_idle: bool) -> bool:
        """Whether matchers of requests that have ended are worth a wait: large ones, or nothing else runs."""
        return self._holds_program or (self._holds_ended and is_idle)

    def vacate(self) -> bool:
        """Let go of the matchers of requests that have ended, with nothing in flight. Without, they would stay until
        the next iteration with a guide. Whether it could be done now."""
        if self._state.num_pending:
            return False
        self._state.vacate([slot for slot, matcher in self._next.items() if matcher is None])
        self._holds_ended = self._holds_program = False
        return True
