"""The statistics of one step: which sequences it served, and what that took. All other statistics derive from them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """The limits of a batch in force, and those that the tuner recommends (0: it is off, or has seen no request)."""

    max_batch: int
    max_num_tokens: int
    recommended_batch: int = 0
    recommended_tokens: int = 0


@dataclass(frozen=True)
class KvUsage:
    """The pages of keys and values at one moment. Counters run since the engine was made."""

    page_size: int = 0
    max_pages: int = 0

    free_pages: int = 0
    """Pages that no sequence holds, `cached_pages` among them."""

    cached_pages: int = 0
    """Pages that no sequence holds, and that a prefix may match."""

    used_pages: int = 0
    """Pages that sequences hold."""

    allocated_pages: int = 0
    """How many pages were handed out."""

    new_pages: int = 0
    """How many of these were handed out for the first time."""

    reused_pages: int = 0
    """How many pages of prompts were in the cache: shared, copied or taken over. A partly used page counts as one."""

    missed_pages: int = 0
    """How many pages of prompts were looked up and were not in the cache."""

    max_host_pages: int = 0

    host_pages: int = 0
    """Cached pages on the host, which were evicted from the device."""

    offloaded_pages: int = 0
    """How many pages were copied from the device to the host."""

    onboarded_pages: int = 0
    """How many pages were copied back."""

    @property
    def hit_rate(self) -> float:
        """The share of looked-up pages that were in the cache, 0 to 1; 0.0 before any lookup."""
        num_lookups = self.reused_pages + self.missed_pages
        return self.reused_pages / num_lookups if num_lookups else 0.0


@dataclass(slots=True)
class StepRecord:
    """One step of the engine. Times are in seconds; moments are those of `time.perf_counter`."""

    number: int
    started: float

    total_s: float = 0.0
    """The duration of the step."""

    model_s: float = 0.0
    """How long the step waited for the device."""

    grammar_s: float = 0.0
    """How long grammar tasks ran meanwhile, on any thread."""

    context: list[int] = field(default_factory=list)
    """The ids of sequences that read a part of their prompt."""

    generation: list[int] = field(default_factory=list)
    """The ids of sequences that decoded."""

    paused: list[int] = field(default_factory=list)
    """The ids of sequences that were preempted."""

    context_tokens: int = 0
    """How many prompt tokens were read."""

    new_active: int = 0
    """How many sequences were admitted for the first time."""

    new_active_queue_s: float = 0.0
    """How long these waited, in sum."""

    completed: int = 0
    """How many sequences ended."""

    # Tokens and drafts of the iteration whose results this step read, which was launched earlier.

    generated_tokens: int = 0

    speculating: int = 0
    """How many sequences had drafts to verify."""

    speculated_tokens: int = 0
    """How many tokens these got from the iteration, as in `OutputStats.drafted_tokens`."""

    proposed_drafts: int = 0
    """How many drafts were verified."""

    accepted_drafts: int = 0
    """How many of these are in the answers."""

    active: int = 0
    """How many sequences the step served."""

    queued: int = 0
    """How many sequences wait at the end of the step, for their guide, a slot or pages."""

    compiling: int = 0
    """How many of these wait for their guide."""

    kv: KvUsage = field(default_factory=KvUsage)

    limits: Limits | None = None
    """The limits in force."""

    prompt_tokens_read: dict[int, int] = field(default_factory=dict)
    """The tokens read so far of each prompt that is being read, by sequence id."""
