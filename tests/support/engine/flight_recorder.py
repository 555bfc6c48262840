"""A flight recorder on an engine, for tests."""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from itertools import count
from typing import Any

from support.engine.told import Counted
from weft import LLM
from weft.engine.flight_recorder import FlightRecorder
from weft.engine.sequence import Sequence
from weft.grammar.base import Matcher
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.guided.recording import Recording


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


def count_drafts(recording: Recording) -> dict[int, Counted]:
    """Anew, from what the grammar saw of each guided request, by its id: the drafts that it was asked about, what was
    verified, and of that what is in the answer. The recording is whole, and no program wrote a text anew.
    """
    counted: dict[int, Counted] = {}
    behind: dict[int, list[int]] = {r.id: list(r.tokens) for r in recording.requests}
    attached: set[int] = set()
    drafts: dict[int, dict[int, int]] = {}
    for operation in recording.operations:
        if operation.name == "fetch":
            attached |= {slot for slot, comes in operation.attached.items() if comes}
        elif operation.name == "extend_through":
            for entry in operation.entries:
                drafts.setdefault(entry.slot, {}).update(enumerate(entry.inputs, 1))
        elif operation.name == "commit":
            for entry in operation.entries:
                places = drafts.pop(entry.slot, {})
                is_prompt = entry.slot in attached
                attached.discard(entry.slot)
                request = recording.request_of(entry.matcher)
                if request is None or not behind[request.id]:  # it had ended; this was launched ahead
                    continue
                rest, (accepted, *tokens) = behind[request.id], entry.inputs
                kept = tokens[: len(rest)]
                assert kept == rest[: len(kept)]
                behind[request.id] = rest[len(kept) :]
                one = counted.setdefault(request.id, Counted())
                if is_prompt:
                    continue
                one.iterations += 1
                proposed = next(j for j in count(0) if places.get(j + 1, -1) < 0)
                if proposed:
                    one.drafted_iterations += 1
                    one.drafted_tokens += len(kept)
                    one.proposed_drafts += proposed if behind[request.id] else min(proposed, len(kept))
                    one.accepted_drafts += min(accepted, len(kept))
    return counted
