"""Logs the traffic: a line for each request, and every ten seconds a line with the throughput of each busy model.

A record carries its values in `record.weft`, from which `logs.py` makes a flat JSON object. Its message has the same
values as plain text.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from dataclasses import dataclass
from typing import Any

from starlette.types import Scope

from weft.server.metrics import Metrics, ModelMetrics, Watched
from weft.server.reading.jobs import Job

# -- requests

_requests = logging.getLogger("weft.server.access")

POLLED = ("/health", "/ready", "/metrics")
"""Paths that a supervisor or Prometheus reads every few seconds. Successful requests for them are logged at level
DEBUG."""
UNNAMED = ("method", "path", "status")
"""Fields that a line of text shows without their name, because they come first and are well known."""
MAX_TEXT = 200
"""The maximum length of a path or an error message in a line. Clients choose both."""
PLAIN = re.compile(r"[!#-<>-\[\]-~]+")
"""Matches a value that needs no quotes: visible ASCII without `"`, `=` and the backslash."""


def log_request(scope: Scope, status: int, seconds: float) -> None:
    """Log a request after its answer, or after the last event of a stream. `status` is 0 if no answer was sent."""
    level = logging.DEBUG if scope["path"] in POLLED and status == 200 else logging.INFO
    if not _requests.isEnabledFor(level):
        return
    job, error, tenant = scope.get("weft.job"), scope.get("weft.error"), scope.get("weft.tenant")
    fields: dict[str, Any] = {
        "method": scope["method"],
        "path": scope["path"][:MAX_TEXT],
        "status": status or None,
        "ms": _ms(seconds),
        "model": job.served.name if job is not None else scope.get("weft.model") or None,
        "tenant": tenant.name if tenant is not None else None,
        **_answer_fields(job, scope.get("weft.watched")),
        "left": scope.get("weft.left"),
        "error": error.message[:MAX_TEXT] if error is not None else None,
        "request_id": scope["weft.request_id"],
    }
    present = {name: value for name, value in fields.items() if value is not None}
    words = [
        _quoted(value) if name in UNNAMED else f"{name}={_quoted(value)}" for name, value in present.items()
    ]
    _requests.log(level, "%s", " ".join(words), extra={"weft": present})


def _answer_fields(job: Job | None, watched: Watched | None) -> dict[str, Any]:
    """Return the fields about a job's answers. Those that are not known are None."""
    if job is None:
        return {}
    counts, times = _measured(job, watched) if watched is not None and watched.stats else ({}, {})
    reasons = dict.fromkeys(watched.finish_reasons if watched is not None else ())
    return {
        "stream": job.body.stream,
        "guide": job.guide.kind if job.guide is not None else None,
        "answers": job.num_answers if job.num_answers > 1 else None,
        "prompt_tokens": job.prompt_tokens,
        **counts,
        "finish_reason": ",".join(reasons) or None,
        **times,
        "ignored": ",".join(job.ignored) or None,
    }


def _measured(job: Job, watched: Watched) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the token counts and the times of answers that have begun."""
    stats = [*watched.stats.values()]
    first = min(stats, key=lambda s: s.first_token_at or float("inf"))
    iterations = sum(s.iterations for s in stats)
    # An answer's first token comes from its prompt's forward pass, which is no iteration.
    num_decoded = watched.num_tokens - sum(s.first_token_at is not None for s in stats)
    num_cached = sum(
        s.reused_tokens for choice, s in watched.stats.items() if choice % job.body.num_answers == 0
    )
    counts = {"cached_tokens": num_cached, "answer_tokens": watched.num_tokens}
    return counts, {
        "first_token_ms": _ms_between(first.submitted_at, first.first_token_at),
        "queue_ms": _ms_between(first.submitted_at, first.scheduled_at),
        "compile_ms": _ms_between(first.submitted_at, first.guide_ready_at)
        if job.guide is not None
        else None,
        "tokens_per_iteration": round(num_decoded / iterations, 2) if iterations else None,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _ms_between(begin: float, end: float | None) -> float | None:
    return _ms(end - begin) if end is not None else None


def _quoted(value: Any) -> str:
    """Return a value as one word, or in quotes. Clients choose paths and parts of errors, so control characters are
    escaped: a client can't forge a line."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(text)


# -- throughput

_throughput = logging.getLogger("weft.server.throughput")

EVERY_S = 10.0
"""Seconds between two lines of a model."""


@dataclass(frozen=True)
class Counts:
    """The counters of a model at one moment, a time of `time.perf_counter`."""

    moment: float
    steps: float
    prefilled: int
    generated: int
    drafts: float
    draft_tokens: float
    accepted: float

    @classmethod
    def of(cls, model: ModelMetrics) -> Counts:
        """Read a model's counters."""
        return cls(
            time.perf_counter(),
            model.counters["weft:steps"],
            model.prefilled_tokens,
            model.generated_tokens,
            model.counters["vllm:spec_decode_num_drafts"],
            model.counters["vllm:spec_decode_num_draft_tokens"],
            model.counters["vllm:spec_decode_num_accepted_tokens"],
        )


async def log_throughput(metrics: Metrics, every_s: float = EVERY_S) -> None:
    """Log the throughput of each model every `every_s` seconds, until cancelled. A model that is idle logs nothing."""
    before = {name: Counts.of(model) for name, model in metrics.models.items()}
    while True:
        await asyncio.sleep(every_s)
        for name, model in metrics.models.items():
            now = Counts.of(model)
            log_interval(name, before[name], now, metrics.gauges(name))
            before[name] = now


def log_interval(name: str, before: Counts, now: Counts, gauges: dict[str, float]) -> None:
    """Log the throughput of a model between two moments, unless it was idle."""
    running, waiting = gauges["vllm:num_requests_running"], gauges["vllm:num_requests_waiting"]
    if now.steps == before.steps and not running and not waiting:
        return
    seconds = now.moment - before.moment
    fields: dict[str, Any] = {
        "model": name,
        "prompt_tokens_per_s": round((now.prefilled - before.prefilled) / seconds, 1),
        "generation_tokens_per_s": round((now.generated - before.generated) / seconds, 1),
        "running": int(running),
        "waiting": int(waiting),
        "kv_cache_usage": round(gauges["vllm:kv_cache_usage_perc"], 4),
    }
    text = (
        f"{name}: prompt {fields['prompt_tokens_per_s']} tokens/s, "
        f"generation {fields['generation_tokens_per_s']} tokens/s, {int(running)} running, {int(waiting)} waiting, "
        f"KV cache {gauges['vllm:kv_cache_usage_perc']:.1%} used"
    )
    drafts, draft_tokens = now.drafts - before.drafts, now.draft_tokens - before.draft_tokens
    accepted = now.accepted - before.accepted
    # The engine's thread may be between two of these counters, so one may have grown alone.
    if drafts and draft_tokens:
        rate = accepted / draft_tokens
        fields["draft_acceptance_rate"] = round(rate, 4)
        fields["mean_acceptance_length"] = round(1 + accepted / drafts, 2)
        text += f", {rate:.0%} of drafts accepted, {fields['mean_acceptance_length']} tokens per iteration with drafts"
    _throughput.info("%s", text, extra={"weft": fields})
