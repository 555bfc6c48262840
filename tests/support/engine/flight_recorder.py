"""A flight recorder on an engine, for tests."""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from typing import Any

from weft import LLM
from weft.engine.flight_recorder import FlightRecorder
from weft.engine.sequence import Sequence
from weft.grammar.base import Matcher
from weft.grammar.vocabulary.tokenizer import Vocabulary


def vocabulary_of(llm: LLM) -> Vocabulary:
    """What its guides are compiled for."""
    size = llm.engine.lane.state.vocab_size
    return Vocabulary.from_huggingface(llm.tokenizer, model_path=llm.model_path, vocab_size=size)


def record(llm: LLM, **options: Any) -> FlightRecorder:
    """A recorder that is told of the requests of `llm`, which is idle now, by what goes to its lane and what a turn
    leaves. The caller closes it.
    """
    engine: Any = llm.engine
    lane: Any = engine.lane
    recorder = FlightRecorder(lane.state, vocabulary_of(llm), model=str(llm.model_path), **options)
    push, step = lane.push, engine.step
    watched: dict[int, Sequence] = {}

    def watched_push(slots: abc.Sequence[int], attach: Mapping[int, Matcher | None]) -> Any:
        for running in engine.scheduler.running:
            request, slot = running.request, running.slot
            matcher = attach.get(slot)
            if matcher is not None or (slot in slots and request.id not in watched):
                recorder.watch(request, slot, matcher)
                watched[request.id] = request
        return push(slots, attach)

    def watched_step(**terms: Any) -> Any:
        turn = step(**terms)
        for request in [request for request in watched.values() if request.is_finished]:
            del watched[request.id]
            if request.output.error is not None:
                recorder.failed(request)
        return turn

    lane.push, engine.step = watched_push, watched_step
    return recorder
