"""Prometheus metrics. They use vLLM's names for the same meanings, and weft's own names for guides and the engine's
time.

Recording an event takes a few additions in plain Python. Prometheus objects are built only when /metrics is read.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import abc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from weft.core import Output, OutputStats
from weft.engine.sequence import Sequence
from weft.engine.stats import StepRecord
from weft.errors import CapacityError, GuideError, GuideStateError
from weft.server.errors import ApiError
from weft.server.reading.jobs import Job
from weft.server.writing.increments import Increment

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
GAPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
NUMBERS = (1, 2, 5, 10, 20)
"""Upper bounds of histogram buckets, like `SECONDS`, `GAPS` and `TOKENS`."""


class Buckets:
    """A histogram: a count for each bucket, and the sum of all values."""

    def __init__(self, bounds: abc.Sequence[float]) -> None:
        self.bounds, self.total = bounds, 0.0
        self.counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, count: int = 1) -> None:
        """Record a value `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    @property
    def cumulative(self) -> list[tuple[str, float]]:
        """Pairs of an upper bound and the cumulative count up to it, as Prometheus expects."""
        pairs, total = [], 0
        for bound, count in zip((*map(str, map(float, self.bounds)), "+Inf"), self.counts, strict=True):
            total += count
            pairs.append((bound, float(total)))
        return pairs


HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": ("From a request's arrival to its first token", SECONDS),
    "vllm:inter_token_latency_seconds": (
        "Between a request's tokens; those that come together share it",
        GAPS,
    ),
    "vllm:e2e_request_latency_seconds": ("From a request's arrival to its end", SECONDS),
    "vllm:request_queue_time_seconds": ("Waiting for a slot", SECONDS),
    "vllm:request_inference_time_seconds": ("In a slot", SECONDS),
    "vllm:request_prefill_time_seconds": ("In a slot, before the first token", SECONDS),
    "vllm:request_decode_time_seconds": ("From the first token to the last", SECONDS),
    "vllm:request_time_per_output_token_seconds": ("Time of decoding over the tokens after the first", GAPS),
    "vllm:request_prompt_tokens": ("Tokens of prompts", TOKENS),
    "vllm:request_generation_tokens": ("Tokens of answers", TOKENS),
    "vllm:request_params_n": ("Answers that are asked for", NUMBERS),
    "vllm:request_params_max_tokens": ("Longest answers that are asked for", TOKENS),
    "vllm:iteration_tokens_total": ("Tokens that a step reads and gives", TOKENS),
    "weft:guide_compile_seconds": ("Waiting for a guide", SECONDS),
}
COUNTERS = {
    "vllm:prompt_tokens": "Tokens of prompts",
    "vllm:generation_tokens": "Tokens of answers",
    "vllm:prefix_cache_queries": "Tokens of prompts that were looked for in the cache",
    "vllm:prefix_cache_hits": "Tokens of prompts that were found there",
    "vllm:num_preemptions": "Requests that gave their pages back and went on later",
    "vllm:spec_decode_num_drafts": "Iterations of requests that verified drafts",
    "vllm:spec_decode_num_draft_tokens": "Drafts that were verified",
    "vllm:spec_decode_num_accepted_tokens": "Drafts that are in answers",
    "weft:grammar_seconds": "Time of grammar tasks (masks, commits, drafts they take), on any thread",
    "weft:model_seconds": "Time that steps waited for the device",
    "weft:steps": "Steps of the engine",
    "weft:guided_requests": "Requests with a guide",
    "weft:left_requests": "Requests whose client left",
}


@dataclass
class ModelMetrics:
    """The metrics of one model."""

    histograms: dict[str, Buckets] = field(
        default_factory=lambda: {name: Buckets(bounds) for name, (_, bounds) in HISTOGRAMS.items()}
    )
    counters: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0.0))
    ended: dict[str, int] = field(default_factory=dict)
    origins: dict[str, int] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)

    def step(self, record: StepRecord | None, arrived: abc.Sequence[Sequence]) -> None:
        """Record an engine step. The engine calls this on its own thread. `arrived` holds the sequences submitted since
        the last step; it is not used."""
        if record is None:
            return
        counters, kv = self.counters, record.kv
        counters["weft:steps"] += 1
        counters["weft:grammar_seconds"] += record.grammar_s
        counters["weft:model_seconds"] += record.model_s
        counters["vllm:num_preemptions"] += len(record.paused)
        counters["vllm:spec_decode_num_drafts"] += record.speculating
        counters["vllm:spec_decode_num_draft_tokens"] += record.proposed_drafts
        counters["vllm:spec_decode_num_accepted_tokens"] += record.accepted_drafts
        self.histograms["vllm:iteration_tokens_total"].observe(
            record.context_tokens + record.generated_tokens
        )
        self.gauges = {
            "vllm:num_requests_running": record.active,
            "vllm:num_requests_waiting": record.queued,
            "vllm:kv_cache_usage_perc": kv.used_pages / kv.max_pages if kv.max_pages else 0.0,
            "weft:num_guides_compiling": record.compiling,
        }

    def note_prompt(self, stats: OutputStats) -> None:
        """Record a prompt after its prefill, at the first token."""
        self.counters["vllm:prompt_tokens"] += stats.prompt_tokens
        self.counters["vllm:prefix_cache_queries"] += stats.prompt_tokens
        self.counters["vllm:prefix_cache_hits"] += stats.reused_tokens

    def begin(self, stats: OutputStats) -> None:
        """Record an answer's first token. It counts even if the client disconnects later."""
        self.histograms["vllm:time_to_first_token_seconds"].observe(stats.time_to_first_token_s)

    def abort(self, count: int) -> None:
        """Record answers that were cancelled, because their client has left or the server ends."""
        self.ended["abort"] = self.ended.get("abort", 0) + count

    def end(self, output: Output, is_first: bool) -> None:
        """Record a finished answer. With `is_first` it is the first answer of its prompt, so the prompt's own metrics
        are recorded too."""
        stats, histograms = output.stats, self.histograms
        reason = FINISHED.get(output.finish_reason or "error", "error")
        self.ended[reason] = self.ended.get(reason, 0) + 1
        for origin in output.origins:
            self.origins[origin] = self.origins.get(origin, 0) + 1
        histograms["vllm:request_generation_tokens"].observe(len(output.token_ids))
        if is_first:
            histograms["vllm:request_prompt_tokens"].observe(stats.prompt_tokens)
            if stats.compile_s:
                histograms["weft:guide_compile_seconds"].observe(stats.compile_s)
        histograms["vllm:e2e_request_latency_seconds"].observe(stats.total_s)
        # An answer that ended before its first token has no phases to measure.
        if stats.scheduled_at is None or stats.first_token_at is None or stats.last_token_at is None:
            return
        decoding = stats.last_token_at - stats.first_token_at
        histograms["vllm:request_queue_time_seconds"].observe(stats.scheduled_at - stats.submitted_at)
        histograms["vllm:request_inference_time_seconds"].observe(stats.last_token_at - stats.scheduled_at)
        histograms["vllm:request_prefill_time_seconds"].observe(stats.first_token_at - stats.scheduled_at)
        histograms["vllm:request_decode_time_seconds"].observe(decoding)
        if len(output.token_ids) > 1:
            per_token = decoding / (len(output.token_ids) - 1)
            histograms["vllm:request_time_per_output_token_seconds"].observe(per_token)

    def families(self, labels: dict[str, str]) -> Iterator[Metric]:
        """Yield the metrics as Prometheus metric families."""
        names, values = [*labels], [*labels.values()]
        for name, buckets in self.histograms.items():
            histogram = HistogramMetricFamily(name, HISTOGRAMS[name][0], labels=names)
            histogram.add_metric(values, buckets.cumulative, buckets.total)
            yield histogram
        for name, value in self.counters.items():
            counter = CounterMetricFamily(name, COUNTERS[name], labels=names)
            counter.add_metric(values, value)
            yield counter
        for name, value in self.gauges.items():
            gauge = GaugeMetricFamily(name, name.partition(":")[2].replace("_", " "), labels=names)
            gauge.add_metric(values, value)
            yield gauge
        for name, label, text, counts in (
            ("vllm:request_success", "finished_reason", "Answers that ended", self.ended),
            ("weft:tokens", "origin", "Tokens of answers, by how they came", self.origins),
        ):
            family = CounterMetricFamily(name, text, labels=[*names, label])
            for label_value, count in counts.items():
                family.add_metric([*values, label_value], count)
            yield family


class Metrics(Collector):
    """The metrics of all models. `registry` exports them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.models: dict[str, ModelMetrics] = {}
        self.refusals: dict[tuple[str, str], int] = {}
        self.registry.register(self)

    def of(self, model: str) -> ModelMetrics:
        """Return the metrics of a model. The first use of a name creates them."""
        return self.models.setdefault(model, ModelMetrics())

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of all models, with one family per metric name. A refusal may belong to no model."""
        families: dict[str, Metric] = {}
        for number, (name, model) in enumerate(self.models.items()):
            for family in model.families({"model_name": name, "engine": str(number)}):
                if family.name in families:
                    families[family.name].samples += family.samples
                else:
                    families[family.name] = family
        refusals = CounterMetricFamily(
            "weft:refusals", "Requests that failed", labels=["model_name", "engine", "reason"]
        )
        engines = {name: str(number) for number, name in enumerate(self.models)}
        for (name, reason), count in [*self.refusals.items()]:
            refusals.add_metric([name, engines.get(name, ""), reason], count)
        return [*families.values(), refusals]

    def refuse(self, model: str, reason: str) -> None:
        """Record a request that was refused or has failed. `model` is "" if the request named no known model."""
        self.refusals[model, reason] = self.refusals.get((model, reason), 0) + 1

    @contextmanager
    def request(self, job: Job, has_left: Callable[[], bool]) -> Iterator[Watched]:
        """Return a context manager that records a request until it ends. It yields the object that records the
        increments. If the request is cancelled, its open answers count as aborted. `has_left` then tells whether its
        client has left."""
        model = self.of(job.served.name)
        num_each = job.body.num_answers
        model.histograms["vllm:request_params_n"].observe(num_each)
        model.histograms["vllm:request_params_max_tokens"].observe(job.requests[0].sampling.max_tokens)
        model.counters["weft:guided_requests"] += job.guide is not None
        watched = Watched(model, num_each)
        try:
            yield watched
        except asyncio.CancelledError:
            model.counters["weft:left_requests"] += has_left()
            model.abort(job.num_answers - watched.num_ended)
            raise


class Watched:
    """Records the increments of one request. `num_each` is the number of answers per prompt."""

    def __init__(
        self, model: ModelMetrics, num_each: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._model, self._num_each, self._clock = model, num_each, clock
        self._last_at: dict[int, float] = {}
        self.num_ended = 0

    def note(self, increments: abc.Sequence[Increment]) -> None:
        """Record increments that have just arrived."""
        now, gaps = self._clock(), self._model.histograms["vllm:inter_token_latency_seconds"]
        for increment in increments:
            count, choice = len(increment.token_ids), increment.choice
            is_first = choice % self._num_each == 0
            self._model.counters["vllm:generation_tokens"] += count
            if count:
                before = self._last_at.get(choice)
                if before is not None:
                    gaps.observe((now - before) / count, count)
                else:
                    if is_first:
                        self._model.note_prompt(increment.stats)
                    self._model.begin(increment.stats)
                self._last_at[choice] = now
            if increment.output is not None:
                self.num_ended += 1
                self._model.end(increment.output, is_first)


FINISHED = {"stop": "stop", "length": "length", "timeout": "length"}
"""Maps the engine's finish reasons to vLLM's. All others count as "error"."""

REASONS = (
    (GuideError, "guide"),
    (GuideStateError, "guide_at_run_time"),
    (CapacityError, "capacity"),
)
WORDS = {
    400: "input",
    401: "key",
    403: "forbidden",
    404: "not_found",
    405: "method",
    408: "slow",
    413: "too_large",
    429: "too_many",
    503: "unavailable",
}
BAD_HEAD = "head"
"""The reason label for a request that is refused because of its head or its HTTP framing."""


def reason_of(error: ApiError) -> str:
    """Return the reason label for a failed request, one of a fixed set of words."""
    cause = error.__cause__
    word = next((word for kind, word in REASONS if isinstance(cause, kind)), None)
    return word or WORDS.get(error.status, "input" if error.status < 500 else "internal")
