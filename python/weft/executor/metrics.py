"""Performance metrics of a request, in the types of TensorRT-LLM's API."""

from __future__ import annotations

from datetime import timedelta
from itertools import takewhile

from weft.client.responses import ResponseDelta
from weft.core import Output
from weft.executor.types import (
    KvCacheMetrics,
    Request,
    RequestPerfMetrics,
    SpeculativeDecodingMetrics,
    TimingMetrics,
)
from weft.executor.types.metrics import NEVER


def perf_metrics(request: Request, output: Output, delta: ResponseDelta) -> RequestPerfMetrics:
    """The metrics of a request so far, for the response of `delta`."""
    stats = output.stats
    timing = TimingMetrics(
        arrival_time=moment(stats.submitted_at),
        guide_ready_time=moment(stats.guide_ready_at),
        first_scheduled_time=moment(stats.scheduled_at),
        first_token_time=moment(stats.first_token_at),
        last_token_time=moment(stats.last_token_at) if delta.is_finished else NEVER,
    )
    asked = stats.reused_pages + stats.missed_pages
    blocks = KvCacheMetrics(
        stats.allocated_pages,
        stats.new_pages,
        stats.reused_pages,
        stats.missed_pages,
        stats.reused_pages / asked if asked else 0.0,
    )
    last = delta.step if delta.is_finished else None
    return RequestPerfMetrics(timing, blocks, _drafting(request, output), stats.first_step, last, delta.step)


def moment(seconds: float | None) -> timedelta:
    """Convert a time of `time.perf_counter` to a timedelta; timedelta(0) if the event has not happened."""
    return NEVER if seconds is None else timedelta(seconds=seconds)


def _drafting(request: Request, output: Output) -> SpeculativeDecodingMetrics:
    """The numbers of proposed and accepted drafts. With external drafts, all drafts of the request count."""
    # The engine does not count the first external draft, because it is compared with the token of the prefill.
    accepted, proposed = output.stats.accepted_drafts, output.stats.proposed_drafts
    given = request.external_draft_tokens_config
    if given is not None and output.token_ids:
        pairs = zip(output.token_ids, given.tokens, strict=False)
        accepted, proposed = (
            sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)),
            len(given.tokens),
        )
    return SpeculativeDecodingMetrics(accepted / proposed if proposed else 0.0, accepted, proposed)
