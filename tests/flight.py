"""A flight recorder on an engine, for tests."""

from __future__ import annotations

from typing import Any

from weft import LLM
from weft.engine.recorder import FlightRecorder
from weft.errors import WeftError
from weft.grammar.tokenizer import Vocabulary


def vocabulary_of(llm: LLM) -> Vocabulary:
    """What its guides are compiled for."""
    state = llm.engine.lane.state
    return Vocabulary.from_huggingface(llm.tokenizer, model_path=llm.model_path, vocab_size=state.vocab_size)


def record(llm: LLM, **options: Any) -> FlightRecorder:
    """A recorder that the engine of `llm`, idle now, tells of its requests. The caller closes it."""
    engine: Any = llm.engine
    recorder = FlightRecorder(engine.lane.state, vocabulary_of(llm), model=str(llm.model_path), **options)
    push, end = engine._push, engine._end

    def watched_push(slots: list[int], *args: Any) -> None:
        for request in engine.active:
            if request.slot in slots and (request.matcher is None or request.slot in engine.residents.attach):
                recorder.watch(request, request.slot, request.matcher)
        push(slots, *args)

    def watched_end(request: Any, reason: Any, error: BaseException | None = None) -> None:
        was_active = request.is_active
        end(request, reason, error)
        if was_active and isinstance(request.output.error, WeftError):
            recorder.failed(request)

    engine._push, engine._end = watched_push, watched_end
    return recorder
