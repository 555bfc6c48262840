"""The statistics of one step: the sequences that it served, and the time that it took. All other statistics are
computed from these."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """The batch limits in force, and the limits that the tuner recommends (0: it is off, or has seen no request)."""

    max_batch: int
    max_num_tokens: int
    recommended_batch: int = 0
    recommended_tokens: int = 0


@dataclass(frozen=True)
class KvUsage:
    """The KV pages at one moment. Counters run since the engine was made."""

    page_size: int = 0
    max_pages: int = 0

    free_pages: int = 0
    """Pages that no sequence holds, `cached_pages` among them."""

    cached_pages: int = 0
    """Cached pages on the device that no sequence holds."""

    used_pages: int = 0
    """Pages that sequences hold."""

    allocated_pages: int = 0
    """Counts allocations of pages."""

    new_pages: int = 0
    """Counts allocations of pages that had never been allocated before."""

    reused_pages: int = 0
    """Counts prompt pages found in the cache: shared, copied or taken over. A partly used page counts as one."""

    missed_pages: int = 0
    """Counts prompt pages looked up and not found in the cache."""

    max_host_pages: int = 0

    host_pages: int = 0
    """Cached pages on the host, evicted from the device."""

    offloaded_pages: int = 0
    """Counts pages copied from the device to the host."""

    onboarded_pages: int = 0
    """Counts pages copied from the host to the device."""

    @property
    def hit_rate(self) -> float:
        """The share of looked-up pages that were in the cache, 0 to 1; 0.0 before any lookup."""
        num_lookups = self.reused_pages + self.missed_pages
        return self.reused_pages / num_lookups if num_lookups else 0.0


@dataclass(slots=True)
class StepRecord:
    """The statistics of one step. Durations are in seconds; `started` is a time of `time.perf_counter`."""

    number: int
    started: float

    total_s: float = 0.0
    """The duration of the step."""

    model_s: float = 0.0
    """How long the step waited for the device."""

    grammar_s: float = 0.0
    """How long grammar tasks ran during the step, on any thread."""

    context: list[int] = field(default_factory=list)
    """The ids of sequences that read a chunk of their prompt."""

    generation: list[int] = field(default_factory=list)
    """The ids of sequences that decoded."""

    paused: list[int] = field(default_factory=list)
    """The ids of sequences that were preempted."""

    context_tokens: int = 0
    """The number of prompt tokens read."""

    new_active: int = 0
    """The number of sequences admitted for the first time."""

    new_active_queue_s: float = 0.0
    """The sum of the times that these sequences waited."""

    completed: int = 0
    """The number of sequences that ended."""

    # With overlap, the step reads results of an iteration that an earlier step launched. The next fields count those.

    generated_tokens: int = 0

    speculating: int = 0
    """The number of sequences that had drafts to verify."""

    speculated_tokens: int = 0
    """The number of tokens that these sequences got, as in `OutputStats.drafted_tokens`."""

    proposed_drafts: int = 0
    """The number of drafts that the target verified."""

    accepted_drafts: int = 0
    """The number of verified drafts that are in the answers."""

    active: int = 0
    """The number of sequences that the step served."""

    queued: int = 0
    """The number of sequences that wait at the end of the step, for their guide, a slot or pages."""

    compiling: int = 0
    """The number of queued sequences that wait for their guide."""

    kv: KvUsage = field(default_factory=KvUsage)

    limits: Limits | None = None
    """The batch limits in force during the step."""

    prompt_tokens_read: dict[int, int] = field(default_factory=dict)
    """The number of tokens read so far of each unfinished prompt, by sequence id."""
