"""What the engine tells of one step: whom it served, and what that took. Everything statistics are made of."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """Requests that decode at once, and tokens of an iteration: those in force, and those that the tuner recommends (0:
    it has seen nothing, or is off)."""

    max_batch: int
    max_num_tokens: int
    recommended_batch: int = 0
    recommended_tokens: int = 0


@dataclass(frozen=True)
class KvUsage:
    """Pages of keys and values at one moment, and what prefixes gave since the engine was made.

    `max_pages` there are; `free_pages` nobody holds (of which `cached_pages` keep what may be found again);
    `used_pages` belong to requests. `allocated_pages` were handed out so far, `new_pages` of them for the first time.
    Of the pages that prompts begin with, `reused_pages` were found again (shared, copied or taken over) and
    `missed_pages` were not; a page that a prompt only begins counts.

    Of `max_host_pages` on the host, `host_pages` keep what had to go from the device and may be found again;
    `offloaded_pages` were copied there so far, `onboarded_pages` back.
    """

    page_size: int = 0
    max_pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    used_pages: int = 0
    allocated_pages: int = 0
    new_pages: int = 0
    reused_pages: int = 0
    missed_pages: int = 0
    max_host_pages: int = 0
    host_pages: int = 0
    offloaded_pages: int = 0
    onboarded_pages: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of pages looked for that were found, 0 to 1; 0.0 where none was looked for."""
        asked = self.reused_pages + self.missed_pages
        return self.reused_pages / asked if asked else 0.0


@dataclass(slots=True)
class StepRecord:
    """One step of the engine. Times in seconds, `time.perf_counter`'s clock.

    `context` and `generation` are ids of the requests that read a part of their prompt and that decoded; `paused` of
    those that were preempted. `context_tokens` prompt tokens were read. `new_active` requests were admitted, having
    waited `new_active_queue_s` in sum; `completed` ended. What was read of an earlier iteration counts here:
    `generated_tokens`; of `speculating` requests `proposed_drafts` were verified, `accepted_drafts` of them are in the
    answers, and these got `speculated_tokens` from it (as `OutputStats` counts them). `active` and `queued` are
    numbers of requests at the step's end (`queued` ones wait for a guide, a slot or pages; `compiling` of them for a
    guide).

    `model_s` is how long the step waited for the device, `grammar_s` what grammar tasks took meanwhile, on any
    thread; `total_s` is the step. `limits` were in force. `prompt_tokens_read` is how far the prompts are that are
    being read, by request id.
    """

    number: int
    started: float
    total_s: float = 0.0
    model_s: float = 0.0
    grammar_s: float = 0.0
    context: list[int] = field(default_factory=list)
    generation: list[int] = field(default_factory=list)
    paused: list[int] = field(default_factory=list)
    context_tokens: int = 0
    new_active: int = 0
    new_active_queue_s: float = 0.0
    completed: int = 0
    generated_tokens: int = 0
    speculating: int = 0
    speculated_tokens: int = 0
    proposed_drafts: int = 0
    accepted_drafts: int = 0
    active: int = 0
    queued: int = 0
    compiling: int = 0
    kv: KvUsage = field(default_factory=KvUsage)
    limits: Limits | None = None
    prompt_tokens_read: dict[int, int] = field(default_factory=dict)
