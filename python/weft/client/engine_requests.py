"""The engine's requests of one that is prepared: the one place that makes them."""

from __future__ import annotations

import secrets
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace

from weft.client.word_rules import WatcherFactory
from weft.core.request import GenerationRequest, TokenRules
from weft.engine.beam.checks import check_search
from weft.engine.device.tensors import Gathered
from weft.engine.logits_processors import RequestProcessor
from weft.engine.request_guide import RequestGuide
from weft.engine.sequence import DraftLimits, Queueing, Request
from weft.engine.stop_rules import StopRules
from weft.grammar.base import CompiledGuide


@dataclass(frozen=True, eq=False)
class PreparedRequest:
    """A request that was read and checked, of which nothing has begun: a long list of them costs little while it
    waits. `given` are the tokens that its answer is expected to be."""

    request: GenerationRequest
    prompt: tuple[int, ...]
    given: tuple[int, ...]
    rules: TokenRules
    stop_words: WatcherFactory


def engine_requests(
    prepared: PreparedRequest, number: int, guide: Future[CompiledGuide] | None = None
) -> list[Request]:
    """One for each sequence, numbered from `number` on; of a search by beams, one for all."""
    asked = prepared.request
    chosen = asked.sampling.seed
    seed = chosen if chosen is not None else secrets.randbits(63)
    deadline = None if asked.timeout_s is None else time.perf_counter() + asked.timeout_s
    processor = asked.processor
    if processor is not None:
        processor = replace(processor, request_id=number, client_id=asked.client_id)
    return [
        Request(
            list(prepared.prompt),
            asked.sampling,
            wrapped(seed + index),
            prepared.rules,
            StopRules(prepared.stop_words(), asked.end_ids, prepared.given if asked.only_given else ()),
            RequestGuide(guide) if guide is not None else None,
            asked.beam,
            Queueing(asked.priority, deadline, asked.client_id, asked.retention, asked.cache_salt),
            DraftLimits(asked.max_drafts, prepared.given, asked.ahead),
            Gathered(asked.gather),
            RequestProcessor(processor) if processor is not None else None,
            id=number + index,
        )
        for index in range(asked.num_sequences)
    ]


def check_beams(prepared: PreparedRequest) -> None:
    """Raise `InputError` for what a search by beams can't do."""
    for request in engine_requests(prepared, 0):
        check_search(request)


def wrapped(seed: int) -> int:
    """A seed in 64 bits, signed."""
    return (seed + 2**63) % 2**64 - 2**63
