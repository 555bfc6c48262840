"""The statistics of one step: the sequences that it ran, and the time that it took. All other statistics are computed
from these."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """The batch limits in effect, and the limits that the tuner recommends (0: the tuner is off, or has seen no
    answer)."""

    max_batch: int
    max_num_tokens: int
    recommended_batch: int = 0
    recommended_tokens: int = 0


@dataclass(frozen=True)
class KvUsage:
    """The state of the KV pages and snapshots at one moment. Counters count since the engine was made."""

    page_size: int = 0
    max_pages: int = 0

    free_pages: int = 0
    """Pages that no sequence holds. They include `cached_pages`."""

    cached_pages: int = 0
    """Cached pages on the device that no sequence holds."""

    used_pages: int = 0
    """Pages that sequences hold."""

    allocated_pages: int = 0
    """Counts allocations of pages."""

    new_pages: int = 0
    """Counts allocations of pages that had never been allocated before."""

    reused_pages: int = 0
    """Counts prompt pages found in the cache: shared, copied or taken over. A partly matched page counts as one."""

    missed_pages: int = 0
    """Counts prompt pages looked up and not found in the cache."""

    max_host_pages: int = 0

    host_pages: int = 0
    """Cached pages on the host, evicted from the device."""

    offloaded_pages: int = 0
    """Counts pages copied from the device to the host."""

    onboarded_pages: int = 0
    """Counts pages copied from the host to the device."""

    max_windowed_pages: int = 0
    """Pages of layers with windows, if these have pages of their own (docs/windows.md)."""

    free_windowed_pages: int = 0
    """Windowed pages that no sequence holds, cached ones too."""

    max_snapshots: int = 0
    """The number of states that can be kept, for a model with recurrent states."""

    snapshots: int = 0
    """States that are kept for cached texts."""

    snapshot_hits: int = 0
    """Counts admissions that began with a kept state."""

    @property
    def hit_rate(self) -> float:
        """The share of looked-up pages that were in the cache, 0 to 1; 0.0 before any lookup."""
        num_lookups = self.reused_pages + self.missed_pages
        return self.reused_pages / num_lookups if num_lookups else 0.0


NO_USAGE = KvUsage()


@dataclass(slots=True)
class StepRecord:
    """The statistics of one step. Durations are in seconds; `started` is a time of `time.perf_counter`."""

    number: int
    started: float

    total_s: float = 0.0
    """The duration of the step."""

    model_s: float = 0.0
    """The time that the step waited for the device."""

    grammar_s: float = 0.0
    """The time of grammar tasks during the step, on all threads together."""

    context: list[int] = field(default_factory=list)
    """The ids of sequences that prefilled a chunk of their prompt."""

    generation: list[int] = field(default_factory=list)
    """The ids of sequences that decoded."""

    paused: list[int] = field(default_factory=list)
    """The ids of sequences that were preempted, except those that must reread an edited text."""

    context_tokens: int = 0
    """The number of prompt tokens prefilled."""

    new_active: int = 0
    """The number of sequences admitted for the first time."""

    new_active_queue_s: float = 0.0
    """The sum of the times that these sequences waited."""

    completed: int = 0
    """The number of sequences that ended."""

    # With overlap, a step reads the results of an iteration that an earlier step launched. The fields from here to
    # `accepted_lengths` count those results.

    generated_tokens: int = 0

    speculating: int = 0
    """The number of sequences that had drafts to verify."""

    speculated_tokens: int = 0
    """The number of tokens that these sequences got, counted as in `OutputStats.drafted_tokens`."""

    proposed_drafts: int = 0
    """The number of drafts that the target verified."""

    accepted_drafts: int = 0
    """The number of verified drafts that are in the answers."""

    accepted_lengths: list[int] = field(default_factory=list)
    """For each sequence that had drafts to verify, the number that were accepted. These are its first drafts."""

    active: int = 0
    """The number of sequences that were active in the step."""

    queued: int = 0
    """The number of sequences that wait at the end of the step, for their guide, a slot or pages."""

    compiling: int = 0
    """The number of queued sequences that wait for their guide, or for their matcher to start."""

    kv: KvUsage = NO_USAGE

    limits: Limits | None = None
    """The batch limits in effect during the step."""

    prompt_tokens_read: dict[int, int] = field(default_factory=dict)
    """For each sequence in prefill, by id, the number of its tokens that are cached, prefilled or in flight."""
