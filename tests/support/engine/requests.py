"""Requests that are submitted to an engine directly, schedules to run them under, and the parts of an answer that
must not depend on the schedule."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Any

from weft import LLM, Guide, Output, SamplingParams
from weft.core import OutputStats
from weft.core.beam_params import BeamParams
from weft.core.logits_processors import LogitsProcessor
from weft.core.request import NO_RULES, NOTHING, Gather, Request, StopWords, TokenRules
from weft.core.retention import Retention
from weft.engine.runner.draft_guidance import DraftGuidance
from weft.engine.sequence import RequestGuide, Sequence
from weft.grammar.base import CompiledGuide
from weft.runtime import cpu

# -- parts of an answer that do not depend on the schedule
#
# These are the tokens, and the counts of iterations and drafts. Sampling is coupled, so a race among drafts changes
# only the counts.


@dataclass
class Counted:
    """The iteration and draft counts of a request, named as in `OutputStats`."""

    iterations: int = 0
    drafted_iterations: int = 0
    drafted_tokens: int = 0
    proposed_drafts: int = 0
    accepted_drafts: int = 0

    @classmethod
    def of(cls, stats: OutputStats) -> Counted:
        """Take the counts from a request's statistics."""
        return cls(**{field.name: getattr(stats, field.name) for field in fields(cls)})


Told = list[tuple[list[int], Counted]]


def told(answers: Iterable[Output | Sequence]) -> Told:
    """The tokens and counts of each answer. No answer may have failed."""
    outputs = [answer.output if isinstance(answer, Sequence) else answer for answer in answers]
    assert [output.error for output in outputs if output.error is not None] == []
    return [(output.token_ids, Counted.of(output.stats)) for output in outputs]


def settle(llm: LLM) -> None:
    """Wait until the engine is idle: answers are delivered before the iteration launched ahead has finished.

    If the engine measures whether masking drafts pays off, it masks them from now on. The measurement depends on
    which requests share a batch, and so on when guides are compiled.
    """
    while llm.client.call(lambda: llm.engine.has_work):
        pass
    cpu.synchronize()
    if llm.engine.runner.guidance.choices == (True, False):
        llm.engine.runner.guidance = DraftGuidance(True)


# -- schedules

WAYS: dict[str, dict[str, Any]] = {
    "overlap": {"overlap": True},
    "overlap eager": {"overlap": True, "graphs": "none"},
    "split": {"graphs": "split"},
    "static": {"policy": "static_batch", "overlap": True},
    "few tokens": {"max_num_tokens": 64, "overlap": True},
    "equal progress": {"max_num_tokens": 64, "chunking": "equal_progress"},
    "whole prompts": {"chunked": False},
    "few pages": {"policy": "max_utilization", "num_pages": 28, "page_size": 8, "overlap": True},
    "few pages, in turn": {"policy": "max_utilization", "num_pages": 28, "page_size": 8},
    "few pages, split": {"policy": "max_utilization", "num_pages": 28, "page_size": 8, "graphs": "split"},
    "no prefixes": {"reuse": False, "overlap": True},
    "few pages, more on the host": {
        "policy": "max_utilization",
        "num_pages": 28,
        "page_size": 8,
        "overlap": True,
        "host_cache_bytes": 1 << 23,
    },
    "a few pages on the host": {
        "num_pages": 90,
        "page_size": 4,
        "host_cache_bytes": 1 << 16,
        "kv_event_buffer": 9,
    },
    "no copies": {"copy_on_partial_reuse": False, "page_size": 4},
}


# -- requests


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
    """Make a sequence from its parameters. `guide` is the future of a guide, `compiled` a compiled guide."""
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
    """Make a sequence for the LLM's engine. `fields` are those of `engine_request`."""
    tokens = llm.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    compiling = llm.compile(guide) if guide is not None else None
    return engine_request(tokens, sampling, sampling.seed or 0, guide=compiling, **fields)


def run(llm: LLM, requests: abc.Sequence[Sequence]) -> None:
    """Submit all requests, and step the engine until they have finished."""
    for request in requests:
        llm.engine.submit(request)
    while not all(request.is_finished for request in requests):
        llm.engine.step()
