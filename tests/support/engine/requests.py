"""Requests given to an engine itself, for what `LLM` has no name for."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from weft import LLM, Guide, SamplingParams
from weft.core.beam_params import BeamParams
from weft.core.logits_processors import LogitsProcessor
from weft.core.request import NO_RULES, NOTHING, Gather, Request, StopWords, TokenRules
from weft.core.retention import Retention
from weft.engine.sequence import RequestGuide, Sequence
from weft.grammar.base import CompiledGuide


def engine_request(
    prompt: list[int],
    sampling: SamplingParams | None = None,
    seed: int = 0,
    *,
    rules: TokenRules = NO_RULES,
    guide: Future[CompiledGuide] | None = None,
    compiled: CompiledGuide | None = None,
    beam: BeamParams | None = None,
    stop_words: StopWords | None = None,
    end_ids: frozenset[int] | None = None,
    priority: float = 0.5,
    deadline: float | None = None,
    client: int | None = None,
    retention: Retention | None = None,
    max_drafts: int | None = None,
    given: abc.Sequence[int] = (),
    gather: Gather = NOTHING,
    processor: LogitsProcessor | None = None,
    on_progress: Callable[[Sequence], object] | None = None,
    **more: Any,
) -> Sequence:
    """A request, of what it may be asked by name. `guide` is being compiled, `compiled` is one that is."""
    own = RequestGuide(guide) if guide is not None else None
    if compiled is not None:
        own = RequestGuide.of(compiled)
    request = Request(
        prompt,
        sampling if sampling is not None else SamplingParams(),
        beam=beam,
        priority=priority,
        client_id=client,
        max_drafts=max_drafts,
        given=tuple(given),
        processor=processor,
        gather=gather,
        retention=retention,
        end_ids=end_ids,
        is_prepared=True,
        rules=rules,
        watch_stop_words=lambda: stop_words,
    )
    return Sequence(request, seed, own, stop_words, deadline=deadline, on_progress=on_progress, **more)


def make_request(
    llm: LLM, prompt: str | list[int], sampling: SamplingParams, guide: Guide | None = None, **fields: Any
) -> Sequence:
    """A request of the LLM's engine; `fields` are `engine_request`'s."""
    tokens = llm.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    compiling = llm.compile(guide) if guide is not None else None
    return engine_request(tokens, sampling, sampling.seed or 0, guide=compiling, **fields)


def run(llm: LLM, requests: abc.Sequence[Sequence]) -> None:
    """Submit all of them, and step the engine until they are finished."""
    for request in requests:
        llm.engine.submit(request)
    while not all(request.is_finished for request in requests):
        llm.engine.step()
