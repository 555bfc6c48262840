"""A flight recorder on an engine, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft import LLM
from weft.engine.lifecycle import Request
from weft.engine.recorder import FlightRecorder
from weft.grammar.base import Matcher
from weft.grammar.tokenizer import Vocabulary


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
    watched: dict[int, Request] = {}

    def watched_push(slots: Sequence[int], attach: Mapping[int, Matcher | None], num_drafts: int = 0) -> Any:
        for request in engine.active:
            matcher = attach.get(request.slot)
            if matcher is not None or (request.slot in slots and request.id not in watched):
                recorder.watch(request, request.slot, matcher)
                watched[request.id] = request
        return push(slots, attach, num_drafts)

    def watched_step(**terms: Any) -> Any:
        turn = step(**terms)
        for request in [request for request in watched.values() if request.is_finished]:
            del watched[request.id]
            if request.output.error is not None:
                recorder.failed(request)
        return turn

    lane.push, engine.step = watched_push, watched_step
    return recorder
