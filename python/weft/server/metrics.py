"""Prometheus metrics. They use vLLM's names for the same meanings, and weft's own names for guides and the engine's
time.

Recording an event takes a few additions in plain Python. Prometheus objects are built only when /metrics is read.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from weft.core import Output, OutputStats
from weft.core.output import SAMPLED, FinishReason
from weft.engine.sequence import Sequence
from weft.engine.stats import StepRecord
from weft.errors import CapacityError, GuideError, GuideStateError
from weft.server.errors import ApiError
from weft.server.models import ServedModel
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
    "vllm:time_to_first_token_seconds": (
        "Seconds from a request's submission to an answer's first token",
        SECONDS,
    ),
    "vllm:inter_token_latency_seconds": (
        "Seconds between two tokens of a streamed answer; tokens of one chunk share the time equally",
        GAPS,
    ),
    "vllm:e2e_request_latency_seconds": ("Seconds from a request's submission to an answer's end", SECONDS),
    "vllm:request_queue_time_seconds": ("Seconds that an answer waited for its guide and a slot", SECONDS),
    "vllm:request_inference_time_seconds": ("Seconds from an answer's slot to its last token", SECONDS),
    "vllm:request_prefill_time_seconds": ("Seconds from an answer's slot to its first token", SECONDS),
    "vllm:request_decode_time_seconds": ("Seconds from an answer's first token to its last", SECONDS),
    "vllm:request_time_per_output_token_seconds": (
        "Mean seconds per token of an answer, after its first token",
        GAPS,
    ),
    "vllm:request_prompt_tokens": ("Tokens of a prompt", TOKENS),
    "vllm:request_prefill_kv_computed_tokens": (
        "Tokens of a prompt that were not in the prefix cache",
        TOKENS,
    ),
    "vllm:request_generation_tokens": ("Tokens of an answer", TOKENS),
    "vllm:request_max_num_generation_tokens": ("Tokens of the longest answer to a prompt", TOKENS),
    "vllm:request_params_n": ("Answers per prompt that a request asks for", NUMBERS),
    "vllm:request_params_max_tokens": ("Token limit of a request's answers", TOKENS),
    "vllm:iteration_tokens_total": ("Prompt and answer tokens that an engine step processes", TOKENS),
    "weft:guide_compile_seconds": ("Seconds that a guided request waited for its guide", SECONDS),
}
COUNTERS = {
    "vllm:prompt_tokens": "Tokens of prompts, counted at an answer's first token",
    "vllm:generation_tokens": "Tokens of answers, counted per chunk of a stream and at the end of other answers",
    "vllm:prefix_cache_queries": "Prompt tokens that were looked up in the prefix cache",
    "vllm:prefix_cache_hits": "Prompt tokens that were found in the prefix cache",
    "vllm:num_preemptions": "Preemptions: answers that lost their slot and continue later",
    "vllm:spec_decode_num_drafts": "Iterations of an answer that verified draft tokens",
    "vllm:spec_decode_num_draft_tokens": "Draft tokens that the model verified",
    "vllm:spec_decode_num_accepted_tokens": "Draft tokens that were accepted",
    "weft:grammar_seconds": "Seconds of grammar work (masks, commits, forced drafts), summed over all threads",
    "weft:model_seconds": "Seconds that the engine's thread waited for the device",
    "weft:steps": "Engine steps",
    "weft:guided_requests": "Requests with a guide",
    "weft:left_requests": "Requests whose client disconnected before the answer's end",
}
LABELLED = {
    "vllm:request_success": ("finished_reason", "Answers that ended, by finish reason"),
    "vllm:spec_decode_num_accepted_tokens_per_pos": (
        "position",
        "Draft tokens that were accepted, by position in the draft, from 0",
    ),
    "weft:tokens": ("origin", "Tokens of ended answers, by origin"),
}
"""Counters with a label of their own: the label and the help text."""
GAUGES = {
    "vllm:num_requests_running": "Answers that hold a slot",
    "vllm:num_requests_waiting": "Answers that wait for their guide, a slot or KV cache pages",
    "vllm:kv_cache_usage_perc": "Share of the KV cache's pages in use, from 0 to 1",
    "weft:num_guides_compiling": "Answers that wait for their guide to compile; they count as waiting, too",
}
CACHE_INFO = (
    "Always 1; the labels have the tokens per KV cache page, the pages, and whether prefixes are reused"
)
REFUSALS = "Requests that were refused or failed; model_name is empty if the request named no known model"


class ModelMetrics:
    """The metrics of one model. `num_positions` is the length of its longest usual draft, in tokens."""

    def __init__(self, num_positions: int = 0) -> None:
        self.histograms = {name: Buckets(bounds) for name, (_, bounds) in HISTOGRAMS.items()}
        self.counters = dict.fromkeys(COUNTERS, 0.0)
        # A counter that is exported from the start lets `rate` and `increase` see its first event.
        self.labelled: dict[str, dict[str, int]] = {
            "vllm:request_success": dict.fromkeys(("stop", "length", "abort", "error"), 0),
            "vllm:spec_decode_num_accepted_tokens_per_pos": {str(i): 0 for i in range(num_positions)},
            "weft:tokens": {SAMPLED: 0},
        }
        self.prefilled_tokens = self.generated_tokens = 0
        """The engine's count of prompt tokens, without cached ones, and of answer tokens. Each step adds to them."""
        self.num_running, self.kv_usage = 0, 0.0

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
        for length, count in Counter(record.accepted_lengths).items():
            for position in range(length):
                self._count("vllm:spec_decode_num_accepted_tokens_per_pos", str(position), count)
        self.histograms["vllm:iteration_tokens_total"].observe(
            record.context_tokens + record.generated_tokens
        )
        self.prefilled_tokens += record.context_tokens
        self.generated_tokens += record.generated_tokens
        self.num_running = record.active
        self.kv_usage = kv.used_pages / kv.max_pages if kv.max_pages else 0.0

    def note_prompt(self, stats: OutputStats) -> None:
        """Record a prompt after its prefill, at the first token."""
        self.counters["vllm:prompt_tokens"] += stats.prompt_tokens
        self.counters["vllm:prefix_cache_queries"] += stats.prompt_tokens
        self.counters["vllm:prefix_cache_hits"] += stats.reused_tokens

    def begin(self, stats: OutputStats) -> None:
        """Record an answer's first token. It counts even if the client disconnects later."""
        self.histograms["vllm:time_to_first_token_seconds"].observe(stats.time_to_first_token_s)

    def count_ended(self, finish_reason: str | None, count: int = 1) -> None:
        """Count answers that ended with one of the engine's finish reasons."""
        self._count("vllm:request_success", FINISHED.get(finish_reason or "error", "error"), count)

    def end(self, output: Output, is_first: bool) -> None:
        """Record a finished answer. With `is_first` it is the first answer of its prompt, so the prompt's own metrics
        are recorded too."""
        stats, histograms = output.stats, self.histograms
        self.count_ended(output.finish_reason)
        for origin in output.origins:
            self._count("weft:tokens", origin)
        histograms["vllm:request_generation_tokens"].observe(len(output.token_ids))
        if is_first:
            histograms["vllm:request_prompt_tokens"].observe(stats.prompt_tokens)
            num_computed = stats.prompt_tokens - stats.reused_tokens
            histograms["vllm:request_prefill_kv_computed_tokens"].observe(num_computed)
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
        """Yield the metrics as Prometheus metric families, except the gauges."""
        names, values = [*labels], [*labels.values()]
        for name, buckets in self.histograms.items():
            histogram = HistogramMetricFamily(name, HISTOGRAMS[name][0], labels=names)
            histogram.add_metric(values, buckets.cumulative, buckets.total)
            yield histogram
        for name, value in self.counters.items():
            counter = CounterMetricFamily(name, COUNTERS[name], labels=names)
            counter.add_metric(values, value)
            yield counter
        for name, (label, text) in LABELLED.items():
            family = CounterMetricFamily(name, text, labels=[*names, label])
            for label_value, count in [*self.labelled[name].items()]:  # the engine's thread may add a label
                family.add_metric([*values, label_value], count)
            yield family

    def _count(self, name: str, label: str, count: int = 1) -> None:
        counts = self.labelled[name]
        counts[label] = counts.get(label, 0) + count


class Metrics(Collector):
    """The metrics of all served models, and those of the process. `registry` exports them. Every metric of every model
    is exported from the start."""

    def __init__(self, served: Mapping[str, ServedModel]) -> None:
        self._served = served
        self.models = {
            name: ModelMetrics(model.client.built.speculation.max_draft_tokens)
            for name, model in served.items()
        }
        self.refusals = {(name, reason): 0 for name in (*served, "") for reason in ALL_REASONS}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def of(self, model: str) -> ModelMetrics:
        """Return the metrics of a served model."""
        return self.models[model]

    def gauges(self, name: str) -> dict[str, float]:
        """Return the gauges of a served model by name. Any thread may call this."""
        model, client = self.models[name], self._served[name].client
        return {
            "vllm:num_requests_running": model.num_running,
            # No step runs while all requests wait for their guide, so these two do not come from a step's record.
            "vllm:num_requests_waiting": client.num_waiting,
            "vllm:kv_cache_usage_perc": model.kv_usage,
            "weft:num_guides_compiling": client.num_compiling,
        }

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of all models, with one family per metric name. A refusal may belong to no model."""
        families: dict[str, Metric] = {}
        for number, (name, model) in enumerate(self.models.items()):
            labels = {"model_name": name, "engine": str(number)}
            for family in (*model.families(labels), *self._gauge_families(name, labels)):
                if family.name in families:
                    families[family.name].samples += family.samples
                else:
                    families[family.name] = family
        refusals = CounterMetricFamily("weft:refusals", REFUSALS, labels=["model_name", "engine", "reason"])
        engines = {name: str(number) for number, name in enumerate(self.models)}
        for (name, reason), count in [*self.refusals.items()]:
            refusals.add_metric([name, engines.get(name, ""), reason], count)
        return [*families.values(), refusals]

    def _gauge_families(self, name: str, labels: dict[str, str]) -> Iterator[Metric]:
        for gauge_name, value in self.gauges(name).items():
            gauge = GaugeMetricFamily(gauge_name, GAUGES[gauge_name], labels=[*labels])
            gauge.add_metric([*labels.values()], value)
            yield gauge
        config = self._served[name].client.built.config
        info = {
            "block_size": str(config.page_size),
            "num_gpu_blocks": str(config.num_pages - 1),  # without the padding's page, as in the usage
            "enable_prefix_caching": str(config.reuse),
        }
        cache = GaugeMetricFamily("vllm:cache_config_info", CACHE_INFO, labels=[*labels, *info])
        cache.add_metric([*labels.values(), *info.values()], 1)
        yield cache

    def refuse(self, model: str, reason: str) -> None:
        """Record a request that was refused or has failed. `model` is "" if the request named no known model."""
        self.refusals[model, reason] = self.refusals.get((model, reason), 0) + 1

    @contextmanager
    def request(self, job: Job, has_left: Callable[[], bool]) -> Iterator[Watched]:
        """Return a context manager that records a request until it ends. It yields the object that records the
        increments. If the request is cancelled or fails, so do its open answers. For a cancelled request, `has_left`
        tells whether its client has left."""
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
            watched.end_open("cancelled")
            raise
        except Exception:
            watched.end_open("error")
            raise


class Watched:
    """Records the increments of one request. `num_each` is the number of answers per prompt.

    `num_submitted` is the number of answers that the engine has accepted. `stats` holds the statistics of each choice
    that has begun. `finish_reasons` are the engine's, in the order in which the answers ended. `num_tokens` is the
    number of tokens in all answers so far.
    """

    def __init__(
        self, model: ModelMetrics, num_each: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._model, self._num_each, self._clock = model, num_each, clock
        self._last_at: dict[int, float] = {}
        self._lengths: dict[int, list[int]] = {}
        self.num_submitted = 0
        self.stats: dict[int, OutputStats] = {}
        self.finish_reasons: list[str] = []
        self.num_tokens = 0

    def note(self, increments: abc.Sequence[Increment]) -> None:
        """Record increments that have just arrived."""
        now, gaps = self._clock(), self._model.histograms["vllm:inter_token_latency_seconds"]
        for increment in increments:
            count, choice = len(increment.token_ids), increment.choice
            is_first = choice % self._num_each == 0
            self.stats[choice] = increment.stats
            self.num_tokens += count
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
                self.finish_reasons.append(increment.output.finish_reason or "error")
                self._model.end(increment.output, is_first)
                self._note_length(choice // self._num_each, len(increment.output.token_ids))

    def end_open(self, finish_reason: FinishReason) -> None:
        """Record the end of the answers that have not ended by themselves."""
        count = self.num_submitted - len(self.finish_reasons)
        self.finish_reasons += [finish_reason] * count
        self._model.count_ended(finish_reason, count)

    def _note_length(self, prompt: int, num_tokens: int) -> None:
        """Record an answer's length. The last answer to a prompt records the longest one."""
        lengths = self._lengths.setdefault(prompt, [])
        lengths.append(num_tokens)
        if len(lengths) == self._num_each:
            self._model.histograms["vllm:request_max_num_generation_tokens"].observe(max(lengths))


FINISHED = {"stop": "stop", "length": "length", "timeout": "length", "cancelled": "abort"}
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
BAD_HEAD, INTERNAL = "head", "internal"
"""The reason labels for a request that is refused because of its head or its HTTP framing, and for an unexpected
error."""
ALL_REASONS = tuple(dict.fromkeys([*(word for _, word in REASONS), *WORDS.values(), BAD_HEAD, INTERNAL]))


def reason_of(error: ApiError) -> str:
    """Return the reason label for a failed request, one of a fixed set of words."""
    cause = error.__cause__
    word = next((word for kind, word in REASONS if isinstance(cause, kind)), None)
    return word or WORDS.get(error.status, "input" if error.status < 500 else INTERNAL)
