"""An engine's loop without a model, recorded by a flight recorder. A replay of the recording must agree with it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch

from support.engine.requests import engine_request
from support.grammar.grammars import (
    END,
    allowed,
    compiled,
    pick,
    small_vocabulary,
    some_guides,
)
from weft.core import SamplingParams
from weft.engine.features.flight_recorder import FlightRecorder
from weft.engine.sequence import Sequence, Stage
from weft.errors import GuideStateError
from weft.grammar import CompiledGuide
from weft.guided.recording import Recording
from weft.guided.state import GuidedShape, GuidedState

SLOTS, DRAFTS = 4, 3
SEEDS = range(20)


class Loop:
    """An engine's loop without a model. New requests take the slots of those that have ended or failed. Drafts are
    right, wrong or missing, and verified tokens are drawn from the masks."""

    def __init__(
        self,
        seed: int = 0,
        max_drafts: int = DRAFTS,
        guides: Any = None,
        faults: float = 0.02,
        **options: Any,
    ) -> None:
        self.rng = random.Random(seed)
        self.faults = faults  # how often a token is drawn that no grammar accepts
        self.guides: list[CompiledGuide] = guides or [compiled(guide) for guide in some_guides()]
        self.state = GuidedState(GuidedShape(SLOTS, max_drafts, small_vocabulary().vocab_size, [END]))
        self.recorder = FlightRecorder(self.state, small_vocabulary(), **options)
        self.running: dict[int, Sequence] = {}
        self.all: list[Sequence] = []

    def mask(self, slot: int, row: int) -> list[int]:
        width = self.state.max_drafts + 1
        return allowed(self.state.masks_host[slot * width + row].numpy())

    def open(self, slot: int, guide: CompiledGuide) -> None:
        """Start a request whose prompt was prefilled: attach its matcher, and draw its first token."""
        request = engine_request([1], SamplingParams(max_tokens=99), 0, compiled=guide)
        for stage in (Stage.CONTEXT, Stage.GENERATION):
            request.move(stage)
        self.running[slot] = request
        self.all.append(request)
        matcher = guide.matcher()
        self.recorder.watch(request, slot, matcher)
        self.state.push([slot], {slot: matcher})
        self.state.fetch()
        self.verify([slot], 0)

    def verify(self, slots: list[int], num_drafts: int) -> None:
        """Draw the verified tokens, commit them, and end requests that have ended or failed."""
        state = self.state
        for slot in slots:
            count = self.rng.randint(0, state.extended(slot)) if num_drafts else 0
            tokens = [*state.drafts_host[:count, slot].tolist(), pick(self.mask(slot, count), self.rng)]
            if self.rng.random() < self.faults:
                tokens[-1] = 299
            state.verified_host[slot, 0] = count
            state.verified_host[slot, 1 : len(tokens) + 1] = torch.tensor(tokens)
        state.commit()
        for slot in slots:
            request, count = self.running[slot], int(state.verified_host[slot, 0])
            tokens = state.verified_host[slot, 1 : count + 2].tolist()
            if state.status(slot)[0]:
                request.fail(GuideStateError(state.status(slot)[1]))
                self.recorder.failed(request)
            else:
                request.output.token_ids += tokens[: state.committed(slot) - len(request.output.token_ids)]
                if state.is_terminated(slot):
                    request.finish("stop")

    def turn(self) -> None:
        """Run one iteration over all running requests, with masked drafts."""
        state, rng = self.state, self.rng
        ended = {slot: None for slot, request in self.running.items() if request.is_finished}
        self.running = {slot: request for slot, request in self.running.items() if slot not in ended}
        slots = sorted(self.running, key=lambda _: rng.random())
        state.push(slots, ended)
        state.fetch()
        if state.max_drafts:
            state.extend_through(state.max_drafts)
        self.verify(slots, state.max_drafts)
        state.drafts_host.fill_(-1)
        for draft in range(1, state.max_drafts + 1):
            for slot in slots:
                legal = self.mask(slot, draft - 1)
                state.drafts_host[draft - 1, slot] = rng.choice([pick(legal, rng), pick(legal, rng), 7, -1])
            if draft < state.max_drafts:
                state.extend(draft)

    def run(self, turns: int) -> None:
        for _ in range(turns):
            for slot in range(SLOTS):
                idle = slot not in self.running or self.running[slot].is_finished
                if idle and self.rng.random() < 0.7:
                    self.open(slot, self.rng.choice(self.guides))
            self.turn()


def changed(recording: Recording, place: int, slot: int, **fields: Any) -> Recording:
    """The recording with other fields in one entry."""
    operation = recording.operations[place]
    entries = tuple(replace(e, **fields) if e.slot == slot else e for e in operation.entries)
    before, after = recording.operations[:place], recording.operations[place + 1 :]
    return replace(recording, operations=(*before, replace(operation, entries=entries), *after))
