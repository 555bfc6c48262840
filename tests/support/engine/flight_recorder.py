"""A flight recorder on an engine, for tests."""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from typing import Any

from weft import LLM
from weft.engine.features.flight_recorder import FlightRecorder
from weft.engine.sequence import Sequence
from weft.grammar.base import Matcher
from weft.grammar.vocabulary.tokenizer import Vocabulary


def vocabulary_of(llm: LLM) -> Vocabulary:
    """The vocabulary for which the LLM compiles guides."""
    size = llm.engine.grammar.state.vocab_size
    return Vocabulary.from_huggingface(llm.tokenizer, model_path=llm.model_path, vocab_size=size)


def record(llm: LLM, **options: Any) -> FlightRecorder:
    """Attach a recorder to an idle `llm`. It learns of requests by wrapping `push` of the grammar stream and `step`
    of the engine. The caller closes it."""
    engine: Any = llm.engine
    grammar: Any = engine.grammar
    recorder = FlightRecorder(grammar.state, vocabulary_of(llm), model=str(llm.model_path), **options)
    push, step = grammar.push, engine.step
    watched: dict[int, Sequence] = {}

    def watched_push(slots: abc.Sequence[int], attach: Mapping[int, Matcher | None]) -> Any:
        for sequence in engine.scheduler.running:
            matcher = attach.get(sequence.slot)
            if matcher is not None or (sequence.slot in slots and sequence.id not in watched):
                recorder.watch(sequence, sequence.slot, matcher)
                watched[sequence.id] = sequence
        return push(slots, attach)

    def watched_step(**terms: Any) -> Any:
        turn = step(**terms)
        for sequence in [sequence for sequence in watched.values() if sequence.is_finished]:
            del watched[sequence.id]
            if sequence.output.error is not None:
                recorder.failed(sequence)
        return turn

    grammar.push, engine.step = watched_push, watched_step
    return recorder
